"""StopVote: all ranks stop at the same step, whatever their skew and whoever is asked when."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.memory import Board, LateError, MemoryCrew
from few import few
from tacit.communication.received import VOTE
from tacit.communication.stop_vote import StopVote
from tacit.errors import PeerError


class Voter:
    """A rank that makes steps, writes checkpoints, is killed and comes back to one of them."""

    def __init__(self, link, first=0, clock=lambda: 0.0, counted=False):
        self.link, self.first, self.clock, self.counted = link, first, clock, counted
        self.checkpoint: tuple[int, str | None] = (first, None)
        self.asked, self.waits = False, 0
        self.stopped: int | None = None
        self.come()

    def come(self):
        """Take part from the last checkpoint."""
        self.done = False
        self.step, last = self.checkpoint
        counted = lambda: self.counted  # noqa: E731
        self.votes = StopVote(self.link, self.first, counted=counted, last=last, clock=self.clock)

    def keep(self):
        self.checkpoint = (self.step, self.votes.last)

    def go(self, asked=None):
        """One step; False: it would wait."""
        try:
            if self.votes.stop(self.step, self.asked if asked is None else asked):
                assert self.stopped in (None, self.step), "it stopped elsewhere before"
                self.stopped, self.done = self.step, True
            else:
                self.step += 1
        except LateError:
            self.waits += 1
            return False
        return True


class Race:
    """Ranks that take steps in an order that a generator draws; time goes on as they do."""

    def __init__(self, ranks, first, pace, *, counted=False, returns=False):
        self.board, self.now, self.pace = Board(), 0.0, pace
        links = [MemoryCrew(rank, ranks, self.board, returns=returns) for rank in range(ranks)]
        self.voters = [Voter(link, first, lambda: self.now, counted) for link in links]

    @property
    def stopped(self):
        return [voter.stopped for voter in self.voters]

    @property
    def waits(self):
        return sum(voter.waits for voter in self.voters)

    def try_step(self, voter, asked):
        """One rank asks at its next step; False: it would wait."""
        step = voter.step
        went = voter.go(asked)
        self.now += self.pace(step) if voter.step > step else 0.0
        return went

    def run(self, asked_at, order, skew, most, kills=0.0):
        """Until all have stopped or reached step `most`; messages hold ranks within `skew`.

        Now and then a rank writes a checkpoint, or is killed and comes back at its last one.
        """
        while going := [v for v in self.voters if not v.done and v.step < most]:
            least = min(voter.step for voter in going)
            free = [voter for voter in going if voter.step <= least + skew]
            order.shuffle(free)
            asked = [v.step >= asked_at.get(v.link.rank, most) for v in free]
            went = any(map(self.try_step, free[:1], asked[:1])) or any(
                map(self.try_step, free, asked)
            )
            assert went, "everybody waits"
            if kills and order.random() < 0.2:
                free[0].keep()
            if order.random() < kills:
                free[0].come()  # where it had stopped, it finds the same again, or `go` fails


@few(30, 80)
@given(
    ranks=st.integers(1, 5),
    first=st.integers(0, 50),
    skew=st.integers(0, 40),
    asked=st.dictionaries(st.integers(0, 4), st.integers(0, 120), min_size=1, max_size=3),
    pace=st.sampled_from([0.0, 1e-3, 0.02, 0.3, 5.0]),
    counted=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_all_ranks_stop_at_the_same_step(ranks, first, skew, asked, pace, counted, seed):
    order = random.Random(seed)
    race = Race(ranks, first, lambda step: pace * order.choice([0.1, 1.0, 3.0]), counted=counted)
    asked_at = {rank % ranks: first + after for rank, after in asked.items()}
    race.run(asked_at, order, skew, most=first + 10_000)
    assert len(set(race.stopped)) == 1
    stop = race.stopped[0]
    assert stop is not None
    assert stop >= min(asked_at.values())


@few(40, 100)
@given(
    ranks=st.integers(1, 4),
    first=st.integers(0, 50),
    skew=st.integers(0, 30),
    asked=st.integers(0, 120),
    kills=st.floats(0, 0.3),
    counted=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_ranks_that_come_back_stop_where_the_others_do(
    ranks, first, skew, asked, kills, counted, seed
):
    order = random.Random(seed)
    pace = order.choice([0.0, 0.01, 0.05, 0.3])
    race = Race(ranks, first, lambda step: pace, counted=counted, returns=True)
    race.run({0: first + asked}, order, skew, most=first + 10_000, kills=kills)
    assert len(set(race.stopped)) == 1
    assert race.stopped[0] is not None


@few(10, 30)
@given(
    ranks=st.integers(1, 4), skew=st.integers(0, 30), counted=st.booleans(), seed=st.integers(0, 99)
)
def test_nobody_stops_unless_asked_and_little_is_kept(ranks, skew, counted, seed):
    race = Race(ranks, 3, lambda step: 0.2, counted=counted)
    race.run({}, random.Random(seed), skew, most=403)
    assert race.stopped == [None] * ranks
    assert len(race.board.texts) <= 2 * (ranks + counted)


@pytest.mark.parametrize("pace", [0.001, 0.01, 0.1, 0.4])
def test_a_stop_comes_within_a_few_seconds_and_votes_are_seldom(pace):
    race = Race(2, 0, lambda step: pace / 2)  # two ranks that take turns: pace for both
    first, second = race.voters
    for _ in range(2000):
        assert race.try_step(first, False)
        assert race.try_step(second, False)
    asked = race.now
    # About half a second apart, once the first gaps, which double, have grown.
    assert race.board.written <= 2 * (race.now / (max(1, int(0.4 / pace)) * pace) + 12)
    for _ in range(10_000):
        if second.done:
            break
        race.try_step(first, False)
        race.try_step(second, True)
    assert race.now - asked <= 2.5
    assert race.try_step(first, False)
    assert first.stopped == second.stopped is not None


def test_ranks_a_few_steps_apart_do_not_wait_once_the_gaps_have_grown():
    race = Race(3, 0, lambda step: 0.01 / 3)
    order = random.Random(4)
    race.run({}, order, 3, most=100)
    before = race.waits
    race.run({}, order, 3, most=5_000)
    assert race.waits == before


def test_the_slowest_rank_says_how_far_apart_rounds_are():
    board, now = Board(), 0.0
    votes = StopVote(MemoryCrew(0, 2, board), 0, clock=lambda: now)
    rounds = []
    for step in range(20):
        now += 1e-4  # rank 0 would like 5000 steps
        cast, key = board.written, f"vote {len(rounds) - 1}"
        own = board.texts.get((key, 0), "")
        board.texts[key, 1] = own.rpartition(",")[0] + ",3]"
        assert not votes.stop(step, False)
        rounds += [step] * (board.written - cast)
    assert rounds == [0, 1, 2, 4, 7, 10, 13, 16, 19]


def test_a_rank_that_has_stopped_says_so_again():
    race = Race(1, 0, lambda step: 1.0)
    race.run({0: 5}, random.Random(0), 0, most=100)
    (voter,) = race.voters
    assert voter.stopped is not None
    assert voter.votes.stop(voter.stopped, False)
    assert voter.votes.stop(voter.stopped, True)


def test_a_rank_casts_the_vote_that_it_cast_before():
    race = Race(2, 1, lambda step: 0.0, returns=True)
    for _ in range(2):
        assert all(voter.go() for voter in race.voters)
    before = dict(race.board.texts)
    assert before
    first = race.voters[0]
    first.come()
    first.asked = True  # its vote stands all the same
    assert first.go()
    assert first.go()
    assert race.board.texts == before


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "null", "[0]", "[0,1,true]", '[0,1,"a",1]', "[0,1,false,0]", "[-1,1,false,1]"),
        *("[0,1,false,1e3]", "[" * 100_000, "[0,2,false,1]", "[1,1,false,1]", "[2,9,false,1]"),
    ],
)
def test_a_vote_that_makes_no_sense_is_a_lost_peer(text, counted):
    votes = StopVote(MemoryCrew(0, 2, Board(vote_0=text)), 0, counted=lambda: counted)
    assert not votes.stop(0, False)
    with pytest.raises(PeerError, match="rank 1 sent a wrong vote"):
        votes.stop(1, False)


def test_a_vote_that_says_another_round_than_its_own_does_not_hang_who_reads_it():
    race = Race(2, 0, lambda step: 0.0)
    first, board = race.voters[0], race.board
    while ("vote 4", 0) not in board.texts:
        for voter in race.voters:
            voter.go()
    own = VOTE.read(board.texts["vote 4", 0], 0, "vote")
    board.texts["vote 4", 1] = VOTE.write((2, own[1], False, 1))
    with pytest.raises(PeerError, match="rank 1 sent a wrong vote: it is of another round"):
        list(map(first.go, [False] * 20))


def test_who_is_left_out_does_not_hold_up_a_count_and_asks_for_nothing():
    race = Race(3, 0, lambda step: 0.05, counted=True)
    first, second, lost = race.voters
    lost.asked = True
    for voter in race.voters:
        assert voter.go()
    assert not any(voter.go() for voter in (second, second))  # until rank 0 has counted
    first.link.gone.add(2)
    race.board.texts.pop(("vote 0", 2))
    race.voters.remove(lost)
    race.run({1: 30}, random.Random(7), 2, most=10_000)
    assert len(set(race.stopped)) == 1
    assert race.stopped[0] is not None
    assert race.stopped[0] >= 30


@pytest.mark.parametrize("text", ["[]", "[[0,0,false,1]]", "null"])
def test_a_count_that_is_none_is_refused(text):
    board = Board()
    votes = StopVote(MemoryCrew(1, 2, board), 0, counted=lambda: True)
    board.texts["count 0", 0] = text
    assert not votes.stop(0, False)
    with pytest.raises(PeerError, match=r"rank 0 (counted|sent a wrong count)"):
        votes.stop(1, False)
