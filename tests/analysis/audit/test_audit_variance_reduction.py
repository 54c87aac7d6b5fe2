"""PrivSGP-VR under audit: nothing contradicts its certificate, and missing noise is found."""

from __future__ import annotations

from typing import Any

import pytest
from audit_bugs import attacked, job_of

from tacit.algorithms.variance_reduction import server_means
from tacit.analysis.audit.report import AuditOptions
from tacit.training.stacked_context import StackedContext

STATES: list[dict[str, Any]] = [
    {"state": "private"},
    {"state": "private", "momentum": 0.5, "clip_difference": 0.2},
    {"state": "public", "anchor_every": 2},
]


class Forgetful(StackedContext):
    """Noise of a tenth."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return super().add_noise(total, k, scale=scale / 10, part=part)


@pytest.mark.slow
@pytest.mark.parametrize("options", [STATES[0], STATES[2]], ids=["private", "public"])
def test_attacks_accept_the_code_and_find_missing_noise(options):
    job = job_of(algorithm={"name": "privsgp-vr", **options}, nodes=4, steps=4)
    hard = AuditOptions(repetitions=1200, canaries=0, delta=1e-3)
    attacks, _ = attacked(job, hard)
    assert not any(attack.hardest.violated for attack in attacks)
    broken, _ = attacked(job, hard, Forgetful)
    assert any(attack.hardest.violated for attack in broken)


SERVERS: list[dict[str, Any]] = [
    {"name": "dp-srm", "gradient_share": 0.05},
    {"name": "ldp-svrg", "anchor_every": 2},
    {"name": "ldp-spider", "anchor_every": 5},
]


def attacked_server(options, context=StackedContext):
    """Whether a bound was found to be violated, and the largest epsilon that attacks prove."""
    settings = {"clip": 1.0, "learning_rate": 0.5, "anchor_share": 0.1, **options}
    job = job_of(algorithm=settings, privacy={"epsilon": 5.0}, nodes=4, steps=6, batch="all")
    found, _ = attacked(job, AuditOptions(repetitions=1200, canaries=0, delta=1e-3), context)
    return any(attack.hardest.violated for attack in found), max(each.epsilon for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("options", SERVERS, ids=lambda options: options["name"])
def test_attacks_on_server_means_accept_the_code_and_find_missing_noise(options):
    violated, epsilon = attacked_server(options)
    assert not violated
    assert epsilon > 0.3
    assert attacked_server(options, Forgetful)[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", SERVERS, ids=lambda options: options["name"])
def test_a_difference_that_is_accounted_as_one_gradient_is_found(options, monkeypatch):
    """Two clipped gradients may be 2 C apart, and attacks make them so."""
    monkeypatch.setattr(server_means, "difference_bound", lambda options, clip: 1.0)
    assert attacked_server(options)[0]
