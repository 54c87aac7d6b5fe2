"""The oracle of the gradient tests: one record, one node at a time, plain autograd."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Expected:
    total: Tensor
    norms: Tensor
    losses: Tensor


MEAN_LOSSES = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "mse": nn.MSELoss(),
    "huber": lambda outputs, targets: 2 * nn.HuberLoss(delta=0.25)(outputs, targets),
    "logistic": nn.SoftMarginLoss(),
}


def loop_gradient(model, loss, parameters, inputs, targets, mask, clip):
    """Clipped sums by assigning each node's weights to a copy and calling backward a record."""
    model = copy.deepcopy(model).to(parameters.dtype)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros_like(parameters)
    norms = torch.zeros(mask.shape, dtype=parameters.dtype)
    losses = torch.zeros(mask.shape, dtype=parameters.dtype)
    for node, record in mask.nonzero().tolist():
        with torch.no_grad():
            nn.utils.vector_to_parameters(parameters[node], trainable)
        model.zero_grad(set_to_none=True)
        value = MEAN_LOSSES[loss](
            model(inputs[node, record : record + 1]), targets[node, record : record + 1]
        )
        value.backward()
        gradient = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trainable]
        )
        norm = gradient.norm()
        losses[node, record] = value.detach()
        norms[node, record] = norm
        if clip is not None and norm > clip:
            gradient = gradient * (clip / norm)
        total[node] += gradient
    return Expected(total, norms, losses)


@pytest.fixture(scope="session")
def oracle():
    return loop_gradient
