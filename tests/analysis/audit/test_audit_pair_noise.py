"""The law that draws of pairs are held to, and what they are compared with."""

from dataclasses import replace

import numpy as np
import pytest
from audit_cases import PAIRED, job
from scipy.special import ndtr

from tacit.analysis.audit.fidelity import pair_noise
from tacit.analysis.audit.fidelity.pair_noise import ends_finding, keys_finding, pair_sample
from tacit.analysis.audit.recorder import run_traced, seeded
from tacit.privacy.noise.pairwise import LEAST_POINTS
from tacit.training.processes.communication import local_exchange
from tacit.training.stacked_context import StackedContext


class Fixed:
    """Coins that all fall alike."""

    def __init__(self, value):
        self.value = value

    def random(self, shape):
        return np.full(shape, self.value)


def test_every_number_has_an_interval_of_its_chance_and_none_overlap():
    numbers = np.arange(-300.0, 301.0)
    ends = [ndtr(pair_noise._scores(numbers, Fixed(u))) for u in (0.0, 1.0)]  # type: ignore[arg-type]
    low, high = np.minimum(*ends), np.maximum(*ends)
    assert high[:-1] == pytest.approx(low[1:], rel=1e-9, abs=1e-13)
    every = np.arange(-3000, 3001)
    weights = np.exp(-(every**2) / (2 * LEAST_POINTS**2))
    chances = np.exp(-(numbers**2) / (2 * LEAST_POINTS**2)) / weights.sum()
    assert high - low == pytest.approx(chances, abs=1e-13)


def test_a_single_value_that_a_node_adds_besides_is_found():
    planned = job(PAIRED)
    trace = traced(planned)
    sample = pair_sample([trace], planned.plan)
    assert sample is not None
    assert ends_finding([sample]).passed
    assert sample.noise.releases == 3 * 6
    release = trace.releases[1]
    assert release.offsets is not None
    release.offsets[2, 3] += 1e-6 * float(release.offsets.abs().max())
    off = pair_sample([trace], planned.plan)
    assert off is not None
    assert (off.wrong, off.worst) == (1, "node 2 at step 1")
    assert not ends_finding([sample, off]).passed


def test_what_stays_in_the_sum_is_the_own_noise():
    """All that is added to the four nodes cancels in the mean."""
    trace = traced(job(PAIRED))
    for release in trace.releases:
        assert release.offsets is not None
        batches = [trace.plan.nodes[node].expected_batch for node in release.nodes]
        mean = release.offsets.numpy() / np.array(batches)[:, None]
        assert np.abs(mean).max() > 0.1
        assert np.abs(mean.sum(0)).max() < 1e-12 * np.abs(mean).max()


def test_every_start_has_other_keys():
    found = keys_finding(job(PAIRED))
    assert found.passed
    assert found.saw == "6 pairs drew other noise after a second start."


def traced(planned):
    plan = seeded(planned.plan, 11)
    return run_traced(
        plan,
        planned.model,
        planned.train,
        local_exchange(replace(planned, plan=plan)),
        context=StackedContext,
        steps=3,
    )
