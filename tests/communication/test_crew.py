"""What a crew promises, whatever joins it: a rack's store, wires between sites, or memory."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter

import consortia
from communication.cluster.joined import at_once, clusters
from communication.memory import crew_of
from communication.secure import mesh as meshes
from communication.secure.mesh import Mesh, formed
from tacit.communication.received import STEP, Form
from tacit.communication.secure.certificates import Certificates
from tacit.communication.secure.sites import SiteCluster
from tacit.errors import PeerError, TacitError

ANYTHING = Form(TypeAdapter(object))
SHORT = 2.0  # seconds until somebody is lost


@contextmanager
def in_memory(processes, folder, limit):
    yield crew_of(processes, limit=limit)


@contextmanager
def of_rack(processes, folder, limit):
    with clusters(processes, timeout=limit, start_up=limit) as found:
        yield found


class Nobody:
    """A carrier that is not asked for anything here."""

    def close(self):
        """Nothing is open."""


@contextmanager
def of_sites(processes, folder, limit):
    member = next(iter(consortia.consortium(folder / "consortium", days=30).values()))
    until = datetime.now(UTC) + timedelta(days=1)
    with formed(Mesh(processes), folder) as wires:
        yield [
            SiteCluster(
                wire, Nobody(), Certificates(member, until), patience=limit, returned_to=None
            )
            for wire in wires
        ]


LINKS = [
    pytest.param(in_memory, id="memory"),
    pytest.param(of_rack, id="rack", marks=pytest.mark.process),
    pytest.param(of_sites, id="sites"),
]


@pytest.fixture(params=LINKS)
def joined(request, tmp_path, monkeypatch):
    """Makes crews of so many processes, over each of the links."""
    meshes.quick(monkeypatch)
    with ExitStack() as stack:
        yield lambda processes, limit=30.0: stack.enter_context(
            request.param(processes, tmp_path, limit)
        )


def test_values_are_shared_in_rank_order_as_often_as_asked(joined):
    crew = joined(3)
    for turn in range(2):

        def share(rank, turn=turn):
            return crew[rank].share("plan", {"n": [rank, turn]}, ANYTHING)

        assert at_once(share, range(3)) == [[{"n": [rank, turn]} for rank in range(3)]] * 3
    big = "x" * 2**20
    assert at_once(lambda r: crew[r].share("big", big, ANYTHING), range(3)) == [[big] * 3] * 3
    with pytest.raises(TacitError, match="are to be shared"):
        crew[0].share("too big", "x" * (4 * 2**20), ANYTHING)


def test_what_the_schema_refuses_names_its_rank(joined):
    crew = joined(2)
    given = at_once(lambda r: crew[r].share("step", r - 1, (ANYTHING, STEP)[r]), range(2))
    assert type(given[1]) is PeerError
    assert str(given[1]).startswith("rank 0 sent a wrong step")


def test_who_states_nothing_is_named_by_all_who_wait(joined):
    crew = joined(3, SHORT)
    errors = at_once(lambda r: crew[r].share("plan", r, STEP), [0, 1])
    name = crew[0].names[2]
    assert all(isinstance(error, PeerError) and str(error).startswith(name) for error in errors), (
        errors
    )


def test_what_was_stated_is_collected_once_it_is_there_and_forgotten_for_good(joined):
    crew = joined(3)
    texts = at_once(lambda r: crew[r].state("key", f"of {r}"), range(3))
    assert texts == ["of 0", "of 1", "of 2"]
    late = threading.Timer(0.2, crew[2].state, ("late", "at last"))
    late.start()
    assert crew[0].collect("late", [2], "text") == {2: "at last"}
    late.join()
    assert crew[1].collect("key", [2, 0], "text") == {2: "of 2", 0: "of 0"}
    for one in crew:
        one.forget(["key", "nothing"])


@pytest.mark.parametrize("who", [None, 0, 2])
def test_all_stop_at_the_same_step(joined, who):
    crew = joined(3)
    for one in crew:
        one.begin(5)

    def steps(rank):
        pause = threading.Event()
        for step in range(6, 300 if who is None else 100_000):
            if crew[rank].agreed_stop(step, rank == who and step >= 20):
                return step
            pause.wait(0.001 * (rank + 1))
        return None

    stops = at_once(steps, range(3))
    assert len(set(stops)) == 1
    assert (stops[0] is None) == (who is None)
    assert who is None or stops[0] >= 20
