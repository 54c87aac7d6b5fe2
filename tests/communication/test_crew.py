"""What a crew promises, whatever joins it: a rack's store, wires between sites, or memory."""

import math
import struct
import threading
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import torch
from pydantic import TypeAdapter

import consortia
from communication.cluster.joined import at_once, clusters, until
from communication.memory import crew_of
from communication.secure import mesh as meshes
from communication.secure.mesh import Mesh, formed
from tacit.communication.received import STEP, Form
from tacit.communication.secure.certificates import Certificates
from tacit.communication.secure.sites import SiteCluster
from tacit.errors import PeerError, TacitError

CPU = torch.device("cpu")
NUMBERS = (1000, 1001, 0, 1003)  # of a part, by rank
STEPS = (0, 10, 20, 30, 40, 50)
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


# Metrics.


def part(rank, step):
    return torch.arange(NUMBERS[rank], dtype=torch.float64) / 3 + 1000 * rank + step


def connected(crew, stack, numbers=NUMBERS):
    """The gatherers of all; those of a rack wait for one another."""
    ways = at_once(lambda r: crew[r].connect(CPU, numbers, 1, stack), range(len(crew)))
    return [gatherer for _, gatherer in ways]


def run_through(crew, gatherers, rank, pauses):
    """Every step, with a pause before each; what this rank was given, in order."""
    found, pause = [], threading.Event()
    for step, seconds in zip(STEPS, pauses, strict=True):
        pause.wait(seconds)
        gatherers[rank].put(step, part(rank, step))
        found += gatherers[rank].ready()
        crew[rank].at(step)
    gatherers[rank].finish()
    found += gatherers[rank].ready()
    return [[step, [numbers.tolist() for numbers in parts]] for step, parts in found]


def right(processes):
    return [[step, [part(rank, step).tolist() for rank in range(processes)]] for step in STEPS]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_marks_come_together_in_order_whoever_is_late(joined, late):
    """Rank 0 is late with the first half of the marks, and early with the second; or another."""
    crew, early, slow = joined(3), [0.0] * 3, [0.1] * 3
    with ExitStack() as stack:
        gatherers = connected(crew, stack)
        pauses = [slow + early if rank == late else early + slow for rank in range(3)]
        found = at_once(lambda r: run_through(crew, gatherers, r, pauses[r]), range(3))
    assert found == [right(3), [], []]


def test_a_mark_is_complete_soon_after_all_have_come_further(joined):
    crew = joined(2)
    with ExitStack() as stack:
        first, second = connected(crew, stack)
        first.put(7, part(0, 7))
        crew[0].at(7)
        assert first.ready() == []
        second.put(7, part(1, 7))
        crew[1].at(7)
        found = []
        until(lambda: found.extend(first.ready()) or found)
        ((step, parts),) = found
        assert (step, [len(one) for one in parts]) == (7, [1000, 1001])
        assert second.ready() == first.ready() == []


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((8, 1, 2, 3), "sent metrics of step 8, where 7 was due"),
        ((math.nan, 1, 2, 3), "sent metrics of step nan, where 7 was due"),
        ((7, 1, 2), "sent 24 bytes of metrics, where 32 were due"),
        ((), "sent 0 bytes of metrics, where 32 were due"),
    ],
)
def test_a_wrong_part_names_its_sender(joined, numbers, said):
    crew = joined(2)
    body = struct.pack(f"<{len(numbers)}d", *numbers)
    with ExitStack() as stack:
        first, second = connected(crew, stack, (3, 3))
        second.send(torch.tensor(list(body), dtype=torch.uint8))
        first.put(7, torch.zeros(3, dtype=torch.float64))
        with pytest.raises(PeerError, match=f"^{crew[0].names[1]} {said}"):
            first.finish()


def test_a_part_that_does_not_come_names_who_did_not_send_it(joined):
    crew = joined(2, SHORT)
    with ExitStack() as stack:
        first, _ = connected(crew, stack)
        first.put(7, part(0, 7))
        with pytest.raises(PeerError, match=f"^{crew[0].names[1]} "):
            first.finish()
