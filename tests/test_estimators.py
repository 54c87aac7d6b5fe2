"""The scikit-learn estimators: its own checks, and what they say of privacy."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import tacit
from tacit import TacitClassifier, TacitRegressor
from tacit.errors import InputError, RecordsError

IRIS = load_iris()
X = (IRIS.data - [5.5, 3.0, 4.0, 1.0]) / 2  # by bounds that everyone knows
LABELS = IRIS.target_names[IRIS.target]
WIDTHS = X[:, 3]
SEEDED: dict[str, Any] = {"noise_seed": 1, "delta": 1e-3, "learning_rate": 1.0, "steps": 20}
CLASSES = ["setosa", "versicolor", "virginica"]

# Seeded, so that two fits are equal; one node and a large budget, since some checks have few
# records and ask for a good score of them. Some predict hundreds, to be clamped. All checks pass.
CHECKED = {"epsilon": 200.0, "delta": 1e-3, "steps": 50, "n_nodes": 1, "noise_seed": 0}


@pytest.mark.slow
@parametrize_with_checks(
    [
        TacitClassifier(**CHECKED),
        TacitRegressor(**CHECKED, target_bound=10.0),
    ]
)
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


def test_in_a_pipeline_and_in_a_search_every_fit_spends_its_own_epsilon():
    spent: list[float | None] = []

    class Spends(tacit.callbacks.Callback):
        def on_end(self, result):
            spent.append(result.epsilon[0])

    estimator = TacitClassifier(
        epsilon=5.0, classes=CLASSES, n_nodes=1, callbacks=[Spends()], **SEEDED
    )
    pipeline = make_pipeline(FunctionTransformer(lambda inputs: inputs / 2), estimator)
    assert pipeline.fit(X, LABELS).score(X, LABELS) > 0.6
    search = GridSearchCV(estimator, {"clip": [0.5, 1.0]}, cv=2, error_score="raise")
    search.fit(X, LABELS)
    assert search.best_estimator_.epsilon_ == spent[-1]
    assert len(spent) == 1 + 2 * 2 + 1
    assert spent == pytest.approx([5.0] * 6, rel=0.01)


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
