"""Simulated faults: their draws, the weights they leave, who is away, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from algorithms.battery_table import rate
from few import few
from mixings import weights_of
from planning_cases import DELTA, STEPS, epsilons
from tacit.algorithms import ALGORITHMS, Activity
from tacit.communication.colours import Public, Released
from tacit.communication.exchange import InProcessExchange
from tacit.communication.exchange.protocol import Descent
from tacit.config import load_config
from tacit.errors import InputError
from tacit.topology.graphs import GraphSchedule, graph_of
from tacit.topology.mixing import build_mixing, server_averaging
from tacit.topology.own import build_schedule
from tacit.training.budget import node_keys
from tacit.training.faults import FaultPlan, effective, fault_plan, taking_part
from tacit.training.planner import build_plan
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

Matrix = NDArray[np.float64]
Records = list[tuple[Tensor, Tensor]]

DIRECTED = ("exponential", "directed-ring")
UNDIRECTED = ("ring", "complete", "star")
ONE_IN_A_MILLION = 1e-6


def mixing_of(graph, nodes):
    return build_mixing(build_schedule(graph, nodes))


def planned(mixing, *, seed=0, algorithm="privsgp", **faults):
    """The plan of these faults; None without any."""
    config = load_config(
        {"algorithm": {"name": algorithm}, "train": {"seed": seed}, "faults": faults},
        count=mixing.schedule.nodes,
    )
    return fault_plan(config, mixing)


def faulty(mixing, **rest):
    found = planned(mixing, **rest)
    assert isinstance(found, FaultPlan)
    return found


def two_ways():
    """Three nodes, of which two send to each other over two links of their own."""
    edges = frozenset({(0, 1), (1, 0), (1, 2), (2, 0)})
    return build_mixing(GraphSchedule("drawn", (graph_of(3, edges),)))


def plan_of(nodes, **sections):
    """Of nodes with 5 records each, with a given noise."""
    given_sections = {
        "algorithm": {"name": "privsgp"},
        "privacy": {"noise_std": 0.1, "delta": DELTA},
        **sections,
        "train": {"steps": STEPS, "batch": "all", **sections.get("train", {})},
    }
    return build_plan(load_config(given_sections, count=nodes), [5] * nodes, 10)


def lost(plan, k):
    """Whose message is lost at step k: `[i, j]`, that of j to i; `[nodes, nodes]`."""
    found = np.zeros((plan.nodes, plan.nodes), np.bool_)
    found[plan.lost_edges(k)] = True
    return found


def edges_of(matrix):
    return np.asarray((matrix != 0) & ~np.eye(len(matrix), dtype=bool), np.bool_)


# Draws


def test_nothing_is_planned_without_faults():
    mixing = mixing_of("ring", 4)
    assert planned(mixing) is None
    assert planned(mixing, tolerate=True) is None
    assert planned(mixing, slow=[(1, 0.0)]) is None
    assert effective(mixing, None)(3) is mixing.at(3)


@given(
    order=st.permutations(range(12)),
    graph=st.sampled_from((*DIRECTED, *UNDIRECTED)),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=30, deadline=None)
def test_draws_are_the_same_in_any_order_and_process(order, graph, seed):
    mixing = mixing_of(graph, 6)
    first = faulty(mixing, drop=0.5, seed=seed)
    in_order = [lost(first, k) for k in range(12)]
    other = faulty(mixing, drop=0.5, seed=seed)
    for k in order:
        np.testing.assert_array_equal(lost(other, k), in_order[k])


def test_steps_and_seeds_differ():
    mixing = mixing_of("complete", 8)
    one, two = faulty(mixing, drop=0.5), faulty(mixing, drop=0.5, seed=1)
    seen = {lost(plan, k).tobytes() for plan in (one, two) for k in range(50)}
    assert len(seen) == 100


@pytest.mark.parametrize("graph", ["exponential", "ring"])
def test_messages_are_lost_as_often_as_asked(graph):
    steps, chance, special = 3000, 0.3, 0.05
    mixing = mixing_of(graph, 8)
    plan = faulty(mixing, drop=chance, drop_edges=[(0, 1, special)])
    counted, all_of_them = np.zeros((8, 8)), np.zeros((8, 8))
    for k in range(steps):
        there, gone = edges_of(mixing.at(k).matrix()), lost(plan, k)
        assert not (gone & ~there).any()
        counted += gone
        all_of_them += there
    chances = np.full((8, 8), chance)
    chances[1, 0] = special
    if graph == "ring":
        chances[0, 1] = special
    low = binom.ppf(ONE_IN_A_MILLION, all_of_them, chances)
    high = binom.isf(ONE_IN_A_MILLION, all_of_them, chances)
    assert (all_of_them.sum(axis=0) == steps * mixing.out_degrees(0)).all()
    assert (counted >= np.maximum(low, 0)).all()
    assert (counted <= np.maximum(high, 0)).all()


def test_losses_of_two_links_are_independent():
    steps, plan = 4000, faulty(two_ways(), drop=0.5)
    both = sum(bool(gone[0, 1] and gone[1, 0]) for gone in (lost(plan, k) for k in range(steps)))
    assert binom.ppf(ONE_IN_A_MILLION, steps, 0.25) <= both
    assert both <= binom.isf(ONE_IN_A_MILLION, steps, 0.25)


# Weights


def expected_weights(matrix, gone):
    """What node j does not deliver, it keeps: one entry after the other."""
    applied = [[float(value) for value in row] for row in matrix]
    for i, j in zip(*np.nonzero(gone), strict=True):
        applied[j][j] += applied[i][j]
        applied[i][j] = 0.0
    return np.array(applied)


@given(
    graph=st.sampled_from((*DIRECTED, *UNDIRECTED)),
    nodes=st.integers(2, 9),
    drop=st.floats(0, 0.99),
    k=st.integers(0, 40),
    away=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 20)), max_size=3),
)
@few(50, 200)
def test_weights_keep_every_nodes_mass(graph, nodes, drop, k, away):
    mixing = mixing_of(graph, nodes)
    down = [(node, first, first + length) for node, first, length in away]
    plan = planned(mixing, drop=drop, down=down)
    if plan is None:
        assert not down
        assert drop == 0
        return
    weights, gone = mixing.at(k), lost(plan, k)
    applied = plan.weights(k, weights).matrix()
    expected = expected_weights(weights.matrix(), gone)
    np.testing.assert_allclose(applied, expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(applied.sum(axis=0), 1, rtol=0, atol=1e-14)
    assert (applied >= 0).all()
    assert (np.diag(applied) > 0).all()
    if mixing.kind == "doubly-stochastic":
        np.testing.assert_array_equal(gone, gone.T)
        np.testing.assert_array_equal(applied, applied.T)
        np.testing.assert_allclose(applied.sum(axis=1), 1, rtol=0, atol=1e-14)
    for node, first, until in down:
        if first <= k < until:
            assert not plan.up(k)[node]
            assert applied[node, node] == pytest.approx(1, abs=1e-14)
            assert not edges_of(applied)[node].any()
            assert not edges_of(applied)[:, node].any()


def test_the_given_matrix_is_not_changed_and_is_returned_where_nothing_is_lost():
    mixing = mixing_of("ring", 4)
    plan = faulty(mixing, down=[(0, 2, 3)])
    kept = mixing.at(2).matrix()
    assert plan.weights(1, mixing.at(1)) is mixing.at(1)
    assert plan.weights(2, mixing.at(2)) is not mixing.at(2)
    np.testing.assert_array_equal(mixing.at(2).matrix(), kept)
    applied = effective(mixing, plan)
    np.testing.assert_array_equal(applied(2).matrix(), plan.weights(2, weights_of(kept)).matrix())
    assert plan.lossy
    slow = faulty(mixing, slow=[(1, 2.0)])
    assert not slow.lossy
    assert effective(mixing, slow)(2) is mixing.at(2)


@pytest.mark.parametrize("graph", ["exponential", "ring"])
def test_de_biased_parameters_still_tend_to_the_average(graph):
    mixing = mixing_of(graph, 8)
    plan = faulty(mixing, drop=0.3, down=[(3, 10, 25)])
    exchange = InProcessExchange(
        effective(mixing, plan), dtype=torch.float64, device=torch.device("cpu")
    )
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w, mean = torch.ones(8, dtype=torch.float64), x.mean(0)
    apart = [(x - mean).abs().max()]
    for k in range(300):
        x, w = exchange.mix(k, Released(x), Public(w))
        apart.append((x / w[:, None] - mean).abs().max())
    assert apart[-1] < 1e-12 < 1e-3 * apart[0]
    assert float(w.sum()) == pytest.approx(8, rel=1e-13)
    # Mass is not spread evenly any more: it is push-sum's weight that mends it.
    assert (graph == "ring") == bool((w - 1).abs().max() < 1e-12)


# Whole steps


def records(nodes, seed=4):
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(6, 3, generator=draw, dtype=torch.float64) / 2,
            torch.randint(0, 2, (6, 1), generator=draw).double() * 2 - 1,
        )
        for _ in range(nodes)
    ]


def job_of(name, data, steps, **sections):
    private = ALGORITHMS[name].private
    config = {
        "task": {"model": "linear", "loss": "logistic"},
        "algorithm": {"name": name, **rate(name, 0.1), **sections.pop("algorithm", {})},
        "privacy": {"noise_std": 0.3, "noise_seed": 5, "delta": 1e-4} if private else {},
        "train": {"steps": steps, "batch": "all", "dtype": "float64"},
        **sections,
    }
    return prepare(load_config(config, count=len(data)), nodes=data)


class WatchedExchange(InProcessExchange):
    """Asks of every mixing whether it keeps the sums of what it mixes."""

    largest: float = 0.0

    def mix(self, k, *values, **rest):
        mixed = super().mix(k, *values, **rest)
        before_all = [message.value for message in values]
        if rest.get("descent") is not None:
            direction, step = rest["descent"]
            before_all[0] = Descent(direction.value, step).of(before_all[0])
        for before, after in zip(before_all, mixed, strict=True):
            off = (before.sum(0) - after.sum(0)).abs().max() / before.abs().sum()
            self.largest = max(self.largest, float(off))
        return mixed


def ran(job):
    """The state after every step of a plan, and the exchange that it used."""
    plan, faults = job.plan, job.plan.faults
    chosen = job.config.algorithm
    exchange = WatchedExchange(
        effective(plan.mixing, faults),
        dtype=job.dtype,
        device=job.device,
        active=plan.release.active,
        arrives=(lambda k: None) if faults is None else faults.arrives,
    )
    context = StackedContext(plan, job.model, job.train, node_keys(plan), exchange)
    start = job.model.start(len(plan.nodes), job.dtype, job.device)
    state = chosen.definition.start(start.clone(), chosen.options, context)
    for k in range(plan.steps):
        state = chosen.definition.step(state, k, chosen.options, context)
    return state, exchange


def test_push_sum_keeps_its_mass_over_a_noisy_run_with_losses():
    job = job_of("privsgp", records(6), 200, faults={"drop": 0.3, "down": [(2, 50, 90)]})
    state, exchange = ran(job)
    assert float(state.w.sum()) == pytest.approx(6, rel=1e-12)
    assert 0 < exchange.largest < 1e-15  # of every mixing, of x and w alike, relative
    assert (state.w - 1).abs().max() > 0.01
    assert torch.isfinite(state.x).all()


REFUSED = {
    "do-adp": ("drop", "drop_edges", "tolerate", "down"),
    "choco-sgd": ("drop", "drop_edges", "tolerate", "down"),
    "cpgt": ("drop", "drop_edges", "tolerate", "down"),
    "dpdl": ("drop", "drop_edges", "tolerate", "down"),
    "soteriafl-saga": ("drop", "drop_edges", "tolerate", "down"),
    "soteriafl-svrg": ("drop", "drop_edges", "tolerate", "down"),
    "ddp-admm-gradient": ("tolerate", "down"),
    "dp-madmm-gradient": ("tolerate", "down"),
    "dp-radmm-gradient": ("tolerate", "down"),
    "privsgp-vr": ("down",),
}
VALUES = {
    "drop": 0.1,
    "drop_edges": [(0, 1, 0.1)],
    "tolerate": True,
    "down": [(0, 1, 2)],
}


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in REFUSED])
def test_a_node_that_is_away_stands_still_and_tells_nothing(name):
    data, other = records(4), records(4, seed=9)
    changed = [*data[:2], other[2], data[3]]
    steps = 12
    faults = {"down": [(2, 0, steps)], "drop": 0.2}

    def result(given_data, **sections):
        job = job_of(name, given_data, steps, **sections)
        state, exchange = ran(job)
        definition = job.config.algorithm.definition
        models = definition.models(state)
        sent = torch.from_numpy(exchange.bytes_sent)
        return models, definition.graph.consensus(models, state), sent

    models, consensus, sent = result(data, faults=faults)
    told, agreed, _ = result(changed, faults=faults)
    torch.testing.assert_close(told, models, rtol=0, atol=0)
    torch.testing.assert_close(agreed, consensus, rtol=0, atol=0)
    assert sent[2] == 0
    assert (sent[[0, 1, 3]] > 0).all()
    if len(models) == 4:
        start = job_of(name, data, steps).model.start(4, torch.float64, torch.device("cpu"))
        torch.testing.assert_close(models[2], start[2], rtol=0, atol=1e-13)
    assert not torch.equal(result(data)[1], result(changed)[1])


@pytest.mark.parametrize("name", REFUSED)
def test_faults_that_an_algorithm_cannot_take_are_refused(name):
    weights = ALGORITHMS[name].graph.weights
    mixing = server_averaging(4) if weights == "server" else mixing_of("ring", 4)
    for key in REFUSED[name]:
        with pytest.raises(InputError, match=rf"{name} (keeps|takes).*leave it out") as caught:
            planned(mixing, algorithm=name, **{key: VALUES[key]})
        assert caught.value.where == f"faults.{key}"
    rest = {key: value for key, value in VALUES.items() if key not in REFUSED[name]}
    assert planned(mixing, algorithm=name, slow=[(1, 2.0)], **rest) is not None


@pytest.mark.parametrize("name", ["privsgp", "dyn-d2p"])
def test_momentum_is_refused_with_downtime(name):
    algorithm = {"name": name, "momentum": 0.5}
    with pytest.raises(InputError, match=r"algorithm\.momentum = 0") as caught:
        plan_of(4, algorithm=algorithm, faults={"down": [(0, 1, 2)]})
    assert caught.value.where == "faults.down"


# Servers


def test_clients_messages_are_lost_on_their_way_to_the_server():
    plan = faulty(server_averaging(20), algorithm="dp-sgd", drop=0.25)
    came = np.array([plan.arrives(k) for k in range(300)])
    assert came.shape == (300, 20)
    assert binom.ppf(ONE_IN_A_MILLION, 300, 0.75) <= came.sum(axis=0).min()
    assert came.sum(axis=0).max() <= binom.isf(ONE_IN_A_MILLION, 300, 0.75)
    assert len({row.tobytes() for row in came}) > 250
    assert not plan.lossy
    assert not lost(plan, 0).any()
    assert faulty(mixing_of("ring", 4), drop=0.25).arrives(0) is None


def test_a_lost_message_of_a_client_is_charged_but_not_averaged():
    data = records(3)
    whole = job_of("dp-sgd", data, 1)
    lossy = job_of("dp-sgd", data, 1, faults={"drop": 0.5}, train={
        "steps": 1, "batch": "all", "dtype": "float64", "seed": 3,
    })  # fmt: skip
    assert epsilons(lossy.plan) == epsilons(whole.plan)
    came = lossy.plan.faults.arrives(0) if lossy.plan.faults else None
    assert came is not None
    assert 0 < came.sum() < 3
    state, exchange = ran(lossy)
    assert (exchange.bytes_sent > 0).all()
    # The same round, of those clients alone whose message came.
    step = torch.zeros_like(state.x)
    for client in np.flatnonzero(came):
        only = [index for index in range(3) if index != client]
        alone = job_of(
            "dp-sgd", data, 1, faults={"down": [(index, 0, 1) for index in only]},
            train={"steps": 1, "batch": "all", "dtype": "float64", "seed": 3},
        )  # fmt: skip
        start = alone.model.start(1, torch.float64, torch.device("cpu"))
        step += (ran(alone)[0].x - start) / int(came.sum())
    torch.testing.assert_close(state.x, start + step, rtol=1e-12, atol=1e-15)


def test_edges_between_clients_are_refused():
    with pytest.raises(InputError, match=r"dp-sgd has a server.*faults\.drop") as caught:
        planned(server_averaging(4), algorithm="dp-sgd", drop_edges=[(0, 1, 0.5)])
    assert caught.value.where == "faults.drop_edges"


# Who takes part, and what it costs


def test_who_is_away_takes_no_part():
    down = [(1, 0, 2), (1, 1, 4), (0, 3, 100)]
    plan = plan_of(3, faults={"down": down})
    expected = np.ones((6, 3), bool)
    expected[0:4, 1] = False
    expected[3:6, 0] = False
    assert plan.release.activity is not None
    np.testing.assert_array_equal(plan.release.activity.active, expected)
    assert plan.faults is not None
    np.testing.assert_array_equal(plan.faults.present(6), expected)
    for k in range(6):
        np.testing.assert_array_equal(plan.faults.up(k), expected[k])
    assert plan.release.active_steps(plan.nodes[1]) == [4, 5]


@pytest.mark.parametrize("name", ["privsgp", "dp2-sgd", "dp-sgd"])
def test_a_node_pays_for_the_steps_in_which_it_is_there(name):
    algorithm = {"name": name}
    away = epsilons(plan_of(3, algorithm=algorithm, faults={"down": [(1, 2, 4)]}))
    whole = epsilons(plan_of(3, algorithm=algorithm))
    fewer = epsilons(plan_of(3, algorithm=algorithm, train={"steps": 4}))
    assert away == [whole[0], fewer[1], whole[2]]
    assert fewer[1] < whole[1]


def test_a_node_that_is_always_away_pays_nothing():
    plan = plan_of(3, faults={"down": [(1, 0, STEPS)]})
    assert epsilons(plan)[1] == 0
    assert min(epsilons(plan)[0], epsilons(plan)[2]) > 0


def test_the_drawn_activity_and_the_downtime_are_both_kept():
    options = {"name": "dp-sgd", "clients_per_round": 2}
    train = {"steps": 40}
    free = plan_of(5, algorithm=options, train=train)
    plan = plan_of(5, algorithm=options, train=train, faults={"down": [(0, 0, 20)]})
    assert free.release.activity is not None
    assert plan.release.activity is not None
    expected = free.release.activity.active.copy()
    expected[:20, 0] = False
    assert not np.array_equal(expected, free.release.activity.active)
    np.testing.assert_array_equal(plan.release.activity.active, expected)


def test_pairs_whose_link_is_lost_stay_alone_and_still_step():
    given_faults = {"drop": 0.4, "down": [(2, 5, 25)]}
    settings_of = {
        "algorithm": {"name": "adp2-sgd"},
        "topology": {"graph": "ring"},
        "train": {"steps": 40},
    }
    free = plan_of(6, **settings_of)
    plan = plan_of(6, faults=given_faults, **settings_of)
    before, after, faults = free.release.activity, plan.release.activity, plan.faults
    assert before is not None
    assert after is not None
    assert faults is not None
    assert before.partner is not None
    assert after.partner is not None
    broken = 0
    for k in range(40):
        up, gone = faults.up(k), lost(faults, k)
        assert up is not None
        np.testing.assert_array_equal(after.active[k], before.active[k] & up)
        for i, j in enumerate(before.partner[k]):
            apart = gone[i, j] or not up[i] or not up[j]
            assert after.partner[k, i] == (i if apart else j)
            broken += bool(apart and i != j and after.active[k, i])
    assert broken > 10
    assert plan.notes[1].endswith("averagings, before faults")
    assert not free.notes[1].endswith("before faults")


def test_without_faults_the_activity_is_as_drawn():
    drawn = Activity(np.ones((3, 2), bool))
    assert taking_part(drawn, None, 3) is drawn
    assert taking_part(None, faulty(mixing_of("ring", 4), drop=0.5), 3) is None


# Slow nodes, and what people are told


def test_the_slowest_of_the_nodes_that_are_there_delays():
    mixing = mixing_of("ring", 4)
    plan = faulty(mixing, slow=[(1, 0.5), (2, 3.0)], down=[(2, 4, 6)])
    assert plan.delay(0, [0, 3]) == 0
    assert plan.delay(0, [0, 1]) == 0.5
    assert plan.delay(0, range(4)) == 3.0
    assert plan.delay(4, range(4)) == 0.5
    assert plan.delay(6, range(4)) == 3.0
    assert plan.delay(0, []) == 0


def test_the_plan_says_what_is_simulated():
    faults = {
        "drop": 0.1,
        "drop_edges": [(0, 1, 0.5)],
        "down": [(node, 1, 3) for node in range(5)],
        "slow": [(1, 0.25), (2, 0.0)],
    }
    plan = plan_of(6, faults=faults)
    assert plan.notes[-1] == (
        "simulated faults: 10% of the messages lost, 1 edge with a chance of loss of its own, "
        "node 0 away in steps 1 to 2, node 1 away in steps 1 to 2, node 2 away in steps 1 to 2, "
        "2 more, node 1 slower by 0.25 s"
    )
    assert plan_of(6).notes == ()


# Wrong faults


@pytest.mark.parametrize(
    ("faults", "where", "said"),
    [
        ({"drop_edges": [(0, 4, 0.1)]}, "drop_edges", "node 4.*none of the 4 nodes"),
        ({"drop_edges": [(9, 1, 0.1)]}, "drop_edges", "node 9.*none of the 4 nodes"),
        ({"down": [(0, 0, 1), (4, 0, 1)]}, "down", "node 4.*none of the 4 nodes"),
        ({"slow": [(7, 1.0)]}, "slow", "node 7.*none of the 4 nodes"),
        ({"drop_edges": [(1, 1, 0.1)]}, "drop_edges", "is no edge"),
        ({"down": [(1, 3, 3)]}, "down", "first step, step after the last"),
        ({"slow": [(1, 1.0), (1, 2.0)]}, "slow", "given 2 times"),
        ({"drop_edges": [(0, 1, 0.1), (0, 1, 0.1)]}, "drop_edges", "given 2 times"),
    ],
)
def test_contradicting_faults_are_refused(faults, where, said):
    with pytest.raises(InputError, match=said) as caught:
        load_config({"faults": faults}, count=4)
    assert caught.value.where == f"faults.{where}"


def test_an_edge_that_the_graph_has_not_is_named():
    with pytest.raises(InputError, match=r"graph 'ring': node 0 sends to 1, 4") as caught:
        planned(mixing_of("ring", 5), drop_edges=[(0, 2, 0.1)])
    assert caught.value.where == "faults.drop_edges"


def test_the_two_ways_of_an_undirected_link_have_one_chance():
    chances = [(0, 1, 0.1), (1, 0, 0.2)]
    with pytest.raises(InputError, match=r"one link with \(0, 1\), whose chance is 0\.1"):
        planned(mixing_of("ring", 5), drop_edges=chances)
    assert faulty(mixing_of("ring", 5), drop_edges=[(0, 1, 0.1), (1, 0, 0.1)])
    edges = faulty(two_ways(), drop_edges=chances).edges[0]
    found = dict(zip(zip(edges.sources, edges.targets, strict=True), edges.chances, strict=True))
    assert found == {(0, 1): 0.1, (1, 0): 0.2, (1, 2): 0, (2, 0): 0}


def test_any_sequence_of_graphs_has_links_of_its_own():
    mixing = mixing_of("exponential", 8)
    plan = faulty(mixing, drop_edges=[(0, 4, 0.9)])
    assert [bool(edges.chances.any()) for edges in plan.edges] == [False, False, True]
    gone = np.array([lost(plan, k) for k in range(90)])
    assert gone[2::3, 4, 0].any()
    gone[2::3, 4, 0] = False
    assert not gone.any()


def test_what_was_not_read_of_a_file_a_plan_refuses():
    config = load_config({"algorithm": {"name": "choco-sgd"}}, count=4)
    with pytest.raises(InputError, match="apart for ever"):
        build_plan(config.with_keys(faults={"drop": 0.1}), [100] * 4, 3)


@pytest.mark.parametrize("graph", ["ring", "directed-ring", "complete", "exponential"])
def test_nodes_that_are_set_apart_are_like_nodes_that_are_away(graph):
    mixing = mixing_of(graph, 6)
    plan = planned(mixing, down=[(2, 0, 4), (5, 0, 4)])
    assert plan is not None
    for t in range(4):
        apart = mixing.at(t).apart([2, 5]).matrix()
        np.testing.assert_array_equal(apart, plan.weights(t, mixing.at(t)).matrix())
        np.testing.assert_allclose(apart.sum(0), 1.0)
        assert apart[2, 2] > 0
