"""What DO-ADP's messages leak, what its theorem claims, and the clip norms of every method."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from hypothesis import given
from hypothesis import strategies as st
from recursion_runs import context_of, pld

from few import few
from planning_cases import gaussian_delta
from tacit.config import load_config
from tacit.privacy.published import do_adp_noise, do_adp_theorem_delta
from tacit.training.prepare import prepare

DELTA, STEPS, NODES = 1e-5, 12, 4
INPUTS = 3
WIDTH = 2 * INPUTS + 2


def records(inputs=INPUTS, count=20):
    draw = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(count, inputs, generator=draw, dtype=torch.float64),
            torch.randn(count, 2, generator=draw, dtype=torch.float64),
        )
        for _ in range(NODES)
    ]


def job_of(*, name="do-adp", data=None, privacy=None, train=None, **options):
    asked = {"epsilon": 1.0, "delta": DELTA, **(privacy or {})}
    config = {
        "task": {"loss": "mse", "model": "linear"},
        "topology": {"graph": "ring"},
        "algorithm": {"name": name, **options},
        "privacy": {key: value for key, value in asked.items() if value is not None},
        "train": {"steps": STEPS, "batch": "all", "dtype": "float64", **(train or {})},
    }
    return prepare(load_config(config, count=NODES), nodes=data or records())


def plan_of(**changes):
    return job_of(**changes).plan


def active_steps(plan):
    assert plan.release.activity is not None
    return plan.release.activity.active.sum(axis=0).tolist()


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_only_active_steps_are_charged_and_compression_earns_nothing(relation):
    """Closed form: K_active Gaussian releases of sensitivity C, or 2 C."""
    found = []
    for options in (
        {},
        {"compressor": "top-k", "keep": 0.1},
        {"compressor": "rand-k", "keep": 0.5},
    ):
        plan = plan_of(
            activation=0.5,
            consensus_step=0.05,
            privacy={"epsilon": None, "noise_std": 0.2, "relation": relation},
            **options,
        )
        counts = active_steps(plan)
        assert len(set(counts)) > 1
        for node, count in zip(plan.nodes, counts, strict=True):
            assert node.epsilon is not None
            factor = 1 if relation == "add-or-remove-one" else 2
            mu = factor * math.sqrt(count) / node.noise_scale
            assert node.noise_scale == pytest.approx(0.2 * 20)
            assert gaussian_delta(mu, node.epsilon) == pytest.approx(DELTA, rel=1e-4)
        found.append([node.epsilon for node in plan.nodes])
    assert found[0] == found[1] == found[2]


def test_a_budget_is_met_by_each_nodes_own_active_steps():
    plan = plan_of(activation=0.5)
    for node, count in zip(plan.nodes, active_steps(plan), strict=True):
        mu = math.sqrt(count) / node.noise_scale
        assert gaussian_delta(mu, 1.0) == pytest.approx(DELTA, rel=0.02)
        assert gaussian_delta(mu, 1.0) <= DELTA


def test_sampled_batches_against_dp_accounting():
    privacy = {"epsilon": None, "noise_std": 0.3}
    plan = plan_of(activation=0.5, privacy=privacy, train={"batch": 5})
    node, count = plan.nodes[1], active_steps(plan)[1]
    event = PoissonSampledDpEvent(0.25, GaussianDpEvent(0.3 * 5))
    assert node.epsilon == pytest.approx(pld((event, count), delta=DELTA, grid=1e-4), rel=2e-3)


# The claim.


@pytest.mark.parametrize(("p", "keep"), [(1.0, 1.0), (0.8, 0.3)])
def test_published_accounting_gives_the_papers_noise(p, keep):
    plan = plan_of(
        activation=p,
        compressor="top-k",
        keep=keep,
        clip=0.7,
        privacy={"accounting": "published"},
        train={"batch": 1},
    )
    kept = math.ceil(keep * WIDTH) / WIDTH
    sigma = 0.7 * do_adp_noise(
        records=20, steps=STEPS, epsilon=1.0, activation=p, kept=kept, failure=DELTA
    )
    for node in plan.nodes:
        assert plan.release.noise_std(node, 3) == pytest.approx(sigma, rel=1e-6)
        assert node.claimed == pytest.approx(1.0, rel=1e-6)
    assert len({node.noise_scale for node in plan.nodes}) == 1
    run = plan.release.claimed_run(plan.nodes[0])
    assert (run.steps, run.activation, run.kept, run.failure) == (STEPS, p, kept, DELTA)
    said = [condition.text for condition in plan.nodes[0].conditions]
    assert any(f"own delta at this epsilon is {do_adp_theorem_delta(run):.3g}" in t for t in said)


def test_a_claim_about_the_first_steps_counts_silent_ones_too():
    plan = plan_of(activation=0.5)
    whole, half = (plan.release.claimed(plan.nodes[2], steps) for steps in (None, STEPS // 2))
    assert whole is not None
    assert half == pytest.approx(whole / math.sqrt(2), rel=1e-9)
    assert plan.release.claimed(plan.nodes[2], STEPS) == whole


def test_choco_sgd_offers_no_epsilon():
    plan = plan_of(name="choco-sgd", privacy={"epsilon": "none", "delta": None})
    assert not plan.noisy
    assert plan.nodes[0].epsilon is None


# Noise, where it enters.


def test_noise_of_active_nodes_alone():
    """From zero, with zero targets, the first step is noise and nothing else."""
    data = [(x, torch.zeros_like(y)) for x, y in records(inputs=2000)]
    job = job_of(
        data=data,
        activation=0.5,
        compressor="top-k",
        keep=0.3,
        learning_rate=1.0,
        privacy={"epsilon": None, "noise_std": 0.05},
    )
    plan, options = job.plan, job.config.algorithm.options
    definition = job.config.algorithm.definition
    assert plan.release.activity is not None
    seen = set()
    for k in range(4):
        exchange = Recorder(plan)
        context = context_of(job, exchange)
        zeros = torch.zeros(NODES, job.plan.parameters, dtype=torch.float64)
        state = definition.step(definition.start(zeros, options, context), k, options, context)
        for node, active in enumerate(plan.release.activity.active[k].tolist()):
            row, sent = state.x[node].numpy(), exchange.sent[-1][node]
            seen.add(active)
            if not active:
                assert not row.any()
                assert not bool(sent.any())
                assert exchange.sizes[-1][node] == 0
                continue
            assert row.std() == pytest.approx(0.05, rel=4 / math.sqrt(2 * len(row)))
            assert np.count_nonzero(sent.numpy()) == math.ceil(0.3 * len(row))
    assert seen == {True, False}


class Recorder:
    """An exchange that mixes and keeps what was sent."""

    def __init__(self, plan):
        self.matrix = torch.tensor(plan.mixing.at(0).matrix())
        self.sent = []
        self.sizes = []

    def mix(self, k, *messages, coding=None):
        values = [message.value for message in messages]
        self.sent.append(values[0].clone())
        self.sizes.append(None if coding is None else coding.bytes)
        return tuple(self.matrix @ value for value in values)


# Sensitivity, of every method's batch gradient.

NORMS = ("l2", "l1", "coordinate")


def clipped(gradient, clip_norm, bound):
    if clip_norm == "coordinate":
        most = bound / math.sqrt(len(gradient))
        return np.clip(gradient, -most, most)
    size = np.linalg.norm(gradient, 1 if clip_norm == "l1" else 2)
    return np.asarray(gradient * min(1.0, bound / size))


def sum_of(job, at):
    return context_of(job, Recorder(job.plan)).batch_gradient(at, 0).numpy()


@pytest.mark.parametrize("clip_norm", NORMS)
def test_the_world_clips_in_the_norm_that_is_asked_for(clip_norm):
    job = job_of(clip_norm=clip_norm, clip=0.8)
    at = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    right = np.zeros((NODES, WIDTH))
    for node, (inputs, targets) in enumerate(records()):
        weight, bias = at[node, :-2].numpy().reshape(2, INPUTS), at[node, -2:].numpy()
        for x, y in zip(inputs.numpy(), targets.numpy(), strict=True):
            slope = weight @ x + bias - y
            gradient = np.concatenate([np.outer(slope, x).reshape(-1), slope])
            right[node] += clipped(gradient, clip_norm, 0.8)
    np.testing.assert_allclose(sum_of(job, at), right, rtol=1e-10, atol=1e-10)


@few(8, 25)
@given(
    clip_norm=st.sampled_from(NORMS),
    seed=st.integers(0, 1000),
    exponent=st.floats(-8, 8),
    bad=st.sampled_from([1.0, -1.0, 1e300]),
)
def test_one_record_moves_the_sum_by_the_bound_at_most(clip_norm, seed, exponent, bad):
    """Left out: C. Replaced: 2 C. In l2 always, in l1 too where that is what is clipped."""
    draw = torch.Generator().manual_seed(seed)
    at = torch.randn(NODES, WIDTH, generator=draw, dtype=torch.float64) * 10 ** (exponent / 2)
    adversary = torch.randn(2, INPUTS, generator=draw, dtype=torch.float64) * 10**exponent
    base = records()
    sums = []
    for record in (None, adversary[0] * bad, adversary[1]):
        inputs, targets = base[0]
        if record is None:
            changed = (inputs[1:], targets[1:])
        else:
            changed = (torch.cat([record[None], inputs[1:]]), targets)
        job = job_of(clip_norm=clip_norm, clip=0.8, data=[changed, *base[1:]])
        sums.append(sum_of(job, at)[0])
    order, clip = 1 if clip_norm == "l1" else 2, job.plan.release.clip
    left_out = clip.sensitivity("add-or-remove-one", f"l{order}")[0]
    replaced = clip.sensitivity("replace-one", f"l{order}")[0]
    assert (left_out, replaced) == (0.8, 1.6)
    slack = 1 + 1e-9  # the sum of 20 records is rounded
    for with_record in sums[1:]:
        assert np.linalg.norm(with_record - sums[0], order) <= left_out * slack
    assert np.linalg.norm(sums[1] - sums[2], order) <= replaced * slack
