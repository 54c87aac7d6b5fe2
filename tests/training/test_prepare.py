"""What a run is prepared from: what is public is declared, and private records decide nothing."""

import logging
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine
from torch import nn

import tacit
from experiments import experiment, write_experiment, write_module
from fork_server import ForkServer
from tacit import TacitRegressor
from tacit.communication.peers import Peers, PeerState
from tacit.communication.received import Experiment
from tacit.config import load_config
from tacit.errors import InputError, MeetAnewError, PrivateRecordsWarning, RecordsError
from tacit.training.prepare import prepare

SETTINGS = {
    "algorithm": {"name": "privsgp"},
    "privacy": {"noise_std": 1.0, "noise_seed": 1},
    "train": {"steps": 1, "batch": "all"},
}


def nodes(*labels, inputs=1.0):
    return [(torch.full((len(own), 3), inputs), torch.tensor(own)) for own in labels]


def prepared(data, task, **rest):
    given = {"model": "linear", **task}
    config = load_config({**SETTINGS, "task": given}, count=len(data), given_model="model" in rest)
    return prepare(config, nodes=data, **rest)


SMALL, LARGE = nodes([0, 1], [1, 0]), nodes([0, 5], [1, 3])


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_outputs_are_what_is_declared_whatever_the_labels(data):
    public = nodes([6, 2])[0]
    assert prepared(data, {"outputs": 9}, test=public).outputs == 9
    assert prepared(data, {}, test=public).outputs == 7
    assert prepared(data, {}, model=nn.Linear(3, 8)).outputs == 8
    with pytest.raises(InputError, match=r"task\.outputs = None: write how many classes"):
        prepared(data, {})


def test_outputs_of_numbers_are_their_width():
    data = [(torch.ones(2, 3), torch.rand(2, 4))] * 2
    assert prepared(data, {"loss": "mse"}).outputs == 4
    assert prepared(nodes([0, 1], [1, 1]), {"loss": "logistic"}).outputs == 1


@pytest.mark.parametrize(("classes", "outputs"), [("classes=4", 4), ("classes=None", None)])
def test_a_data_set_may_declare_its_classes(classes, outputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = write_module(
        tmp_path,
        f"""
        def make():
            train = Dataset(torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]))
            return TaskData("mine", train, {classes})
        """,
    )
    task = {"dataset": f"{name}:make", "model": "linear"}
    config = load_config({**SETTINGS, "task": task, "nodes": {"count": 2}})
    if outputs is None:
        with pytest.raises(InputError, match=r"task\.outputs"):
            prepare(config)
    else:
        assert prepare(config).outputs == outputs


def test_built_in_data_sets_declare_their_classes():
    task = {"dataset": "digits", "model": "linear"}
    config = load_config({**SETTINGS, "task": task, "nodes": {"count": 2}})
    assert prepare(config).outputs == 10


@pytest.mark.parametrize("label", [5, 6, -1])
def test_a_label_that_was_not_declared_is_refused_and_not_told(label):
    with pytest.raises(RecordsError) as refused:
        prepared(nodes([0, 1], [label, 3, label]), {"outputs": 5})
    assert str(refused.value) == (
        "nodes[1] = '2 of 3 records': the model has 5 outputs, so classes must lie in 0..4"
    )
    assert refused.value.reported() == (
        "its own records break a rule: the model has 5 outputs, so classes must lie in 0..4"
    )


def test_each_node_may_call_the_two_classes_in_its_own_way():
    """A rule of the loss is of the records of a node, also where those of all are asked at once."""
    task = {"loss": "logistic", "outputs": 1}
    prepared(nodes([-1, 1], [0, 1]), task)
    with pytest.raises(RecordsError, match=r"nodes\[1\] = '1 of 3 records'"):
        prepared(nodes([-1, 1], [-1, 0, 1]), task)


class Seen(nn.Module):
    """A linear model that keeps what it is shown."""

    shown: ClassVar[list[np.ndarray]] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, inputs):
        if not torch._C._functorch.is_functorch_wrapped_tensor(inputs):
            Seen.shown.append(inputs.detach().double().numpy())
        return self.layer(inputs)


@pytest.mark.parametrize("public", [None, nodes([6, 2, 1], inputs=7.0)[0]])
def test_the_model_is_tried_on_no_private_record(public):
    shown = []
    for inputs in (1234.5, -6789.25):
        Seen.shown = []
        prepared(nodes([0, 1], [1, 0], inputs=inputs), {}, model=Seen(), test=public)
        shown.append(Seen.shown)
        assert Seen.shown
        assert not any((values == inputs).any() for values in Seen.shown)
    assert all(np.array_equal(first, other) for first, other in zip(*shown, strict=True))


@pytest.mark.parametrize("values", [0.0, 1e30, -1e-40])
def test_what_is_prepared_does_not_depend_on_records(values):
    task = {"outputs": 3, "model": "mlp"}
    right = prepared(nodes([0, 1], [1, 2]), task)
    found = prepared(nodes([2, 2], [0, 0], inputs=values), task)
    assert found.plan.digest() == right.plan.digest()
    assert (found.model.path, found.outputs) == (right.model.path, right.outputs)


class Late(Peers):
    """Three processes, of which the last comes late, and holds three records."""

    processes = 3

    def __init__(self, spare):
        self.spare = spare

    def share(self, what, value, schema):
        few = value.model_copy(update={"records": [3]}) if isinstance(value, Experiment) else value
        return [value, value, few]

    def can_spare(self, ranks):
        return set(ranks) <= set(self.spare)

    def seen(self):
        return tuple(PeerState(n, name, "connected") for n, name in enumerate(("a", "b", "west")))


@pytest.mark.parametrize("spare", [(2,), ()])
def test_one_that_comes_late_and_holds_too_little_ends_no_run_of_others(spare):
    changed = experiment(
        nodes={"count": 3},
        algorithm={"name": "dp-fedavg", "clients_per_round": 3, "local_steps": 5},
        train={"batch": 16},
        faults={"tolerate": True},
    )
    kind = MeetAnewError if spare else InputError
    line = "west came back, and there is no plan with them: .*" if spare else ""
    with pytest.raises(kind, match=f"{line}node 2 has 3"):
        prepare(load_config(changed), peers=Late(spare))


@pytest.mark.parametrize(("private", "count"), [(0, 0), (3, 3), (20, 20)])
def test_public_test_records_that_are_private_are_counted_on_the_own_screen(
    private, count, recwarn
):
    draw = np.random.default_rng(1)
    own, other = draw.normal(size=(20, 3)).astype(np.float32), draw.normal(size=(20, 3))
    # In another order, type and with other labels: a person's record all the same.
    mixed = np.concatenate([own[:private][::-1].astype(np.float64), other[private:]])
    data = [(own[:10], np.zeros(10, dtype=int)), (own[10:], np.ones(10, dtype=int))]
    job = prepared(data, {"outputs": 2}, test=(mixed, draw.integers(0, 2, 20)))
    said = [str(each.message) for each in recwarn if each.category is PrivateRecordsWarning]
    assert len(said) == (count > 0)
    assert all(f"{count} of the 20 public test records" in text for text in said)
    # For this screen alone: nothing that is handed on says it.
    assert not any("have the inputs" in text for text in (*job.plan.warnings, *job.plan.notes))


@pytest.mark.parametrize("targets", [[-1, 1, 1], [[0], [1], [1]]])
@pytest.mark.parametrize("public", [False, True])
def test_targets_that_the_loss_cannot_take_name_whose_they_are(targets, public):
    """Not the records of a trial; and labels of -1 and 1 have a loss of their own."""
    fit, wrong = [0, 1, 1], np.array(targets)
    inputs = np.zeros((3, 2))
    data = [(inputs, fit if public else wrong)] * 2
    rest = {"test": (inputs + 1, wrong)} if public else {}
    with pytest.raises(InputError) as caught:
        prepared(data, {"outputs": 2}, **rest)
    assert caught.value.where == ("test" if public else "nodes[0]")
    flat = wrong.ndim == 1
    assert caught.value.value == ("1 of 3 records" if flat else "targets [3, 1] of torch.int64")
    assert ("set task.loss = 'logistic'" in caught.value.expected) is flat


@pytest.mark.parametrize(
    ("tested", "count"), [(["q1", "q2", "q1"], 0), (["p1", "q2", "p1"], 1), (["P1", " p7", "q"], 2)]
)
@pytest.mark.parametrize("privacy", [{}, {"unit": "column:units", "unit_rows": 2}])
def test_persons_of_public_test_records_that_are_private_are_counted(
    tested, count, privacy, recwarn
):
    draw = np.random.default_rng(1)
    ids = [f"p{row // 2}" for row in range(20)]  # with other rows of theirs
    rows = draw.normal(size=(20, 3)), np.zeros(20, int), ids
    data = [tuple(part[:8] for part in rows), tuple(part[8:] for part in rows)]
    test = (draw.normal(size=(3, 3)), np.ones(3, int), tested)
    task = {"dataset": None, "outputs": 2}
    config = load_config(experiment(task=task, nodes={"count": 2}, privacy=privacy), count=2)
    prepare(config, nodes=data, test=test)
    said = [str(each.message) for each in recwarn if each.category is PrivateRecordsWarning]
    assert len(said) == (count > 0)
    assert all(text.startswith(f"{count} of the {len(set(tested))} ids") for text in said)


@pytest.mark.process
def test_the_command_line_says_it_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = write_module(
        tmp_path,
        """
        from sklearn.datasets import load_digits
        X, y = load_digits(return_X_y=True)
        def load():
            return (X[:500], y[:500]), (X[100:300], y[100:300])
        """,
    )
    file = write_experiment(tmp_path, task={"dataset": f"{module}:load", "outputs": 10})
    with ForkServer() as server:
        ended = server.tacit("plan", file)
    assert ended.code == 0
    (said,) = [line for line in ended.err.splitlines() if "public test records" in line]
    assert said.startswith("warning: 200 of the 200 public test records")


# Numbers that nobody has scaled: what is refused before a run, and what is said after it.


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
