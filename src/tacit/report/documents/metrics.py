"""The lines of `metrics.jsonl`: what is measured on the way, as it is written and read."""

from __future__ import annotations

from pydantic import Field

from tacit.errors import InputError
from tacit.report.documents.base import Count, OptionalNumber, RunDocument, load

__all__ = [
    "GradientNorms",
    "Measurement",
    "PrivateMeasurement",
    "PublicMeasurement",
    "Scores",
    "Spread",
    "read_measurement",
    "read_measurements",
]


class Scores(RunDocument):
    """A score on the test set: mean over nodes, worst node, and the mean of all models."""

    mean: OptionalNumber
    worst: OptionalNumber
    consensus: OptionalNumber


class Spread(RunDocument):
    """The largest and the smallest value over nodes."""

    most: OptionalNumber = Field(alias="max")
    least: OptionalNumber = Field(alias="min")


class GradientNorms(RunDocument):
    """Norms of the record gradients before clipping: median, 90th percentile, largest."""

    median: OptionalNumber
    p90: OptionalNumber
    largest: OptionalNumber = Field(alias="max")


class PublicMeasurement(RunDocument):
    """What everyone may know of where a run stands; what was not measured is `None`.

    `step` counts completed steps, `bytes_sent` is cumulative and a mean over nodes, `seconds`
    are of wall time, `noise_std` is that of one coordinate of a node's batch-mean gradient.
    """

    step: Count
    test_accuracy: Scores | None
    test_loss: Scores | None
    consensus_distance: OptionalNumber
    clip: OptionalNumber
    noise_std: OptionalNumber
    epsilon: Spread | None
    claimed_epsilon: Spread | None
    bytes_sent: OptionalNumber
    seconds: OptionalNumber


class Measurement(PublicMeasurement):
    """One line of `metrics.jsonl`; what was not measured or not finite is `None`.

    The last four are measured on private records: None where nodes are apart.
    """

    train_loss: OptionalNumber
    gradient_norm: GradientNorms | None
    clip_rate: OptionalNumber
    records_left_out: Count | None = None


class PrivateMeasurement(RunDocument):
    """One line of a process's own `metrics.jsonl`: what was measured on its nodes' records."""

    step: Count
    train_loss: OptionalNumber
    gradient_norm: GradientNorms | None
    clip_rate: OptionalNumber
    records_left_out: Count | None


def read_measurements(text: str, where: str) -> tuple[Measurement, ...]:
    """The lines of a file in the order of steps, without those that a resumed run repeated.

    Args:
        text: of the file. A last line without its newline was being written when the process was
            killed, and is left out.
        where: the file, for errors.

    Raises:
        InputError: a line is damaged.
    """
    kept: list[Measurement] = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        if line.strip():
            measurement = load(Measurement, line, f"{where}, line {number}")
            while kept and kept[-1].step >= measurement.step:
                kept.pop()
            kept.append(measurement)
    return tuple(kept)


def read_measurement(line: bytes) -> Measurement | None:
    """One line of `metrics.jsonl`; None where it is torn or damaged."""
    try:
        return load(Measurement, line, "metrics.jsonl")
    except InputError:
        return None
