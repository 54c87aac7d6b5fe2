"""Masks of sums cancel, hide what they cover, and are used once."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.communication.colours import Masked, Private, Public, Released, Summand
from tacit.communication.masks import PairMasks, wrapped_sum
from tacit.errors import InputError, LeakError
from tacit.privacy.noise.pairwise import fresh_pair_keys, seeded_pair_keys

PARTIES = (0, 2, 3, 7)
PAIRS = list(itertools.combinations(PARTIES, 2))
KEYS = seeded_pair_keys(4, PAIRS)
WORDS = 4096


def part_of(party, count=WORDS):
    """A small number a place, as summands are: `[1, count]`."""
    return Summand(torch.arange(count).remainder(100).sub(50).mul(party + 1).unsqueeze(0))


def masked(party, keys=KEYS, k=0, among=PARTIES):
    return PairMasks(party, keys).over(part_of(party), k, 0, among).value


@given(
    values=st.lists(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    k=st.integers(0, 2**40),
    part=st.integers(0, 2**16 - 1),
)
@settings(max_examples=50, deadline=None)
def test_masks_cancel_in_the_sum_whatever_is_added(values, k, part):
    among = PARTIES[: len(values)]
    rows = [torch.tensor([row], dtype=torch.int64) for row in values]
    hidden = [
        PairMasks(party, KEYS).over(Summand(row), k, part, among).value
        for party, row in zip(among, rows, strict=True)
    ]
    total = wrapped_sum(torch.cat(hidden))
    right = [(sum(column) + 2**63) % 2**64 - 2**63 for column in zip(*values, strict=True)]
    assert total.tolist() == [right]
    assert torch.equal(total, wrapped_sum(torch.cat(rows)))


def evidence(words):
    """How likely uniform words are to be as uneven as these in any of their eight bytes."""
    spread = words.numpy().astype("<i8").view(np.uint8).reshape(-1, 8)
    return 8 * min(
        stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in spread.T
    )


def test_what_a_server_gets_is_uniform_and_a_message_that_was_not_masked_is_seen():
    """Also once those who collude have taken their masks off."""
    for party in PARTIES:
        assert evidence(masked(party)) > 1e-9
        assert evidence(part_of(party).value) < 1e-100  # planted
    everyone = {party: masked(party) for party in PARTIES}
    for party in (3, 7):  # 0 and 2 pool what they know: the rest hides in each other
        for knowing in (0, 2):
            words = PairMasks(knowing, KEYS)._mask(party, 0, 0, WORDS)
            everyone[party] += torch.from_numpy(words.view(np.int64))
        assert evidence(everyone[party]) > 1e-9
    both = wrapped_sum(torch.cat([everyone[3], everyone[7]]))
    assert torch.equal(both, part_of(3).value + part_of(7).value)
    assert evidence(both) < 1e-100
    # One who is left alone hides in nobody.
    words = PairMasks(0, KEYS)._mask(2, 0, 0, WORDS)
    alone = masked(2, among=(0, 2)) + torch.from_numpy(words.view(np.int64))
    assert torch.equal(alone, part_of(2).value)


def test_rounds_parts_pairs_and_starts_have_masks_of_their_own():
    seen = [
        masked(0),
        masked(0, k=1),
        PairMasks(0, KEYS).over(part_of(0), 0, 1, PARTIES).value,
        masked(0, among=(0, 2)),
        masked(0, among=(0, 3)),
        masked(0, fresh_pair_keys(PAIRS)),
        masked(0, fresh_pair_keys(PAIRS)),
    ]
    for one, other in itertools.combinations(seen, 2):
        assert evidence(one - other) > 1e-9
    assert torch.equal(masked(0), masked(0))


def test_a_position_is_used_once():
    masks = PairMasks(2, KEYS)
    masks.over(part_of(2), 3, 0, PARTIES)
    masks.over(part_of(2), 3, 1, PARTIES)
    for k, part in ((3, 1), (3, 0), (2, 5)):
        with pytest.raises(LeakError, match=f"round {k}, part {part}, after \\(3, 1\\)"):
            masks.over(part_of(2), k, part, PARTIES)
    with pytest.raises(LeakError, match="by those who take part"):
        masks.over(part_of(2), 4, 0, (0, 3))


@pytest.mark.parametrize("colour", [Public, Released, Private, Masked, lambda value: value])
def test_only_summands_are_masked(colour):
    given_value = colour(part_of(0).value)  # type: ignore[operator]
    with pytest.raises(LeakError, match="and only a Summand"):
        PairMasks(0, KEYS).over(given_value, 0, 0, PARTIES)


def test_a_party_without_a_common_key_is_refused():
    with pytest.raises(InputError, match="party = 5: one that party 0 shares a key with"):
        PairMasks(0, KEYS).over(part_of(0), 0, 0, (0, 2, 5))


def test_shape_and_device_stay():
    value = torch.zeros(2, 3, 4, dtype=torch.int64)
    hidden = PairMasks(0, KEYS).over(Summand(value), 0, 0, (0, 2)).value
    assert (hidden.shape, hidden.dtype, hidden.device) == (value.shape, torch.int64, value.device)
    assert PairMasks(0, KEYS).over(Summand(value), 0, 0, (0,)).value.eq(0).all()
