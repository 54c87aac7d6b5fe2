"""The run folder: what a run leaves behind, and how it is found again.

`config.toml` (everything resolved), `metrics.jsonl`, `result.json`, `ledger.sqlite`,
`checkpoint-*.safetensors`, `model.safetensors` (the consensus model's `state_dict`),
`nodes.safetensors` (every node's model), `report.html`. A folder that exists is never reused.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from tacit.checkpoint import write_atomically
from tacit.config import Config, load_config, to_toml
from tacit.errors import InputError
from tacit.metrics import finite_json

__all__ = ["RunFolder", "check_new", "create", "reopen"]

# Keys that change what is recorded or how fast it is computed, never what is released.
FREE_KEYS = (
    ("train", "evaluate_every"),
    ("train", "evaluate_records"),
    ("train", "checkpoint_every"),
    ("train", "device"),
    ("train", "timeout"),
    ("task", "data_dir"),
    ("nodes", "source"),
    ("faults", "slow"),
    ("faults", "tolerate"),
)


@dataclass(frozen=True)
class RunFolder:
    """Paths and writers of one run's folder."""

    path: Path

    @property
    def ledger(self) -> Path:
        """The spending of the run's nodes."""
        return self.path / "ledger.sqlite"

    @property
    def metrics(self) -> Path:
        """One JSON object a line; of a step that stands twice, after a resume, the later counts."""
        return self.path / "metrics.jsonl"

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one row; a kill may cost the last line, never an earlier one."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite_json(row)) + "\n")

    def set_aside_metrics(self) -> None:
        """Copy the rows as they are to `metrics.earlier-1.jsonl`, or the next number."""
        if self.metrics.exists():
            number = 1
            while (copy := self.path / f"metrics.earlier-{number}.jsonl").exists():
                number += 1
            write_atomically(copy, self.metrics.read_bytes())

    def keep_metrics(self, until: int) -> list[dict[str, Any]]:
        """Rows up to a step, in order; later or torn ones, of a session that died, are dropped."""
        rows: list[dict[str, Any]] = []
        if not self.metrics.exists():
            return rows
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row["step"] <= until:
                rows.append(row)
        content = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomically(self.metrics, content.encode())
        return rows

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all; non-finite numbers become null."""
        text = json.dumps(finite_json(value), indent=2, allow_nan=False)
        write_atomically(self.path / name, text.encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A safetensors file, whole or not at all."""
        content = {key: value.detach().contiguous().cpu() for key, value in tensors.items()}
        write_atomically(self.path / name, save(content, {"format_version": "1"}))


def check_new(path: Path) -> None:
    """Refuse a folder that exists, before any work is done for it."""
    if os.path.lexists(path):  # False, where Path.exists raises, for a name too long
        raise InputError(
            "out",
            str(path),
            "exists already: name a new folder, or continue it with --resume",
            public=True,
        )


def create(path: Path, config: Config) -> RunFolder:
    """Make a new run folder; raises InputError if it exists or cannot be made."""
    check_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        write_atomically(path / "config.toml", to_toml(config).encode())
    except OSError as error:
        raise InputError("out", str(path), f"cannot be written ({error.strerror})") from None
    return RunFolder(path)


def reopen(path: Path, config: Config) -> RunFolder:
    """The folder of a run that is to go on with the same experiment.

    Raises:
        InputError: there is none, or it holds another experiment; names the first key that differs.
    """
    saved = path / "config.toml"
    if not os.path.isfile(saved):
        raise InputError("out", str(path), "holds no run to resume: config.toml is missing")
    before, now = _flat(load_config(saved, saved=True)), _flat(config)
    for key in sorted(before.keys() | now.keys()):
        if key not in FREE_KEYS and before.get(key) != now.get(key):
            raise InputError(
                ".".join(key),
                now.get(key),
                f"the run in {path} has {before.get(key)!r}: a run resumes as it began",
            )
    return RunFolder(path)


def _flat(config: Config) -> dict[tuple[str, str], Any]:
    """What a resumed run must have in common with the first one, and what it may change.

    The ledgers of the data may have moved (they know the run again), but not have come or gone.
    """
    privacy = config.privacy.model_copy(update={"ledger": config.privacy.ledger and "a folder"})
    config = config.model_copy(update={"privacy": privacy})
    return {
        (section, key): value
        for section, values in tomllib.loads(to_toml(config)).items()
        for key, value in values.items()
    }


def read_config(path: Path) -> Config:
    """The resolved experiment of a run folder."""
    saved = path / "config.toml"
    if not os.path.isfile(saved):
        raise InputError("RUN", str(path), "is not a run folder: config.toml is missing")
    return load_config(saved, saved=True)
