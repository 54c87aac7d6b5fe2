"""`tacit.compare` from Python: the runs of the command, as rows and as pictures."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import tacit
from experiments import experiment, write_experiment
from experiments import tacit as command_line
from tacit.report.documents.run import read_result
from tacit.report.pictures import written

RATES = (0.1, 0.5)
BUDGETS = {
    "privacy": {"noise_std": None, "noise_seed": None, "epsilon": 2.0},
    "train": {"steps": 3},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "out"
    grid = {"algorithm.learning_rate": np.array(RATES)}
    return tacit.compare(experiment(**BUDGETS), grid=grid, seeds=[0, 4], out=out), out


def test_a_row_is_a_run(made):
    comparison, out = made
    frame = comparison.to_pandas()
    assert list(frame["algorithm.learning_rate"]) == [0.1, 0.1, 0.5, 0.5]
    assert list(frame["train.seed"]) == [0, 4, 0, 4]
    assert not {"privacy.epsilon", "algorithm.name"} & set(frame)  # in which they do not differ
    for row in frame.itertuples():
        assert read_result(Path(row.folder) / "result.json").test_accuracy.mean == row.test_accuracy
    ends = [run.result for run in comparison.runs.members]
    assert list(frame["test_accuracy"]) == [end.test_accuracy.mean for end in ends]
    assert list(frame["epsilon"]) == [max(end.epsilon) for end in ends]
    assert list(frame["claimed_epsilon"]) == [max(end.claimed_epsilon) for end in ends]
    assert "learning_rate 0.1" in repr(comparison)
    again = [experiment(**BUDGETS, algorithm={"learning_rate": rate}) for rate in RATES]
    others = tacit.compare([*again, again[0]], out=out)  # of what has run, and one given twice
    assert (others.runs.made, len(others.to_pandas())) == (0, 2)


def test_why_a_run_was_refused_is_said_here_and_in_no_document(tmp_path, caplog):
    refused = tacit.compare(experiment(train={"batch": 5000}), out=tmp_path / "out")
    (row,) = refused.to_pandas().itertuples()
    assert row.error.startswith("train.batch = 5000: ")
    assert row.error in caplog.text
    assert "5000: " not in refused.document.model_dump_json()


def test_workers_of_ones_own_make_the_runs(tmp_path):
    of, grid = experiment(train={"steps": 2}), {"algorithm.learning_rate": RATES}
    with ThreadPoolExecutor(1) as executor:
        theirs = tacit.compare(of, grid=grid, executor=executor, out=tmp_path / "theirs")
        for faulty in ({"jobs": 2, "executor": executor}, {"jobs": 0}, {"executor": "dask"}):
            with pytest.raises(tacit.InputError, match="jobs"):
                tacit.compare(of, out=tmp_path / "other", **faulty)
    ours = tacit.compare(of, grid=grid, out=tmp_path / "ours")
    assert theirs.runs.made == 2
    assert theirs.to_pandas()["test_loss"].equals(ours.to_pandas()["test_loss"])


def test_a_figure_shows_the_lines(made):
    comparison, _ = made
    figure = comparison.figure("bytes")
    assert isinstance(figure, Figure)
    (axes,) = (axes for cell in figure.subfigs for axes in cell.axes)
    for line, drawn in zip(comparison.document.lines, axes.lines, strict=True):
        assert list(drawn.get_ydata()) == [point.mean for point in line.curve]
    with pytest.raises(tacit.InputError, match="axis = 'time': must be one of steps, bytes"):
        comparison.figure("time")


def test_a_figure_of_many_lines_shows_the_best(made):
    comparison, _ = made
    line = comparison.document.lines[0]
    many = [
        line.model_copy(
            update={"name": str(n), "curve": [line.curve[-1].model_copy(update={"mean": n / 20})]}
        )
        for n in range(20)
    ]
    document = comparison.document.model_copy(update={"lines": many})
    figure = type(comparison)(document, comparison.runs).figure()
    (axes,) = (axes for cell in figure.subfigs for axes in cell.axes)
    assert [line.get_ydata()[0] for line in axes.lines] == [n / 20 for n in range(19, 7, -1)]
    assert "the best 12 of 20 lines" in figure._supxlabel.get_text()


@pytest.mark.slow
def test_the_command_draws_a_picture_in_a_file(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write_experiment(tmp_path, **BUDGETS, algorithm={"learning_rate": 0.1})
    told = ["compare", str(file), "--out", str(made[1])]
    for name, head in {"x.pdf": b"%PDF", "x.png": b"\x89PNG", "x.svg": b"<?xml"}.items():
        assert command_line(*told, "--picture", name).code == 0
        content = (tmp_path / name).read_bytes()
        assert content.startswith(head)
        assert b"CreationDate" not in content
    assert "exists" in command_line(*told, "--picture", "x.pdf").refusal
    assert ".pdf, .png or .svg" in command_line(*told, "--picture", "x.gif").refusal


@pytest.mark.slow
def test_a_run_is_drawn_over_steps_and_epsilon(made):
    result = tacit.train(experiment(**BUDGETS))
    figure = result.figure()
    steps, epsilon = (axes for cell in figure.subfigs for axes in cell.axes)
    assert [list(axes.lines[1].get_ydata()) for axes in (steps, epsilon)] == [
        [row.test_accuracy.worst for row in result.rows]
    ] * 2
    assert list(epsilon.lines[0].get_xdata()) == [row.epsilon.most for row in result.rows]
    assert re.search(r"certified epsilon 2\.00", figure._supxlabel.get_text())
    assert written(figure, "run", "pdf") == written(result.figure(), "run", "pdf")


def test_what_is_wrong_is_one_line(made, monkeypatch):
    with pytest.raises(tacit.InputError, match="unknown section; did you mean 'privacy'"):
        tacit.compare([{"task": {"dataset": "digits"}, "priv": {"epsilon": 1}}], out=made[1])
    with pytest.raises(tacit.InputError, match=r"config = .*int.*: must be the path"):
        tacit.compare([5], out=made[1])
    with pytest.raises(tacit.InputError, match=r"grid\.a.*section\.key"):
        tacit.compare(experiment(), grid={"a": [1]}, out=made[1])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tacit.InputError, match="package = 'pandas'"):
        made[0].to_pandas()
