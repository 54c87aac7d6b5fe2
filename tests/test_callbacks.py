"""Adapters to tracking services: what they log is what is public, in the real packages."""

import json
import math
import re
import struct
import sys

import pytest

import tacit
from experiments import experiment
from tacit.callbacks import (
    MLflow,
    ProgressBar,
    TensorBoard,
    WeightsAndBiases,
    numbers,
    outcome,
    settings,
)
from tacit.errors import InputError
from tacit.report.documents.metrics import PublicMeasurement

EVERY = {"evaluate_every": 2}
PRIVATE_WORDS = ("train_loss", "gradient_norm", "clip_rate", "left_out", "lagrangian")


def expected(result):
    """Every public number of a run by its name and step, from the series of the result."""
    points = {}
    for name in PublicMeasurement.model_fields:
        for step, value in zip(result.metrics["step"], result.metrics[name], strict=True):
            parts = value.items() if isinstance(value, dict) else [("", value)]
            for part, number in parts:
                if number is not None and math.isfinite(number) and name != "step":
                    points[f"{name}/{part}".rstrip("/"), step] = float(number)
    return points


def final(result):
    assert result.test_accuracy is not None
    assert result.test_loss is not None
    spent = [epsilon for epsilon in result.epsilon if epsilon is not None]
    return {
        "final/epsilon/max": max(spent),
        "final/epsilon/min": min(spent),
        **{f"final/test_accuracy/{key}": value for key, value in result.test_accuracy.items()},
        **{f"final/test_loss/{key}": value for key, value in result.test_loss.items()},
        "final/bytes_sent": sum(result.bytes_sent) / len(result.bytes_sent),
        "final/steps": 6.0,
    }


def test_settings_leave_out_where_a_site_keeps_its_things():
    result = tacit.train(experiment())
    said = settings(result.plan)
    assert said["privacy.noise_std"] == 0.05
    assert said["plan.parameters"] == 650
    assert said["plan.private"] is False
    assert said["plan.epsilon"] == max(node.epsilon or 0.0 for node in result.plan.nodes)
    assert not {"task.data_dir", "train.device", "privacy.ledger"} & set(said)
    assert outcome(result) == final(result)


@pytest.mark.slow
def test_mlflow_gets_what_is_public(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path / 'mlruns'}"
    callback = MLflow("ours", tracking_uri=uri, run_name="first")
    result = tacit.train(experiment(train=EVERY), callbacks=[callback])
    client = mlflow.MlflowClient(uri)
    run = client.get_run(callback.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params == {key: str(value) for key, value in settings(result.plan).items()}
    logged = {
        (name, point.step): point.value
        for name in run.data.metrics
        for point in client.get_metric_history(callback.run_id, name)
    }
    ends = {(name, 6): value for name, value in final(result).items()}
    assert logged == pytest.approx({**expected(result), **ends})
    # A run that fails is marked as failed, and the same experiment is used again.
    loud = {"privacy": {"noise_std": 100.0}}
    with pytest.raises(tacit.DivergenceError):
        tacit.train(experiment(algorithm={"learning_rate": 1e38}, **loud), callbacks=[callback])
    failed = client.get_run(callback.run_id)
    assert (failed.info.status, failed.info.experiment_id) == ("FAILED", run.info.experiment_id)


@pytest.mark.slow
def test_tensorboard_gets_what_is_public(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = tacit.train(experiment(train=EVERY), callbacks=[TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    logged = {
        (name, point.step): point.value
        for name in events.Tags()["scalars"]
        for point in events.Scalars(name)
    }
    ends = {(name, 6): value for name, value in final(result).items()}
    assert logged == pytest.approx({**expected(result), **ends})  # to float32
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "privacy.noise_std = 0.05" in text
    assert not any(word in text for word in PRIVATE_WORDS)


@pytest.mark.slow
def test_weights_and_biases_gets_what_is_public(tmp_path, monkeypatch):
    """Offline: what it would send lies in a file, which its own reader opens."""
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    quiet = wandb.Settings(silent=True, x_disable_stats=True, disable_git=True)
    callback = WeightsAndBiases("ours", mode="offline", dir=str(tmp_path), settings=quiet)
    result = tacit.train(experiment(train=EVERY), callbacks=[callback])
    wandb.teardown()  # its service writes the file, and has ended then
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    logged = {}
    summary = {}
    for data in leveldb_log(file.read_bytes()[7:], 7):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {_key(item): _json(item.value_json) for item in record.history.item}
        step = items.get("_step")
        own = {name: value for name, value in items.items() if not name.startswith("_")}
        logged |= {(name, step): value for name, value in own.items()}
        summary |= {_key(item): _json(item.value_json) for item in record.summary.update}
    assert logged == pytest.approx(expected(result))
    assert {name: summary[name] for name in final(result)} == pytest.approx(final(result))
    assert summary["status"] == "done"
    assert not any(word in file.read_bytes().decode("latin1") for word in PRIVATE_WORDS)


def leveldb_log(content, place):
    """The records of a log as LevelDB writes it, in blocks of 32 KiB; `place` bytes come before."""
    whole, at = b"", 0
    while at + 7 <= len(content):
        left = 32768 - (place + at) % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield whole
            whole = b""


def _key(item):
    return item.key or "/".join(item.nested_key)


def _json(text):
    return json.loads(text)


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=re.escape("pip install '.[mlflow]'")):
        MLflow()


def test_numbers_that_are_not_finite_are_left_out():
    result = tacit.train(experiment())
    assert result.metrics["step"][-1] == 6
    row = PublicMeasurement(
        **{
            **dict.fromkeys(PublicMeasurement.model_fields),
            "step": 3,
            "clip": math.nan,
            "test_metrics": {},
        }
    )
    assert numbers(row) == {}


def test_the_progress_bar_falls_back_to_text(capsys):
    tacit.train(experiment(train={"steps": 20}), callbacks=[ProgressBar()])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("step 20/20  test loss ")
    assert " epsilon " in lines[-1]


def test_the_progress_bar_in_a_notebook(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html.data)

    shell = type("Shell", (), {"kernel": object()})()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    monkeypatch.setattr(display, "display", lambda *_, **__: Handle())
    tacit.train(experiment(), callbacks=[ProgressBar()])
    assert len(shown) == 6
    assert shown[-1].startswith('<progress value="6" max="6"></progress> <code>step 6/6 ')
