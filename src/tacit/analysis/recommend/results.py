"""A recommendation as an experiment file, as data, and as tables for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from tacit.analysis.recommend.search import Recommendation, seen_by
from tacit.errors import InputError
from tacit.report.documents.plan import ProposedKey, RecommendDocument
from tacit.report.terminal import print_table, table_of
from tacit.report.wording import number_text
from tacit.training.recommend.choices import Proposal

_WIDTH = 100


def default_path(file: Path) -> Path:
    """Where the experiment goes: beside the file that it is for, `NAME.recommended.toml`."""
    return file.with_name(f"{file.name.removesuffix('.toml')}.recommended.toml")


def recommended_text(found: Recommendation, file: str) -> str:
    """The experiment file: complete, and commented with the reasons; it will lie at `file`."""
    lines = [
        f"# Proposed by tacit plan --recommend, from public facts alone: {_about(found)}.",
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


def recommend_document(found: Recommendation, file: str | None) -> RecommendDocument:
    """The recommendation as a document, with the file that was written; None: none was."""
    return RecommendDocument(
        file=file,
        nodes=found.facts.nodes,
        records=(min(found.facts.records), max(found.facts.records)),
        parameters=found.plan.parameters,
        input_norm=found.facts.norm,
        proposed=tuple(
            ProposedKey(key=choice.name, value=choice.value, reason=choice.reason)
            for choice in found.choices
        ),
        trust_model=found.plan.release.trust_model,
        forecasts=found.forecasts,
        unavailable=dict(found.missing),
        conflicts=found.conflicts,
        warnings=found.plan.warnings,
        notes=found.plan.notes,
    )


def recommend_table(found: Recommendation, console: Console | None = None) -> None:
    """Print a recommendation; narrow terminals fold it."""
    out = console or Console()
    table = table_of(("key", "value", "why"), title=f"proposed, for {_about(found)}")
    for choice in found.choices:
        table.add_row(choice.name, _value(choice.value), choice.reason)
    print_table(out, table)
    headings = ("trust model", "noise over C", "signal over C", "noise over signal", "rounds")
    table = table_of(headings, title="noise against signal, by who sees what")
    for row in found.forecasts:
        chosen = row.trust_model == seen_by(found.plan)
        table.add_row(
            f"{row.trust_model}{' (chosen)' if chosen else ''}",
            number_text(row.noise_norm),
            number_text(row.signal),
            number_text(row.noise_over_signal),
            str(row.rounds),
        )
    print_table(out, table)
    for trust, reason in found.missing.items():
        out.print(f"note: {trust} cannot be had here: {reason}", highlight=False, markup=False)
    for line in found.conflicts:
        out.print(f"conflict: {line}", highlight=False, markup=False)
    for line in found.plan.warnings:
        out.print(f"warning: {line}", highlight=False, markup=False)


def _about(found: Recommendation) -> str:
    facts = found.facts
    least, most = min(facts.records), max(facts.records)
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    nodes = f"{facts.nodes} nodes" if facts.nodes > 1 else "1 node"
    return f"{nodes} of {each} records and {found.plan.parameters:,} parameters"


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


def _value(value: Any) -> str:
    return _line("value", value).removeprefix("value = ")


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="#   ", break_long_words=False)
