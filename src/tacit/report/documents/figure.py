"""The folder of a comparison as documents: `format.json`, which marks it, and `compare.json`."""

from __future__ import annotations

from typing import Any

from tacit.report.documents.base import Count, Document, Flag, Items, Number, OptionalNumber, Text


class CompareMark(Document):
    """What marks the folder of a comparison."""

    format: Text
    format_version: Count


class MeanDeviation(Document):
    """The mean over runs and their sample standard deviation, which is None of one run."""

    mean: OptionalNumber
    deviation: OptionalNumber


class FigureNumbers(Document):
    """What the runs of a point came to; None where no run has it.

    Losses of training and the augmented Lagrangian are private. Accuracies are shares in [0, 1],
    `bytes_sent` is a mean over nodes, `seconds` are of training. `score` is what the runs are
    judged by, which `CompareDocument.score` names; `worst` (node), `consensus` and `baseline` are
    of it.
    """

    test_accuracy: MeanDeviation | None
    test_metrics: dict[str, MeanDeviation | None]
    score: MeanDeviation | None
    worst: MeanDeviation | None
    consensus: MeanDeviation | None
    baseline: MeanDeviation | None
    test_loss: MeanDeviation | None
    train_loss: MeanDeviation | None
    augmented_lagrangian: MeanDeviation | None
    suboptimality: MeanDeviation | None = None
    consensus_distance: MeanDeviation | None
    bytes_sent: MeanDeviation | None
    seconds: MeanDeviation | None


class ComparedRun(Document):
    """One run of a point; `cached`: it had ended before; `error`: why it is not whole."""

    folder: Text
    seed: int
    status: Text
    cached: Flag
    error: Text | None


class ComparedPoint(Document):
    """One point of a line's grid, over its runs; `epsilon` is the largest of one run alone."""

    choice: dict[str, Any]
    name: Text
    complete: Count
    figures: FigureNumbers
    private: Flag | None
    epsilon: OptionalNumber
    claimed_epsilon: OptionalNumber
    delta: OptionalNumber
    runs: Items[ComparedRun]


class CurvePoint(Document):
    """One point of a curve: means over runs at one step."""

    step: Count
    bytes: OptionalNumber
    epsilon: OptionalNumber
    mean: OptionalNumber
    deviation: OptionalNumber


class ComparedLine(Document):
    """One line of a figure; `chosen` is the point that is drawn, a place in `points`.

    `curve` is of that point; `ends` are where the best point of each budget ends.
    """

    name: Text
    group: Text
    algorithm: Text
    published: dict[str, Number]
    difference: OptionalNumber
    points: Items[ComparedPoint]
    chosen: Count
    curve: Items[CurvePoint]
    ends: Items[CurvePoint]


class SiteRow(Document):
    """One site of a table: what each column says of it; `epsilon` is the largest of one run."""

    name: Text
    records: Count
    scores: Items[MeanDeviation | None]
    epsilon: Items[OptionalNumber]


class SiteTable(Document):
    """What each site has of the experiment and of its baselines, by one metric.

    `private` says of each column whether its runs are; None: none is complete. `mean` is over
    sites, of each column. `unit` is what `records` of a site count.
    """

    metric: Text
    unit: Text = "record"
    columns: Items[Text]
    private: Items[Flag | None]
    rows: Items[SiteRow]
    mean: Items[MeanDeviation | None]


class SpentTogether(Document):
    """What all runs on the same records cost together; see `tacit.analysis.settings.spent`."""

    dataset: Text
    relation: Text | None
    unit: Text | None
    trust_model: Text | None
    runs: Count
    epsilon: OptionalNumber
    delta: OptionalNumber
    composed: Flag
    not_private: Count
    unreadable: Count


class CompareDocument(Document):
    """A figure as data; see `tacit.analysis.compare.document`."""

    format_version: Count
    tacit_version: Text
    title: Text
    source: Text
    notes: Items[Text]
    quick: Flag
    x: Items[Text]
    y: Text
    score: Text
    seeds: Count
    runs: Count
    complete: Count
    made: Count
    cached: Count
    stopped: Flag
    other_versions: Items[Text]
    lines: Items[ComparedLine]
    sites: Items[SiteTable] = ()
    together: Items[SpentTogether]
    sentences: Items[Text]
