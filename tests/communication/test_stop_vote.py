"""StopVote: all ranks stop at the same step, whatever their skew and whoever is asked when."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.communication.stop_vote import StopVote
from tacit.errors import PeerError


class NotYetError(Exception):
    """A rank would wait here."""


class Pocket:
    """Facts in memory."""

    def __init__(self, **texts):
        self.texts = {key.replace("_", "/"): text for key, text in texts.items()}
        self.written = 0

    def put(self, key, text):
        self.written += 1
        self.texts[key] = text
        return text

    def has(self, keys):
        return all(key in self.texts for key in keys)

    def get_all(self, keys):
        return [self.texts[key] for key in keys]

    def close(self):
        """It stays."""


def no_wait(missing):
    if missing():
        raise NotYetError


class Race:
    """Ranks that take steps in an order that a generator draws; time goes on as they do."""

    def __init__(self, ranks, first, pace):
        self.facts, self.now, self.pace = Pocket(), 0.0, pace
        self.steps = [first] * ranks
        self.stopped: list[int | None] = [None] * ranks
        self.votes = [self.vote_of(rank, first) for rank in range(ranks)]
        self.waits = 0

    def vote_of(self, rank, first):
        ranks = len(self.steps)
        return StopVote(rank, ranks, first, self.facts, wait=no_wait, clock=lambda: self.now)

    def try_step(self, rank, asked):
        """One rank asks at its next step; False: it would wait."""
        try:
            if self.votes[rank].stop(self.steps[rank], asked):
                self.stopped[rank] = self.steps[rank]
            else:
                self.now += self.pace(self.steps[rank])
                self.steps[rank] += 1
        except NotYetError:
            self.waits += 1
            return False
        return True

    def run(self, asked_at, order, skew, most, crashes=0.0):
        """Until all have stopped or reached step `most`; messages hold ranks within `skew`.

        Now and then a rank crashes, and comes back at one of the steps since its last crash.
        """
        starts = list(self.steps)
        while going := [
            rank
            for rank, stop in enumerate(self.stopped)
            if stop is None and self.steps[rank] < most
        ]:
            least = min(self.steps[rank] for rank in going)
            free = [rank for rank in going if self.steps[rank] <= least + skew]
            order.shuffle(free)
            if order.random() < crashes:
                rank = free[0]
                self.steps[rank] = starts[rank] = order.randint(starts[rank], self.steps[rank])
                self.votes[rank] = self.vote_of(rank, starts[rank])
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
def test_all_ranks_stop_at_the_same_step(ranks, first, skew, asked, pace, seed):
    order = random.Random(seed)
    race = Race(ranks, first, lambda step: pace * order.choice([0.1, 1.0, 3.0]))
    asked_at = {rank % ranks: first + after for rank, after in asked.items()}
    race.run(asked_at, order, skew, most=first + 10_000)
    assert len(set(race.stopped)) == 1
    stop = race.stopped[0]
    assert stop is not None
    assert stop >= min(asked_at.values())


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.integers(1, 4),
    first=st.integers(0, 50),
    skew=st.integers(0, 10),
    asked=st.integers(0, 120),
    crashes=st.floats(0, 0.3),
    seed=st.integers(0, 10**6),
)
def test_ranks_that_come_back_stop_where_the_others_do(ranks, first, skew, asked, crashes, seed):
    order = random.Random(seed)
    race = Race(ranks, first, lambda step: 0.05)
    race.run({0: first + asked}, order, skew, most=first + 10_000, crashes=crashes)
    assert len(set(race.stopped)) == 1
    assert race.stopped[0] is not None


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 4), skew=st.integers(0, 30), seed=st.integers(0, 10**6))
def test_nobody_stops_unless_asked_and_little_is_kept(ranks, skew, seed):
    race = Race(ranks, 3, lambda step: 0.2)
    race.run({}, random.Random(seed), skew, most=403)
    assert race.stopped == [None] * ranks
    assert len(race.facts.texts) <= 2 * ranks


@pytest.mark.parametrize("pace", [0.001, 0.01, 0.1, 0.4])
def test_a_stop_comes_within_a_few_seconds_and_votes_are_seldom(pace):
    race = Race(2, 0, lambda step: pace / 2)  # two ranks that take turns: pace for both
    for _ in range(2000):
        assert race.try_step(0, False)
        assert race.try_step(1, False)
    asked = race.now
    # About half a second apart, once the first gaps, which double, have grown.
    assert race.facts.written <= 2 * (race.now / (max(1, int(0.4 / pace)) * pace) + 12)
    for _ in range(10_000):
        if race.stopped[1] is not None:
            break
        race.try_step(0, False)
        race.try_step(1, True)
    assert race.now - asked <= 2.5
    assert race.try_step(0, False)
    assert race.stopped[0] == race.stopped[1] is not None


def test_ranks_a_few_steps_apart_do_not_wait_once_the_gaps_have_grown():
    race = Race(3, 0, lambda step: 0.01 / 3)
    order = random.Random(4)
    race.run({}, order, 3, most=100)
    before = race.waits
    race.run({}, order, 3, most=5_000)
    assert race.waits == before


def test_the_slowest_rank_says_how_far_apart_rounds_are():
    facts = Pocket()
    now = 0.0
    votes = StopVote(0, 2, 0, facts, wait=no_wait, clock=lambda: now)
    rounds: list[int] = []
    for step in range(20):
        now += 1e-4  # rank 0 would like 5000 steps
        place, cast = (len(rounds) - 1) % 2, facts.written
        own = facts.texts.get(f"stop/{place}/0", "")
        facts.texts[f"stop/{place}/1"] = own.rpartition(",")[0] + ",3]"
        assert not votes.stop(step, False)
        rounds += [step] * (facts.written - cast)
    assert rounds == [0, 1, 2, 4, 7, 10, 13, 16, 19]


def test_a_rank_that_has_stopped_says_so_again():
    race = Race(1, 0, lambda step: 1.0)
    race.run({0: 5}, random.Random(0), 0, most=100)
    stop = race.stopped[0]
    assert stop is not None
    assert race.votes[0].stop(stop, False)
    assert race.votes[0].stop(stop, True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[0,1,true]", '[0,1,"a",1]', "[0,1,false,0]", "[0,1,false,1e3]", "[" * 100_000),
        *("[0,2,false,1]", "[1,1,false,1]", "[2,9,false,1]", "[-2,1,false,1]"),
    ],
)
def test_a_vote_that_makes_no_sense_is_a_lost_peer(text):
    facts = Pocket(stop_0_1=text)
    votes = StopVote(0, 2, 0, facts, wait=no_wait)
    assert not votes.stop(0, False)
    with pytest.raises(PeerError, match="rank 1 sent a wrong vote"):
        votes.stop(1, False)
