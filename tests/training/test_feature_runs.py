"""Runs on features: the same records, and other inputs of the model."""

import gc
import json
from functools import cache

import pytest
import torch
from torch import Tensor

import tacit
from experiments import experiment, write_experiment, write_module
from experiments import tacit as command_line
from tacit.analysis.audit.records import CHANGES, other_inputs, other_records
from tacit.analysis.score import evaluate_run
from tacit.config import load_config
from tacit.data import load
from tacit.errors import InputError, RecordsError
from tacit.features.maps import WithFeatures, find_features
from tacit.training.prepare import prepare

SCATTERED = {"task": {"features": "scattering"}}


def job(**changes):
    return prepare(load_config(experiment(**changes)))


@cache
def plain():
    return job()


@cache
def on_features():
    return job(**SCATTERED)


def scattered(inputs):
    features = find_features("scattering", inputs[:8], torch.float32, torch.device("cpu"))
    return features(inputs)


@pytest.fixture
def user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_module(
        tmp_path,
        """
        def halves(x): return x.flatten(1)[:, ::2] / 2
        def mean(x): return x.flatten(1) - x.mean()
        def overflow(x): return (1e6 * x.flatten(1)).exp()
        def same(x): return x.clone()
        """,
    )


@pytest.mark.slow
def test_the_model_sees_the_features_of_every_record():
    made = on_features()
    assert made.train.stored.shape == (len(plain().train.targets), 81, 2, 2)
    for node in range(4):
        start, size = int(plain().train.offsets[node]), int(plain().train.sizes[node])
        rows = torch.arange(start, start + size)
        wanted = scattered(plain().train.inputs_of(rows))
        assert torch.equal(made.train.inputs_of(rows), wanted)
    assert plain().test is not None
    assert made.test is not None
    assert torch.equal(made.test.inputs, scattered(plain().test.inputs))
    assert made.plan.parameters == 81 * 4 * 10 + 10
    assert made.raw is None


def test_a_map_that_changes_nothing_trains_the_same(user):
    plain = tacit.train(experiment())
    same = tacit.train(experiment(task={"features": f"{user}:same"}))
    assert torch.equal(plain.parameters, same.parameters)


def test_given_nodes_have_features_too(user):
    draws = torch.Generator().manual_seed(1)
    nodes = [
        (torch.rand(9, 6, generator=draws), torch.randint(3, (9,), generator=draws))
        for _ in range(4)
    ]
    sections = experiment(
        task={"dataset": None, "features": f"{user}:halves", "outputs": 3}, nodes={"count": None}
    )
    result = tacit.train(sections, nodes=nodes)
    wanted = torch.cat([inputs for inputs, _ in nodes])[:, ::2] / 2
    assert torch.equal(result.job.train.inputs, wanted)


def test_the_bound_is_of_features():
    bounded = job(task={"features": "scattering", "input_bound": 2.0})
    assert bounded.train.inputs.double().flatten(1).norm(dim=1).max() <= 2.0
    assert bounded.test is not None
    assert bounded.test.inputs.double().flatten(1).norm(dim=1).max() <= 2.0


def test_ledgers_know_records_as_they_were(tmp_path):
    privacy = {"ledger": str(tmp_path / "ledgers"), "noise_seed": None, "ledger_epsilon": None}
    made = job(privacy=privacy, **SCATTERED)
    assert torch.equal(plain().loaded.inputs, made.loaded.inputs)
    assert on_features().loaded.stored.shape[1:] == (81, 2, 2)


def test_a_plan_says_what_they_are(tmp_path):
    file = write_experiment(tmp_path, **SCATTERED)
    answers = [command_line("plan", str(file), *more) for more in ([], ["--json"])]
    for answer in answers:
        words = " ".join(answer.out.split())
        assert answer.code == 0
        assert "scattering, 324 numbers a record (81 x 2 x 2) in place of 64" in words
        assert "a fixed public map of each record alone" in words
    assert "features" in answers[0].out.split("trained parameters")[0]


def test_other_maps_make_other_plans(user, tmp_path):
    names = ["scattering:1", f"{user}:halves"]
    digests = {job(task={"features": name}).plan.digest() for name in names}
    assert len({*digests, plain().plan.digest(), on_features().plan.digest()}) == 4
    kept = job(task={"features": "scattering", "features_cache": str(tmp_path / "kept")})
    assert kept.plan.digest() == on_features().plan.digest()


def test_a_trained_model_takes_records_as_they_were(tmp_path):
    sections = experiment(task={"features": "scattering", "input_bound": 5.0})
    result = tacit.train(sections, out=tmp_path / "run")
    records = load("digits", data_dir=tmp_path).test
    assert records is not None
    loaded = tacit.load_model(tmp_path / "run")
    assert isinstance(loaded, WithFeatures)
    scores = result.model()(records.inputs)
    assert torch.equal(scores, loaded(records.inputs))
    right = (scores.argmax(1) == records.targets).double().mean()
    assert result.test_accuracy is not None
    assert float(right) == pytest.approx(result.test_accuracy["consensus"])
    again = evaluate_run(tmp_path / "run", data_dir=str(tmp_path))
    assert again.accuracy == pytest.approx(float(right))
    shape = json.loads((tmp_path / "run" / "result.json").read_text())["model"]
    assert shape == {"input_shape": [81, 2, 2], "outputs": 10, "record_shape": [1, 8, 8]}
    with pytest.raises(InputError, match=r"its records have shape"):
        evaluate_run(tmp_path / "run", write_features_of_another_shape(tmp_path))


def write_features_of_another_shape(folder):
    (folder / "other.svm").write_text("1 1:0.5 2:0.25\n2 1:0.1 2:0.2\n", encoding="utf-8")
    return f"svmlight:{folder / 'other.svm'}"


def test_a_statement_says_so(tmp_path):
    privacy = {"noise_std": None, "noise_seed": None, "epsilon": 3.0, "delta": 1e-4}
    file = write_experiment(tmp_path, privacy=privacy, **SCATTERED)
    assert command_line("train", str(file), "--out", str(tmp_path / "run"), "--quiet").code == 0
    assert command_line("privacy", "statement", str(tmp_path / "run")).code == 0
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    (said,) = [line for line in statement["assumptions"] if "features" in line]
    assert "'scattering'" in said
    assert "epsilon" in said
    assert "fixed public map" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("scatter", "must be 'scattering', 'scattering:J' with J from 1 to 6, or"),
        ("scattering:", "must be 'scattering', 'scattering:J'"),
        ("scattering:0", "must be 'scattering', 'scattering:J'"),
        ("scattering:7", "must be 'scattering', 'scattering:J'"),
        ("scattering:two", "must be 'scattering', 'scattering:J'"),
        ("scattering:4", "needs images (channels, height, width) of at least 16 x 16"),
        ("no_such_module_x:map", "there is no module"),
        ("USER:mean", "depend on the records beside it"),
    ],
)
def test_what_is_wrong_is_one_line(features, expected, user, tmp_path):
    named = features.replace("USER", user)
    file = write_experiment(tmp_path, task={"features": named})
    answer = command_line("plan", str(file))
    assert answer.code == 2
    assert "task.features" in answer.refusal
    assert expected in answer.refusal


def test_records_whose_features_are_not_finite_are_counted_and_not_shown(user):
    nodes = [(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)) for _ in range(4)]
    nodes[2][0][1:3] = 1.0
    sections = experiment(
        task={"dataset": None, "features": f"{user}:overflow", "outputs": 2, "model": "logistic"},
        nodes={"count": None},
    )
    with pytest.raises(RecordsError) as refusal:
        tacit.train(sections, nodes=nodes, test=(torch.zeros(4, 3), torch.zeros(4).long()))
    assert str(refusal.value) == (
        "task.features of node 2 = '2 of 5 records': features must be finite numbers"
    )
    assert "2 of 5" not in refusal.value.reported()


@pytest.mark.slow
def test_features_are_kept_where_the_file_says(tmp_path):
    folder = tmp_path / "kept"
    task = {"features": "scattering", "features_cache": str(folder)}
    first = job(task=task)
    files = sorted(folder.glob("*.safetensors"))
    assert [file.name[:7] for file in files] == [f"node-{node}-" for node in range(4)]
    times = [file.stat().st_mtime_ns for file in files]
    again = job(task=task)
    assert torch.equal(first.train.stored, again.train.stored)
    assert times == [file.stat().st_mtime_ns for file in sorted(folder.glob("*.safetensors"))]
    other = job(task=task, train={"seed": 5})
    assert not torch.equal(other.train.stored, first.train.stored)
    assert len(list(folder.glob("*.safetensors"))) == 4
    with pytest.raises(InputError, match=r"goes with task\.features"):
        job(task={"features_cache": str(folder)})


@pytest.mark.slow
def test_an_audit_puts_other_records_in_before_features_are_made(user):
    audited = prepare(load_config(experiment(**SCATTERED)), keep_raw=True)
    assert audited.raw is not None
    change = CHANGES["all others"]
    raw, made = other_inputs(audited, change), other_records(audited, change)
    assert raw is not None
    assert made is not None
    assert raw.first.inputs.shape == (1, 1, 8, 8)
    assert not torch.equal(raw.inputs, audited.raw.inputs)
    assert torch.equal(made.inputs, audited.train_of(raw).inputs)
    again = audited.again(raw, tacit_alone())
    assert torch.equal(again.train.inputs, made.inputs)
    with pytest.raises(InputError, match="prepare it with keep_raw=True"):
        other_records(on_features(), change)


def tacit_alone():
    from tacit.communication.peers import ALONE

    return ALONE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privsgp", "adp2-sgd", "dp-fedavg", "privsgp-vr"])
def test_no_record_outlives_its_run(name, tmp_path):
    """Without a collection of cycles, so that runs one after the other need the memory of one."""
    on_features.cache_clear()
    changes = experiment(algorithm={"name": name}, **SCATTERED)
    tacit.train(changes, out=tmp_path / "first")
    gc.collect()
    gc.disable()
    try:
        tacit.train(changes, out=tmp_path / "second")
        alive = [one for one in gc.get_objects() if type(one) is Tensor]
        assert [one.shape for one in alive if 81 in one.shape or one.shape[-1:] == (324,)] == []
    finally:
        gc.enable()
