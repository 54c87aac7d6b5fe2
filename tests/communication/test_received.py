"""The border: ten thousand wrong values end a run in one plain line at most, and change nothing."""

import json
import math
import random
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from communication.cluster.ranks import Hub, ThreadChannel
from communication.memory import Board, MemoryCrew
from experiments import experiment
from tacit.communication import received
from tacit.communication.cluster.channel import RackGatherer
from tacit.communication.cluster.cluster import Cluster, Place
from tacit.communication.cluster.watch import Heartbeat, Seen
from tacit.communication.colours import Released, opened
from tacit.communication.exchange import BetweenProcesses
from tacit.communication.exchange.messages import HEADER_BYTES
from tacit.communication.peers import Peers
from tacit.communication.reports import read_report, write_report
from tacit.communication.stop_vote import StopVote
from tacit.config import load_config
from tacit.errors import InputError, PeerError, TacitError
from tacit.privacy import Gaussian, to_statement
from tacit.privacy.ledger.shared import SharedLedgers, WantedAccount, folder_key
from tacit.training.budget import affordable, epsilon_spent, open_ledger
from tacit.training.evaluation import combined, measure, numbers_of, packed, unpacked
from tacit.training.job import Job
from tacit.training.loop import _folders, _run_id
from tacit.training.prepare import prepare
from tacit.training.processes.agreement import agreed_folder, compare, counts
from tacit.training.processes.communication import graphs_of, local_exchange, open_communication
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder.folder import RunFolder
from tacit.training.state import _agreed_end, _common_checkpoint, _merged, begin, together

VALUES = 10_000
LIMIT = 60.0  # seconds; a tenth of it suffices

EVIL = (
    "null", "true", "false", "0", "-1", "-0.0", "1.0", "1e15", "-1e9", "1e999", "-1e999", "NaN",
    "Infinity", "1000000000000000", "-1000000000000000000", "9007199254740993", str(2**64),
    "9" * 4000, "9" * 5000, '""', '"0"', '"\\u001b[2J\\u0007"', '"a\\nb"', '"\\ud800"',
    '"' + "x" * 10**5 + '"', "1e308", "-1e308",
    '"../../etc"', '"/tmp/x"', "[]", "[[]]", "{}", "[0,0]", "[[[0,1000000000000000]]]",
    "[" * 10**5, "[" * 150 + "]" * 150, '{"a":' * 10**4, "[" + "0," * 10**4 + "0]", "nil", "",
    "[[[0,5],[0,5]],[[0,5]]]", "[[[5,0]]]", "[[[0,0]]]", "[40,20]",
)  # fmt: skip


def mutated(text, draw):
    """A text that was right, changed somewhere; now and then as it was."""
    kind = draw.random()
    if kind < 0.05:
        return text
    if kind < 0.25 and text:
        at = draw.randrange(len(text))
        return draw.choice(
            [text[:at], text[at:], text[:at] + chr(draw.randrange(0x2FF)) + text[at:]]
        )
    if kind < 0.4:
        return draw.choice(EVIL)
    mark = "*mark*"
    changed = _with_mark(json.loads(text), mark, draw)
    return json.dumps(changed).replace(f'"{mark}"', draw.choice(EVIL))


def _with_mark(value, mark, draw):
    """A JSON value with one place in it marked, left out, put in, doubled or renamed."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        kind = draw.random()
        if kind < 0.1:
            return {name: value[name] for name in value if name != key}
        if kind < 0.2:
            return {**value, draw.choice(["extra", "\x1b[2J", "", key.upper()]): mark}
        return {**value, key: _with_mark(value[key], mark, draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        kind = draw.random()
        if kind < 0.15:
            return value[:at] + value[at + 1 :]
        if kind < 0.3:
            return [*value, mark, value[at]]
        return [*value[:at], _with_mark(value[at], mark, draw), *value[at + 1 :]]
    return mark


@dataclass
class Outsider:
    """A store into which others write what they like, over what this process wrote as well."""

    draw: random.Random
    texts: dict[str, str] = field(default_factory=dict)
    honest: bool = False

    def put(self, key, text):
        self.texts[key] = text
        return text

    def has(self, keys):
        return True

    def get(self, key):
        return self.get_all([key])[0]

    def first(self, key, text):
        return text

    def get_all(self, keys):
        return [self._of(key) for key in keys]

    def _of(self, key):
        own = key.rpartition("/")[0] + "/0"
        text = self.texts.get(key, self.texts.get(own, '{"name": "x", "resume": false}'))
        return text if self.honest else mutated(text, self.draw)


class LyingCrew(MemoryCrew):
    """One in which another rank's votes are lies about the own ones."""

    def __init__(self, draw):
        super().__init__(0, 2, Board())
        self.draw = draw

    def collect(self, key, ranks, what, *, loading=False):
        return {rank: mutated(self.board.texts[key, 0], self.draw) for rank in ranks}


class Quiet:
    """A watch that sees nothing wrong."""

    hosts: Sequence[Sequence[int]] = ()
    seen = (Seen(),) * 2
    step, waiting = -1, None

    def failure(self):
        """The run goes on."""


@dataclass
class Seat:
    """Rank 0 of two, and the store that lies to it."""

    cluster: Cluster
    outsider: Outsider
    job: Job
    folder: RunFolder
    charged: Mapping[int, tuple[tuple[int, int], ...]]


@pytest.fixture(scope="module")
def seat(tmp_path_factory):
    outsider = Outsider(random.Random(12), honest=True)
    place = Place(0, 2, "127.0.0.1", 1, keeps_store=False, run_id="a-run")
    stand_in = outsider
    watch = Quiet()
    cluster = Cluster(place, stand_in, stand_in, watch, timeout=5.0)
    changes = {"noise_std": None, "noise_seed": None, "epsilon": 1.0}
    config = load_config(experiment(privacy=changes, train={"steps": 60}))
    job = prepare(config, peers=cluster)
    folder = tmp_path_factory.mktemp("run")
    for step in (20, 40):
        content = save({"x": torch.full((3,), float(step))})
        checkpoints.file_of(folder, step).write_bytes(content)
    outsider.honest = False
    return Seat(cluster, outsider, job, RunFolder(folder), dict.fromkeys((0, 1), ((0, 43),)))


def reserved(seat):
    """Whatever is said, what the nodes here are charged is what the ledger here says."""
    found = together(seat.cluster, "charged", seat.job, seat.charged)
    assert {node: found[node] for node in (0, 1)} == seat.charged
    assert all(0 <= first < until <= 60 for pairs in found.values() for first, until in pairs)
    if seat.outsider.draw.random() < 0.05:
        epsilon = epsilon_spent(seat.job.plan, found)
        assert epsilon[:2] == epsilon_spent(seat.job.plan, seat.charged)[:2]


def ended(seat):
    """Nobody ends a run later than its own budget does, nor before it goes on."""
    own = 51
    until, rank = _agreed_end(seat.cluster, seat.job.plan, 40, own)
    assert 40 <= until <= own
    assert (rank == 0) == (until == own)


def gone_on(seat):
    """A run goes on from a checkpoint that is here, or from the start."""
    common, lacking = _common_checkpoint([20, 40], seat.cluster, 60, [False, False])
    assert common in (0, 20, 40)
    assert lacking is None or lacking.isprintable()


def agreed(seat):
    """The own record counts stand, whatever others have."""
    own = received.Experiment(identity={"train.steps": 60}, records=[449, 449])
    shared = seat.cluster.share("experiment", own, received.EXPERIMENT)
    compare([one.identity for one in shared])
    assert counts([one.records for one in shared], seat.job.placement)[:2] == [449, 449]


def named(seat):
    """The folder is the one that the user named, or lies in runs/."""
    out, _ = agreed_folder(seat.cluster, Path("/here/mine"), False, Path)
    assert out == Path("/here/mine")
    out, _ = agreed_folder(seat.cluster, None, False, lambda: Path("runs/new"))
    assert out.parent == Path("runs")
    assert out.name not in ("", ".", "..")


def identified(seat):
    """A run's identity is 32 digits."""
    found = _run_id(seat.cluster, None, SharedLedgers(Path()))
    assert found is not None
    assert len(found) == 32


def saved(seat):
    """No step that all have reached lies beyond the own one."""
    assert 0 <= seat.cluster.saved(40) <= 40


def stopped(seat):
    """A vote for the stop makes this rank stop or not, and changes no step of a round."""
    crew = LyingCrew(seat.outsider.draw)
    votes = StopVote(crew, 7)
    assert not votes.stop(7, False)
    before = dict(crew.board.texts)
    stopped = votes.stop(8, False)
    assert stopped == (crew.board.texts == before)
    if not stopped:
        assert crew.board.texts["vote 1", 0] in ("[1,9,false,1]", "[1,9,false,2]")


def reported(seat):
    """A report is an error in one plain line."""
    text = write_report(PeerError("rank 1 was lost"), 1)
    error = read_report(mutated(text, seat.outsider.draw))
    assert isinstance(error, TacitError)
    assert str(error).isprintable()


def beaten(seat):
    """A heartbeat is one of bounded numbers, or none."""
    heartbeat = Heartbeat.read(
        mutated(received.HEARTBEAT.write(Heartbeat(3, 7, 2, False)), seat.outsider.draw), 1
    )
    assert -1 <= heartbeat.step <= 2**53


def summed_up(seat):
    """What rank 0 says of the result has the form of a result."""
    own = received.Summary(
        test_accuracy=received.ReportedScores(mean=0.5, worst=None, consensus=0.5),
        test_loss=None,
        test_metrics=[received.ReportedScores(mean=0.7, worst=0.1, consensus=0.7, baseline=0.2)],
        bytes_sent_by_node=[1] * 4,
    )
    assert seat.cluster.share("summary", own, received.SUMMARY)[0] is own


READERS = (
    reserved, ended, gone_on, agreed, named, identified, saved, stopped, reported, beaten,
    summed_up,
)  # fmt: skip


def check_line(error, begin=""):
    """An error of the right kind, in one plain line of bounded length."""
    line = str(error)
    assert type(error) in (PeerError, InputError), error
    assert line.startswith(begin)
    assert line.isprintable(), line
    assert len(line) <= 1000


def tree(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def limited():
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < LIMIT, "it hangs"


@pytest.mark.usefixtures("limited")
def test_ten_thousand_wrong_values_change_nothing_of_ones_own(seat, tmp_path):
    before, here = tree(seat.folder.path), set(tmp_path.iterdir())
    refused = 0
    for number in range(VALUES):
        try:
            READERS[number % len(READERS)](seat)
        except TacitError as error:
            refused += 1
            check_line(error)
    assert refused > VALUES // 3
    assert tree(seat.folder.path) == before
    assert set(tmp_path.iterdir()) == here


def test_what_is_right_passes_all_readers(seat):
    seat.outsider.honest = True
    try:
        for reader in READERS:
            if reader not in (stopped, reported, beaten):  # these change their texts themselves
                reader(seat)
    finally:
        seat.outsider.honest = False


def part_of(job):
    """What rank 0 measures; of rank 1 it would be the same but for the nodes."""
    state = None
    models = job.model.start(2, job.dtype, job.device)
    part = measure(job, models, models.mean(0), state, local_exchange(job), whole=False)
    said = opened(part, "a part")
    return replace(said, bytes_sent=said.bytes_sent[:2], mass=2.0)


ODD = (math.nan, math.inf, -math.inf, -1.0, 0.5, 2.0**53 + 2, 2.0**60, 1e300, -1e308, 5e-324)


@pytest.mark.usefixtures("limited")
def test_wrong_metrics_name_their_sender_and_change_no_own_figure(seat):
    draw, own = random.Random(5), part_of(seat.job)
    right, refused = packed(own), 0
    figures = set()
    for _ in range(1500):
        vector = right.clone()
        for _ in range(draw.randrange(3)):
            vector[draw.choice([*range(8), draw.randrange(len(vector))])] = draw.choice(ODD)
        if draw.random() < 0.2:
            vector = vector[: draw.randrange(len(vector))]
        if draw.random() < 0.2:
            vector[len(vector) // 2 :] *= draw.choice([1e300, -1e308])
        try:
            theirs = unpacked(vector, seat.job, 1)
            found = combined(seat.job, [own, theirs], whole=False)
        except PeerError as error:
            check_line(error, "rank 1 sent ")
            refused += 1
        else:
            assert found.evaluation is not None
            scores = opened(found.evaluation, "scores")
            figures.add((scores.rows[0][:2], found.bytes_sent[:2]))
            assert all(0 <= count <= 2**53 for count in found.bytes_sent)
    assert len(figures) == 1
    assert 300 < refused < 1200


def test_a_part_is_what_it_was_after_it_travelled(seat):
    own = part_of(seat.job)
    assert own.evaluation is not None
    odd = replace(own.evaluation, rows=((math.inf, math.nan, -math.inf), *own.evaluation.rows[1:]))
    for part in (own, replace(own, evaluation=odd), replace(own, mass=None, spread=math.inf)):
        vector = packed(part)
        numbers, added = numbers_of(seat.job)
        assert (len(vector), added) == (numbers[1], len(part.total))
        assert torch.equal(packed(unpacked(vector, seat.job, 1)).isnan(), vector.isnan())
        again = packed(unpacked(vector, seat.job, 1))
        assert torch.equal(again.nan_to_num(7.0), vector.nan_to_num(7.0))
    gone = unpacked(packed(own)[: numbers[1] - added], seat.job, 1)
    assert (len(gone.total), gone.evaluation) == (0, own.evaluation)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 0.5, "counts in its metrics that are none"),
        (0, -1.0, "counts in its metrics that are none"),
        (1, -1.0, "metrics out of their range"),
        (1, math.inf, "metrics out of their range"),
        (2, 0.5, "metrics out of their range"),
        (2, math.nan, "metrics out of their range"),
        (3, -1e-300, "metrics out of their range"),
        (4, math.nan, "counts in its metrics that are none"),
        (5, 2.0**53 + 2, "counts in its metrics that are none"),
        (-1, math.inf, "metrics with a sum of models that is not finite"),
        (-1, math.nan, "metrics with a sum of models that is not finite"),
    ],
)
def test_a_number_out_of_its_range_names_its_sender(seat, place, value, said):
    vector = packed(part_of(seat.job))
    vector[place] = value
    with pytest.raises(PeerError, match=f"rank 1 sent {said}"):
        unpacked(vector, seat.job, 1)


@pytest.mark.usefixtures("limited")
def test_wrong_parts_on_their_way_end_in_a_peer_error():
    draw, due = random.Random(6), [3, 3]
    for _ in range(300):
        numbers = [draw.choice([7.0, 7.0, *ODD]), 1.0, 2.0, 3.0]
        body = struct.pack("<4d", *numbers)[: draw.choice([32, draw.randrange(33)])]
        hub = Hub(2)
        here, there = (ThreadChannel(hub, rank, 5.0) for rank in (0, 1))
        there.send(0, torch.tensor(list(body), dtype=torch.uint8))
        there.close()
        gatherer = RackGatherer(here, ("rank 0", "rank 1"), due, lambda rank, step: True)
        gatherer.put(7, torch.zeros(3, dtype=torch.float64))
        try:
            gatherer.finish()
        except PeerError as error:
            check_line(error, "rank 1 sent ")
        else:
            assert (len(body), numbers[0]) == (32, 7.0)


class Spoilt:
    """A channel whose other end sends what this one sends, as if it were its own, spoilt."""

    rank, processes = 0, 2

    def __init__(self, draw):
        self.draw, self.last = draw, torch.empty(0, dtype=torch.uint8)

    def envelope(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def send(self, rank, message):
        raw = bytearray(message.numpy().tobytes())
        raw[8:12] = struct.pack("<I", 1)  # its sender
        kind = self.draw.random()
        if kind < 0.5:
            at = self.draw.randrange(HEADER_BYTES)
            raw[at] ^= 1 << self.draw.randrange(8)
        elif kind < 0.7:
            del raw[self.draw.randrange(len(raw)) :]
        elif kind < 0.9:
            at = HEADER_BYTES + 4 * self.draw.randrange((len(raw) - HEADER_BYTES) // 4)
            raw[at : at + 4] = struct.pack("<f", self.draw.choice([float("inf"), float("nan")]))
        self.last = torch.frombuffer(raw, dtype=torch.uint8) if raw else self.last[:0]

    def receive(self, rank, size):
        return self

    def __call__(self):
        return self.last

    def together(self):
        return nullcontext()


@pytest.mark.usefixtures("limited")
def test_wrong_messages_are_dropped_or_end_in_a_peer_error(seat):
    job = seat.job
    rows = torch.ones(2, job.plan.parameters, dtype=job.dtype)
    for tolerate in (False, True):
        channel = Spoilt(random.Random(7))
        exchange = BetweenProcesses(
            channel, job.placement.ranks, graphs_of(job), dtype=job.dtype, device=job.device,
            tolerate=tolerate,
        )  # fmt: skip
        refused = 0
        for k in range(400):
            try:
                (mixed,) = exchange.mix(k, Released(rows))
            except PeerError as error:
                check_line(error, f"rank 1 sent a bad message at step {k}")
                refused += 1
            else:
                assert bool(torch.isfinite(mixed).all())
        assert bool(exchange.dropped) == tolerate
        assert bool(refused) != tolerate


@pytest.mark.parametrize(
    ("text", "schema", "said"),
    [
        ("[" * 10**6, received.CHARGED, "recursion limit"),
        ("[[" + "[0,1]," * 600_000 + "[0,1]]]", received.CHARGED, "at most 10000 items"),
        ("[[[0,1000000000000000000]]]", received.CHARGED, "less than or equal to 9007199254740992"),
        ("-1000000000", received.STEP, "greater than or equal to 0; it is -1000000000"),
        ("Infinity", received.STEP, "valid integer"),
        ("[1, 2, null, 0]", received.HEARTBEAT, "valid boolean"),
        ("9" * 100, received.STEP, "it has 100 bytes, and 20 are allowed"),
        ('"' + "x" * 17 + '"', received.TOKEN, "match pattern"),
        ("x" * 2**22, received.SUMMARY, "Invalid JSON"),
        ("x" * 2**23, received.SUMMARY, "are allowed"),
        # Told of one by one, these take gigabytes.
        ("{" + '"" : 0,' * 500_000 + '"":0}', received.SUMMARY, "more than 10000 names"),
        ('{"identity":{' + '"":[],' * 690_000 + '"":[]}}', received.EXPERIMENT, "10000 names"),
        ('{"identity":{"a":"' + '\\":' * 10_001 + '"}}', received.EXPERIMENT, "10000 names"),
    ],
)
def test_a_wrong_value_is_said_in_one_short_line(text, schema, said):
    with pytest.raises(PeerError) as caught:
        schema.read(text, 1, "word")
    line = str(caught.value)
    assert line.startswith("rank 1 sent a wrong word")
    assert said in line
    assert line.isprintable()
    assert len(line) < 300


class Told(Peers):
    """Rank 1 of two says one thing."""

    processes = 2

    def __init__(self, word):
        self.word = word

    def share(self, what, value, schema):
        return [value, schema.read(self.word, 1, what)]


def test_an_end_that_is_said_by_another_is_never_later_than_the_own(seat):
    """The budget of the nodes here, from their own ledger, decides when the run ends here."""
    own, _ = affordable(seat.job.plan, seat.charged, 40)
    assert 40 < own < 60
    for word, until in (("60", own), (str(own), own), ("41", 41), ("40", 40)):
        assert _agreed_end(Told(word), seat.job.plan, 40, own)[0] == until
    for word in ("39", "61", "-1000000000"):
        with pytest.raises(PeerError, match="rank 1 "):
            _agreed_end(Told(word), seat.job.plan, 40, own)


def run_id_of(known, ledgers):
    """The identity of a run, as a process without a ledger of it takes it from the other's word."""
    word = received.RunId(known=known, random="0" * 32)
    return _run_id(Told(received.RUN_ID.write(word)), None, ledgers)


def test_nobody_chooses_the_identity_of_a_run(tmp_path):
    nothing = SharedLedgers(Path())
    assert run_id_of(None, nothing) != run_id_of(None, nothing)  # though the other says the same
    earlier = "ab" * 16
    assert run_id_of(earlier, nothing) == earlier  # its ledger was not made before the kill
    # An earlier run of the ledger of a node's data is none that another may name.
    digests = np.arange(5, dtype=np.uint64)
    folder_key(tmp_path)
    wanted = [WantedAccount(0, ("one",), digests, 1.0, 1e-5, None, 1e-5)]
    with SharedLedgers.open(tmp_path, wanted, session="first") as ledgers:
        statements = {0: to_statement(Gaussian(5.0, 3))}
        ledgers.enter(earlier, digest="d", statements=statements, sent={})
        ledgers.reserve(0, 1)
    # Nor is it where the data have changed since: two runs of one name would count as one.
    longer = [WantedAccount(0, ("one",), np.arange(6, dtype=np.uint64), 1.0, 1e-5, None, 1e-5)]
    moved = [WantedAccount(3, ("one",), digests, 1.0, 1e-5, None, 1e-5)]
    for number, here in enumerate((wanted, longer, moved)):
        with SharedLedgers.open(tmp_path, here, session=f"later {number}") as ledgers:
            with pytest.raises(InputError, match="has this run in its ledger"):
                run_id_of(earlier, ledgers)
            assert run_id_of("cd" * 16, ledgers) == "cd" * 16
    others = [WantedAccount(0, ("two",), np.arange(7, 9, dtype=np.uint64), 1.0, 1e-5, None, 1e-5)]
    with SharedLedgers.open(tmp_path, others, session="others") as ledgers:
        assert run_id_of(earlier, ledgers) == earlier


class Second(Peers):
    """Rank 1 of two, and all say the same."""

    rank, processes = 1, 2

    def share(self, what, value, schema):
        return [value, value]


@pytest.mark.parametrize("resume", [False, True])
def test_a_name_of_a_folder_that_no_disk_takes_ends_in_one_line(seat, tmp_path, resume):
    name = received.FOLDER.read(f'{{"name":"{chr(0x754C) * 100}","resume":false}}', 0, "name").name
    assert name is not None
    ledgers = SharedLedgers(Path())
    with ExitStack() as stack, pytest.raises(InputError, match="cannot be written") as caught:
        _folders(seat.job, tmp_path / name, resume, Second(), ledgers, stack)
    check_line(caught.value)


class Echo(Peers):
    """Rank 1 of two says what rank 0 says, but for some words."""

    processes = 2

    def __init__(self, words):
        super().__init__()
        self.words = words

    def share(self, what, value, schema):
        return [value, schema.read(self.words.get(what, schema.write(value)), 1, what)]


def begun(seat, words, reserved):
    """A run that goes on from the start, of whose nodes here so many steps were reserved."""
    job = seat.job
    ledger = open_ledger(job.plan, None, False, None, job.hosted)
    assert ledger is not None
    with ledger, open_communication(job, None) as links:
        if reserved:
            ledger.reserve(0, reserved)
        return begin(job, Echo(words), links, (None, None), ledger, resume=True)


def test_who_ends_a_run_earlier_is_named_and_it_is_not_done(seat):
    own = begun(seat, {}, reserved=30)
    assert own.status == "budget-exhausted"
    assert own.message is not None
    assert "the budget of node 0 (1) covers steps up to" in own.message
    for word in (own.until - 1, 0):
        run = begun(seat, {"last step": str(word)}, reserved=30)
        assert (run.until, run.evaluation_steps[-1]) == (word, word)
        assert run.status == "budget-exhausted"
        assert run.message == (
            f"rank 1 says that the budgets of its nodes cover steps up to {word} of 60"
        )
    assert begun(seat, {"last step": "60"}, reserved=30).until == own.until
    fresh = begun(seat, {"last step": "20"}, reserved=0)
    assert (fresh.until, fresh.status) == (20, "budget-exhausted")


def test_what_others_have_booked_changes_nothing_that_the_own_nodes_have_spent(seat):
    plan = seat.job.plan
    own = begun(seat, {}, reserved=30)
    right = [plan.release.epsilon(plan.nodes[0], [(0, 30), (0, at)]) for at in own.evaluation_steps]

    def shown(run, which):
        return [run.spent(which, at) for at in run.evaluation_steps]

    denied = begun(seat, {"list of reserved steps": "[[], []]"}, reserved=30)
    assert (denied.until, denied.message) == (own.until, own.message)
    assert shown(denied, "most") == right
    more = begun(seat, {"list of reserved steps": "[[[0, 60]], [[0, 60], [0, 60]]]"}, reserved=30)
    assert (more.until, more.message) == (own.until, own.message)
    assert all(m > r for m, r in zip(shown(more, "most"), right, strict=True))
    assert shown(more, "least") == right


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), max_size=12))
def test_intervals_that_are_joined_are_the_same_steps_in_the_same_order(pairs):
    intervals = [(first, until) for first, until in pairs]
    merged = _merged(intervals)
    steps = [[k for pair in listed for k in range(*pair)] for listed in (intervals, merged)]
    assert steps[0] == steps[1]
    assert all(first < until for first, until in merged)
    assert all(one[1] != other[0] for one, other in pairwise(merged))
    assert received.CHARGED.read(received.CHARGED.write([merged]), 1, "list") == [merged]
