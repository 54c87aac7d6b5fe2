"""The recursions of the papers as plain NumPy loops over steps, nodes and records.

Written from the papers alone: mixing matrices come from edge lists, gradients from closed forms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]
Edges = Sequence[tuple[int, int]]
RecordGradients = Callable[[Array, Array, Array], Array]
"""(parameters `[d]`, inputs `[records, p]`, targets) -> one gradient a record, `[records, d]`."""


# Mixing: P[i, j] weighs what i receives from j.


def exponential(nodes, k):
    """Half stays, half goes 2^(k mod T) hops ahead, T = floor(log2(n - 1)) + 1."""
    ahead = 2 ** (k % (math.floor(math.log2(nodes - 1)) + 1))
    matrix = np.eye(nodes) / 2
    for source in range(nodes):
        matrix[(source + ahead) % nodes, source] += 0.5
    return matrix


def splitting(nodes, edges):
    """Each node splits equally between itself and its out-neighbours."""
    matrix = np.zeros((nodes, nodes))
    for source in range(nodes):
        receivers = {source} | {target for start, target in edges if start == source}
        for target in receivers:
            matrix[target, source] = 1 / len(receivers)
    return matrix


def _neighbours(nodes, edges):
    return [
        {b for a, b in edges if a == node} | {a for a, b in edges if b == node}
        for node in range(nodes)
    ]


def metropolis(nodes, edges):
    """w_ij = 1 / (1 + max(d_i, d_j)), each node keeps the rest."""
    near = _neighbours(nodes, edges)
    matrix = np.zeros((nodes, nodes))
    for i in range(nodes):
        for j in near[i]:
            matrix[i, j] = 1 / (1 + max(len(near[i]), len(near[j])))
        matrix[i, i] = 1 - matrix[i].sum()
    return matrix


def laplacian(nodes, edges):
    """I - L / (d_max + 1)."""
    near = _neighbours(nodes, edges)
    graph_laplacian = np.zeros((nodes, nodes))
    for i in range(nodes):
        graph_laplacian[i, i] = len(near[i])
        graph_laplacian[i, list(near[i])] = -1
    return np.eye(nodes) - graph_laplacian / (1 + max(len(row) for row in near))


def uniform(nodes, edges):
    """1 / (degree + 1) for each neighbour and for the node itself."""
    near = _neighbours(nodes, edges)
    matrix = np.zeros((nodes, nodes))
    for i in range(nodes):
        matrix[i, [i, *near[i]]] = 1 / (1 + len(near[i]))
    return matrix


# Gradients of one record each; parameters are those of a linear layer: weight, then bias.


def logistic_gradients(parameters, inputs, targets):
    """Of log(1 + exp(-y (w x + b))), y in {-1, 1}."""
    scores = inputs @ parameters[:-1] + parameters[-1]
    slope = -targets / (1 + np.exp(targets * scores))
    return np.column_stack([slope[:, None] * inputs, slope])


def _through_linear(slopes, inputs):
    """Gradients of a linear layer from those of its outputs, `[records, outputs]`."""
    weights = slopes[:, :, None] * inputs[:, None, :]
    flat = weights.reshape(len(inputs), slopes.shape[1] * inputs.shape[1])
    return np.concatenate([flat, slopes], axis=1)


def _outputs(parameters, inputs, count):
    weight = parameters[:-count].reshape(count, inputs.shape[1])
    return inputs @ weight.T + parameters[-count:]


def mse_gradients(parameters, inputs, targets):
    """Of the mean over outputs of (W x + b - y)^2."""
    count = targets.shape[1]
    slopes = 2 * (_outputs(parameters, inputs, count) - targets) / count
    return _through_linear(slopes, inputs)


def softmax_gradients(parameters, inputs, targets):
    """Of -log softmax(W x + b)[y]."""
    count = len(parameters) // (inputs.shape[1] + 1)
    outputs = _outputs(parameters, inputs, count)
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return _through_linear(shares - np.eye(count)[targets.astype(int)], inputs)


# Problems: a module, each node's records, and the gradients of its loss.


@dataclass(frozen=True)
class Problem:
    """What is trained, and on what.

    Args:
        loss: as `[task].loss` names it.
        module: float64; its weights are every node's start.
        nodes: each node's inputs and targets; the numbers of records differ.
        gradients: of single records.
    """

    loss: str
    module: nn.Module
    nodes: list[tuple[torch.Tensor, torch.Tensor]]
    gradients: RecordGradients

    @property
    def empty(self):
        """The nodes without records, as `[nodes]` names them."""
        return [node for node, (inputs, _) in enumerate(self.nodes) if not len(inputs)] or None

    def without(self, *nodes):
        """The same, where these nodes have no records."""
        pairs = enumerate(self.nodes)
        return replace(
            self, nodes=[(x[:0], y[:0]) if i in nodes else (x, y) for i, (x, y) in pairs]
        )

    @property
    def start(self):
        """x^0, `[d]`."""
        return np.concatenate(
            [weight.detach().numpy().reshape(-1) for weight in self.module.parameters()]
        )


def record_counts(nodes):
    return [2 + (3 * node) % 5 for node in range(nodes)]


def problem(loss, nodes, seed=7):
    """A linear model with 3 inputs under one of the losses, for nodes of 2 to 6 records."""
    draw = np.random.default_rng(seed)
    outputs = {"logistic": 1, "mse": 2, "cross-entropy": 4}[loss]
    module = nn.Linear(3, outputs, dtype=torch.float64)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.from_numpy(draw.normal(size=tuple(weight.shape))))

    def targets(count):
        match loss:
            case "logistic":
                return draw.choice([-1.0, 1.0], count)
            case "mse":
                return draw.normal(size=(count, outputs))
            case _:
                return draw.integers(0, outputs, count)

    records = [
        (torch.from_numpy(draw.normal(size=(count, 3))), torch.from_numpy(targets(count)))
        for count in record_counts(nodes)
    ]
    gradients = {
        "logistic": logistic_gradients,
        "mse": mse_gradients,
        "cross-entropy": softmax_gradients,
    }
    return Problem(loss, module, records, gradients[loss])


def weight(task, node, among=None):
    """n p_i of the objective sum p_i f_i: J_i over the mean number of records, of these nodes."""
    counts = [len(task.nodes[i][0]) for i in (among or range(len(task.nodes)))]
    return len(task.nodes[node][0]) * len(counts) / sum(counts)


def clipped(gradients, bound):
    """Each record's gradient scaled down to l2 norm `bound` if it is longer."""
    if bound is None:
        return gradients
    norms = np.sqrt((gradients**2).sum(axis=1))
    return np.array(
        [g * bound / norm if norm > bound else g for g, norm in zip(gradients, norms, strict=True)]
    ).reshape(gradients.shape)


def clipped_share(task, bound):
    """Share of all records whose gradient at the start is longer than `bound`."""
    norms = [
        np.linalg.norm(task.gradients(task.start, x.numpy(), y.numpy()), axis=1)
        for x, y in task.nodes
    ]
    return float((np.concatenate(norms) > bound).mean())


@dataclass(frozen=True)
class Run:
    """The settings that the recursions share.

    Args:
        task: what is trained.
        matrix: the mixing matrix of step k.
        steps: K.
        learning_rate: gamma.
        clips: C_k of each step, or None.
        batches: (k, node) -> record numbers of the batch; None takes every record.
        divisors: what each node's sum of gradients is divided by; None for its records.
        equal: whether all nodes count alike, in place of by their records.
    """

    task: Problem
    matrix: Callable[[int], Array]
    steps: int
    learning_rate: float = 0.3
    clips: Sequence[float] | None = None
    batches: Callable[[int, int], Array] | None = None
    divisors: Sequence[float] | None = None
    equal: bool = False

    def mean_gradient(self, node, at, k):
        inputs, targets = (values.numpy() for values in self.task.nodes[node])
        if not len(inputs):
            return np.zeros_like(at)
        divisor = len(inputs) if self.divisors is None else self.divisors[node]
        if self.batches is not None:
            chosen = self.batches(k, node)
            inputs, targets = inputs[chosen], targets[chosen]
        gradients = self.task.gradients(at, inputs, targets)
        bound = None if self.clips is None else self.clips[k]
        share = 1.0 if self.equal else weight(self.task, node)
        return np.asarray(clipped(gradients, bound).sum(axis=0) / divisor * share)


def push_sum(run, momentum=0.0, final_mixing=0):
    """PrivSGP (Algorithm 2) without noise: x `[nodes, d]` and w `[nodes]` at the end."""
    count = len(run.task.nodes)
    x = np.tile(run.task.start, (count, 1))
    w = np.ones(count)
    m = np.zeros_like(x)
    for k in range(run.steps + final_mixing):
        if k < run.steps:
            for i in range(count):
                m[i] = momentum * m[i] + run.mean_gradient(i, x[i] / w[i], k)
            x = x - run.learning_rate * m
        matrix = run.matrix(k)
        x = np.array([sum(matrix[i, j] * x[j] for j in range(count)) for i in range(count)])
        w = np.array([sum(matrix[i, j] * w[j] for j in range(count)) for i in range(count)])
    return x, w


def de_biased(x, w):
    """z = x / w."""
    return x / w[:, None]


def gossip(run):
    """D-PSGD: x_i^{k+1} = sum_j W_ij x_j^k - gamma g_i(x_i^k); x `[nodes, d]` at the end."""
    count = len(run.task.nodes)
    x = np.tile(run.task.start, (count, 1))
    for k in range(run.steps):
        matrix = run.matrix(k)
        g = [run.mean_gradient(i, x[i], k) for i in range(count)]
        x = np.array(
            [
                sum(matrix[i, j] * x[j] for j in range(count)) - run.learning_rate * g[i]
                for i in range(count)
            ]
        )
    return x
