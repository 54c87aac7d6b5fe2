"""PrivSGP-VR under audit: what its observer sees, and that nothing contradicts its certificate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from audit_bugs import job_of

from tacit.analysis.audit.canaries import ALONE
from tacit.analysis.audit.harness import set_up
from tacit.analysis.audit.procedure import audit_job
from tacit.analysis.audit.report import AuditOptions
from tacit.training.stacked_context import StackedContext

STATES: list[dict[str, Any]] = [
    {"state": "private"},
    {"state": "private", "momentum": 0.5, "clip_difference": 0.2},
    {"state": "public", "anchor_every": 2},
]


class Watched(StackedContext):
    """Keeps the noised means that the nodes compute."""

    seen: list[torch.Tensor]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Watched.seen = []

    def divide(self, total: torch.Tensor) -> torch.Tensor:
        mean = super().divide(total)
        Watched.seen.append(mean.clone())
        return mean


@pytest.mark.parametrize("options", STATES)
def test_the_observer_works_out_what_was_noised(options: dict[str, Any]) -> None:
    algorithm = {"name": "privsgp-vr", "learning_rate": 0.3, **options}
    plan = job_of(algorithm=algorithm, nodes=4, steps=4, dtype="float64").plan
    observed = set_up(plan, 4, 40, Watched).observe(ALONE, 5)
    truth = torch.stack(Watched.seen).numpy()
    for k in range(4):
        for number in range(observed.y.shape[1]):
            node = plan.nodes[number % 4]
            unit = plan.release.noise_std(node, k) / node.expected_batch
            right = truth[k, number] / unit
            np.testing.assert_allclose(observed.y[k, number], right, rtol=1e-8, atol=1e-8)


class Forgetful(StackedContext):
    """Noise of a tenth."""

    def add_noise(
        self, total: torch.Tensor, k: int, *, scale: Any = 1.0, part: int = 0
    ) -> torch.Tensor:
        return super().add_noise(total, k, scale=scale / 10, part=part)


@pytest.mark.slow
@pytest.mark.parametrize("options", [STATES[0], STATES[2]], ids=["private", "public"])
def test_an_audit_accepts_the_code_and_finds_missing_noise(options: dict[str, Any]) -> None:
    job = job_of(algorithm={"name": "privsgp-vr", **options}, nodes=4, steps=4)
    hard = AuditOptions(repetitions=1200, canaries=0, delta=1e-3)
    report = audit_job(job, options=hard)
    assert report.repeated_noises == 0
    assert all(attack.hardest.epsilon <= attack.hardest.certified for attack in report.attacks)
    broken = audit_job(job, options=hard, context=Forgetful)
    assert any(attack.hardest.epsilon > attack.hardest.certified for attack in broken.attacks)
