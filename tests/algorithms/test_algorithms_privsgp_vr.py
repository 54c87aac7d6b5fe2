"""PrivSGP-VR with a private table and with public anchors, and what either leaks."""

import math

import difference_oracle as differences
import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from dp_accounting import dp_event
from recursion_runs import RATE, assert_same, context_of, least_squares, pld, trained
from recursion_runs import on_batches as experiment
from scipy.stats import binom, norm

import tacit
from tacit import privacy
from tacit.algorithms.variance_reduction.estimators import AnchorOptions, anchor_ratio
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy import from_statement, to_statement
from tacit.training import prepare as preparing
from tacit.training.prepare import prepare

STEPS, CLIP, PRIVATE = 7, 0.4, {"state": "private"}
VARYING = [[(0, 1), (0, 2), (3, 4)], [(1, 3), (2, 0), (4, 0), (4, 1)], [(1, 0), (2, 3), (2, 4)]]
VARIANTS = {
    "table": PRIVATE,
    "clipped": {**PRIVATE, "clip": CLIP},
    "clipped-differences": {**PRIVATE, "clip": CLIP, "clip_difference": 0.1},
    "unclipped-gradients": {**PRIVATE, "clip_difference": 0.1},
    "groups": {**PRIVATE, "clip": CLIP, "table_batch": 2},
    "anchors": {"anchor_every": 3},
    "clipped-anchors": {"clip": CLIP, "clip_difference": 0.1, "anchor_every": 4},
}


def least_epsilon(delta_at, delta):
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def push_sum(estimate, matrices, momentum, more):
    """z `[nodes, d]` at the end."""
    count = len(estimate.task.nodes)
    x, w = np.tile(estimate.task.start, (count, 1)), np.ones(count)
    m = np.zeros_like(x)
    for k in range(STEPS + more):
        if k < STEPS:
            for i in range(count):
                m[i] = momentum * m[i] + estimate(i, x[i] / w[i], k)
            x = x - RATE * m
        matrix = matrices[k % len(matrices)]
        x = np.array([sum(matrix[i, j] * x[j] for j in range(count)) for i in range(count)])
        w = np.array([sum(matrix[i, j] * w[j] for j in range(count)) for i in range(count)])
    return x / w[:, None]


@pytest.mark.parametrize("name", VARIANTS)
def test_recursion_over_changing_graphs(name, tmp_path):
    loss = "cross-entropy" if "clip" in name else "logistic"
    task, options = oracle.problem(loss, 5), VARIANTS[name]
    path = tmp_path / "graph.txt"
    path.write_text("\n\n".join("\n".join(f"{a} {b}" for a, b in edges) for edges in VARYING))
    config = experiment(options, task={"loss": loss}, topology={"graph": f"file:{path}"})
    result = trained(task, config)
    matrices = [oracle.splitting(5, edges) for edges in VARYING]
    right = push_sum(differences.estimator(result, task, options), matrices, 0.0, 0)
    assert_same(result.parameters, right)


@pytest.mark.parametrize("name", ["clipped-differences", "clipped-anchors"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_recursion_with_momentum_and_final_mixing(name, sampling):
    task = oracle.problem("mse", 6)
    options = {**VARIANTS[name], "momentum": 0.6, "final_mixing": 2}
    config = experiment(options, task={"loss": "mse"}, train={"sampling": sampling})
    result = trained(task, config)
    matrices = [oracle.exponential(6, k) for k in range(3)]
    right = push_sum(differences.estimator(result, task, options), matrices, 0.6, 2)
    assert_same(result.parameters, right)


# Special cases


def test_anchors_at_every_step_are_the_full_gradient():
    task = oracle.problem("logistic", 5)
    anchors = trained(task, experiment({"anchor_every": 1, "clip": CLIP}))
    whole = trained(task, experiment({"name": "privsgp", "clip": CLIP}, train={"batch": "all"}))
    torch.testing.assert_close(anchors.parameters, whole.parameters, rtol=1e-11, atol=1e-12)


def test_groups_of_one_record_are_records():
    task = oracle.problem("logistic", 5)
    alone, groups = (
        trained(task, experiment({**PRIVATE, **more, "clip": CLIP}))
        for more in ({}, {"table_batch": 1})
    )
    torch.testing.assert_close(alone.parameters, groups.parameters, rtol=1e-11, atol=1e-12)


def test_a_bound_that_no_difference_reaches_changes_nothing():
    task = oracle.problem("logistic", 5)
    for options in (PRIVATE, {"anchor_every": 3}):
        free, bounded = (
            trained(task, experiment({**options, **more, "clip": CLIP}))
            for more in ({}, {"clip_difference": 3.0})
        )
        torch.testing.assert_close(free.parameters, bounded.parameters, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_it_converges_on_a_quadratic_where_single_records_do_not():
    draw = np.random.default_rng(5)
    nodes = [(draw.normal(size=(4, 2)), draw.normal(size=(4, 1))) for _ in range(3)]
    optimum = least_squares(nodes)
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in nodes]

    def distance(options):
        config = experiment(
            {"learning_rate": 0.1, **options},
            task={"loss": "mse", "model": "linear"},
            topology={"graph": "complete"},
            train={"steps": 200, "batch": 1, "evaluate_every": 200},
        )
        found = tacit.train(config, nodes=tensors).consensus.numpy()
        return float(np.linalg.norm(found - optimum))

    for state in ("private", "public"):
        assert distance({"state": state}) < 1e-3
    assert distance({"name": "privsgp"}) > 1e-2


# What is released, and what it costs


def planned(records, options, **sections):
    """The plan and epsilon of one node."""
    draw = np.random.default_rng(0)
    config = experiment(options, task={"loss": "mse", "model": "linear"}, **sections)
    return tacit.train(config, nodes=[(draw.normal(size=(records, 2)), np.zeros((records, 1)))])


@pytest.mark.slow
@pytest.mark.parametrize(("difference", "hit"), [(None, 2 - 0.1), (0.2, 0.1 + 0.9 * 0.2 / 0.8)])
def test_theorem_a_is_the_composition_of_its_mixtures(difference, hit):
    options = {**PRIVATE, "clip": 0.8, **({"clip_difference": difference} if difference else {})}
    noise = {"noise_std": 0.8, "noise_seed": 1, "delta": 1e-4}
    result = planned(20, options, privacy=noise, train={"steps": 10})
    multiplier = 0.8 * 2 / 0.8
    event = dp_event.MixtureOfGaussiansDpEvent(multiplier, [0.1, hit], [0.9, 0.1])
    assert result.epsilon[0] == pytest.approx(pld((event, 10)), rel=5e-3)
    assert "Poisson" in result.plan.release.mechanism(result.plan.nodes[0]).explain(str)


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_groups_and_batches_of_fixed_size_give_up_amplification(relation):
    """Bound B: the mean over binomial hits of the Gaussian delta."""
    q, steps, z, double = 0.1, 12, 4.0, 2 if relation == "replace-one" else 1
    hits = np.arange(steps + 1)
    mu = double * np.sqrt(hits * (2 - q) ** 2 + (steps - hits) * q**2) / z

    def delta_at(epsilon):
        each = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        return float((binom.pmf(hits, steps, q) * each).sum())

    right = least_epsilon(delta_at, 1e-4)
    noise = {"noise_std": z / 2, "noise_seed": 1, "delta": 1e-4, "relation": relation}
    kinds = [({"table_batch": 3}, "poisson")]
    if relation == "replace-one":
        kinds.append(({}, "fixed"))
    for more, sampling in kinds:
        result = planned(
            20,
            {**PRIVATE, **more, "clip": 1.0},
            privacy=noise,
            train={"steps": steps, "sampling": sampling},
        )
        assert result.epsilon[0] == pytest.approx(right, rel=1e-3)
        assert any("amplification" in line for line in result.plan.warnings)


@pytest.mark.parametrize("difference", [None, 0.3])
def test_anchors_and_differences_compose(difference):
    """K_a Gaussians on every record and K_r sampled ones, whose noise `anchor_share` relates."""
    share, steps, clip = 0.3, 10, 1.5
    bound = difference or 2 * clip
    options = {"anchor_every": 4, "anchor_share": share, "clip": clip}
    if difference:
        options["clip_difference"] = difference
    noise = {"noise_std": bound, "noise_seed": 1, "delta": 1e-4}
    result = planned(20, options, privacy=noise, train={"steps": steps})
    inner = 2.0  # noise in the sum over the batch, over its sensitivity: that of the mean is 1
    anchors, q = 3, 0.1
    anchor = math.sqrt((1 - share) * anchors / (share * (steps - anchors))) * inner / q
    parts = [anchors / anchor**2, (steps - anchors) * q**2 / inner**2]
    assert parts[0] / sum(parts) == pytest.approx(share)
    right = pld(
        (dp_event.GaussianDpEvent(anchor), anchors),
        (dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(inner)), steps - anchors),
    )
    assert result.epsilon[0] == pytest.approx(right, rel=5e-3)


def test_the_default_share_has_the_least_accumulated_noise():
    """At one (Gaussian) budget, of the noise of all steps together: an anchor's stays for ten."""
    steps, every, bound = 1000, 10, 0.3

    def accumulated(share):
        ratio = anchor_ratio(
            AnchorOptions(anchor_every=every, clip_difference=bound, anchor_share=share), steps, 1.0
        )
        budget = steps / every / ratio**2 + (steps - steps / every) * bound**2
        return float(budget * (1 + every * ratio**2))

    least = accumulated(None)
    assert least == pytest.approx(accumulated(1 / 1.3), rel=1e-12)
    for share in (0.2, 0.5, 0.7, 0.83, 0.95):
        assert accumulated(share) > least
    assert math.sqrt(least / steps) == pytest.approx(1.3, rel=0.03)


def test_published_noise_is_that_of_theorem_2_and_its_table_is_private():
    budget = {"epsilon": 0.7, "delta": 1e-5, "accounting": "published", "published_constant": 2.0}
    for state in ("private", "public"):
        result = planned(20, {"state": state, "clip": 0.6}, privacy=budget, train={"batch": 1})
        node = result.plan.nodes[0]
        right = 3 * 2.0 * 0.6 * math.sqrt(STEPS * math.log(1e5)) / (20 * 0.7)
        assert result.plan.release.noise_std(node, 0) == pytest.approx(right, rel=1e-6)
        assert result.claims[0].claimed == pytest.approx(0.7, rel=1e-6)
        assert result.epsilon[0] != pytest.approx(0.7, rel=0.1)
        (about,) = [one for one in node.conditions if "private gradient table" in one.text]
        assert about.holds == (state == "private")


# Where the noise enters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_of_the_planned_size_enters_anchors_and_differences(dtype):
    """Gradients of zero leave nothing else: x^{k+1} - x^k is -gamma times the noise of a mean."""
    nodes = [(np.zeros((8, 9000)), np.zeros((8, 1)))]
    sections = {
        "task": {"loss": "mse", "model": "linear"},
        "privacy": {"noise_std": 0.5, "noise_seed": 3, "delta": 1e-4},
        "train": {"steps": 8, "dtype": dtype},
    }
    clip, bound, share = 0.7, 0.35, 0.2

    def released(options):
        config = load_config(experiment({"clip": clip, **options}, **sections), count=1)
        job = prepare(config, nodes=nodes)
        algorithm, chosen = job.config.algorithm.definition, job.config.algorithm.options
        context = context_of(job)
        state, found = (
            algorithm.start(job.model.start(1, job.dtype, job.device), chosen, context),
            [],
        )
        for k in range(8):
            before = algorithm.models(state)
            state = algorithm.step(state, k, chosen, context)
            found.append(((before - algorithm.models(state)) / RATE).numpy()[0])
        return found

    for one in released(PRIVATE):
        assert one.std() == pytest.approx(0.5, rel=0.05)
    steps = released({"anchor_every": 4, "anchor_share": share, "clip_difference": bound})
    ratio = math.sqrt((1 - share) * 2 / (share * 6)) / (bound / clip)
    for k, one in enumerate(steps):
        anchor = steps[k - k % 4]
        if k % 4 == 0:
            assert one.std() == pytest.approx(0.5 * ratio, rel=0.05)
        else:
            assert (one - anchor).std() == pytest.approx(0.5, rel=0.05)


def test_a_table_on_disk_gives_the_same_run(tmp_path):
    task = oracle.problem("cross-entropy", 4)
    options = {**VARIANTS["clipped-differences"]}
    memory, disk = (
        trained(task, experiment({**options, **more}, task={"loss": "cross-entropy"}))
        for more in ({}, {"table_directory": str(tmp_path / "table")})
    )
    assert torch.equal(memory.parameters, disk.parameters)
    assert list((tmp_path / "table").glob("*.bin"))


# What is refused


def test_a_table_that_does_not_fit_is_refused(monkeypatch):
    task = oracle.problem("logistic", 3)
    free = [100, 10_000]
    monkeypatch.setattr(preparing, "available_bytes", lambda device: free.pop(0))
    with pytest.raises(InputError, match=r"table_directory.*table_batch.*public"):
        trained(task, experiment(PRIVATE))
    trained(task, experiment({}))
    notes = trained(task, experiment({**PRIVATE, "table_batch": 50})).plan.notes
    assert any(line.startswith("gradient table: 3 mini-batches") for line in notes)


def test_groups_are_drawn_by_coins_only():
    config = experiment({**PRIVATE, "table_batch": 2}, train={"sampling": "fixed"})
    with pytest.raises(InputError, match="poisson"):
        trained(oracle.problem("logistic", 3), config)


@pytest.mark.parametrize("sampling", ["fixed", "groups"])
def test_theorem_a_does_not_hold_where_others_share_the_coin(sampling):
    state = privacy.PrivateState(0.1, 1.9, 0.1, 3.0, 9, sampling=sampling, relation="replace-one")
    assert from_statement(to_statement(state)) == state
    loose = privacy.epsilon(state, delta=1e-4)
    poisson = privacy.PrivateState(0.1, 1.9, 0.1, 3.0, 9, relation="replace-one")
    assert loose > privacy.epsilon(poisson, delta=1e-4)
    with pytest.raises(InputError, match="accounted by itself"):
        privacy.epsilon(
            privacy.Composed([state, privacy.Gaussian(9.0, 1, relation="replace-one")]), delta=1e-4
        )
