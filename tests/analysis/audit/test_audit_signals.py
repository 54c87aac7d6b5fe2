"""Gaussian signals in one run: their bound in simulated scores, in correct programs, under bugs."""

import json
import math

import numpy as np
import pytest
from audit_bugs import NoiseHalved
from audit_cases import POISSON, REPLACED, WHOLE, job
from gradient_bugs import TwiceTheClip
from scipy.stats import binom, norm

from tacit import privacy
from tacit.analysis.audit import AuditOptions
from tacit.analysis.audit.attacks import choose_target
from tacit.analysis.audit.signals import loudness, most_drawn, signals_attack
from tacit.errors import InputError
from tacit.training.stacked_context import StackedContext

OPTIONS = AuditOptions(signals=1000)
SIMULATED = 150


def attacked(settings, algorithm="privsgp", context=StackedContext, seed=0, signals=1000, **more):
    made = job(settings, algorithm=algorithm, **more)
    return signals_attack(made.plan, choose_target(made.plan, OPTIONS), signals, seed, context)


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 3), (0.2, 40)])
def test_a_correct_program_is_below_its_noise_as_often_as_is_said(rate, steps):
    """Uneven noise, twice or half of it: the factor that is refuted is a wrong one in 10 %."""
    rng, alpha, count = np.random.default_rng(1), 0.1, 60
    moves = 1 / (0.5 + np.arange(steps) % 3)
    moves /= np.linalg.norm(moves) / 3
    weights = moves / np.linalg.norm(moves)
    for loud in (0.5, 2.0):
        wrong = 0
        for _ in range(SIMULATED):
            drawn = rng.random((count, steps)) < rate
            present = loud * (drawn * weights * moves).sum(axis=1) + rng.normal(size=count)
            found = loudness(present, rng.normal(size=count), alpha * (1 if rate == 1 else 0.9))
            most = most_drawn([weights * moves], [count], rate, alpha / 10)
            wrong += found > 0 and most / found < 1 / loud
        assert wrong <= binom.isf(1e-6, SIMULATED, alpha)
        assert rate < 1 or wrong >= binom.ppf(1e-6, SIMULATED, alpha)  # exact


def test_the_most_that_is_drawn_bounds_a_binomial_tail():
    most = most_drawn([np.full(50, 0.3)], [40], 0.1, 1e-3)
    assert binom.sf(most / 0.3 - 1, 2000, 0.1) <= 1e-3
    assert binom.sf(0.97 * most / 0.3 - 1, 2000, 0.1) > 1e-4


@pytest.mark.parametrize("algorithm", ["privsgp", "dpdl"])
@pytest.mark.parametrize("settings", [POISSON, WHOLE], ids=["poisson", "whole"])
def test_one_run_comes_close_to_what_is_certified(settings, algorithm):
    found = attacked(settings, algorithm, signals=6000)
    assert not found.alarm
    assert found.epsilon <= found.hardest.certified
    assert found.epsilon > (0.85 if settings is WHOLE else 0.65) * found.hardest.certified


@pytest.mark.parametrize("context", [NoiseHalved, TwiceTheClip])
@pytest.mark.parametrize("settings", [POISSON, WHOLE], ids=["poisson", "whole"])
def test_planted_bugs_raise_an_alarm(settings, context):
    found = attacked(settings, context=context)
    assert found.alarm
    assert found.guesses["noise less than"] < 0.7
    assert found.epsilon > 1.5 * found.hardest.certified


def test_the_bound_is_that_of_one_gaussian():
    """One step of all records: mu is the mean over the deviation, less what chance may do."""
    found = attacked(WHOLE, steps=1, seed=2)
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
        (POISSON, "privsgp-vr", {"state": "private"}),
    ],
)
def test_other_mechanisms_are_refused(settings, algorithm, options):
    with pytest.raises(InputError, match="noised sums of single records") as caught:
        attacked(settings, algorithm, options=options)
    assert caught.value.where == "signals"
    json.dumps(caught.value.value)
