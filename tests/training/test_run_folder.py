"""The run folder: made once, found again, never torn, and one process's while it is open."""

import math
import os
import stat
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given as generated
from hypothesis import strategies as st
from safetensors.torch import load_file

from experiments import experiment, strict_json, tree
from tacit.config import load_config
from tacit.errors import InputError
from tacit.report.documents.base import dump, plain_json
from tacit.report.documents.metrics import Measurement, Scores
from tacit.report.documents.run import NoiseMultipliers
from tacit.training.run_folder.folder import (
    RunFolder,
    check_new,
    created,
    half_made,
    read_config,
    reopened,
)

CONFIG = load_config(experiment())
NEW = {"config.toml", "lock"}


def create(path, config):
    with created(path, config) as folder:
        return folder


def reopen(path, config):
    with reopened(path, config) as folder:
        return folder


def row(step, loss=0.5):
    """A line of metrics.jsonl as a run writes it."""
    nothing = dict.fromkeys(
        ("test_accuracy", "gradient_norm", "clip", "clip_rate", "noise_std", "epsilon")
    )
    more = dict.fromkeys(("claimed_epsilon", "consensus_distance", "bytes_sent", "seconds"))
    test_loss = Scores(mean=loss, worst=None, consensus=None)
    return Measurement(step=step, test_loss=test_loss, train_loss=None, **nothing, **more)


def test_a_new_folder_holds_the_resolved_experiment(tmp_path):
    folder = create(tmp_path / "deep" / "run", CONFIG)
    assert tree(folder.path) == NEW
    assert read_config(folder.path) == CONFIG
    assert reopen(folder.path, CONFIG) == folder


def test_what_exists_is_never_reused(tmp_path):
    create(tmp_path / "run", CONFIG)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("run", "file", "link"):
        with pytest.raises(InputError, match="exists already"):
            check_new(tmp_path / name)
        with pytest.raises(InputError, match="exists already"):
            create(tmp_path / name, CONFIG)
    check_new(tmp_path / "new")
    assert tree(tmp_path) == {"run", *(f"run/{name}" for name in NEW), "file", "link"}


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail(folder):
        (folder.path / "ledger.sqlite").write_bytes(b"half")
        assert not (tmp_path / "run").exists()
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot be written \(No space left"):
        create_with(tmp_path / "run", fail)
    assert tree(tmp_path) == set()
    assert not half_made(tmp_path / "run")

    def taken(folder):
        (tmp_path / "run").mkdir()

    with pytest.raises(InputError, match="exists already"):
        create_with(tmp_path / "run", taken)
    assert tree(tmp_path) == {"run"}


def create_with(path, fill):
    with created(path, CONFIG, fill):
        pass


def test_what_a_kill_left_half_made_is_recognised_and_removed(tmp_path):
    left = tmp_path / ".run.0123abcd.new"
    left.mkdir()
    (left / "config.toml.part").write_bytes(b"half")
    (tmp_path / ".other.0123abcd.new").mkdir()
    assert half_made(tmp_path / "run")
    assert not half_made(tmp_path / "ru")
    create(tmp_path / "run", CONFIG)
    assert not half_made(tmp_path / "run")
    assert tree(tmp_path) == {"run", *(f"run/{name}" for name in NEW), ".other.0123abcd.new"}


def test_a_folder_that_is_being_made_is_left_alone(tmp_path):
    def meanwhile(folder):
        create(tmp_path / "run", CONFIG)  # another process is quicker
        assert folder.path.is_dir()

    with pytest.raises(InputError, match="exists already"):
        create_with(tmp_path / "run", meanwhile)
    assert tree(tmp_path) == {"run", *(f"run/{name}" for name in NEW)}


def test_an_open_folder_is_one_processes(tmp_path):
    with created(tmp_path / "run", CONFIG), pytest.raises(InputError, match="one is running it"):
        reopen(tmp_path / "run", CONFIG)
    with reopened(tmp_path / "run", CONFIG), pytest.raises(InputError, match="one is running it"):
        reopen(tmp_path / "run", CONFIG)
    reopen(tmp_path / "run", CONFIG)


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_only_the_owner_reads_a_folder_whatever_the_umask(tmp_path, mask):
    with umask(mask), created(tmp_path / "run", CONFIG) as folder:
        folder.append_metrics(row(1))
        folder.write_document("a.json", row(1))
        folder.write_result(row(1), {"model.safetensors": {"x": torch.zeros(2)}})
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    assert modes == {0o600}
    assert len(list(folder.path.iterdir())) == 6


def test_another_experiment_is_named_by_its_first_key_and_both_values(tmp_path):
    folder = create(tmp_path / "run", CONFIG)
    other = load_config(experiment(train={"steps": 9}))
    with pytest.raises(InputError, match="has 6: a run resumes as it began") as caught:
        reopen(folder.path, other)
    assert (caught.value.where, caught.value.value) == ("train.steps", 9)
    added = load_config(experiment(privacy={"epsilon": 9.0}))
    with pytest.raises(InputError, match="has None") as caught:
        reopen(folder.path, added)
    assert caught.value.where == "privacy.epsilon"
    removed = load_config(experiment(privacy={"noise_seed": None}))
    with pytest.raises(InputError, match="has 7") as caught:
        reopen(folder.path, removed)
    assert (caught.value.where, caught.value.value) == ("privacy.noise_seed", None)


def test_an_experiment_on_given_data_is_read_back(tmp_path):
    given = load_config(experiment(task={"dataset": None}), count=3, given_model=True)
    folder = create(tmp_path / "run", given)
    assert read_config(folder.path) == given
    assert reopen(folder.path, given) == folder


def test_metrics_are_rows_up_to_a_step(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.keep_metrics(5) == []
    for step in (0, 2, 4, 6):
        folder.append_metrics(row(step, math.inf if step else 0.5))
    with folder.metrics.open("a") as file:
        file.write('{"step": 3, "lo')
    kept = [row(0), row(2, None), row(4, None)]
    assert folder.keep_metrics(4) == kept
    lines = [strict_json(line) for line in folder.metrics.read_text().splitlines()]
    assert lines == list(map(plain_json, kept))
    folder.append_metrics(row(5, 1.0))
    assert folder.keep_metrics(9) == [*kept, row(5, 1.0)]


def test_a_torn_line_costs_no_other(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics(row(1))
    with folder.metrics.open("a") as file:
        file.write('{"step": 2, "test_l')
    folder.append_metrics(row(3))
    assert folder.keep_metrics(9) == [row(1), row(3)]


DAMAGED = [
    b"",
    b"null",
    b"[1]",
    b'"step"',
    b"{}",
    b'{"step": "three"}',
    b'{"step": true}',
    b'{"step": 1}',
    b'{"step": 1.5, "test_loss": null}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"step":' * 5_000,
    b"9" * 5_000,
]


@generated(st.lists(st.one_of(st.sampled_from(DAMAGED), st.binary(max_size=40)), max_size=8))
def test_damaged_metrics_never_block(tmp_path_factory, lines):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    good = dump(row(1), indent=None).encode()
    folder.metrics.write_bytes(b"\n".join([good, *lines, good.replace(b"1", b"2", 1), b""]))
    assert [kept.step for kept in folder.keep_metrics(5)] == [1, 2]
    assert [kept.step for kept in folder.keep_metrics(1)] == [1]


def test_json_is_proper_and_whole(tmp_path):
    folder = RunFolder(tmp_path)
    multipliers = NoiseMultipliers(first=(math.inf, -math.inf, 1.0), last=(math.nan, 2, None))
    folder.write_document("a.json", multipliers)
    read = strict_json((tmp_path / "a.json").read_text())
    assert read == {"first": [None, None, 1.0], "last": [None, 2, None]}
    assert tree(tmp_path) == {"a.json"}


def test_tensors_may_share_memory_and_require_grad(tmp_path):
    folder = RunFolder(tmp_path)
    value = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    folder.write_tensors("a.safetensors", {"whole": value, "part": value[:, 1]})
    read = load_file(tmp_path / "a.safetensors")
    assert torch.equal(read["whole"], value)
    assert torch.equal(read["part"], torch.tensor([1.0, 4.0]))


def test_a_result_stands_only_beside_its_models(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_result(row(1), {"model.safetensors": {"x": torch.ones(1)}})
    (tmp_path / "nodes.safetensors").mkdir()  # which cannot be replaced by a file
    models = {"model.safetensors": {"x": torch.zeros(1)}, "nodes.safetensors": {}}
    with pytest.raises(InputError, match="cannot be written"):
        folder.write_result(row(2), models)
    assert not (tmp_path / "result.json").exists()
    (tmp_path / "nodes.safetensors").rmdir()
    folder.write_result(row(2), models)
    assert strict_json((tmp_path / "result.json").read_text()) == plain_json(row(2))
    assert torch.equal(load_file(tmp_path / "model.safetensors")["x"], torch.zeros(1))
    (tmp_path / "report.html").write_bytes(b"")
    folder.withdraw_result()
    assert tree(tmp_path) == {"model.safetensors", "nodes.safetensors"}
