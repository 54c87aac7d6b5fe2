"""The lines of `metrics.jsonl`: what is measured on the way, as it is written and read."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from tacit.errors import InputError
from tacit.report.documents.base import Count, OptionalNumber, RunDocument, load
from tacit.report.measures import ACCURACY, LOSS, Measure, measure_of


class Scores(RunDocument):
    """A score on the test set: mean over nodes, worst node, and the mean of all models.

    `baseline` is what a model that ignores its inputs scores on all test records; None where that
    is not known.
    """

    mean: OptionalNumber
    worst: OptionalNumber
    consensus: OptionalNumber
    baseline: OptionalNumber = None


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
    """What everyone may know of where a run stands; what was not measured, or told, is `None`.

    `step` counts completed steps, `bytes_sent` is cumulative and a mean over nodes, `seconds`
    are of wall time, `noise_std` is that of one coordinate of what a node adds to the mean of all.
    """

    step: Count
    test_accuracy: Scores | None = None
    test_loss: Scores | None = None
    test_metrics: dict[str, Scores] = Field(default_factory=dict)
    consensus_distance: OptionalNumber = None
    clip: OptionalNumber = None
    noise_std: OptionalNumber = None
    epsilon: Spread | None = None
    claimed_epsilon: Spread | None = None
    bytes_sent: OptionalNumber = None
    seconds: OptionalNumber = None

    @property
    def leading(self) -> tuple[Measure, Scores | None]:
        """What the run is judged by, see `leading`."""
        return leading(self.test_metrics, self.test_accuracy, self.test_loss)


class PrivateMeasurement(RunDocument):
    """One line of a process's own `metrics.jsonl`: what was measured on its nodes' records.

    `suboptimality` is f(x) - f* of the common model, where asked for.
    """

    step: Count
    train_loss: OptionalNumber
    gradient_norm: GradientNorms | None
    clip_rate: OptionalNumber
    records_left_out: Count | None = None
    augmented_lagrangian: OptionalNumber = None
    suboptimality: OptionalNumber = None


class Measurement(PrivateMeasurement, PublicMeasurement):
    """One line of `metrics.jsonl`; what was not measured or not finite is `None`.

    What is measured on private records is None where nodes are apart, whose processes have files of
    their own for it.
    """


def leading(
    metrics: Mapping[str, Scores], accuracy: Scores | None, loss: Scores | None
) -> tuple[Measure, Scores | None]:
    """What a run is judged by, and its scores if it has any.

    The first metric that was asked for; without one accuracy, and the loss where there is none.
    """
    for name, scores in metrics.items():
        return measure_of(name), scores
    return (LOSS, loss) if accuracy is None and loss is not None else (ACCURACY, accuracy)


MOST_SERIES = 2**28  # bytes of `metrics.jsonl`: half a million evaluations


def read_measurements(text: str, where: str) -> tuple[Measurement, ...]:
    """The lines of a file in the order of steps, without those that a resumed run repeated.

    A last line without its newline was being written when the process was killed, and is left out.
    `where` names the file, for errors.

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
