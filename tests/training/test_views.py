"""Runs with views of records: planned, refused, agreed on and stated; and that they train."""

import pytest
import torch
from torch import nn

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.analysis.statement import statement_document
from tacit.config import load_config
from tacit.errors import InputError
from tacit.training.prepare import prepare
from tacit.training.processes.agreement import identity

SIDE = 8


def nodes(count=3, records=40, seed=3):
    """Images with a bright bar, wherever it stands: lying or upright."""
    draws = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(count):
        inputs = 0.1 * torch.randn(records, 1, SIDE, SIDE, generator=draws)
        targets = torch.randint(0, 2, (records,), generator=draws)
        places = torch.randint(0, SIDE, (records,), generator=draws)
        for row, (label, place) in enumerate(zip(targets.tolist(), places.tolist(), strict=True)):
            bar = inputs[row, 0] if label else inputs[row, 0].T
            bar[place] += 1
        parts.append((inputs, targets))
    return parts


def experiment(**changes):
    sections = {
        "task": {"model": "logistic", "outputs": 2, "augmentation": "flip-shift"},
        "topology": {"graph": "ring"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 0.5, "clip": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise_seed": 1},
        "train": {"steps": 4, "batch": 10, "views": 3},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return sections


def test_the_plan_says_what_views_are_and_that_they_cost_no_privacy():
    with_views = prepare(load_config(experiment(), count=3), nodes=nodes()).plan
    (note,) = [note for note in with_views.notes if "flip-shift" in note]
    assert "3 views" in note
    assert "no privacy" in note
    assert "3 times the records" in note
    plain = experiment(task={"augmentation": None}, train={"views": None})
    for section in plain.values():
        for key in [key for key, value in section.items() if value is None]:
            del section[key]
    without = prepare(load_config(plain, count=3), nodes=nodes()).plan
    assert [node.epsilon for node in with_views.nodes] == [node.epsilon for node in without.nodes]
    assert [node.noise_scale for node in with_views.nodes] == [
        node.noise_scale for node in without.nodes
    ]
    assert with_views.digest() != without.digest()


def test_there_are_four_views_unless_another_number_is_given():
    sections = experiment()
    del sections["train"]["views"]
    assert load_config(sections, count=3).train.views == 4
    del sections["task"]["augmentation"]
    assert load_config(sections, count=3).train.views is None


def test_processes_that_differ_in_views_do_not_agree():
    start = torch.zeros(3)
    told = [
        identity(
            load_config(experiment(**changes), count=3), layout={}, start=start, dtype=torch.float32
        )
        for changes in (
            {}, {"train": {"views": 2}}, {"task": {"augmentation": "flip"}},
        )
    ]  # fmt: skip
    assert told[0]["train.views"] != told[1]["train.views"]
    assert told[0]["task.augmentation"] != told[2]["task.augmentation"]


def test_a_run_can_be_repeated_and_views_do_something():
    first = tacit.train(experiment(), nodes=nodes())
    torch.manual_seed(99)
    again = tacit.train(experiment(), nodes=nodes())
    assert first.parameters.equal(again.parameters)
    other = tacit.train(experiment(train={"views": 1}), nodes=nodes())
    assert not other.parameters.equal(first.parameters)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_it_trains(model):
    sections = experiment(
        task={"model": model, "augmentation": "shift"},
        algorithm={"learning_rate": 1.0},
        privacy={"epsilon": 50.0},
        train={"steps": 40, "batch": 40},
    )
    found = tacit.train(sections, nodes=nodes(records=200), test=nodes(1, 200, seed=8)[0])
    accuracy = found.metrics["test_accuracy"][-1]["consensus"]
    assert accuracy > 0.8


def test_evaluation_is_of_plain_records():
    """With a learning rate of next to nothing, scores are those of the start."""
    test = nodes(1, 60, seed=8)[0]
    scores = []
    for augmentation in ("flip-shift", None):
        sections = experiment(algorithm={"learning_rate": 1e-30}, task={"model": "cnn"})
        if augmentation is None:
            del sections["task"]["augmentation"], sections["train"]["views"]
        found = tacit.train(sections, nodes=nodes(), test=test)
        scores.append(found.metrics["test_loss"][-1])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"name": "privsgp-vr", "state": "public"}, "views change from step to step"),
        ({"name": "privsgp-vr", "state": "private"}, "views change from step to step"),
        ({"name": "soteriafl-svrg", "anchor_every": 2}, "views change from step to step"),
        ({"name": "fedspd-dp", "smoothness": 20.0, "local_steps": 2}, "mean over views"),
    ],
)  # fmt: skip
def test_what_rests_on_one_gradient_of_a_record_refuses_views(algorithm, words):
    sections = experiment()
    sections["algorithm"] = algorithm
    sections["topology"] = {}
    if algorithm["name"] == "fedspd-dp":
        sections["task"]["loss"] = "logistic"
        del sections["task"]["outputs"]
        records = [(inputs, 2.0 * targets.unsqueeze(1) - 1) for inputs, targets in nodes()]
    else:
        records = nodes()
    with pytest.raises(InputError, match=words):
        prepare(load_config(sections, count=3), nodes=records)


WITHOUT_VIEWS = {  # they keep gradients of records, or take moments of them
    "noised-moments",
    "noised-moments-server",
    "privsgp-vr",
    "soteriafl-saga",
    "soteriafl-svrg",
    "dp-srm",
    "ldp-svrg",
    "ldp-spider",
}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_runs_with_views_or_says_why_not(name):
    row = ALGORITHMS[name]
    sections = experiment(train={"steps": 2})
    sections["algorithm"], sections["topology"] = {"name": name}, {}
    if not row.private:
        sections["privacy"] = {}
    else:
        sections["privacy"] = {"noise_std": 0.5, "accounting": "none"}
    if name in WITHOUT_VIEWS:
        with pytest.raises(InputError, match=r"task\.augmentation"):
            tacit.train(sections, nodes=nodes(4))
        return
    found = tacit.train(sections, nodes=nodes(4))
    assert torch.isfinite(found.parameters).all()


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"task": {"augmentation": "flp"}}, "task.augmentation", "did you mean 'flip'"),
        ({"task": {"augmentation": "nowhere_at_all:views"}}, "task.augmentation", "no module"),
        ({"train": {"views": 0}}, "train.views", "1 or more"),
        ({"train": {"views": 1.5}}, "train.views", "whole number"),
        ({"train": {"views": 100_000}}, "train.views", "at most"),
    ],
)
def test_what_makes_no_views_is_refused(changes, key, words):
    with pytest.raises(InputError, match=words) as found:
        prepare(load_config(experiment(**changes), count=3), nodes=nodes())
    assert found.value.where == key


def test_several_views_without_augmentation_are_refused():
    sections = experiment()
    del sections["task"]["augmentation"]
    with pytest.raises(InputError, match=r"train\.views.*task\.augmentation"):
        load_config(sections, count=3)
    sections["train"]["views"] = 1
    assert load_config(sections, count=3).train.views == 1


def test_records_that_are_no_images_are_refused():
    records = [(inputs.flatten(1), targets) for inputs, targets in nodes()]
    with pytest.raises(InputError, match=r"task\.augmentation.*for images"):
        prepare(load_config(experiment(), count=3), nodes=records)


OWN = """
import torch

def louder(records, coins):
    return records + (coins % 5).to(records).view(-1, *(1,) * (records.ndim - 1))

def stepwise(records, coins):
    return torch.from_numpy(records.numpy()[..., ::-1].copy())

def mixed(records, coins):
    return 0.5 * (records + records.flip(0))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of views of a user's own, by a name that no other test has."""
    name = f"views_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def test_views_of_ones_own_stay_within_the_input_bound(own):
    task = {"augmentation": f"{own}:louder", "input_bound": 0.5}
    job = prepare(load_config(experiment(task=task), count=3), nodes=nodes())
    assert job.model.augmentation is not None
    inputs = job.train.inputs[:6].unsqueeze(0)
    views, _ = job.model.augmentation.made(inputs, torch.arange(6).unsqueeze(0))
    lengths = views.flatten(2).norm(dim=2)
    assert float(lengths.max()) <= 0.5 * (1 + 1e-6)
    assert not torch.allclose(views, inputs.repeat_interleave(3, dim=1))


def test_views_that_mix_records_are_refused(own):
    config = load_config(experiment(task={"augmentation": f"{own}:mixed"}), count=3)
    with pytest.raises(InputError, match=r"task\.augmentation.*other records"):
        prepare(config, nodes=nodes())


def test_what_is_called_one_view_after_the_other_is_said_so(own):
    config = load_config(experiment(task={"augmentation": f"{own}:stepwise"}), count=3)
    plan = prepare(config, nodes=nodes()).plan
    assert any("one view after the other" in note for note in plan.notes)


def test_a_statement_names_the_views(own, tmp_path):
    for name, tried in (("shift", False), (f"{own}:louder", True)):
        sections = experiment(task={"augmentation": name})
        del sections["privacy"]["noise_seed"]
        out = tmp_path / f"run {tried}"
        tacit.train(sections, nodes=nodes(), out=out)
        assumed = " ".join(statement_document(out).assumptions)
        assert f"3 views of it (augmentation {name})" in assumed
        assert ("a function of one's own" in assumed) is tried


def test_a_module_that_shows_no_taps_has_views_too():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIDE, SIDE)

        def forward(self, inputs):
            return self.layer(torch.tanh(self.layer(inputs[:, 0]))).sum(1)[:, :2]

    found = tacit.train(experiment(), model=Tied(), nodes=nodes())
    assert found.plan.notes
    assert torch.isfinite(found.parameters).all()
