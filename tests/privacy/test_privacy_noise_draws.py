"""Keys and keystream, coins and subsets: published vectors, positions, secrecy, distributions."""

import copy
import math
import multiprocessing
import operator
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import combinations

import noise_process
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from forked import said_in_fork
from forks import forked_process
from tacit.errors import InputError
from tacit.privacy.noise.draws import (
    BLOCK_BYTES,
    NodeKeys,
    _smallest,
    aes_ctr,
    coins,
    coins_of_all,
    fresh_keys,
    keystream,
    position,
    seeded_keys,
    subset,
    threshold,
)
from tacit.privacy.noise.gaussian import add_normal

KEYS = seeded_keys(11, range(4))
COIN_KEYS = seeded_keys(2024, range(8))


def test_aes_ctr_matches_nist_sp_800_38a():
    # Appendix F.5.5, CTR-AES256.Encrypt.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = aes_ctr(key, 0xF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF, len(plain))
    assert bytes(stream ^ np.frombuffer(plain, np.uint8)) == cipher


def test_position_is_step_then_part_then_block():
    assert position(0, 0) == 0
    assert position(0, 1) == 1 << 64
    assert position(1, 0) == 1 << 80
    assert position(2**48 - 1, 2**16 - 1) == (2**64 - 1) << 64


@pytest.mark.parametrize(("step", "part"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**16)], ids=str)
def test_positions_out_of_range_are_refused(step, part):
    with pytest.raises(InputError):
        keystream(KEYS, 0, "noise", step, 16, part)


@settings(max_examples=50, deadline=None)
@given(short=st.integers(0, 300), long=st.integers(0, 300))
def test_a_shorter_stream_is_a_prefix(short, long):
    short, long = sorted((short, long))
    whole = keystream(KEYS, 2, "noise", 5, long)
    assert whole.shape == (long,)
    assert np.array_equal(keystream(KEYS, 2, "noise", 5, short), whole[:short])


def test_no_two_positions_share_a_block():
    streams = [
        keystream(KEYS, node, purpose, step, 16 * 64, part).tobytes()
        for node in range(4)
        for purpose in ("noise", "sampling", "n")
        for step in (0, 1, 2, 2**48 - 1)
        for part in (0, 1, 2**16 - 1)
    ]
    blocks = [stream[i : i + 16] for stream in streams for i in range(0, len(stream), 16)]
    assert len(set(blocks)) == len(blocks) == 144 * 64


def test_a_step_may_be_any_whole_number_type():
    assert np.array_equal(
        keystream(KEYS, 1, "noise", np.int64(9), 32), keystream(KEYS, 1, "noise", 9, 32)
    )


def test_seeded_keys_do_not_depend_on_other_nodes():
    assert seeded_keys(11, [3]).secret[3] == KEYS.secret[3]
    assert seeded_keys(12, [3]).secret[3] != KEYS.secret[3]
    assert len(set(seeded_keys(11, range(100)).secret.values())) == 100
    assert KEYS.seeded


def test_fresh_keys_differ_each_time():
    first, second = fresh_keys(range(50)), fresh_keys(range(50))
    assert len({*first.secret.values(), *second.secret.values()}) == 100
    assert not first.seeded
    assert first.nodes == tuple(range(50))


def test_keys_are_never_shown_copied_or_pickled():
    keys = fresh_keys([0, 7])
    assert repr(keys) == str(keys) == "NodeKeys(nodes=(0, 7), seeded=False)"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="never"):
            pickle.dumps(keys, protocol)
    for copier in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never"):
            copier(keys)
    with pytest.raises(TypeError):
        operator.setitem(keys.secret, 0, bytes(32))


def test_keys_are_no_argument_of_a_process():
    process = multiprocessing.get_context("spawn").Process(target=repr, args=(fresh_keys([0]),))
    with pytest.raises(TypeError, match="never copied, stored or sent"):
        process.start()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("make", [fresh_keys, lambda nodes: seeded_keys(11, nodes)])
def test_a_forked_child_has_no_keys_of_its_parent(make):
    keys = make(range(2))
    part = keys.subset([0, 1])
    before = bytes(keystream(keys, 1, "sampling", 0, 16))
    keystream(part, 1, "sampling", 0, 16)
    for held in (keys, part):
        said = said_in_fork(lambda held=held: "\n".join(map(str, refusals(held))))
        *refused, left = said.splitlines()
        assert len(refused) == 6
        assert all(line.startswith("noise keys = 'process ") for line in refused)
        assert all("'spawn'" in line for line in refused)
        assert left == "({}, {})"
    assert bytes(keystream(keys, 1, "sampling", 0, 16)) == before  # the parent goes on


def refusals(keys):
    """What every use of keys says in a child, and what of them is there then."""
    for use in (
        lambda: keystream(keys, 0, "noise", 3, 16),
        lambda: keystream(keys, 1, "sampling", 0, 16),  # whose cipher is kept
        lambda: keys.subset([0]),
        lambda: keys.subset([]),
        lambda: keys.purpose_key(0, "noise"),
        lambda: keys.check(0),
    ):
        with pytest.raises(InputError) as refused:
            use()
        yield refused.value
    yield dict(keys.secret), keys._ciphers


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_may_make_keys_of_its_own():
    parent = fresh_keys([0])

    def ask():
        return bytes(keystream(fresh_keys([0]), 0, "noise", 0, 16)).hex()

    said = said_in_fork(ask)
    assert len(bytes.fromhex(said)) == 16
    assert said != bytes(keystream(parent, 0, "noise", 0, 16)).hex()


def test_subset_holds_only_its_nodes():
    part = KEYS.subset([3, 1])
    assert part.nodes == (3, 1)
    assert part.seeded
    assert part.secret[3] == KEYS.secret[3]
    with pytest.raises(InputError, match="node = 0"):
        keystream(part, 0, "noise", 0, 16)
    with pytest.raises(InputError, match="node = 9"):
        KEYS.subset([9])


def test_unusable_keys_seeds_and_purposes_are_refused():
    with pytest.raises(InputError, match="32 bytes"):
        NodeKeys({0: b"short"}, seeded=False)
    for seed in (-1, 2**64):
        with pytest.raises(InputError, match=r"privacy\.noise_seed"):
            seeded_keys(seed, [0])
    with pytest.raises(InputError, match="purpose"):
        keystream(KEYS, 0, "", 0, 16)


def test_kept_ciphers_repeat_no_position_and_skip_none():
    """Reads in any order, again and again, are stretches of the one stream of that key."""
    keys = seeded_keys(11, range(2))
    whole = aes_ctr(keys.purpose_key(1, "noise"), position(4, 2), 1600).tobytes()
    draw = np.random.default_rng(0)
    for _ in range(50):
        first, count = int(draw.integers(0, 60)), int(draw.integers(1, 600))
        buffer = bytearray(count + 16)
        other = bytearray(64 + 16)
        keys.read(1, "noise", position(4, 2) + first, bytes(count), memoryview(buffer))
        keys.read(1, "sampling", position(4, 2), bytes(64), memoryview(other))
        wanted = whole[16 * first :][:count]
        assert bytes(buffer[: len(wanted)]) == wanted
        assert bytes(other[:64]) not in whole


def test_threads_that_read_one_stream_do_not_disturb_each_other():
    keys = seeded_keys(11, range(1))
    whole = aes_ctr(keys.purpose_key(0, "noise"), 0, 1 << 16).tobytes()

    def read(first):
        buffer = bytearray((1 << 14) + 16)
        keys.read(0, "noise", first, bytes(1 << 14), memoryview(buffer))
        return bytes(buffer[: 1 << 14]) == whole[16 * first :][: 1 << 14]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, [first % 3000 for first in range(0, 40_000, 97)]))


def test_a_subset_keeps_no_cipher_of_other_nodes():
    keys = seeded_keys(11, range(3))
    for node in range(3):
        keystream(keys, node, "noise", 0, 16)
    assert not keys.subset([1])._ciphers
    assert "cipher" not in repr(keys).lower()


@settings(max_examples=30, deadline=None)
@given(indices=st.lists(st.integers(0, 400), max_size=20), step=st.integers(0, 2**48 - 1))
def test_single_blocks_are_those_of_the_stream(indices, step):
    keys = seeded_keys(9, [3])
    stream = keystream(keys, 3, "noise", step, 401 * 16, 2).reshape(-1, 16)
    counters = np.empty((len(indices), 2), ">u8")
    counters[:, 0], counters[:, 1] = position(step, 2) >> 64, indices
    blocks = keys.blocks(3, "noise", counters.view(np.uint8).reshape(-1, 16))
    assert blocks.tobytes() == stream[indices].tobytes()


@pytest.mark.parametrize("rate", [1e-4, 1 / 3, 0.5, 0.999])
def test_coins_have_their_rate(rate):
    n = 1_000_000
    thrown = coins(COIN_KEYS, 0, "sampling", 4, n, rate)
    assert thrown.dtype == np.bool_
    score = (int(thrown.sum()) - n * rate) / math.sqrt(n * rate * (1 - rate))
    assert abs(score) < 4.5


def test_coins_of_rate_one_and_zero_are_certain():
    assert coins(COIN_KEYS, 0, "sampling", 0, 100_000, 1.0).all()
    assert not coins(COIN_KEYS, 0, "sampling", 0, 100_000, 0.0).any()
    assert coins(COIN_KEYS, 0, "sampling", 0, 0, 0.5).shape == (0,)


@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_coins_of_many_nodes_are_those_of_each(cipher):
    nodes, counts, rates = (4, 0, 7, 2), (50, 1000, 0, 33), (0.5, 1.0, 0.25, 0.0)
    keys = seeded_keys(3, nodes, cipher)
    thrown = coins_of_all(keys, nodes, "sampling", 6, counts, rates, 1)
    each = zip(nodes, counts, rates, strict=True)
    known = [coins(keys, node, "sampling", 6, count, rate, 1) for node, count, rate in each]
    assert thrown.tolist() == np.concatenate(known).tolist()
    assert 0 < thrown[:50].sum() < 50


@given(rate=st.floats(0, 1))
def test_the_realised_rate_is_never_above_the_stated_one(rate):
    realised = Fraction(threshold(rate), 2**64)
    assert realised <= Fraction(rate) < realised + Fraction(1, 2**64)


@settings(max_examples=30, deadline=None)
@given(low=st.floats(0, 1), high=st.floats(0, 1), count=st.integers(0, 200))
def test_coins_compare_the_keystream_with_the_rate(low, high, count):
    low, high = sorted((low, high))
    words = keystream(COIN_KEYS, 1, "sampling", 7, 8 * count).view("<u8").tolist()
    thrown = coins(COIN_KEYS, 1, "sampling", 7, count, low)
    assert thrown.tolist() == [Fraction(word, 2**64) < Fraction(low) for word in words]
    assert not (thrown & ~coins(COIN_KEYS, 1, "sampling", 7, count, high)).any()


def test_coins_of_steps_and_nodes_are_independent():
    n = 100_000
    thrown = {
        (node, step): coins(COIN_KEYS, node, "sampling", step, n, 0.5)
        for node in (0, 1)
        for step in (0, 1)
    }
    for one, other in combinations(thrown, 2):
        agree = int((thrown[one] == thrown[other]).sum())
        assert abs(agree - n / 2) / math.sqrt(n / 4) < 5


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_that_are_no_probability_are_refused(rate):
    with pytest.raises(InputError, match="probability"):
        coins(COIN_KEYS, 0, "sampling", 0, 10, rate)


def test_subsets_are_uniform():
    drawn = [tuple(subset(COIN_KEYS, 0, "sampling", step, 6, 3).tolist()) for step in range(10_000)]
    counts = [drawn.count(chosen) for chosen in combinations(range(6), 3)]
    assert sum(counts) == len(drawn)
    assert stats.chisquare(counts).pvalue > 1e-3


@settings(max_examples=100, deadline=None)
@given(population=st.integers(0, 300), share=st.floats(0, 1), step=st.integers(0, 2**48 - 1))
def test_subsets_are_sorted_distinct_and_of_exact_size(population, share, step):
    size = int(share * population)
    chosen = subset(COIN_KEYS, 0, "sampling", step, population, size).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == size
    assert all(0 <= index < population for index in chosen)


@given(
    words=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=20),
    share=st.floats(0, 1),
)
def test_ties_go_to_the_smaller_second_word_then_to_the_lower_index(words, share):
    size = int(share * len(words))
    first, second = (np.array([pair[i] for pair in words], np.uint64) for i in (0, 1))
    by_words_then_index = sorted(range(len(words)), key=lambda index: (*words[index], index))
    chosen = _smallest(first, size, lambda: second).tolist()
    assert chosen == sorted(by_words_then_index[:size])


@pytest.mark.parametrize("size", [-1, 11])
def test_subsets_of_impossible_size_are_refused(size):
    with pytest.raises(InputError, match="population"):
        subset(COIN_KEYS, 0, "sampling", 0, 10, size)


# Draws depend on node, purpose and position only: not on processes, sessions or earlier draws.


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
