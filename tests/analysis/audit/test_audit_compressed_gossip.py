"""What an observer works out of DO-ADP, whose messages are differences to public copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from audit_bugs import job_of

from tacit.analysis.audit.canaries import ALONE
from tacit.analysis.audit.harness import set_up
from tacit.errors import InputError
from tacit.training.stacked_context import StackedContext

STEPS = 4


class Watched(StackedContext):
    """Keeps the noised means that the nodes compute, which the observer has to work out."""

    seen: list[torch.Tensor]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Watched.seen = []

    def divide(self, total: torch.Tensor) -> torch.Tensor:
        mean = super().divide(total)
        Watched.seen.append(mean.clone())
        return mean


def plan_of(**options: Any) -> Any:
    return job_of(
        nodes=4,
        steps=STEPS,
        dtype="float64",
        topology={"graph": "ring"},
        algorithm={"name": "do-adp", "learning_rate": 0.3, **options},
    ).plan


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("gamma", [1.0, 0.2])
def test_whole_messages_show_every_noised_gradient(momentum: float, gamma: float) -> None:
    plan = plan_of(compressor="none", momentum=momentum, consensus_step=gamma)
    observed = set_up(plan, STEPS, 40, Watched).observe(ALONE, 5)
    assert observed.y.shape[:2] == (STEPS, 40)
    for k, truth in enumerate(Watched.seen):
        for number in range(40):
            node = plan.nodes[number % 4]
            unit = plan.release.noise_std(node, k) / node.expected_batch
            right = truth[number].numpy() / unit
            np.testing.assert_allclose(observed.y[k, number], right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"compressor": "top-k", "keep": 0.5}, "compressor"),
        ({"compressor": "rand-k", "keep": 0.5}, "compressor"),
        ({"compressor": "none", "activation": 0.5}, "activation"),
    ],
)
def test_what_is_kept_back_is_not_audited_yet(options: dict[str, Any], key: str) -> None:
    harness = set_up(plan_of(**options), STEPS, 40, StackedContext)
    with pytest.raises(InputError, match=rf"algorithm\.{key}.*must be .* in an audit"):
        harness.observe(ALONE, 5)
