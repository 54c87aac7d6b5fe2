"""The batch that `[train] batch = "auto"`, the default, comes to.

For one budget, the noise of a step's mean is the less, the larger the batch: all records of a step
share it. What is gained by the last tenfold is little, and what it costs is tenfold work, except
for models that are one linear layer, whose steps are cheap. Memory bounds nothing here: batches are
cut into chunks (`gradients.stacked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tacit.algorithms.accounting import noised_sums
from tacit.config import Config
from tacit.training.release import NodeRelease

DEFAULT_BATCH = 64
"""Records of a batch, where nothing says that more would be better."""

SHARE = 10
"""A batch of other models is the J-th part of a node's records."""


def automatic_batch(
    config: Config, records: Sequence[int], linear: bool
) -> tuple[int | Literal["all"], str | None]:
    """The batch of an experiment that leaves it open, and why.

    `records` is J of each node; `linear`, whether the model is one linear layer, with closed-form
    gradients. The reason is one line for the plan, and None where the batch is `DEFAULT_BATCH` in
    any case.
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


def epochs_note(config: Config, nodes: Sequence[NodeRelease]) -> tuple[str, ...]:
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
