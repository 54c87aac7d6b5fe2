"""A recommendation as an experiment file, with its reasons as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from tacit.analysis.recommend.search import Recommendation
from tacit.errors import InputError
from tacit.report.plan_page import about
from tacit.training.recommend.choices import Proposal

_WIDTH = 100


def default_path(file: Path) -> Path:
    """Where the experiment goes: beside the file that it is for, `NAME.recommended.toml`."""
    return file.with_name(f"{file.name.removesuffix('.toml')}.recommended.toml")


def recommended_text(found: Recommendation, file: str) -> str:
    """The experiment file: complete, and commented with the reasons; it will lie at `file`."""
    lines = [
        f"# Proposed by tacit plan --recommend, from public facts alone: {about(found.document)}.",
        "# What has no comment is as it was set.",
        f"# See what it costs:  tacit plan {file}",
        f"# Train:              tacit train {file}",
    ]
    lines = [part for line in lines for part in _wrapped(line)]
    for section in type(found.config).model_fields:
        written = [*_section(found, section)]
        if written:
            lines += ["", f"[{section}]", *written]
    return "\n".join([*lines, ""])


def write_recommended(found: Recommendation, path: Path) -> None:
    """Write the experiment file; nothing is overwritten.

    Raises:
        InputError: on `--out`, the file exists or cannot be written.
    """
    text = recommended_text(found, str(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be written: {error.strerror}") from None


def _section(found: Recommendation, section: str) -> Iterator[str]:
    """The lines of a section: what was set, and what is proposed with its reason."""
    for key, value in found.given.get(section, {}).items():
        yield _line(key, value)
    for choice in found.choices:
        if choice.section == section:
            yield from _commented(choice)


def _commented(choice: Proposal) -> Iterator[str]:
    line = _line(choice.key, choice.value)
    together = f"{line:<24} # {choice.reason}"
    if len(together) <= _WIDTH:
        yield together
        return
    yield from _wrapped(f"# {choice.reason}")
    yield line


def _line(key: str, value: Any) -> str:
    text = tomli_w.dumps({key: value}).strip()
    # A list is written over several lines, and one is as good.
    return " ".join(part.strip() for part in text.splitlines()) if "\n" in text else text


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="#   ", break_long_words=False)
