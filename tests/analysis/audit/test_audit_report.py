"""What an audit says: its verdict, its document, its table, its progress, and what it records."""

from __future__ import annotations

import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from audit_bugs import job_of
from bug_table import BUGS
from scipy.special import ndtr

from tacit.analysis.audit import (
    Attack,
    AuditDocument,
    AuditedModel,
    AuditOptions,
    Comparison,
    FidelityTest,
    audit_job,
    audit_progress,
    audit_table,
)
from tacit.analysis.audit.attacks import choose_target
from tacit.analysis.audit.fidelity.finding import LEVEL
from tacit.analysis.audit.fidelity.finding import finding as finding_of
from tacit.analysis.audit.procedure import epsilon_of_weaker_noise, smallest_excess
from tacit.analysis.audit.report import audit_document, claim_verdict
from tacit.report.documents.base import dump, load, plain_json

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "audit.md"


def attack(epsilon, certified=2.0, **changes):
    values: dict[str, Any] = {
        "name": "worst-case gradient",
        "statistic": "likelihood ratio",
        "method": "any-delta",
        "epsilon": epsilon,
        "hardest": Comparison(delta=0.02, epsilon=epsilon, certified=certified),
        "confidence": 0.99,
        "repetitions": 1200,
        "guesses": {"TPR": 0.5, "FPR": 0.125},
        "alarm": False,
    }
    return Attack(**{**values, **changes})


def finding(name="noise variance", p_value=0.5, **changes):
    values: dict[str, Any] = {
        "name": name,
        "question": "Is the noise as large as planned?",
        "statistic": 0.98,
        "meaning": "mean square of the noise over the planned variance",
        "p_value": p_value,
        "exact": True,
        "saw": f"This is what the test '{name}' saw.",
        "power": "A noise that is 3 % smaller is found.",
        "noise_factor": 0.97,
    }
    return finding_of(**{**values, **changes})


def report(**changes):
    values: dict[str, Any] = {
        "algorithm": "privsgp",
        "relation": "add-or-remove-one",
        "mechanism": "Poisson-sampled Gaussian, 5 steps",
        "nodes": (0, 2),
        "steps": 5,
        "delta": 1e-3,
        "confidence": 0.95,
        "claimed": 1.5,
        "hides": False,
        "certified_epsilon": 2.0,
        "trust_model": "all-messages",
        "colluding": None,
        "tolerated": None,
        "guaranteed_epsilon": None,
        "attacks": (attack(1.25), attack(0.75, name="opposed gradient")),
        "seconds": 12.5,
        "fidelity": (finding(), finding("steps alike", noise_factor=None)),
        "smallest_excess": 2.0612,
        "tested": (
            AuditedModel(
                place="laboratory", model="Linear(16, 1)", parameters=16, gradient_path="linear"
            ),
        ),
    }
    return audit_document(**{**values, **changes})


FAILED = finding("coins alike", p_value=1e-12)


def test_a_correct_program_is_not_accused():
    told = report()
    assert told.verdict == (
        "no alarm; all 2 fidelity tests passed; certified not exceeded at 95 % confidence"
    )
    assert (told.defect, told.failures, told.claim_verdict) == (False, (), "claim not exceeded")
    assert report(fidelity=()).verdict == ("no alarm; certified not exceeded at 95 % confidence")


def test_a_failed_test_accuses_and_says_what_it_saw():
    told = report(fidelity=(finding(), FAILED, finding("size", p_value=1e-30)))
    assert told.defect
    assert [failure.name for failure in told.failures] == ["size", "coins alike"]
    assert told.verdict == (
        "ALARM, a defect: 'size' accuses the program (so do: coins alike). This is what the test "
        "'size' saw."
    )
    many = [finding(f"test {number}", p_value=1e-12) for number in range(7)]
    assert "(so do: test 1, test 2, test 3, 3 more)" in report(fidelity=tuple(many)).verdict
    # Neither is a result that is no number, nor one at the level itself, a pass.
    assert report(fidelity=(finding(statistic=math.nan),)).defect
    assert report(fidelity=(finding(p_value=LEVEL),)).defect
    assert not report(fidelity=(finding(p_value=1.01 * LEVEL),)).defect


def test_more_than_is_certified_at_95_percent_is_within_chance():
    told = report(attacks=(attack(2.5), attack(2.25)))
    assert told.certified_violated
    assert not told.defect
    assert told.verdict == (
        "no alarm; all 2 fidelity tests passed; within chance. At delta 0.02 epsilon is at least "
        "2.50, and 2 is certified. Of a correct program, 1 audit in 20 shows as much, at 95 % "
        "confidence: audit again with another seed and more repetitions"
    )
    told = report(attacks=(attack(2.5, alarm=True), attack(2.25)))
    assert told.defect
    assert told.verdict == (
        "ALARM, a defect: 'attack: worst-case gradient (any-delta)' accuses the program. At delta "
        "0.02 epsilon is at least 2.50, and 2 is certified."
    )


def test_the_document_has_all_of_it_and_can_be_read():
    told = report(fidelity=(finding(), finding("bare", statistic=math.nan), FAILED))
    content = plain_json(told)
    assert content["alarms"] == ["coins alike", "bare"]
    assert [failure["name"] for failure in content["failures"]] == content["alarms"]
    assert (content["fidelity_tests"], content["fidelity_passed"]) == (3, 1)
    assert content["defect"] is True
    assert content["alarm_rate"] == 1e-6
    assert content["smallest_excess"] == 2.0612
    assert content["audited_epsilon"] == told.audited_epsilon == 1.25
    assert content["tested"][0]["parameters"] == 16
    assert [test["passed"] for test in content["fidelity"]] == [True, False, False]
    assert content["fidelity"][1]["statistic"] is None
    assert content["fidelity"][2]["power"] == FAILED.power
    assert plain_json(load(AuditDocument, dump(told), "audit.json")) == content


def test_infinite_bounds_are_null_in_json():
    endless = report(
        certified_epsilon=math.inf,
        claimed=math.inf,
        smallest_excess=math.inf,
        attacks=(attack(2.5, math.inf),),
    )
    content = plain_json(endless)
    for key in ("certified_epsilon", "claimed_epsilon", "smallest_excess"):
        assert content[key] is None
    assert content["attacks"][0]["hardest"]["certified"] is None
    assert not endless.defect


def shown(told, capsys, monkeypatch, *, width=80, details=False):
    monkeypatch.setenv("COLUMNS", str(width))
    audit_table(told, details=details)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_one_table_says_it_all(width, capsys, monkeypatch):
    lines = shown(report(), capsys, monkeypatch, width=width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for words in (
        "privsgp, 5 steps, add-or-remove-one",
        "Poisson-sampled Gaussian, 5 steps",
        "at most 2.00",
        "at least 1.25",
        "1.50",
        "2 of 2 passed",
        "2.07",  # rounded up
        "Linear(16, 1)",
        "no alarm; all 2 fidelity tests passed; certified not exceeded at 95 % confidence",
    ):
        assert words in text, words
    # Of what was tried only the best is named: the rest is for those who ask.
    assert "opposed gradient" not in text
    assert FAILED.power not in text


def test_what_failed_comes_first(capsys, monkeypatch):
    lines = shown(report(fidelity=(finding(), FAILED)), capsys, monkeypatch, width=120)
    (heading,) = [number for number, line in enumerate(lines) if "at delta 0.001" in line]
    first = lines[heading + 2]
    assert first.split()[:3] == ["coins", "alike", "ALARM"]
    assert FAILED.saw in first
    assert lines[-1] == (
        "ALARM, a defect: 'coins alike' accuses the program. This is what the test 'coins alike' "
        "saw."
    )


def test_details_are_above_the_table(capsys, monkeypatch):
    counted = attack(1.0, name="one run [1]", guesses={"guessed": 8.0, "correct": 7.0})
    told = report(attacks=(attack(1.25), counted))
    text = "\n".join(shown(told, capsys, monkeypatch, width=200, details=True))
    for words in ("steps alike", FAILED.power, "TPR 0.5, FPR 0.125", "one run [1]", "7 of 8"):
        assert words in text, words
    assert text.index("one run [1]") < text.index("at delta 0.001")


def test_a_line_a_stage_where_there_is_no_terminal(capsys):
    with audit_progress() as progress:
        for done in range(3):
            progress("worst-case gradient", done + 1, 3)
        progress("one training", 1, 5)
    assert capsys.readouterr() == ("", "audit: worst-case gradient\naudit: one training\n")


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self):
        return True


def test_a_bar_on_a_terminal(monkeypatch):
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with audit_progress() as progress:
        progress("worst-case gradient", 1, 3)
    assert "worst-case gradient" in err.getvalue()
    assert "1/3" in err.getvalue()


def gaussian_delta(mu, epsilon):
    """Balle and Wang (2018), theorem 8, for the Gaussian mechanism of parameter mu."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def target(job, steps, delta):
    return choose_target(job.plan, AuditOptions(steps=steps, delta=delta))


@pytest.mark.parametrize("factor", [1.0, 0.9, 0.5])
def test_weaker_noise_is_held_against_the_closed_form(factor):
    job = job_of(batch="all", steps=4, nodes=2)
    multiplier = job.plan.release.noise_multiplier(job.plan.nodes[0], 0)
    mu = math.sqrt(3) / (multiplier * factor)
    epsilon = epsilon_of_weaker_noise(job.plan, target(job, 3, 0.01), factor)
    # Rounded up, by what the lattice and the accounting add.
    assert gaussian_delta(mu, epsilon) <= 0.01 <= gaussian_delta(mu, 0.999 * epsilon)


def test_the_smallest_excess_is_that_of_the_sharpest_test():
    job = job_of(batch="all", steps=4, nodes=2)
    plan, whole = job.plan, target(job, 4, 1e-3)
    findings = [finding(noise_factor=factor) for factor in (0.5, None, 0.9)]
    least = smallest_excess(findings, plan, whole)
    assert least == epsilon_of_weaker_noise(plan, whole, 0.9)
    assert whole.node.epsilon is not None
    assert least > whole.node.epsilon
    assert smallest_excess(findings[1:2], plan, whole) is None
    assert epsilon_of_weaker_noise(plan, whole, 0.0) == math.inf


def test_every_key_of_the_document_is_documented():
    told = PAGE.read_text(encoding="utf-8").partition("## The report as JSON")[2]
    names = set(re.findall(r"`([a-z_]+)`", told))
    models = (AuditDocument, Attack, FidelityTest, AuditedModel)
    keys = {name for model in models for name in model.model_fields}
    assert keys - names == set()


def test_every_planted_defect_is_documented_with_what_was_done():
    told = PAGE.read_text(encoding="utf-8").partition("## Which defects are found")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|", told, re.MULTILINE)
    found = {name: slip for name, slip, _ in rows}
    assert {bug.name: bug.slip.rstrip(".") for bug in BUGS.values()}.items() <= found.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": "fixed", "privacy": {"relation": "replace-one"}},
        {"algorithm": {"name": "privsgp-vr", "anchor_every": 2}},
    ],
    ids=["fixed", "poisson, anchors"],
)
def test_every_test_is_documented_with_its_question(settings):
    """On the page, and with a sentence each of what was seen and what would be found."""
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+\?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    job = job_of(nodes=4, **{"steps": 4, **settings})
    made = audit_job(job, options=AuditOptions(repetitions=200, canaries=0, seconds=1.0)).fidelity
    assert len(made) > 20
    assert {(test.name, test.question) for test in made} <= set(rows)
    for test in made:
        assert not test.saw[0].islower()
        assert test.saw.endswith(".")
        assert test.power.endswith(".")


def test_a_verdict_on_a_claim_follows_the_figure_beside_it():
    assert claim_verdict(None, 3.0, 0.95) == "no claim"
    assert claim_verdict(1.0, 1.0, 0.95) == "claim not exceeded"
    assert claim_verdict(1.0, 1.5, 0.95) == "claim VIOLATED at 95 % confidence"


def test_a_claim_about_messages_that_hide_a_part_is_not_judged_by_more_than_they_show():
    """What an attack on all that was noised cannot extract, one on messages cannot either."""
    told = report(claimed=1.0, hides=True)
    assert told.audited_epsilon > 1.0
    assert (told.claim_violated, told.claim_verdict) == (
        None, "claim not judged: messages hold back a part of what was attacked"
    )  # fmt: skip
    assert report(claimed=1.0).claim_violated
    within = report(claimed=told.audited_epsilon, hides=True)
    assert (within.claim_violated, within.claim_verdict) == (False, "claim not exceeded")
