"""Refusals of wrong weights and graphs, and contraction against closed forms and simulation."""

import cmath
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from few import few
from mixings import weights_of
from tacit.errors import InputError
from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)
from tacit.topology.graphs import GraphSchedule, graph_of
from tacit.topology.mixing import build_mixing
from tacit.topology.own import build_schedule

COLUMNS = np.array([[0.5, 0.0, 0.25], [0.5, 1.0, 0.25], [0.0, 0.0, 0.5]])
BOTH = np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.25, 0.25, 0.5]])
ALIKE = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])


of = weights_of


def changed(matrix, i, j, value):
    copy = matrix.copy()
    copy[i, j] = value
    return copy


def test_right_matrices_pass():
    check_column_stochastic(of(COLUMNS), "given")
    check_column_stochastic(of(BOTH), "given")
    check_doubly_stochastic(of(ALIKE), "given")
    with pytest.raises(InputError, match="not symmetric"):
        check_doubly_stochastic(of(BOTH), "given")


@pytest.mark.parametrize(
    ("matrix", "named"),
    [
        (changed(COLUMNS, 0, 2, 0.5), r"(1\.25.*column 2|column 2.*1\.25)"),
        (changed(COLUMNS, 1, 0, 0.25), r"(0\.75.*column 0|column 0.*0\.75)"),
        (changed(COLUMNS, 1, 2, -0.25), r"-0\.25"),
        (changed(COLUMNS, 1, 2, math.nan), r"nan"),
        (changed(COLUMNS, 1, 2, math.inf), r"(inf.*column 2|column 2.*inf)"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), r"keep a part"),
    ],
)
def test_wrong_columns_are_named(matrix, named):
    for check in (check_column_stochastic, check_doubly_stochastic):
        with pytest.raises(InputError, match=named) as refused:
            check(of(matrix), "some.key")
        assert refused.value.where == "some.key"


def test_wrong_rows_are_named():
    with pytest.raises(InputError, match=r"(0\.75.*row 0|row 0.*0\.75)") as refused:
        check_doubly_stochastic(of(COLUMNS), "some.key")
    assert refused.value.where == "some.key"


def test_sums_may_be_off_by_rounding_only():
    check_column_stochastic(of(changed(COLUMNS, 1, 1, 1 + 2e-12)), "given")
    with pytest.raises(InputError, match="column 1"):
        check_column_stochastic(of(changed(COLUMNS, 1, 1, 1 + 4e-12)), "given")


@pytest.mark.parametrize("name", ["ring", "directed-ring", "complete", "star", "exponential"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 12, 33])
def test_named_graphs_pass_every_check(name, nodes):
    schedule = build_schedule(name, nodes)
    check_strongly_connected(schedule)
    check = check_column_stochastic if schedule.directed else check_doubly_stochastic
    for weights in build_mixing(schedule).weights:
        check(weights, "topology.mixing")


def digraph(n):
    possible = [(a, b) for a in range(n) for b in range(n) if a != b]
    some = st.sets(st.sampled_from(possible), max_size=n)
    return st.builds(lambda edges: graph_of(n, frozenset(edges)), some)


@few(50, 150)
@given(st.integers(2, 6).flatmap(lambda n: st.lists(digraph(n), min_size=1, max_size=3)))
def test_connection_is_that_of_the_closure_of_the_union(graphs):
    n = graphs[0].nodes
    reached = np.eye(n, dtype=bool)
    for source, target in {edge for graph in graphs for edge in graph.edges}:
        reached[source, target] = True
    for via in range(n):  # Warshall's closure
        reached |= np.outer(reached[:, via], reached[via])
    schedule = GraphSchedule("given", tuple(graphs))
    if reached.all():
        check_strongly_connected(schedule)
        return
    with pytest.raises(InputError, match="given") as refused:
        check_strongly_connected(schedule)
    assert refused.value.where == "topology.graph"
    parts = {tuple(np.flatnonzero(row).tolist()) for row in reached & reached.T}
    count, *largest = _parts(refused.value.expected)
    assert count == len(parts)
    assert {*largest} <= parts
    assert len(largest) == min(count, 3)
    assert min(map(len, largest)) >= sorted(map(len, parts))[-len(largest)]


def _parts(text):
    """How many there are, and the nodes of those that are listed."""
    count, listed = re.search(r"(\d+) parts, (.*)", text).groups()
    lists = [part for part in listed.split(" | ") if not part.endswith(" more")]
    return int(count), *(tuple(map(int, re.findall(r"\d+", part))) for part in lists)


def test_a_period_may_connect_what_no_graph_connects():
    graphs = tuple(graph_of(4, frozenset({(i, (i + 1) % 4)})) for i in range(4))
    check_strongly_connected(GraphSchedule("given", graphs))
    with pytest.raises(InputError, match=r"2 parts, 1 \| 0$"):
        check_strongly_connected(GraphSchedule("given", (graph_of(2, frozenset({(0, 1)})),)))


def test_at_most_ten_nodes_of_a_part_are_listed():
    ring = frozenset((i, (i + 1) % 20) for i in range(20))
    other = frozenset((source + 20, target + 20) for source, target in ring)
    with pytest.raises(InputError, match=r"9, \.\.\. \| 20, ") as refused:
        check_strongly_connected(GraphSchedule("given", (graph_of(40, ring | other),)))
    assert _parts(refused.value.expected) == (2, tuple(range(10)), tuple(range(20, 30)))


def rate(name, nodes, weights=None):
    return contraction(build_mixing(build_schedule(name, nodes), weights))


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 21])
def test_contraction_of_rings_in_closed_form(n):
    angles = [2 * math.pi * m / n for m in range(1, n)]
    symmetric = max(abs(1 + 2 * math.cos(angle)) / 3 for angle in angles)
    assert rate("ring", n) == pytest.approx(symmetric, abs=1e-9)
    assert rate("directed-ring", n) == pytest.approx(math.cos(math.pi / n), abs=1e-9)


@pytest.mark.parametrize("n", [3, 4, 9])
def test_contraction_of_a_star_in_closed_form(n):
    assert rate("star", n) == pytest.approx(1 - 1 / n, abs=1e-9)


@pytest.mark.parametrize("n", [3, 5, 6, 12, 20, 33])
def test_contraction_of_the_exponential_graph_in_closed_form(n):
    # Circulant matrices share their eigenvectors, the roots of unity.
    period = math.floor(math.log2(n - 1)) + 1
    moduli = [
        math.prod(abs(1 + cmath.exp(2j * math.pi * m * 2**j / n)) / 2 for j in range(period))
        for m in range(1, n)
    ]
    assert rate("exponential", n) == pytest.approx(max(moduli) ** (1 / period), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [(name, 1) for name in ("ring", "directed-ring", "complete", "star", "exponential")]
    + [("complete", 2), ("complete", 17), ("exponential", 2), ("exponential", 32)],
)
def test_exact_averaging_contracts_to_zero(name, nodes):
    assert rate(name, nodes) == 0.0


def test_no_agreement_contracts_not_at_all():
    parts = GraphSchedule("given", (graph_of(4, frozenset({(0, 1), (1, 0), (2, 3), (3, 2)})),))
    assert contraction(build_mixing(parts)) == pytest.approx(1.0, abs=1e-12)
    assert contraction(build_mixing(parts)) <= 1.0


def test_contraction_is_the_rate_of_push_sum():
    # Irregular out-degrees in an order that matters: neither circulant nor doubly stochastic.
    graphs = (
        graph_of(5, frozenset({(0, 1), (0, 2), (1, 2), (3, 4)})),
        graph_of(5, frozenset({(2, 3), (4, 0), (4, 1)})),
        graph_of(5, frozenset({(3, 0), (2, 4)})),
    )
    mixing = build_mixing(GraphSchedule("given", graphs))
    assert mixing.kind == "column-stochastic"
    x, w = np.array([3.0, -1.0, 4.0, 1.0, -5.0]), np.ones(5)
    spread = []
    for k in range(54):
        x, w = mixing.at(k).matrix() @ x, mixing.at(k).matrix() @ w
        spread.append(np.ptp(x / w))
    steps = 27  # whole periods
    observed = (spread[-1] / spread[-1 - steps]) ** (1 / steps)
    assert observed == pytest.approx(contraction(mixing), rel=0.01)
    assert spread[-1] > 1e-12  # well above rounding, or the rate would be noise
