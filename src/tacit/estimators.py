"""scikit-learn estimators that train privately: `TacitClassifier` and `TacitRegressor`.

    TacitClassifier(epsilon=2.0, classes=[0, 1]).fit(X, y, nodes=hospital).predict(X_new)

Every call of `fit` is a run of its own and spends its own epsilon, which `epsilon_` gives. So a
search over settings with cross-validation multiplies the cost: a `GridSearchCV` of 4 settings and 5
folds fits 21 times. `epsilon_total_` bounds what all fits of this process on the same records cost
one of them, and a warning says so from the second on; over processes a `ledger=` counts, and
refuses what goes beyond its budget. What a search's scores and its choice tell of private records
is covered by no epsilon at all. Search on public records, and fit once on the private ones.

Nothing is fitted to `X`. A scaler in a `Pipeline` would be: its means and variances are private
facts, and are released without noise. Scale by public bounds instead, such as a
`FunctionTransformer`, or set `input_bound`.
"""

from __future__ import annotations

import copy
import multiprocessing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from tacit.data import Dataset, Schema, bounded_inputs
from tacit.data.datasets import are_named
from tacit.data.tables.kinds import ClassTarget, NumberTarget, truth
from tacit.data.tables.reading import as_columns
from tacit.data.units import Ids, unit_ids
from tacit.errors import InputError, PrivateRecordsWarning, RecordsError
from tacit.gradients.inputs import with_dtype, with_inputs
from tacit.training.api import train
from tacit.training.fits import FitCount
from tacit.training.hooks import Callback

_Names = ArrayLike | None
_CLASSES_FROM_RECORDS = (
    "the classes are taken from y: which labels occur is a private fact of the records, and no "
    "epsilon covers it; declare them with classes="
)
_OTHERS = (
    "fits of other processes, such as those of n_jobs=, are not counted: give ledger=, which "
    "counts them and refuses what goes beyond its budget"
)


@dataclass(kw_only=True, repr=False, eq=False)
class _TacitEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators have in common; scikit-learn reads the arguments off the fields."""

    epsilon: float | Sequence[float] | Mapping[Any, float] | Literal["none"] = 3.0
    delta: float | Sequence[float] | Mapping[Any, float] = 1e-5
    algorithm: str | None = None
    model: str | nn.Module | None = None
    steps: int | None = None
    batch: int | Literal["all"] | None = None
    learning_rate: float | None = None
    clip: float | None = None
    options: Mapping[str, Any] | None = None
    graph: str | None = None
    n_nodes: int = 4
    input_bound: float | None = None
    dtype: Literal["float32", "float64"] = "float32"
    seed: int = 0
    noise_seed: int | None = None
    callbacks: Sequence[Callback] = ()
    schema: str | Path | Mapping[str, Any] | Schema | None = None
    ledger: str | Path | None = None
    ledger_epsilon: float | Mapping[Any, float] | None = None
    out: str | Path | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.noise_seed is None  # the noise is of the operating system
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: not `result_`, which holds the training records."""
        return {key: value for key, value in super().__getstate__().items() if key != "result_"}

    def _fit(self, X: Any, targets: Tensor, task: dict[str, Any], nodes: Any, units: Any) -> Self:
        """Train on checked records; `task` is what the targets need."""
        ids = None if units is None else unit_ids(units, len(targets), "units")
        inputs = X if are_named(X) else torch.tensor(np.ascontiguousarray(X), dtype=torch.float64)
        return self._train(Dataset(inputs, targets, ids), task, nodes, "units")

    def _fit_table(self, X: Any, y: Any, task: dict[str, Any], nodes: Any, units: Any) -> Self:
        """Train on a frame of raw columns, and the target beside it."""
        self.schema_ = schema = Schema.of(self.schema)
        if units is not None:
            expected = "goes with arrays: of a frame, [unit] of the schema says it"
            raise InputError("units", type(units).__name__, expected)
        given = {**as_columns(X, "X"), schema.target.column: np.asarray(y)}
        read = {**schema.read(given, "X")}
        whole, node = schema.dataset(read, "X"), schema.node
        if len(whole) != len(y):
            raise InputError("y", f"{len(y):,} records", "must all have a target")
        self.n_features_in_ = len(schema.sources)
        if node is not None and node.column in read:
            own = np.array(node.values)[node.codes(read.pop(node.column), "X")]
            nodes = own if nodes is None else nodes
        unit = None if schema.unit is None else schema.unit.column
        return self._train(whole, task, nodes, unit, read)

    def _train(
        self, whole: Dataset, task: dict[str, Any], nodes: Any, unit: str | None, table: Any = None
    ) -> Self:
        given = self.model if isinstance(self.model, nn.Module) else None
        if self.ledger is not None and nodes is None and self.n_nodes > 1:
            expected = "needs nodes= in fit: records that are dealt anew would change budgets"
            raise InputError("ledger", str(self.ledger), expected)
        rows = self._rows(len(whole), nodes, whole.units)
        records = {
            _text(name): whole.chosen(row)
            if table is None
            else {column: fields.take(row) for column, fields in table.items()}
            for name, row in rows.items()
        }
        mapped = (self.epsilon, self.delta, self.ledger_epsilon)
        by_name = self.ledger is not None or any(isinstance(value, Mapping) for value in mapped)
        counted = FitCount(whole)
        schema = None if table is None else self.schema_.model_copy(update={"node": None})
        sections = {
            "task": {
                "input_bound": self.input_bound,
                "model": self.model if given is None else None,
                **task,
            },
            "topology": {"graph": self.graph},
            "algorithm": {
                "name": self.algorithm,
                "learning_rate": self.learning_rate,
                "clip": self.clip,
                **(self.options or {}),
            },
            "privacy": {
                "epsilon": _by_text(self.epsilon),
                "delta": _by_text(self.delta),
                "noise_seed": self.noise_seed,
                "unit": None if whole.units is None else f"column:{unit}",
                "ledger": None if self.ledger is None else str(self.ledger),
                "ledger_epsilon": _by_text(self.ledger_epsilon),
            },
            "train": {
                "steps": self.steps,
                "batch": self.batch,
                "dtype": self.dtype,
                "seed": self.seed,
            },
        }
        self.result_ = train(
            {
                section: {key: value for key, value in keys.items() if value is not None}
                for section, keys in sections.items()
            },
            model=given,
            nodes=records if by_name else list(records.values()),
            callbacks=(counted, *self.callbacks),
            schema=schema,
            out=self.out,
        )
        spent = [epsilon for epsilon in self.result_.epsilon if epsilon is not None]
        self.epsilon_ = max(spent) if spent else None
        self.epsilon_total_ = self._total(counted)
        # In float64, so that a prediction does not depend on which others are made with it.
        self.module_ = self.result_.model("consensus").double()
        self._bound = self.result_.predictor.bound
        return self

    def _total(self, counted: FitCount) -> float | None:
        """What all fits cost a record, with a warning where this one does not say it all."""
        if self.epsilon_ is None:
            return None
        delta = min(node.delta for node in self.result_.plan.nodes if node.delta is not None)
        fits, total = counted.total(self.epsilon_, delta)
        if fits > 1:
            told = (
                f"{fits} fits of this process shared records: together they cost one of these up "
                f"to epsilon {total:.4g} (delta {delta:g}), and epsilon_ {self.epsilon_:.4g} is of "
                f"this fit alone; {_OTHERS}"
            )
            warnings.warn(told, PrivateRecordsWarning, stacklevel=5)
        elif multiprocessing.current_process().name != "MainProcess" and self.ledger is None:
            told = f"epsilon_total_ {total:.4g} is of a worker process alone; {_OTHERS}"
            warnings.warn(told, UserWarning, stacklevel=5)
        return total

    def _rows(self, records: int, nodes: Any, ids: Ids | None) -> dict[Any, NDArray[np.int64]]:
        """The records of each node by its name: as given, or dealt by the public seed.

        What is dealt are units with all their records, where `ids` say whose each is.
        """
        if nodes is not None:
            unit_ids(nodes, records, "nodes")  # refuses what is missing, and what is no name
            names = np.asarray(nodes)  # numbers stay numbers
            self.nodes_ = self._nodes(names)
            return {name: np.flatnonzero(names == name) for name in self.nodes_.tolist()}
        whose = None if ids is None else np.unique(ids, return_inverse=True)[1]
        count = records if whose is None else int(whose.max()) + 1
        if not 1 <= self.n_nodes <= count:
            kind = "records, here n_samples" if whose is None else "units, here n_units"
            expected = f"must be 1 to the number of {kind} = {count}"
            raise InputError("n_nodes", self.n_nodes, expected)
        self.nodes_ = np.arange(self.n_nodes)
        dealt = np.array_split(np.random.default_rng(self.seed).permutation(count), self.n_nodes)
        parts = dealt if whose is None else [np.flatnonzero(np.isin(whose, part)) for part in dealt]
        return dict(enumerate(parts))

    def _nodes(self, names: NDArray[Any]) -> NDArray[Any]:
        """The nodes that records have, ascending; budgets of their own must fit them.

        Which names occur is a private fact: none is quoted that the budgets do not name.
        """
        try:
            known = np.unique(names)
        except TypeError:
            raise InputError("nodes", "an array", "must be all numbers or all text") from None
        numbered = known.dtype != np.bool_ and np.array_equal(known, np.arange(len(known)))
        for key, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if isinstance(value, Mapping):
                declared = {_text(name) for name in value}
                foreign = sum(_text(name) not in declared for name in names.tolist())
                if foreign:
                    found = f"{foreign:,} of {len(names):,} records"
                    rule = f"must be of nodes that {key}= names: {', '.join(sorted(declared))}"
                    raise RecordsError("nodes", found, rule)
                for name in sorted(declared - {_text(name) for name in known.tolist()}):
                    raise InputError(key, name, "is the name of a node without records")
            elif not numbered and not isinstance(value, str) and np.ndim(value):
                expected = f'goes to nodes by name: write {key}={{"NAME": NUMBER, ...}}'
                raise InputError(key, f"a list of {np.size(value)}", expected)
        return known

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        """The outputs of the trained model, `[records, ...]`."""
        check_is_fitted(self)
        if self.schema is not None:
            inputs = self.schema_.inputs(X, "X")
            inputs = inputs.double() if isinstance(inputs, Tensor) else inputs
            records = Dataset(inputs, torch.zeros(len(next(iter(as_columns(X, "X").values())))))
        elif are_named(X):
            records = Dataset(X, torch.zeros(len(next(iter(X.values()), ()))))
        else:
            checked = validate_data(self, X, reset=False)
            records = Dataset(torch.tensor(checked, dtype=torch.float64), torch.zeros(len(checked)))
        module = with_inputs(copy.deepcopy(self.module_), records.packed)
        rows = (
            records.inputs if self._bound is None else bounded_inputs(records.inputs, self._bound)
        )
        with torch.no_grad():
            outputs: NDArray[np.float64] = with_dtype(module, torch.float64)(rows).numpy()
        return outputs

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """Inputs and targets that scikit-learn takes; several inputs by name as they are."""
        if are_named(X):
            return X, check_array(y, ensure_2d=False, allow_nd=True, dtype=None)
        return cast("tuple[Any, Any]", validate_data(self, X, y, **options))


def _text(name: object) -> str:
    """A node's name as text; a column of numbers may be of floating ones."""
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def _as_in(labels: Sequence[str], known: np.dtype[Any]) -> NDArray[Any]:
    """Labels of a schema as values of the type of y, where they are such."""
    truths = [truth(label) for label in labels]
    if known.kind in "biuf" and {*truths} == {1.0, -1.0} and len(labels) == 2:
        return np.array([own == 1.0 for own in truths]).astype(known)
    try:
        return np.array(labels).astype(known if known.kind in "iuf" else np.str_)
    except ValueError:
        return np.array(labels)


def _by_text(budget: object) -> object:
    if not isinstance(budget, Mapping):
        return budget
    return {_text(name): value for name, value in budget.items()}


@dataclass(kw_only=True, repr=False, eq=False)
class TacitClassifier(ClassifierMixin, _TacitEstimator):  # type: ignore[misc]
    """A classifier that is trained across nodes, each within its privacy budget.

    Args:
        epsilon: the budget of each node, or one a node: `{"north": 1.0, ...}` by their names, a
            list where they are numbered from 0; "none" adds no noise.
        delta: of the budget, likewise; far below 1 divided by the records of a node.
        algorithm: a name of `tacit algorithms`, or `module:ROW`. Where none is given, whatever is
            None here is chosen from public facts, as `tacit plan --recommend` does; where one is,
            by default.
        model: a name of `[task].model`, or an `nn.Module` whose present weights are the start.
        steps: of training.
        batch: expected records of a node in a step, or "all".
        learning_rate: of the algorithm.
        clip: the bound of a record's gradient, in the l2 norm.
        options: further options of the algorithm, such as `{"momentum": 0.9}`.
        graph: a name of `[topology].graph`; by default that of the algorithm.
        n_nodes: how many nodes the records are dealt to, where `fit` is told none.
        input_bound: a public bound on the l2 norm of a record's inputs; longer ones are scaled.
        dtype: in which the run computes.
        seed: public; of the start and the dealing, never of the noise.
        noise_seed: for experiments only: seeded noise protects nobody, and the run warns of it.
        callbacks: of `tacit.callbacks`.
        schema: what is public of the columns of a frame X: a `Schema`, a mapping or a path. Then X
            has raw columns, which it encodes; classes, [node] and [unit] are those of the schema.
        ledger: the folder of the ledgers of the nodes' data. Each fit draws on them, in whatever
            process, and is refused where they are spent; `fit` has to be told `nodes`.
        ledger_epsilon: the budget of all fits on the data of a node; by default `epsilon`.
        out: a new run folder to write.
        class_weights: a public weight a class, in the order of `classes_` or the schema's labels.
        classes: all labels that a record may have. They are a public fact, and should be declared:
            without them they are taken from `y`, which tells that some record has each of them. No
            epsilon covers that, and `fit` warns of it.

    Attributes:
        classes_: the labels, ascending.
        epsilon_: certified epsilon of this fit, of the node that spent most; None without noise.
        epsilon_total_: a bound of what this and all earlier fits of this process cost one of the
            records, at the delta of this fit; a record is known by its inputs. Infinite where they
            do not add up, None without noise.
        schema_: the `Schema`, where one was given.
        result_: the `tacit.Result`. It holds the training records, and so is not pickled.
        module_: the trained consensus model.
        nodes_: the names of the nodes.
    """

    classes: ArrayLike | None = None
    class_weights: Sequence[float] | None = None

    def fit(self, X: ArrayLike, y: ArrayLike, nodes: _Names = None, units: _Names = None) -> Self:
        """Train on private records; spends `epsilon_` of every node's budget.

        Args:
            X: inputs, `[records, features]`; or several by name, for a `model` that takes these.
            y: a label a record, `[records]`.
            nodes: the number or name of each record's node, `[records]`.
            units: whose each record is, `[records]`: epsilon protects a person with all of them.

        Raises:
            InputError: something given is wrong; a `ValueError`.
            BudgetError: a node's budget cannot be met.
        """
        task: dict[str, Any] = {"loss": "cross-entropy", "class_weights": self.class_weights}
        if self.schema is not None:
            target, known = Schema.of(self.schema).target, np.asarray(y).dtype
            if not isinstance(target, ClassTarget) or self.classes is not None:
                expected = "needs a class as target in the schema, whose labels are the classes"
                raise InputError("schema", target.kind, expected)
            labels = _as_in(target.labels, known)
            # Ascending, as scores such as roc_auc take them; a model has those of the schema.
            self._places = np.argsort(labels)
            self.classes_ = labels[self._places]
            return self._fit_table(X, y, task, nodes, units)
        X, labels = self._checked(X, y)
        check_classification_targets(labels)
        if self.classes is None:
            warnings.warn(_CLASSES_FROM_RECORDS, UserWarning, stacklevel=2)
        self.classes_ = np.unique(labels if self.classes is None else np.asarray(self.classes))
        self._places = np.arange(len(self.classes_))
        places = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        wrong = int((self.classes_[places] != labels).sum())
        if wrong:
            rule = "every label must be one of classes="
            raise RecordsError("y", f"{wrong:,} of {len(labels):,} records", rule)
        outputs = max(2, len(self.classes_))  # a single class has nothing to be told from
        targets = torch.tensor(places, dtype=torch.int64)
        return self._fit(X, targets, {**task, "outputs": outputs}, nodes, units)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class, `[records, classes]`."""
        outputs = self._outputs(X)[:, self._places]
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each record, `[records]`."""
        check_is_fitted(self)
        labels: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return labels


@dataclass(kw_only=True, repr=False, eq=False)
class TacitRegressor(RegressorMixin, _TacitEstimator):  # type: ignore[misc]
    """A regressor that is trained across nodes, each within its privacy budget.

    Its loss is `mse` or `huber`. Nothing is fitted to the targets either: `target_bound` is a
    public bound on their size, to which they are clamped, and by which they are divided while it
    trains. Without one, targets beyond 10 are refused: clipped gradients would not get there.

    With a `schema`, its target has the bounds and the scale, and predictions are in its unit.

    The other arguments and attributes are those of `TacitClassifier`, but for `classes`,
    `class_weights` and `classes_`.
    """

    target_bound: float | None = None
    loss: Literal["mse", "huber"] = "mse"

    def fit(self, X: ArrayLike, y: ArrayLike, nodes: _Names = None, units: _Names = None) -> Self:
        """Train on private records; spends `epsilon_` of every node's budget.

        Args:
            X: inputs, `[records, features]`; or several by name, for a `model` that takes these.
            y: a number a record, `[records]`; or several, `[records, m]`.
            nodes: the number or name of each record's node, `[records]`.
            units: whose each record is, `[records]`: epsilon protects a person with all of them.

        Raises:
            InputError: something given is wrong; a `ValueError`.
            BudgetError: a node's budget cannot be met.
        """
        if self.schema is not None:
            kind = Schema.of(self.schema).target.kind
            if kind != "number" or self.target_bound is not None:
                expected = "needs a number as target in the schema, whose bounds are those of y"
                raise InputError("schema", kind, expected)
            return self._fit_table(X, y, {"loss": self.loss}, nodes, units)
        several = np.asarray(y).ndim > 1 and np.asarray(y).shape[1] > 1
        X, numbers = self._checked(X, y, y_numeric=True, multi_output=several)
        targets = torch.tensor(numbers, dtype=torch.float64)
        bound: Any = self.target_bound
        if bound is not None:
            if not (isinstance(bound, Real) and 0 < float(bound) < np.inf):
                raise InputError("target_bound", bound, "must be a positive number")
            targets = (targets / float(bound)).clamp(-1.0, 1.0)
        return self._fit(X, targets, {"loss": self.loss}, nodes, units)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """The predicted number of each record, `[records]`, or its numbers."""
        outputs = self._outputs(X) * (self.target_bound or 1.0)
        if self.schema is not None and isinstance(self.schema_.target, NumberTarget):
            outputs = self.schema_.target.unscaled(outputs)
        return outputs.reshape(-1) if outputs[:1].size == 1 else outputs
