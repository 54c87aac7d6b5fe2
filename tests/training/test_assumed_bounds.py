"""A bound that is assumed and not enforced: the paper's noise and claim, and no epsilon."""

import math

import pytest
import tomli_w
import torch

import tacit
from experiments import tacit as command_line
from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit.procedure import audit
from tacit.analysis.audit.report import AuditOptions
from tacit.analysis.claims import claims_document
from tacit.config import load_config
from tacit.errors import InputError, NotPrivateWarning
from tacit.privacy.mechanisms.clipping import ASSUMED, Clipping
from tacit.training.prepare import prepare

CLAIMED = sorted(name for name, row in ALGORITHMS.items() if row.claims.formula is not None)
NODES, STEPS, BOUND = 4, 6, 0.01


def settings(name, **changes):
    """A run whose records' gradients are far longer than the bound."""
    algorithm = {"name": name, "learning_rate": 0.05, "clip": BOUND, "clip_norm": ASSUMED}
    privacy = {"epsilon": 1.0, "delta": 1e-5, "accounting": "published"}
    return {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": NODES, "partition": "equal", "per_node": 300},
        "algorithm": algorithm | changes.pop("algorithm", {}),
        "privacy": privacy | changes.pop("privacy", {}),
        "train": {"steps": STEPS, "batch": 1, "dtype": "float64"} | changes.pop("train", {}),
        **changes,
    }


def noise(result):
    """Deviation in the batch mean of a node's first step, over all nodes alike."""
    plan = result.plan
    found = {plan.release.noise_std(node, 0) / node.expected_batch for node in plan.nodes}
    assert len(found) == 1
    return found.pop()


@pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")
@pytest.mark.parametrize("name", CLAIMED)
def test_a_claim_and_no_epsilon(name, tmp_path):
    """The noise is that of the same run with the bound enforced, and so is the claim."""
    result = tacit.train(settings(name), out=tmp_path / "run")
    enforced = prepare(load_config(settings(name, algorithm={"clip_norm": "l2"}))).plan
    plan = result.plan
    assert [node.noise_scale for node in plan.nodes] == pytest.approx(
        [node.noise_scale for node in enforced.nodes], rel=1e-12
    )
    assert [node.claimed for node in plan.nodes] == [node.claimed for node in enforced.nodes]
    assert result.epsilon == (None,) * NODES
    assert not result.private
    assert all(claim.claimed is not None for claim in result.claims)
    assert "assumed" in str(plan.not_private_reason)
    assert "no epsilon holds" in str(plan.warnings)
    assert not (tmp_path / "run" / "ledger").exists()
    with pytest.raises(InputError, match="no epsilon holds"):
        plan.release.mechanism(plan.nodes[0])


@pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")
@pytest.mark.parametrize("name", ["const-d2p", "do-adp", "privsgp", "privsgp-vr"])
def test_gradients_are_as_long_as_they_are(name):
    """The run that clips nothing and is given the same noise, and not the one that clips."""
    seeded = {"noise_seed": 3}
    assumed = tacit.train(settings(name, privacy=seeded))
    clipped = tacit.train(settings(name, algorithm={"clip_norm": "l2"}, privacy=seeded))
    given = settings(name, algorithm={"clip": None, "clip_norm": "l2"})
    given["privacy"] = {"delta": 1e-5, "noise_std": noise(assumed), "accounting": "none", **seeded}
    unclipped = tacit.train(given)
    torch.testing.assert_close(assumed.parameters, unclipped.parameters, rtol=1e-9, atol=1e-12)
    assert (clipped.parameters - assumed.parameters).norm() > 0.01


def test_no_sensitivity_is_finite():
    clip = Clipping("l2", (1.0, 2.0), enforced=False)
    assert clip.sensitivity("add-or-remove-one") == (math.inf, math.inf)
    assert (clip.bound(1), clip.applied(1), clip.attacked(1)) == (2.0, None, 16.0)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"privacy": {"accounting": "certified"}}, "algorithm.clip_norm"),
        ({"privacy": {"epsilon": "none", "accounting": "certified"}}, "algorithm.clip_norm"),
        ({"privacy": {"ledger": "ledgers"}}, "privacy.ledger"),
        ({"algorithm": {"name": "dpdo"}}, "privacy.accounting"),
        ({"algorithm": {"name": "dp2-sgd"}}, "privacy.accounting"),
        ({"algorithm": {"name": "sgp"}}, "privacy.epsilon"),
    ],
)
def test_what_it_cannot_go_with(changes, where):
    name = changes.get("algorithm", {}).get("name", "privsgp")
    with pytest.raises(InputError) as refused:
        prepare(load_config(settings(name, **changes)))
    assert refused.value.where == where


def test_the_command_line_says_so(tmp_path):
    file = tmp_path / "assumed.toml"
    file.write_text(tomli_w.dumps(settings("const-d2p")))
    planned = command_line("plan", file)
    assert "assumed: nothing is clipped" in planned.out
    assert "NOT PRIVATE: the bound of gradients is assumed" in planned.out
    (row, *_) = claims_document(file).rows
    assert (row.certified_infinite, row.lower, row.verdict) == (True, None, "not determined")
    assert row.claimed == pytest.approx(1.0)


@pytest.mark.slow
def test_an_audit_shows_what_the_claim_hides():
    """Gradients beyond the bound: more than the claim is shown, and nothing accuses the program."""
    config = load_config(settings("const-d2p", train={"steps": 20, "batch": "all"}))
    report = audit(config, options=AuditOptions(repetitions=400, canaries=100, seconds=0.3))
    assert report.certified_epsilon == math.inf
    assert report.claimed_epsilon is not None
    assert max(attack.epsilon for attack in report.attacks) > report.claimed_epsilon
    assert not report.failures


def test_the_library_warns():
    with pytest.warns(NotPrivateWarning, match="assumed"):
        tacit.train(settings("do-adp"))


def test_an_enforced_bound_is_private():
    config = load_config(settings("do-adp", algorithm={"clip_norm": "l2"}))
    assert config.not_private_reason is None
    assert config.accounted
