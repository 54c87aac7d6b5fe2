"""What the weights of nodes come to: their shares of signal and noise, and what is warned of.

The shares are compared with what the nodes' noised means add to the mean of all, by sums over
nodes, and with a plan that is made without the node.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.config import load_config
from tacit.errors import InputError
from tacit.training.planner import build_plan
from tacit.training.weights import shares

PARAMETERS = 20
SIZES = (10, 800, 900, 1000)
NOISE = {"epsilon": [1.0, 0.5, 3.0, 2.0], "delta": 1e-6}


def plan_of(sizes, weights=None, privacy=NOISE, names=None, algorithm=None, **sections):
    """PrivSGP on all records at every step, of nodes of these sizes."""
    nodes = {} if weights is None else {"weights": weights}
    empty = [node for node, size in enumerate(sizes) if size == 0]
    raw = {
        "task": {"model": "mlp"},
        "nodes": {
            **nodes,
            "without_records": empty or None,
            **({} if names is None else {"names": names}),
        },
        "algorithm": {"name": "privsgp", "learning_rate": 0.1, "clip": 2.0, **(algorithm or {})},
        "privacy": privacy,
        "train": {"steps": 3, "batch": "all"},
        **sections,
    }
    return build_plan(load_config(raw, count=len(sizes)), list(sizes), PARAMETERS)


def without(values, node):
    """What is of single nodes, without one of them."""
    if not isinstance(values, (list, tuple)):
        return values
    return [value for place, value in enumerate(values) if place != node]


def deviation(plan):
    """Of the noise in sum_i p_i g_i, g_i being the mean of node i: by what p_i and J_i are."""
    given, sizes = plan.config.weights, np.array([node.records for node in plan.nodes], float)
    raw = sizes if given == "records" else np.ones(len(sizes)) if given == "equal" else given
    portion = np.array(raw, float) / np.sum(raw)
    own = np.array([plan.release.noise_std(node, 0) for node in plan.nodes]) / sizes
    return math.sqrt(float((portion**2 * own**2).sum()))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(10, 5000), min_size=2, max_size=5),
    st.sampled_from(["records", "equal", "numbers"]),
    st.data(),
)
def test_shares_are_those_of_sums_over_nodes_and_of_a_plan_without_the_node(sizes, kind, data):
    count = len(sizes)
    draw = st.lists(st.floats(0.5, 20.0), min_size=count, max_size=count)
    weights = data.draw(draw) if kind == "numbers" else kind
    stds = data.draw(st.lists(st.sampled_from([0.2, 1.0, 3.0]), min_size=count, max_size=count))
    privacy = {"epsilon": stds, "delta": 1e-7}
    plan = plan_of(sizes, weights, privacy)
    whole = deviation(plan)
    raw = {"records": sizes, "equal": [1.0] * count}.get(kind, weights)
    for node, share in enumerate(shares(plan.nodes)):
        assert share.signal == pytest.approx(raw[node] / sum(raw), rel=1e-12)
        own = plan.release.noise_std(plan.nodes[node], 0) / sizes[node]
        assert share.noise == pytest.approx((share.signal * own / whole) ** 2, rel=1e-9)
        fewer = plan_of(
            without(sizes, node),
            without(weights, node),
            {**privacy, "epsilon": without(stds, node)},
        )
        assert share.without is not None
        # What is left over is a difference of nearly equal numbers where one node makes all noise.
        assert share.without == pytest.approx(deviation(fewer) / whole, rel=1e-5, abs=1e-7)


def test_without_noise_and_of_one_node_nothing_is_left_out():
    plain = shares(plan_of(SIZES, privacy={"epsilon": "none"}).nodes)
    assert [share.noise for share in plain] == [share.without for share in plain] == [None] * 4
    (one,) = shares(plan_of([100], privacy={"epsilon": 1.0, "delta": 1e-6}).nodes)
    assert (one.signal, one.noise, one.without) == (1.0, 1.0, None)


@pytest.mark.parametrize("weights", ["records", "equal", "noise"])
@pytest.mark.parametrize("name", ["privsgp", "dp-sgd"])
def test_shares_are_of_the_nodes_with_records(name, weights):
    """As if the others were not there, whoever averages."""
    some = plan_of((0, 800, 0, 1000), weights, {"epsilon": 1.0, "delta": 1e-6}, **of(name))
    alone = plan_of((800, 1000), weights, {"epsilon": 1.0, "delta": 1e-6}, **of(name))
    found = shares(some.nodes)
    assert [found[1], found[3]] == shares(alone.nodes)
    assert [found[node].signal for node in (0, 2)] == [found[0].noise, found[2].noise] == [0.0, 0.0]
    factor = 2 if name == "privsgp" else 1  # by gossip the mean is over all four
    assert [some.nodes[node].weight for node in (1, 3)] == pytest.approx(
        [factor * node.weight for node in alone.nodes], rel=1e-12
    )


def of(name):
    return {"algorithm": {"name": name}}


# What is warned of.


def warned(plan, words):
    found = [caution for caution in plan.cautions if words in caution]
    assert len(found) < 2
    return found[0] if found else None


SAME = {"epsilon": 1.0, "delta": 1e-6}


def test_a_node_that_makes_most_of_the_noise_is_named_with_what_it_is_worth():
    """Of equal weights, noise goes as 1 / J^2; what is left without the node is of the others."""
    told = warned(plan_of(SIZES, "equal", SAME), "of the noise in the mean")
    squares = [1 / size**2 for size in SIZES]
    left = math.sqrt(sum(squares[1:]) / sum(squares)) * 4 / 3
    assert told == (
        f"node 0 makes {squares[0] / sum(squares):.0%} of the noise in the mean over all nodes and "
        f"25.0% of what is learnt: without its 10 of 2,710 records that noise would be {left:.2g} "
        "times what it is; nodes.weights = 'records' would count it less"
    )
    assert warned(plan_of(SIZES, None, SAME), "of the noise in the mean") is None
    named = plan_of(SIZES, "equal", SAME, names=["a", "b", "c", "d"])
    assert str(warned(named, "of the noise in the mean")).startswith("node 0 (a) makes 100% of")


def test_of_weights_that_are_not_equal_no_others_are_proposed():
    """By records a small budget makes noise; here more than half, by less than 4 % of what counts.

    Noise of node i in the mean is in proportion to its multiplier.
    """
    strict = {"epsilon": [0.05, 3.0, 3.0, 3.0], "delta": 1e-6}
    plan = plan_of(SIZES, "records", strict)
    scales = [node.noise_scale**2 for node in plan.nodes]
    told = str(warned(plan, "of the noise in the mean"))
    assert told.startswith(f"node 0 makes {scales[0] / sum(scales):.0%} of the noise")
    assert "and 0.4% of what is learnt" in told
    assert "nodes.weights" not in told
    assert told.endswith("times what it is")


@pytest.mark.parametrize(
    ("sizes", "is_told"),
    [
        ((100, 300), True),  # 90 % of the noise, that is 9 to 1, beside 1 to 1 of the model
        ((100, 150), False),  # 69 %, 2.25 to 1: less than four times that
        ((100, *[300] * 4), True),  # 69 % beside 1 to 4
        ((100, *[300] * 10), False),  # 47 %: less than half
    ],
)
def test_most_of_the_noise_is_more_than_half_and_far_more_than_of_the_model(sizes, is_told):
    found = warned(plan_of(sizes, "equal", SAME), "of the noise in the mean")
    assert (found is not None) == is_told


LONG = (100, 100, 100, 700)  # the last node counts 2.8 times as much as nodes do on average
LINEAR = {"model": "logistic", "outputs": 3, "input_bound": 2.0}  # L = (2^2 + 1) / 2


@pytest.mark.parametrize(
    ("sections", "curvature"),
    [
        ({"task": LINEAR}, 2.5),
        ({"task": {**LINEAR, "loss": "logistic", "outputs": 1}}, 2.5),
        ({"task": LINEAR, "promise": {"smoothness": 0.5}}, 0.5),
        ({"promise": {"smoothness": 4.0}}, 4.0),
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.8, 0.99, 1.05])
def test_a_step_beyond_two_over_l_is_named_where_the_weight_makes_it(sections, curvature, share):
    """Descent of a smooth loss diverges at steps of 2 / L and more: 2.8 gamma against that."""
    rate = share * 2 / curvature
    chosen = {"name": "const-d2p", "learning_rate": rate}  # whose paper reads promise.smoothness
    plan = plan_of(LONG, None, SAME, algorithm=chosen, **sections)
    told = warned(plan, "takes steps of")
    assert (told is not None) == (share <= 1 < 2.8 * share)
    if told is not None:
        assert told == (
            f"node 3 counts 2.8 times as much as nodes do on average, and takes steps of "
            f"{2.8 * rate:.3g} for a learning rate of {rate:.3g}, above 2 / L = {2 / curvature:.3g}"
            ": a smaller algorithm.learning_rate may be needed"
        )


@pytest.mark.parametrize(
    "task",
    [
        {"model": "mlp"},
        {**LINEAR, "input_bound": None},
        {**LINEAR, "class_weights": [1.0, 2.0, 3.0]},
        {**LINEAR, "model": "linear", "loss": "mse", "outputs": 1},
    ],
)
@pytest.mark.parametrize("others", [9, 11])
def test_where_the_curvature_is_not_known_ten_times_is_worth_a_word(task, others):
    """One node of as good as all records counts as many times as there are nodes."""
    sizes = [1] * (others - 1) + [1_000_000]
    known = {key: value for key, value in task.items() if value is not None}
    told = warned(plan_of(sizes, None, SAME, task=known), "takes steps of")
    assert (told is not None) == (others >= 10)
    if told is not None:
        assert f"node {others - 1} counts {others} times" in told
        assert "2 / L" not in told


# Nodes without records.


def test_nodes_without_records_are_told_of_in_words():
    plan = plan_of((50, 0, 60), None, SAME, names=["north", "south", "west"])
    (told,) = [note for note in plan.notes if note.startswith("without records")]
    assert told.startswith("without records: node 1 (south). Such a node mixes and gets the model")
    assert "epsilon 0 since it has no record to protect" in told
    assert not [note for note in plan_of((50, 60), None, SAME).notes if "without records" in note]


@pytest.mark.parametrize(("sizes", "empty"), [((5, 0, 5), []), ((5, 0, 5), [0]), ((5, 5, 5), [1])])
def test_who_has_no_records_is_declared_and_not_found(sizes, empty):
    raw = {"nodes": {"without_records": list(empty) or None}, "privacy": SAME}
    with pytest.raises(InputError, match="names the nodes that have no records, and this one has"):
        build_plan(load_config(raw, count=3), list(sizes), PARAMETERS)


def test_names_of_nodes_without_records_need_names():
    raw = {"nodes": {"without_records": ["south"]}, "privacy": SAME}
    config = load_config(raw, count=2)
    with pytest.raises(InputError, match=r"since nodes\.without_records goes by name") as refused:
        build_plan(config, [3, 0], PARAMETERS)
    assert refused.value.where == "nodes.names"
    plan = build_plan(config.with_names(["north", "south"]), [3, 0], PARAMETERS)
    assert [node.epsilon is not None and node.epsilon > 0 for node in plan.nodes] == [True, False]
