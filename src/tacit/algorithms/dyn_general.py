"""The general form of Dyn-D2P: any sequences of clipping bounds and noise levels (Algorithm 2).

| paper | here |
|---|---|
| C_k | `clip_schedule`, one number a step; without it `clip` at every step |
| sigma~_k | `noise_schedule`, one number a step, relative; without it 1 at every step |
| sigma~ | the scale, which the plan calibrates to each node's budget |
| sigma~ sigma~_k | noise standard deviation injected at step k |

The noise multiplier of step k is therefore proportional to sigma~_k / C_k. The step is that of
`privsgp`; see `dyn_d2p` for the paper.
"""

from __future__ import annotations

from tacit.algorithms.definition import Clip, Schedules, Size
from tacit.algorithms.dyn_d2p import PAPER
from tacit.algorithms.privsgp import PushSumOptions, push_sum_method
from tacit.errors import InputError
from tacit.privacy.published import DYN_GENERAL as PUBLISHED

__all__ = ["DYN_GENERAL"]


class GeneralOptions(PushSumOptions):
    """Options of the general form."""

    clip_schedule: tuple[Clip, ...] | None = None
    noise_schedule: tuple[Size, ...] | None = None


def schedules(options: GeneralOptions, clip: float | None, steps: int) -> Schedules:
    """The sequences as given; both need one number a step."""
    clips = None if clip is None else (clip,) * steps
    if options.clip_schedule is not None:
        clips = options.clip_schedule
        _check_length("algorithm.clip_schedule", clips, steps)
    noise = (1.0,) * steps
    if options.noise_schedule is not None:
        noise = options.noise_schedule
        _check_length("algorithm.noise_schedule", noise, steps)
    if clips is None:
        return Schedules(None, noise)
    return Schedules(clips, tuple(level / c for level, c in zip(noise, clips, strict=True)))


def _check_length(where: str, values: tuple[float, ...], steps: int) -> None:
    if len(values) != steps:
        raise InputError(where, f"{len(values)} numbers", f"needs one for each of {steps} steps")


DYN_GENERAL = push_sum_method(
    name="dyn-general",
    title="Dyn-D2P, general form",
    paper=PAPER,
    summary="PrivSGP with given sequences of clipping bounds and noise levels",
    options=GeneralOptions,
    schedules=schedules,
    formula=PUBLISHED,
)
