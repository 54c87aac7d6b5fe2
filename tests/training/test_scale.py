"""Numbers that nobody has scaled: what is refused before a run, and what is said after it."""

import logging

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine

import tacit
from tacit import TacitRegressor
from tacit.errors import InputError, RecordsError

X, PROGRESS = (torch.tensor(part) for part in load_diabetes(return_X_y=True))  # 25 to 346
WINE, KIND = (torch.tensor(part) for part in load_wine(return_X_y=True))  # columns up to 1,680
SIZES = WINE.abs().amax(0)
STEPS = {"algorithm": {"name": "dp-sgd"}, "train": {"steps": 5}, "privacy": {"noise_seed": 1}}
NUMBERS = {**STEPS, "task": {"loss": "mse", "model": "linear"}}
CLASSES = {**STEPS, "task": {"outputs": 3, "model": "logistic"}}


def halves(inputs, targets):
    return [(inputs[::3], targets[::3]), (inputs[1::3], targets[1::3])]


def test_targets_far_outside_one_are_refused_without_a_bound():
    with pytest.raises(RecordsError, match="within -10 and 10") as caught:
        tacit.train(NUMBERS, nodes=halves(X, PROGRESS))
    told = caught.value.reported()
    assert "148" in str(caught.value)
    assert "148" not in told  # others hear the rule
    assert "346" not in str(caught.value)
    bound = {**NUMBERS["task"], "target_bound": 300}
    with pytest.raises(RecordsError, match="within -300 and 300"):
        tacit.train({**NUMBERS, "task": bound}, nodes=halves(X, PROGRESS))
    bound["target_bound"] = 350
    assert tacit.train({**NUMBERS, "task": bound}, nodes=halves(X, PROGRESS)).steps == 5
    scaled = tacit.train(NUMBERS, nodes=halves(X, PROGRESS / 350))
    assert scaled.steps == 5
    free = {**NUMBERS, "privacy": {"epsilon": "none"}}  # no clip, and nothing is spent
    assert tacit.train(free, nodes=halves(X, PROGRESS)).steps == 5
    with pytest.raises(InputError, match=r"task\.target_bound = 3\.0: is of numbers"):
        tacit.train({"task": {"dataset": "digits", "target_bound": 3.0}})


def test_a_regressor_scales_by_its_bound_and_predicts_in_the_users_unit():
    model = TacitRegressor(target_bound=350, n_nodes=2, noise_seed=1, epsilon=9.0)
    known = model.fit(X * 10, PROGRESS).predict(X * 10)
    by_hand = TacitRegressor(n_nodes=2, noise_seed=1, epsilon=9.0).fit(X * 10, PROGRESS / 350)
    np.testing.assert_allclose(known, by_hand.predict(X * 10) * 350)
    assert np.corrcoef(known, PROGRESS)[0, 1] > 0.5
    for wrong in (0, -1.0, float("nan"), float("inf"), "350"):
        with pytest.raises(InputError, match=r"target_bound.*must be a positive number"):
            TacitRegressor(target_bound=wrong).fit(X, PROGRESS)


@pytest.mark.parametrize(
    ("settings", "inputs", "targets", "same"),
    [
        ({**NUMBERS, "task": {**NUMBERS["task"], "target_bound": 350}}, X, PROGRESS, True),
        ({**NUMBERS, "privacy": {"epsilon": "none"}}, X * 100, PROGRESS / 350, False),
        ({**CLASSES, "privacy": {"epsilon": 0.01}}, WINE * 0, KIND, True),
        (
            {**CLASSES, "privacy": {"epsilon": "none"}, "train": {"steps": 400}},
            WINE / SIZES,
            KIND,
            False,
        ),
    ],
)
def test_one_answer_for_all_test_records_is_said_after_the_run(settings, inputs, targets, same):
    test = inputs[2::3], targets[2::3]
    settings = {**settings, "algorithm": {"name": "dp-sgd", "learning_rate": 0.1}}
    notes = tacit.train(settings, nodes=halves(inputs, targets), test=test).notes
    assert any("says the same of all" in note for note in notes) == same
    public = tacit.train(settings, nodes=halves(inputs, targets), test=(test[0], test[1] * 0))
    assert not any("says the same" in note for note in public.notes)  # as is right


def test_inputs_that_nobody_scaled_are_told_to_the_own_screen(caplog):
    with caplog.at_level(logging.WARNING, "tacit"):
        tacit.train(CLASSES, nodes=halves(WINE, KIND))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "inputs of nodes[0] and 1 more are beyond 100"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tacit"):
        tacit.train(CLASSES, nodes=halves(WINE / SIZES, KIND))
        bounded = {**CLASSES, "task": {**CLASSES["task"], "input_bound": 1.0}}
        tacit.train(bounded, nodes=halves(WINE, KIND))
    assert not caplog.records


def test_nodes_that_are_left_with_one_record_are_named():
    nodes = {"count": 1000, "partition": "dirichlet", "alpha": 0.01}
    task = {"dataset": "digits", "model": "logistic"}
    plan = tacit.train({**STEPS, "task": task, "nodes": nodes, "train": {"steps": 1}}).plan
    single = sum(node.records == 1 for node in plan.nodes)
    assert single > 500
    assert any(f"and {single - 1} more: a single record each" in line for line in plan.warnings)
    plan = tacit.train({**STEPS, "task": task, "nodes": {"count": 5}, "train": {"steps": 1}}).plan
    assert not any("single record" in line for line in plan.warnings)
