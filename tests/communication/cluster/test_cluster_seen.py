"""What a rank knows of the others without asking them: from their heartbeats."""

import threading

import pytest
from joined import LIMIT, clusters, until

from tacit.communication.peers import ALONE
from tacit.communication.received import STEP

pytestmark = pytest.mark.process


def test_one_process_sees_itself():
    (own,) = ALONE.seen()
    assert (own.rank, own.name, own.state, own.waiting_for) == (0, "rank 0", "connected", ())


def test_steps_waits_and_ends_of_all_are_seen_in_the_order_of_ranks():
    with clusters(3) as ranks:
        ranks[0].at(4)
        ranks[2].at(5)
        ranks[2].waiting(1)
        until(lambda: ranks[1].seen()[0].step == 4 and ranks[1].seen()[2].waiting_for == (1,))
        seen = ranks[1].seen()
        assert [state.rank for state in seen] == [0, 1, 2]
        assert [state.step for state in seen] == [4, None, 5]
        assert [state.state for state in seen] == ["connected"] * 3
        assert ranks[2].seen()[2].waiting_for == (1,)
        closing = threading.Thread(target=ranks[2].close)
        closing.start()
        until(lambda: ranks[1].seen()[2].state == "done")
        closing.join(LIMIT)


def test_who_has_not_shared_is_who_is_waited_for():
    with clusters(3) as ranks:
        answers: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda r=r: answers.append(ranks[r].share("a", r, STEP)))
            for r in range(3)
        ]
        threads[0].start()
        until(lambda: ranks[0].seen()[0].waiting_for == (1, 2))
        threads[1].start()
        until(lambda: ranks[0].seen()[0].waiting_for == (2,))
        threads[2].start()
        for thread in threads:
            thread.join(LIMIT)
        assert answers == [[0, 1, 2]] * 3
        assert ranks[0].seen()[0].waiting_for == ()


def test_a_rank_that_is_silent_is_away():
    with clusters(2, timeout=40.0) as ranks:
        until(lambda: ranks[0].seen()[1].state == "connected")
        ranks[1]._watch._ending.set()  # it says nothing from now on, as where its network is cut
        until(lambda: ranks[0].seen()[1].state == "away")
        quiet = ranks[0].seen()[1].quiet
        assert quiet is not None
        assert quiet > 0
