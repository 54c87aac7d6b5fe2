"""Draws depend on node, purpose and position only: not on processes, sessions or earlier draws."""

import multiprocessing
from itertools import combinations

import noise_process
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forks import forked_process
from tacit.privacy.noise.draws import BLOCK_BYTES, fresh_keys, keystream, position, seeded_keys
from tacit.privacy.noise.gaussian import add_normal

NODES = 6
SEED = 91


@pytest.mark.process
def test_one_process_and_three_draw_the_same_bytes():
    # The second draws its nodes in another order, the third is alone; threads differ too.
    answers = []
    for threads, nodes in ((1, [0, 1, 2]), (2, [4, 3]), (1, [5])):
        ours, theirs = multiprocessing.Pipe()
        process = forked_process(noise_process.send, theirs, SEED, threads, nodes)
        process.start()
        assert ours.poll(240)
        answers.append(ours.recv())
        process.join(240)
    apart = {key: value for answer in answers for key, value in answer.items()}
    together = noise_process.digests(seeded_keys(SEED, range(NODES)), list(range(NODES)))
    assert apart == together
    assert len(set(together.values())) == NODES * noise_process.STEPS


def blocks(keys, step):
    """The AES blocks of a node's noise in one step."""
    stream = keystream(keys, 0, "noise", step, 1_000 * BLOCK_BYTES).tobytes()
    return {stream[i : i + BLOCK_BYTES] for i in range(0, len(stream), BLOCK_BYTES)}


def test_a_resumed_run_draws_anew():
    """A new session takes new keys: the steps that it repeats share nothing with the first time."""
    sessions = [fresh_keys([0]) for _ in range(3)]
    drawn = [blocks(keys, step) for keys in sessions for step in (0, 1)]
    assert all(one.isdisjoint(other) for one, other in combinations(drawn, 2))
    released = [add_normal(torch.zeros(1, 100), [1.0], keys, [0], "n", 4) for keys in sessions]
    assert all(not torch.equal(one, other) for one, other in combinations(released, 2))


def test_a_resumed_run_with_a_noise_seed_repeats_by_design():
    first, second = seeded_keys(5, [0, 1]), seeded_keys(5, [0])
    assert blocks(first, 3) == blocks(second, 3)
    assert blocks(first, 3).isdisjoint(blocks(first, 4))
    # Whatever was drawn in between.
    add_normal(torch.zeros(1, 999), [1.0], second, [0], "noise", 0)
    assert blocks(first, 3) == blocks(second, 3)


steps = st.integers(0, 2**48 - 1)
parts = st.integers(0, 2**16 - 1)


@given(one=st.tuples(steps, parts), other=st.tuples(steps, parts), pair=st.integers(0, 2**60))
def test_draws_at_different_positions_never_share_a_counter_block(one, other, pair):
    first, second = position(*one), position(*other)
    # The farthest block of a draw: four a pair in the keystream of the tails.
    last = first + 4 * pair + 3
    assert first <= last < first + 2**64 <= 2**128
    assert one == other or last < second or second + 4 * pair + 3 < first


@settings(max_examples=40)
@given(
    one=st.tuples(st.integers(0, 99), st.text(min_size=1, max_size=20)),
    other=st.tuples(st.integers(0, 99), st.text(min_size=1, max_size=20)),
)
def test_every_node_and_purpose_has_a_key_of_its_own(one, other):
    keys = seeded_keys(SEED, {one[0], other[0]})
    derived = [
        keys.purpose_key(node, purpose + suffix)
        for node, purpose in {one, other}
        for suffix in ("", ", tails", ", ties")
    ]
    assert len(set(derived)) == len(derived)
