"""The scikit-learn estimators: its own checks, and what they say of privacy."""

import pickle
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from sklearn.datasets import load_iris
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import tacit
from tacit import TacitClassifier, TacitRegressor
from tacit.data import Dataset
from tacit.errors import BudgetError, InputError, PrivateRecordsWarning, RecordsError
from tacit.training import fits

IRIS = load_iris()
X = (IRIS.data - [5.5, 3.0, 4.0, 1.0]) / 2  # by bounds that everyone knows
DISTINCT = X + np.arange(150)[:, None] / 1000  # no two records are equal
LABELS = IRIS.target_names[IRIS.target]
WIDTHS = X[:, 3]
SEEDED = {"noise_seed": 1, "delta": 1e-3, "learning_rate": 1.0, "steps": 20}
CLASSES = ["setosa", "versicolor", "virginica"]

# Seeded, so that two fits are equal; one node and a large budget, since some checks have few
# records and ask for a good score of them. Some predict hundreds, to be clamped. All checks pass.
CHECKED = {"epsilon": 200.0, "delta": 1e-3, "steps": 20, "n_nodes": 1, "noise_seed": 0}


pytestmark = pytest.mark.filterwarnings("ignore:.*fits of this process")


@pytest.fixture(autouse=True)
def _no_fits_before(monkeypatch):
    monkeypatch.setattr(fits, "_FITS", [])


@pytest.mark.slow
@parametrize_with_checks([TacitClassifier(**CHECKED), TacitRegressor(**CHECKED, target_bound=10.0)])
def test_the_checks_of_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes taken from y
        check(estimator)


def test_a_classifier_learns_within_its_budget():
    model = TacitClassifier(epsilon=5.0, classes=CLASSES, n_nodes=2, **SEEDED).fit(X, LABELS)
    assert model.score(X, LABELS) > 0.75
    assert model.epsilon_ == max(model.result_.epsilon)
    assert 4.9 < model.epsilon_ <= 5.0
    assert list(model.classes_) == CLASSES
    shares = model.predict_proba(X)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    assert (model.classes_[shares.argmax(1)] == model.predict(X)).all()
    # It is what the library itself gives for the same records.
    inputs = torch.tensor(X)
    outputs = model.result_.model().double()(inputs)
    np.testing.assert_allclose(shares, outputs.softmax(1).detach().numpy())


def test_a_regressor_learns_within_its_budget():
    model = TacitRegressor(epsilon=5.0, n_nodes=2, **{**SEEDED, "learning_rate": 0.3})
    assert model.fit(X[:, :3], WIDTHS).score(X[:, :3], WIDTHS) > 0.5
    assert 4.9 < model.epsilon_ <= 5.0


def test_nodes_are_named_record_by_record():
    hospitals = np.array(["north", "south", "south"])[np.arange(len(X)) % 3]
    budgets = {"south": 4.0, "north": 1.0}
    model = TacitClassifier(epsilon=budgets, classes=CLASSES, **SEEDED)
    model.fit(X, LABELS, nodes=hospitals)
    assert list(model.nodes_) == ["north", "south"]
    assert [node.records for node in model.result_.plan.nodes] == [50, 100]
    assert model.result_.epsilon == pytest.approx((1.0, 4.0), rel=0.01)
    with pytest.raises(InputError, match=r"nodes = \(3,\): must be one id a record"):
        model.fit(X, LABELS, nodes=hospitals[:3])
    with pytest.raises(InputError, match="n_nodes = 200"):
        TacitClassifier(n_nodes=200, classes=CLASSES, **SEEDED).fit(X, LABELS)


SOUTH = ["north", "south", "south"] * 50
FOUR = {"north": 1.0, "south": 4.0}


@pytest.mark.parametrize(
    ("epsilon", "nodes", "error", "words"),
    [
        ([1.0, 4.0], SOUTH, InputError, r'a list of 2.*epsilon=\{"NAME": NUMBER'),
        ([1.0, 4.0], [1, 2, 2] * 50, InputError, "a list of 2"),  # not numbered from 0
        ([1.0, 4.0], [False, True, True] * 50, InputError, "a list of 2"),
        ({"north": 1.0}, SOUTH, RecordsError, "100 of 150 records"),
        ({**FOUR, "west": 1.0}, SOUTH, InputError, "'west'.*without records"),
        (1.0, [None, "south", "south"] * 50, RecordsError, "50 of 150 records"),
        (1.0, [float("nan"), 1.0, 1.0] * 50, RecordsError, "50 of 150 records"),
        (1.0, np.array([1, "south", "south"] * 50, dtype=object), InputError, "all text"),
    ],
)
def test_budgets_that_are_nobodys_are_refused_and_no_name_of_a_record_is_quoted(
    epsilon, nodes, error, words
):
    model = TacitClassifier(epsilon=epsilon, classes=CLASSES, **SEEDED)
    with pytest.raises(error, match=words) as caught:
        model.fit(X, LABELS, nodes=nodes)
    assert "south" not in str(caught.value).replace("north, south", "")


def absent(value, kind):
    names = [value, "b", "b"] * 50
    return names if kind is list else kind(names)


@pytest.mark.parametrize("argument", ["nodes", "units"])
@pytest.mark.parametrize(
    "ids",
    [
        *(absent(value, list) for value in (None, float("nan"), "", " ", 0.5, [1, 2], pd.NA)),
        absent(None, lambda names: np.array(names, dtype=object)),
        *(absent(None, lambda n, k=kind: pd.Series(n, dtype=k)) for kind in ("string", "category")),
        pd.Series([None, 1, 2] * 50, dtype="Int64"),
        np.array([np.nan, 1.0, 2.0] * 50),
        np.ma.masked_equal([0, 1, 2] * 50, 0),
    ],
    ids=repr,
)
def test_an_id_that_is_missing_is_refused_wherever_ids_are_told(argument, ids):
    model = TacitClassifier(classes=CLASSES, n_nodes=2, **SEEDED)
    with pytest.raises(RecordsError, match=f"^{argument} = '50 of 150 records': ids must be"):
        model.fit(X, LABELS, **{argument: ids})


@pytest.mark.slow
def test_nodes_with_numbers_have_lists_or_tables():
    numbers = np.arange(len(X)) % 3
    for epsilon in ([1.0, 2.0, 4.0], {2: 4.0, 0: 1.0, 1: 2.0}, {2.0: 4.0, 0.0: 1.0, 1.0: 2.0}):
        for nodes in (numbers, numbers.astype(float)):  # as a column that lacked some once
            model = TacitClassifier(epsilon=epsilon, classes=CLASSES, **SEEDED)
            budgets = [node.budget for node in model.fit(X, LABELS, nodes=nodes).result_.plan.nodes]
            assert budgets == [1.0, 2.0, 4.0]


def test_classes_are_declared_or_the_fit_says_that_they_were_not():
    declared = TacitClassifier(classes=[*CLASSES, "none of these"], **SEEDED)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", tacit.NotPrivateWarning)
        declared.fit(X, LABELS)
    assert len(declared.classes_) == 4
    assert declared.predict_proba(X).shape == (150, 4)
    with pytest.warns(UserWarning, match="the classes are taken from y"):
        TacitClassifier(**SEEDED).fit(X, LABELS)
    # How many records break the rule is said, and nothing of what they hold.
    with pytest.raises(RecordsError) as caught:
        TacitClassifier(classes=["setosa", "versicolor"], **SEEDED).fit(X, LABELS)
    assert "50 of 150 records" in str(caught.value)
    assert "virginica" not in str(caught.value)


def test_nothing_is_fitted_to_the_inputs():
    """One record more at one node changes nothing that is computed at the other: no scaler."""
    nodes = np.arange(len(X)) % 2
    changed = X.copy()
    changed[nodes == 1] *= 100
    settings = {**SEEDED, "algorithm": "privsgp", "steps": 1, "options": {"final_mixing": 0}}
    first, second = (
        TacitClassifier(classes=CLASSES, **settings).fit(inputs, LABELS, nodes=nodes)
        for inputs in (X, changed)
    )
    batches = [model.result_.job.train.inputs[:75] for model in (first, second)]
    assert torch.equal(*batches)
    np.testing.assert_allclose(batches[0].numpy(), X[nodes == 0].astype("float32"))


@pytest.mark.slow
def test_in_a_pipeline_and_in_a_search_every_fit_spends_its_own_epsilon():
    spent = []

    class Spends(tacit.callbacks.Callback):
        def on_end(self, result):
            spent.append(result.epsilon[0])

    estimator = TacitClassifier(
        epsilon=5.0, classes=CLASSES, n_nodes=1, callbacks=[Spends()], **SEEDED
    )
    pipeline = make_pipeline(FunctionTransformer(lambda inputs: inputs / 2), estimator)
    assert pipeline.fit(X, LABELS).score(X, LABELS) > 0.6
    search = GridSearchCV(estimator, {"clip": [0.5, 1.0]}, cv=2, error_score="raise")
    search.fit(DISTINCT, LABELS)
    assert search.best_estimator_.epsilon_ == spent[-1]
    assert len(spent) == 1 + 2 * 2 + 1
    assert spent == pytest.approx([5.0] * 6, rel=0.01)
    # Each record was in one fold's fits and in the last one; the pipeline's inputs are others.
    fitted = search.best_estimator_
    together = composed([fitted] * 3)
    assert fitted.epsilon_total_ == pytest.approx(together, rel=0.01)
    assert fitted.epsilon_total_ >= together * (1 - 1e-6)


def composed(models):
    """Epsilon of all fits, of which each has all records of its one node at every step."""
    plans = [model.result_.plan for model in models]
    multipliers = [
        plan.release.noise_multiplier(plan.nodes[0], step)
        for plan in plans
        for step in range(plan.steps)
    ]
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(sum(z**-2 for z in multipliers) ** -0.5))
    return accountant.get_epsilon(1e-3)


@pytest.mark.slow
def test_what_fits_cost_together_is_bounded_and_said():
    makes = {"classes": CLASSES, "n_nodes": 1, **SEEDED}
    first = TacitClassifier(epsilon=1.0, **makes).fit(X[:100], LABELS[:100])
    assert first.epsilon_total_ == first.epsilon_
    other = TacitClassifier(epsilon=2.0, **makes).fit(X[100:140], LABELS[100:140])
    assert other.epsilon_total_ == other.epsilon_
    told = r"3 fits of this process .* epsilon [\d.]+ \(delta 0.001\).*n_jobs=.*ledger="
    with pytest.warns(PrivateRecordsWarning, match=told):
        both = TacitClassifier(epsilon=1.0, **makes).fit(X, LABELS)
    right = composed([other, both])  # of which no record was in the first, too
    assert right * (1 - 1e-6) <= both.epsilon_total_ <= right * 1.01 < right + first.epsilon_
    assert both.epsilon_ <= 1.0
    units = [f"p{number}" for number in range(150)]
    with pytest.warns(PrivateRecordsWarning, match="epsilon inf"):  # nobody knows a person's rows
        person = TacitClassifier(epsilon=1.0, **makes).fit(X, LABELS, units=units)
    assert person.epsilon_total_ == np.inf
    fits._FITS.clear()
    person.fit(X[:100], LABELS[:100], units=units[:100])
    with pytest.warns(PrivateRecordsWarning, match="2 fits"):  # other rows of one person
        person.fit(X[100:], LABELS[100:], units=units[50:100])
    assert 1.0 < person.epsilon_total_ < 2.0
    plain = TacitClassifier(**{**makes, "epsilon": "none"}).fit(X, LABELS)
    assert plain.epsilon_ is plain.epsilon_total_ is None
    with pytest.warns(PrivateRecordsWarning, match="epsilon inf"):
        first.fit(X, LABELS)


FRAME = pd.DataFrame({"stay": np.arange(150), **dict(zip("abcd", IRIS.data.T, strict=True))})
FRAME["place"] = np.array(["north", "south"])[np.arange(150) % 2]
BOUNDS = {"low": 0, "high": 8}
SCHEMA = {
    "confirmed_public": True,
    "target": {"column": "kind", "kind": "class", "labels": CLASSES},
    "node": {"column": "place", "values": ["north", "south"]},
    "columns": {name: {"kind": "number", **BOUNDS} for name in "abcd"}
    | {"stay": {"kind": "ignore"}},
}


@pytest.mark.slow
def test_a_frame_of_raw_columns_is_encoded_by_its_schema(tmp_path):
    makes = {"schema": SCHEMA, "epsilon": 50.0, "delta": 1e-3, "noise_seed": 1}
    model = TacitClassifier(**makes, class_weights=[1.0, 2.0, 2.0], out=tmp_path / "run")
    model.fit(FRAME, LABELS)
    assert model.result_.plan.config.nodes.names == ("north", "south") or len(model.nodes_) == 2
    assert model.result_.plan.config.task.class_weights == (1.0, 2.0, 2.0)
    assert list(model.classes_) == CLASSES
    assert model.score(FRAME, LABELS) > 0.6
    assert (tmp_path / "run" / "result.json").is_file()
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(FRAME.drop(columns=["place", "stay"])) == model.predict(FRAME)).all()
    numbers = TacitClassifier(**makes).set_params(
        schema={**SCHEMA, "target": {**SCHEMA["target"], "labels": [0, 1, 2]}}
    )
    assert numbers.fit(FRAME, IRIS.target).score(FRAME, IRIS.target) > 0.6
    target = {"column": "w", "kind": "number", "low": 0, "high": 3, "scale": "log", "unit": "cm"}
    columns = {name: SCHEMA["columns"][name] for name in "abc"} | {"d": {"kind": "ignore"}}
    columns["stay"] = {"kind": "ignore"}
    schema = {**SCHEMA, "target": target, "columns": columns}
    width = TacitRegressor(**{**makes, "schema": schema}, loss="huber")
    assert width.fit(FRAME, IRIS.data[:, 3]).score(FRAME, IRIS.data[:, 3]) > 0.3
    assert 0 <= width.predict(FRAME).min() <= width.predict(FRAME).max() <= 3
    with pytest.raises(InputError, match="schema = 'number': needs a class"):
        TacitClassifier(schema=schema).fit(FRAME, LABELS)


@pytest.mark.parametrize("kind", [np.str_, np.bool_, np.int64])
@pytest.mark.parametrize("labels", [["yes", "no"], ["no", "yes"]])
def test_classes_of_a_schema_ascend_as_values_of_y(labels, kind):
    target = {"column": "kind", "kind": "class", "labels": labels}
    columns = {"a": {"kind": "number", "low": 4, "high": 8}, "b": {"kind": "number", **BOUNDS}}
    schema = {"confirmed_public": True, "target": target, "columns": columns}
    large = IRIS.data[:, 0] > 5.8
    y = np.where(large, "yes", "no") if kind is np.str_ else large.astype(kind)
    model = TacitClassifier(schema=schema, epsilon=50.0, n_nodes=1, input_bound=0.5, **SEEDED)
    frame = FRAME[["a", "b"]]
    model.fit(frame, y)
    assert list(model.classes_) == list(np.unique(y))
    assert get_scorer("accuracy")(model, frame, y) > 0.9
    assert get_scorer("roc_auc")(model, frame, y) > 0.9
    assert get_scorer("neg_log_loss")(model, frame, y) > -0.6
    own = model.result_.predict(frame)["probability of yes"]  # whose inputs are within the bound
    np.testing.assert_allclose(model.predict_proba(frame)[:, 1], own, atol=1e-5)


def test_what_many_fits_of_drawn_records_cost_is_told_at_once():
    draws = np.random.default_rng(0)
    records = Dataset(torch.arange(6000.0)[:, None], torch.zeros(6000))
    for _ in range(24):
        fits._FITS.append(fits.FitCount(records.chosen(draws.permutation(6000)[:3000])))
    start = time.perf_counter()
    assert fits.FitCount(records, ()).total(1.0, 1e-3) == (25, np.inf)
    assert time.perf_counter() - start < 1.0


def test_a_ledger_counts_and_refuses_over_fits(tmp_path):
    makes = {"classes": CLASSES, "epsilon": 1.0, "delta": 1e-3, "steps": 5}
    model = TacitClassifier(**makes, ledger=tmp_path / "budgets", ledger_epsilon=1.5)
    with pytest.raises(InputError, match=r"ledger = .*needs nodes= in fit"):
        model.fit(X, LABELS)
    nodes = np.array(["north", "south"])[np.arange(150) % 2]
    model.fit(DISTINCT, LABELS, nodes=nodes)
    fits._FITS.clear()  # as another process would have it
    with pytest.raises(BudgetError):
        model.fit(DISTINCT[::-1], LABELS[::-1], nodes=nodes[::-1])
    model.set_params(epsilon=0.3).fit(DISTINCT[:80], LABELS[:80], nodes=nodes[:80])


def test_a_module_of_ones_own_is_the_start():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    start = [parameter.clone() for parameter in module.parameters()]
    model = TacitClassifier(model=module, classes=CLASSES, epsilon=10.0, **SEEDED).fit(X, LABELS)
    assert isinstance(model.module_[1], nn.Tanh)
    assert not model.module_.training
    assert all(map(torch.equal, start, module.parameters()))


def test_a_pickled_estimator_has_no_records():
    model = TacitClassifier(classes=CLASSES, **SEEDED).fit(X, LABELS)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()
    assert again.epsilon_ == model.epsilon_
    assert not hasattr(again, "result_")
    assert X.astype("float32").tobytes()[:64] not in pickle.dumps(model)


def test_units_are_dealt_whole_and_are_what_epsilon_protects():
    units = np.repeat([f"p{number}" for number in range(50)], 3)
    unordered = np.random.default_rng(0).permutation(len(units))
    model = TacitClassifier(classes=CLASSES, n_nodes=4, **SEEDED)
    model.fit(X[unordered], LABELS[unordered], units=units[unordered])
    plan = model.result_.plan
    assert plan.config.privacy.unit_column == "units"
    assert sorted(node.records for node in plan.nodes) == [12, 12, 13, 13]
    with pytest.raises(InputError, match=r"units = \(149,\): must be one id a record.*\(150,\)"):
        model.fit(X, LABELS, units=units[1:])
    with pytest.raises(RecordsError, match=r"units = '1 of 150 records'.*missing") as caught:
        TacitRegressor(n_nodes=4, **SEEDED).fit(X, WIDTHS, units=[None, *units[1:]])
    assert "p0" not in str(caught.value)
    with pytest.raises(InputError, match=r"n_nodes = 51: must be 1 to .* units, here n_units = 50"):
        TacitClassifier(classes=CLASSES, n_nodes=51, **SEEDED).fit(X, LABELS, units=units)
    with pytest.raises(RecordsError, match=r"privacy.unit_nodes = '50 of 50 units'"):
        model.fit(X, LABELS, nodes=np.arange(150) % 3, units=units)
