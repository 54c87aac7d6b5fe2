"""The rate of each step: warm-up, then a schedule; against the rule, and loops of their own."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from algorithms import recursion_oracle as oracle
from tacit.algorithms import ALGORITHMS, Options
from tacit.algorithms.options import step_size
from tacit.config import Config
from tacit.errors import InputError

SCHEDULES = ["constant", "linear", "cosine", "inverse-sqrt"]
NODES, STEPS = 5, 8


def rule(schedule, warm_up, k, steps):
    """What multiplies the learning rate at step k."""
    if k < warm_up:
        return (k + 1) / warm_up
    share = (k - warm_up) / (steps - warm_up)
    return {
        "constant": 1.0,
        "linear": 1 - share,
        "cosine": 0.5 + 0.5 * math.cos(math.pi * share),
        "inverse-sqrt": (k - warm_up + 1) ** -0.5,
    }[schedule]


@given(
    st.sampled_from(SCHEDULES),
    st.integers(1, 200).flatmap(lambda K: st.tuples(st.just(K), st.integers(0, K - 1))),
    st.floats(1e-3, 1e3),
)
def test_rates_follow_the_rule_and_are_above_zero(schedule, sizes, rate):
    steps, warm_up = sizes
    options = Options(learning_rate=rate, learning_rate_schedule=schedule, warm_up=warm_up)
    rates = [step_size(options, k, steps) for k in range(steps)]
    wanted = [rate * rule(schedule, warm_up, k, steps) for k in range(steps)]
    np.testing.assert_allclose(rates, wanted, rtol=1e-12)
    assert 0 < min(rates) <= max(rates) <= rate * (1 + 1e-12)
    # Up to the rate, which is reached, and down from there.
    peak = max(warm_up - 1, 0)
    assert rates[peak] == pytest.approx(rate)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warm_up", [0, 1, 3])
@pytest.mark.parametrize("name", ["sgp", "d-psgd"])
def test_a_run_takes_these_steps(name, warm_up, schedule):
    task = oracle.problem("mse", NODES)
    found = tacit.train(
        {
            "task": {"loss": "mse"},
            "topology": {"graph": "complete"},
            "algorithm": {
                "name": name,
                "learning_rate": 0.3,
                "learning_rate_schedule": schedule,
                "warm_up": warm_up,
            },
            "train": {"steps": STEPS, "batch": "all", "dtype": "float64"},
        },
        model=task.module,
        nodes=task.nodes,
    ).parameters.numpy()
    x = np.tile(task.start, (NODES, 1))
    run = oracle.Run(task, lambda k: np.full((NODES, NODES), 1 / NODES), STEPS)
    for k in range(STEPS):
        rate = 0.3 * rule(schedule, warm_up, k, STEPS)
        g = np.array([run.mean_gradient(i, x[i], k) for i in range(NODES)])
        # The push comes after the step, and gossip before it.
        x = run.matrix(k) @ (x - rate * g) if name == "sgp" else run.matrix(k) @ x - rate * g
    np.testing.assert_allclose(found, x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("warm_up", [10, 11, 10**9])
def test_a_warm_up_that_never_ends_is_refused(warm_up):
    with pytest.raises(InputError, match=r"algorithm\.warm_up = \d+: must be below train\.steps"):
        Config(algorithm={"name": "privsgp", "warm_up": warm_up}, train={"steps": 10})
    Config(algorithm={"name": "privsgp", "warm_up": 9}, train={"steps": 10})


@pytest.mark.parametrize("wrong", [-1, 0.5, "1.5", None, float("nan"), 10**10])
def test_other_warm_ups_are_refused(wrong):
    with pytest.raises(InputError, match=r"^algorithm\.warm_up = "):
        Config(algorithm={"name": "privsgp", "warm_up": wrong}, train={"steps": 10})


def test_methods_whose_proof_or_rule_has_no_warm_up_refuse_it():
    """FedSPD-DP bounds a round by the first or the last one, since its steps never grow."""
    for name in ALGORITHMS:
        given = {"algorithm": {"name": name, "warm_up": 2}, "train": {"steps": 10}}
        if name in ("fedspd-dp", "dp-dda") or name.startswith("noised-moments"):
            with pytest.raises(InputError, match=r"algorithm\.warm_up = 2: .* leave it out"):
                Config(**given)
        else:
            Config(**given)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_inverse_steps_of_fedspd_dp_never_fall(schedule):
    """Which the proof of what its rounds reveal takes for granted."""
    kind = ALGORITHMS["fedspd-dp"].options
    options = kind(learning_rate=0.1, learning_rate_schedule=schedule)
    rates = [step_size(options, k, 50) for k in range(50)]
    assert rates == sorted(rates, reverse=True)


def test_what_epsilon_costs_does_not_depend_on_the_rates():
    """Nor does what a node's noise is."""

    def epsilon_of(**options):
        result = tacit.train(
            {
                "task": {"dataset": "digits", "model": "logistic"},
                "nodes": {"count": 3},
                "algorithm": {"name": "privsgp", **options},
                "privacy": {"epsilon": 2.0, "noise_seed": 1},
                "train": {"steps": 4, "batch": "all"},
            }
        )
        return result.epsilon, [node.noise_scale for node in result.plan.nodes]

    assert epsilon_of() == epsilon_of(warm_up=3, learning_rate_schedule="cosine")
