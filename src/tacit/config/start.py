"""The first experiment file of a user: what `tacit init` writes.

Method, model, rate, clip and steps are left open: they are chosen from public facts in its plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Start:
    """What the user has said of dataset, schema, test, metrics and model, as `[task]` has them.

    `node` is the column of a table that says whose record it is, and `nodes` is how many there are
    where no column says it. `epsilon` is that of each node. `unit` is the column whose ids it
    protects, once that is `decided`. Where `metrics` is empty they are
    those of the loss; where `model` is None it is left open.
    """

    dataset: str
    schema: str | None
    test: str | None
    metrics: tuple[str, ...]
    node: str | None
    nodes: int
    epsilon: float
    model: str | None
    unit: str | None = None
    decided: bool = True


def experiment_text(start: Start, file: str) -> str:
    """An experiment file, with comments, which will lie at `file`."""
    task = [f"dataset = {_text(start.dataset)}"]
    if start.schema is not None:
        task += [f"schema = {_text(start.schema)}    # what is public of the table"]
        metrics = f"metric = [{', '.join(map(_text, start.metrics))}]"
        if start.test is not None:
            task.append(
                f"test = {_text(start.test)}    # public records: epsilon does not cover them"
            )
            task.append(f"{metrics}    # the first one leads")
        else:
            task += [
                "# Without test records nothing is scored. Name a table of public ones, or declare "
                "a share",
                "# of the records public; no epsilon covers what is said of either.",
                '# test = "csv:public.csv"',
                "# test_share = 0.2",
                f"# {metrics}",
            ]
    if start.model is not None:
        task.insert(1, f"model = {_text(start.model)}")
    nodes = [f"count = {start.nodes}"]
    if start.node is not None:
        column = _text(f"by:{start.node}")
        nodes = [f"partition = {column}    # one node a value, in the order of the schema"]
    unit = []
    if start.unit is not None:
        unit = [f"unit = {_text(f'column:{start.unit}')}    # a person with all rows, not a row"]
        if not start.decided:
            unit = [f"# {unit[0]}: to be decided"]
    own = "a list" if start.node is None else "a table by their names"
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
            "[privacy]",
            f"epsilon = {start.epsilon:<12g} # of each node; {own} gives each its own",
            "delta = 1e-5           # must be far below 1 over a node's number of records",
            *unit,
            "",
            "# All else is open: the method, its rate and clip, and the number of steps are chosen",
            "# from public facts, such as how many records each node has. Its plan says what is",
            f"# chosen; tacit plan {file} --recommend writes it out, with reasons.",
            "",
        ]
    )


def _text(value: str) -> str:
    """A string of TOML, which takes what JSON writes."""
    return json.dumps(value, ensure_ascii=False)
