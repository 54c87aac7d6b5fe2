"""`tacit plan --recommend`: from public facts to an experiment that runs as it is."""

import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch

from experiments import tacit
from patient_tables import write_tables
from tacit.analysis.recommend import Facts, recommend, recommend_for, recommended_text
from tacit.config import load_config, to_toml
from tacit.errors import InputError, PrivateRecordsWarning
from tacit.models.architectures import build_model, find_loss
from tacit.training.recommend.complete import mean_noise, signal

TASK = {
    "task": {"dataset": "digits"},
    "nodes": {"count": 4},
    "privacy": {"epsilon": 3.0, "delta": 1e-4},
}
OWN_DATA = """
import torch
from tacit import Dataset, TaskData


def load():
    draw = torch.Generator().manual_seed({seed})
    inputs = torch.randn(400, 6, generator=draw) * {scale}
    labels = torch.randint(0, 3, (400,), generator=draw)
    public = torch.Generator().manual_seed(5)
    test = Dataset(torch.randn(60, 6, generator=public), torch.arange(60) % 3)
    return TaskData("own", Dataset(inputs, labels), test, classes=3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(sections=TASK, name="task.toml"):
    Path(name).write_text(tomli_w.dumps(sections), encoding="utf-8")
    return name


def with_keys(**sections):
    return {key: {**TASK.get(key, {}), **sections.get(key, {})} for key in {**TASK, **sections}}


def proposed(found):
    return {choice.name: choice.value for choice in found.choices}


@pytest.mark.slow
def test_it_writes_an_experiment_that_runs_as_it_is():
    answer = tacit("plan", written(), "--recommend")
    assert answer.code == 0, answer.err
    for words in ("wrote task.recommended.toml", "noise over signal", "pairwise", "secure-sum"):
        assert words in answer.out
    config = load_config("task.recommended.toml")
    assert (config.nodes.count, config.privacy.epsilon, config.train.batch) == (4, 3.0, "all")
    assert config.privacy.noise == "independent"  # the safe default
    found = recommend("task.toml")
    assert to_toml(found.config) == to_toml(config)
    run = tacit("train", "task.recommended.toml", "--out", "run", "--json").json
    assert run["steps"] == config.train.steps
    assert max(run["epsilon"]) <= 3.0
    assert run["test_accuracy"]["mean"] > 0.5  # guessing: 0.1


def test_every_proposed_key_has_its_reason_in_the_file():
    found = recommend(TASK)
    text = recommended_text(found, "new.toml")
    unwrapped = text.replace("\n#   ", " ")
    for choice in found.choices:
        assert choice.reason in unwrapped
    values = tomllib.loads(text)
    for choice in found.choices:
        assert values[choice.section][choice.key] == choice.value
    for section, keys in TASK.items():
        for key, value in keys.items():
            assert values[section][key] == value
    assert all(len(line) <= 100 for line in text.splitlines())


def test_what_the_user_has_set_is_kept():
    own = with_keys(
        task={"model": "logistic"},
        algorithm={"name": "dp2-sgd", "clip": 0.3, "learning_rate": 0.2},
        topology={"graph": "complete", "rounds": 1},
        train={"steps": 7, "batch": 16, "seed": 3},
    )
    found = recommend(own)
    for section, keys in own.items():
        for key, value in keys.items():
            assert tomllib.loads(to_toml(found.config))[section][key] == value
            assert f"{section}.{key}" not in proposed(found)
    assert "task.features" not in proposed(found)  # a model was chosen for what it gets
    named = " ".join(found.document.conflicts)
    for key in ("train.steps = 7", "train.batch = 16"):
        assert key in named


def test_a_rate_that_is_far_off_is_named_and_kept():
    found = recommend(with_keys(algorithm={"learning_rate": 1e-4}))
    assert any(
        "algorithm.learning_rate = 0.0001 is kept" in line for line in found.document.conflicts
    )
    wanted = proposed(recommend(TASK))["algorithm.learning_rate"]
    again = recommend(with_keys(algorithm={"learning_rate": wanted}))
    assert again.document.conflicts == ()


def test_no_private_record_is_read(folder, monkeypatch):
    """The same recommendation for records that differ in every number and many labels."""
    monkeypatch.syspath_prepend(str(folder))
    texts = []
    for name, seed, scale in (("one", 1, 1.0), ("two", 2, 1e6)):
        (folder / f"records_{name}.py").write_text(OWN_DATA.format(seed=seed, scale=scale))
        found = recommend(with_keys(task={"dataset": f"records_{name}:load"}))
        texts.append(recommended_text(found, "x.toml").replace(f"records_{name}", "records"))
        sys.modules.pop(f"records_{name}", None)
    assert texts[0] == texts[1]


def test_public_records_that_are_private_are_told_before_anything_is_taken_from_them(
    folder, monkeypatch
):
    monkeypatch.syspath_prepend(str(folder))
    drawn, same = "torch.randn(60, 6, generator=public)", "inputs[:60]"
    text = OWN_DATA.format(seed=1, scale=1.0).replace(drawn, same)
    (folder / "records_of_both.py").write_text(text)
    with pytest.warns(PrivateRecordsWarning, match="60 of the 60 public test records"):
        recommend(with_keys(task={"dataset": "records_of_both:load"}))


def test_facts_alone_are_enough(monkeypatch):
    """No record is within reach of what decides: whoever loads any, fails."""
    facts = Facts((100, 200), (1, 8, 8), "cross-entropy", 10)

    def fail(*arguments, **options):
        raise AssertionError("records were read")

    monkeypatch.setattr("tacit.analysis.recommend.load_records", fail)
    monkeypatch.setattr("tacit.training.prepare.load_records", fail)
    monkeypatch.setattr("tacit.data.load", fail)
    two = {**TASK, "nodes": {"count": 2}}
    found = recommend_for(two, facts)
    assert found.config.task.features == "scattering:1"
    assert all(row.signal is None for row in found.document.forecasts)  # which needs public records
    with pytest.raises(AssertionError, match="records were read"):
        recommend(two)


def test_fewer_records_never_get_a_longer_way():
    lengths = []
    for records in (30, 300, 3000, 30_000):
        facts = Facts((records,) * 4, (20,), "cross-entropy", 2)
        found = recommend_for(TASK, facts)
        forecasts = found.document.forecasts
        assert [row.trust_model for row in forecasts] == ["all-messages", "pairwise", "secure-sum"]
        noises = [row.noise_norm for row in forecasts]
        assert noises[1] < noises[0]
        assert noises[2] < noises[0]
        values = proposed(found)
        lengths.append(values["algorithm.clip"] * values["algorithm.learning_rate"])
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("trust", ["pairwise", "secure-sum"])
def test_another_trust_model_is_taken_when_it_is_asked_for(trust):
    found = recommend(TASK, trust=trust)
    assert found.plan.release.trust_model == trust
    by_file = {"pairwise": {"noise": trust}, "secure-sum": {"aggregation": trust}}[trust]
    same = recommend(with_keys(privacy=by_file))
    assert to_toml(same.config) == to_toml(found.config)
    assert recommend(TASK).plan.release.trust_model == "all-messages"


def test_the_noise_of_the_mean_does_not_depend_on_the_steps():
    noises = [mean_noise(recommend(with_keys(train={"steps": steps})).plan) for steps in (1, 400)]
    assert noises[0] == pytest.approx(noises[1], rel=1e-3)
    plan = recommend(with_keys(train={"steps": 1})).plan
    own = [plan.release.own_multiplier(node, 0) / node.divisor for node in plan.nodes]
    assert noises[0] == pytest.approx(sum(value**2 for value in own) ** 0.5 / len(own), rel=1e-9)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "logistic"])
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_the_signal_is_that_of_the_gradient_engine(loss, clip):
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(40, 5, generator=draw, dtype=torch.float64) + 0.5
    labels = torch.randint(0, 3, (40,), generator=draw)
    outputs = 3 if loss == "cross-entropy" else 1
    targets = labels if loss == "cross-entropy" else labels.clamp(max=1).double()
    facts = Facts((10,), (5,), loss, outputs, (inputs, targets))
    model = build_model("linear", input_shape=(5,), outputs=outputs, seed=0).double()
    function = find_loss(loss)
    gradients = []
    for row in range(40):
        at = slice(row, row + 1)
        given = model(inputs[at])
        value = function.per_record(
            given, targets[at].reshape(1, -1) if outputs == 1 else targets[at]
        )
        parts = torch.autograd.grad(value.sum(), list(model.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    stacked = torch.stack(gradients)
    stacked *= (clip / stacked.norm(dim=1)).clamp(max=1)[:, None]
    products = stacked @ stacked.T
    # Unbiased: products of different records alone.
    apart = (products.sum() - products.trace()) / (40 * 39)
    assert signal(facts, clip) == pytest.approx(float(apart.clamp(min=0)) ** 0.5 / clip, rel=1e-9)


def test_one_node_has_no_others_to_hide_behind():
    found = recommend(with_keys(nodes={"count": 1}))
    assert found.document.forecasts[0].trust_model == "all-messages"
    assert "pairwise" in found.document.unavailable


def test_a_table_says_its_own_nodes_and_metrics(folder):
    write_tables(folder)
    task = {"dataset": "csv:patients.csv", "test": "csv:sample.csv"}
    answer = tacit("plan", written({"task": task}), "--recommend", "--json")
    document = answer.json
    assert document["nodes"] == 5
    assert {row["key"] for row in document["proposed"]} >= {"task.model", "algorithm.clip"}
    assert tacit("plan", document["file"], "--json").json["nodes"] == 5


def test_nothing_is_overwritten(folder):
    name = written()
    (folder / "task.recommended.toml").write_text("mine")
    assert "exists, and is not overwritten" in tacit("plan", name, "--recommend").refusal
    assert (folder / "task.recommended.toml").read_text() == "mine"
    assert "exists" in tacit("plan", name, "--recommend", "--out", name).refusal
    assert tacit("plan", name, "--recommend", "--out", "new.toml").code == 0
    assert sorted(path.name for path in folder.glob("*.toml")) == [
        "new.toml",
        "task.recommended.toml",
        "task.toml",
    ]


@pytest.mark.parametrize(
    ("sections", "words", "said"),
    [
        ({}, ("--trust", "nobody"), "known are: all-messages"),
        ({"privacy": {"noise": "pairwise"}}, ("--trust", "secure-sum"), "privacy.noise = 'pair"),
        ({"algorithm": {"name": "dp-admm"}}, (), "the rules were measured for privsgp"),
        ({"privacy": {"epsilon": "none"}}, (), "give the budget of each node"),
        ({"task": {"dataset": "digit"}}, (), "did you mean 'digits'?"),
        ({"train": {"stepz": 3}}, (), "did you mean 'steps'?"),
        ({}, ("--optimise",), "is another question"),
        ({}, ("--out", "no/such/folder/x.toml"), "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(sections, words, said, folder):
    name = written(with_keys(**sections))
    answer = tacit("plan", name, "--recommend", *words)
    assert answer.code == 2
    assert said in answer.refusal
    assert [path.name for path in folder.iterdir()] == ["task.toml"]


@pytest.mark.parametrize("words", [("--out", "x.toml"), ("--trust", "pairwise")])
def test_its_flags_go_with_it_alone(words):
    assert "goes with --recommend" in tacit("plan", written(), *words).refusal


def test_a_ledger_stays_where_it_is(folder):
    (folder / "experiments").mkdir()
    sections = with_keys(privacy={"ledger": "budgets"})
    name = written(sections, "experiments/task.toml")
    assert tacit("plan", name, "--recommend", "--out", "elsewhere.toml").code == 0
    ledger = load_config("elsewhere.toml").privacy.ledger
    assert ledger == str(folder / "experiments" / "budgets")


def test_classes_must_be_public(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    text = OWN_DATA.format(seed=1, scale=1.0).replace(", test, classes=3", ", None")
    (folder / "records_unknown.py").write_text(text)
    with pytest.raises(InputError, match=r"task\.outputs"):
        recommend(with_keys(task={"dataset": "records_unknown:load"}))
