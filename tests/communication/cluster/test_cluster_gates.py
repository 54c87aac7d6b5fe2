"""StopBarrier: all ranks stop at the same step, whatever their skew and whoever is asked when."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.communication.cluster.cluster import StopBarrier
from tacit.errors import PeerError


class NotYetError(Exception):
    """A rank would wait here."""


class Notes:
    """A store in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.reads = 0

    def set(self, key: str, text: str) -> None:
        assert not (key in self.texts and key != "gates/asked"), "a gate is written once"
        self.texts[key] = text

    def has(self, keys: list[str]) -> bool:
        return all(key in self.texts for key in keys)

    def delete(self, key: str) -> None:
        del self.texts[key]

    def read(self, key: str) -> str:
        self.reads += 1
        if key not in self.texts:
            raise NotYetError
        return self.texts[key]


class StepContext:
    """Ranks that take steps in an order that a generator draws; time goes on as they do."""

    def __init__(self, ranks: int, first: int, pace: Callable[[int], float]) -> None:
        self.notes, self.now, self.pace = Notes(), 0.0, pace
        self.steps = [first] * ranks
        self.stopped: list[int | None] = [None] * ranks
        self.gates = [
            StopBarrier(
                rank,
                first,
                self.notes,
                read=self.notes.read,
                passed=lambda: min(self.steps),
                clock=lambda: self.now,
            )
            for rank in range(ranks)
        ]

    def try_step(self, rank: int, asked: bool) -> bool:
        """One rank asks at its next step; False: it would wait."""
        try:
            if self.gates[rank].stop(self.steps[rank], asked):
                self.stopped[rank] = self.steps[rank]
            else:
                self.now += self.pace(self.steps[rank])
                self.steps[rank] += 1
        except NotYetError:
            return False
        return True

    def run(self, asked_at: dict[int, int], order: random.Random, skew: int, most: int) -> None:
        """Until all have stopped or reached step `most`; messages hold ranks within `skew`."""
        while going := [
            rank
            for rank, stop in enumerate(self.stopped)
            if stop is None and self.steps[rank] < most
        ]:
            least = min(self.steps[rank] for rank in going)
            free = [rank for rank in going if self.steps[rank] <= least + skew]
            order.shuffle(free)
            asked = [self.steps[rank] >= asked_at.get(rank, most) for rank in free]
            went = any(map(self.try_step, free[:1], asked[:1])) or any(
                map(self.try_step, free, asked)
            )
            assert went, "everybody waits"


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.integers(1, 5),
    first=st.integers(0, 50),
    skew=st.integers(0, 40),
    asked=st.dictionaries(st.integers(0, 4), st.integers(0, 120), min_size=1, max_size=3),
    pace=st.sampled_from([0.0, 1e-3, 0.02, 0.3, 5.0]),
    seed=st.integers(0, 10**6),
)
def test_all_ranks_stop_at_the_same_step(
    ranks: int, first: int, skew: int, asked: dict[int, int], pace: float, seed: int
) -> None:
    order = random.Random(seed)
    context = StepContext(ranks, first, lambda step: pace * order.choice([0.1, 1.0, 3.0]))
    asked_at = {rank % ranks: first + after for rank, after in asked.items()}
    context.run(asked_at, order, skew, most=first + 10_000)
    assert len(set(context.stopped)) == 1
    stop = context.stopped[0]
    assert stop is not None
    assert stop >= min(asked_at.values())


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 4), skew=st.integers(0, 30), seed=st.integers(0, 10**6))
def test_nobody_stops_unless_asked_and_old_gates_are_forgotten(
    ranks: int, skew: int, seed: int
) -> None:
    context = StepContext(ranks, 3, lambda step: 0.2)
    context.run({}, random.Random(seed), skew, most=403)
    assert context.stopped == [None] * ranks
    # What is left lies within the skew, or ahead.
    assert len(context.notes.texts) <= skew + 8


@pytest.mark.parametrize("pace", [0.001, 0.01, 0.1, 0.4])
def test_a_stop_comes_within_a_few_seconds_and_is_seldom_looked_for(pace: float) -> None:
    context = StepContext(2, 0, lambda step: pace / 2)  # two ranks that take turns: pace for both
    for _ in range(2000):
        assert context.try_step(0, False)
        assert context.try_step(1, False)
    asked = context.now
    # About half a second apart, once the first gaps, which double, have grown.
    assert context.notes.reads <= context.now / (max(1, int(0.4 / pace)) * pace) + 12
    for _ in range(10_000):
        if context.stopped[1] is not None:
            break
        context.try_step(0, False)
        context.try_step(1, True)
    assert context.now - asked <= 2.5
    for _ in range(10_000):
        if context.stopped[0] is not None:
            break
        assert context.try_step(0, False)
    assert context.stopped[0] == context.stopped[1] is not None


def test_a_rank_that_has_stopped_says_so_again() -> None:
    context = StepContext(1, 0, lambda step: 1.0)
    context.run({0: 5}, random.Random(0), 0, most=100)
    stop = context.stopped[0]
    assert stop is not None
    assert context.gates[0].stop(stop, False)
    assert context.gates[0].stop(stop, True)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[1, true]", '["a", false]', "[" * 100_000])
def test_a_gate_that_makes_no_sense_is_a_lost_peer(text: str) -> None:
    gates = StopBarrier(1, 0, Notes(), read=lambda key: text)
    assert not gates.stop(0, False)
    with pytest.raises(PeerError, match=r"rank 0 sent a (wrong )?gate"):
        gates.stop(1, False)
