"""Noise of pairs: keys, that it cancels, its law, and that it does not depend on who hosts whom."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forked import said_in_fork
from tacit.errors import InputError
from tacit.privacy.noise import pair_loop
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.pairwise import fresh_pair_keys, pair_sums, seeded_pair_keys

CPU = torch.device("cpu")
PAIRS = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (3, 4)]
KEYS = seeded_pair_keys(5, PAIRS)


def sums(
    keys,
    nodes,
    d=50,
    *,
    active=None,
    factors=None,
    deviation=2.0,  # points of a power of two: sums of their multiples are exact
    k=3,
    part=0,
):
    given = [1.0] * len(nodes) if factors is None else factors
    return pair_sums(keys, nodes, active, given, deviation, d, k, part, CPU).dense()


def of_pair(pair, d=50):
    """The noise of one pair, from its first end."""
    return sums(seeded_pair_keys(5, [pair]), [pair[0]], d)[0]


def test_keys_of_pairs_depend_on_the_pair_and_the_seed_alone():
    many = [(i, j) for j in range(30) for i in range(j)]
    keys = seeded_pair_keys(5, many)
    held = [keys.keys.secret[place] for place in range(len(many))]
    of_nodes = seeded_keys(5, range(1000)).secret.values()
    assert len({*held, *of_nodes}) == len(many) + 1000
    for place in (0, 17, 300):
        assert seeded_pair_keys(5, [many[place]]).keys.secret[0] == held[place]
        assert seeded_pair_keys(6, [many[place]]).keys.secret[0] != held[place]
    assert keys.seeded
    assert keys.pairs == tuple(many)


def test_fresh_keys_of_pairs_differ_each_time():
    first, second = (fresh_pair_keys(PAIRS) for _ in range(2))
    assert len({*first.keys.secret.values(), *second.keys.secret.values()}) == 2 * len(PAIRS)
    assert not first.seeded


def test_keys_of_pairs_are_never_shown_copied_or_pickled():
    keys = fresh_pair_keys([(0, 1)])
    shown = repr(keys)
    assert "(0, 1)" in shown
    secret = keys.keys.secret[0]
    assert repr(secret) not in shown
    assert secret.hex() not in shown
    for hidden in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never"):
            hidden(keys)


def test_a_forked_child_holds_no_keys_of_pairs():
    keys = fresh_pair_keys([(0, 1)])

    def draw():
        try:
            return f"drew {sums(keys, [0])}"
        except InputError as error:
            return str(error)

    assert "is a fork of the process" in said_in_fork(draw)


@pytest.mark.parametrize("pair", [(1, 0), (2, 2), (-1, 3)])
def test_pairs_out_of_order_are_refused(pair):
    for make in (lambda: fresh_pair_keys([pair]), lambda: seeded_pair_keys(1, [pair])):
        with pytest.raises(InputError, match="the smaller number first"):
            make()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(InputError, match=r"privacy\.noise_seed"):
        seeded_pair_keys(seed, PAIRS)


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 1e-200])
def test_unusable_deviations_of_pairs_are_refused(deviation):
    with pytest.raises(InputError, match="deviation"):
        sums(KEYS, [0], deviation=deviation)


def test_rows_are_sums_of_the_noise_of_pairs_with_their_signs():
    found = sums(KEYS, range(5), factors=[1.0, 2.0, -0.5, 3.0, 0.1])
    zeta = {pair: of_pair(pair) for pair in PAIRS}
    expected = [
        zeta[0, 1] + zeta[0, 2] + zeta[0, 3],
        2.0 * (-zeta[0, 1] + zeta[1, 3]),
        -0.5 * (-zeta[0, 2] + zeta[2, 3]),
        3.0 * (-zeta[1, 3] - zeta[2, 3] - zeta[0, 3] + zeta[3, 4]),
        0.1 * -zeta[3, 4],
    ]
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.stack(expected))


def test_the_sum_over_nodes_is_exactly_zero():
    found = pair_sums(KEYS, range(5), None, [1.0] * 5, 1.7, 5000, 3, 0, CPU)
    assert found.points.dtype == torch.int16
    assert not found.points.sum(0).any()
    assert found.points.bool().any(1).all()
    assert len(set(found.units)) == 1


@settings(max_examples=30, deadline=None)
@given(
    hosts=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    away=st.sets(st.integers(0, 4), max_size=3),
)
def test_how_nodes_are_hosted_changes_nothing(hosts, away):
    active = None if not away else set(range(5)) - away
    whole = sums(KEYS, range(5), active=active)
    for host in range(3):
        nodes = [node for node in range(5) if hosts[node] == host]
        pairs = [pair for pair in PAIRS if set(pair) & set(nodes)]
        here = sums(seeded_pair_keys(5, pairs), nodes, active=active)
        assert torch.equal(here, whole[nodes])


def test_pairs_with_an_end_that_is_away_add_nothing():
    found = sums(KEYS, range(5), active={0, 1, 2})
    assert torch.equal(found[0], of_pair((0, 1)) + of_pair((0, 2)))
    assert not found[3:].any()
    assert torch.equal(sums(KEYS, range(5), active=range(5)), sums(KEYS, range(5)))


def test_steps_parts_and_pairs_have_noise_of_their_own():
    d = 20_000
    drawn = [sums(KEYS, [0, 1, 4], d, k=k, part=part) for k in (3, 4) for part in (0, 1)]
    correlations = torch.corrcoef(torch.stack([drawn[0][2], *(rows[2] for rows in drawn[1:])]))
    assert (correlations - torch.eye(4)).abs().max() < 5 / math.sqrt(d)
    pairs = torch.stack([of_pair(pair, d) for pair in PAIRS])
    assert (torch.corrcoef(pairs) - torch.eye(6)).abs().max() < 5 / math.sqrt(d)


def test_an_end_that_is_elsewhere_is_not_needed():
    assert torch.equal(sums(KEYS, [3, 1]), sums(KEYS, range(5))[[3, 1]])
    assert sums(KEYS, []).shape == (0, 50)
    assert sums(KEYS, [0], 0).shape == (1, 0)
    assert not sums(KEYS, [7]).any()


def test_nodes_of_many_pairs_have_wider_sums():
    """A star of 8 and one of 9 pairs: the numbers of a pair are the same in both."""
    for count, dtype in ((8, torch.int16), (9, torch.int32)):
        pairs = [(0, j) for j in range(1, count + 1)]
        nodes = range(count + 1)
        found = pair_sums(
            seeded_pair_keys(5, pairs), nodes, None, [1.0] * (count + 1), 2.0, 50, 3, 0, CPU
        )
        assert found.points.dtype == dtype
        assert torch.equal(found.points[1].double() * found.units[0], -of_pair((0, 1)))
        assert not found.points.sum(0).any()


def test_more_pairs_than_sums_are_exact_for_are_refused():
    keys = seeded_pair_keys(1, [(0, j) for j in range(1, 4701)])
    with pytest.raises(InputError, match="pairs of a node = 4700: at most 45"):
        sums(keys, [0], 1)


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_and_threads_change_nothing(threads, monkeypatch):
    d = 3 * pair_loop.STRIP + 77
    whole = sums(KEYS, range(5), d)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # Pieces of one strip, and a pair at a time.
        monkeypatch.setattr(pair_loop, "_MOST_STRIPS", 1)
        monkeypatch.setattr(pair_loop, "_MOST_BYTES", 1)
        assert torch.equal(sums(KEYS, range(5), d), whole)
    finally:
        torch.set_num_threads(before)
    for short in (1, 2, 63, pair_loop.STRIP + 1):
        assert torch.equal(sums(KEYS, range(5), short), whole[:, :short])
