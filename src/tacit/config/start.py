"""The first experiment file of a user: what `tacit init` writes.

The settings are those that `tacit plan --recommend` proposes for what `tacit init` knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    """What the user has said.

    Args:
        dataset: as `[task].dataset` names it.
        schema: the file of the schema, of a table.
        test: public test records of a table, as `[task].test` names them; None: there are none.
        metrics: as `[task].metric` names them; empty: those of the loss.
        node: the column of a table that says whose record it is; None: nothing does.
        nodes: how many nodes, where no column says it.
        epsilon: of each node.
        model: as `[task].model` names it.
    """

    dataset: str
    schema: str | None
    test: str | None
    metrics: tuple[str, ...]
    node: str | None
    nodes: int
    epsilon: float
    model: str


def experiment_text(
    start: Start, settings: Mapping[str, Mapping[str, Any]], fitted: str, file: str
) -> str:
    """An experiment file, with comments.

    Args:
        start: what the user has said.
        settings: what is proposed: section, key, value.
        fitted: to how many records.
        file: where it will lie.
    """
    task = [f"dataset = {_text(start.dataset)}", f"model = {_text(start.model)}"]
    features = settings.get("task", {}).get("features")
    if features is not None:
        task.append(f"features = {_text(features)}    # a fixed public map of each record")
    if start.schema is not None:
        task.insert(1, f"schema = {_text(start.schema)}    # what is public of the table")
        task += _test_lines(start.test, ", ".join(map(_text, start.metrics)))
    nodes = [f"count = {start.nodes}"]
    if start.node is not None:
        column = _text(f"by:{start.node}")
        nodes = [f"partition = {column}    # one node a value, in the order of the schema"]
    own = "a list" if start.node is None else "a table by their names"
    algorithm, train = settings["algorithm"], settings["train"]
    return "\n".join(
        [
            f"# See what it costs:  tacit plan {file}",
            f"# Train:              tacit train {file}",
            "",
            "[task]",
            *task,
            "",
            "[nodes]",
            *nodes,
            "",
            "[algorithm]",
            f"name = {_text(algorithm['name'])}",
            f"# Rate and clip are fitted to {fitted}: tacit plan --recommend fits them to others.",
            f"learning_rate = {algorithm['learning_rate']}",
            f"clip = {algorithm['clip']:<15} # no record's gradient counts for more",
            f"momentum = {algorithm['momentum']}",
            f"final_mixing = {algorithm['final_mixing']:<7} # rounds of agreement, which are free",
            "",
            "[privacy]",
            f"epsilon = {start.epsilon:<12g} # of each node; {own} gives each its own",
            "delta = 1e-5           # must be far below 1 over a node's number of records",
            "",
            "[train]",
            f"steps = {train['steps']}",
            'batch = "all"          # every record at every step: the least noise for the budget',
            f"average = {_text(train['average'])}    # of the last models",
            "",
        ]
    )


def _test_lines(test: str | None, metrics: str) -> list[str]:
    if test is not None:
        return [
            f"test = {_text(test)}    # public records: epsilon does not cover them",
            f"metric = [{metrics}]    # the first one leads",
        ]
    return [
        "# Without test records nothing is scored. Name a table of public ones, or declare a share",
        "# of the records public; no epsilon covers what is said of either.",
        '# test = "csv:public.csv"',
        "# test_share = 0.2",
        f"# metric = [{metrics}]",
    ]


def _text(value: str) -> str:
    """A string of TOML, which takes what JSON writes."""
    return json.dumps(value, ensure_ascii=False)
