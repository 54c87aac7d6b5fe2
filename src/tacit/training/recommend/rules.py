"""The rules for clip and rate: what was measured, and why it holds for any data.

**One number decides.** Full-batch training with C-clipped gradients and Gaussian noise releases, in
T steps under one budget, as much as one release of everything with the noise of 1 / sqrt(T) of a
step's. Let s be the noise of that one release in a coordinate of the mean over all nodes, over C.
After T steps of lengths gamma_k (momentum beta counted as 1 / (1 - beta)) models have moved by at
most the *travel* L = C sum_k gamma_k / (1 - beta), and the noise in each coordinate is L s,
whatever T and C are, but for what gradients take back of it. Let |x| be the norm of a record's
inputs: the noise in an output is then |x| L s.

So there are three choices, and each was measured on public data (docs/how-to/recommend.md):

- *travel*: |x| L s = `OUTPUT_NOISE`, at most |x| L = `MOST_TRAVEL`. Shorter paths end before the
  model has learnt, longer ones only add noise;
- *clip*: C = `CLIP_SHARE` |x|. The gradient of a record is (p - y) x: nearly every one is longer,
  so that all records count alike, and the noise is as small as it can be beside them. Models then
  rank well and their probabilities mean nothing: also records that the model is sure of go on
  pulling, and the bias runs away. Of tables, whose probabilities are read, and of squared loss it
  is C = |x|, at which few gradients are clipped, and the travel is what leaves `WHOLE_NOISE`
  (`SQUARED_NOISE`), at most with steps of `LONGEST_STEP` / |x|^2 (`LONGEST_SQUARED_STEP`);
- *steps*: `STEPS`. More of them cost nothing but time, and gain little. What the last ones leave is
  averaged: `averaging`.

The rules are functions of numbers that are public: no record is within their reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.algorithms.options import Options, RateSchedule, step_size

OUTPUT_NOISE = 4.0
"""|x| L s: the noise in an output at the end of the path, if gradients took nothing of it back."""
MOST_TRAVEL = 100_000.0
"""|x| L at most, where there is next to no noise."""
MOST_WITHOUT_MOMENTUM = 10_000.0
"""The same without momentum, where longer steps swing."""
CLIP_SHARE = 0.01
"""C over |x|."""
WHOLE_NOISE = 0.8
"""|x| L s where C is |x|: measured on tables of patients and on Adult (docs/how-to/tables.md)."""
LONGEST_STEP = 4.0
"""gamma |x|^2 at most where C is |x|: the curvature of a record's loss is up to |x|^2 / 2."""
SQUARED_NOISE = 0.2
"""The same with squared loss and targets of about -1 to 1, whose errors are less than a label's."""
LONGEST_SQUARED_STEP = 1.0
"""gamma |x|^2 at most with squared loss: the curvature of a record's loss is 2 |x|^2."""
WIDE_CLIP = 0.2
"""C over |x| at which noise counts for twice as much beside a mean gradient that is not as long."""
MOMENTUM = 0.9
WITHOUT_MOMENTUM = 0.75
"""What `OUTPUT_NOISE` is multiplied by where there is no momentum to average noise."""
OTHER_TRAVEL = 260.0
"""|x| L at most of models that are not linear, as measured on tables (docs/how-to/tables.md)."""
OTHER_CLIP_SHARE = 0.2
"""C over |x| of these."""
FOR_RANKS = 0.5
"""What `OUTPUT_NOISE` is multiplied by where records are only to be ranked: a shorter way is enough
for that, and less noise is better."""
STEPS = 100
_AVERAGED = 0.1  # the share of the steps, the last ones, that an average is mostly of
_FEW = 20  # steps, of which nothing is averaged


@dataclass(frozen=True)
class TravelPath:
    """Clip C and rate gamma_0 of a run, with its travel |x| L and output noise |x| L s."""

    clip: float
    learning_rate: float
    travel: float
    output_noise: float


def output_noise(clip_share: float, momentum: float, *, ranks: bool = False) -> float:
    """How much noise in an output is worth its travel.

    `clip_share` is C over |x|: where C is longer than most gradients, the mean gradient is not as
    long as C, and the noise is. `momentum` is beta. `ranks` says that the leading metric is of the
    order of records alone.
    """
    noise = OUTPUT_NOISE / (1 + max(0.0, clip_share - CLIP_SHARE) / WIDE_CLIP)
    return noise * (1 if momentum else WITHOUT_MOMENTUM) * (FOR_RANKS if ranks else 1)


def travel(
    noise: float,
    clip_share: float = CLIP_SHARE,
    momentum: float = MOMENTUM,
    *,
    ranks: bool = False,
) -> float:
    """|x| L, how far models should go: less where there is more noise.

    `noise` is s, of one release of everything, in a coordinate of the mean, over C. All else is as
    in `output_noise`.
    """
    most = MOST_TRAVEL if momentum else MOST_WITHOUT_MOMENTUM
    return min(most, output_noise(clip_share, momentum, ranks=ranks) / max(noise, 1e-30))


def path(
    noise: float,
    norm: float,
    steps: int,
    momentum: float,
    schedule: RateSchedule = "constant",
    *,
    clip: float | None = None,
    learning_rate: float | None = None,
    ranks: bool = False,
    linear: bool = True,
    whole: bool = False,
    squared: bool = False,
) -> TravelPath:
    """Clip and rate for a noise, with what the user has set of them.

    `noise` is s, `norm` |x|, `steps` T, `momentum` beta, and `ranks` as in `output_noise`. `clip`
    and `learning_rate` are as the user has set them; None: open. Of models that are not `linear`
    the way is short. `whole` says that gradients are to count as they are, unless the clip is set
    to be short; `squared`, that they are those of squared loss.
    """
    whole = whole and (clip is None or clip >= norm / 2)
    share = 1.0 if whole else CLIP_SHARE if linear else OTHER_CLIP_SHARE
    bound = rounded(share * norm) if clip is None else clip
    unit = Options(learning_rate=1.0, learning_rate_schedule=schedule)
    length = math.fsum(step_size(unit, k, steps) for k in range(steps)) / (1 - momentum)
    wanted = travel(noise, bound / norm, momentum, ranks=ranks)
    wanted = wanted if linear else min(wanted, OTHER_TRAVEL)
    if whole or squared:
        longest = LONGEST_SQUARED_STEP if squared else LONGEST_STEP
        most = longest / norm * bound * length
        noisy = SQUARED_NOISE if squared else WHOLE_NOISE
        noisy *= 1 if momentum else WITHOUT_MOMENTUM
        most = most if linear else min(most, OTHER_TRAVEL)
        wanted = min(most, noisy / max(noise, 1e-30))
    rate = rounded(wanted / (norm * bound * length)) if learning_rate is None else learning_rate
    gone = norm * bound * rate * length
    return TravelPath(bound, rate, gone, gone * noise)


def averaging(steps: int) -> str:
    """`[train].average`: mostly of the last tenth of the steps."""
    if steps < _FEW:
        return "none"
    return f"exponential:{1 - rounded(1 / (_AVERAGED * steps)):.12g}"


def rounded(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.2g}")
