"""Nothing is decided from all private records together, whatever the records come from.

A record is added, removed or changed at one node, and the run is prepared anew on these
neighbouring data, up to the first noise. No shape, no label, no number of another record and
nothing that another node holds may differ, and neither may anything that is sent before. A new
source is a row of `SOURCES`.
"""

import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import safetensors.numpy
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tacit.communication.exchange import in_process
from tacit.communication.exchange.protocol import message_values
from tacit.communication.peers import Peers
from tacit.config import load_config
from tacit.data import Dataset, TaskData
from tacit.privacy.noise.draws import seeded_keys
from tacit.training.prepare import prepare
from tacit.training.processes.communication import local_exchange
from tacit.training.records import node_records
from tacit.training.stacked_context import StackedContext

Record = tuple[tuple[float, float, float], int]
Nodes = Sequence[Sequence[Record]]
Given = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Sections of the experiment, and what is passed beside it."""

SCHEMA = """
confirmed_public = true
target = {column = "y", kind = "class", labels = ["0", "1", "2"]}
node = {column = "site", values = ["s0", "s1"]}
[columns]
a = {kind = "number", low = -10, high = 10}
b = {kind = "category", values = ["0", "1", "-1"], unknown = "other"}
c = {kind = "number", low = -10, high = 10, missing = "indicator"}
"""
OUTPUTS = {"outputs": 3}
BY_RANK = {"data": "by-rank"}


def table(nodes):
    rows = [
        (f"s{node}", *inputs, label)
        for node, records in enumerate(nodes)
        for inputs, label in records
    ]
    frame = pd.DataFrame(rows, columns=["site", "a", "b", "c", "y"])
    # As people have it: whole numbers become floating where one is missing.
    return frame.assign(c=[None if value == 0 else value for value in frame["c"]])


def arrays(records):
    return np.array([inputs for inputs, _ in records]), np.array([label for _, label in records])


def of_table(ending, write):
    def given(folder, nodes):
        (folder / "all.schema.toml").write_text(SCHEMA)
        write(table(nodes), folder / f"all.{ending}")
        return {"task": {"dataset": f"{ending}:{folder}/all.{ending}"}}, {}

    return given


def of_own_tables(ending, write):
    def given(folder, nodes):
        (folder / "all.schema.toml").write_text(SCHEMA)
        for site, frame in table(nodes).groupby("site"):
            write(frame, folder / f"{str(site)[1:]}.{ending}")
        source = {**BY_RANK, "source": f"{folder}/{{node}}.{ending}"}
        return {"task": {"schema": f"{folder}/all.schema.toml"}, "nodes": source}, {}

    return given


def of_own_arrays(ending, write):
    def given(folder, nodes):
        for node, records in enumerate(nodes):
            write(folder / f"{node}.{ending}", *arrays(records))
        source = {**BY_RANK, "source": f"{folder}/{{node}}.{ending}"}
        return {"task": OUTPUTS, "nodes": source}, {}

    return given


def of_svmlight(labels, task, **more):
    """Zeros are left out, as these files do."""

    def given(folder, nodes):
        lines = [
            " ".join([str(labels[y]), *(f"{k + 1}:{x!r}" for k, x in enumerate(inputs) if x)])
            for records in nodes
            for inputs, y in records
        ]
        (folder / "file").write_text("\n".join(lines) + "\n")
        if "test" in more:
            (folder / "file.t").write_text(more["test"])
        named = {"dataset": "svmlight:file", "data_dir": str(folder), **task}
        partition = {"partition": more.get("partition", "by:label")}
        return {"task": named, "nodes": partition}, {}

    return given


def of_idx(folder, nodes):
    """MNIST's four files, of which some hold the records."""
    pixels = np.zeros((sum(map(len, nodes)), 28, 28), np.uint8)
    flat = [record for records in nodes for record in records]
    for image, (inputs, _) in zip(pixels, flat, strict=True):
        image[0, :3] = [abs(int(value * 20)) % 256 for value in inputs]
    labels = np.array([label for _, label in flat], np.uint8)
    for half in ("train", "t10k"):
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
            start = bytes([0, 0, 8, array.ndim]) + shape
            (folder / f"{half}-{name}-ubyte").write_bytes(start + array.tobytes())
        pixels, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4, dtype=np.uint8)
    task = {"dataset": "mnist", "data_dir": str(folder)}
    return {"task": task, "nodes": {"partition": "iid"}}, {}


def of_frame(make):
    def given(folder, nodes):
        (folder / "schema.toml").write_text(SCHEMA)
        split, schema, _ = node_records(make(table(nodes)), folder / "schema.toml")
        return {}, {"nodes": split, "schema": schema}

    return given


def of_frames(folder, nodes):
    (folder / "schema.toml").write_text(SCHEMA)
    frames = [frame for _, frame in table(nodes).groupby("site")]
    split, schema, _ = node_records(frames, folder / "schema.toml")
    return {}, {"nodes": split, "schema": schema}


class Stream(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Records one by one, as people write them: some numbers whole, some not."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        inputs, label = self.records[index]
        return as_written(inputs), label


def as_written(inputs):
    return [int(value) if value == int(value) else value for value in inputs]


def of_objects(make):
    def given(folder, nodes):
        return {"task": OUTPUTS}, {"nodes": [make(records) for records in nodes]}

    return given


def of_function(folder, nodes):
    inputs, labels = arrays([record for records in nodes for record in records])
    site = np.repeat([f"s{node}" for node in range(len(nodes))], [len(part) for part in nodes])
    data = TaskData("own", Dataset(inputs, labels), None, 3, {"site": site}, {"site": ("s0", "s1")})
    sys.modules["neighbouring_data"] = module = types.ModuleType("neighbouring_data")
    module.__dict__["load"] = lambda: data
    task = {"dataset": "neighbouring_data:load"}
    return {"task": task, "nodes": {"partition": "by:site"}}, {}


def of_own_function(folder, nodes):
    sys.modules["neighbouring_data"] = module = types.ModuleType("neighbouring_data")

    def load(node):
        return [as_written(inputs) for inputs, _ in nodes[node]], [y for _, y in nodes[node]]

    module.__dict__["load"] = load
    return {"task": OUTPUTS, "nodes": {**BY_RANK, "source": "neighbouring_data:load"}}, {}


@dataclass(frozen=True)
class Source:
    """Where records come from.

    Attributes:
        given: lays them out in a folder, and says how an experiment names them.
        labels: that records have; None: a node's records have its number.
        pooled: whether they are dealt at random from one file, whose number of records is public:
            then one is changed, and none comes or goes.
    """

    given: Callable[[Path, Nodes], Given]
    labels: tuple[int, ...] | None = (0, 1, 2)
    pooled: bool = False


def csv(frame, path):
    frame.to_csv(path, index=False)


def parquet(frame, path):
    frame.to_parquet(path, index=False)


def npz(path, inputs, targets):
    np.savez(path, inputs=inputs, targets=targets)


def tensors(path, inputs, targets):
    safetensors.numpy.save_file({"inputs": inputs, "targets": targets}, path)


FILE_LABELS = (1, 3, 4)
COUNTED = {"features": 3, "labels": list(FILE_LABELS)}
SOURCES = {
    "csv": Source(of_table("csv", csv)),
    "csv by rank": Source(of_own_tables("csv", csv)),
    "parquet": Source(of_table("parquet", parquet)),
    "parquet by rank": Source(of_own_tables("parquet", parquet)),
    "npz": Source(of_own_arrays("npz", npz)),
    "safetensors": Source(of_own_arrays("safetensors", tensors)),
    "svmlight, declared": Source(
        of_svmlight((1, 3), {"features": 3, "labels": [1, 3]}), labels=None
    ),
    "svmlight, dealt": Source(of_svmlight(FILE_LABELS, COUNTED, partition="iid"), pooled=True),
    "svmlight, from 0": Source(
        of_svmlight((0, 1, 2), {"features": 4, "index_base": 0, **OUTPUTS}, partition="iid"),
        pooled=True,
    ),
    "svmlight with test records": Source(
        of_svmlight(FILE_LABELS, {}, test="1 1:1\n3 3:2\n4 2:1\n", partition="iid"), pooled=True
    ),
    "svmlight of -1 and 1": Source(
        of_svmlight((-1, 1), {"loss": "logistic"}, test="-1 1:1\n1 3:2\n"), labels=None
    ),
    "svmlight of numbers": Source(
        of_svmlight((0, 1, 5), {"loss": "mse", "features": 3}, partition="iid"), pooled=True
    ),
    "idx": Source(of_idx, pooled=True),
    "a pandas frame": Source(of_frame(lambda frame: frame)),
    "a polars frame": Source(of_frame(pl.from_pandas)),
    "a frame a node": Source(of_frames),
    "arrays": Source(of_objects(arrays)),
    "lists": Source(
        of_objects(lambda part: ([as_written(x) for x, _ in part], [y for _, y in part]))
    ),
    "torch data sets": Source(of_objects(Stream)),
    "module:function": Source(of_function),
    "module:function by rank": Source(of_own_function),
}


class Listener(Peers):
    """Keeps what is told to other processes."""

    def __init__(self):
        self.told: list[tuple[str, Any]] = []

    def share(self, what, value, schema):
        self.told.append((what, schema.write(value)))
        return super().share(what, value, schema)


class ReachedError(Exception):
    """The first noise is about to be added."""


@dataclass
class Held:
    """What there is before the first noise.

    Attributes:
        shapes: of the model, of a record and of what is released.
        told: to other processes, as it is written.
        records: of each node.
        sums: of each node, which are to be noised.
        sent: messages.
    """

    shapes: Any = None
    told: list[tuple[str, Any]] = field(default_factory=list)
    records: list[list[bytes]] = field(default_factory=list)
    sums: list[bytes] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)


def up_to_the_noise(source, nodes, folder):
    """Prepare a run as it is, and run it to its first noise."""
    listener, held = Listener(), Held()
    with pytest.MonkeyPatch.context() as patch:
        sections, passed = source.given(folder, nodes)
        task = {"model": "logistic", **sections.get("task", {})}
        whole = {
            "task": task,
            "nodes": {"count": len(nodes), **sections.get("nodes", {})},
            "topology": {"graph": "complete"},
            "algorithm": {"name": "dp2-sgd", "learning_rate": 0.1, "clip": 1.0},
            "privacy": {"noise_std": 0.5, "noise_seed": 5, "delta": 1e-5},
            "train": {"steps": 2, "batch": 2},
        }
        count = len(nodes) if "nodes" in passed else None
        job = prepare(load_config(whole, count=count), peers=listener, **passed)
        first_sums(job, held, patch)
    held.told = listener.told
    ends = zip(job.train.offsets.tolist(), job.train.sizes.tolist(), strict=True)
    inputs, targets = job.train.inputs, job.train.targets
    held.records = [
        [written(inputs[row]) + written(targets[row]) for row in range(start, start + size)]
        for start, size in ends
    ]
    shapes = [(slot.name, slot.shape) for slot in job.model.layout.slots]
    record = (inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype)
    held.shapes = (shapes, record, job.outputs, job.model.path)
    return held


def first_sums(job, held, patch):
    def gate(self, total, k, **_):
        held.sums = [written(row) for row in total]
        raise ReachedError

    def watched(verb, k, values):
        held.sent.append((verb, k))
        return message_values(verb, k, values)

    patch.setattr(StackedContext, "add_noise", gate)
    patch.setattr(in_process, "message_values", watched)
    seed = job.config.privacy.noise_seed
    assert seed is not None
    keys = seeded_keys(seed, job.hosted)
    context = StackedContext(job.plan, job.model, job.train, keys, local_exchange(job), job.hosted)
    chosen = job.config.algorithm
    start = job.model.start(len(job.hosted), job.dtype, job.device)
    state = chosen.definition.start(start, chosen.options, context)
    with pytest.raises(ReachedError):
        chosen.definition.step(state, 0, chosen.options, context)


def written(value):
    return value.contiguous().numpy().tobytes()


VALUES = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, -3.25, 12.0, 255.0, 1e6])


@st.composite
def neighbours(draw, source):
    """The records of two nodes, and the same with one record of node 0 more, less or other."""

    def record(node):
        label = node if source.labels is None else draw(st.sampled_from(source.labels))
        return draw(st.tuples(VALUES, VALUES, VALUES)), label

    sizes = draw(st.tuples(st.integers(2, 4), st.integers(2, 4)))
    nodes = [[record(node) for _ in range(size)] for node, size in enumerate(sizes)]
    place = draw(st.integers(0, sizes[0] - 1))
    kind = "changed" if source.pooled else draw(st.sampled_from(["changed", "added", "removed"]))
    own = list(nodes[0])
    own[place : place + (kind != "added")] = [] if kind == "removed" else [record(0)]
    return nodes, [own, nodes[1]]


def one_differs(one, other):
    """Whether two lists are the same but for one entry that is added, removed or changed."""
    shorter, longer = sorted((one, other), key=len)
    same = 0
    while same < len(shorter) and shorter[same] == longer[same]:
        same += 1
    if len(shorter) == len(longer):
        return shorter[same + 1 :] == longer[same + 1 :]
    return len(longer) - len(shorter) == 1 and shorter[same:] == longer[same + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_a_record_decides_about_nothing_but_itself(name):
    source = SOURCES[name]

    @settings(
        max_examples=settings.default.max_examples // 8,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
    )
    @given(pair=neighbours(source))
    def holds(pair):
        with tempfile.TemporaryDirectory() as name:  # one, since its path is an experiment's own
            one, other = (up_to_the_noise(source, nodes, Path(name)) for nodes in pair)
        assert other.shapes == one.shapes
        assert other.sent == one.sent == []
        differing = [
            node
            for node, pair in enumerate(zip(one.records, other.records, strict=True))
            if pair[0] != pair[1]
        ]
        assert len(differing) <= 1
        for node in differing:
            assert one_differs(one.records[node], other.records[node])
        for node in {0, 1} - set(differing or [0]):
            assert other.sums[node] == one.sums[node]
        if [len(part) for part in pair[0]] == [len(part) for part in pair[1]]:
            assert other.told == one.told
        else:  # how many records a node has is public, and its own
            assert [what for what, _ in other.told] == [what for what, _ in one.told]

    holds()


def test_the_property_can_fail(tmp_path):
    """A source that looks at all records: it scales by the largest number there is."""

    def scaled(part):
        inputs, labels = arrays(part)
        return inputs / max(1.0, np.abs(inputs).max()), labels

    source = Source(of_objects(scaled))
    first = [((1.0, 0.5, 2.0), 1), ((0.5, 0.5, 0.5), 0)]
    one, other = (
        up_to_the_noise(source, [[*first, last], first], tmp_path)
        for last in (((1.0, 0.0, 0.0), 2), ((255.0, 0.0, 0.0), 2))
    )
    assert not one_differs(one.records[0], other.records[0])
