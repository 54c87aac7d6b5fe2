"""The commands about privacy: what they print and leave, and one line for each wrong input."""

import json
from pathlib import Path

import pytest
import torch

from experiments import strict_json, tacit, write_experiment
from tacit.errors import InputError
from tacit.report.documents.base import load
from tacit.report.documents.claims import AuditDocument
from tacit.report.documents.run import AuditFailure, read_result
from tacit.report.wording import epsilon_text
from tacit.training.stacked_context import StackedContext


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A small experiment with secret noise, in the current directory."""
    monkeypatch.chdir(tmp_path)
    return write_experiment(tmp_path, privacy={"noise_seed": None})


@pytest.fixture
def run(file):
    """The folder of a finished run."""
    short = ("--set", "train.steps=2", "--set", "train.batch=20")
    assert tacit("train", file, "--out", "run", "--quiet", *short).code == 0
    return Path("run")


@pytest.fixture
def budgeted(tmp_path, monkeypatch):
    """The same with a budget instead of a given noise."""
    monkeypatch.chdir(tmp_path)
    privacy = {"noise_seed": None, "noise_std": None, "epsilon": 2.0, "delta": 1e-4}
    return write_experiment(tmp_path, privacy=privacy)


def refused(answer, *words):
    assert answer.code == 2
    for word in words:
        assert word in answer.refusal


def test_claims_of_an_experiment(file):
    found = strict_json(tacit("privacy", "claims", file, "--json").out)
    planned = strict_json(tacit("plan", file, "--json").out)["per_node"]
    certified = {row["certified"] for row in found["rows"]}
    assert certified == {node["epsilon"] for node in planned}
    table = tacit("privacy", "claims", file, "--page", "claims.html")
    assert (table.code, table.err) == (0, "")
    assert "certified" in table.out
    assert "<html" in Path("claims.html").read_text(encoding="utf-8")
    # Nothing is overwritten.
    refused(tacit("privacy", "claims", file, "--page", "claims.html"), "claims.html", "exists")


def test_a_ledger_is_recomputed_from_the_file_alone(run):
    said = strict_json((run / "result.json").read_text(encoding="utf-8"))["epsilon"]
    alone = Path("elsewhere.sqlite")
    alone.write_bytes((run / "ledger.sqlite").read_bytes())
    found = strict_json(tacit("privacy", "ledger", alone, "--json").out)
    assert json.dumps(max(said)) in json.dumps(found)
    table = tacit("privacy", "ledger", alone)
    assert table.code == 0
    assert "spent" in table.out
    damaged = bytearray(alone.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    alone.write_bytes(bytes(damaged))
    refused(tacit("privacy", "ledger", alone), "elsewhere.sqlite")
    refused(tacit("privacy", "ledger", "nowhere.sqlite"), "nowhere.sqlite")


def test_a_statement_is_written_and_checked(run):
    written = tacit("privacy", "statement", run)
    assert written.out.split() == ["run/statement.json", "run/statement.html"]
    assert tacit("privacy", "check", "run/statement.json").code == 0
    content = strict_json((run / "statement.json").read_text(encoding="utf-8"))
    content["nodes"][0]["epsilon"] *= 0.9
    Path("forged.json").write_text(json.dumps(content), encoding="utf-8")
    refused(tacit("privacy", "check", "forged.json"), "epsilon")
    refused(tacit("privacy", "statement", "."), "RUN")


def test_who_may_collude_is_told_everywhere(tmp_path, monkeypatch):
    """By the plan, the end of a run, its ledger, and the check of its statement."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    file = write_experiment(
        tmp_path,
        topology={"graph": "complete"},
        algorithm={"name": "dp2-sgd"},
        privacy={"noise_seed": None, "noise": "pairwise", "colluding": 0},
    )
    planned = tacit("plan", file, "--json").json
    assert (planned["trust_model"], planned["colluding"]) == ("pairwise", 0)
    assert planned["pair_noise"] > 0
    for node in planned["per_node"]:
        against = node["epsilon_by_colluders"]
        assert against[0] == node["epsilon"] < against[1]
        assert len(against) == 2
        assert node["noise_multiplier"][0] > node["own_noise_multiplier"][0]
    weakest = [max(node["epsilon_by_colluders"][t] for node in planned["per_node"]) for t in (0, 1)]
    shown = tacit("plan", file).out
    ended = tacit("train", file, "--out", "run").out
    ledger = tacit("privacy", "ledger", "run").out
    assert tacit("privacy", "statement", "run").code == 0
    checked = tacit("privacy", "check", "run/statement.json").out
    for printed in (shown, ledger):
        assert "colluding nodes" in printed
        assert all(epsilon_text(epsilon) in printed for epsilon in weakest)
    assert "pairwise, 0 nodes may collude" in ended
    assert "trust model pairwise, 0 colluding: the observer sees every" in " ".join(ledger.split())
    assert "under the trust model pairwise, any 0 nodes may collude" in checked
    # A ledger that lies alone says how many, and knows no other number.
    Path("alone.sqlite").write_bytes(Path("run/ledger.sqlite").read_bytes())
    alone = tacit("privacy", "ledger", "alone.sqlite").out
    assert "trust model pairwise, 0 colluding: the observer sees" in " ".join(alone.split())
    assert "colluding nodes" not in alone


@pytest.mark.slow
def test_an_audit_is_put_beside_a_run(run):
    options = ("--repetitions", 100, "--canaries", 0, "--seconds", 0.001)
    first = strict_json(tacit("audit", run, *options, "--json").out)
    result = strict_json((run / "result.json").read_text(encoding="utf-8"))
    assert result["audited_epsilon"] == first["audited_epsilon"] <= first["certified_epsilon"]
    assert result["audit"]["delta"] == first["delta"]
    assert strict_json((run / "audit.json").read_text(encoding="utf-8")) == first
    assert "at least" in (run / "report.html").read_text(encoding="utf-8")
    # An earlier audit is kept.
    second = strict_json(tacit("audit", run, *options, "--seed", 1, "--json").out)
    assert strict_json((run / "audit.json").read_text(encoding="utf-8")) == first
    assert strict_json((run / "audit-2.json").read_text(encoding="utf-8")) == second
    refused(tacit("audit", run, "--steps", 2), "--steps")
    refused(tacit("audit", "."), "config.toml")


@pytest.mark.slow
def test_an_alarm_is_not_undone_by_another_audit(run):
    from tacit.analysis.audit import record_audit

    tacit("audit", run, "--repetitions", 100, "--canaries", 0, "--seconds", 0.5)
    innocent = load(AuditDocument, (run / "audit.json").read_bytes(), "audit.json")
    seen = AuditFailure(name="noise variance", saw="The noise is half as large as planned.")
    told = {"defect": True, "failures": (seen,), "alarms": (seen.name,)}
    guilty = innocent.model_copy(update=told)
    shown = []
    for document in (guilty, innocent):
        record_audit(run, document)
        recorded = read_result(run / "result.json").audit
        assert recorded is not None
        names = tuple(failure.name for failure in recorded.failures)
        shown.append((names, recorded.earlier_alarms))
        assert recorded.claim_verdict == innocent.claim_verdict
        # What it saw may be a function of private records: that stays in audit.json.
        assert "half as large" not in (run / "result.json").read_text(encoding="utf-8")
        assert "half as large" not in (run / "report.html").read_text(encoding="utf-8")
    assert shown == [((seen.name,), 0), ((), 1)]
    (run / "audit-2.json").write_text("no JSON")
    with pytest.raises(InputError, match="cannot be read"):
        record_audit(run, innocent)


@pytest.mark.slow
def test_a_defect_ends_with_an_alarm(run, monkeypatch):
    right = StackedContext.add_noise

    def too_little(self, total, k, **options):
        noise = right(self, torch.zeros_like(total), k, **options)
        return total.add_(noise, alpha=0.9)

    monkeypatch.setattr(StackedContext, "add_noise", too_little)
    options = ("--repetitions", 300, "--canaries", 0, "--seconds", 0.001)
    answer = tacit("audit", run, *options)
    assert answer.code == 1
    assert "ALARM, a defect" in answer.out
    assert "noise variance" in answer.out
    assert "AUDIT ALARM" in (run / "report.html").read_text(encoding="utf-8")
    assert tacit("privacy", "statement", run).code == 0
    assert "AUDIT ALARM" in (run / "statement.html").read_text(encoding="utf-8")
    checked = tacit("privacy", "check", run / "statement.json")
    assert checked.code == 0
    assert "AUDIT ALARM, do not rely on these figures: noise variance" in checked.out


def test_an_optimum_is_planned(budgeted):
    answer = tacit(
        "plan", budgeted, "--optimise", "--constant", "L=2", "--page", "plan.html", "--json"
    )
    assert answer.code == 0, answer.err
    assert strict_json(answer.out)
    assert "<html" in Path("plan.html").read_text(encoding="utf-8")
