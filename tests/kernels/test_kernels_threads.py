"""The pool of threads: all shares at once, errors kept, and a pool of its own after a fork."""

import os
import threading
import time

import pytest
import torch

from tacit.kernels.threads import over_threads, over_threads_of_products


def test_all_shares_are_worked_on_at_once():
    together, seen = threading.Barrier(5, timeout=30), set()

    def work(share):
        together.wait()
        seen.add(share)

    over_threads(work, list(range(5)))
    assert seen == set(range(5))


def test_a_single_share_stays_on_the_thread_that_asks():
    threads: list[int] = []
    over_threads(lambda share: threads.append(threading.get_ident()), [0])
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("shares", [1, 3])
def test_an_error_is_raised_when_all_have_ended(shares):
    begun, ended = threading.Barrier(shares, timeout=30), []

    def work(share):
        begun.wait()
        if share == 0:
            raise ZeroDivisionError
        time.sleep(0.2)
        ended.append(share)

    with pytest.raises(ZeroDivisionError):
        over_threads(work, list(range(shares)))
    assert sorted(ended) == list(range(1, shares))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_threads_of_its_own():
    over_threads(lambda share: None, [0, 1])
    child = os.fork()
    if child == 0:
        seen: list[int] = []
        try:
            over_threads(seen.append, [1, 2])
        finally:
            os._exit(0 if sorted(seen) == [1, 2] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("shares", [1, 3])
def test_products_of_a_share_take_one_thread_and_record_no_gradients(shares):
    before, seen = torch.get_num_threads(), []

    def work(share):
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))

    try:
        torch.set_num_threads(3)
        over_threads_of_products(work, list(range(shares)))
        assert seen == [(3 if shares == 1 else 1, False)] * shares
        assert (torch.get_num_threads(), torch.is_grad_enabled()) == (3, True)
    finally:
        torch.set_num_threads(before)
