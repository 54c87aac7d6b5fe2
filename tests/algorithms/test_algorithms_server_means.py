"""DP-SRM, LDP-SVRG and LDP-SPIDER against a NumPy recursion, their noise, and what that costs."""

import math
import re
from pathlib import Path

import difference_oracle as differences
import federated_oracle as federated
import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given
from hypothesis import strategies as st
from recursion_runs import assert_same, on_batches, trained

import tacit
from tacit.algorithms.variance_reduction import dp_srm, ldp_prox
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.mechanisms.composed import Composed
from tacit.privacy.mechanisms.steps import schedule
from tacit.training.loop import execute
from tacit.training.prepare import prepare

STEPS, RATE, CLIP, DELTA = 7, 0.5, 1.0, 1e-4
Array = oracle.Array
METHODS = {
    "srm": {"name": "dp-srm", "gradient_share": 0.3},
    "srm-clipped": {"name": "dp-srm", "gradient_share": 0.2, "clip": CLIP, "clip_difference": 0.01},
    "srm-sgd": {"name": "dp-srm", "gradient_share": 1.0, "clip": CLIP},
    "svrg": {"name": "ldp-svrg", "anchor_every": 3},
    "svrg-clipped": {"name": "ldp-svrg", "anchor_every": 3, "clip": CLIP, "clip_difference": 0.01},
    "spider": {"name": "ldp-spider", "anchor_every": 3},
    "spider-clipped": {
        "name": "ldp-spider",
        "anchor_every": 4,
        "clip": CLIP,
        "clip_difference": 0.01,
    },
}


def experiment(options, **sections):
    return on_batches({"learning_rate": RATE, **options}, **sections)


def recursion(result, task, options, prox):
    """The server's model at the end, from the papers' formulas, a record at a time."""
    clip, bound = options.get("clip"), options.get("clip_difference")
    run = federated.rounds_of(result, task, [RATE] * STEPS, clip)

    def gradient(client, record, at):
        inputs, targets = (values.numpy()[[record]] for values in task.nodes[client])
        return differences.shortened(task.gradients(at, inputs, targets)[0], clip)

    def whole(client, at):
        count = len(task.nodes[client][0])
        return np.asarray(sum(gradient(client, j, at) for j in range(count)) / count)

    def batch(client, k, new, old, beta):
        """grad f_B(new) - (1 - beta) grad f_B(old), as beta g + (1 - beta) (g - g')."""
        total = np.zeros_like(new)
        for record in run.batches(k, 0, client):
            g, before = gradient(client, record, new), gradient(client, record, old)
            total = total + beta * g + (1 - beta) * differences.shortened(g - before, bound)
        return total / run.divisors[client]

    def mean(clients, values):
        pairs = zip(clients, values, strict=True)
        return np.asarray(sum(run.weight(i) * value for i, value in pairs) / len(clients))

    x, v, point = task.start, np.zeros_like(task.start), task.start
    for k, clients in enumerate(run.active):
        before_step = x
        if options["name"] == "dp-srm":
            beta = options["gradient_share"]
            if k == 0:
                v = mean(clients, [whole(i, x) for i in clients])
            else:
                v = (1 - beta) * v + mean(clients, [batch(i, k, x, point, beta) for i in clients])
            step, point = v, before_step
        else:
            every = options.get("anchor_every", 10)
            if k % every == 0:
                v, point = mean(clients, [whole(i, x) for i in clients]), before_step
                step = v
            else:
                step = v + mean(clients, [batch(i, k, x, point, 0.0) for i in clients])
            if options["name"] == "ldp-spider":
                v, point = step, before_step
        x = prox(x - RATE * step, RATE)
    return np.asarray(x)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.parametrize("name", METHODS)
def test_recursion(name, clients, sampling):
    task, options = oracle.problem("logistic", 5), METHODS[name]
    more = {"regulariser": "l1", "regularisation": 0.05} if clients else {}
    more |= {"clients_per_round": clients} if clients else {}
    result = trained(task, experiment({**options, **more}, train={"sampling": sampling}))
    prox = federated.proximal(more.get("regulariser", "none"), 0.05)
    right = recursion(result, task, options, prox)
    for found in (result.consensus, *result.parameters):
        assert_same(found, right)
    if "clip" in options and "sgd" not in name:
        free = {key: value for key, value in options.items() if key != "clip_difference"}
        assert np.abs(recursion(result, task, free, prox) - right).max() > 1e-4


def test_svrg_is_that_of_soteriafl_without_compression_to_the_noise():
    """The same budget, divided alike, buys the same noise: a recursion of other code, and state."""
    task = oracle.problem("logistic", 3)
    options = {"clip": CLIP, "clip_difference": 0.1, "anchor_every": 3, "anchor_share": 0.4}
    privacy = {"epsilon": 2.0, "delta": DELTA, "noise_seed": 4}
    found, right = (
        trained(task, experiment({"name": name, **options}, privacy=privacy))
        for name in ("ldp-svrg", "soteriafl-svrg")
    )
    for k in range(STEPS):
        ours, theirs = (
            plan.release.noise_std(plan.nodes[0], k) for plan in (found.plan, right.plan)
        )
        ratio = 1.0 if k % 3 else found.plan.release.noise_shape[0]
        assert ours == pytest.approx(theirs * ratio, rel=1e-9)
    assert found.plan.release.noise_shape[0] == pytest.approx(
        math.sqrt(0.6 * 3 / (0.4 * 4)) / (0.1 / CLIP)
    )


@pytest.mark.parametrize("name", ["srm", "svrg", "spider"])
def test_noise_enters_the_mean_of_the_clients(name):
    """Two rounds on gradients of zero: x is -eta times the sum of both directions."""
    nodes = [(np.zeros((4, 6000)), np.zeros((4, 1)))] * 3
    config = experiment(
        METHODS[name],
        privacy={"noise_std": 0.6, "noise_seed": 2, "delta": DELTA},
        train={"steps": 2},
    )
    config["task"] = {"loss": "mse", "model": "linear"}
    result = tacit.train(config, nodes=nodes)
    plan = result.plan
    first, second = (plan.release.noise_std(plan.nodes[0], k) / 2 for k in range(2))
    assert first == pytest.approx(0.6)
    kept = 1.7 if name == "srm" else 2.0  # how often the first round's noise is in the sum
    right = RATE * math.hypot(kept * first, second) / math.sqrt(3)
    assert result.consensus.numpy().std() == pytest.approx(right, rel=0.05)


# What it costs.


def certified(options, batch, **more):
    """A run with given noise, on six records a node."""
    task = oracle.problem("logistic", 3)
    privacy = {"noise_std": 0.5, "noise_seed": 1, "delta": DELTA, **more}
    return trained(
        task, experiment({"clip": CLIP, **options}, privacy=privacy, train={"batch": batch})
    )


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, "all"])
@pytest.mark.parametrize("name", ["srm-clipped", "srm-sgd", "svrg-clipped", "spider"])
def test_epsilon_is_that_of_its_rounds_composed_by_another_accountant(name, batch):
    """Gaussian refreshes and sampled Gaussians, each with its sensitivity, by dp_accounting."""
    options = METHODS[name]
    result = certified(options, batch)
    plan, node = result.plan, result.plan.nodes[1]
    beta = options.get("gradient_share", 0.0)
    difference = min(2.0, options.get("clip_difference", math.inf) / CLIP)
    moved = beta + (1 - beta) * difference
    whole = None
    for k in range(STEPS):
        std = plan.release.noise_std(node, k) / CLIP
        every = options.get("anchor_every", STEPS)
        refresh = k % every == 0
        one = reference.from_gaussian_mechanism(
            std / node.rate if refresh else std / moved,
            sampling_prob=1.0 if refresh else node.rate,
            value_discretization_interval=1e-3,
            use_connect_dots=True,
        )
        whole = one if whole is None else whole.compose(one)
    assert whole is not None
    assert node.epsilon == pytest.approx(whole.get_epsilon_for_delta(DELTA), rel=2e-3)


def test_a_client_pays_only_for_the_rounds_in_which_it_takes_part():
    result = certified({**METHODS["spider"], "clients_per_round": 1}, 2)
    plan = result.plan
    for node in plan.nodes:
        steps = plan.release.active_steps(node)
        statement = plan.release.mechanism(node)
        if not steps:
            assert node.epsilon == 0
            continue
        refreshed = [k for k in steps if k % 3 == 0]
        parts = statement.parts if isinstance(statement, Composed) else (statement,)
        assert sum(len(schedule(part)) for part in parts) == len(steps)
        if 0 < len(refreshed) < len(steps):
            assert {part.kind for part in parts} == {"gaussian", "sampled-gaussian"}


def test_random_allocation_of_records_to_steps_is_refused():
    with pytest.raises(InputError, match=r"train\.sampling"):
        trained(
            oracle.problem("logistic", 3),
            experiment(
                {**METHODS["svrg-clipped"]},
                privacy={"epsilon": 2.0, "delta": DELTA},
                train={"sampling": "allocation"},
            ),
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["srm-clipped", "svrg-clipped", "spider-clipped"])
def test_secure_sums_are_enough(name):
    """Only the sum of a round is seen, and each client adds less noise."""
    task = oracle.problem("logistic", 4)
    privacy = {"epsilon": 8.0, "delta": DELTA, "noise_seed": 3}
    sums = {**privacy, "aggregation": "secure-sum", "colluding": 1}
    options = METHODS[name]
    clear, joint = (
        prepare(
            load_config(experiment(options, privacy=each), count=4, given_model=True),
            model=task.module,
            nodes=task.nodes,
        )
        for each in (privacy, sums)
    )
    result = execute(joint)
    assert joint.plan.release.trust_model == "secure-sum"
    assert all(node.epsilon is not None and node.epsilon <= 8.0 for node in joint.plan.nodes)
    for k in range(STEPS):  # three honest clients share what the strictest would add alone
        alone, shared = (
            [
                oracle.weight(task, node.node)
                * plan.release.noise_std(node, k)
                / node.expected_batch
                for node in plan.nodes
            ]
            for plan in (clear.plan, joint.plan)
        )
        assert shared == pytest.approx([max(alone) / math.sqrt(3)] * 4, rel=1e-3)
    right = execute(clear)
    assert torch.isfinite(result.parameters).all()
    assert not torch.equal(result.parameters, right.parameters)


@pytest.mark.parametrize("name", ["srm-clipped", "svrg-clipped", "spider-clipped"])
def test_the_sum_of_a_round_holds_what_clear_messages_would(name):
    """With little noise both runs follow the recursion without noise."""
    task = oracle.problem("logistic", 4)
    privacy = {
        "noise_std": 1e-6,
        "noise_seed": 3,
        "accounting": "none",
        "aggregation": "secure-sum",
        "colluding": 1,
    }
    result = trained(task, experiment(METHODS[name], privacy=privacy))
    right = recursion(result, task, METHODS[name], federated.proximal("none", 0.0))
    np.testing.assert_allclose(result.consensus.numpy(), right, atol=1e-4)


@pytest.mark.parametrize("aggregation", ["clear", "secure-sum"])
def test_gradients_that_turn_round_are_two_bounds_apart_and_fit(aggregation):
    """From (0, 0) a step of 10 passes the target, so that every record's gradient turns round."""
    nodes = [(np.ones((5, 1)), np.ones((5, 1)))] * 3
    config = experiment(
        {"name": "ldp-spider", "clip": 1.0, "learning_rate": 10.0, "anchor_every": 2},
        privacy={
            "noise_std": 1e-5,
            "noise_seed": 1,
            "accounting": "none",
            "aggregation": aggregation,
        },
        train={"batch": "all", "steps": 1},
    )
    config["task"] = {"loss": "mse", "model": "linear"}
    once = tacit.train(config, nodes=nodes).consensus.numpy()
    np.testing.assert_allclose(once, 10 / math.sqrt(2), atol=1e-2)
    config["train"]["steps"] = config["train"]["evaluate_every"] = 2
    # The first direction is -1 / sqrt(2), the difference 2 / sqrt(2): its norm is twice the bound.
    np.testing.assert_allclose(tacit.train(config, nodes=nodes).consensus.numpy(), 0, atol=1e-2)


# Schedules of noise.


def accumulated(options, lasting, share):
    """Variance of the noise in the sum of all directions, if the refreshes cost that share."""
    kinds = {
        dp_srm.RecursiveMomentumOptions: dp_srm.schedules,
        ldp_prox.RefreshedOptions: ldp_prox.spider_schedules,
    }
    chosen = options.model_copy(update={"anchor_share": share} if share else {})
    shape = kinds[type(options)](chosen, 1.0, len(lasting)).noise_shape
    every = getattr(options, "anchor_every", len(lasting))
    beta = getattr(options, "gradient_share", 0.0)
    moved = beta + (1 - beta) * min(2.0, options.clip_difference or math.inf)
    cost = sum(((moved if k % every else 1.0) / noise) ** 2 for k, noise in enumerate(shape))
    return cost * sum((weight * noise) ** 2 for weight, noise in zip(lasting, shape, strict=True))


@given(
    st.integers(2, 40),
    st.integers(2, 9),
    st.one_of(st.none(), st.floats(0.01, 3.0)),
    st.floats(0.01, 0.99),
)
def test_the_default_share_leaves_least_noise_in_the_sum_of_directions(steps, every, bound, share):
    beta = 0.1
    srm = dp_srm.RecursiveMomentumOptions(gradient_share=beta, clip_difference=bound)
    spider = ldp_prox.RefreshedOptions(anchor_every=every, clip_difference=bound)
    lasting = {
        srm: [(1 - (1 - beta) ** (steps - k)) / beta for k in range(steps)],
        spider: [float(min(every - k % every, steps - k)) for k in range(steps)],
    }
    for options, weights in lasting.items():
        assert accumulated(options, weights, 0.0) <= accumulated(options, weights, share) * (
            1 + 1e-9
        )


def test_a_share_is_what_the_refreshes_cost():
    options = ldp_prox.RefreshedOptions(anchor_every=3, clip_difference=0.5, anchor_share=0.25)
    shape = ldp_prox.svrg_schedules(options, 1.0, 10).noise_shape
    costs = [((0.5 if k % 3 else 1.0) / noise) ** 2 for k, noise in enumerate(shape)]
    assert sum(costs[::3]) / sum(costs) == pytest.approx(0.25)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "variance-reduction.md"
ROW = re.compile(
    r"^\| `(dp-srm|ldp-\w+)` \| ([-–.0-9]+) \| ([.0-9]+) \| ([.0-9]+) \| ([.0-9]+) \|$"
)


def directions(name, steps):
    """How often the noise of each round is in the sum of directions, with the default options."""
    left = [min(10 - k % 10, steps - k) for k in range(steps)]
    if name == "ldp-svrg":
        return [float(weight if k % 10 == 0 else 1) for k, weight in enumerate(left)]
    if name == "ldp-spider":
        return [float(weight) for weight in left]
    return [math.fsum(0.9**later for later in range(steps - k)) for k in range(steps)]


@pytest.mark.slow
def test_the_page_has_the_noise_that_is_planned():
    rounds, records = 200, 1629

    def noises(name, more):
        config = {
            "task": {"loss": "mse"},
            "algorithm": {"name": name, "clip": 1.0, **more},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "train": {"steps": rounds, "batch": 80, "evaluate_every": rounds},
        }
        nodes = [(torch.zeros(records, 1), torch.zeros(records, 1))] * 2
        settings = load_config(config, count=2, given_model=True)
        plan = prepare(settings, model=torch.nn.Linear(1, 1), nodes=nodes).plan
        return [plan.release.noise_std(plan.nodes[0], k) for k in range(rounds)]

    (plain,) = set(noises("dp-sgd", {}))
    rows = [found.groups() for line in PAGE.read_text().splitlines() if (found := ROW.match(line))]
    assert len(rows) == 9
    for name, bound, *written in rows:
        stds = noises(name, {} if bound == "–" else {"clip_difference": float(bound)})
        total = math.hypot(*(a * b for a, b in zip(stds, directions(name, rounds), strict=True)))
        right = [stds[0] / plain, stds[1] / plain, total / (plain * math.sqrt(rounds))]
        assert [float(cell) for cell in written] == pytest.approx(right, rel=4e-3)
