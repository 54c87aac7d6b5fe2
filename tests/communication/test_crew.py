"""What a crew promises, whatever joins it: a rack's store, wires between sites, or memory."""

import math
import struct
import threading
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from safetensors.torch import load_file

import consortia
import tacit
from communication.cluster.crew import assert_ends_as, rows_of, simulated
from communication.cluster.joined import at_once, clusters, until
from communication.cluster.test_cluster_runs import (
    KINDS,
    NODES,
    assert_private_metrics_stay_home,
    assert_same_run,
)
from communication.cluster.test_cluster_runs import (
    STEPS as RUN_STEPS,
)
from communication.memory import crew_of, train
from communication.secure import mesh as meshes
from communication.secure.mesh import Mesh, formed
from experiments import write_experiment
from tacit import report
from tacit.analysis.statement import statement_document
from tacit.communication.peers import Placement, place
from tacit.communication.received import STEP, Form
from tacit.communication.secure.certificates import Certificates
from tacit.communication.secure.sites import SiteCluster
from tacit.errors import InputError, PeerError, TacitError
from tacit.report.documents.run import OWN_LEDGER, read_result

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


# Which process hosts which node.


SIZES = st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(SIZES)
def test_blocks_are_neighbours_of_equal_size_as_can_be(sizes):
    count, processes = sizes
    placement = place(count, processes, "blocks")
    assert placement.processes == processes
    hosted = [placement.hosted(rank) for rank in range(processes)]
    assert [node for nodes in hosted for node in nodes] == list(range(count))
    lengths = [len(nodes) for nodes in hosted]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
    assert lengths[-1] >= 1


@pytest.mark.parametrize(
    ("count", "processes", "ranks"),
    [
        (1, 1, (0,)),
        (4, 2, (0, 0, 1, 1)),
        (5, 2, (0, 0, 0, 1, 1)),
        (7, 3, (0, 0, 0, 1, 1, 2, 2)),
        (3, 3, (0, 1, 2)),
    ],
)
def test_blocks_by_hand(count, processes, ranks):
    assert place(count, processes) == Placement(ranks)


@given(
    st.integers(1, 8).flatmap(
        lambda processes: st.tuples(
            st.just(processes),
            st.lists(st.integers(0, processes - 1), max_size=20).flatmap(
                lambda more: st.permutations([*range(processes), *more])
            ),
        )
    )
)
def test_a_list_is_taken_as_it_is(case):
    processes, ranks = case
    placement = place(len(ranks), processes, tuple(ranks))
    assert placement.ranks == tuple(ranks)
    assert placement.processes == processes
    for rank in range(processes):
        nodes = placement.hosted(rank)
        assert nodes == tuple(sorted(nodes))
        assert all(ranks[node] == rank for node in nodes)
    assert sum(len(placement.hosted(rank)) for rank in range(processes)) == len(ranks)


def test_a_rank_that_does_not_exist_hosts_nothing():
    assert place(4, 2).hosted(2) == ()


@pytest.mark.parametrize("processes", [5, 0, -1])
@pytest.mark.parametrize("placement", ["blocks", (0, 1, 2, 3)])
def test_every_process_hosts_a_node(processes, placement):
    with pytest.raises(InputError) as caught:
        place(4, processes, placement)
    assert (caught.value.where, caught.value.value) == ("--processes", processes)
    assert "must be 1 to 4" in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((0, 1), "one rank for each of the 4 nodes; it names 2"),
        ((0, 1, 0, 1, 0), "one rank for each of the 4 nodes; it names 5"),
        ((), "one rank for each of the 4 nodes; it names 0"),
        ((0, 1, 3, 2), "node 2 is on rank 3, and 3 processes have ranks 0 to 2"),
        ((0, 1, 2, -1), "node 3 is on rank -1, and 3 processes have ranks 0 to 2"),
        (
            (0, 0, 2, 2),
            "rank 1 hosts no node: name every rank from 0 to 2, or start fewer processes",
        ),
        (
            (2, 2, 2, 2),
            "rank 0 hosts no node: name every rank from 0 to 2, or start fewer processes",
        ),
    ],
)
def test_a_list_that_is_wrong_says_why(ranks, expected):
    with pytest.raises(InputError) as caught:
        place(4, 3, ranks)
    assert (caught.value.where, caught.value.value) == ("nodes.placement", list(ranks))
    assert expected in str(caught.value)


# Whole runs of a crew in memory: they give the numbers of the simulator, stop, go on and agree.


@pytest.mark.parametrize("kind", KINDS)
def test_a_crew_gives_the_numbers_of_the_simulator(kind, tmp_path):
    common = {"steps": RUN_STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 2}
    kinds = {**KINDS[kind], "train": {**common, **KINDS[kind].get("train", {})}}
    file = write_experiment(tmp_path, nodes={"count": NODES}, **kinds)
    found = train([file] * 3, tmp_path / "run")
    assert [result.status for result in found] == ["done"] * 3
    simulated(file, tmp_path / "alone")
    assert_same_run(tmp_path / "run", tmp_path / "alone", server="server" in kind)
    assert_private_metrics_stay_home(tmp_path / "run", rows_of(tmp_path / "alone"))
    assert_each_has_its_own(tmp_path / "run", tmp_path / "away")


def assert_each_has_its_own(run, away):
    """Every process has the model of rank 0, and of its own nodes its own word, wherever it is."""
    whole, common = read_result(run / "result.json"), load_file(run / "model.safetensors")
    for rank in range(3):
        part = away / str(rank) / f"rank-{rank:04d}"
        part.parent.mkdir(parents=True)
        (run / part.name).rename(part)  # of the others it has nothing
        found, model = read_result(part / "result.json"), load_file(part / "model.safetensors")
        for name, numbers in common.items():
            assert torch.equal(model[name], numbers), (rank, name)
        module = tacit.load_model(part.parent)
        assert all(torch.equal(module.state_dict()[name], own) for name, own in common.items())
        for key in ("test_accuracy", "test_loss", "bytes_sent_by_node", "calibration"):
            assert getattr(found, key) == getattr(whole, key), (rank, key)
        assert any("as rank 0 told" in note for note in found.notes) == (rank > 0)
        assert report.write_report(part).exists()
        if found.epsilon_source is None:
            continue
        own = {n for n, by in enumerate(found.epsilon_source) if by == OWN_LEDGER}
        assert own == {n for n, by in enumerate(whole.epsilon_source) if _rank(by) == rank}
        if found.private:
            stated = statement_document(part)
            assert {row.node: row.epsilon for row in stated.nodes} == {
                node: pytest.approx(whole.epsilon[node], rel=1e-9) for node in own
            }


def _rank(source):
    return 0 if source == OWN_LEDGER else int(source.removeprefix("rank "))


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 2])
def test_one_that_is_asked_to_stop_stops_all_and_they_go_on(who, tmp_path):
    changes = {"nodes": {"count": 3}, "train": {"steps": 40, "dtype": "float64"}}
    file, run = write_experiment(tmp_path, **changes), tmp_path / "run"
    asked = [lambda: False] * 3
    steps = []
    asked[who] = lambda: steps.append(0) or len(steps) > 5  # type: ignore[func-returns-value]
    found = train([file] * 3, run, asked=asked)
    assert [result.status for result in found] == ["stopped"] * 3
    (step,) = {result.steps for result in found}
    assert 5 < step < 40
    found = train([file] * 3, run, resume=True)
    assert [result.status for result in found] == ["done"] * 3
    assert_ends_as(run, simulated(file, tmp_path / "alone"), measured=[step])


@pytest.mark.parametrize(
    ("odd", "section", "key", "value"),
    [(2, "train", "steps", 7), (0, "privacy", "delta", 1e-6), (1, "privacy", "noise_seed", 8)],
)
def test_processes_that_disagree_end_before_the_first_step(odd, section, key, value, tmp_path):
    (tmp_path / "odd").mkdir()
    files = [write_experiment(tmp_path)] * 3
    files[odd] = write_experiment(tmp_path / "odd", **{section: {key: value}})
    errors = train(files, tmp_path / "run")
    others = " and ".join(str(rank) for rank in range(3) if rank != odd)
    for error in errors:
        assert isinstance(error, InputError)
        assert error.where == f"{section}.{key}"
        assert f"rank {odd}" in str(error)
        assert others in str(error)
    assert not (tmp_path / "run").exists()


def test_a_defect_of_one_ends_all(tmp_path):
    file = write_experiment(tmp_path, nodes={"count": 3}, train={"steps": 40})

    def fails():
        raise RuntimeError("something nobody thought of")

    errors = train([file] * 3, tmp_path / "run", asked=[lambda: False, fails, lambda: False])
    assert type(errors[1]) is RuntimeError
    for error in errors[::2]:
        assert isinstance(error, TacitError)
        assert "nobody thought of" not in str(error)
