"""The folder of a search: what marks it, where its trials lie, and what stays private.

`search.json` (what is searched, with the trials' budgets), `trials/` (run folders, of which
whoever sees messages has seen the releases), `ledger/` (of the nodes' data, for all trials),
`private/` (of random stopping: the secret draws and every trial), `winner/`, `winner.toml`,
`tune.json`. All of it is its owner's alone to read; what is in `private/` must stay so for epsilon
to hold.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import InputError
from tacit.private_files import locked, make_private_folder, plain_errors, write_private
from tacit.report.documents.base import Document, dump, load_file
from tacit.report.documents.tune import PrivateDraws, SearchDocument, TuneDocument

_MARK = "search.json"


@dataclass(frozen=True)
class SearchFolder:
    """Paths and documents of a search's folder."""

    path: Path

    @classmethod
    def known(cls, path: Path, digest: str, *, resume: bool) -> SearchDocument | None:
        """What a search that goes on began with; None of a new one.

        Raises:
            InputError: a new one has a folder already, or there is none to resume, or it is of
                another search.
        """
        mark = path / _MARK
        if not resume:
            if os.path.lexists(path):
                expected = "exists already: name a new folder, or continue it with --resume"
                raise InputError("--out", str(path), expected)
            return None
        if not mark.is_file():
            # One that was killed while it began has left an empty folder at most.
            if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
                raise InputError("--out", str(path), "holds no search to resume")
            return None
        document = load_file(SearchDocument, mark)
        if document.digest != digest:
            expected = "holds another search: a search resumes with the file that it began with"
            raise InputError("--out", str(path), expected)
        return document

    @classmethod
    @contextmanager
    def begin(
        cls, path: Path, digest: str, epsilon: Sequence[Sequence[float]]
    ) -> Iterator[SearchFolder]:
        """Make the folder with its mark, or take it up; it is this process's alone within.

        Raises:
            InputError: another process runs the search, or the folder cannot be written.
        """
        with plain_errors("--out", path):
            make_private_folder(path)
            if not (path / _MARK).is_file():
                document = SearchDocument(
                    format_version=SearchDocument.version,
                    digest=digest,
                    epsilon=tuple(map(tuple, epsilon)),
                    reservation=secrets.token_hex(16),
                )
                write_private(path / _MARK, dump(document).encode())
        with locked(path):
            yield cls(path)

    @property
    def reservation(self) -> str:
        """The identity of the search in ledgers of data: so that it is charged there once."""
        mark = self.path / _MARK
        return load_file(SearchDocument, mark).reservation

    @property
    def ledger(self) -> Path:
        """Of the nodes' data, for all trials."""
        return self.path / "ledger"

    @property
    def private(self) -> Path:
        """What nobody else may see."""
        return self.path / "private"

    @property
    def winner(self) -> Path:
        """The winner's run, where it is another than a trial."""
        return self.path / "winner"

    def trial(self, place: int, *, hidden: bool) -> Path:
        """The folder of a trial."""
        return (self.private if hidden else self.path) / "trials" / f"{place + 1:04d}"

    def draws(self) -> tuple[int, ...] | None:
        """The secret settings of the trials; None before they were drawn."""
        path = self.private / "draws.json"
        if not path.is_file():
            return None
        return tuple(load_file(PrivateDraws, path).settings)

    def keep_draws(self, settings: Sequence[int]) -> None:
        """Write them down, durably, before the first trial."""
        with plain_errors("--out", self.path):
            make_private_folder(self.private)
            make_private_folder(self.private / "trials")
            document = PrivateDraws(format_version=PrivateDraws.version, settings=tuple(settings))
            write_private(self.private / "draws.json", dump(document).encode())

    def write(self, name: str, content: str) -> Path:
        """A file of the search, whole or not at all."""
        target = self.path / name
        with plain_errors("--out", target):
            write_private(target, content.encode())
        return target

    def write_result(self, document: TuneDocument) -> Path:
        """`tune.json`, which says that the search is done."""
        return self.write("tune.json", dump(document))

    def result(self) -> TuneDocument | None:
        """`tune.json` of a search that is done."""
        path = self.path / "tune.json"
        return load_file(TuneDocument, path) if path.is_file() else None


def write_document(path: Path, document: Document) -> None:
    """A document in a folder of a run."""
    with plain_errors("--out", path):
        write_private(path, dump(document).encode())
