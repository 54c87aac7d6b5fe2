#!/usr/bin/env bash
# Opacus 1.6.0 with PyTorch 2.13.0: of a convolution whose padding_mode is "circular", "reflect" or "replicate", the
# gradient of each record is that of a convolution padded with zeros. So is what DP-SGD clips and sums.
#
# Neither ModuleValidator nor GradSampleModule objects, no warning is given, and p.grad, which PyTorch itself
# computes, is right beside the wrong p.grad_sample: their sums differ. It is so for Conv1d, Conv2d and
# Conv3d, and for the norms of ghost clipping, which fall below the true ones. With zeros all of it is exact, "same" and
# even kernels included.
#
# The truth is a loop over the records with PyTorch alone. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install opacus==1.6.0 numpy==2.4.6 torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import torch
from opacus import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.validators import ModuleValidator

KINDS = {torch.nn.Conv1d: (6,), torch.nn.Conv2d: (6, 5), torch.nn.Conv3d: (6, 5, 4)}


def loss(output):
    return (output**2).sum()


def by_loop(layer, inputs):
    return torch.stack([torch.autograd.grad(loss(layer(one[None])), layer.weight)[0] for one in inputs])


print("opacus", version("opacus"), "torch", torch.__version__)
torch.manual_seed(0)
for kind, size in KINDS.items():
    for mode in ("zeros", "circular", "reflect", "replicate"):
        layer = kind(2, 3, 3, padding=1, padding_mode=mode, bias=False, dtype=torch.float64)
        inputs = torch.randn(4, 2, *size, dtype=torch.float64)
        true = by_loop(layer, inputs)
        assert not ModuleValidator.validate(layer, strict=False)
        wrapped = GradSampleModule(layer, loss_reduction="sum", strict=True)
        loss(wrapped(inputs)).backward()
        off = (layer.weight.grad_sample - true).norm() / true.norm()
        summed = (layer.weight.grad - true.sum(0)).norm() / true.sum(0).norm()
        print(f"{kind.__name__}, {mode}: gradients of records off by {off:.1%}, their sum in p.grad by {summed:.1e}")
        assert summed < 1e-12
        assert off < 1e-12 if mode == "zeros" else off > 0.1
for mode in ("zeros", "circular"):
    layer = torch.nn.Conv2d(1, 2, 3, padding=1, padding_mode=mode, bias=False, dtype=torch.float64)
    inputs = torch.randn(4, 1, 6, 6, dtype=torch.float64)
    true = by_loop(layer, inputs).flatten(1).norm(dim=1)
    ghost = GradSampleModuleFastGradientClipping(layer, loss_reduction="sum", max_grad_norm=1.0)
    loss(ghost(inputs)).backward()
    off = (ghost.get_norm_sample() / true - 1).abs().max()
    print(f"ghost clipping, {mode}: norms off by up to {off:.1%}")
    assert off < 1e-12 if mode == "zeros" else off > 0.02
PYTHON
