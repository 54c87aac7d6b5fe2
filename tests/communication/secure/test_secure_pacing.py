"""When frames are sent again: never before the time that was measured, then twice as late."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tacit.communication.secure import pacing
from tacit.communication.secure.pacing import Pace
from tacit.communication.secure.streams import Outgoing

SECONDS = st.floats(1e-3, 1e4)
SIZES = st.integers(1, 2**30)
SEEN = st.lists(st.tuples(SECONDS, SIZES), max_size=30)


def paced(seen):
    pace = Pace()
    for seconds, size in seen:
        pace = pace.acknowledged(seconds, size)
    return pace


@given(seen=SEEN, size=SIZES)
def test_nothing_is_sent_again_before_the_time_that_was_measured(seen, size):
    wait = paced(seen).wait(size)
    assert wait >= pacing.LEAST
    assert wait >= size / max([pacing.SLOWEST, *(b / s for s, b in seen)])
    if seen:
        assert wait >= min(seconds for seconds, _ in seen)


@given(seconds=SECONDS, size=SIZES, times=st.integers(1, 30))
def test_a_way_that_does_not_change_is_given_longer_than_it_needs(seconds, size, times):
    assert paced([(seconds, size)] * times).wait(size) > seconds


@given(seen=SEEN, size=SIZES, attempts=st.integers(0, 60))
def test_each_attempt_waits_twice_as_long_up_to_a_limit(seen, size, attempts):
    first = pace = paced(seen)
    for _ in range(attempts):
        before, pace = pace.wait(size), pace.again()
        assert pace.wait(size) in (2 * before, max(first.wait(size), pacing.LONGEST))
    assert pace.acknowledged(1.0, size).attempts == 0
    assert pace.unclear().attempts == pace.attempts // 2
    assert replace(pace.unclear(), attempts=0) == first  # what was sent twice measures nothing


def handed(seen):
    """A stream of which the engine has taken frames of these sizes, at 0, 1, 2 ... seconds."""
    out = Outgoing(number=len(seen), published=len(seen))
    for number, size in enumerate(seen):
        out.took(number, float(number), number + 0.5, size, out.under_way + size)
    return out


@given(sizes=st.lists(SIZES, min_size=1, max_size=10), share=st.floats(0.0, 0.999))
def test_the_clock_runs_from_when_the_engine_had_taken_the_oldest_frame(sizes, share):
    out = handed(sizes)
    assert (out.frames, out.again, out.under_way) == (len(sizes), 0, sum(sizes))
    under_way = sum(sizes)
    wait = out.pace.wait(under_way)
    assert not out.looked(0.5 + share * wait, 0, under_way)
    assert out.looked(0.5 + 1.001 * wait, 0, under_way)
    assert (out.published, out.under_way, out.pace.attempts) == (0, 0, 1)
    assert not out.looked(1e9, 0, 0)  # the engine has not taken them anew
    out.took(0, 1e9, 1e9, sizes[0], sizes[0])
    assert (out.frames, out.again) == (len(sizes) + 1, 1)
    out.acknowledge(1, 1e9 + 5)
    assert out.pace.trip is None


def test_a_way_that_was_lost_begins_anew():
    out = handed([100, 200, 300])
    out.acknowledge(1, 4.0)
    out.answer()
    assert out.published == 1
    assert out.pace.trip == 4.0
    out.published = 3
    out.answer()  # it was asked for the same frame before
    assert out.published == 3
    assert out.looked(5.0, 1, 0)
    assert (out.published, out.pace, out.asked) == (1, Pace(), -1)
    assert not out.looked(5.1, 1, 0)


def test_the_rate_is_what_was_acknowledged_in_the_last_seconds():
    out = handed([1000] * 20)
    assert out.rate == 0.0
    for second in range(20):
        out.looked(float(second), 0, 0)
        out.acknowledge(second + 1, second + 0.5)
    assert out.rate == 1000.0
