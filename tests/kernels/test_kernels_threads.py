"""Rows shared among threads: all of them, each once, in this process and in a child of it."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.kernels.threads import over_rows

MANY = 1 << 24  # numbers: enough for any count of threads


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 20), st.sampled_from([0, MANY]), st.integers(1, 4))
def test_every_row_is_worked_on_once(rows: int, numbers: int, threads: int) -> None:
    seen = np.zeros(rows, np.int64)

    def work(part: slice) -> None:
        seen[part] += 1

    over_rows(rows, numbers, threads, work)
    assert (seen == 1).all()


def test_few_numbers_stay_on_the_callers_thread() -> None:
    names = []
    over_rows(8, 1000, 4, lambda part: names.append(threading.current_thread().name))
    assert names == [threading.current_thread().name]


def test_an_error_on_another_thread_is_raised_here() -> None:
    def work(part: slice) -> None:
        if part.start:
            raise ValueError(part.start)

    with pytest.raises(ValueError, match="4"):
        over_rows(8, MANY, 2, work)


def _work_in_a_child() -> None:
    over_rows(8, MANY, 2, lambda part: None)


def test_a_forked_process_has_threads_of_its_own() -> None:
    _work_in_a_child()
    child = multiprocessing.get_context("fork").Process(target=_work_in_a_child)
    child.start()
    child.join(30)
    assert child.exitcode == 0
