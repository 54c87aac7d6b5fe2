"""Metrics of a rack come together at rank 0, which waits for nobody as long as it can."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Hub, Outcome, ThreadChannel, run_threads

from tacit.communication.cluster.channel import RackGatherer
from tacit.errors import PeerError

NAMES = ["rank 0", "rank 1", "rank 2", "rank 3"]
NUMBERS = [1000, 1001, 0, 1003]  # by rank
STEPS = [0, 10, 20, 30, 40, 50]


def part(rank, step):
    return torch.arange(NUMBERS[rank], dtype=torch.float64) / 3 + 1000 * rank + step


def gatherer(channel, steps):
    """One for which the heartbeats say what stands in `steps`."""
    names = NAMES[: channel.processes]
    return RackGatherer(channel, names, NUMBERS, lambda rank, step: steps[rank] >= step)


@settings(deadline=None, max_examples=10)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.002, 0.01]), min_size=len(STEPS), max_size=len(STEPS)),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_any_skew_gives_the_same_marks(pauses, told):
    """Whether the heartbeats come at once or never."""
    steps = [-1] * len(pauses)

    def gather(seat):
        own, marks = gatherer(seat.channel, steps), []
        for step, pause in zip(STEPS, pauses[seat.rank], strict=True):
            time.sleep(pause)
            own.put(step, part(seat.rank, step))
            if told:
                steps[seat.rank] = step
            marks += own.ready()
        own.finish()
        marks += own.ready()
        return [[step, [numbers.tolist() for numbers in parts]] for step, parts in marks]

    ranks = range(len(pauses))
    right = [[step, [part(rank, step).tolist() for rank in ranks]] for step in STEPS]
    assert run_threads(gather, len(pauses)) == [Outcome(0, [] if rank else right) for rank in ranks]


@pytest.fixture
def pair():
    """Channels of two ranks, closed in the end so that no thread waits on."""
    hub = Hub(2)
    channels = [ThreadChannel(hub, rank, 20.0) for rank in (0, 1)]
    yield channels
    for channel in channels:
        channel.close()


def test_rank_0_waits_before_a_mark_for_the_parts_of_the_one_before(pair):
    first, second = (gatherer(channel, [-1, -1]) for channel in pair)
    first.put(0, part(0, 0))
    assert first.ready() == []  # whatever has come: nobody is waited for
    later = threading.Timer(0.1, second.put, (0, part(1, 0)))
    later.start()
    first.put(10, part(0, 10))
    later.join(10)
    ((step, parts),) = first.ready()
    assert (step, [len(one) for one in parts]) == (0, NUMBERS[:2])
    assert first.ready() == []


def test_a_lost_rank_is_named_where_the_run_waits(pair):
    first = gatherer(pair[0], [-1, -1])
    first.put(0, part(0, 0))
    pair[1].close()
    assert first.ready() == []
    with pytest.raises(PeerError, match="rank 1 was lost: its connection was closed"):
        first.finish()
