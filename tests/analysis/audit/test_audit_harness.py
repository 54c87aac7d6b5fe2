"""What is attacked is what was released, and the data that are planted are what they say."""

import numpy as np
import pytest
import torch
from audit_bugs import job_of
from scipy.stats import norm

from tacit.analysis.audit import attacks, laboratory
from tacit.analysis.audit.attacks import (
    LEARNING_SHARE,
    excess_merit,
    fix_and_count,
)
from tacit.analysis.audit.laboratory import (
    ALONE,
    BARE,
    OPPOSED,
    REPLACED,
    REPLACED_IN_BATCH,
    WIDTH,
    Observed,
    set_up,
)
from tacit.analysis.audit.likelihood import Known, likelihood_ratio
from tacit.analysis.audit.trade_off import epsilon_lower
from tacit.communication.colours import Released
from tacit.communication.exchange import InProcessExchange
from tacit.training.stacked_context import StackedContext


def harness(context=StackedContext, **settings):
    job = job_of(**{"nodes": 4, "steps": 3, "dtype": "float64", **settings})
    return set_up(job.plan, job.plan.steps, 40, context)


def known(moved, rate, **more):
    """A sum over batches of 2, which a drawn record moves by so much."""
    same = np.ones_like(moved)
    return Known(rate * same, moved, 0 * same, same, 2.0, **more)


def test_bare_directions_show_noise_of_the_planned_size():
    lab = harness(steps=6)
    bare = np.concatenate([lab.observe(ALONE, seed).y[:, :, BARE].ravel() for seed in range(3)])
    assert abs(bare.mean()) < 5 / np.sqrt(bare.size)
    assert bare.std() == pytest.approx(1.0, abs=0.02)


def mean_along(problem, side, **settings):
    """The mean sum of a batch, noise averaged away, in clipping bounds: `[2]`."""
    lab = harness(privacy={"epsilon": 5000.0, **settings.pop("privacy", {})}, **settings)
    multiplier = lab.plan.release.noise_multiplier(lab.plan.nodes[0], 0)
    observed = lab.observe(problem, 1)
    kept = observed.y[:, observed.inserted == side, : BARE.start]
    return np.asarray(kept.mean((0, 1)) * multiplier)


@pytest.mark.parametrize(
    ("problem", "inside", "outside"),
    [
        (ALONE, (1, 39), (0, 39)),
        (OPPOSED, (0, 38), (0, 39)),
        (REPLACED, (1, 39), (-1, 39)),
        (REPLACED_IN_BATCH, (-38, 0), (-40, 0)),
    ],
)
def test_a_canary_moves_the_sum_by_the_clipping_bound(problem, inside, outside):
    for side, right in ((True, inside), (False, outside)):
        mean = mean_along(problem, side, batch="all", records=40)
        np.testing.assert_allclose(mean, right, atol=0.05)


def test_a_fair_coin_decides_which_nodes_hold_the_canary():
    lab = harness()
    inserted = np.concatenate([lab.observe(ALONE, seed).inserted for seed in range(10)])
    assert abs(inserted.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(inserted))
    assert np.array_equal(lab.observe(ALONE, 3).inserted, inserted[120:160])


def test_the_graph_is_copied_and_the_stack_kept_within_bounds():
    plan = job_of(nodes=4, steps=2, batch="all").plan
    # 1024 nodes at most, a million steps of nodes, and 2^24 records in all batches.
    assert set_up(plan, 2, 40, StackedContext).copies == 10
    assert set_up(plan, 2, 10**6, StackedContext).copies == 256
    assert set_up(plan, 2, 1, StackedContext).copies == 1
    assert set_up(plan, 10_000, 10**6, StackedContext).copies == 10
    few = job_of(nodes=4, steps=2, batch=1).plan
    assert set_up(few, 100_000, 10**6, StackedContext).copies == 2


def test_pairs_stay_within_their_copy():
    lab = harness(algorithm={"name": "adp2-sgd"}, topology={"graph": "ring"}, steps=12)
    activity = lab.copied().release.activity
    assert activity is not None
    assert activity.partner is not None
    assert activity.active.shape == (12, 40)
    assert np.array_equal(activity.partner // 4, np.tile(np.arange(40) // 4, (12, 1)))
    assert np.array_equal(activity.partner[:, 8:12] - 8, activity.partner[:, :4])
    assert np.array_equal(activity.active[:, 36:], activity.active[:, :4])


def test_nodes_do_not_mix_across_copies():
    lab = harness(nodes=3, steps=1)
    values = torch.arange(3 * lab.copies, dtype=torch.float64)[:, None]
    (mixed,) = lab.exchange.mix(0, Released(values))
    (alone,) = InProcessExchange(
        lab.plan.mixing.weights, dtype=torch.float64, device=torch.device("cpu")
    ).mix(0, Released(values[3:6]))
    torch.testing.assert_close(mixed[3:6], alone)


def test_the_linear_model_has_constant_gradients_clipped_to_the_bound():
    model = laboratory.linear_model(torch.float64, torch.device("cpu"))
    inserted = torch.tensor([True, False])
    data = laboratory.stack_records(
        ALONE, [3, 3], inserted, 2.0, torch.float64, torch.device("cpu")
    )
    inputs, targets = data.gather(torch.tensor([[0, 1, 2], [0, 1, 1]]))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    for weights in (torch.zeros(2, WIDTH), torch.full((2, WIDTH), 7.0)):
        sums = model.gradient(weights.double(), inputs, targets, mask, 2.0).total
        np.testing.assert_allclose(sums[0, :3], [2, 4, 0], atol=1e-6)
        np.testing.assert_allclose(sums[1, :3], [0, 4, 0], atol=1e-12)


@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3])
def test_the_likelihood_ratio_is_that_of_the_densities(rate):
    y, mu = np.random.default_rng(0).normal(size=(4, 5, WIDTH)), np.array([0.5, 1.0, 2.0, 9.0])
    along = y[:, :, 0]
    on = (1 - rate) * norm.pdf(along) + rate * norm.pdf(along - mu[:, None])
    right = np.log(on / norm.pdf(along)).sum(0)
    found = likelihood_ratio(ALONE, y, known(mu, rate))
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-12)


def test_every_statistic_is_larger_where_the_canary_is_hit():
    beforehand = known(np.full(2, 3.0), 0.25, alone=2.0)
    base = {ALONE: 0.0, REPLACED: 0.0, REPLACED_IN_BATCH: -6.0}
    for problem, centre in base.items():
        y = np.zeros((2, 2, WIDTH))
        y[:, :, 0] = centre
        y[1, 0, 0] += 3.0
        for name, statistic in attacks.STATISTICS.items():
            hit, missed = statistic(problem, y, beforehand)
            assert hit > missed, name
    y = np.zeros((2, 2, WIDTH))
    y[:, :, 1] = 6.0
    y[1, 0, 1] -= 3.0
    for name, statistic in attacks.STATISTICS.items():
        hit, missed = statistic(OPPOSED, y, beforehand)
        assert hit > missed, name


def test_what_is_counted_took_no_part_in_the_choice():
    """Scores that tell D from D' in the first part only prove nothing."""
    rng, count = np.random.default_rng(6), 2000
    inserted = rng.random(count) < 0.5
    learning = int(LEARNING_SHARE * count)
    scores = rng.normal(size=count)
    scores[:learning] += 10 * inserted[:learning]
    statistic, counts = fix_and_count(
        {"lucky": scores, "noise": rng.normal(size=count)},
        inserted,
        merit=excess_merit({1e-3: 0.0}),
        confidence=0.95,
    )
    assert statistic == "lucky"
    assert counts.positives + counts.negatives == count - learning
    assert counts.true_positives <= 0.01 * count


def test_bounds_of_a_true_null_are_covered():
    """On data that hold no secret, attacks that choose freely seldom prove anything."""
    rng, accused = np.random.default_rng(8), 0
    merit = excess_merit({0.01: 0.0, 0.2: 0.0})
    for _ in range(200):
        inserted = rng.random(400) < 0.5
        scores = {name: rng.normal(size=400) for name in "abc"}
        _, counts = fix_and_count(scores, inserted, merit=merit, confidence=0.9)
        accused += epsilon_lower(counts, delta=0.01, confidence=0.9) > 0
    assert accused / 200 <= 0.1


@pytest.mark.parametrize("count", [400, 2, 0])
def test_a_constant_score_or_none_proves_nothing(count):
    inserted = np.arange(count) % 2 == 0
    _, counts = fix_and_count(
        {"constant": np.zeros(count)}, inserted, merit=excess_merit({0.0: 0.0}), confidence=0.9
    )
    assert epsilon_lower(counts, delta=0.0, confidence=0.9) == 0.0


def test_an_observation_says_which_copy_a_node_is_of():
    observed = harness(nodes=4).observe(ALONE, 0)
    assert isinstance(observed, Observed)
    assert observed.y.shape == (3, 40, WIDTH)
    assert observed.copies == 10


def test_the_trace_of_the_same_run_says_who_was_drawn():
    """A record's target is its number in the stack; the record that D' lacks is never drawn."""
    lab = harness(records=7, batch=3, steps=4)
    observed = lab.observe(ALONE, 2)
    canaries_of = 7 * np.arange(40) + 6
    drawn = np.concatenate([call.targets.numpy() for call in observed.trace.drawn])
    rows = np.concatenate([call.rows.numpy() for call in observed.trace.drawn])
    assert np.array_equal(drawn // 7, rows)
    met = np.isin(canaries_of, drawn)
    assert not met[~observed.inserted].any()
    assert met[observed.inserted].any()
    # What is noised is the sum over who was drawn: the others' gradients lie along one direction.
    for release, call in zip(observed.trace.releases, observed.trace.drawn, strict=True):
        others = np.bincount(call.rows[call.targets % 7 != 6], minlength=40)
        np.testing.assert_allclose(release.before[observed.inserted, 1], others[observed.inserted])
