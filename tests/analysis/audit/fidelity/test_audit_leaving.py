"""What leaves a process follows no record: no correct program fails, and defects do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fidelity_jobs import PRIVATE, config_of, job_of, nodes, records
from pydantic import TypeAdapter

from tacit.analysis.audit.fidelity.leaving import leaving_findings
from tacit.communication.received import Form
from tacit.config import AlgorithmSection, load_config
from tacit.errors import DivergenceError, InputError
from tacit.training import loop
from tacit.training import prepare as preparing
from tacit.training import state as run_state
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

SHOWN, TOLD, FACTS = (
    "what a run shows",
    "what other processes are told",
    "what is public beforehand",
)
_DIGITS = {"dataset": "digits", "model": "logistic"}


def found(job, steps=2):
    return {finding.name: finding for finding in leaving_findings(job, steps=steps)}


def failed(job, steps=2):
    return {name for name, finding in found(job, steps).items() if not finding.passed}


def scored_job(case, **sections):
    """Of a job with public test records."""
    return prepare(config_of(case, **sections), nodes=nodes(), test=records(99, 12))


def digits_job(**sections):
    """Of an experiment file, which names a data set."""
    given = {
        "task": _DIGITS,
        "nodes": {"count": 3},
        "algorithm": {"name": "privsgp"},
        "privacy": {"epsilon": 3.0, "delta": 1e-3},
        "train": {"steps": 4, "batch": 5},
    }
    return prepare(load_config({**given, **sections}))


def test_a_job_of_given_nodes_is_not_accused():
    findings = found(scored_job("privsgp"))
    assert [finding.saw for finding in findings.values() if not finding.passed] == []
    assert "other records (all others" not in findings[SHOWN].saw
    assert "on others (all others, one extreme)" in findings[SHOWN].power
    assert "(all others, all zeros, all large, one extreme)" in findings[FACTS].power


def test_a_job_of_a_file_is_not_accused():
    assert failed(digits_job()) == set()


@pytest.mark.slow
@pytest.mark.parametrize("case", PRIVATE)
def test_no_algorithm_is_accused_of_what_it_shows(case):
    assert failed(scored_job(case)) == set()


def test_ledgers_of_data_are_left_alone(tmp_path):
    kept = {"ledger": str(tmp_path / "ledgers"), "ledger_epsilon": 50.0, "ledger_delta": 1e-2}
    privacy = {"epsilon": 3.0, "delta": 1e-3, **kept}
    assert failed(digits_job(privacy=privacy)) == set()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_scores_of_models_that_are_not_released_are_found(monkeypatch):
    original: Callable[[Any], Any] = AlgorithmSection.definition.fget  # type: ignore[attr-defined]
    spoilt = property(
        lambda section: replace(
            original(section), releases=replace(original(section).releases, models=True)
        )
    )
    job = scored_job("fedspd-dp")
    assert failed(job) == set()
    monkeypatch.setattr(AlgorithmSection, "definition", spoilt)
    findings = found(job)
    assert not findings[SHOWN].passed
    assert (
        findings[SHOWN]
        .saw.split("the first: ")[1]
        .startswith("with other records (all others), what callbacks get of the metrics of step ")
    )


@pytest.mark.slow
def test_outputs_that_are_counted_from_labels_are_found(monkeypatch):
    original = preparing.load_records

    def counting(*arguments):
        records = original(*arguments)
        return replace(records, classes=max(2, int(records.train.targets.max()) + 1))

    config = config_of("privsgp", task={"outputs": None})
    test = records(98, 30)
    assert failed(prepare(config, nodes=nodes(), test=test)) == set()
    monkeypatch.setattr(preparing, "load_records", counting)
    findings = found(prepare(config, nodes=nodes(), test=test))
    assert {name for name, finding in findings.items() if not finding.passed} == {FACTS}
    # The public test records have labels that such a model lacks.
    assert (
        "with other records (all zeros), it ended with an error, RecordsError"
        in findings[FACTS].saw
    )
    without = found(prepare(config, nodes=nodes()))
    assert "(all zeros), the number of parameters." in without[FACTS].saw


def test_a_refusal_by_private_norms_is_found(monkeypatch):
    original = preparing._check_records

    def check(model, loss, outputs, train, hosted):
        original(model, loss, outputs, train, hosted)
        largest = float(train.inputs.norm(dim=1).max())
        if largest > 100:
            raise InputError("algorithm.smoothness", 1.0, f"too small for a norm of {largest}")

    monkeypatch.setattr(preparing, "_check_records", check)
    findings = found(job_of("privsgp"))
    assert {name for name, finding in findings.items() if not finding.passed} == {FACTS}
    assert (
        "with other records (all large), it ended with an error, InputError" in findings[FACTS].saw
    )


def test_a_number_of_private_records_that_is_told_is_found(monkeypatch):
    original, number = loop._stop_wanted, Form(TypeAdapter(float))

    def telling(run, hooks):
        run.peers.share("loss so far", float(run.context.last.losses.mean()), number)
        return original(run, hooks)

    monkeypatch.setattr(loop, "_stop_wanted", telling)
    findings = found(job_of("privsgp"))
    assert {name for name, finding in findings.items() if not finding.passed} == {TOLD}, findings
    assert "the loss so far that other processes are told" in findings[TOLD].saw


def test_a_training_loss_that_callbacks_get_is_found(monkeypatch):
    def as_it_is(progress, row):
        return progress

    monkeypatch.setattr(loop, "_public", as_it_is)
    assert failed(job_of("privsgp")) == {SHOWN}


def test_an_end_by_private_norms_is_found(monkeypatch):
    def check(run):
        if run.context.last is not None and float(run.context.last.norms.max()) > 1e3:
            raise DivergenceError("a gradient is too large")

    monkeypatch.setattr(loop, "check_finite", check)
    assert SHOWN in failed(job_of("privsgp", train={"batch": "all"}))


def test_a_run_that_diverges_on_what_was_released_is_not_accused():
    job = job_of("privsgp", algorithm={"learning_rate": 1e30}, train={"batch": "all"})
    assert failed(job) == set()


def test_a_private_column_that_is_not_marked_is_found(monkeypatch):
    original = run_state._row

    def row(run, step, measured):
        public = original(run, step, measured)
        if run.context.last is not None:
            public.value["clip"] = float(run.context.last.norms.mean())
        return public

    monkeypatch.setattr(run_state, "_row", row)
    assert failed(scored_job("privsgp")) == {SHOWN}


def test_an_error_on_the_jobs_own_records_is_no_finding_that_passes(monkeypatch):
    """Where every run ends alike there is nothing to compare, whoever's error it is."""

    def broken(*_):
        raise OSError("no such device")

    job = job_of("privsgp")
    with pytest.raises(OSError, match="no such device"):
        found(replace(job, again=broken))
    monkeypatch.setattr(loop, "finish", broken)
    with pytest.raises(OSError, match="no such device"):
        found(job)


def test_a_refusal_of_the_jobs_own_records_is_told(monkeypatch):
    def refused(*_):
        raise InputError("task", "it", "no such task")

    monkeypatch.setattr(loop, "finish", refused)
    findings = found(job_of("privsgp"))
    assert findings[SHOWN].saw.startswith("Only what came before an error was compared, InputError")


def test_the_code_under_audit_is_what_runs():
    class Alongside(StackedContext):
        def add_noise(self, total, k, **options):
            released = super().add_noise(total, k, **options)
            return released if self.last is None else released.add_(float(self.last.losses.mean()))

    findings = leaving_findings(job_of("privsgp"), context=Alongside)
    assert [finding.name for finding in findings if not finding.passed] == [SHOWN]
