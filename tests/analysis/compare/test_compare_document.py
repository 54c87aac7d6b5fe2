"""The figure as data: means, deviations, the best of a grid, against plain recomputation."""

import json
import statistics
from io import StringIO

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments import experiment, strict_json, write_module
from experiments import tacit as command_line
from tacit.analysis.compare.document import figure_document, mean_and_deviation
from tacit.analysis.compare.figure import load_figure
from tacit.analysis.compare.session import gather, open_folder
from tacit.errors import InputError
from tacit.report.compare_page import compare_page, figure_blocks
from tacit.report.documents.base import as_dict, dump
from tacit.report.documents.figure import MeanDeviation
from tacit.report.terminal import terminal

FIGURE = {
    "title": "A figure",
    "seeds": 2,
    "line": [
        {
            "name": "gridded",
            "grid": {"algorithm.learning_rate": [1e-9, 0.5]},
            "published": {"test_accuracy": 80.0},
        },
        {
            "name": "bare",
            "group": "without noise",
            "set": {
                "algorithm.name": "sgp",
                "privacy.noise_std": "unset",
                "privacy.noise_seed": "unset",
            },
        },
        {"name": "wrong", "set": {"train.batch": 5000}},
    ],
}


NUMBERS = """
    def load():
        inputs = torch.linspace(-1, 1, 40).reshape(20, 2)
        records = (inputs, inputs.sum(1, keepdim=True))
        return records, records
"""


def compared(folder, sections, figure=None):
    """The document of a comparison in a folder, `out` within."""
    path = folder / "fig.toml"
    own = {} if figure is None else {"figure": figure}
    path.write_text(tomli_w.dumps({**sections, **own}), encoding="utf-8")
    gathered = gather(load_figure([path]), open_folder(folder / "out"))
    return strict_json(dump(figure_document(gathered)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The document of a small figure, and its folder."""
    folder = tmp_path_factory.mktemp("figure")
    secret = experiment(privacy={"noise_seed": None, "noise_std": 0.01})
    return compared(folder, secret, FIGURE), folder / "out"


def runs(document, line, point, out):
    return [out / run["folder"] for run in document["lines"][line]["points"][point]["runs"]]


def results(document, line, point, out):
    return [
        strict_json((path / "result.json").read_text()) for path in runs(document, line, point, out)
    ]


def test_figures_are_those_of_the_runs(made):
    document, out = made
    for line, point in ((0, 0), (0, 1), (1, 0)):
        drawn = document["lines"][line]["points"][point]
        ends = results(document, line, point, out)
        for key, part in (("test_accuracy", "mean"), ("test_loss", "mean")):
            values = [end[key][part] for end in ends]
            assert drawn["figures"][key] == pytest.approx(
                {"mean": statistics.mean(values), "deviation": statistics.stdev(values)}
            )
        worst = [end["test_accuracy"]["worst"] for end in ends]
        assert drawn["figures"]["worst"]["mean"] == pytest.approx(statistics.mean(worst))
        spent = [value for end in ends for value in end["epsilon"]]
        assert drawn["epsilon"] == (None if None in spent else max(spent))
        assert drawn["complete"] == 2


def test_the_best_of_a_grid_is_drawn(made):
    document, out = made
    line = document["lines"][0]
    ends = [point["figures"]["test_accuracy"]["mean"] for point in line["points"]]
    best = ends.index(max(ends))
    assert len(set(ends)) == len(ends) == 2
    assert line["chosen"] == best
    assert line["difference"] == pytest.approx(100 * ends[best] - 80.0)
    rows = [
        [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()]
        for path in runs(document, 0, best, out)
    ]
    assert len(line["curve"]) == len(rows[0]) == 7
    for point, *measured in zip(line["curve"], *rows, strict=True):
        assert {row["step"] for row in measured} == {point["step"]}
        values = [row["test_accuracy"]["mean"] for row in measured]
        assert point["mean"] == pytest.approx(statistics.mean(values))
        assert point["deviation"] == pytest.approx(statistics.stdev(values))
        assert point["epsilon"] == max(row["epsilon"]["max"] for row in measured)
        assert point["bytes"] == pytest.approx(
            statistics.mean(row["bytes_sent"] for row in measured)
        )


def test_the_best_point_of_each_budget_is_an_end(tmp_path):
    grid = {"privacy.epsilon": [4.0, 1.0], "algorithm.learning_rate": [1e-9, 0.5]}
    raw = experiment(privacy={"noise_seed": None, "noise_std": None}, train={"steps": 2})
    raw["privacy"] = {"delta": 1e-3}
    figure = {"x": ["budget"], "line": [{"name": "swept", "grid": grid}]}
    document = compared(tmp_path, raw, figure)
    (line,) = document["lines"]
    assert [point["choice"]["privacy.epsilon"] for point in line["points"]] == [4, 4, 1, 1]
    pairs = (line["points"][2:], line["points"][:2])
    assert [end["epsilon"] for end in line["ends"]] == pytest.approx([1, 4], rel=0.01)
    for end, points in zip(line["ends"], pairs, strict=True):
        assert end["mean"] == max(point["figures"]["test_accuracy"]["mean"] for point in points)
        assert end["step"] == 2
    assert "ends best on the test records" in " ".join(document["sentences"])


def test_a_line_without_noise_or_runs_says_so(made):
    document, _ = made
    bare, wrong = document["lines"][1:]
    assert bare["points"][0]["private"] is False
    assert {point["epsilon"] for point in bare["curve"]} == {None}
    assert wrong["curve"] == []
    assert wrong["points"][0]["private"] is None
    assert "see its own screen" in wrong["points"][0]["runs"][0]["error"]
    assert (document["runs"], document["complete"], document["made"]) == (8, 6, 6)


def test_what_a_ledger_knows_and_records_that_break_a_rule_stand_on_the_own_screen_alone(
    tmp_path, monkeypatch
):
    """A budget that is used up, records of another source, and labels that nobody declared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = write_module(
        tmp_path,
        """
        def odd():
            coins = torch.Generator().manual_seed(1)
            inputs, targets = torch.randn(400, 64, generator=coins), torch.arange(400) % 10
            test = Dataset(inputs[:9], targets[:9].clone())
            targets[:4] = 11
            return TaskData("odd", Dataset(inputs, targets), test, 10)

        def broken():
            raise ValueError("not a number: 'Smith'")
        """,
    )
    kept = {"noise_seed": None, "noise_std": None, "epsilon": 1.0, "ledger": "ledgers"}
    raw = experiment(privacy={**kept, "ledger_epsilon": 1.2}, train={"steps": 2})
    free = {"privacy.ledger": "unset", "privacy.ledger_epsilon": "unset"}
    lines = [
        {"name": "first"},
        {"name": "second", "set": {"algorithm.clip": 0.5}},
        {"name": "other", "set": {"privacy.ledger_source": "other", "privacy.epsilon": 0.1}},
        {"name": "odd", "set": {"task.dataset": f"{module}:odd", **free}},
        {"name": "broken", "set": {"task.dataset": f"{module}:broken", **free}},
    ]
    file = tmp_path / "figure.toml"
    file.write_text(tomli_w.dumps({**raw, "figure": {"line": lines}}), encoding="utf-8")
    out = tmp_path / "out"
    answer = command_line("compare", file, "--out", out, "--json", "--jobs", 1)
    errors = [line["points"][0]["runs"][0]["error"] for line in strict_json(answer.out)["lines"]]
    refused = "a budget of its nodes forbids it; see its own screen"
    assert errors[:3] == [None, refused, refused]
    assert errors[3] == "its own records break a rule: labels must be 0 to 9 (10 classes)"
    for own in ("1 is spent", "360 of its 360 different records", "4 of 400", "Smith"):
        assert own in answer.err
        for path in out.iterdir():
            assert path.is_dir() or own not in path.read_text(encoding="utf-8")


def test_what_all_runs_cost_is_in_the_document(made):
    document, _ = made
    (row,) = document["together"]
    assert (row["runs"], row["not_private"]) == (4, 2)
    assert row["epsilon"] > document["lines"][0]["points"][0]["epsilon"]
    assert any("All 4 runs" in sentence for sentence in document["sentences"])


def test_an_accuracy_that_nothing_has_gives_way_to_the_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = write_module(tmp_path, NUMBERS)
    task = {"dataset": f"{name}:load", "model": "linear", "loss": "mse"}
    document = compared(tmp_path, experiment(task=task, train={"steps": 2}))
    assert document["y"] == "test_loss"
    (line,) = document["lines"]
    assert line["curve"][-1]["mean"] == pytest.approx(
        line["points"][0]["figures"]["test_loss"]["mean"]
    )
    assert line["points"][0]["figures"]["test_accuracy"] is None


def test_the_metric_that_was_asked_for_leads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = write_module(tmp_path, NUMBERS)
    task = {"dataset": f"{name}:load", "model": "linear", "loss": "mse", "metric": ["mae", "r2"]}
    figure = {
        "line": [
            {
                "name": "one",
                "grid": {"algorithm.learning_rate": [1e-9, 0.2]},
                "published": {"mae": 0.5},
            }
        ]
    }
    sections = experiment(task=task, train={"steps": 4}, privacy={"noise_std": 1e-3})
    document = compared(tmp_path, sections, figure)
    assert (document["y"], document["score"]) == ("mae", "mae")
    (line,) = document["lines"]
    ends = [point["figures"]["score"]["mean"] for point in line["points"]]
    assert line["chosen"] == ends.index(min(ends)) == 1  # of errors the least is best
    shown = line["points"][1]["figures"]
    assert shown["score"] == shown["test_metrics"]["mae"]
    assert list(shown["test_metrics"]) == ["mae", "r2"]
    assert shown["worst"]["mean"] >= shown["score"]["mean"]
    assert line["curve"][-1]["mean"] == pytest.approx(ends[1])
    assert line["difference"] == pytest.approx(ends[1] - 0.5)
    said = StringIO()
    terminal(figure_blocks(document), Console(file=said, width=200))
    assert "test mean absolute error" in said.getvalue()
    assert "test mean absolute error, mean over nodes" in compare_page(document)


def test_a_measure_that_no_run_has_is_refused(tmp_path):
    path = tmp_path / "digits.toml"
    figure = {"y": "auc", "line": [{"name": "one"}]}
    path.write_text(tomli_w.dumps({**experiment(), "figure": figure}), encoding="utf-8")
    with pytest.raises(InputError, match=r"figure\.y = 'auc': is no metric of the runs"):
        load_figure([path])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_mean_and_deviation(values):
    statistics_of_values = mean_and_deviation(values)
    assert statistics_of_values is not None
    assert as_dict(statistics_of_values) == pytest.approx(
        {"mean": statistics.mean(values), "deviation": statistics.stdev(values)}, abs=1e-6
    )
    assert mean_and_deviation(values[:1]) == MeanDeviation(mean=values[0], deviation=None)
    assert mean_and_deviation([]) is None


def test_names_with_brackets_are_printed_whole(tmp_path):
    """`Dyn[mu]` is a name, and no markup."""
    file = tmp_path / "figure.toml"
    lines = [{"name": "Dyn[mu]", "group": "of [red]"}, {"name": "Dyn[C]", "group": "of [red]"}]
    task = {"dataset": "digits", "model": "logistic"}
    sections = {"task": task, "train": {"steps": 2}, "nodes": {"count": 2}}
    sections["privacy"] = {"epsilon": "none"}
    file.write_text(tomli_w.dumps({**sections, "figure": {"line": lines}}))
    answer = command_line("compare", file, "--out", tmp_path / "out")
    assert answer.code == 0
    assert "Dyn[mu]" in answer.out
    assert "of [red]" in answer.out
