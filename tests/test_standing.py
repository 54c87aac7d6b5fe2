"""A call in a thread of its own stands still where it says so, and ends when it is told to."""

import pytest
import torch

import tacit
from tacit.base.standing import StandingCall


def test_it_says_what_it_stands_with_and_gives_its_end():
    def work(stand):
        stand("first")
        stand("second")
        return "end"

    call = StandingCall(work)
    assert [call.go_on() for _ in range(3)] == ["first", "second", "end"]
    call.end()


def test_who_is_ended_cleans_up_before_that_returns():
    seen = []

    def work(stand):
        try:
            stand(None)
        except tacit.PeerError as error:
            seen.append(str(error))
            raise

    call = StandingCall(work)
    call.go_on()
    call.end()
    assert seen == ["this party's run is closed; whoever opens it goes on"]
    StandingCall(work).end()  # which has never begun
    assert len(seen) == 1


def test_an_error_comes_to_whoever_goes_on():
    def work(stand):
        raise tacit.BudgetError("nothing is left")

    with pytest.raises(tacit.BudgetError, match="nothing is left"):
        StandingCall(work).go_on()


def test_its_operations_take_as_many_threads_as_were_set():
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert StandingCall(lambda stand: torch.get_num_threads()).go_on() == threads
    finally:
        torch.set_num_threads(before)
