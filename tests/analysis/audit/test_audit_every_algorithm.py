"""Every private algorithm under attack: nothing beyond its certificate, and not nothing.

The tests of fidelity are asked of each of them by `test_no_correct_program_is_accused`.
"""

from __future__ import annotations

from typing import Any

import pytest
from audit_bugs import attacked, job_of

from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit import AuditOptions

pytestmark = pytest.mark.slow

OPTIONS = AuditOptions(repetitions=2000, canaries=0)
NOISE = 0.4  # over the clipping bound: a large budget
AUDITED: list[tuple[str, dict[str, Any], Any]] = [
    ("privsgp", {"momentum": 0.5, "final_mixing": 2}, 10),
    ("privsgp-vr", {"state": "private"}, 10),
    ("privsgp-vr", {"anchor_every": 2}, 10),
    ("dyn-d2p", {}, 10),
    ("dyn-c", {}, 10),
    ("dyn-mu", {}, 10),
    ("const-d2p", {}, 10),
    ("dyn-general", {}, 10),
    ("private-gradient-tracking", {"momentum": 0.5}, 10),
    ("dp2-sgd", {}, 10),
    ("adp2-sgd", {}, 10),
    ("do-adp", {"compressor": "top-k", "keep": 0.5, "momentum": 0.3}, 10),
    ("dp-dda", {"activation": 0.6, "regulariser": "l1"}, 10),
    ("dpdo", {}, 10),
    ("cpgt", {"compressor": "rand-k", "keep": 0.5}, "all"),
    ("dpdl", {"momentum": 0.5}, 10),
    ("ddp-admm-gradient", {"penalty": 3.0}, 10),
    ("dp-madmm-gradient", {"penalty_growth": 1.2, "dual_step": 0.4}, 10),
    ("dp-radmm-gradient", {}, 10),
    ("dp-sgd", {"clients_per_round": 3}, 10),
    ("dp-fedavg", {"local_steps": 2}, 10),
    ("dp-admm", {}, 10),
    ("fedspd-dp", {"local_steps": 2}, 10),
    ("fedspd-dp", {"state": "private"}, "all"),
    ("soteriafl-saga", {"compressor": "rand-k", "keep": 0.5}, 10),
    ("soteriafl-svrg", {"anchor_every": 2}, 10),
    ("soteriafl-svrg", {"state": "private", "anchor_every": 2}, 10),
    ("dp-srm", {}, 10),
    ("ldp-svrg", {"anchor_every": 2}, 10),
    ("ldp-spider", {"anchor_every": 3}, 10),
    ("noised-moments", {"learning_rate": 1.0}, "all"),
    ("noised-moments-server", {"learning_rate": 1.0}, "all"),
]


def test_none_is_left_out():
    private = {name for name, row in ALGORITHMS.items() if row.private}
    assert {name for name, _, _ in AUDITED} == private


@pytest.mark.parametrize(
    ("name", "options", "batch"), AUDITED, ids=lambda value: str(value).replace(" ", "")
)
def test_attacks_on(name, options, batch):
    gossip = ALGORITHMS[name].graph.weights == "doubly-stochastic"
    divisor = 1 if name == "dp-fedavg" else 40 if batch == "all" else batch
    job = job_of(
        algorithm={"name": name, "clip": 1.0, **options},
        topology={"graph": "ring"} if gossip else {},
        privacy={"epsilon": None, "noise_std": NOISE / divisor},
        nodes=4,
        steps=3,
        batch=batch,
    )
    attacks, certified = attacked(job, OPTIONS)
    assert not any(attack.alarm or attack.hardest.violated for attack in attacks)
    assert 0.1 < max(attack.epsilon for attack in attacks) <= certified
