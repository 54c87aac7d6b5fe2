"""How rows are cut into pieces, and shared among threads."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.noise import lattice
from tacit.privacy.noise.lattice import GROUP_PAIRS, Pieces, over_pieces, over_rows


@pytest.fixture
def _three_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@given(
    rows=st.integers(0, 40),
    length=st.integers(0, 3_000),
    most=st.sampled_from([32, 64, 500, 1 << 14]),
)
def test_pieces_are_contiguous_groups_that_cover_each_value_once(rows, length, most):
    pieces = Pieces.of(rows, length, most)
    values = np.zeros((rows, length), np.int64)
    for place in pieces.places():
        piece = values[place]
        piece += 1
        assert piece.flags.c_contiguous
        assert piece.shape[0] <= pieces.height
        assert piece.shape[1] <= 2 * pieces.pairs
        assert place[1].start % (2 * GROUP_PAIRS) == 0
    assert (values == 1).all()
    assert pieces.pairs % GROUP_PAIRS == 0
    assert pieces.pairs <= max(most, GROUP_PAIRS)


@pytest.mark.usefixtures("_three_threads")
def test_threads_share_the_pieces_and_the_rows(monkeypatch):
    monkeypatch.setattr(lattice, "_THREAD_VALUES", 1)
    monkeypatch.setattr(lattice, "_SHARED_VALUES", 1)
    begun = threading.Barrier(3, timeout=30)
    values = np.zeros((9, 640))

    def of_pieces(places):
        begun.wait()
        for place in places:
            values[place] += 1

    over_pieces(Pieces.of(9, 640, 64), of_pieces)

    def of_rows(rows):
        begun.wait()
        values[rows.start : rows.stop] += 1

    over_rows(9, 640, of_rows)
    assert (values == 2).all()


def test_an_error_in_a_thread_is_not_lost(monkeypatch):
    def fails(places):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        over_pieces(Pieces.of(3, 100), fails)
