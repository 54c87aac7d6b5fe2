"""Options that are rules, as the numbers that a plan settles them on.

`learning_rate = "sqrt(n/K)"` is the step of Theorem 1 of Zhu, Huang, Wang and Xu (IJCAI 2024),
for n nodes and K steps.
`clip = "median"` is the bound that Abadi et al. advise (section 5.2 of *Deep Learning with
Differential Privacy*), the median of the norms of unclipped gradients. Of private records that
would be a release of its own. Here it is that of the *public* test records at the public start of
the models, so that it is a public constant: the mechanism is that of a bound that was written into
the file, and nothing is added to the account.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from tacit.config import AlgorithmSection, Config
from tacit.data import Dataset
from tacit.errors import InputError
from tacit.gradients import StackedModel

_MOST_RECORDS = 10_000
_LEAST, _MOST = 1e-18, 1e18  # of a bound that sums are clipped to
_DIGITS = 3  # that of two machines the last bits differ, changes nothing but next to a tie


def with_rate(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The experiment with a learning rate that is a number, and a line that says which.

    The nodes and steps of `config` are those of the run.
    """
    if config.algorithm.options.learning_rate != "sqrt(n/K)":
        return config, ()
    nodes, steps = config.nodes.count, config.train.steps
    rate = math.sqrt(nodes / steps)
    words = f"by the rule sqrt(n/K), for n = {nodes} nodes and K = {steps} steps"
    return _with(config, learning_rate=rate), (f"algorithm.learning_rate = {rate:.6g}, {words}",)


def with_clip(
    config: Config, model: StackedModel, public: Dataset | None
) -> tuple[Config, tuple[str, ...]]:
    """The experiment with a clipping bound that is a number, and a line that says which.

    The present weights of `model` are the public start; `public` are the test records as they are
    scored.

    Raises:
        InputError: on `algorithm.clip`: there are no public records, gradients are drawn anew at
            every step, or their median is no usable bound.
    """
    if config.algorithm.options.clip != "median":
        return config, ()
    if public is None or not len(public.targets):
        raise InputError(
            "algorithm.clip",
            "median",
            "is that of the gradients of public test records, and there are none: give test "
            "records, or a number",
        )
    if model.needs_coins:
        expected = "is for models without dropout and records without views: give a number"
        raise InputError("algorithm.clip", "median", expected)
    inputs, targets = public.inputs[:_MOST_RECORDS], public.targets[:_MOST_RECORDS]
    count = len(targets)
    start = model.start(1, getattr(torch, config.train.dtype), targets.device)
    mask = torch.ones(1, count, dtype=torch.bool, device=targets.device)
    by_row = replace(model, unit_rows=None)  # nobody said whose the public records are
    found = by_row.gradient(start, inputs.unsqueeze(0), targets.unsqueeze(0), mask, clip=1.0)
    middle = found.norms[0].double().sort().values[(count - 1) // 2].item()
    if not _LEAST <= middle <= _MOST:
        expected = f"is {middle:g} for the public test records, which bounds nothing: give a number"
        raise InputError("algorithm.clip", "median", expected)
    clip = float(f"{middle:.{_DIGITS}g}")
    return _with(config, clip=clip), (
        f"algorithm.clip = {clip:g}, the median norm of the gradients of {count:,} public test "
        "records at the start: no private record is read for it, and scores are of the same "
        "test records",
    )


def _with(config: Config, **options: Any) -> Config:
    """With some options replaced; those that were not given stay so."""
    chosen = config.algorithm
    given = chosen.options.model_dump(exclude_unset=True)
    section = AlgorithmSection(chosen.name, {**given, **options})
    return config.model_copy(update={"algorithm": section})
