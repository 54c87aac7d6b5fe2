"""Loops over the records of models that are one linear layer: slopes, norms, clipped sums.

A record of a node has an input a of n numbers, and the layer gives it one score an output,
s = W a + bias. Its *slopes* g are the derivatives of its loss by these, so that the gradient of its
loss is the outer product g a', and g by the bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.compile import compiled, inlined, reordered

__all__ = ["LOSSES", "add_clipped_gradients"]

_LOGISTIC, _CROSS_ENTROPY, _MSE = 0, 1, 2
LOSSES: Mapping[str, int] = {"logistic": _LOGISTIC, "cross-entropy": _CROSS_ENTROPY, "mse": _MSE}
"""The numbers that loops know losses by."""

_ROOM = 1.0 + 2.0**-40  # for a few roundings in float64


@reordered
def _product(left: NDArray[Any], right: NDArray[Any]) -> Any:
    """Their scalar product, in their own dtype."""
    total = left.dtype.type(0)
    for j in range(len(left)):
        total += left[j] * right[j]
    return total


@reordered
def _square(values: NDArray[Any]) -> float:
    """The squared l2 norm, in float64."""
    total = 0.0
    for j in range(len(values)):
        value = np.float64(values[j])
        total += value * value
    return total


@reordered
def _size(values: NDArray[Any]) -> float:
    """The l1 norm, in float64."""
    total = 0.0
    for j in range(len(values)):
        total += abs(np.float64(values[j]))
    return total


@compiled
def _add(total: NDArray[Any], factor: Any, values: NDArray[Any]) -> None:
    """Add factor times `values` to `total`."""
    for j in range(len(total)):
        total[j] += factor * values[j]


@inlined
def _differentiate(
    loss: int, scores: NDArray[np.float64], targets: NDArray[Any], slopes: NDArray[Any]
) -> float:
    """The loss of one record; `slopes` become its derivatives by the scores.

    A target that is no class gives a loss that is not a number, and reads no memory.
    """
    outputs = len(scores)
    kind = slopes.dtype.type
    if loss == _LOGISTIC:
        sign = 1.0 if targets[0] > 0 else -1.0
        margin = float(sign * scores[0])
        slopes[0] = kind(-sign / (1.0 + math.exp(margin)))
        if margin > 0:
            return math.log1p(math.exp(-margin))
        return math.log1p(math.exp(margin)) - margin
    if loss == _CROSS_ENTROPY:
        largest = scores[0]
        for k in range(1, outputs):
            largest = max(largest, scores[k])
        total, chosen = 0.0, math.nan
        for k in range(outputs):
            if k == targets[0]:
                chosen = scores[k] - largest
            scores[k] = math.exp(scores[k] - largest)
            total += scores[k]
        for k in range(outputs):
            slopes[k] = kind(scores[k] / total - (1.0 if k == targets[0] else 0.0))
        return math.log(total) - chosen
    squares = 0.0
    for k in range(outputs):
        difference = scores[k] - np.float64(targets[k])
        slopes[k] = kind(2.0 * difference / outputs)
        squares += difference * difference
    mean: float = squares / outputs
    return mean


@compiled
def add_clipped_gradients(
    loss: int,
    parameters: NDArray[Any],
    weight: int,
    bias: int,
    inputs: NDArray[Any],
    targets: NDArray[Any],
    mask: NDArray[np.bool_],
    aims: NDArray[np.float64],
    reaches: NDArray[np.float64],
    least: float,
    smallest: float,
    by_l1: bool,
    total: NDArray[Any],
    norms: NDArray[Any],
    losses: NDArray[Any],
) -> None:
    """Add the clipped gradients of every record that is not masked to its node's row of `total`.

    Contiguous arrays; `[nodes, b, 0]` norms say that nothing is clipped.

    Args:
        loss: of `LOSSES`.
        parameters: `[nodes, d]`.
        weight: where the weight `[outputs, n]` begins in a row of them.
        bias: where the bias `[outputs]` does; below 0 where there is none.
        inputs: `[nodes, b, n]`, which the dtype of the parameters holds exactly.
        targets: `[nodes, b, 1]`, or `[nodes, b, outputs]` for mean squares.
        mask: `[nodes, b]`, True for records; what masked slots hold is not read.
        aims: `[nodes]`, what norms are brought to.
        reaches: `[nodes]`, the largest squared norm of an input that can be multiplied.
        least: a record with a smaller factor contributes nothing.
        smallest: the smallest normal number of the dtype.
        by_l1: whether the l1 norm is bounded, in place of the l2 norm.
        total: `[nodes, d]`, of the same dtype or float64.
        norms: `[nodes, b]` before clipping; becomes infinite where a record contributes nothing.
        losses: `[nodes, b]`.
    """
    nodes, records, width = inputs.shape
    end = bias if bias > weight else parameters.shape[1]
    outputs = (end - weight) // width
    kind = parameters.dtype.type
    clipped = norms.shape[1] > 0
    slopes = np.empty(outputs, parameters.dtype)
    scores = np.empty(outputs, np.float64)
    for node in range(nodes):
        row, sums = parameters[node], total[node]
        for r in range(records):
            if not mask[node, r]:
                losses[node, r] = 0
                if clipped:
                    norms[node, r] = 0
                continue
            record = inputs[node, r]
            for k in range(outputs):
                start = weight + k * width
                score = _product(row[start : start + width], record)
                scores[k] = np.float64(score + row[bias + k] if bias >= 0 else score)
            losses[node, r] = kind(_differentiate(loss, scores, targets[node, r], slopes))
            factor = kind(1)
            if clipped:
                # Rounding: docs/proofs/clipped-sums.md, "Norms from above".
                left = _square(record) * (1.0 + (width + 16) * 2.0**-52) + 2 * width * smallest
                if by_l1:
                    size = _size(slopes)
                    length = _size(record) * size + (size if bias >= 0 else 0.0)
                    length *= 1.0 + (parameters.shape[1] + 16) * 2.0**-52
                else:
                    right = _square(slopes) * (1.0 + (outputs + 16) * 2.0**-52)
                    right += 2 * outputs * smallest
                    length = math.sqrt((left * right + (right if bias >= 0 else 0.0)) * _ROOM)
                share = aims[node] / length
                if not (share >= least and left <= reaches[node]):  # or is not a number
                    norms[node, r] = kind(math.inf)
                    continue
                norms[node, r] = kind(length)
                factor = kind(min(share, 1.0))
            for k in range(outputs):
                scaled = factor * slopes[k]
                start = weight + k * width
                _add(sums[start : start + width], scaled, record)
                if bias >= 0:
                    sums[bias + k] += scaled
