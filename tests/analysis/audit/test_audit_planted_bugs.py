"""An audit finds what it is for: defects that leak, and nothing where there is none."""

from __future__ import annotations

from typing import Any

import audit_bugs as planted
import pytest

from tacit.analysis.audit import AuditOptions, AuditReport, audit_job
from tacit.training.stacked_context import StackedContext

pytestmark = pytest.mark.slow

QUICK = AuditOptions(repetitions=2000, canaries=0)

SAMPLED: dict[str, Any] = {"batch": 20, "privacy": {"epsilon": 2.0}, "steps": 3}
WHOLE: dict[str, Any] = {"batch": "all", "privacy": {"epsilon": 2.0}, "steps": 3}
REPLACED: dict[str, Any] = {
    "batch": 20,
    "privacy": {"epsilon": 2.0, "relation": "replace-one"},
    "steps": 2,
}
FIXED: dict[str, Any] = {**REPLACED, "batch": 10, "sampling": "fixed"}
SETTINGS = {"poisson": SAMPLED, "whole": WHOLE, "replace-one": REPLACED, "fixed": FIXED}


def audited(context: type[StackedContext], setting: str, **more: Any) -> AuditReport:
    return audit_job(
        planted.job_of(**{**SETTINGS[setting], **more}), options=QUICK, context=context
    )


def attack(report: AuditReport, name: str) -> float:
    """How far the attacks of a name exceed the certificate, at their hardest delta."""
    return max(
        attack.hardest.epsilon - attack.hardest.certified
        for attack in report.attacks
        if attack.name == name
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_code_without_bugs_is_not_accused(setting: str) -> None:
    report = audited(StackedContext, setting)
    assert not report.defect
    assert report.repeated_noises == 0
    assert report.verdict.startswith("no alarm")
    assert 0.0 < report.epsilon <= report.certified


@pytest.mark.parametrize("setting", SETTINGS)
def test_half_the_noise(setting: str) -> None:
    report = audited(planted.NoiseHalved, setting)
    assert report.certified_violated
    assert report.verdict.startswith("ALARM, a defect")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_clip_applied_after_averaging(setting: str) -> None:
    assert audited(planted.ClippedAfterAveraging, setting).certified_violated


def test_a_batch_divided_by_the_size_that_was_drawn() -> None:
    report = audited(planted.RealisedBatch, "poisson")
    assert report.certified_violated
    assert attack(report, "opposed gradient") > 0


@pytest.mark.parametrize("bug", [planted.NoiseReused, planted.NoiseReusedInPairs])
def test_noise_reused_across_steps(bug: type[StackedContext]) -> None:
    report = audited(bug, "poisson")
    assert report.certified_violated
    assert report.epsilon > report.certified
    assert {attack.statistic for attack in report.attacks} >= {"noise met twice"}
    assert report.repeated_noises > 0
    assert "NOISE USED TWICE" in report.verdict


def test_noise_reused_where_no_canary_can_show_it() -> None:
    """At rate 1 a constant canary is in every step; that the noise is the same still shows."""
    report = audited(planted.NoiseReused, "whole")
    assert not report.certified_violated
    assert report.defect


@pytest.mark.parametrize("setting", ["poisson", "whole"])
@pytest.mark.parametrize("bug", [planted.NeighboursNoise, planted.NeighboursKey])
def test_the_wrong_nodes_stream(bug: type[StackedContext], setting: str) -> None:
    report = audited(bug, setting)
    assert report.certified_violated
    assert attack(report, "compared with other nodes") > 0
    assert report.repeated_noises > 0


@pytest.mark.parametrize("bug", [planted.Unclipped, planted.NoiseOfTheMean, planted.EveryRecord])
def test_no_clip_the_noise_of_the_mean_and_no_sampling(bug: type[StackedContext]) -> None:
    assert audited(bug, "poisson").certified_violated


def test_gossip_hides_nothing() -> None:
    more = {"algorithm": {"name": "dp2-sgd"}, "topology": {"graph": "ring"}}
    assert audited(planted.NoiseHalved, "poisson", **more).certified_violated
    assert not audited(StackedContext, "poisson", **more).defect
