"""Noise that is correlated over steps: what it loses, what it adds, and where it is refused."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import tacit
from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.mechanisms.matrix import applied
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.independent import GAUSSIAN
from tacit.privacy.noise.matrix import MatrixNoise
from tacit.training.consensus import consensus_forecast
from tacit.training.planner import build_plan
from tacit.training.run_folder.result import mechanism_line
from tacit.training.sampling import draw
from tacit.training.settled import check_sums

HEAD = (1.0, 0.6, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25)


def matrix_of(correlation, steps):
    return np.stack([applied(correlation, unit) for unit in np.eye(steps)], axis=1)


def mu_of(mechanism):
    (noise,) = mechanism.independent(upper=True).noise_multiplier
    return 1 / noise


def test_the_tree_has_a_row_for_every_block_that_ends():
    for t, row in enumerate(matrix_of("tree", 12), 1):
        block = t & -t
        assert row.tolist() == [float(t - block < s <= t) for s in range(1, 13)]


@pytest.mark.parametrize("correlation", [HEAD[:3], HEAD, "tree"])
@pytest.mark.parametrize("turns", [1, 3, 20])
def test_no_signs_of_contributions_lose_more(correlation, turns):
    """All signs of a record's contributions, of every group, with a noise of its own each step."""
    steps, z = 9, np.linspace(1.0, 2.5, 9)
    lost = []
    for group in range(min(turns, steps)):
        taken = np.arange(steps)[group::turns]
        for signs in itertools.product((-1, 1), repeat=len(taken)):
            x = np.zeros(steps)
            x[taken] = np.array(signs) / z[taken]
            lost.append(np.linalg.norm(matrix_of(correlation, steps) @ x))
    assert mu_of(privacy.MatrixGaussian(correlation, turns, z)) == pytest.approx(max(lost))


@pytest.mark.parametrize(
    ("column", "steps", "turns", "square"),
    [((1.0, 0.5, 0.375, 0.3125), 24, 6, 5.953125), (HEAD, 40, 4, 26.55)],
)
def test_sensitivities_are_those_of_jax_privacy(column, steps, turns, square):
    """Of jax_privacy 2.0.0: toeplitz.minsep_sensitivity_squared(column, turns, n=steps)."""
    found = mu_of(privacy.MatrixGaussian(column, turns, 1.0, steps))
    assert found**2 == pytest.approx(square, rel=1e-9)


def test_coins_cost_a_sampled_step_of_its_column_each_turn():
    column, steps, turns = (1.0, 0.5, 0.25), 26, 4
    mechanism = privacy.MatrixGaussian(column, turns, 2.0, steps, sample_rate=0.3)
    norms = np.linalg.norm(matrix_of(column, steps), axis=0)[::turns]
    plain = privacy.SampledGaussian(0.3, (2.0 / norms).tolist())
    assert privacy.epsilon(mechanism, delta=1e-5) == pytest.approx(
        privacy.epsilon(plain, delta=1e-5), rel=1e-6
    )
    with pytest.raises(InputError, match="at most turns = 2 bands"):
        privacy.MatrixGaussian(column, 2, 2.0, steps, sample_rate=0.3)


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_steps_that_are_made_again_are_charged_as_often(rate):
    whole = privacy.MatrixGaussian((1.0, 0.5), 3, 2.0, 12, sample_rate=rate)
    first = whole.of_steps([(0, 7, 1)])
    stopped = privacy.MatrixGaussian((1.0, 0.5), 3, 2.0, 7, sample_rate=rate)
    # Begun anew at step 4, with no noise of before: that of a run of its own on top.
    again = whole.of_steps([(0, 4, 1), (4, 7, 2), (7, 12, 1)])
    costs = [privacy.epsilon(m, delta=1e-5) for m in (stopped, first, whole, again)]
    assert costs[0] == pytest.approx(costs[1])
    assert costs[1] < costs[2] < costs[3]
    assert privacy.from_statement(privacy.to_statement(again)) == again
    if rate == 1:
        rest = [mu_of(privacy.MatrixGaussian((1.0, 0.5), 3, 2.0, n)) for n in (7, 8)]
        assert mu_of(again) <= math.hypot(*rest) * (1 + 1e-9)


def test_a_person_of_two_rows_and_a_replaced_record_move_twice_as_much():
    mechanism = privacy.MatrixGaussian(HEAD, 5, 4.0, 30)
    twice = privacy.MatrixGaussian(HEAD, 5, 2.0, 30)
    wanted = privacy.epsilon(twice, delta=1e-5)
    replaced = privacy.MatrixGaussian(HEAD, 5, 4.0, 30, relation="replace-one")
    for other in (privacy.for_a_unit(mechanism, 2), replaced):
        assert privacy.epsilon(other, delta=1e-5) == pytest.approx(wanted, rel=1e-6)


def test_the_planned_matrix_beats_independent_noise_and_the_square_root():
    steps, turns = 128, 16
    sums = np.tril(np.ones((steps, steps)))

    def error(column):
        """Root mean square of the noise in all sums over first steps, at equal privacy."""
        noise = np.linalg.norm(sums @ np.linalg.inv(matrix_of(column, steps))) / math.sqrt(steps)
        return noise * mu_of(privacy.MatrixGaussian(column, turns, 1.0, steps))

    root = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, 16))])
    planned = error(privacy.banded_correlation(16, steps, turns))
    # 8.07: that of a search over all 16 numbers (SciPy's L-BFGS-B from the root).
    assert planned < 1.06 * 8.07
    assert planned < 1.03 * error(tuple(root.tolist())) < 0.4 * error((1.0,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("correlation", ["tree", (1.0, 0.5), HEAD])
def test_c_times_what_was_added_is_the_drawn_noise(dtype, correlation):
    """Within half a point of the lattice, for every step; and what is released lies on it."""
    nodes, d, steps, stds = range(2), 700, 21, [0.7, 13.0]
    keys = seeded_keys(3, nodes)
    noise = MatrixNoise((correlation,) * 2, steps).begin()
    totals = 50 * torch.randn(steps, 2, d, dtype=dtype)
    added = np.empty((steps, 2, d))
    for k in range(steps):
        released = noise.add(totals[k].clone(), stds, keys, nodes, k, part=0).double()
        added[k] = (released - totals[k].double()).numpy()
        points = released / torch.tensor([[2.0**-7], [2.0**-3]])
        assert torch.equal(points, points.round())
    drawn = np.tensordot(matrix_of(correlation, steps), added, axes=1)
    for k in (0, 7, 8, 20):
        fresh = torch.zeros(2, d, dtype=torch.float64)
        GAUSSIAN.add(fresh, stds, keys, nodes, k, part=0)
        # Each is rounded to a lattice of 64 to 128 points a deviation.
        assert np.abs(drawn[k] - fresh.numpy()).max(axis=1) == pytest.approx(0, abs=2.0**-3 * 1.001)
    with pytest.raises(InputError, match="must be 21 of the same nodes"):
        noise.add(totals[0].clone(), stds, keys, nodes, 0, part=0)


def config_of(**sections):
    base = {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": 2},
        "algorithm": {"name": "dp2-sgd"},
        "privacy": {"epsilon": 2.0, "delta": 1e-4, "noise": "banded", "bands": 4},
        "train": {"steps": 12, "batch": 25, "sampling": "cyclic"},
    }
    merged = {name: {**values, **sections.get(name, {})} for name, values in base.items()}
    return tacit.load_config({**sections, **merged})


@pytest.mark.parametrize(
    ("sections", "turns"),
    [
        ({}, 4),
        ({"privacy": {"noise": "tree", "bands": None}}, 4),
        ({"privacy": {"noise": "independent", "bands": None}}, 4),
        ({"train": {"sampling": "poisson"}, "privacy": {"bands": 3}}, 3),
        ({"train": {"batch": "all"}}, 1),
    ],
)
def test_a_plan_calibrates_what_it_states(sections, turns):
    plan = build_plan(config_of(**sections), [100, 100], 650)
    mechanism = plan.release.mechanism(plan.nodes[0])
    assert mechanism.turns == turns
    assert 1.99 < plan.nodes[0].epsilon <= 2.0
    shared = turns == 3
    assert mechanism.sample_rate == pytest.approx(0.75 if shared else 1.0)
    # Fewer steps cost less, and a ledger's steps are the plan's.
    stated = plan.release.ledger_mechanism(plan.nodes[0])
    costs = [privacy.epsilon(stated.of_steps([(0, n, 1)]), delta=1e-4) for n in (3, 12)]
    assert costs[0] < costs[1] == pytest.approx(plan.nodes[0].epsilon)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"algorithm": {"name": "privsgp-vr"}}, "not functions of one Gaussian noised sum"),
        ({"train": {"sampling": "allocation"}}, "may join any step: use 'cyclic'"),
        ({"privacy": {"noise": "tree", "bands": None}, "train": {"sampling": "poisson"}}, "cyclic"),
        ({"train": {"sampling": "poisson"}, "privacy": {"bands": 5}}, "at most J / batch = 4"),
        ({"privacy": {"noise": "independent"}}, "set privacy.noise = 'banded'"),
        (
            {"algorithm": {"name": "privsgp"}, "privacy": {"accounting": "published"}},
            "formulas are of other noise",
        ),
        ({"faults": {"down": [[0, 1, 2]]}}, "every node at every step"),
    ],
)
def test_what_is_not_proved_is_refused_in_one_line(sections, words):
    with pytest.raises(InputError) as caught:
        build_plan(config_of(**sections), [100, 100], 650)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sampling", ["cyclic", "poisson"])
def test_batches_are_of_records_whose_turn_it_is(sampling):
    plan = build_plan(config_of(train={"sampling": sampling}, privacy={"bands": 3}), [100, 90], 650)
    keys = seeded_keys(1, range(2))
    for k in range(5):
        batch = draw(plan, keys, k, torch.device("cpu"))
        for node, indices, mask in zip(plan.nodes, batch.indices, batch.mask, strict=True):
            turns = plan.release.turns(node)
            own = set(range(k % turns, node.records, turns))
            found = set(indices[mask].tolist())
            assert found == own if sampling == "cyclic" else len(found) > 0 and found < own


def test_what_is_counted_in_times_is_never_lost():
    twice = privacy.MatrixGaussian((1.0, 0.5), 2, 1.0, 8, times=[2] * 8)
    once = privacy.MatrixGaussian((1.0, 0.5), 2, 1.0, 8)
    assert twice.of_steps([(0, 5, 1)]) == once.of_steps([(0, 5, 2)])


def test_first_steps_are_those_of_noise_that_was_planned_for_all():
    """Kept noise is of as many bits as all steps leave room for: 18 here, and 20 of 16 steps."""
    column = privacy.banded_correlation(16, 1024, 16)
    whole = privacy.MatrixGaussian(column, 16, 1.0, 1024, coordinates=10**8)
    (found,) = privacy.epsilon_curve(whole, [16], delta=1e-5)
    assert found == privacy.epsilon(whole.of_steps([(0, 16, 1)]), delta=1e-5)
    assert found > privacy.epsilon(replace(whole, noise_multiplier=1.0, steps=16), delta=1e-5)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"correlation": 5}, "a list of numbers"),
        ({"times": 5}, "a list of numbers"),
        ({"times": [1.5] * 5}, "a whole number"),
        ({"times": ["a"] * 5}, "a whole number"),
        ({"times": [1] * 4}, "one number for each of 5 steps"),
        ({"times": [10**9] * 5}, "would not fit in memory"),
    ],
)
def test_wrong_numbers_are_refused_in_one_line(wrong, words):
    right = {"correlation": (1.0, 0.5), "turns": 10**25, "noise_multiplier": 1.0, "steps": 5}
    assert privacy.epsilon(privacy.MatrixGaussian(**right), delta=1e-5) > 0
    with pytest.raises(InputError, match=words):
        privacy.MatrixGaussian(**{**right, **wrong})


def test_sums_are_measured_by_the_least_noise_of_any_step():
    plan = build_plan(config_of(), [100, 100], 650)
    shape = (1.0,) * 11 + (2.0**-40,)
    with pytest.raises(InputError, match="J over the noise multiplier"):
        check_sums(replace(plan.release, noise_shape=shape), plan.nodes)


@pytest.mark.parametrize("noise", ["banded", "independent"])
def test_papers_promise_nothing_of_noise_over_time(noise):
    sections = {"privacy": {"noise": noise, "bands": None}, "algorithm": {"name": "dyn-d2p"}}
    planned = tacit.plan(config_of(**sections, train={"sampling": "poisson", "batch": 10}))
    broken = [each.text for each in planned.document.promise.conditions if not each.holds]
    assert ("noise and batches that are drawn anew at each step" in broken) == (noise == "banded")


@pytest.mark.parametrize("noise", ["banded", "independent"])
def test_models_apart_are_forecast_of_noise_that_is_drawn_anew(noise):
    """The figure is that of independent noise: 1.05 here, whatever the bands."""
    config = config_of(privacy={"noise": noise, "bands": None}, nodes={"count": 4})
    found = consensus_forecast(build_plan(config, [100] * 4, 650))
    assert (found is None) == (noise == "banded")


def test_what_is_told_is_of_all_nodes_and_of_what_was_released():
    plan = build_plan(config_of(), [100, 200], 650)
    line = "Gaussian correlated over steps (4 bands), each record every 4 steps"
    assert mechanism_line(plan).startswith(f"{line} to each record every 8 steps, noise multiplier")
    whole = plan.release.mechanism(plan.nodes[0])
    assert whole.describe() == f"{line}, 12 steps"
    assert "(4 bands), 6 releases, each" in whole.of_steps([(0, 4, 1), (2, 4, 1)]).describe()


def test_only_equal_ones_become_one_in_a_composition():
    one, other = (privacy.MatrixGaussian("tree", 1, noise, 8) for noise in (3.0, 4.0))
    assert privacy.Composed([one, other]).parts == (one, other)
