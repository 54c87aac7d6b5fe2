"""The sections of an experiment file, as frozen and validated objects.

What is wrong in one is an `InputError`, however it was made: from a file, by its name, as a copy.
What each key means, `docs/reference/experiment-file.md` says, section by section.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
)

from tacit.algorithms import ALGORITHMS, DEFAULT, Algorithm, Options, Size, find_algorithm
from tacit.algorithms.options import FREE, LOCAL, Scope, refuse_idle
from tacit.config.values import Whole, average_rule, plain_values, whole_number
from tacit.data.formats.svmlight import Declared
from tacit.errors import InputError, nearest, plain_rule
from tacit.gradients import AUGMENTATIONS
from tacit.report.measures import MEASURES
from tacit.topology.own import given

LEDGER_KEYS = ("ledger", "ledger_source", "ledger_epsilon", "ledger_delta")  # of `[privacy]`
UNIT_KEYS = ("unit", "unit_rows", "unit_gradient", "unit_nodes")  # likewise
GIVEN = "given"  # a data set or model that was passed as an object
PER_NODE = ("epsilon", "guess", "delta", "ledger_epsilon", "ledger_delta")
"""Keys of `[privacy]` that give each node a number of its own."""
LOSS_NAMES = ("cross-entropy", "mse", "huber", "logistic")
DEFAULT_BANDS = 16
MOST_STEPS = 10_000_000  # a plan holds clip and noise of every step in memory
MOST_NODES = 100_000
MOST_ROUNDS = 1000
MOST_METRICS = 20
MOST_VIEWS = 1024
MOST_SCALES = 6  # of scattering
CALIBRATE_SHARE = 0.1
# Above about 300 no bound is proved for rounded Gaussian noise, so that a larger budget is never
# used up; far above this the search for the noise would take minutes.
MOST_EPSILON = 10_000
# Arithmetic in float64 is paid for out of delta, and takes more than this at no size of a run.
LEAST_DELTA = 1e-100
MOST_WEIGHT = 1e12

PerNode = float | tuple[float, ...] | dict[str, float]
"""A number for all nodes, one for each by its number, or one for each by its name."""

Probability = Annotated[float, Field(gt=0, lt=1)]
MOST_UNIT_ROWS = 1024
Count = Annotated[int, Field(ge=1, le=10**9, strict=True), Whole]
Number = Annotated[int, Field(ge=0, le=10**9, strict=True), Whole]  # of a node, or of a step
Text = Annotated[str, Field(min_length=1)]
Features = Count | Text | tuple[Count, Text]
Label = Annotated[int, Field(ge=-(2**31), lt=2**31, strict=True), Whole]  # as a file has it
Chance = Annotated[float, Field(ge=0, lt=1)]
Constant = Annotated[float, Field(ge=0, le=1e100)]  # of a promise
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS, strict=True), Whole]  # of gossip, in a step
SourceNames = Annotated[
    str, Field(pattern=r"^[^\s\x00-\x1f]+([ ][^\s\x00-\x1f]+)*$", max_length=400)
]
Seed = Annotated[
    int, Field(ge=0, lt=2**63, strict=True), Whole
]  # what TOML and every generator hold


class Section(BaseModel):
    """Keys and values that belong together; every way to one checks all of them.

    Raises:
        InputError: naming the key, its value and what would be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def __init__(self, /, **values: Any) -> None:
        values = plain_values(values)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), values, error) from None

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Make one of a mapping; one that is made already stays as it is."""
        if isinstance(obj, Mapping):
            return cls(**_named(obj, cls))
        if not isinstance(obj, cls):
            raise InputError(f"[{_title(cls)}]", obj, "must be a section with keys of its own")
        return super().model_validate(obj, **options)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same with some values replaced, which are checked as in a new one."""
        return type(self)(**{**dict(self), **(update or {})})


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pydantic keeps an old method of the name `schema`

    class TableKeys(Section):
        """The keys of `[task]` that are of tables and their test records."""

        schema: Annotated[str, Field(min_length=1)] | None = None  # type: ignore[assignment]
        test: Annotated[str, Field(min_length=1)] | None = None
        test_share: Probability | None = None


class Task(TableKeys):
    """What is learnt, and from which data."""

    dataset: str = GIVEN
    model: str = "mlp"
    features: Features | None = None
    labels: Annotated[tuple[Label, ...], Field(min_length=2, max_length=10_000)] | None = None
    index_base: Annotated[int, Field(ge=0, le=1, strict=True), Whole] | None = None
    features_cache: Annotated[Text | None, LOCAL] = None
    outputs: Count | None = None
    output: Number | Annotated[str, Field(min_length=1)] | None = None
    input_bound: Annotated[float, Field(ge=1e-100, le=1e100)] | None = None
    target_bound: Size | None = None
    loss: str = "cross-entropy"
    class_weights: Annotated[tuple[Size, ...], Field(min_length=2, max_length=10_000)] | None = None
    augmentation: str | None = None
    metric: tuple[str, ...] | None = None
    calibrate: Literal["none", "public", "private"] = "none"
    data_dir: Annotated[str, Scope(local=True, known_as="")] = "data"

    @field_validator("features")
    @classmethod
    def _features(cls, value: Features | None) -> Features | None:
        kind, colon, argument = (_split(value)[1] or "scattering").partition(":")
        scales = int(argument) if argument.isdecimal() and len(argument) < 3 else 0
        known = 1 <= scales <= MOST_SCALES if colon else True
        if not (known if kind == "scattering" else colon):
            raise ValueError(
                f"must be 'scattering', 'scattering:J' with J from 1 to {MOST_SCALES}, or "
                "'module:function' for your own; a whole number is how many features the records "
                "of an svmlight file have, and [54, 'module:function'] is both"
            )
        return value

    @field_validator("labels")
    @classmethod
    def _labels(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("must name every label once")
        return value

    @field_validator("loss")
    @classmethod
    def _loss(cls, value: str) -> str:
        if value not in (*LOSS_NAMES, GIVEN) and ":" not in value:
            known = "'cross-entropy', 'mse', 'huber' or 'logistic'"
            raise ValueError(f"must be {known} (or 'module:function' for your own)")
        return value

    @field_validator("class_weights", mode="before")
    @classmethod
    def _class_weights(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(
                "must be a list with one public weight a class, such as [1.0, 8.5] (`tacit privacy "
                "labels` counts private labels under noise, and writes one)"
            )
        return value

    @field_validator("augmentation")
    @classmethod
    def _augmentation(cls, value: str | None) -> str | None:
        if value is not None and value not in AUGMENTATIONS and ":" not in value:
            hint = nearest(value, AUGMENTATIONS)
            raise ValueError(f"{hint} (or 'module:function' for views of your own)")
        return value

    @field_validator("metric", mode="before")
    @classmethod
    def _metric(cls, value: Any) -> Any:
        if value is None:
            return value
        names = (value,) if isinstance(value, str) else value
        if not isinstance(names, Sequence) or not 0 < len(names) <= MOST_METRICS:
            raise ValueError("must be a name, or a list of 1 to 20 names")
        for name in names:
            if not isinstance(name, str):
                raise ValueError("must be a name, or a list of names, and each a string")
            if name not in MEASURES and ":" not in name:
                hint = f"{nearest(name, MEASURES)} (or 'module:function' for your own)"
                raise ValueError(f"must be names of metrics, and {name[:100]!r} is none; {hint}")
        if len(set(names)) < len(names):
            raise ValueError("must name each metric once")
        return tuple(names)

    @property
    def feature_map(self) -> str | None:
        """The fixed public map of a record's inputs, as it is named; None: there is none."""
        return _split(self.features)[1]

    @property
    def declared(self) -> Declared:
        """What is public of an svmlight file."""
        count = _split(self.features)[0]
        return Declared(count, self.labels, self.index_base, self.outputs, self.loss)


class Nodes(Section):
    """How many nodes, how the records are split among them, and which process hosts which.

    What is trained is the model of least sum_i p_i f_i, where f_i is the mean loss of node i's
    records. `weights` are the p_i, up to a factor: "records" (J_i), "equal", "noise" (what gives
    the mean of all gradients the least noise: (q_i J_i / z_i)^2), or numbers; see `Config.weights`.
    """

    count: Annotated[int, Field(ge=1, le=MOST_NODES, strict=True), Whole] = 16
    partition: str = "iid"
    alpha: Size | None = None
    per_node: Count | None = None
    names: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(min_length=1)
        ]
        | None
    ) = None
    without_records: Annotated[tuple[Number | Text, ...], Field(min_length=1)] | None = None
    data: Literal["split", "by-rank"] = "split"
    source: Annotated[Text | None, Scope(local=True, known_as="{node}")] = None
    weights: Literal["records", "equal", "noise"] | tuple[float, ...] | dict[str, float] | None = (
        None
    )
    part: tuple[Number, Count | tuple[Text, ...]] | None = None
    placement: Annotated[
        Literal["blocks"] | Annotated[tuple[Number, ...], Field(fail_fast=True)], FREE
    ] = "blocks"

    @field_validator("weights", mode="before")
    @classmethod
    def _weights(cls, value: Any) -> Any:
        if value is None or value in ("records", "equal", "noise"):
            return value
        expected = f"must be 'records', 'equal', 'noise', or positive numbers, {_EACH}"
        numbers = _numbers(value, expected, MOST_WEIGHT)
        if isinstance(numbers, float):
            raise ValueError(expected)
        return numbers

    @property
    def empty(self) -> frozenset[int]:
        """The numbers of the nodes without records.

        It is an InputError where they go by name, and nothing says the nodes' names.
        """
        wanted, names = set(self.without_records or ()), self.names
        if names is None and any(isinstance(node, str) for node in wanted):
            expected = "must say whose each node is, since nodes.without_records goes by name"
            raise InputError("nodes.names", None, expected)
        pairs = enumerate(names or [""] * self.count)
        return frozenset(node for node, name in pairs if node in wanted or name in wanted)

    @property
    def divided(self) -> tuple[int, tuple[str, ...] | None]:
        """Into how many parts the records are divided, and what they are called, if they are."""
        if self.part is None:
            return self.count, self.names
        parts = self.part[1]
        return (parts, None) if isinstance(parts, int) else (len(parts), parts)


class Topology(Section):
    """Who may talk to whom, with which weights, and how often in a step.

    In Python `graph` may be an object as well. A plan settles `rounds` of "auto".
    """

    graph: str | None = None
    undirected: bool | None = None
    mixing: Literal["metropolis", "laplacian", "uniform"] | None = None
    degree: Count | None = None
    shape: tuple[int, int] | None = None
    probability: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    partners: str | None = None
    rounds: Rounds | Literal["auto"] | None = None

    @field_validator("graph", mode="before")
    @classmethod
    def _graph(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else given(value)

    @field_validator("partners")
    @classmethod
    def _partners(cls, value: Any) -> Any:
        kind, _, degree = (value or "graph").partition(":")
        named = kind in ("graph", "complete") and value in (None, kind)
        ring = kind == "circulant" and degree.isdecimal() and 2 <= int(degree) <= MOST_NODES
        if not named and not (ring and int(degree) % 2 == 0):
            raise ValueError(
                "must be 'graph' (the neighbours, both ways), 'complete', or 'circulant:K' with an "
                "even number K of partners of each node, such as 'circulant:4'"
            )
        return value

    @field_validator("rounds", mode="before")
    @classmethod
    def _rounds(cls, value: Any) -> Any:
        value = whole_number(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value not in (None, "auto") and not (whole and 1 <= value <= MOST_ROUNDS):
            raise ValueError(f"must be a whole number from 1 to {MOST_ROUNDS}, or 'auto'")
        return value

    @field_validator("shape", mode="before")
    @classmethod
    def _shape(cls, value: Any) -> Any:
        sides = value if isinstance(value, (list, tuple)) else ()
        whole = [type(side) is int and side >= 2 for side in sides]  # True is no length
        if value is not None and whole != [True, True]:
            raise ValueError("must be two whole numbers of 2 or more: [rows, columns]")
        return value


class AlgorithmSection(Section):
    """Name of the algorithm, and its options, which the algorithm itself defines."""

    name: str
    options: SerializeAsAny[Options]

    def __init__(self, /, name: Any = DEFAULT, options: Any = None, **given: Any) -> None:
        """Check the options, given as such or one by one, against those of the algorithm."""
        kind = find_algorithm(name).options
        if not isinstance(options, Options | Mapping | None):
            raise InputError(
                "algorithm.options", options, f"must be a mapping, or options of {name}"
            )
        values = plain_values({**_named(dict(options or {}), type(self)), **given})
        _refuse_foreign(name, kind, values)
        if values.get("clip") == "median" and not kind.takes_median:
            takers = [row.name for row in ALGORITHMS.values() if row.options.takes_median]
            expected = f"must be a positive number: 'median' is for {', '.join(takers)} alone"
            raise InputError("algorithm.clip", "median", expected)
        try:
            chosen = kind(**values)
        except ValidationError as error:
            raise _refusal(kind, values, error, "algorithm") from None
        refuse_idle(chosen)
        super().__init__(name=name, options=chosen)

    @classmethod
    def unread(cls, values: Any) -> Any:
        """What a run folder says of an algorithm, which is not imported if it is not of the table.

        Its options are then taken as they were written, and it has no `definition`.
        """
        name = values.get("name", DEFAULT) if isinstance(values, Mapping) else None
        if not isinstance(name, str) or name in ALGORITHMS:
            return values
        others = ("name", "cls", "_fields_set")  # and what would be arguments of ours
        options = {key: value for key, value in values.items() if key not in others}
        return cls.model_construct(name=name, options=_made(_Unread, options))

    @property
    def is_read(self) -> bool:
        """Whether its row is known: see `unread`."""
        return not isinstance(self.options, _Unread)

    @property
    def definition(self) -> Algorithm[Any, Any]:
        """Its row: of the table, a package, or the user's own; refused where nobody read it."""
        if not self.is_read:
            expected = "is needed here, and is another's code: if you have read it, pass --trust"
            raise InputError("algorithm.name", self.name, expected)
        return find_algorithm(self.name)

    def __reduce__(self) -> Any:
        # By its name: a process that is handed it may have to find its options' class first.
        given = self.options.model_fields_set
        return _made_anew, (self.name, self.is_read, dict(self.options), given)


class _Unread(Options):
    model_config = ConfigDict(extra="allow")


def _made(kind: type[Options], values: Mapping[str, Any], given: Any = None) -> Options:
    kind.model_rebuild()
    return kind.model_construct(_fields_set=given, **values)


def _made_anew(name: str, is_read: bool, values: dict[str, Any], given: set[str]) -> Any:
    kind = find_algorithm(name).options if is_read else _Unread
    return AlgorithmSection.model_construct(name=name, options=_made(kind, values, given))


class Privacy(Section):
    """Each node's budget, or a given noise, whom epsilon protects, and how it is accounted.

    Of `guess`, an epsilon and its noise follow; `calibrate_share` of the budget is as mu^2 of
    Gaussian DP.
    """

    epsilon: Literal["none"] | PerNode | None = None
    guess: PerNode | None = None
    delta: PerNode = 1e-5
    noise_std: Annotated[Size, Field(le=1e12)] | None = None
    epsilon_per_round: (
        Annotated[float, Field(gt=0, le=MOST_EPSILON, allow_inf_nan=False)] | None
    ) = None
    published_constant: Size = 1.0
    accounting: Literal["certified", "published", "none"] = "certified"
    relation: Literal["add-or-remove-one", "replace-one"] = "add-or-remove-one"
    noise: Literal["independent", "pairwise", "banded", "tree"] = "independent"
    bands: Annotated[int, Field(ge=2, le=1024, strict=True), Whole] | None = None
    colluding: Annotated[int, Field(ge=0, le=MOST_NODES, strict=True), Whole] | None = None
    pair_noise: Literal["auto"] | float | None = None
    aggregation: Literal["clear", "secure-sum"] = "clear"
    noise_seed: Seed | None = None
    keystream: Literal["aes", "chacha20"] | None = None
    calibrate_share: Probability | None = None
    unit: str = "record"
    unit_rows: Annotated[int, Field(ge=1, le=MOST_UNIT_ROWS, strict=True), Whole] = 16
    unit_gradient: Literal["mean", "sum"] = "mean"
    unit_nodes: Count = 1
    # The ledgers may lie elsewhere than before (they know a run again), but not come or go.
    ledger: Annotated[Text | None, Scope(local=True, known_as="a folder")] = None
    ledger_source: Annotated[
        SourceNames | tuple[SourceNames, ...] | dict[str, SourceNames] | None,
        Scope(local=True, resumed=False),
    ] = None
    ledger_epsilon: PerNode | None = None
    ledger_delta: PerNode | None = None

    @field_validator("unit")
    @classmethod
    def _unit(cls, value: str) -> str:
        kind, colon, name = value.partition(":")
        if value != "record" and not (kind == "column" and colon and name):
            raise ValueError(
                "must be 'record', or 'column:NAME' of the column that says whose a record is"
            )
        return value

    @field_validator("epsilon", mode="before")
    @classmethod
    def _epsilon(cls, value: Any) -> Any:
        expected = f"must be a positive number, {_EACH}, or 'none'"
        if value is None or (isinstance(value, str) and value == "none"):
            return value
        return _numbers(value, expected, MOST_EPSILON)

    @field_validator("guess", mode="before")
    @classmethod
    def _guess(cls, value: Any) -> Any:
        if value is None:
            return value
        expected = f"must lie strictly between 0.5 (a blind guess) and 1, or be {_EACH}"
        numbers = _numbers(value, expected, 1.0 - 2**-53)
        if min(_each(numbers).values()) <= 0.5:
            raise ValueError(expected)
        return numbers

    @field_validator("pair_noise", mode="before")
    @classmethod
    def _pair_noise(cls, value: Any) -> Any:
        if value is None or (isinstance(value, str) and value == "auto"):
            return value
        numbers = _numbers(value, "must be 'auto', or a number above 0", 1e6)
        if not isinstance(numbers, float):
            raise ValueError("must be 'auto', or one number above 0 for all pairs")
        return numbers

    @field_validator("ledger_epsilon", mode="before")
    @classmethod
    def _ledger_epsilon(cls, value: Any) -> Any:
        expected = f"must be a positive number, or {_EACH}"
        return value if value is None else _numbers(value, expected, MOST_EPSILON)

    @field_validator("delta", "ledger_delta", mode="before")
    @classmethod
    def _delta(cls, value: Any) -> Any:
        if value is None:
            return value
        expected = f"must lie strictly between 0 and 1, or be {_EACH}"
        numbers = _numbers(value, expected, 1.0 - 2**-53)
        if min(_each(numbers).values()) < LEAST_DELTA:
            raise ValueError(
                f"must be {LEAST_DELTA:g} or more: below, nothing is proved of noise in finite "
                "arithmetic; a tenth of 1 / records is usual"
            )
        return numbers

    @property
    def unit_column(self) -> str | None:
        """The column whose ids epsilon protects; None: each record alone."""
        return self.unit.partition(":")[2] or None

    @property
    def budget(self) -> PerNode | None:
        """The epsilon asked for, one or one a node; None: none was."""
        return None if self.epsilon == "none" else self.epsilon

    @property
    def noisy(self) -> bool:
        """Whether noise is added."""
        given = (self.budget, self.guess, self.noise_std, self.epsilon_per_round)
        return any(value is not None for value in given)


class Train(Section):
    """How long, on which batches, in which numbers, and which models are the result.

    A plan settles a `batch` of "auto".
    """

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS, strict=True), Whole] = 500
    batch: Literal["all", "auto"] | Count = "auto"
    sampling: Literal["poisson", "fixed", "allocation", "cyclic"] = "poisson"
    views: Annotated[int, Field(ge=1, le=MOST_VIEWS, strict=True), Whole] | None = None
    average: str = "none"
    seed: Seed = 0
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    device: Annotated[str, LOCAL] = "cpu"
    evaluate_every: Annotated[Count | None, FREE] = None
    evaluate_records: Annotated[Count, Scope(known_as=1)] = 1000
    suboptimality: Annotated[bool, FREE] = False
    checkpoint_every: Annotated[Count | None, FREE] = None
    # Seconds that a process waits for another before it gives up; 10 days at most.
    timeout: Annotated[float, Field(gt=0, le=864_000, allow_inf_nan=False), LOCAL] = 60.0
    # Seconds for which sites of a consortium wait for one that is away; 100 days at most.
    patience: Annotated[float, Field(gt=0, le=8_640_000, allow_inf_nan=False), LOCAL] = 3600.0

    @property
    def settled_batch(self) -> int | Literal["all"]:
        """The batch of a plan's experiment, in which it is no longer open."""
        assert self.batch != "auto"
        return self.batch

    @field_validator("average", mode="before")
    @classmethod
    def _average(cls, value: Any) -> Any:
        average_rule(value)
        return value

    @field_validator("batch", mode="before")
    @classmethod
    def _batch(cls, value: Any) -> Any:
        value = whole_number(value)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value not in ("all", "auto") and not whole:
            raise ValueError("must be a whole number of 1 or more, or 'all'")
        return value


class Promise(Section):
    """Constants of the problem, for what the paper of a run promises of its result.

    Only `tacit plan` reads them.
    """

    smoothness: Annotated[Annotated[float, Field(ge=1e-100, le=1e100)] | None, FREE] = None
    initial_gap: Annotated[Constant | None, FREE] = None
    heterogeneity: Annotated[Constant | None, FREE] = None
    push_sum_constant: Annotated[Constant | None, FREE] = None
    push_sum_rate: Annotated[Chance | None, FREE] = None


class Faults(Section):
    """Faults to simulate, drawn from the public seed, and what is done about bad messages.

    `drop_edges` are (source, target, chance), `down` are (node, first step, step after the last),
    and `slow` are (node, seconds a step).
    """

    drop: Chance = 0.0
    drop_edges: Annotated[tuple[tuple[Number, Number, Chance], ...], Field(fail_fast=True)] = ()
    down: Annotated[tuple[tuple[Number, Number, Count], ...], Field(fail_fast=True)] = ()
    slow: Annotated[
        tuple[tuple[Number, Annotated[float, Field(ge=0, le=3600)]], ...],
        Field(fail_fast=True),
        FREE,
    ] = ()
    tolerate: Annotated[bool, Field(strict=True), FREE] = False

    @property
    def simulated(self) -> bool:
        """Whether messages are lost or nodes are away on purpose."""
        return bool(self.drop or self.drop_edges or self.down)


def _of_words(value: str) -> str:
    # Among the letters of category C are those that let a line read otherwise than it stands.
    if any(unicodedata.category(sign)[0] == "C" and sign not in "\n\t" for sign in value):
        raise ValueError("must have no control characters and no unseen signs")
    if not value.strip():
        raise ValueError("must say something, or be left out")
    return value


Words = Annotated[str, Field(max_length=4000), AfterValidator(_of_words)]
_Declared = Annotated[Words | None, FREE]


class StatementSection(Section):
    """What people declare of a run for its statement, which takes it over word for word.

    Nothing that runs changes with it, so that a run may go on with other words; sites agree on it,
    since the statement is of all. `organisations` are the parties behind the nodes, by the name of
    the node (its number, where it has none), and `organisation_kind` is what all of them are.
    """

    title: _Declared = None
    organisations: Annotated[dict[str, Words] | None, FREE] = None
    organisation_kind: Annotated[Literal["Government", "Industry", "Nonprofit"] | None, FREE] = None
    purpose: _Declared = None
    legal_basis: _Declared = None
    sector: _Declared = None
    region: _Declared = None
    period: _Declared = None
    contact: _Declared = None
    decided_by: _Declared = None
    why_epsilon: _Declared = None
    settings_chosen_on: _Declared = None
    data_domain: _Declared = None
    access: _Declared = None
    retention: _Declared = None
    withdrawal: _Declared = None


_EACH = "one for each node (a table by their names, a list if they have none)"


def _each(value: Any) -> Mapping[Any, Any]:
    """The numbers of a setting, by whose they are: a name, a place, or nobody's in particular."""
    if isinstance(value, Mapping):
        return plain_values(value)
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return dict(enumerate(value)) if listed else {None: value}


def _numbers(value: Any, expected: str, most: float) -> PerNode:
    """A number, a tuple, or a table by names, each number above 0 and at most `most`."""
    given = _each(value)
    for number in given.values():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
            raise ValueError(expected)
        if not number <= most:
            raise ValueError(f"{expected}; at most {most:g}" if most > 1 else expected)
    if not given:
        raise ValueError(expected)
    if isinstance(value, Mapping):
        return {str(name): float(number) for name, number in given.items()}
    numbers = tuple(map(float, given.values()))
    return numbers[0] if None in given else numbers


def _split(features: Features | None) -> tuple[int | None, str | None]:
    """How many features are declared, and the name of a map of them."""
    if isinstance(features, tuple):
        return features
    return (None, features) if isinstance(features, str) else (features, None)


def _title(model: type[BaseModel]) -> str:
    """The name of a section in a file."""
    return model.__name__.removesuffix("Section").lower()


def _named(values: Mapping[Any, Any], model: type[BaseModel]) -> dict[str, Any]:
    """A mapping whose keys are strings."""
    for key in values:
        if not isinstance(key, str):
            raise InputError(f"[{_title(model)}]", key, "must have keys that are strings")
    return dict(values)


def _refusal(
    model: type[BaseModel], values: Mapping[str, Any], error: ValidationError, title: str = ""
) -> InputError:
    """The first thing that is wrong with the values of a section."""
    faults = error.errors(include_url=False)
    first = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    key = str(first["loc"][0]) if first["loc"] else ""
    where = f"{title or _title(model)}.{key}"
    if first["type"] == "extra_forbidden":
        known = list(model.model_fields)
        listed = f"this takes: {', '.join(sorted(known))}"
        close = nearest(key, known)
        hint = f"{close} ({listed})" if close.startswith("did") else listed
        return InputError(where, values[key], f"unknown key; {hint}")
    return InputError(where, values.get(key), plain_rule(faults))


def _refuse_foreign(name: str, kind: type[Options], values: Mapping[str, Any]) -> None:
    """Refuse an option that only other algorithms have: they are named."""
    for key in values:
        if key in kind.model_fields:
            continue
        others = [row.name for row in ALGORITHMS.values() if key in row.options.model_fields]
        if others:
            expected = (
                f"is no option of {name}: leave it out, or choose a method that has it "
                f"({', '.join(others)}); {name} takes: {', '.join(sorted(kind.model_fields))}"
            )
            raise InputError(f"algorithm.{key}", values[key], expected)
