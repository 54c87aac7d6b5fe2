"""Ranks that die, hang or end, and a rendezvous that goes: everybody finds out, and says the same.

Real processes where a process must die: all are started at once, as loading torch takes them long.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from joined import LIMIT, at_once, clusters, kept_store, until, variables

from forks import forked_process
from tacit.communication.cluster.rendezvous import connect
from tacit.communication.cluster.store import host_store
from tacit.communication.cluster.watch import beat_of, silence_of
from tacit.communication.peers import ALONE
from tacit.communication.received import STEP
from tacit.errors import PeerError, TacitError

pytestmark = pytest.mark.process

TIMEOUT = 16.0
HOSTS = [[0, 1, 2], [3, 4], [5]]

PEER = """
import os, time
from tacit.communication.cluster.rendezvous import connect
from tacit.errors import TacitError
for run in ("stopped", "killed"):
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": run}
    cluster = connect(environment, timeout=float(os.environ["TIMEOUT"]), start_up=60.0)
    cluster.at(7)
    print("ready", flush=True)
    for _ in range(6000):
        try:
            cluster.check()
        except TacitError as error:
            print(error, flush=True)
            break
        time.sleep(0.01)
    cluster.close()
"""


def keep(port):
    """Keep a store, and say where it is."""
    server = host_store("127.0.0.1", 0, LIMIT)
    port.send(server.port)
    time.sleep(2 * LIMIT)


@contextmanager
def kept_elsewhere():
    """A process that keeps a store, and the store's port."""
    ends, theirs = multiprocessing.Pipe()
    keeper = forked_process(keep, theirs, daemon=True)
    keeper.start()
    try:
        assert ends.poll(4 * LIMIT)
        yield keeper, ends.recv()
    finally:
        keeper.kill()
        keeper.join(LIMIT)


def line_of(process):
    """The next line that a process prints; to load torch takes it long on a busy machine."""
    killer = threading.Timer(4 * LIMIT, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        return process.stdout.readline().strip()
    finally:
        killer.cancel()


@contextmanager
def started(code, environment):
    """A process of a program."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def joined(peer, port, run):
    """Ranks 0 and 1 of a run whose rank 2 is the peer."""

    def one(rank):
        environment = variables(rank, 3, port, TORCHELASTIC_RUN_ID=run)
        return connect(environment, timeout=TIMEOUT, start_up=60.0)

    ranks = at_once(one, range(2))
    for cluster in ranks:
        cluster.hosts = HOSTS
    assert line_of(peer) == "ready"
    # Its heartbeat has told them where it is.
    until(lambda: all(cluster._watch.seen[2].heartbeat.step == 7 for cluster in ranks))
    return ranks


def failure(cluster):
    try:
        cluster.check()
    except TacitError as error:
        return error
    return None


def test_a_rank_that_stops_and_then_one_that_dies_is_named_by_all():
    with kept_store() as port:
        environment = {**variables(2, 3, port), "TIMEOUT": str(TIMEOUT)}
        with started(PEER, environment) as peer:
            stopped_and_killed(peer, port)


def stopped_and_killed(peer, port):
    ranks = joined(peer, port, "stopped")
    peer.send_signal(signal.SIGSTOP)
    until(lambda: all(failure(cluster) for cluster in ranks))
    lines = {str(failure(cluster)) for cluster in ranks}
    assert len(lines) == 1
    line = lines.pop()
    assert line.startswith("rank 2 (node 5) was lost, last seen at step 7: it has given no")
    peer.send_signal(signal.SIGCONT)
    assert line_of(peer) == line  # it wakes, and learns that it was given up
    close(ranks)

    ranks = joined(peer, port, "killed")
    peer.kill()
    until(lambda: all(cluster._watch.seen[2].missed >= 2 for cluster in ranks))
    errors = at_once(lambda rank: ranks[rank].diagnose(2, "connection closed"), range(2))
    assert {str(error) for error in errors} == {str(errors[0])}
    assert type(errors[0]) is PeerError
    assert str(errors[0]).startswith("rank 2 (node 5) was lost, last seen at step 7: it ")
    assert "--resume" in str(errors[0])
    close(ranks)


def test_a_rendezvous_that_hangs_is_lost():
    with kept_elsewhere() as (keeper, port):
        ranks = at_once(lambda rank: connect(variables(rank, 2, port), timeout=2.0), range(2))
        os.kill(keeper.pid, signal.SIGSTOP)
        rendezvous_is_lost(ranks, port)


def test_a_rendezvous_that_ends_is_lost():
    with kept_store() as port:
        ranks = at_once(lambda rank: connect(variables(rank, 2, port), timeout=2.0), range(2))
    rendezvous_is_lost(ranks, port)


def rendezvous_is_lost(ranks, port):
    until(lambda: all(failure(cluster) for cluster in ranks))
    for cluster in ranks:
        line = str(failure(cluster))
        assert line.startswith(f"the rendezvous at 127.0.0.1:{port} was lost: the launcher")
        assert str(cluster.diagnose(0, "closed")) == line
        with pytest.raises(PeerError, match="rendezvous"):
            cluster.share("plan", 1, STEP)
        cluster.report(PeerError("nobody hears it"))
    close(ranks)


def close(ranks):
    """Each on a thread, so that one that hangs is a failure."""
    at_once(lambda rank: ranks[rank].close(), range(len(ranks)))


def test_a_rank_that_has_closed_is_not_missed():
    timeout = 4.0  # a busy machine must not make the others seem silent
    with clusters(3, timeout=timeout) as ranks:
        ranks[2].close()
        looks = [cluster._watch.looks for cluster in ranks]
        wanted = 2 * silence_of(timeout) / beat_of(timeout)
        until(lambda: all(ranks[rank]._watch.looks > looks[rank] + wanted for rank in (0, 1)))
        assert [failure(cluster) for cluster in ranks[:2]] == [None, None]
        assert "rank 2 has ended" in str(ranks[0].diagnose(2, "closed"))


def test_the_last_of_a_chain_of_waits_is_blamed_by_all():
    with clusters(3, timeout=4.0) as ranks:
        ranks[2].at(17)
        ranks[1].waiting(2)
        until(lambda: ranks[0]._watch.seen[1].heartbeat.waiting == 2)
        until(lambda: all(ranks[rank]._watch.seen[2].heartbeat.step == 17 for rank in (0, 1)))
        errors = at_once(lambda rank: ranks[rank].diagnose(rank + 1, "nothing for 4 s"), [0, 1])
        assert {str(error) for error in errors} == {str(errors[0])}
        assert str(errors[0]).startswith("rank 2 is alive at step 17, but has sent nothing (")
        # The rank that is blamed, should it come back, learns why it is alone.
        until(lambda: failure(ranks[2]) is not None)
        assert str(failure(ranks[2])) == str(errors[0])


@pytest.mark.parametrize("timeout", [0.1, 1.0, 5.0, 20.0, 60.0, 3600.0])
def test_a_silence_is_noticed_within_the_timeout(timeout):
    assert beat_of(timeout) <= 0.5
    assert 5 * beat_of(timeout) <= silence_of(timeout) <= max(timeout / 4, 0.25)


# What a rank knows of the others without asking them: from their heartbeats.


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
        answers = []
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
