"""What FedSPD-DP leaks: how far a record moves what is sent, the noise on it, and its epsilon."""

import itertools
import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from recursion_runs import context_of, drawn_in, gaussian_epsilon, pld

from tacit import data, privacy
from tacit.algorithms import NodeRun
from tacit.algorithms.fedspd_dp import FEDSPD_DP, ROUNDING, FedspdOptions, PrimalDualState
from tacit.config import load_config
from tacit.privacy import published
from tacit.training.prepare import prepare

CLIP, BATCH, LOCAL, RECORDS = 0.3, 2, 3, 8
FIXED = {"sampling": "fixed", "relation": "replace-one"}
POISSON = {"sampling": "poisson", "relation": "add-or-remove-one"}


def job_of(records, options, budget, *, sampled=FIXED, loss="logistic", **train):
    config = {
        "task": {"loss": loss, "model": "logistic"},
        "algorithm": {"name": "fedspd-dp", "clip": CLIP, **options},
        "privacy": {"delta": 1e-4} | budget,
        "train": {"batch": BATCH, "dtype": "float64", "steps": 4, **train},
    }
    if budget.get("epsilon") != "none":
        config["privacy"] |= {"relation": sampled["relation"], "noise_seed": 2}
    config["train"] |= {"sampling": sampled["sampling"]}
    return prepare(load_config(config, count=len(records)), nodes=records)


def context_with(job, records):
    """The job's context, on other records of the same sizes: the coins are the same."""
    return context_of(job, train=data.stack(records, job.dtype, job.device))


def one_client(draw, inputs=2):
    return data.Dataset(
        torch.from_numpy(draw.normal(size=(RECORDS, inputs))),
        torch.from_numpy(draw.choice([-1.0, 1.0], RECORDS)),
    )


def changed(records, place, row, target):
    inputs, targets = records.inputs.clone(), records.targets.clone()
    inputs[place], targets[place] = torch.from_numpy(row), target
    return data.Dataset(inputs, targets)


def smoothness(*records):
    return max(float(one.inputs.norm(dim=1).max()) ** 2 + 1 for one in records) / 4


def messages(job, records, broadcasts):
    """What the client sends in each round, for the same broadcasts: a transcript that is given."""
    context, options = context_with(job, [records]), job.config.algorithm.options
    server = [torch.from_numpy(row)[None] for row in broadcasts]
    state = FEDSPD_DP.start(server[0].clone(), options, context)
    sent = []
    for k, x_0 in enumerate(server):
        state = FEDSPD_DP.step(state._replace(server=x_0), k, options, context)
        sent.append(state.message[0].numpy())
    return sent


def drawn(job, k):
    """The records of each mini-batch of a round."""
    records = drawn_in(job.plan)
    return [set(records(k, 0, part).tolist()) for part in range(job.plan.release.local_steps)]


WAYS = ("disjoint", "with-replacement")
GRID = list(itertools.product(("public", "private"), WAYS, ("fixed", "poisson")))


@pytest.mark.parametrize(("state", "way", "method"), GRID)
@pytest.mark.parametrize("gamma", [0.3, 60.0])
def test_a_record_moves_messages_no_further_than_is_stated(state, way, method, gamma):
    """Logistic regression, for a given transcript; gamma below and above L J / (2 b)."""
    draw = np.random.default_rng(11)
    base = one_client(draw)
    sampled = {"sampling": method, "relation": "replace-one"}
    options = {"state": state, "sampling": way, "local_steps": LOCAL, "inverse_step": gamma}
    options |= {"penalty": 1.5, "regulariser": "l1", "regularisation": 0.05, "smoothness": 25.0}
    noisy = job_of([base], options, {"noise_std": 0.7}, sampled=sampled, steps=3)
    quiet = job_of([base], options, {"epsilon": "none"}, sampled=sampled, steps=3)
    node = noisy.plan.nodes[0]
    stated = noisy.plan.release.mechanism(node)
    assert not isinstance(stated, privacy.ClientSampling | privacy.Composed)
    multipliers = np.array(stated.noise_multiplier)
    std = 2 * noisy.plan.release.noise_std(node, 0) / BATCH / (gamma + 1.5)
    hits = [any(0 in batch for batch in drawn(quiet, k)) for k in range(3)]
    closest = 0.0
    for _ in range(5):
        rows = draw.normal(size=(2, 2))
        rows *= 9 / np.maximum(9, np.linalg.norm(rows, axis=1, keepdims=True))
        rows *= draw.choice([0.3, 1.0, 4.0])
        pair = [changed(base, 0, row, y) for row, y in zip(rows, (1.0, -1.0), strict=True)]
        assert smoothness(*pair) <= 25
        broadcasts = draw.normal(size=(3, 3)) * draw.choice([0.1, 1.0])
        one, two = (messages(quiet, records, broadcasts) for records in pair)
        shifts = np.linalg.norm(np.array(one) - np.array(two), axis=1) / std
        if state == "public":
            # Rounds compose only for a dual variable that is the same in both.
            limit = np.where(hits, 2 / multipliers, 0.0)
            first = hits.index(True)
            assert (shifts[:first] == 0).all()
            assert shifts[first] <= limit[first] * (1 + 1e-9)
            closest = max(closest, shifts[first] / limit[first])
        else:
            total = sum(2 / z for z, hit in zip(multipliers, hits, strict=True) if hit)
            assert np.linalg.norm(shifts) <= total * (1 + 1e-9)
            closest = max(closest, np.linalg.norm(shifts) / total)
    assert closest > 0


def round_by_hand(state, gradients, gamma, rho, public):
    """A round in one dimension: state (x, lambda, x_0) to state, the mean iterate and y."""
    x, dual, server = state
    x = server if public else x
    total = 0.0
    for g in gradients:
        x = (gamma * x + rho * server + dual - g) / (gamma + rho)
        total += x / len(gradients)
    dual = dual + rho * (server - total)
    return (x, dual, server), total, total - dual / rho


def node_run(options, released, **changes):
    settings = {
        "options": options,
        "records": RECORDS,
        "rate": BATCH / RECORDS,
        "expected_batch": float(BATCH),
        "sampling": "fixed",
        "relation": "replace-one",
        "coordinates": 0,
        "nodes": 1,
        "steps": 6,
        "released": released,
        "noise_multiplier": [1.0] * len(released),
        "clip": [CLIP] * len(released),
        "delta": 1e-4,
        "constant": 1.0,
        "local_steps": options.local_steps,
        "disjoint": options.sampling == "disjoint",
        "trust_model": "server",
    }
    return NodeRun(**{**settings, **changes})


def multipliers_of(run):
    """As stated, but for what rounding may add to the sensitivity."""
    stated = FEDSPD_DP.releases.mechanism(run).noise_multiplier
    if run.options.state == "private":
        return list(stated)
    noise = run.noise_multiplier
    return [z / (z / m - ROUNDING) for z, m in zip(noise, stated, strict=True)]


@pytest.mark.parametrize(("gamma", "rho"), [(0.5, 2.0), (9.0, 1.0)])
def test_any_loss_is_bounded_and_the_bound_is_attained(gamma, rho):
    """Gradients that jump from -C to C as x moves at all: neither smooth nor convex."""
    options = FedspdOptions(penalty=rho, inverse_step=gamma, local_steps=LOCAL, clip=CLIP)
    # The replaced record is in the first mini-batch; in later ones all gradients are opposed.
    both = [
        round_by_hand((0.0, 0.0, 0.4), gradients, gamma, rho, public=True)[1]
        for gradients in ([CLIP / BATCH, CLIP, CLIP], [-CLIP / BATCH, -CLIP, -CLIP])
    ]
    (z,) = multipliers_of(node_run(options, [0]))
    unit = CLIP / BATCH / (gamma + rho)
    assert abs(both[0] - both[1]) == pytest.approx(2 * unit / z, rel=1e-9)
    # Left out, with Poisson sampling: one hit, and all the others in the next mini-batch.
    (z,) = multipliers_of(node_run(options, [0], **POISSON))
    others = (RECORDS - 1) * CLIP / BATCH
    pair = ([CLIP / BATCH, others, 0.0], [0.0, -others, 0.0])
    left, without = (
        round_by_hand((0.0, 0.0, 0.4), gradients, gamma, rho, public=True)[1] for gradients in pair
    )
    assert abs(left - without) == pytest.approx(unit / z, rel=1e-9)


@pytest.mark.parametrize("relation", ["fixed", "poisson"])
def test_a_private_state_under_any_loss(relation):
    """After a hit in round t, every gradient of every later round is moved by 2 C."""
    gamma, rho, rounds = 6.0, 1.0, 4
    options = FedspdOptions(
        penalty=rho, inverse_step=gamma, local_steps=LOCAL, clip=CLIP, state="private"
    )
    sampled = FIXED if relation == "fixed" else POISSON
    stated = multipliers_of(node_run(options, list(range(rounds)), **sampled))
    double = 2.0 if relation == "fixed" else 1.0
    most = BATCH if relation == "fixed" else RECORDS
    unit = 2 * CLIP / BATCH / (gamma + rho)  # of the noise on y, at a multiplier of 1
    draw = np.random.default_rng(0)
    for start in range(rounds):
        for trial in range(6):
            flips = draw.choice([-1.0, 1.0], (rounds, LOCAL)) if trial else np.ones((rounds, LOCAL))
            states, shifts = [(0.2, 0.1, 0.4), (0.2, 0.1, 0.4)], []
            for t in range(rounds):
                gradients = np.zeros((2, LOCAL))
                if t > start:
                    gradients = np.outer([1, -1], flips[t]) * CLIP * most / BATCH
                if t == start:
                    gradients[:, 1:] = np.outer([1, -1], flips[t][1:]) * CLIP * most / BATCH
                    gradients[:, 0] = [CLIP / BATCH, 0.0 if double == 1 else -CLIP / BATCH]
                both = [
                    round_by_hand(s, list(g), gamma, rho, public=False)
                    for s, g in zip(states, gradients, strict=True)
                ]
                states = [each[0] for each in both]
                shifts.append((both[0][2] - both[1][2]) / unit)
            assert np.linalg.norm(shifts) <= double / stated[start] * (1 + 1e-9)


def test_rounds_that_run_again_count_every_copy():
    options = FedspdOptions(
        penalty=1.0, inverse_step=6.0, local_steps=2, state="private", smoothness=2.0
    )
    once = multipliers_of(node_run(options, [0, 2, 3]))
    again = multipliers_of(node_run(options, [0, 2, 3, 2, 3]))
    assert again[0] < once[0]
    assert again[0] > once[0] / math.sqrt(2)
    assert again[1:3] == pytest.approx([z / math.sqrt(2) for z in once[1:]], rel=1e-3)
    assert again[3:] == again[1:3]
    first = multipliers_of(node_run(options, [0, 2]))
    assert (np.array(first) >= once[:2]).all()


def test_smoothness_states_the_sharper_bound():
    """PRIVACY: mean of theta^s for disjoint mini-batches, their sum over hits otherwise."""
    common = {"penalty": 2.0, "inverse_step": 6.0, "local_steps": LOCAL}
    theta = 6.0 / 8.0
    run = node_run(FedspdOptions(**common, smoothness=12.0), [0, 1])
    stated = FEDSPD_DP.releases.mechanism(run)
    mean = np.mean([theta**s for s in range(LOCAL)])
    assert isinstance(stated, privacy.FixedBatchGaussian)
    assert (stated.batch, stated.records) == (BATCH * LOCAL, RECORDS)
    assert multipliers_of(run) == pytest.approx([1 / mean] * 2, rel=1e-9)
    many = node_run(FedspdOptions(**common, smoothness=12.0, sampling="with-replacement"), [0])
    tails = [sum(theta**s for s in range(LOCAL - r)) / LOCAL for r in range(LOCAL)]
    assert multipliers_of(many) == pytest.approx([1 / sum(tails)], rel=1e-9)
    assert FEDSPD_DP.releases.mechanism(many).rate == pytest.approx(
        math.ceil(8 * (1 - 0.75**3)) / 8
    )
    # Poisson: up to J records may stand in a sum that is divided by b.
    poisson = node_run(FedspdOptions(**common, smoothness=3.0), [0], **POISSON)
    assert multipliers_of(poisson) == pytest.approx([1 / mean], rel=1e-9)
    steeper = node_run(FedspdOptions(**common, smoothness=3.2), [0], **POISSON)
    assert multipliers_of(steeper)[0] < 1 / mean
    assert isinstance(FEDSPD_DP.releases.mechanism(poisson), privacy.SampledGaussian)
    assert FEDSPD_DP.releases.mechanism(poisson).rate == pytest.approx(LOCAL * BATCH / RECORDS)
    # One local step needs no smoothness, and all records at every step are a Gaussian.
    single = node_run(FedspdOptions(penalty=2.0, inverse_step=6.0), [0, 4])
    assert multipliers_of(single) == pytest.approx([1.0, 1.0], rel=1e-9)
    whole = node_run(FedspdOptions(), [0], rate=1.0, expected_batch=8.0)
    assert isinstance(FEDSPD_DP.releases.mechanism(whole), privacy.Gaussian)


def test_no_round_of_a_growing_schedule_is_above_what_is_stated():
    common = {"penalty": 8.0, "local_steps": LOCAL, "learning_rate": 0.9}
    options = FedspdOptions(**common, learning_rate_schedule="cosine", smoothness=4.0)
    (stated,) = set(multipliers_of(node_run(options, [0, 3], steps=40)))
    for k in range(40):
        gamma = 1 / (0.9 * (1 + math.cos(math.pi * k / 40)) / 2)
        alone = FedspdOptions(**common, inverse_step=gamma, smoothness=4.0)
        assert multipliers_of(node_run(alone, [0]))[0] >= stated


# Noise


@pytest.mark.parametrize("state", ["public", "private"])
def test_noise_of_the_planned_size_is_on_what_is_sent(state):
    """A model that is zero, and targets that are zero: noise is all that moves."""
    draw = torch.Generator().manual_seed(2)
    nodes = [
        data.Dataset(torch.randn(count, 3000, generator=draw), torch.zeros(count, 1))
        for count in (4, 6)
    ]
    options = {"state": state, "local_steps": 2, "inverse_step": 3.0, "penalty": 2.0}
    job = job_of(nodes, options, {"noise_std": 0.05, "accounting": "none"}, loss="mse")
    context, options = context_with(job, nodes), job.config.algorithm.options
    x = job.model.start(2, job.dtype, job.device)
    after = FEDSPD_DP.step(FEDSPD_DP.start(x, options, context), 0, options, context)
    assert isinstance(after, PrimalDualState)
    unit = 1 / (3.0 + 2.0)
    for row, node in zip(after.message.numpy(), job.plan.nodes, strict=True):
        assert job.plan.release.noise_std(node, 0) == pytest.approx(0.05 * 2)
        assert row.std() == pytest.approx(2 * 0.05 * unit, rel=4 / math.sqrt(2 * len(row)))
        assert abs(row.mean()) < 4 * row.std() / math.sqrt(len(row))
    # What the server never sees is not noised; lambda is, where the state is public.
    assert not after.average.any()
    dual = -0.5 * 2.0 * after.message if state == "public" else torch.zeros_like(x)
    torch.testing.assert_close(after.dual, dual)
    torch.testing.assert_close(after.server[0], after.message.mean(0))


# Epsilon


def test_certified_epsilon_against_closed_form_and_another_accountant():
    nodes = [one_client(np.random.default_rng(1))] * 2
    job = job_of(nodes, {}, {"noise_std": 0.5}, sampled=POISSON, batch="all")
    mu = math.sqrt(4) * CLIP * (1 + ROUNDING) / (0.5 * RECORDS)
    found = job.plan.nodes[0].epsilon
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-4), rel=1e-4)
    options = {"local_steps": 2, "inverse_step": 20.0, "penalty": 5.0, "smoothness": 10.0}
    job = job_of(nodes, options, {"noise_std": 0.4}, sampled=POISSON)
    z = 0.4 * BATCH / CLIP / (1 + 20 / 25) * 2
    event = PoissonSampledDpEvent(2 * BATCH / RECORDS, GaussianDpEvent(z))
    assert job.plan.nodes[0].epsilon == pytest.approx(pld((event, 4), grid=1e-4), rel=5e-3)


def test_clients_that_are_active_at_other_rounds_are_costed_apart():
    nodes = [one_client(np.random.default_rng(1)) for _ in range(4)]
    options = {"state": "private", "smoothness": 9.0, "inverse_step": "paper"}
    options |= {"clients_per_round": 2}
    job = job_of(nodes, options, {"noise_std": 1.0}, steps=5)
    for node in job.plan.nodes:
        assert node.epsilon == job.plan.release.epsilon(node, [(0, 5)])
    rounds = [tuple(job.plan.release.active_steps(node)) for node in job.plan.nodes]
    assert len(set(rounds)) == len({node.epsilon for node in job.plan.nodes}) > 1


@pytest.mark.parametrize("state", ["public", "private"])
@pytest.mark.parametrize("total", [True, False])
def test_the_published_formula_gives_the_papers_noise(state, total):
    nodes = [one_client(np.random.default_rng(i)) for i in range(4)]
    options = {"state": state, "local_steps": 3, "inverse_step": "paper", "clients_per_round": 2}
    options |= {"penalty": 20.0, "smoothness": 9.0}
    budget = {"accounting": "published", ("epsilon" if total else "epsilon_per_round"): 0.8}
    job = job_of(nodes, options, budget, steps=6)
    known = {"records": RECORDS, "batch": BATCH, "local_steps": 3}
    each = (
        published.fedspd_round_epsilon(total=0.8, participation=0.5, rounds=6, **known)
        if total
        else 0.8
    )
    run = published.FedspdRun(
        **known,
        clients=4,
        chosen=2,
        rounds=6,
        round_epsilon=each,
        delta=1e-4,
        penalty=20.0,
        dimension=3,
        gradient_bound=CLIP,
        state="public" if state == "public" else "private",
    )
    node = job.plan.nodes[0]
    for k in range(6):
        gamma = published.fedspd_step_parameter(run, k + 1)
        on_message = 2 * job.plan.release.noise_std(node, k) / BATCH / (gamma + 20.0)
        printed = run.noise_multiplier * published.fedspd_sensitivity(run, gamma)
        assert on_message == pytest.approx(printed, rel=1e-7)
    assert node.claimed == pytest.approx(published.FEDSPD_DP.epsilon(run), rel=1e-7)
    assert node.conditions[2].holds == (state == "public")
    assert not total or node.claimed == pytest.approx(0.8, rel=1e-7)
    assert (job.plan.release.claimed(node, 3) or 0) < (node.claimed or 0)


def test_with_every_record_in_every_mini_batch_the_claim_is_infinite():
    nodes = [one_client(np.random.default_rng(1))]
    job = job_of(nodes, {"local_steps": 3}, {"noise_std": 1.0}, batch="all", sampled=POISSON)
    assert job.plan.nodes[0].claimed == math.inf
    assert math.isfinite(job.plan.nodes[0].epsilon or math.inf)
