"""Certified multipliers of pairwise noise: whitening over all sets, exact fractions, limits."""

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy import pairwise

Pairs = dict[tuple[int, int], float]
Network = tuple[list[float], Pairs]


@st.composite
def networks(draw, most=7):
    """Own multipliers and pairs of a small random graph, which need not be connected."""
    count = draw(st.integers(1, most))
    sizes = st.floats(1e-3, 1e3)
    own = draw(st.lists(sizes, min_size=count, max_size=count))
    pairs = {
        pair if draw(st.booleans()) else pair[::-1]: draw(st.just(0.0) | sizes)
        for pair in combinations(range(count), 2)
        if draw(st.booleans())
    }
    return own, pairs


def covariance(own, pairs, honest):
    """Sigma_H, from what each message adds of each independent noise that T does not know."""
    known = {pair for pair in pairs if not set(pair) <= set(honest)}
    columns = [own[j] * np.eye(len(own))[j] for j in honest]
    for (i, j), size in pairs.items():
        if (i, j) not in known:
            columns.append(size * (np.eye(len(own))[i] - np.eye(len(own))[j]))
    stacked = np.stack(columns, axis=1)[honest]
    return np.asarray(stacked @ stacked.T)


def whitened(own, pairs, colluding):
    """The least of 1 / |Sigma^(-1/2) e_i| over all sets of up to so many others."""
    count, found = len(own), [math.inf] * len(own)
    for size in range(min(colluding, count - 1) + 1):
        for colluders in combinations(range(count), size):
            honest = [j for j in range(count) if j not in colluders]
            inverse = np.linalg.inv(covariance(own, pairs, honest))
            for row, node in enumerate(honest):
                found[node] = min(found[node], 1 / math.sqrt(inverse[row, row]))
    return found


def exact_squares(own, pairs, colluding):
    """The least sigma_i^2 over all sets of so many others, as fractions: a ratio of minors."""
    count, found = len(own), [Fraction(0)] * len(own)
    squares = {pair: Fraction(size) ** 2 for pair, size in pairs.items()}
    for colluders in combinations(range(count), min(colluding, count - 1)):
        honest = [j for j in range(count) if j not in colluders]
        matrix = [[Fraction(0)] * len(honest) for _ in honest]
        for row, node in enumerate(honest):
            matrix[row][row] += Fraction(own[node]) ** 2
        for (i, j), square in squares.items():
            if i in honest and j in honest:
                a, b = honest.index(i), honest.index(j)
                matrix[a][a] += square
                matrix[b][b] += square
                matrix[a][b] -= square
                matrix[b][a] -= square
        whole = determinant(matrix)
        for row, node in enumerate(honest):
            rest = [[*line[:row], *line[row + 1 :]] for k, line in enumerate(matrix) if k != row]
            value = whole / determinant(rest)
            found[node] = min(value, found[node]) if found[node] else value
    return found


def determinant(matrix):
    """Of a positive definite matrix, by elimination without rounding."""
    lines, product = [list(line) for line in matrix], Fraction(1)
    for k, line in enumerate(lines):
        product *= line[k]
        for below in lines[k + 1 :]:
            share = below[k] / line[k]
            for column in range(k, len(lines)):
                below[column] -= share * line[column]
    return product


def circulant(count, hops, size):
    """Pairs of all nodes that are so many places apart, one way or the other."""
    pairs = {(min(i, j), max(i, j)) for i in range(count) for j in ((i + h) % count for h in hops)}
    return dict.fromkeys(pairs, size)


def torus(size):
    """Of 4 x 5 nodes."""
    ends = [(5 * r + c, 5 * ((r + 1) % 4) + c) for r in range(4) for c in range(5)]
    ends += [(5 * r + c, 5 * r + (c + 1) % 5) for r in range(4) for c in range(5)]
    return dict.fromkeys(ends, size)


GRAPHS = {
    "ring": circulant(20, [1], 1.0),
    "4 neighbours": circulant(20, [1, 2], 1.0),
    "torus": torus(1.0),
    "exponential": circulant(20, [1, 2, 4, 8, 16], 1.0),
    "complete": circulant(20, list(range(1, 11)), 1.0),
}


@given(network=networks(), colluding=st.integers(0, 4))
@settings(deadline=None, max_examples=50)
def test_it_is_what_whitening_finds_over_all_sets(network, colluding):
    found = privacy.pairwise_multipliers(*network, colluding)
    # Whitening subtracts: with pairs 10^6 times as large as a node's own noise it keeps 4 digits.
    assert found == pytest.approx(whitened(*network, colluding), rel=1e-3)


@given(network=networks(5), colluding=st.integers(0, 2), tight=st.booleans())
@settings(deadline=None, max_examples=50)
def test_it_never_exceeds_the_exact_value(network, colluding, tight):
    own, pairs = network
    if tight:  # sizes whose squares vanish beside each other, and repeat
        own = [1e-9 if i % 2 else 1.0 for i in range(len(own))]
        pairs = {pair: 1e9 / (1 + pair[0]) for pair in pairs}
    found = privacy.pairwise_multipliers(own, pairs, colluding)
    for value, square in zip(found, exact_squares(own, pairs, colluding), strict=True):
        assert Fraction(value) ** 2 <= square
        assert Fraction(value) ** 2 >= square * (1 - Fraction(1, 10**12))


@pytest.mark.slow
@given(network=networks(), colluding=st.integers(0, 3), factor=st.floats(1, 100), data=st.data())
@settings(deadline=None, max_examples=50)
def test_more_noise_never_costs_and_more_colluders_never_gain(network, colluding, factor, data):
    own, pairs = network
    now = np.array(privacy.pairwise_multipliers(own, pairs, colluding))
    assert (now >= own).all()
    more = np.array(privacy.pairwise_multipliers(own, pairs, colluding + 1))
    assert (more <= now * (1 + 1e-12)).all()
    grown = list(own)
    grown[data.draw(st.integers(0, len(own) - 1))] *= factor
    assert (privacy.pairwise_multipliers(grown, pairs, colluding) >= now * (1 - 1e-12)).all()
    for pair in pairs:
        louder = {**pairs, pair: pairs[pair] * factor}
        assert (privacy.pairwise_multipliers(own, louder, colluding) >= now * (1 - 1e-12)).all()
    missing = [p for p in combinations(range(len(own)), 2) if not {p, p[::-1]} & set(pairs)]
    for pair in missing[:2]:
        joined = {**pairs, pair: factor}
        assert (privacy.pairwise_multipliers(own, joined, colluding) >= now * (1 - 1e-12)).all()


@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_without_bound_on_the_pairs_it_is_the_honest_nodes_own_noise_together(colluding):
    own = [0.1 * (1 + i) for i in range(9)]
    complete = circulant(9, [1, 2, 3, 4], 1e9)
    found = privacy.pairwise_multipliers(own, complete, colluding)
    for node, value in enumerate(found):
        others = sorted(a for j, a in enumerate(own) if j != node)
        left = [own[node], *others[: len(others) - colluding]]
        assert value == pytest.approx(math.sqrt(sum(a * a for a in left)), rel=1e-9)


def test_a_part_that_is_not_connected_lends_nothing():
    pairs = {(0, 1): 1e9, (1, 2): 1e9, (3, 4): 1e9}
    found = privacy.pairwise_multipliers([1.0] * 6, pairs, 0)
    assert found == pytest.approx([3**0.5] * 3 + [2**0.5] * 2 + [1.0], rel=1e-9)
    # The one in the middle cuts the two ends off from each other.
    assert privacy.pairwise_multipliers([1.0] * 6, pairs, 1)[:3] == pytest.approx(
        [1.0, 2**0.5, 1.0], rel=1e-9
    )


# The own noise that a multiplier of 1 asks for where the variance of a pair's noise is 3.
TABLE = {
    "ring": [0.305, 0.500, 1.0],
    "4 neighbours": [0.241, 0.256, 0.299],
    "torus": [0.235, 0.246, 0.264],
    "exponential": [0.228, 0.235, 0.243],
    "complete": [0.225, 0.231, 0.238],
}


@pytest.mark.parametrize("graph", TABLE)
def test_the_noise_that_twenty_nodes_need(graph):
    pairs = {pair: math.sqrt(3.0) for pair in GRAPHS[graph]}
    for colluding, needed in enumerate(TABLE[graph]):
        for own, enough in ((needed + 1e-3, True), (needed - 1e-3, False)):
            found = privacy.pairwise_multipliers([own] * 20, pairs, colluding)
            assert (min(found) >= 1) == enough


@pytest.mark.parametrize(("size", "multiplier"), [(0, 1.0), (4, 4.17), (8, 4.39), (13, 4.44)])
def test_twenty_nodes_on_the_exponential_graph(size, multiplier):
    pairs = dict.fromkeys(GRAPHS["exponential"], float(size))
    found = privacy.pairwise_multipliers([1.0] * 20, pairs, 0)
    assert found == pytest.approx([multiplier] * 20, abs=0.005)


def test_a_ring_has_a_closed_form():
    """Its two sides are alike and, when it is long, endless: s = a^2 + b^2 s / (b^2 + s)."""
    side = (1 + math.sqrt(1 + 4 * 9.0)) / 2
    endless = 1 + 2 * 9.0 * side / (9.0 + side)
    found = privacy.pairwise_multipliers([1.0] * 80, circulant(80, [1], 3.0), 0)
    assert found == pytest.approx([math.sqrt(endless)] * 80, rel=1e-9)


def bounded(network, colluding):
    """What is certified where the sets of colluders are too many to try."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairwise, "_MOST_WORK", 0.0)
        return np.array(privacy.pairwise_multipliers(*network, colluding))


def stars(own, pairs, colluding):
    """A bound from each node's own pairs alone: its partners have no other, the best collude."""
    squares = [a * a for a in own]
    for node in range(len(own)):
        ends = [(sum(pair) - node, b) for pair, b in pairs.items() if node in pair and b]
        lent = sorted(1 / (1 / b**2 + 1 / own[j] ** 2) for j, b in ends)
        squares[node] += sum(lent[: max(0, len(lent) - colluding)])
    return np.sqrt(squares)


@given(network=networks(), colluding=st.integers(0, 4))
@settings(deadline=None, max_examples=50)
def test_the_bound_for_many_sets_is_below_the_least_of_all(network, colluding):
    found = np.array(privacy.pairwise_multipliers(*network, colluding))
    bound = bounded(network, colluding)
    assert (bound <= found * (1 + 1e-12)).all()
    assert (bound >= stars(*network, colluding) * (1 - 1e-12)).all()


@given(
    own=st.lists(st.floats(0.1, 10), min_size=2, max_size=8),
    colluding=st.integers(0, 3),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_the_bound_for_many_sets_is_exact_on_trees(own, colluding, data):
    parents = {node: data.draw(st.integers(0, node - 1)) for node in range(1, len(own))}
    pairs = {pair: data.draw(st.floats(0.1, 10)) for pair in parents.items()}
    found = privacy.pairwise_multipliers(own, pairs, colluding)
    assert bounded((own, pairs), colluding) == pytest.approx(found, rel=1e-11)


def test_sets_that_are_too_many_leave_a_bound():
    hundred = circulant(100, [1, 2, 4, 8, 16, 32], 4.0)
    found = privacy.pairwise_multipliers([1.0] * 100, hundred, 3)
    assert found == bounded(([1.0] * 100, hundred), 3).tolist()
    # Of twelve partners nine; each lends at least 1 / (1/16 + 1).
    assert min(found) > 1.5 * math.sqrt(1 + 9 / (1 + 1 / 16))
    assert max(found) < math.sqrt(97)


@pytest.mark.parametrize("colluding", [3, 4, 100])
def test_alone_among_colluders_a_node_has_its_own_noise(colluding):
    own = [0.3, 1.0, 2.0, 5.0]
    assert privacy.pairwise_multipliers(own, {(0, 1): 7.0, (2, 3): 1.0}, colluding) == own


def test_nodes_without_pairs_have_their_own_noise():
    assert privacy.pairwise_multipliers([0.5, 2.0], {}, 0) == [0.5, 2.0]
    assert privacy.pairwise_multipliers([0.5], {}, 1) == [0.5]
    assert privacy.pairwise_multipliers([], {}, 0) == []


@pytest.mark.parametrize(
    ("own", "pairs", "colluding", "where"),
    [
        ([1.0, 0.0], {}, 0, "own[1]"),
        ([-1.0], {}, 0, "own[0]"),
        ([math.inf], {}, 0, "own[0]"),
        ([math.nan], {}, 0, "own[0]"),
        ([1.0, 1.0], {(0, 0): 1.0}, 0, "pairs[0, 0]"),
        ([1.0, 1.0], {(0, 2): 1.0}, 0, "pairs[0, 2]"),
        ([1.0, 1.0], {(-1, 0): 1.0}, 0, "pairs[-1, 0]"),
        ([1.0, 1.0], {(0, 1): 1.0, (1, 0): 1.0}, 0, "pairs[1, 0]"),
        ([1.0, 1.0], {(0, 1): -1.0}, 0, "pairs[0, 1]"),
        ([1.0, 1.0], {(0, 1): math.nan}, 0, "pairs[0, 1]"),
        ([1.0, 1.0], {(0, 1): math.inf}, 0, "pairs[0, 1]"),
        ([1.0, 1.0], {}, -1, "colluding"),
        ([1.0, 1.0], {}, 0.5, "colluding"),
    ],
)
def test_what_makes_no_sense_is_refused(own, pairs, colluding, where):
    with pytest.raises(InputError) as caught:
        privacy.pairwise_multipliers(own, pairs, colluding)
    assert caught.value.where == where


@given(network=networks(), colluding=st.integers(0, 3), data=st.data())
@settings(deadline=None, max_examples=30)
def test_in_steps_those_who_are_active_are_a_network_of_their_own(network, colluding, data):
    own, pairs = network
    rows = st.lists(st.booleans(), min_size=len(own), max_size=len(own))
    active = np.array(data.draw(st.lists(rows, min_size=1, max_size=6)))
    for work in (pairwise._MOST_WORK, 0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pairwise, "_MOST_WORK", work)
            found = pairwise.multipliers_of_steps(own, pairs, colluding, active)
            for row, flags in zip(found, active, strict=True):
                nodes = np.flatnonzero(flags).tolist()
                within = {
                    (nodes.index(i), nodes.index(j)): size
                    for (i, j), size in pairs.items()
                    if {i, j} <= set(nodes)
                }
                alone = privacy.pairwise_multipliers([own[j] for j in nodes], within, colluding)
                expected = list(own)
                for node, value in zip(nodes, alone, strict=True):
                    expected[node] = value
                assert row.tolist() == pytest.approx(expected, rel=1e-12)


# -- a person at several nodes --------------------------------------------------------------------


def together(own, pairs, colluding, nodes):
    """By enumeration of colluders, of the person's nodes and of the signs of what they move by."""
    count, found = len(own), math.inf
    for size in range(min(colluding, count - 1) + 1):
        for colluders in combinations(range(count), size):
            honest = [j for j in range(count) if j not in colluders]
            inverse = np.linalg.inv(covariance(own, pairs, honest))
            for several in range(1, min(nodes, len(honest)) + 1):
                for chosen in combinations(range(len(honest)), several):
                    for signs in product([-1, 1], repeat=several):
                        moved = np.zeros(len(honest))
                        moved[list(chosen)] = signs
                        found = min(found, 1 / math.sqrt(moved @ inverse @ moved))
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(networks(most=5), st.integers(0, 5), st.integers(1, 4))
def test_a_person_at_several_nodes_is_the_worst_of_all(network, colluding, nodes):
    own, pairs = network
    found = privacy.pairwise_person(own, pairs, colluding, nodes)
    assert found == pytest.approx(together(own, pairs, colluding, nodes), rel=1e-6)
    assert found <= min(privacy.pairwise_multipliers(own, pairs, colluding))
    if nodes == 1:
        assert found == pytest.approx(
            min(privacy.pairwise_multipliers(own, pairs, colluding)), rel=1e-9
        )


@settings(max_examples=40, deadline=None)
@given(networks(most=6), st.integers(0, 3), st.integers(1, 4))
def test_without_enumeration_a_person_counts_on_no_more(network, colluding, nodes):
    exact = privacy.pairwise_person(*network, colluding, nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairwise, "_MOST_WORK", 0)
        assert 0 < privacy.pairwise_person(*network, colluding, nodes) <= exact * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(networks(most=4), st.integers(1, 3))
def test_the_sum_over_a_persons_nodes_is_never_too_high(network, nodes):
    """Of exact fractions: the entries of the adjugate over the determinant."""
    own, pairs = network
    count = len(own)
    matrix = [[Fraction(0)] * count for _ in own]
    for node, size in enumerate(own):
        matrix[node][node] += Fraction(size) ** 2
    for (i, j), size in pairs.items():
        for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            matrix[a][b] += sign * Fraction(size) ** 2
    whole = determinant(matrix)

    def entry(i, j):
        minor = [[*line[:j], *line[j + 1 :]] for k, line in enumerate(matrix) if k != i]
        return (-1) ** (i + j) * determinant_of_any(minor) / whole

    worst = max(
        sum(entry(i, j) for i in chosen for j in chosen)
        for chosen in combinations(range(count), min(nodes, count))
    )
    found = Fraction(privacy.pairwise_person(own, pairs, 0, nodes))
    assert found**2 <= 1 / worst


def determinant_of_any(matrix):
    """By the first line's minors."""
    if not matrix:
        return Fraction(1)
    return sum(
        (-1) ** k * value * determinant_of_any([[*line[:k], *line[k + 1 :]] for line in matrix[1:]])
        for k, value in enumerate(matrix[0])
    )


def test_a_person_needs_a_number_of_nodes():
    with pytest.raises(InputError) as caught:
        privacy.pairwise_person([1.0, 1.0], {}, 0, 0)
    assert caught.value.where == "nodes"
    # Without pairs the nodes' noise is their own: what they reveal adds up in squares.
    assert privacy.pairwise_person([1.0, 2.0, 2.0], {}, 1, 2) == pytest.approx(1.25**-0.5)
