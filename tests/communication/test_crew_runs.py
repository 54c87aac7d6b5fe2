"""Whole runs of a crew in memory: they give the numbers of the simulator, stop, go on and agree."""

import pytest
import torch
from safetensors.torch import load_file

import tacit
from communication.cluster.crew import assert_ends_as, rows_of, simulated
from communication.cluster.test_cluster_runs import (
    KINDS,
    NODES,
    STEPS,
    assert_private_metrics_stay_home,
    assert_same_run,
)
from communication.memory import train
from experiments import write_experiment
from tacit import report
from tacit.analysis.statement import statement_document
from tacit.errors import InputError, TacitError
from tacit.report.documents.run import OWN_LEDGER, read_result


@pytest.mark.parametrize("kind", KINDS)
def test_a_crew_gives_the_numbers_of_the_simulator(kind, tmp_path):
    common = {"steps": STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 2}
    kinds = {**KINDS[kind], "train": {**common, **KINDS[kind].get("train", {})}}
    file = write_experiment(tmp_path, nodes={"count": NODES}, **kinds)
    found = train([file] * 3, tmp_path / "run")
    assert [result.status for result in found] == ["done"] * 3
    simulated(file, tmp_path / "alone")
    assert_same_run(tmp_path / "run", tmp_path / "alone", server="server" in kind)
    assert_private_metrics_stay_home(tmp_path / "run", rows_of(tmp_path / "alone"))
    assert_each_has_its_own(tmp_path / "run", tmp_path / "away")


def assert_each_has_its_own(run, away):
    """Every process has the model of rank 0, and of its own nodes its own word, wherever it is."""
    whole, common = read_result(run / "result.json"), load_file(run / "model.safetensors")
    for rank in range(3):
        part = away / str(rank) / f"rank-{rank:04d}"
        part.parent.mkdir(parents=True)
        (run / part.name).rename(part)  # of the others it has nothing
        found, model = read_result(part / "result.json"), load_file(part / "model.safetensors")
        for name, numbers in common.items():
            assert torch.equal(model[name], numbers), (rank, name)
        module = tacit.load_model(part.parent)
        assert all(torch.equal(module.state_dict()[name], own) for name, own in common.items())
        for key in ("test_accuracy", "test_loss", "bytes_sent_by_node", "calibration"):
            assert getattr(found, key) == getattr(whole, key), (rank, key)
        assert any("as rank 0 told" in note for note in found.notes) == (rank > 0)
        assert report.write_report(part).exists()
        if found.epsilon_source is None:
            continue
        own = {n for n, by in enumerate(found.epsilon_source) if by == OWN_LEDGER}
        assert own == {n for n, by in enumerate(whole.epsilon_source) if _rank(by) == rank}
        if found.private:
            stated = statement_document(part)
            assert {row.node: row.epsilon for row in stated.nodes} == {
                node: pytest.approx(whole.epsilon[node], rel=1e-9) for node in own
            }


def _rank(source):
    return 0 if source == OWN_LEDGER else int(source.removeprefix("rank "))


@pytest.mark.parametrize("who", [0, 2])
def test_one_that_is_asked_to_stop_stops_all_and_they_go_on(who, tmp_path):
    changes = {"nodes": {"count": 3}, "train": {"steps": 40, "dtype": "float64"}}
    file, run = write_experiment(tmp_path, **changes), tmp_path / "run"
    asked = [lambda: False] * 3
    steps: list[int] = []
    asked[who] = lambda: steps.append(0) or len(steps) > 5  # type: ignore[func-returns-value]
    found = train([file] * 3, run, asked=asked)
    assert [result.status for result in found] == ["stopped"] * 3
    (step,) = {result.steps for result in found}
    assert 5 < step < 40
    found = train([file] * 3, run, resume=True)
    assert [result.status for result in found] == ["done"] * 3
    assert_ends_as(run, simulated(file, tmp_path / "alone"), measured=[step])


@pytest.mark.parametrize(
    ("odd", "section", "key", "value"),
    [(2, "train", "steps", 7), (0, "privacy", "delta", 1e-6), (1, "privacy", "noise_seed", 8)],
)
def test_processes_that_disagree_end_before_the_first_step(odd, section, key, value, tmp_path):
    (tmp_path / "odd").mkdir()
    files = [write_experiment(tmp_path)] * 3
    files[odd] = write_experiment(tmp_path / "odd", **{section: {key: value}})
    errors = train(files, tmp_path / "run")
    others = " and ".join(str(rank) for rank in range(3) if rank != odd)
    for error in errors:
        assert isinstance(error, InputError)
        assert error.where == f"{section}.{key}"
        assert f"rank {odd}" in str(error)
        assert others in str(error)
    assert not (tmp_path / "run").exists()


def test_a_defect_of_one_ends_all(tmp_path):
    file = write_experiment(tmp_path, nodes={"count": 3}, train={"steps": 40})

    def fails():
        raise RuntimeError("something nobody thought of")

    errors = train([file] * 3, tmp_path / "run", asked=[lambda: False, fails, lambda: False])
    assert type(errors[1]) is RuntimeError
    for error in errors[::2]:
        assert isinstance(error, TacitError)
        assert "nobody thought of" not in str(error)
