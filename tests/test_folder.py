"""The run folder: made once, found again, and never torn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments import experiment, strict_json, tree
from tacit.config import load_config
from tacit.errors import InputError
from tacit.folder import RunFolder, check_new, create, read_config, reopen

CONFIG = load_config(experiment())


def test_a_new_folder_holds_the_resolved_experiment(tmp_path: Path) -> None:
    folder = create(tmp_path / "deep" / "run", CONFIG)
    assert tree(folder.path) == {"config.toml"}
    assert read_config(folder.path) == CONFIG
    assert reopen(folder.path, CONFIG) == folder


def test_what_exists_is_never_reused(tmp_path: Path) -> None:
    create(tmp_path / "run", CONFIG)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("run", "file", "link"):
        with pytest.raises(InputError, match="exists already"):
            check_new(tmp_path / name)
        with pytest.raises(InputError, match="exists already"):
            create(tmp_path / name, CONFIG)
    check_new(tmp_path / "new")
    assert tree(tmp_path) == {"run", "run/config.toml", "file", "link"}


def test_another_experiment_is_named_by_its_first_key_and_both_values(tmp_path: Path) -> None:
    folder = create(tmp_path / "run", CONFIG)
    other = load_config(experiment(train={"steps": 9}))
    with pytest.raises(InputError, match="has 6: a run resumes as it began") as caught:
        reopen(folder.path, other)
    assert (caught.value.where, caught.value.value) == ("train.steps", 9)
    added = load_config(experiment(privacy={"epsilon": 9.0}))
    with pytest.raises(InputError, match="has 'none'") as caught:
        reopen(folder.path, added)
    assert caught.value.where == "privacy.epsilon"
    removed = load_config(experiment(privacy={"noise_seed": None}))
    with pytest.raises(InputError, match="has 7") as caught:
        reopen(folder.path, removed)
    assert (caught.value.where, caught.value.value) == ("privacy.noise_seed", None)


def test_an_experiment_on_given_data_is_read_back(tmp_path: Path) -> None:
    given = load_config(experiment(task={"dataset": None}), count=3, given_model=True)
    folder = create(tmp_path / "run", given)
    assert read_config(folder.path) == given
    assert reopen(folder.path, given) == folder


def test_metrics_are_rows_up_to_a_step(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.keep_metrics(5) == []
    for step in (0, 2, 4, 6):
        folder.append_metrics({"step": step, "loss": math.inf if step else 0.5})
    with folder.metrics.open("a") as file:
        file.write('{"step": 3, "lo')
    kept = [{"step": 0, "loss": 0.5}, {"step": 2, "loss": None}, {"step": 4, "loss": None}]
    assert folder.keep_metrics(4) == kept
    assert [strict_json(line) for line in folder.metrics.read_text().splitlines()] == kept
    folder.append_metrics({"step": 5, "loss": 1.0})
    assert folder.keep_metrics(9) == [*kept, {"step": 5, "loss": 1.0}]


def test_json_is_proper_and_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("a.json", {"inf": [math.inf, -math.inf], "nan": {"x": math.nan}, "one": 1})
    read = strict_json((tmp_path / "a.json").read_text())
    assert read == {"inf": [None, None], "nan": {"x": None}, "one": 1}
    assert tree(tmp_path) == {"a.json"}


def test_tensors_may_share_memory_and_require_grad(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    value = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    folder.write_tensors("a.safetensors", {"whole": value, "part": value[:, 1]})
    read = load_file(tmp_path / "a.safetensors")
    assert torch.equal(read["whole"], value)
    assert torch.equal(read["part"], torch.tensor([1.0, 4.0]))
