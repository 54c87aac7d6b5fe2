"""Nodes who pool what they know: the estimate that they make, what it shows, what it must not."""

import itertools

import numpy as np
import pytest
from audit_bugs import attacked, job_of
from audit_cases import PAIRED, job
from pair_bugs import AT_EVERY_STEP
from planting import Bug, planted

from tacit import privacy
from tacit.analysis.audit import AuditOptions, audit_job
from tacit.analysis.audit.colluders import colluders_of, estimate_of
from tacit.analysis.audit.fidelity.pair_noise import ends_finding, pair_sample
from tacit.analysis.audit.laboratory import ALONE, CANARY, in_small, set_up
from tacit.analysis.audit.trade_off import Counts, epsilon_lower
from tacit.errors import InputError
from tacit.privacy import pairwise_multipliers
from tacit.training.shared_noise import PairNoise
from tacit.training.stacked_context import StackedContext

CIRCLE = ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4))


def whole(colluding=1, **more):
    """Four nodes that all share secrets, and every record in every step."""
    return job_of(
        nodes=4,
        steps=2,
        batch="all",
        privacy={"epsilon": 3.0, "noise": "pairwise", "colluding": colluding, "pair_noise": 3.0},
        topology={"graph": "ring", "partners": "complete"},
        **more,
    )


def test_the_estimate_is_the_best_linear_one_without_bias():
    """Against its definition: unit weight on the node, and no less variance in any direction."""
    pairs = PairNoise(CIRCLE, (1.0, 0.5, 2.0, 1.0, 0.7), 3.0, 1)
    own, hidden = np.array(pairs.own), [0, 1, 3, 4]
    covariance = np.diag(own**2)
    for i, j in CIRCLE:
        if 2 not in (i, j):
            side = np.zeros(5)
            side[[i, j]] = 1, -1
            covariance += 9.0 * np.outer(side, side)
    estimate = estimate_of(pairs, 1, hidden)
    unit = estimate.weights / own * own[1] * estimate.gain  # of releases in units of the mean
    assert unit[1] == pytest.approx(1.0)
    assert unit[2] == 0
    least = unit @ covariance @ unit
    assert np.sqrt(least) == pytest.approx(estimate.gain * own[1])
    draw = np.random.default_rng(3)
    for _ in range(20):
        other = unit + np.array([1, 0, 0, 1, 1]) * 0.1 * draw.normal(size=5)
        assert other @ covariance @ other >= least


@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_the_worst_colluders_leave_what_is_certified(colluding):
    plan = whole(colluding).plan
    pairs = plan.release.pairs
    assert pairs is not None
    found = colluders_of(plan, plan.nodes[2], colluding, steps=2)
    assert found is not None
    assert len(found.members) == colluding
    # What is certified allows for draws that are not ideal, and is never more.
    certified = pairwise_multipliers(
        pairs.own, dict.fromkeys(pairs.pairs, pairs.deviation), colluding
    )
    assert found.gains * pairs.own[2] == pytest.approx(certified[2], rel=1e-4)
    assert plan.release.noise_multiplier(plan.nodes[2], 0) <= (
        found.gains[0] * plan.release.own_multiplier(plan.nodes[2], 0) * (1 + 1e-9)
    )
    gains = [
        estimate_of(pairs, 2, [node for node in range(4) if node not in members]).gain
        for members in itertools.combinations([0, 1, 3], colluding)
    ]
    assert found.gains[0] == min(gains)


@pytest.mark.parametrize("algorithm", ["privsgp", "adp2-sgd", "dp-dda"])
def test_the_estimate_holds_the_own_sum_and_noise_of_size_one(algorithm):
    """Where nobody holds a record, along a direction that no gradient has."""
    plan = in_small(job(PAIRED, algorithm=algorithm).plan)
    colluders = colluders_of(plan, plan.nodes[1], 1, 3)
    laboratory = set_up(plan, 3, 1200, StackedContext, colluders)
    observed = laboratory.observe(ALONE, 7)
    bare = observed.y[:, 1::4, 5:]
    counted = bare[np.isfinite(bare)]
    assert len(counted) > 2000
    assert counted.std() == pytest.approx(1.0, abs=5 / np.sqrt(2 * len(counted)))
    assert abs(counted.mean()) < 5 / np.sqrt(len(counted))
    assert np.isnan(observed.y[:, 0]).all()
    sample = pair_sample([observed.trace], plan, copies=laboratory.copies)
    assert sample is not None
    assert ends_finding([sample]).passed


@pytest.mark.slow
def test_one_colluder_more_than_the_guarantee_is_about_learns_more_than_it_says():
    """What is certified against as many as attack is never exceeded; that against fewer is."""
    attacks, certified = attacked(whole(2), AuditOptions(repetitions=1500, canaries=0))
    assert max(attack.epsilon for attack in attacks) <= certified == pytest.approx(3.0, rel=1e-3)
    more = AuditOptions(repetitions=2500, canaries=0, seconds=0.1, colluding=3)
    report = audit_job(whole(2), options=more)
    assert not report.defect
    assert (report.colluding, report.tolerated) == (3, 2)
    assert report.guaranteed_epsilon == pytest.approx(certified)
    assert certified < report.audited_epsilon <= report.certified_epsilon
    assert "what one more would learn, and no defect" in report.verdict


@pytest.mark.slow
@pytest.mark.parametrize("again", [True, False])
def test_a_step_that_is_run_again_with_the_same_pair_noise_shows_its_sum(again):
    """Who subtracts the two messages has them under the own noise alone; with other noise not.

    Every third record joins a batch, so that the canary is often in one of the two batches alone.
    """
    bug = Bug("", "", "", {"": _two_steps}, patches=AT_EVERY_STEP if again else ())
    with planted(bug, "") as planned:
        shown = _by_difference(planned)
        certified = planned.plan.release.mechanism(planned.plan.nodes[0])
    assert (shown > privacy.epsilon(certified, delta=0.02)) == again


def _two_steps():
    return job_of(
        nodes=16,
        steps=2,
        batch=13,
        privacy={
            "epsilon": None,
            "noise_std": 0.25 / 13,
            "noise": "pairwise",
            "colluding": 0,
            "pair_noise": 12.0,
        },
        topology={"graph": "ring", "partners": "complete"},
    )


def _by_difference(planned):
    """What the difference of two steps proves at a delta of 0.02, where each node is judged by it.

    Where pair noise does not cancel in it, nodes are no independent repetitions; but then nothing
    is shown.
    """
    laboratory = set_up(in_small(planned.plan), 2, 1024, StackedContext)
    differences, there = [], []
    for seed in range(3):
        observed = laboratory.observe(ALONE, seed)
        differences.append(observed.y[0, :, CANARY] - observed.y[1, :, CANARY])
        there.append(observed.inserted)
    guessed, inserted = np.abs(np.concatenate(differences)) > 3 * np.sqrt(2), np.concatenate(there)
    counts = Counts(
        positives=int(inserted.sum()),
        true_positives=int((guessed & inserted).sum()),
        negatives=int((~inserted).sum()),
        false_positives=int((guessed & ~inserted).sum()),
    )
    return epsilon_lower(counts, delta=0.02, confidence=0.95)


def test_how_many_collude_is_asked_where_noise_cancels_alone():
    with pytest.raises(InputError, match="colluding"):
        audit_job(job_of(batch="all"), options=AuditOptions(colluding=1))
    with pytest.raises(InputError, match="below 4"):
        audit_job(whole(), options=AuditOptions(colluding=4))


def test_secure_sums_are_not_audited():
    algorithm = {"name": "dp-sgd"}
    planned = job_of(algorithm=algorithm, privacy={"aggregation": "secure-sum"}, nodes=4)
    with pytest.raises(InputError, match=r"privacy\.aggregation"):
        audit_job(planned)
