"""The run folder: what a run leaves behind, and how it is found again.

`config.toml` (everything resolved), `schema.toml` (of the records, if they were a table),
`metrics.jsonl`, `result.json`, `ledger.sqlite`, `checkpoint-*.safetensors`, `model.safetensors`
(the consensus model's `state_dict`), `nodes.safetensors` (every node's model), `report.html`,
`lock`. A folder that exists is never reused, appears whole or not at all, and is one process's
while it is open. `result.json` is there only beside the models that it speaks of.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from tacit.base.private_files import (
    append_line,
    locked,
    make_private_folder,
    plain_errors,
    remove_files,
    sync_folder,
    write_private,
    write_together,
)
from tacit.config import Config, flat, free_keys, known_as, load_config, to_toml
from tacit.data.sources import SOURCES
from tacit.data.tables import Schema
from tacit.errors import InputError
from tacit.models.imports import names_function
from tacit.report.documents.base import Document, dump
from tacit.report.documents.metrics import Measurement, PrivateMeasurement, read_measurement
from tacit.report.documents.run import NOT_THERE, ResultDocument

SCHEMA, MODEL, NODES = "schema.toml", "model.safetensors", "nodes.safetensors"
RESULT, REPORT, KNOWN = "result.json", "report.html", "result-known"


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

    def append_metrics(self, row: Measurement | PrivateMeasurement) -> None:
        """Add one row; a kill may cost the last line, never an earlier one."""
        with plain_errors("out", self.metrics):
            append_line(self.metrics, dump(row, indent=None).encode())

    def sync_metrics(self) -> None:
        """Bring the rows to the disk: what is written next stands for them."""
        if self.metrics.exists():
            with plain_errors("out", self.metrics):
                sync_folder(self.metrics)

    def set_aside_metrics(self) -> None:
        """Copy the rows as they are to `metrics.earlier-1.jsonl`, or the next number."""
        if self.metrics.exists():
            number = 1
            while (copy := self.path / f"metrics.earlier-{number}.jsonl").exists():
                number += 1
            with plain_errors("out", copy):
                write_private(copy, self.metrics.read_bytes())

    def keep_metrics(self, until: int) -> list[Measurement]:
        """Rows up to a step, in order; later, torn or damaged ones are dropped."""
        if not self.metrics.exists():
            return []
        with plain_errors("out", self.metrics):
            before = self.metrics.read_bytes()
            whole = filter(None, map(read_measurement, before.splitlines()))
            # The step of a stop is measured twice: the later row counts.
            rows = list({row.step: row for row in whole if row.step <= until}.values())
            content = "".join(dump(row, indent=None) + "\n" for row in rows).encode()
            if content != before:
                write_private(self.metrics, content)
        return rows

    def write(self, name: str, content: bytes) -> None:
        """A file, whole or not at all."""
        with plain_errors("out", self.path / name):
            write_private(self.path / name, content)

    def write_document(self, name: str, document: Document) -> None:
        """A JSON file, whole or not at all."""
        self.write(name, dump(document).encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A safetensors file, whole or not at all."""
        self.write(name, _safetensors(tensors))

    def write_result(
        self, result: ResultDocument, models: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """`result.json` and the models that it speaks of, by file: all of them, or no result."""
        self.sync_metrics()
        contents = {name: _safetensors(tensors) for name, tensors in models.items()}
        with plain_errors("out", self.path / RESULT):
            write_together(self.path, {**contents, RESULT: dump(result).encode()})

    def write_known(self) -> None:
        """Say that the models of this process and the result of the run were written."""
        self.write(KNOWN, b"")

    def withdraw_result(self) -> None:
        """Remove the result of an earlier session: the run goes on, and will have spent more."""
        with plain_errors("out", self.path / RESULT):
            remove_files(self.path, RESULT, REPORT)


def _safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    content = {key: value.detach().contiguous().cpu() for key, value in tensors.items()}
    return save(content, {"format_version": "1"})


def check_new(path: Path) -> None:
    """Refuse a folder that exists, before any work is done for it."""
    if os.path.lexists(path):  # False, where Path.exists raises, for a name too long
        known = os.path.isfile(path / "config.toml") or any(path.glob("rank-*"))
        more = ", or continue it with --resume" if known else ": it holds no run"
        expected = f"exists already: name a new folder{more}"
        raise InputError("out", str(path), expected, public=True)


@contextmanager
def created(
    path: Path,
    config: Config,
    fill: Callable[[RunFolder], None] = lambda folder: None,
    schema: Schema | None = None,
) -> Iterator[RunFolder]:
    """A new run folder, held by this process within.

    It is made under a temporary name beside its place and then renamed: it appears with all that
    `fill` writes, which it must never be without, or not at all. `schema` is that of its records.
    What a process that was killed left half made is removed.

    Raises:
        InputError: it exists, or cannot be made.
    """
    check_new(path)
    with plain_errors("out", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in _half_made(path):
            with suppress(InputError), locked(left):  # one that is held is being made just now
                shutil.rmtree(left)
        half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
        make_private_folder(half)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(half))
            with plain_errors("out", path):
                write_private(half / "config.toml", to_toml(config).encode())
                if schema is not None:
                    write_private(half / SCHEMA, schema.toml.encode())
                fill(RunFolder(half))
                sync_folder(half)
                check_new(path)  # a rename would replace an empty folder
                os.rename(half, path)
                sync_folder(path.parent)
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
        yield RunFolder(path)


@contextmanager
def reopened(path: Path, config: Config, *, planned: bool = True) -> Iterator[RunFolder]:
    """The folder of a run that is to go on with the same experiment, held by this process within.

    Of an experiment that is not `planned`, what its plan would settle is not compared.

    Raises:
        InputError: there is none, it holds another experiment (names the first key that differs),
            or another process runs it.
    """
    saved = path / "config.toml"
    if not os.path.isfile(saved):
        expected = "holds no run to resume, config.toml is missing: begin one in a new folder"
        if not os.path.lexists(path):
            expected = "holds no run to resume, it is not there: begin it without --resume"
        raise InputError("out", str(path), expected)
    kept = load_config(saved, saved=True, trusted=False)
    if kept.algorithm.name == config.algorithm.name:  # which the user named
        kept = load_config(saved, saved=True)
    before, now = (flat(known_as(one, free_keys(one))) for one in (kept, config))
    said = now.keys() if config.given is not None else before.keys() | now.keys()
    for key in sorted(said):
        is_open = not planned and now.get(key) in (None, "auto")
        if before.get(key) != now.get(key) and not is_open:
            raise InputError(
                key,
                now.get(key),
                f"the run in {path} has {before.get(key)!r}: a run resumes as it began",
            )
    with locked(path):
        yield RunFolder(path)


def half_made(path: Path) -> bool:
    """Whether a process was ended while it made this folder: nothing was sent, or reserved."""
    return not os.path.lexists(path) and bool(_half_made(path))


def _half_made(path: Path) -> list[Path]:
    pattern = f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.new"
    return sorted(path.parent.glob(pattern))


def read_config(path: Path) -> Config:
    """The resolved experiment of a run folder, to be looked at: whoever calls what it names asks
    `trusted_config`.
    """
    saved = path / "config.toml"
    if not os.path.isfile(saved):
        missing = "is not a run folder: config.toml is missing"
        raise InputError("RUN", str(path), missing if os.path.lexists(path) else NOT_THERE)
    return load_config(saved, saved=True, trusted=False)


def trusted_config(
    path: Path, trust: bool, *, unused: Sequence[str] = (), own: Config | None = None
) -> Config:
    """The resolved experiment of a run folder, whose functions may then be imported and called.

    A run folder may be anybody's: what it records is data, and becomes code by the user's word
    alone, which `trust` says was given. Keys in `unused`, such as `task.dataset`, are not looked
    at, and what the user's `own` experiment names is trusted.

    Raises:
        InputError: it names a function of a user, without that word.
    """
    config = read_config(path)
    for section, key in () if trust else _OF_FUNCTIONS:
        values = getattr(getattr(config, section), key)
        known = own is not None and getattr(getattr(own, section), key) == values
        if known or f"{section}.{key}" in unused:
            continue
        for value in values if isinstance(values, tuple) else (values,):
            of_ours = key == "dataset" and f"{str(value).partition(':')[0]}:PATH" in SOURCES
            if names_function(value) and not of_ours:
                expected = (
                    f"the run in {path} names a function or a row, which would be imported and "
                    "called with your rights: if it is yours, or you have read it, pass --trust "
                    "(trust=True)"
                )
                raise InputError(f"{section}.{key}", value, expected)
    if config.algorithm.is_read or ("algorithm.name" in unused and not trust):
        return config
    return load_config(path / "config.toml", saved=True)


_OF_FUNCTIONS = (
    ("algorithm", "name"),
    ("task", "dataset"),
    ("task", "model"),
    ("task", "loss"),
    ("task", "output"),
    ("task", "metric"),
    ("task", "features"),
    ("task", "augmentation"),
    ("nodes", "source"),
)
