"""The sections of an experiment file, as frozen and validated objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tacit.algorithms import ALGORITHMS, Algorithm, Options

__all__ = [
    "DEFAULT_GRAPH",
    "GIVEN",
    "AlgorithmSection",
    "Config",
    "Faults",
    "Nodes",
    "Privacy",
    "Task",
    "Topology",
    "Train",
]

GIVEN = "given"  # a data set or model that was passed as an object
DEFAULT_GRAPH = {
    "column-stochastic": "exponential",
    "doubly-stochastic": "ring",
    "server": "star",
}
LOSS_NAMES = ("cross-entropy", "mse", "logistic")
MOST_STEPS = 10_000_000  # a plan holds clip and noise of every step in memory

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
Number = Annotated[int, Field(ge=0, strict=True)]  # of a node, or of a step
Chance = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]  # what TOML and every generator hold


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Task(_Section):
    """What is learnt, and from which data.

    `outputs`, numbers that the model gives for a record, is only needed where nothing else that is
    public says how many classes there are: neither the data set nor test records. `input_bound` is
    the longest that a record's inputs may be, in the l2 norm; longer ones are scaled down to it.
    """

    dataset: str = GIVEN
    model: str = "mlp"
    outputs: Count | None = None
    input_bound: Annotated[float, Field(ge=1e-100, le=1e100)] | None = None
    loss: str = "cross-entropy"
    metric: str | None = None
    data_dir: str = "data"

    @field_validator("loss")
    @classmethod
    def _loss(cls, value: str) -> str:
        if value not in LOSS_NAMES and ":" not in value:
            known = "'cross-entropy', 'mse' or 'logistic'"
            raise ValueError(f"must be {known} (or 'module:function' for your own)")
        return value


class Nodes(_Section):
    """How many nodes, how the records are split among them, and which process hosts which.

    `data = "by-rank"`: every process reads the records of its own nodes alone, from `source`, a
    path with `{node}` in it or a `module:function` called with the node's number. `placement` is
    the rank of each node, or "blocks": as equal blocks of neighbouring nodes as can be.
    """

    count: Count = 16
    partition: str = "iid"
    alpha: Positive | None = None
    per_node: Count | None = None
    data: Literal["split", "by-rank"] = "split"
    source: Annotated[str, Field(min_length=1)] | None = None
    placement: Literal["blocks"] | tuple[Number, ...] = "blocks"


class Topology(_Section):
    """Who may talk to whom, and with which weights."""

    graph: str = "exponential"
    mixing: Literal["metropolis", "laplacian", "uniform"] | None = None
    degree: Count | None = None
    shape: tuple[int, int] | None = None
    probability: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None

    @field_validator("shape", mode="before")
    @classmethod
    def _shape(cls, value: Any) -> Any:
        sides = value if isinstance(value, (list, tuple)) else ()
        whole = [type(side) is int and side >= 2 for side in sides]  # True is no length
        if value is not None and whole != [True, True]:
            raise ValueError("must be two whole numbers of 2 or more: [rows, columns]")
        return value


class AlgorithmSection(_Section):
    """Name of the algorithm, and its options, which the algorithm itself defines."""

    name: str = "dyn-d2p"
    options: Options = Field(default_factory=Options)

    @property
    def definition(self) -> Algorithm[Any, Any]:
        """The row of the table."""
        return ALGORITHMS[self.name]


class Privacy(_Section):
    """Each node's budget, or a given noise, and how it is accounted."""

    epsilon: Literal["none"] | float | tuple[float, ...] = "none"
    delta: float | tuple[float, ...] = 1e-5
    noise_std: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    epsilon_per_round: Positive | None = None
    published_constant: Positive = 1.0
    accounting: Literal["certified", "published", "none"] = "certified"
    relation: Literal["add-or-remove-one", "replace-one"] = "add-or-remove-one"
    noise_seed: Seed | None = None
    ledger: Annotated[str, Field(min_length=1)] | None = None
    ledger_epsilon: float | tuple[float, ...] | None = None
    ledger_delta: float | tuple[float, ...] | None = None

    @field_validator("epsilon", mode="before")
    @classmethod
    def _epsilon(cls, value: Any) -> Any:
        expected = "must be a positive number, a list with one for each node, or 'none'"
        return value if value == "none" else numbers(value, expected, 0.0, float("inf"))

    @field_validator("ledger_epsilon", mode="before")
    @classmethod
    def _ledger_epsilon(cls, value: Any) -> Any:
        expected = "must be a positive number, or a list with one for each node"
        return value if value is None else numbers(value, expected, 0.0, float("inf"))

    @field_validator("delta", "ledger_delta", mode="before")
    @classmethod
    def _delta(cls, value: Any) -> Any:
        if value is None:
            return value
        expected = "must lie strictly between 0 and 1, or be a list with one such for each node"
        return numbers(value, expected, 0.0, 1.0)

    @property
    def noisy(self) -> bool:
        """Whether noise is added."""
        given = (self.noise_std, self.epsilon_per_round)
        return self.epsilon != "none" or any(value is not None for value in given)


class Train(_Section):
    """How long, on which batches, in which numbers."""

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS, strict=True)] = 500
    batch: Literal["all"] | Count = 64
    sampling: Literal["poisson", "fixed"] = "poisson"
    seed: Seed = 0
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    evaluate_every: Count | None = None
    evaluate_records: Count = 1000
    checkpoint_every: Count | None = None
    timeout: Positive = 60.0  # seconds that a process waits for another before it gives up

    @field_validator("batch", mode="before")
    @classmethod
    def _batch(cls, value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value != "all" and not whole:
            raise ValueError("must be a whole number of 1 or more, or 'all'")
        return value


class Faults(_Section):
    """Faults to simulate, drawn from the public seed, and what is done about bad messages.

    Args:
        drop: chance that a message is lost, of every edge.
        drop_edges: (source, target, chance) of single edges, in place of `drop`.
        down: (node, first step, step after the last) in which a node is away.
        slow: (node, seconds) that a node takes longer for each step.
        tolerate: whether a bad message of another process is dropped with its edge; otherwise it
            ends the run.
    """

    drop: Chance = 0.0
    drop_edges: tuple[tuple[Number, Number, Chance], ...] = ()
    down: tuple[tuple[Number, Number, Count], ...] = ()
    slow: tuple[tuple[Number, Annotated[float, Field(ge=0, le=3600)]], ...] = ()
    tolerate: Annotated[bool, Field(strict=True)] = False

    @property
    def simulated(self) -> bool:
        """Whether messages are lost or nodes are away on purpose."""
        return bool(self.drop or self.drop_edges or self.down)


class Config(_Section):
    """A whole experiment."""

    task: Task = Field(default_factory=Task)
    nodes: Nodes = Field(default_factory=Nodes)
    topology: Topology = Field(default_factory=Topology)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    privacy: Privacy = Field(default_factory=Privacy)
    train: Train = Field(default_factory=Train)
    faults: Faults = Field(default_factory=Faults)

    @property
    def input_bound(self) -> float | None:
        """The l2 norm that no record's inputs exceed: as given, or as the algorithm needs it."""
        if self.task.input_bound is not None:
            return self.task.input_bound
        return self.algorithm.definition.input_bound(self.algorithm.options)

    def per_node(self, values: float | tuple[float, ...]) -> tuple[float, ...]:
        """One value a node, of a number or a list."""
        return values if isinstance(values, tuple) else (values,) * self.nodes.count


def numbers(value: Any, expected: str, low: float, high: float) -> float | tuple[float, ...]:
    """A number, or a tuple of them, strictly inside (low, high)."""
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    numbers = list(value) if listed else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ValueError(expected)
        if not low < number < high:
            raise ValueError(expected)
    if not numbers:
        raise ValueError(expected)
    return tuple(float(number) for number in numbers) if listed else float(numbers[0])
