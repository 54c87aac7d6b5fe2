"""A(DP)2SGD: waves against one event after the other, what the clock does, and what it costs."""

import numpy as np
import pytest
import recursion_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from recursion_runs import assert_same, plain, trained

from tacit import privacy
from tacit.algorithms import Setup
from tacit.algorithms.adp2_sgd import AsynchronousOptions, events, waves

RATE = 0.2


def ring(nodes):
    """Neighbours on a ring."""
    around = [{(node - 1) % nodes, (node + 1) % nodes} - {node} for node in range(nodes)]
    return tuple(tuple(sorted(near)) for near in around)


def speeds(spread, stragglers, factor):
    return AsynchronousOptions(speed_spread=spread, stragglers=stragglers, straggler_factor=factor)


def setup(nodes, steps, seed, options):
    return Setup(
        options=options,
        nodes=nodes,
        steps=steps,
        seed=seed,
        neighbours=ring(nodes),
        records=[1] * nodes,
        parameters=1,
        model="logistic",
        loss="cross-entropy",
        accounted=False,
        relation="add-or-remove-one",
        sampling="poisson",
        input_bound=None,
    )


def sequential(task, listed):
    """The events one after the other, each node with the copy that its gradient is computed at."""
    count = len(task.nodes)
    x = np.tile(task.start, (count, 1))
    copies, among = x.copy(), sorted({event.node for event in listed})
    for event in listed:
        i, j = event.node, event.partner
        inputs, targets = (values.numpy() for values in task.nodes[i])
        gradient = task.gradients(copies[i], inputs, targets).mean(axis=0)
        gradient = gradient * oracle.weight(task, i, among)
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] = x[i] - RATE * gradient
        copies[i] = x[i]
    return x


def experiment(task, steps, **options):
    return plain(task.loss, "adp2-sgd", {"learning_rate": RATE, **options}, steps=steps, seed=5)


@pytest.mark.parametrize("nodes", [1, 2, 5, 8])
@pytest.mark.parametrize("options", [{}, {"stragglers": 0.3, "speed_spread": 1.0}])
def test_waves_are_one_event_after_the_other(nodes, options):
    task, steps = oracle.problem("logistic", nodes), 15
    found = trained(task, experiment(task, steps, **options))
    listed = events(ring(nodes), steps, 5, AsynchronousOptions(**options))
    assert_same(found.parameters, sequential(task, listed))
    assert len({event.node for event in listed}) > nodes / 2


@settings(max_examples=30, deadline=None)
@given(nodes=st.integers(1, 9), steps=st.integers(1, 25), seed=st.integers(0, 2**32))
def test_a_wave_holds_disjoint_pairs_and_every_wave_has_one(nodes, steps, seed):
    found = waves(setup(nodes, steps, seed, speeds(0.5, 0.2, 4.0)))
    assert found.partner is not None
    own = np.arange(nodes)
    for active, partner in zip(found.active, found.partner, strict=True):
        assert active.any()
        assert (partner[partner] == own).all()
        assert not (active & active[partner] & (partner != own)).any()
        assert (active | active[partner] | (partner == own)).all()


def test_the_clock_is_deterministic_and_slow_nodes_finish_less():
    one, same = (waves(setup(10, 200, 3, speeds(0.0, 0.2, 6.0))) for _ in range(2))
    other = waves(setup(10, 200, 4, speeds(0.0, 0.2, 6.0)))
    assert (one.active == same.active).all()
    assert (one.active != other.active).any()
    counts = np.sort(one.active.sum(axis=0))
    assert counts[:2].max() * 3 < counts[2:].min()


def test_staleness_counts_the_averagings_in_between():
    listed = events(ring(6), 60, 3, speeds(0.3, 0.0, 1.0))
    since = dict.fromkeys(range(6), 0)
    for event in listed:
        assert event.staleness == since[event.node]
        since[event.partner] += 1
        since[event.node] = 0
    assert max(event.staleness for event in listed) > 1


def test_more_waves_begin_with_the_same_history():
    few, many = (events(ring(7), steps, 3, speeds(0.4, 0.1, 3.0)) for steps in (20, 50))
    assert few == [event for event in many if event.wave < 20]


@pytest.mark.slow
def test_each_node_pays_for_its_own_events():
    task = oracle.problem("logistic", 6)
    config = {**experiment(task, 40), "privacy": {"noise_std": 2.0, "delta": 1e-4, "noise_seed": 1}}
    result = trained(task, config)
    assert result.plan.release.activity is not None
    for node, epsilon in zip(result.plan.nodes, result.epsilon, strict=True):
        count = int(result.plan.release.activity.active[:, node.node].sum())
        multiplier = 2.0 * node.records  # of a clipping bound of 1, in the sum
        right = privacy.epsilon(privacy.Gaussian(multiplier, count), delta=1e-4)
        assert epsilon == pytest.approx(right, rel=1e-5)
        assert epsilon >= right
    assert any("staleness" in note for note in result.plan.notes)


def test_bytes_are_a_model_for_each_pair():
    task = oracle.problem("logistic", 6)
    result = trained(task, experiment(task, 40))
    activity = result.plan.release.activity
    assert activity is not None
    assert activity.partner is not None
    paired = (activity.partner != np.arange(6)).sum(axis=0)
    assert result.bytes_sent == tuple(paired * task.start.size * 8)
