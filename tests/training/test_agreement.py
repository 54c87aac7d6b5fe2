"""The folder of a run of many processes: each writes where its own user said, or to runs/NAME."""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments import experiment
from tacit.communication.peers import PeerState, SessionMemory
from tacit.communication.received import EXPERIMENT, FOLDER, Experiment, FolderName
from tacit.config import load_config
from tacit.data.tables import Schema
from tacit.errors import InputError, LeftOutError, MeetAnewError, PeerError
from tacit.training.processes import agreement
from tacit.training.processes.agreement import (
    WHOLE_SCHEMA,
    agree,
    agreed_folder,
    compare,
    stated_parts,
    with_processes,
)


class Said:
    """A cluster in which rank 0, or whoever left a note, says one thing."""

    processes = 2

    def __init__(self, rank, text, note=None):
        self.rank, self.text, self.note_left = rank, text, note
        self.session = SessionMemory()

    def noted(self, name):
        return self.note_left

    def note(self, name, text):
        self.note_left = text

    def share(self, what, value, schema):
        return [value if self.rank == 0 else schema.read(self.text, 0, what)]


def folder_of(rank, said, out=None, note=None):
    cluster = Said(rank, said, note)
    new = lambda: Path("runs/new name+1")  # noqa: E731
    return agreed_folder(cluster, None if out is None else Path(out), False, new)


def text(name, resume=False):
    return FOLDER.write(FolderName.model_construct(name=name, resume=resume))


def test_others_give_a_name_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_of(1, text("x-1")) == (Path("runs/x-1"), False)
    assert folder_of(1, text("x-1"), "/data/x-1") == (Path("/data/x-1"), False)
    for name in ("/tmp/x", "..", "../x", "a/b", "", ".hidden", "-x", "a\x00b", "a\nb", "n" * 200):
        for out in (None, "/data/x-1"):
            with pytest.raises(PeerError, match="rank 0 sent a wrong run folder"):
                folder_of(1, text(name), out)
    with pytest.raises(PeerError, match="rank 0 named no run folder"):
        folder_of(1, text(None))


def test_a_name_that_nobody_gave_here_must_be_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match="exists already"):
        folder_of(1, text("mine"))
    assert folder_of(1, text("mine", resume=True)) == (Path("runs/mine"), True)


def test_users_who_name_different_folders_are_told(tmp_path):
    with pytest.raises(InputError, match=r"--out = '/data/y': rank 0 writes to a folder called"):
        folder_of(1, text("x"), "/data/y")


def test_rank_0_goes_on_with_its_own_folder_or_the_one_that_was_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_of(0, "") == (Path("runs/new name-1"), False)
    assert folder_of(0, "", "/data/a run (1)") == (Path("/data/a run (1)"), False)
    # After a restart: only what was begun is continued.
    assert folder_of(0, "", note=text("before")) == (Path("runs/before"), False)
    (tmp_path / "runs" / "before").mkdir(parents=True)
    (tmp_path / "runs" / "before" / "config.toml").touch()
    assert folder_of(0, "", note=text("before")) == (Path("runs/before"), True)
    assert folder_of(0, "", "runs/before", note=text("other")) == (Path("runs/before"), False)
    for note in ("/tmp/x", "../x", "runs/x"):
        with pytest.raises(PeerError, match="wrong run folder"):
            folder_of(0, "", note=text(note))


class Spared:
    """Three processes, some of which have come back to a run that can do without them."""

    def __init__(self, spare):
        self.spare = spare

    def can_spare(self, ranks):
        return set(ranks) <= set(self.spare)

    def seen(self):
        names = enumerate(("north", "south", "west"))
        return [PeerState(rank, name, "connected") for rank, name in names]


@pytest.mark.parametrize(
    ("spare", "batches", "without"),
    [
        ((2,), (16, 16, 8), {2}),
        ((1, 2), (16, 8, 8), {1, 2}),
        ((2,), (16, 8, 16), None),  # who differs has not come back
        ((2,), (16, 8, 8), None),
        ((1, 2), (8, 16, 16), {1, 2}),
        ((2,), (8, 16, 16), None),
        ((), (16, 16, 8), None),  # as at the site itself
        ((2,), (16, 16, 16.0), {2}),
    ],
)
def test_who_comes_back_with_another_experiment_is_refused_alone(spare, batches, without):
    peers = Spared(spare)
    agree([{"train.batch": 16}] * 3, peers)
    identities = [{"train.batch": batch} for batch in batches]
    if without is None:
        with pytest.raises(InputError, match="all processes must run the same experiment"):
            agree(identities, peers)
        return
    with pytest.raises(MeetAnewError, match="west came back with another experiment") as refusal:
        agree(identities, peers)
    assert refusal.value.without == without


# Sites that meet again.


class Ended:
    """How a run ended."""

    def __init__(self, status):
        self.status = status


@pytest.mark.parametrize(
    ("turns", "goes_on"),
    [
        ([("done", False)], []),
        ([("stopped", False)], []),
        ([("done", True)], []),  # at its last step: there is nothing to go on with
        ([("stopped", True), ("done", False)], [True]),
        ([("left out", False), ("stopped", True), ("stopped", False)], [True, True]),
        # However often one comes back and cannot take part, steps are made in between.
        ([("stopped", True), ("anew", False)] * 12 + [("done", False)], [True] * 24),
    ],
)
def test_sites_go_on_together_as_long_as_they_meet_again(turns, goes_on, monkeypatch):
    clusters = []
    resumed = []

    @contextmanager
    def group(*_, **__):
        clusters.append(Said(0, ""))
        clusters[-1].meets_again = turns[len(clusters) - 1][1]
        yield clusters[-1]

    def take_part(cluster, resume):
        resumed.append(resume)
        status = turns[len(clusters) - 1][0]
        if status == "left out":
            raise LeftOutError("west was left out, and the others take it back")
        if status == "anew":
            raise MeetAnewError("west: nothing is left", frozenset({2}))
        return Ended(status)

    monkeypatch.setattr(agreement, "process_group", group)
    ended = with_processes(load_config(experiment()), take_part, resume=False)
    assert ended.status == turns[-1][0]
    assert resumed == [False, *goes_on]
    assert clusters[-1].meets_again is False


def test_a_site_that_ends_every_session_before_its_first_step_ends_the_run(monkeypatch):
    @contextmanager
    def group(*_, **__):
        yield Said(0, "")

    def take_part(cluster, resume):
        raise MeetAnewError("west has given up the session")

    monkeypatch.setattr(agreement, "process_group", group)
    with pytest.raises(PeerError, match="west has given up the session; that happened 10 times"):
        with_processes(load_config(experiment()), take_part, resume=False)


def test_two_schemas_are_told_by_site_and_column():
    columns = {"age": {"kind": "number", "low": 0, "high": 100}, "größe": {"kind": "ignore"}}
    target = {"column": "died", "kind": "class", "labels": ["no", "yes"]}
    base = {"target": target, "confirmed_public": True}
    other = {**columns, "age": {"kind": "number", "low": 0, "high": 120}}
    identities = [
        {
            **stated_parts((schema := Schema.of({**base, "columns": one})).stated),
            "record schema": schema.digest,
        }
        for one in (columns, other, columns)
    ]
    Experiment(identity=identities[0], records=[1])  # names and texts that processes can share
    peers = Spared(())
    said = "record column age = 'high 120.0': on south, but 'high 100.0' on north and west; all"
    with pytest.raises(InputError, match=f"^{said} processes must run the same experiment$"):
        agree(identities, peers)


def ward(*names):
    return {"kind": "category", "values": list(names)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"größe": ward("a", "b", "d")}, r"record column größe = 'values \[\"a\", \"b\", \"d\"\]'"),
        ({"a/b": ward("x", "z")}, 'record column a-b [0-9a-f]{4} = .*"z"'),  # and a-b is another
        ({"long": ward(*map(str, range(998)), "z")}, 'record column long values from .*"z"'),
        ({"y" * 90: {"kind": "ignore"}}, "record column y{61} [0-9a-f]{4} = .*ignore"),
        ({"more": {"kind": "ignore"}}, "record column more = .*ignore"),
        ({"age": None}, "record column age = None"),
        ({"age": None, "AGE": ward("1", "2")}, "record column AGE = "),
        ("order", 'record order = .*"größe", "age"'),
    ],
)
def test_whatever_differs_between_two_schemas_is_told_by_its_column(change, said):
    columns = {
        "age": {"kind": "number", "low": 0, "high": 100},
        "größe": ward("a", "b", "c"),
        "a/b": ward("x", "y"),
        "a-b": ward("x", "y"),
        "long": ward(*map(str, range(999))),
        "y" * 90: ward("x", "y"),
    }
    if change == "order":
        other = {name: columns[name] for name in ("größe", "age", *list(columns)[2:])}
    else:
        other = {name: kind for name, kind in (columns | change).items() if kind is not None}
    target = {"column": "died", "kind": "class", "labels": ["no", "yes"]}
    schemas = [Schema.of({"target": target, "columns": one}) for one in (columns, other)]
    identities = [stated_parts(one.stated) | {WHOLE_SCHEMA: one.digest} for one in schemas]
    for one in identities:
        EXPERIMENT.read(EXPERIMENT.write(Experiment(identity=one, records=[1])), 0, "experiment")
    with pytest.raises(InputError) as caught:
        compare(identities)
    assert re.match(f"^{said}", str(caught.value))
    assert schemas[1].digest not in str(caught.value)
