"""All that leaves a node is a function of public and noised values: shown to the byte.

The one gate, `StepContext.add_noise`, is replaced by one that ignores what it is given and returns
numbers of (node, step, part) alone. If records reach anything that leaves by any other way, a
message, a score, a shape, a row of metrics, a result or an error differs between two data sets
that have nothing in common but what is public: how many records there are, and their kind.
"""

import copy
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from battery_experiments import experiment, part_of, schedule_options
from battery_table import ROWS

import tacit
from communication.cluster.ranks import ThreadChannel, run_threads
from tacit.algorithms import ALGORITHMS
from tacit.analysis.statement import statement_document
from tacit.communication.colours import Released, opened
from tacit.communication.exchange import BetweenProcesses, in_process
from tacit.communication.exchange.protocol import descent_of, message_values
from tacit.communication.peers import Placement
from tacit.config import AlgorithmSection, load_config
from tacit.errors import TacitError
from tacit.privacy.noise.draws import seeded_keys
from tacit.report.documents.base import plain_json
from tacit.report.documents.run import read_run_folder
from tacit.report.run_page import run_page
from tacit.training import evaluation as marks
from tacit.training import finish
from tacit.training import state as run_state
from tacit.training.prepare import prepare
from tacit.training.processes.agreement import planned
from tacit.training.processes.communication import graphs_of
from tacit.training.stacked_context import StackedContext

SIZES = (7, 5, 6, 8)
SHAPE = (1, 8, 8)
STEPS = 3
SEEN_BY_ITS_NODE = (
    "train_loss",
    "augmented_lagrangian",
    "gradient_norm",
    "clip_rate",
    "records_left_out",
)  # marked as private where shown
CLOCKS = ("seconds", "steps_per_second")
PLACEMENT = Placement((0, 1, 1, 2))


def records(seed, size, labels=10):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, *SHAPE, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(labels, (size,), generator=draw)


def data_sets():
    """The data, the same with one adversarial record, and with every record another one."""
    data = [records(node, size) for node, size in enumerate(SIZES)]
    inputs, targets = data[1][0].clone(), data[1][1].clone()
    inputs[2] = torch.linspace(-3e4, 3e4, 64, dtype=torch.float64).view(SHAPE)
    targets[2] = (targets[2] + 1) % 10
    one = [data[0], (inputs, targets), *data[2:]]
    every = [
        (1e3 * values, labels * 0 + 3)
        for values, labels in (records(50 + node, size) for node, size in enumerate(SIZES))
    ]
    return {"data": data, "one": one, "all": every}


DATA = data_sets()
TEST = records(99, 12)


def gate(self, total, k, *, scale=1.0, part=0):
    """In place, as the gate is; what is given is not looked at, but for its shape."""
    for row, node, takes_part in zip(total, self.nodes, self.active(k)[:, 0].tolist(), strict=True):
        if takes_part:
            noise = np.random.default_rng((node, k, part)).normal(scale=0.05, size=len(row))
            row.copy_(torch.from_numpy(noise))
    return total


@pytest.fixture(autouse=True)
def closed_gate(monkeypatch):
    """The gate, and coins that are the same in every run, which believes them to be secret."""
    monkeypatch.setattr(StackedContext, "add_noise", gate)
    same = lambda plan, hosted, session: seeded_keys(1, hosted)  # noqa: E731
    monkeypatch.setattr(run_state, "node_keys", same)
    # A report takes longer than the run; see `page_for_others`.
    monkeypatch.setattr(finish, "write_report", lambda path: path)


def config_of(case, model):
    options = {**schedule_options(case, STEPS), **ROWS[case].resumed}
    noise = {"noise_std": 20.0, "delta": 1e-5}
    made = experiment(
        case, model=model, steps=STEPS, batch=2, dtype="float32", options=options, privacy=noise
    )
    made["train"]["evaluate_every"] = 1
    if not ROWS[case].trains:
        made["task"]["input_bound"] = 12.0  # beyond most records, whose norms then differ
    return made


# In one process: messages, and all files that a run writes for others.


@dataclass
class Left:
    """What left, in order.

    Attributes:
        messages: verb, step, and type, shape and bytes of each value.
        shown: documents and files.
        private: what is shown in a simulation, and marked.
    """

    messages: list[Any] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    private: list[Any] = field(default_factory=list)


def written(value):
    return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()


def without(document, *keys):
    return {key: value for key, value in document.items() if key not in keys}


def what_leaves(config, nodes, out, patch):
    left = Left()

    def watched(verb, k, values):
        plain = message_values(verb, k, values)
        left.messages.append((verb, k, [written(value) for value in plain]))
        return plain

    def watched_descent(k, descent):
        if descent is not None:
            watched("descend", k, descent[:1])
        return descent_of(k, descent)

    patch.setattr(in_process, "message_values", watched)
    patch.setattr(in_process, "descent_of", watched_descent)
    try:
        result = tacit.train(config, nodes=nodes, test=TEST, out=out)
    except TacitError as error:
        left.shown["error"] = str(error).replace(str(out), "")
        return left
    released = result.job.config.algorithm.definition.releases.models
    left.shown |= {
        "plan": planned(result.plan),
        "claims": result.claims,
        "epsilon": result.epsilon,
        "bytes": result.bytes_sent,
        "accuracy": result.test_accuracy,
        "loss": result.test_loss,
        "consensus": written(result.consensus),
        "models": written(result.parameters) if released else None,
        "result.json": without(json.loads((out / "result.json").read_text()), *CLOCKS),
        "settings": (out / "config.toml").read_bytes(),
        "model.safetensors": (out / "model.safetensors").read_bytes(),
    }
    if result.private:
        statement = plain_json(statement_document(out))
        left.shown["statement"] = without(statement, "date", "run", "ledger")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == STEPS + 1
    left.shown["metrics"] = [without(row, *CLOCKS, *SEEN_BY_ITS_NODE) for row in rows]
    left.private = [[row[key] for key in SEEN_BY_ITS_NODE] for row in rows]
    if not released:
        left.private.append(written(result.parameters))
    return left


@pytest.mark.parametrize("case", ROWS)
def test_nothing_that_leaves_depends_on_records(case, tmp_path, monkeypatch):
    config = config_of(case, ROWS[case].network)
    found = {
        name: what_leaves(config, nodes, tmp_path / name, monkeypatch)
        for name, nodes in DATA.items()
    }
    right = found.pop("data")
    assert right.messages
    assert "error" not in right.shown
    for other in found.values():
        assert other.messages == right.messages
        assert other.shown == right.shown
    # What is measured on records differs: the data sets do, and the comparison can fail.
    assert found["all"].private != right.private


def page_for_others(folder):
    """The page of a run folder as other parties have it, without private columns and clocks."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    hidden = dict.fromkeys(SEEN_BY_ITS_NODE)
    lines = [json.dumps({**row, **hidden, **dict.fromkeys(CLOCKS, 1.0)}) for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = json.loads((folder / "result.json").read_text())
    clocks = {key: 1.0 for key in CLOCKS if key in result}
    (folder / "result.json").write_text(json.dumps({**result, **clocks}))
    return run_page(read_run_folder(folder)).replace(str(folder), "")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dyn-d2p", "fedspd-dp"])
def test_no_page_depends_on_records(case, tmp_path, monkeypatch):
    for name, nodes in DATA.items():
        what_leaves(config_of(case, "mlp"), nodes, tmp_path / name, monkeypatch)
    pages = {page_for_others(tmp_path / name) for name in DATA}
    assert len(pages) == 1


# Between processes: the very bytes.


class Tapped(ThreadChannel):
    """A channel that keeps what goes over it."""

    def __init__(self, hub, rank, timeout):
        super().__init__(hub, rank, timeout)
        self.tapped = []

    def send(self, rank, message):
        self.tapped.append((rank, message.numpy().tobytes()))
        super().send(rank, message)


def ran(job, seat):
    """What a process sends, and what it tells of its nodes after every step."""
    hosted = PLACEMENT.hosted(seat.rank)
    model, train = copy.deepcopy(job.model), part_of(job.train, hosted)
    job = replace(job, model=model, placement=PLACEMENT, hosted=hosted, train=train)
    chosen, device = job.config.algorithm, job.device
    exchange = BetweenProcesses(
        seat.channel, PLACEMENT.ranks, graphs_of(job), dtype=job.dtype, device=device
    )
    keys = seeded_keys(1, hosted)
    context = StackedContext(job.plan, model, job.train, keys, exchange, hosted)
    state = chosen.definition.start(
        model.start(len(hosted), job.dtype, device), chosen.options, context
    )
    told = []
    for k in range(STEPS):
        state = chosen.definition.step(state, k, chosen.options, context)
        models = chosen.definition.models(state)
        common = marks.consensus_of(job, models, state)
        part = marks.measure(job, models, common, state, exchange, whole=True)
        told.append(written(marks.packed(opened(part, "a part"))))
    state = chosen.definition.mix(state, STEPS - 1, chosen.options, context, 1)
    if marks.models_public(job):
        exchange.mean_of_all(Released(chosen.definition.models(state)))
    return [seat.channel.tapped, told]


@pytest.mark.parametrize("case", ROWS)
def test_no_byte_on_the_wire_depends_on_records(case):
    settings = load_config(config_of(case, "logistic"), count=len(SIZES))
    found = {}
    for name in ("data", "all"):
        job = prepare(settings, nodes=DATA[name], test=TEST)
        outcomes = run_threads(lambda seat, job=job: ran(job, seat), 3, channel=Tapped)
        assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
        found[name] = [outcome.value for outcome in outcomes]
    assert sum(len(sent) for sent, _ in found["data"]) >= STEPS
    assert found["all"] == found["data"]


# What ends a run.


def test_a_private_model_that_is_not_finite_stops_nobody(tmp_path, monkeypatch):
    config = config_of("fedspd-dp", "logistic")
    row = ALGORITHMS["fedspd-dp"]
    spoilt = replace(row, models=lambda state: row.models(state) + torch.inf)
    monkeypatch.setattr(AlgorithmSection, "definition", property(lambda section: spoilt))
    result = tacit.train(config, nodes=DATA["data"], test=TEST, out=tmp_path / "run")
    assert not bool(torch.isfinite(result.parameters).all())
    assert bool(torch.isfinite(result.consensus).all())
    assert result.status == "done"


@pytest.mark.parametrize(
    ("inputs", "label", "rule"),
    [(1.0, 10, "classes must lie in 0..9"), (float("nan"), 1, "inputs must be finite numbers")],
)
def test_a_record_that_breaks_a_rule_is_not_quoted(inputs, label, rule):
    lines = set()
    for place, other in ((0, 0), (4, 17)):
        nodes = [(values.clone(), labels.clone()) for values, labels in DATA["data"]]
        nodes[1][0][place] = inputs
        nodes[1][1][place] = label + other if label == 10 else label
        with pytest.raises(TacitError, match=rule) as refused:
            tacit.train(config_of("privsgp", "logistic"), nodes=nodes)
        assert "1 of 5 records" in str(refused.value)
        assert "of 5" not in refused.value.reported()  # other processes hear of the rule alone
        lines.add((str(refused.value), refused.value.reported()))
    assert len(lines) == 1
