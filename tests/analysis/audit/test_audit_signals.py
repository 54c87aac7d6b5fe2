"""Gaussian signals in one run: their bound in simulated scores, in correct programs, under bugs."""

import json
import math

import numpy as np
import pytest
from audit_bugs import NoiseHalved
from audit_cases import PAIRED, POISSON, REPLACED, WHOLE, job
from gradient_bugs import TwiceTheClip
from scipy.stats import binom, norm

from tacit import privacy
from tacit.analysis.audit import AuditOptions
from tacit.analysis.audit.attacks import choose_target, signals_attack
from tacit.analysis.audit.trade_off import loudness
from tacit.errors import InputError
from tacit.training.stacked_context import StackedContext

SIMULATED = 300


def attacked(settings, algorithm="privsgp", context=StackedContext, signals=1000, **more):
    made, asked = job(settings, algorithm=algorithm, **more), AuditOptions(signals=signals)
    return signals_attack(made.plan, choose_target(made.plan, asked), asked, context)


@pytest.mark.parametrize("loud", [0.5, 2.0])
def test_more_than_is_there_is_said_as_often_as_is_stated(loud):
    """Of signals that are drawn at one of five of 40 uneven steps: exactly 10 %."""
    rng, count, steps, wrong = np.random.default_rng(1), 60, 40, 0
    moves = 1 / (0.5 + np.arange(steps) % 3)
    weights = moves / np.linalg.norm(moves)
    for _ in range(SIMULATED):
        means = loud * ((rng.random((count, steps)) < 0.2) * weights * moves).sum(axis=1)
        found = loudness(means + rng.normal(size=count), rng.normal(size=count), 0.1)
        wrong += found > means.sum()
    assert binom.ppf(1e-6, SIMULATED, 0.1) <= wrong <= binom.isf(1e-6, SIMULATED, 0.1)


@pytest.mark.parametrize("algorithm", ["privsgp", "dpdl"])
@pytest.mark.parametrize("settings", [POISSON, WHOLE], ids=["poisson", "whole"])
def test_one_run_comes_close_to_what_is_certified(settings, algorithm):
    found = attacked(settings, algorithm, signals=6000)
    assert not found.alarm
    assert found.epsilon <= found.hardest.certified
    assert found.epsilon > 0.85 * found.hardest.certified


@pytest.mark.parametrize("context", [NoiseHalved, TwiceTheClip])
@pytest.mark.parametrize("settings", [POISSON, WHOLE], ids=["poisson", "whole"])
def test_planted_bugs_raise_an_alarm(settings, context):
    found = attacked(settings, context=context)
    assert found.alarm
    assert found.guesses["noise less than"] < 0.7
    assert found.epsilon > 1.5 * found.hardest.certified


class NoNoise(StackedContext):
    """A defect: the sum leaves as it is."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return total.clone()


@pytest.mark.slow
def test_no_noise_at_all_is_an_alarm():
    assert attacked(POISSON, context=NoNoise).alarm
    assert loudness(np.ones(20), np.full(20, 1e-12), 0.05) > 1e4


def test_the_bound_is_that_of_one_gaussian():
    """One step of all records: mu is the mean over the deviation, less what chance may do."""
    found = attacked(WHOLE, steps=1)
    node = job(WHOLE, steps=1).plan.nodes[0]
    multiplier = job(WHOLE, steps=1).plan.release.noise_multiplier(node, 0)
    mu = 1 / multiplier / found.guesses["noise less than"]
    assert found.epsilon == pytest.approx(
        privacy.epsilon(privacy.Gaussian([1 / mu]), delta=1e-3), rel=1e-3
    )
    spread = math.sqrt((2 + mu**2 / 2) / 500) * norm.isf((1 - found.confidence) / 2)
    assert 1 / multiplier - 4 * spread < mu < 1 / multiplier + spread


@pytest.mark.parametrize(
    ("settings", "algorithm", "options"),
    [
        (REPLACED, "privsgp", {}),
        (POISSON, "cpgt", {}),
        (PAIRED, "privsgp", {}),
        (POISSON | {"privacy": {"aggregation": "secure-sum"}}, "dp-sgd", {}),
        (POISSON, "privsgp-vr", {"state": "private"}),
    ],
)
def test_other_mechanisms_are_refused(settings, algorithm, options):
    with pytest.raises(InputError, match="sums of single records") as caught:
        attacked(settings, algorithm, options=options)
    assert caught.value.where == "signals"
    json.dumps(caught.value.value)
