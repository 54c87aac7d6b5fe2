"""PrivSGP-VR under audit: nothing contradicts its certificate, and missing noise is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from audit_bugs import attacked, job_of

from tacit.analysis.audit.report import AuditOptions
from tacit.training.stacked_context import StackedContext

STATES: list[dict[str, Any]] = [
    {"state": "private"},
    {"state": "private", "momentum": 0.5, "clip_difference": 0.2},
    {"state": "public", "anchor_every": 2},
]


class Forgetful(StackedContext):
    """Noise of a tenth."""

    def add_noise(
        self, total: torch.Tensor, k: int, *, scale: Any = 1.0, part: int = 0
    ) -> torch.Tensor:
        return super().add_noise(total, k, scale=scale / 10, part=part)


@pytest.mark.slow
@pytest.mark.parametrize("options", [STATES[0], STATES[2]], ids=["private", "public"])
def test_attacks_accept_the_code_and_find_missing_noise(options: dict[str, Any]) -> None:
    job = job_of(algorithm={"name": "privsgp-vr", **options}, nodes=4, steps=4)
    hard = AuditOptions(repetitions=1200, canaries=0, delta=1e-3)
    attacks, _ = attacked(job, hard)
    assert not any(attack.hardest.violated for attack in attacks)
    broken, _ = attacked(job, hard, Forgetful)
    assert any(attack.hardest.violated for attack in broken)
