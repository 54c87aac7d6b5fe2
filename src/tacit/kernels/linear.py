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

_LOGISTIC, _CROSS_ENTROPY, _MSE, _HUBER = range(4)
LOSSES: Mapping[str, int] = {
    "logistic": _LOGISTIC,
    "cross-entropy": _CROSS_ENTROPY,
    "mse": _MSE,
    "huber": _HUBER,
}
"""The numbers that loops know losses by."""

HUBER_BEND = 0.25  # that of `gradients.losses`

_SMALLEST = 2.0**-1022  # of the normal numbers in float64
_ROOM = 1.0 + 2.0**-40  # for a few roundings in float64
_NORM_NUMBERS = 1024  # squares that are added up in the dtype of a wide record


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
        near = difference
        if loss == _HUBER and abs(difference) > HUBER_BEND:
            near = math.copysign(HUBER_BEND, difference)
            squares += near * (2.0 * difference - near)
        else:
            squares += difference * difference
        slopes[k] = kind(2.0 * near / outputs)
    mean: float = squares / outputs
    return mean


@inlined
def _wide_square(record: NDArray[Any], unit: float, smallest: float) -> float:
    """The squared norm of a wide record from above, as `contributions.square_bounds` has it.

    `unit` is that of its dtype, in which it adds up to 1,024 squares: twice as fast as in float64.
    """
    width = len(record)
    total = 0.0
    for start in range(0, width, _NORM_NUMBERS):
        part = record[start : start + _NORM_NUMBERS]
        total += np.float64(_product(part, part))
    share = (min(width, _NORM_NUMBERS) + 16) * unit + width * 2.0**-51
    return total * (1.0 + 1.01 * share) + 2 * width * smallest


@inlined
def _length(
    record: NDArray[Any],
    left: float,
    slopes: NDArray[Any],
    biased: bool,
    coordinates: int,
    smallest: float,
    by_l1: bool,
) -> float:
    """The norm of a record's gradient from above; `left` is the squared norm of its input.

    Rounding: docs/proofs/clipped-sums.md, "Norms from above".
    """
    outputs = len(slopes)
    if by_l1:
        size = _size(slopes)
        length = _size(record) * size + (size if biased else 0.0)
        length *= 1.0 + (coordinates + 16) * 2.0**-52
    else:
        right = _square(slopes) * (1.0 + (outputs + 16) * 2.0**-52)
        right += 2 * outputs * smallest
        length = math.sqrt((left * right + (right if biased else 0.0)) * _ROOM)
    return length


@inlined
def _factor(
    length: float, left: float, aim: float, reach: float, least: float, offset: float
) -> float:
    """What a record's gradient is multiplied by; 0 where it has no bound, and adds nothing.

    `clipping.clip_factors` has the same for tensors.
    """
    share = aim / (length + offset)
    if not (share >= least and left <= reach):  # or is not a number
        return 0.0
    return share if offset > 0 else min(share, 1.0)


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
    offset: float,
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
        targets: `[nodes, b, 1]`, or `[nodes, b, outputs]` of numbers.
        mask: `[nodes, b]`, True for records; what masked slots hold is not read.
        aims: `[nodes]`, what norms are brought to.
        reaches: `[nodes]`, the largest squared norm of an input that can be multiplied.
        least: a record with a smaller factor contributes nothing.
        smallest: the smallest normal number of the dtype.
        by_l1: whether the l1 norm is bounded, in place of the l2 norm.
        offset: what is added to norms before they divide (`clipping.norm_offset`); 0: factors are 1
            at most.
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
                length = _length(
                    record, left, slopes, bias >= 0, parameters.shape[1], smallest, by_l1
                )
                share = _factor(length, left, aims[node], reaches[node], least, offset)
                if share == 0:
                    norms[node, r] = kind(math.inf)
                    continue
                norms[node, r] = kind(length)
                factor = kind(share)
            for k in range(outputs):
                scaled = factor * slopes[k]
                start = weight + k * width
                _add(sums[start : start + width], scaled, record)
                if bias >= 0:
                    sums[bias + k] += scaled


@compiled
def add_clipped_sums(
    loss: int,
    parameters: NDArray[Any],
    weight: int,
    bias: int,
    inputs: NDArray[Any],
    targets: NDArray[Any],
    shares: NDArray[Any],
    mask: NDArray[np.bool_],
    aims: NDArray[np.float64],
    least: float,
    by_l1: bool,
    offset: float,
    total: NDArray[np.float64],
    norms: NDArray[Any],
    losses: NDArray[Any],
) -> None:
    """What `add_clipped_gradients` does, where a record is several rows, each with a share.

    A record's gradient is first made, in float64, of those of its rows: it is that vector which is
    normed, clipped and added, so that nothing cancels afterwards. A row without a share is not
    read. Arguments are as there, but for these: inputs are `[nodes, b, rows, n]`, and targets
    `[nodes, b, rows, 1]` or `[nodes, b, rows, outputs]`, with shares `[nodes, b, rows]`; `total` is
    in float64.
    """
    nodes, records, most, width = inputs.shape
    size = parameters.shape[1]
    end = bias if bias > weight else size
    outputs = (end - weight) // width
    kind = parameters.dtype.type
    clipped = norms.shape[1] > 0
    slopes = np.empty(outputs, parameters.dtype)
    scores = np.empty(outputs, np.float64)
    own = np.empty(size, np.float64)
    for node in range(nodes):
        row = parameters[node]
        for r in range(records):
            value, length, factor = 0.0, 0.0, 1.0
            own[:] = 0.0
            for place in range(most if mask[node, r] else 0):
                share = shares[node, r, place]
                if share == 0:
                    continue
                record = inputs[node, r, place]
                for k in range(outputs):
                    start = weight + k * width
                    score = _product(row[start : start + width], record)
                    scores[k] = np.float64(score + row[bias + k] if bias >= 0 else score)
                value += share * _differentiate(loss, scores, targets[node, r, place], slopes)
                for k in range(outputs):
                    scaled = np.float64(share * slopes[k])
                    start = weight + k * width
                    _add(own[start : start + width], scaled, record)
                    if bias >= 0:
                        own[bias + k] += scaled
            losses[node, r] = kind(value)
            if clipped:
                # Rounding: docs/proofs/clipped-sums.md, "Norms from above".
                length = _size(own) if by_l1 else math.sqrt(_square(own) + 2 * size * _SMALLEST)
                length *= 1.0 + (size + 16) * 2.0**-52
                factor = _factor(length, 0.0, aims[node], 0.0, least, offset)
                if factor == 0:
                    length = math.inf
                norms[node, r] = kind(length if mask[node, r] else 0.0)
            if factor > 0 and mask[node, r]:
                _add(total[node], factor, own)


@compiled
def weigh_block(
    loss: int,
    scores: NDArray[Any],
    bias: NDArray[Any],
    inputs: NDArray[Any],
    targets: NDArray[Any],
    mask: NDArray[np.bool_],
    clipped: bool,
    aim: float,
    reach: float,
    least: float,
    unit: float,
    smallest: float,
    by_l1: bool,
    offset: float,
    kept: NDArray[np.bool_],
    bias_sums: NDArray[np.float64],
    norms: NDArray[Any],
    losses: NDArray[Any],
) -> bool:
    """Put slopes times clip factors in the place of the scores of some records of a node.

    What is left of a block of records is one product, of these with the inputs. Arguments are as of
    `add_clipped_gradients`, but of one node, without the axis of nodes, and for these:

    - `scores`: `[b, outputs]`, without the bias; become zero where a record contributes nothing;
    - `bias`: `[outputs]`, or empty where there is none;
    - `clipped`: whether anything is; if not, factors are 1, and `norms` is not written;
    - `unit`: what rounding errs by in the dtype, as a share;
    - `kept`: `[b]` becomes False where a record contributes nothing: its input, which may be no
      number, must not be multiplied at all;
    - `bias_sums`: float64 `[outputs]`, or empty; the gradients by the bias are added to it.

    Returns:
        Whether all are kept.
    """
    records, outputs = scores.shape
    biased = len(bias) > 0
    coordinates = outputs * inputs.shape[1] + len(bias)
    kind = scores.dtype.type
    own = np.empty(outputs, np.float64)
    every = True
    for r in range(records):
        slopes = scores[r]
        factor, value, length = 0.0, 0.0, 0.0
        if mask[r]:
            for k in range(outputs):
                own[k] = np.float64(slopes[k] + bias[k] if biased else slopes[k])
            value = _differentiate(loss, own, targets[r], slopes)
            factor = 1.0
            if clipped:
                record = inputs[r]
                left = _wide_square(record, unit, smallest)
                length = _length(record, left, slopes, biased, coordinates, smallest, by_l1)
                factor = _factor(length, left, aim, reach, least, offset)
                if factor == 0:
                    length = math.inf
        losses[r] = kind(value)
        if clipped:
            norms[r] = kind(length)
        kept[r] = factor > 0
        if factor == 0:
            every = False
        for k in range(outputs):
            scaled = kind(factor) * slopes[k] if factor > 0 else kind(0)
            slopes[k] = scaled
            if biased:
                bias_sums[k] += scaled
    return every


@compiled
def add_exactly(total: NDArray[np.float64], part: NDArray[Any]) -> None:
    """Add `part` `[outputs, n]`, of any dtype, to `total` in float64."""
    for k in range(len(total)):
        for j in range(total.shape[1]):
            total[k, j] += part[k, j]
