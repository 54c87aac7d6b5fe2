"""What comes from another process is believed by nobody."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.communication.exchange.messages import (
    HEADER_BYTES,
    Envelope,
    MessageLayout,
    check,
    read_header,
    unfinite,
    write_header,
)
from tacit.errors import PeerError

LAYOUT = MessageLayout((torch.Size([3]), torch.Size([])), torch.float64, (2, 5))
EXPECTED = Envelope(sender=1, kind="mix", step=7, turn=9, layout=LAYOUT)


def message(envelope: Envelope, extra: int = 0) -> torch.Tensor:
    content = write_header(envelope) + bytes(envelope.layout.payload + extra)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def test_the_header_is_laid_out_as_documented() -> None:
    header = write_header(EXPECTED)
    assert len(header) == HEADER_BYTES == 64
    assert header[:8] == b"tacit\x00\x00\x01"
    assert struct.unpack("<II", header[8:16]) == (1, 1)
    assert struct.unpack("<qq", header[16:32]) == (7, 9)
    assert struct.unpack("<IIqq", header[32:56]) == (2, 2, 4, 2 * 4 * 8)
    assert header[56:] == bytes(8)
    assert EXPECTED.size == 64 + 64


def test_the_expected_message_passes() -> None:
    check(message(EXPECTED), EXPECTED)
    coded = replace(EXPECTED, layout=replace(LAYOUT, sizes=(5, 0)))
    assert coded.size == 64 + 5
    check(message(coded), coded)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (replace(EXPECTED, sender=2), "sender is 2 and must be 1"),
        (replace(EXPECTED, kind="swap"), "kind of exchange is 2 and must be 1"),
        (replace(EXPECTED, step=8), "step is 8 and must be 7"),
        (replace(EXPECTED, turn=10), "number of exchanges before is 10 and must be 9"),
        (
            replace(EXPECTED, layout=replace(LAYOUT, dtype=torch.float32)),
            "dtype is 1 and must be 2",
        ),
        (replace(EXPECTED, layout=replace(LAYOUT, nodes=(2,))), "rows is 1 and must be 2"),
        (
            replace(EXPECTED, layout=replace(LAYOUT, shapes=(torch.Size([4]),) * 2)),
            "numbers in a row is 8 and must be 4",
        ),
        (
            replace(EXPECTED, layout=replace(LAYOUT, sizes=(1, 2))),
            "bytes is 3 and must be 64",
        ),
    ],
)
def test_a_header_that_says_something_else_is_refused(sent: Envelope, said: str) -> None:
    with pytest.raises(PeerError, match="rank 1 sent a bad message at step 7") as refusal:
        check(message(sent), EXPECTED)
    assert said in str(refusal.value)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 129])
def test_a_message_of_another_length_is_refused(length: int) -> None:
    whole = message(EXPECTED, extra=10)[:length]
    with pytest.raises(PeerError, match="rank 1 sent a bad message"):
        check(whole, EXPECTED)


@given(st.binary(max_size=200))
def test_no_bytes_but_a_header_of_ours_are_read(content: bytes) -> None:
    found = read_header(content)
    assert (found is None) == (not content.startswith(b"tacit\x00\x00\x01") or len(content) < 64)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_with_a_number_that_is_not_finite_are_found(bad: float) -> None:
    first, second = torch.zeros(4, 3), torch.zeros(4)
    assert unfinite([first, second]) == []
    first[2, 1] = bad
    assert unfinite([first, second]) == [2]
    second[0] = bad
    assert unfinite([first, second]) == [0, 2]


def test_finite_numbers_whose_sum_is_not_are_no_fault() -> None:
    large = torch.full((2, 3), torch.finfo(torch.float64).max, dtype=torch.float64)
    assert unfinite([large]) == []
    assert unfinite([torch.zeros(0, 3)]) == []
