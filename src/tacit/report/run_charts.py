"""The charts of a run: which series they show, and the sentence that tells how to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from tacit.report.charts import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    SKY,
    Axis,
    Chart,
    Drawing,
    Series,
    base_layout,
    has_wide_range,
    line_figure,
    scatter,
)
from tacit.report.documents.metrics import Measurement, Scores
from tacit.report.documents.run import RecordedRun, ResultDocument
from tacit.report.documents.unit import UnitTerms
from tacit.report.graph_chart import GRAPH_HEIGHT, graph_chart
from tacit.report.measures import ACCURACY, LOSS
from tacit.report.protection import MOST_SHOWN, SIZE_NOTE
from tacit.report.wording import epsilon_text, number_text, percent_text

_STEPS = Axis("steps completed")
_BYTES = Axis("bytes sent by a node (mean)", ticks="~s", suffix="B")
_MOST_POINTS = 2000
_MOST_NODES_APART = 60

# What a chart shows: the name of each line, its field in what is measured, its colour, its dashes.
_Lines = Sequence[tuple[str, str, str, str]]
_SCORES: _Lines = (
    ("mean over nodes", "mean", BLUE, ""),
    ("worst node", "worst", RED, ""),
    ("consensus model", "consensus", GREEN, ""),
)
_LOSSES: _Lines = (
    *((f"test, {name}", f"test_loss.{field}", colour, "") for name, field, colour, _ in _SCORES),
    ("train (private, not covered by epsilon)", "train_loss", PURPLE, "dot"),
)
_EPSILONS: _Lines = (
    ("certified, highest node", "epsilon.most", BLUE, ""),
    ("certified, lowest node", "epsilon.least", SKY, ""),
    ("claimed by the paper's formula, highest node", "claimed_epsilon.most", AMBER, ""),
)
_NODE_EPSILONS: _Lines = (
    ("budget", "epsilon_budget", GREY, "dash"),
    ("claimed by the paper's formula", "claimed_epsilon", AMBER, "dashdot"),
    ("certified", "epsilon", BLUE, "solid"),
)
_GRADIENTS: _Lines = (
    ("median", "gradient_norm.median", BLUE, ""),
    ("90th percentile", "gradient_norm.p90", SKY, ""),
    ("largest", "gradient_norm.largest", PURPLE, ""),
    ("clipping bound", "clip", RED, "dot"),
)
_NODE_MARKERS: Mapping[str, Mapping[str, object]] = {
    "budget": {"symbol": "line-ew-open", "size": 13, "line": {"width": 2}},
    "claimed by the paper's formula": {"symbol": "diamond-open", "size": 9, "line": {"width": 2}},
    "certified": {"symbol": "circle", "size": 8},
}


def run_charts(run: RecordedRun) -> list[tuple[str, list[Chart]]]:
    """The sections of charts of a run, each with its title."""
    measurements, result = thinned(run.measurements), run.result
    return [
        (
            "How well the models learned",
            [
                *_score_charts(measurements, result),
                *_loss_charts(measurements),
                *_calibration_chart(result),
            ],
        ),
        ("What was spent", [_epsilon_chart(measurements, result), *_node_chart(result)]),
        (
            "Gradients and noise",
            [
                _gradient_chart(measurements, result.unit),
                *_noise_chart(measurements, result.parameters),
            ],
        ),
        (
            "The network",
            [
                _consensus_chart(measurements, dict(result.consensus_forecast)),
                graph_chart(result.topology, result.node_count),
            ],
        ),
    ]


def thinned(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Keep about 2000 evenly spaced measurements at most, always with the last."""
    every = max(1, math.ceil(len(measurements) / _MOST_POINTS))
    kept = tuple(measurements[::every])
    return kept if kept[-1:] == tuple(measurements[-1:]) else (*kept, measurements[-1])


def _lines(measured: Sequence[object], lines: _Lines, hover: str = ".3g") -> list[Series]:
    """The lines of a chart, with a gap where what is measured lacks the field."""
    return [
        Series(name, [_value(own, field) for own in measured], colour, dash, hover)
        for name, field, colour, dash in lines
    ]


def _value(measured: object, field: str) -> float | None:
    """A field, or a field of one; None where either is absent."""
    group, _, rest = field.partition(".")
    own = None if measured is None else attrgetter(group)(measured)
    return _value(own, rest) if rest else own


def _over_steps(
    measurements: Sequence[Measurement],
    key: str,
    title: str,
    y: Axis,
    series: Sequence[Series],
    *,
    caption: str,
    absent: str,
    height: int = 340,
) -> Chart:
    """A chart of lines over the steps; `absent` is said of a run with measurements."""
    steps = [measurement.step for measurement in measurements]
    absent = absent if measurements else "Nothing was measured in this run."
    return Chart(key, title, caption, line_figure(steps, _STEPS, y, series), absent, height)


def _and_by_bytes(
    chart: Chart, measurements: Sequence[Measurement], y: Axis, series: Sequence[Series], told: str
) -> list[Chart]:
    """A chart over the steps, and the same lines over the bytes sent, of which `told` is said."""
    sent = [measurement.bytes_sent for measurement in measurements]
    key, title, figure = chart.key, chart.title, line_figure(sent, _BYTES, y, series)
    return [
        replace(chart, key=f"{key}-steps", title=f"{title} by steps"),
        Chart(f"{key}-bytes", f"{title} by bytes sent", told, figure, chart.absent),
    ]


def _score_charts(measurements: Sequence[Measurement], result: ResultDocument) -> list[Chart]:
    """Draw the leading score; a dotted line is what a model that ignores its inputs has."""
    measure, scores = result.leading
    if measure == LOSS:
        measure, scores = ACCURACY, None
    baseline = None if scores is None else scores.baseline
    hover, ticks = (".1%", ".0~%") if measure.percent else (".3g", "")

    def shown(line: Measurement) -> Scores | None:
        own, scores = line.leading
        return scores if own == measure else None

    series = _lines([shown(line) for line in measurements], _SCORES, hover)
    if baseline is not None and measurements:
        flat: list[float | None] = [baseline] * len(measurements)
        series.append(Series("baseline", flat, GREY, "dot", hover=hover))
    better = "Higher" if measure.larger_is_better else "Lower"
    if measure.ideal is not None:
        better = f"Closer to {measure.ideal:g}"
    ignorant = "" if baseline is None else " The dotted line is a model that ignores its inputs."
    y = Axis(f"test {measure.title}", ticks=ticks)
    chart = _over_steps(
        measurements,
        "accuracy",
        f"Test {measure.title}",
        y,
        series,
        caption=f"{better} is better; a wide gap between mean and worst node means that some nodes "
        f"fare badly; the consensus model is the average of all, or the server's.{ignorant}",
        absent="Test accuracy was not measured: there was no test set with classes.",
    )
    told = (
        "The same scores against what a node had sent by then: a curve further to the left is "
        "cheaper in communication."
    )
    return _and_by_bytes(chart, measurements, y, series, told)


def _loss_charts(measurements: Sequence[Measurement]) -> list[Chart]:
    series = _lines(measurements, _LOSSES)
    y = Axis("loss", _scale(series))
    chart = _over_steps(
        measurements,
        "loss",
        "Loss",
        y,
        series,
        caption="Lower is better; the train loss is computed on private records and not covered by "
        "epsilon, so publishing it would reveal something about them.",
        absent="No loss was recorded.",
    )
    told = "The same losses against what a node had sent by then."
    return _and_by_bytes(chart, measurements, y, series, told)


def _scale(series: Sequence[Series]) -> str:
    wide = has_wide_range([value for line in series for value in line.values])
    return "log" if wide else "linear"


def _calibration_chart(result: ResultDocument) -> list[Chart]:
    """What was observed among test records against the probability that they were given."""
    bins = result.calibration
    if not bins:
        return []
    predicted, counts = [own.predicted for own in bins], [own.records for own in bins]
    x, y = (Axis(title, ticks=".0~%") for title in ("mean predicted probability", "share observed"))
    lines = (("observed", "observed", BLUE, ""), ("as predicted", "predicted", GREY, "dot"))
    drawn = line_figure(predicted, x, y, _lines(bins, lines, ".1%"))
    if drawn is not None:  # always, of bins with records
        texts = [f"{count:,}" for count in counts]
        points = {"text": texts, "hovertemplate": "%{y:.1%} of %{text} records"}
        drawn = replace(drawn, data=[{**drawn.data[0], **points}, *drawn.data[1:]])
    caption = (
        f"Each point is a group of {min(counts):,} to {max(counts):,} of the "
        f"{sum(counts):,} test records that were given similar probabilities. On the dotted line "
        "as many were observed as predicted; below it probabilities are too high. Of more than "
        "two classes it is about the predicted one."
    )
    return [Chart("calibration", "Calibration of the consensus model", caption, drawn, "")]


def _epsilon_chart(measurements: Sequence[Measurement], result: ResultDocument) -> Chart:
    series, left_out = _with_meaning(_lines(measurements, _EPSILONS))
    private = "" if result.private else " if the run were private, which it is not"
    return _over_steps(
        measurements,
        "epsilon-steps",
        "Epsilon spent by steps",
        # every line starts near zero: only where they end far apart is a linear axis unreadable
        _epsilon_axis("epsilon spent", [value for line in series for value in line.values[-1:]]),
        series,
        caption=f"What an observer could have learned by each step{private}; a claimed line below "
        f"the certified ones promises more privacy than was proved.{left_out}",
        absent="No epsilon was computed while this run trained.",
    )


def _with_meaning(series: Sequence[Series]) -> tuple[list[Series], str]:
    """Leave out what is beyond all meaning, since beside it nothing else can be seen; say so."""
    kept = []
    for line in series:
        values = [one if one is not None and one <= MOST_SHOWN else None for one in line.values]
        kept.append(replace(line, values=values))
    said = "" if kept == series else f" {SIZE_NOTE}, and is not drawn."
    return kept, said


def _epsilon_axis(title: str, values: Sequence[float | None]) -> Axis:
    if has_wide_range(values):
        return Axis(title, "log")
    return Axis(title, settings={"rangemode": "tozero"})


def _node_chart(result: ResultDocument) -> list[Chart]:
    """Epsilon by node at the end, if nodes then differ by more than is shown."""
    columns = [map(epsilon_text, getattr(result, field)) for _, field, *_ in _NODE_EPSILONS]
    if len(set(zip(*columns, strict=True))) == 1:
        return []
    apart = result.node_count <= _MOST_NODES_APART
    names = list(range(result.node_count))
    if not apart:
        names.sort(key=lambda node: result.epsilon[node] or 0.0)
    lines = [
        Series(name, [getattr(result, field)[node] for node in names], colour, dash)
        for name, field, colour, dash in _NODE_EPSILONS
    ]
    series, left_out = _with_meaning(lines)
    drawn = [line for line in series if any(value is not None for value in line.values)]
    traces = [
        scatter(
            x=names if apart else list(range(1, len(names) + 1)),
            y=list(line.values),
            customdata=names,
            name=line.name,
            mode="markers" if apart else "lines",
            marker={"color": line.colour, **_NODE_MARKERS[line.name]},
            line={"color": line.colour, "dash": line.dash, "width": 2},
            hovertemplate=f"%{{y:{line.hover}}} (node %{{customdata}})",
        )
        for line in drawn
    ]
    title = "node" if apart else "nodes, in order of certified epsilon"
    x = Axis(title, settings={"showgrid": False})
    y = _epsilon_axis("epsilon", [value for line in drawn for value in line.values])
    figure = Drawing(traces, base_layout(x, y), y.title) if drawn else None
    order = "" if apart else ", and nodes are ordered by their certified epsilon"
    caption = (
        "A certified epsilon above a node's budget means that the node has spent more than it "
        f"allowed{order}.{left_out}"
    )
    absent = "No node has an epsilon or a budget in this run."
    return [Chart("epsilon-nodes", "Final epsilon by node", caption, figure, absent)]


def _gradient_chart(measurements: Sequence[Measurement], unit: UnitTerms) -> Chart:
    series = _lines(measurements, _GRADIENTS)
    rates = [line.clip_rate for line in measurements if line.clip_rate is not None]
    clipped = f", as {percent_text(rates[-1])} did at the last measurement" if rates else ""
    return _over_steps(
        measurements,
        "gradients",
        "Gradient norms before clipping",
        Axis(unit.said("norm of a record's gradient"), _scale(series)),
        series,
        caption=f"Private, not covered by epsilon: {unit.plural} whose gradient lies above the "
        f"clipping bound lose the part above it{clipped}.",
        absent="No gradient norms were recorded.",
    )


def _noise_chart(measurements: Sequence[Measurement], parameters: int) -> list[Chart]:
    """The level of the noise, where it changes."""
    known = [line.noise_std for line in measurements if line.noise_std is not None]
    if not known or max(known) <= 1.01 * min(known):
        return []
    norm = number_text(known[-1] * math.sqrt(parameters))
    return [
        _over_steps(
            measurements,
            "noise",
            "Noise level",
            Axis("noise standard deviation", settings={"rangemode": "tozero"}),
            _lines(measurements, [("noise", "noise_std", BLUE, "")]),
            caption="Standard deviation of the noise in one coordinate of a node's mean gradient "
            f"of a batch, mean over nodes. Over all {parameters:,} coordinates it had a norm of "
            f"about {norm} at the end.",
            absent="",
        )
    ]


def _consensus_chart(
    measurements: Sequence[Measurement], forecast: Mapping[int, float | None]
) -> Chart:
    distance = ("distance to the average model", "consensus_distance", BLUE, "")
    lines = _lines(measurements, [distance])
    caption = (
        "How far the nodes' models are from their average, on a logarithmic axis: lower means that "
        "they agree more, a rising line that they drift apart (zero is not shown)."
    )
    absent = "The consensus distance was not recorded."
    if any(value is not None for value in lines[0].values):
        absent = "The models of all nodes were equal at every measurement: the distance was zero."
    foreseen = [forecast.get(measurement.step) for measurement in measurements]
    if any(value is not None for value in foreseen):
        lines.append(Series("forecast by the plan, of noise alone", foreseen, AMBER))
        caption += (
            " The noise that nodes share is in each model until gossip has mixed it away: that is "
            "what the forecast counts. What different data do to the models comes on top of it."
        )
    return _over_steps(
        measurements,
        "consensus",
        "Consensus distance",
        Axis("consensus distance", "log"),
        lines,
        caption=caption,
        absent=absent,
        height=GRAPH_HEIGHT,
    )
