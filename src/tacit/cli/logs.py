"""Log lines for machines: one JSON object a line on standard error, where `--log-format json` asks.

Every line of the library's logger, what the command line says beside it, and the error that ends a
command. `message` holds nothing that is measured on records. The text of an error may quote one
where it is not known to be public: it stands in `detail`, which is for the eyes of this site.

Nothing but the standard library is imported, so that the first error can be said this way as well.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise, takewhile
from typing import Any

from tacit.cli import signals

_OPTION = "--log-format"
_WARNINGS = "py.warnings"
_LOGGERS = ("tacit", _WARNINGS)


class LogFormat(StrEnum):
    """How log lines are written."""

    PLAIN = "plain"
    JSON = "json"


class _JsonLines(logging.Handler):
    """Writes every record as one JSON object a line; `process` says of which rank, run and step."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        rank = os.environ.get("RANK", "")
        self.process: dict[str, int | str | None] = {
            "rank": int(rank) if rank.isascii() and rank.isdigit() else None,
            "run": None,
            "step": None,
        }

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        moment = datetime.fromtimestamp(record.created, UTC)
        message, detail = record.getMessage(), trace
        if record.name == _WARNINGS:  # of any library, about anything
            message, detail = "a warning of Python; it is in detail, for this site", message
        more = {} if detail is None else {"detail": detail}
        more |= record.__dict__.get("json", {})
        line = self.line(record.levelname.lower(), message, moment, **more)
        try:
            sys.stderr.write(line)  # in one piece: other processes may write to the same pipe
            sys.stderr.flush()
        except (OSError, ValueError):  # whoever read this is gone; the run is not
            return

    def line(self, level: str, message: str, moment: datetime, **more: Any) -> str:
        """One line, its end included."""
        values = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": level,
            "message": " ".join(message.split()),
            **self.process,
            **more,
        }
        return json.dumps(values) + "\n"


def _handler() -> _JsonLines | None:
    handlers = logging.getLogger("tacit").handlers
    return next((handler for handler in handlers if isinstance(handler, _JsonLines)), None)


@contextmanager
def log_lines(arguments: Sequence[str]) -> Iterator[None]:
    """Within, log lines are JSON if these arguments of the command line ask for it."""
    # Before they are parsed: errors of that are lines as well.
    words = [*takewhile(lambda word: word != "--", arguments)]
    one, two = f"{_OPTION}={LogFormat.JSON}", (_OPTION, LogFormat.JSON)
    if one not in words and two not in pairwise(words):
        yield
        return
    handler = _JsonLines()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]

    def last_words(line: str = signals.INTERRUPTED, code: int = signals.EXIT_CODE) -> str:
        return handler.line("error", line, datetime.now(UTC), exit_code=code)

    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logging.captureWarnings(True)
    usual, signals.last_words = signals.last_words, last_words
    try:
        yield
    finally:
        signals.last_words = usual
        logging.captureWarnings(False)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def as_json_lines() -> bool:
    """Whether log lines are JSON now: then nothing else goes to standard error."""
    return _handler() is not None


def describe_process(**known: int | str | None) -> None:
    """Say what is known of this process: `rank`, `run`, `step`; for the lines that follow."""
    handler = _handler()
    if handler is not None:
        handler.process.update(known)


def say(message: str, level: int = logging.INFO) -> bool:
    """Log a line of the command line's own, where lines are JSON; else False: print it."""
    if as_json_lines():
        logging.getLogger("tacit").log(level, "%s", message)
        return True
    return False


def tell(line: str) -> None:
    """Say a line on standard error, in the form that all lines have there."""
    if not say(line):
        sys.stderr.write(f"{line}\n")


def log_error(line: str, code: int, public: str | None) -> bool:
    """Log the error that ends a command, where lines are JSON; else False: print it.

    `code` is the exit code, and `public` what may be told of it to anybody, see
    `tacit.errors.public_line`; None: nothing.
    """
    if not as_json_lines():
        return False
    withheld = "ended with an error; what it says is in detail, for the eyes of this site alone"
    detail = {} if public == line else {"detail": line}
    fields = {"json": {"exit_code": code, **detail}}
    logging.getLogger("tacit").error("%s", public or withheld, extra=fields)
    return True
