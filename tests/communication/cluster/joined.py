"""Clusters for tests: threads of this process stand for ranks, over a real store on loopback."""

import threading
from contextlib import contextmanager

from tacit.communication.cluster.rendezvous import connect
from tacit.communication.cluster.store import host_store

LIMIT = 30.0  # seconds for anything that must end


@contextmanager
def kept_store():
    """A store of its own on loopback, as a launcher keeps it; gives its port."""
    server = host_store("127.0.0.1", 0, LIMIT)
    try:
        yield server.port
    finally:
        del server


def variables(rank, processes, port, **others):
    """The environment of one rank, as a launcher sets it."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "a-run",
        **others,
    }


def at_once(work, ranks):
    """What each rank's work returns, or the exception that it raises, in the order of ranks."""
    results = {}

    def one(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return [results[rank] for rank in ranks]


def meet_at(port, processes, *, timeout=10.0, start_up=LIMIT, **others):
    """All ranks of a cluster, in this process."""

    def one(rank):
        environment = variables(rank, processes, port, **others)
        return connect(environment, timeout=timeout, start_up=start_up)

    return at_once(one, range(processes))


@contextmanager
def clusters(processes, *, timeout=10.0, start_up=LIMIT):
    """All ranks of a cluster over a store of their own, closed at the end."""
    with kept_store() as port:
        ranks = meet_at(port, processes, timeout=timeout, start_up=start_up)
        try:
            yield ranks
        finally:
            for cluster in ranks:
                cluster.close()


def until(condition):
    """Wait, a limited time, for something that another thread does."""
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")
