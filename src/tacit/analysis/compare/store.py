"""The folder of a comparison: where its runs lie, and which of them need not be run again.

`format.json` marks it, `runs/` holds one run folder a run, named by the line's name, the seed and
the digest of the resolved experiment. No run folder is ever overwritten or deleted.
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from tacit.analysis.settings.runs import read_final, run_digest
from tacit.config import Config
from tacit.errors import FormatError, InputError
from tacit.private_files import make_private_folder, write_private
from tacit.report.documents.base import dump, parse_file
from tacit.report.documents.figure import CompareDocument, CompareMark
from tacit.report.documents.run import ResultDocument
from tacit.training.run_folder import checkpoint as checkpoints

_MARK = "format.json"
_NAME = 60  # characters of a line's name in a folder's


@dataclass(frozen=True)
class RunPlace:
    """Where a run of a resolved experiment lies, or is to be made.

    Without a `result` it is still to be run; `resume`: from a checkpoint, where it can go on.
    """

    config: Config
    path: Path
    result: ResultDocument | None
    resume: bool


@dataclass(frozen=True)
class Store:
    """An opened comparison folder."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Store:
        """Make the folder, or take up one that an earlier comparison made.

        Raises:
            InputError: it holds something else, another format version, or cannot be written.
        """
        mark = path / _MARK
        try:
            if not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                make_private_folder(path)
            if not mark.is_file():
                if not path.is_dir() or any(path.iterdir()):
                    raise InputError(
                        "--out", str(path), "exists, and no comparison made it: name a new folder"
                    )
                content = CompareMark(format="tacit compare", format_version=CompareMark.version)
                write_private(mark, dump(content, indent=None).encode())
            (path / "runs").mkdir(mode=0o700, exist_ok=True)
            values = parse_file(mark)
        except OSError as error:
            raise InputError("--out", str(path), f"cannot be used ({error.strerror})") from None
        except InputError as error:
            if error.where == "--out":
                raise
            raise InputError("--out", str(path), f"its {_MARK} is damaged") from None
        if values.get("format_version") != CompareMark.version:
            raise FormatError(str(mark), values.get("format_version"), CompareMark.version)
        return cls(path)

    def find(self, line: str, config: Config) -> RunPlace:
        """A run of this experiment that has ended, else one to go on with, else a new place.

        A run that another line or name than `line` made of the same experiment counts.
        """
        digest = run_digest(config)
        tries = sorted(
            (path for path in self.folders() if re.search(rf"-{digest}(\.\d+)?$", path.name)),
            key=lambda path: (len(path.name), path.name),
        )
        ended = [(path, end) for path in tries if (end := read_final(path)) is not None]
        if ended:  # a whole run before one that a kill has shortened
            path, result = max(ended, key=lambda run: run[1].status == "done")
            return RunPlace(config, path, result, resume=False)
        for path in reversed(tries):
            if (path / "config.toml").is_file() and checkpoints.latest(path) is not None:
                return RunPlace(config, path, None, resume=True)
        base = f"{_slug(line)}-seed{config.train.seed}-{digest}"
        return RunPlace(config, self.fresh(self.path / "runs" / base), None, resume=False)

    def fresh(self, path: Path) -> Path:
        """The path, or one like it with a number, that nothing has yet."""
        base = re.sub(r"\.\d+$", "", path.name)
        number = 1
        candidate = path.with_name(base)
        while os.path.lexists(candidate):
            number += 1
            candidate = path.with_name(f"{base}.{number}")
        return candidate

    def folders(self) -> list[Path]:
        """Every run folder, those of earlier comparisons and of unfinished runs included."""
        return sorted(path for path in (self.path / "runs").iterdir() if path.is_dir())

    def write(self, name: str, text: str) -> Path:
        """A file of the comparison, whole or not at all; that of an earlier one is replaced."""
        target = self.path / name
        write_private(target, text.encode())
        return target

    def write_document(self, document: CompareDocument) -> Path:
        """Likewise, `compare.json`."""
        return self.write("compare.json", dump(document))


def _slug(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_NAME].strip("-") or "line"
