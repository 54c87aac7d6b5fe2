"""What an experiment leaves to a plan, settled: batch, rate, clip, and noise over time.

**Batch.** For one budget, the noise of a step's mean is the less, the larger the batch: all records
of a step share it. What is gained by the last tenfold is little, and what it costs is tenfold work,
except for models that are one linear layer, whose steps are cheap. Memory bounds nothing here:
batches are cut into chunks (`gradients.stacked`).

**Options that are rules.** `learning_rate = "sqrt(n/K)"` is the step of Theorem 1 of Zhu, Huang,
Wang and Xu (IJCAI 2024), for n nodes and K steps.
`clip = "median"` is the bound that Abadi et al. advise (section 5.2 of *Deep Learning with
Differential Privacy*), the median of the norms of unclipped gradients. Of private records that
would be a release of its own. Here it is that of the *public* test records at the public start of
the models, so that it is a public constant: the mechanism is that of a bound that was written into
the file, and nothing is added to the account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from tacit.algorithms import Activity, Algorithm
from tacit.algorithms.accounting import noised_sums
from tacit.config import AlgorithmSection, Config
from tacit.config.schema import DEFAULT_BANDS
from tacit.data import Dataset
from tacit.errors import InputError
from tacit.gradients import StackedModel
from tacit.privacy.mechanisms.matrix import Correlation, banded_correlation
from tacit.privacy.noise.matrix import MOST_SUM, MatrixNoise
from tacit.training.release import NodePlan, Release

DEFAULT_BATCH = 64
"""Records of a batch, where nothing says that more would be better."""

SHARE = 10
"""A batch of other models is the J-th part of a node's records."""

_MOST_RECORDS = 10_000
_LEAST, _MOST = 1e-18, 1e18  # of a bound that sums are clipped to
_DIGITS = 3  # that of two machines the last bits differ, changes nothing but next to a tie


def automatic_batch(
    config: Config, records: Sequence[int], linear: bool
) -> tuple[int | Literal["all"], str | None]:
    """The batch of an experiment that leaves it open, and why, one line for the plan.

    `records` is J of each node; `linear`, whether the model is one linear layer, with closed-form
    gradients. There is no reason where the batch is `DEFAULT_BATCH` in any case.
    """
    chosen, settings, train = config.algorithm, config.privacy, config.train
    definition, options = chosen.definition, chosen.options
    largest = max(records)
    default = min(DEFAULT_BATCH, largest)
    asked = settings.budget is not None or settings.guess is not None
    calibrated = asked and settings.accounting == "certified"
    sums = definition.private and definition.releases.mechanism is noised_sums
    several = definition.schedules(options, 1.0, train.steps).local_steps > 1
    if not calibrated or not sums or several or train.sampling != "poisson":
        return default, None
    if definition.participation.one_pass:
        return "all", (
            "train.batch = 'all', by default: records are read in one step, and all of "
            "them at once are the least noise for the budget"
        )
    if linear:
        return "all", (
            "train.batch = 'all', by default: every record at every step is the least noise for "
            "the budget, and the steps of one linear layer are cheap"
        )
    batch = max(default, -(-max(records) // SHARE))
    return batch, (
        f"train.batch = {batch}, by default: a tenth of the largest node's {largest:,} records, "
        f"and {DEFAULT_BATCH} at least; 'all' has less noise, and takes more work"
    )


def epochs_note(config: Config, nodes: Sequence[NodePlan]) -> tuple[str, ...]:
    """How long the epochs are in which each record takes part in one step."""
    drawing = [node for node in nodes if node.rate < 1]
    if config.train.sampling != "allocation" or not drawing:
        return ()
    steps = sorted({node.epoch_steps for node in drawing})
    sizes = sorted({node.expected_batch for node in drawing})
    lengths = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    batches = f"{sizes[0]:.6g}" if len(sizes) == 1 else f"{sizes[0]:.6g} to {sizes[-1]:.6g}"
    return (
        f"each record takes part in one random step of each epoch of {lengths} steps; batches vary "
        f"in size, and sums are divided by the expected one, {batches}",
    )


def with_rate(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The experiment with a learning rate that is a number, and a line that says which."""
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
    chosen = config.algorithm
    given = chosen.options.model_dump(exclude_unset=True)
    section = AlgorithmSection(chosen.name, {**given, **options})
    return config.model_copy(update={"algorithm": section})


def with_noise_over_time(
    config: Config,
    definition: Algorithm[Any, Any],
    nodes: Sequence[NodePlan],
    activity: Activity | None,
) -> Algorithm[Any, Any]:
    """The row with noise that is correlated over steps, or of records in turns, if that is asked.

    Raises:
        InputError: a node is not part of every step, or coins would be likelier than 1.
    """
    kind, cyclic = config.privacy.noise, config.train.sampling == "cyclic"
    if kind not in ("banded", "tree") and not cyclic:
        return definition
    if activity is not None:
        expected = "needs every node at every step, and here some are not active at some"
        raise InputError(
            *(("train.sampling", "cyclic") if cyclic else ("privacy.noise", kind)), expected
        )
    bands, correlations = config.privacy.bands or DEFAULT_BANDS, list[Correlation]()
    for node in nodes:
        turns = 1 if node.rate == 1 else node.epoch_steps if cyclic else bands
        if kind == "banded" and turns * node.rate > 1 + 1e-12:
            most = int(1 / node.rate)
            expected = f"must be at most J / batch = {most} at node {node.node}: records take turns"
            raise InputError("privacy.bands", bands, f"{expected}, and join by coins")
        coins = turns > 1 and not cyclic
        correlations.append(
            banded_correlation(bands, config.train.steps, turns, coins=coins)
            if kind == "banded"
            else ("tree" if kind == "tree" else (1.0,))
        )
    noise = MatrixNoise(tuple(correlations), config.train.steps)
    return replace(definition, releases=replace(definition.releases, noise=noise))


def check_sums(release: Release, nodes: Sequence[NodePlan]) -> None:
    """Refuse noise over time where sums are so long that rounding counts for more than is said."""
    for node in nodes if release.over_time is not None else ():
        longest = node.records / (node.noise_scale * min(release.noise_shape))
        if longest > MOST_SUM:
            expected = (
                f"needs J over the noise multiplier of at most {MOST_SUM:g}: use 'independent'"
            )
            raise InputError("privacy.noise", f"{longest:.3g} at node {node.node}", expected)
