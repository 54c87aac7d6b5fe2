"""Records are known again by their numbers, whatever else has changed about them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.identity import record_digests

KEY = b"a secret key"


def test_a_digest_is_that_of_the_numbers() -> None:
    """The oracle: BLAKE2b with the key, of the record as float32, least significant byte first,

    without zeros at its ends.
    """
    inputs = torch.tensor([[0.5, -0.0, 3.0], [1.0, 2.0, 1e30]])
    found = record_digests(inputs, KEY)
    for row, digest in zip(((0.5, 0.0, 3.0), (1.0, 2.0, 1e30)), found, strict=True):
        content = np.array(row, "<f4").tobytes().strip(b"\0")
        known = hashlib.blake2b(content, digest_size=8, key=KEY).digest()
        assert int(digest) == int.from_bytes(known, "little")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(-1000, 1000), min_size=4, max_size=4), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_type_shape_and_order_do_not_matter(rows: list[list[int]], random: object) -> None:
    inputs = torch.tensor(rows)
    known = record_digests(inputs, KEY)
    for dtype in (torch.float32, torch.float64, torch.int16, torch.int64):
        assert (record_digests(inputs.to(dtype), KEY) == known).all()
    assert (record_digests(inputs.reshape(-1, 2, 2), KEY) == known).all()
    order = torch.randperm(len(inputs))
    assert (record_digests(inputs[order], KEY) == known[order.numpy()]).all()
    # Equal records and no others have equal digests.
    bare = [np.trim_zeros(row).tolist() for row in np.array(rows)]
    same = [[one == other for other in bare] for one in bare]
    assert ((known[:, None] == known[None, :]) == np.array(same)).all()


def test_what_float32_cannot_tell_apart_is_the_same_record() -> None:
    third = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    assert record_digests(third, KEY) == record_digests(third.float(), KEY)
    assert record_digests(third, KEY) == record_digests(third + 1e-12, KEY)
    assert record_digests(third, KEY) != record_digests(third + 1e-6, KEY)


def test_the_width_of_a_record_does_not_matter() -> None:
    """A file that leaves zeros out is as wide as its widest record, and may count from 0 or 1."""
    inputs = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    known = record_digests(inputs, KEY)
    zeros = torch.zeros(3, 2)
    for wider in ([inputs, zeros], [zeros, inputs], [zeros, inputs, zeros]):
        assert (record_digests(torch.cat(wider, dim=1), KEY) == known).all()
    assert len(set(known.tolist())) == 3
    assert record_digests(torch.tensor([[1.0, 2.0, 0.0]]), KEY) != known[0]


def test_another_key_gives_other_digests() -> None:
    inputs = torch.arange(12.0).reshape(4, 3)
    assert not set(record_digests(inputs, KEY)) & set(record_digests(inputs, b"another"))


@pytest.mark.parametrize("count", [0, 1, 4096, 4097])
def test_every_record_has_one(count: int) -> None:
    inputs = torch.arange(count * 2, dtype=torch.float32).reshape(count, 2)
    assert len(set(record_digests(inputs, KEY).tolist())) == count
