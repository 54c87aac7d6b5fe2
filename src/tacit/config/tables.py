"""What the schema of a table says of an experiment, where the experiment does not say it itself."""

from __future__ import annotations

from pathlib import Path

from tacit.config.schema import Nodes, Task
from tacit.data.sources import is_table, table_schema
from tacit.data.tables.schema import find_schema
from tacit.errors import InputError


def complete_for_table(task: Task, nodes: Nodes) -> tuple[Task, Nodes]:
    """Both sections with what the schema of `[task].dataset` says, if it is a table.

    The schema is read only where something is left to it, so that the file of a finished run, in
    which nothing is, can be read without it.

    Raises:
        InputError: on `task.schema`, `task.test` or `task.test_share`.
    """
    if task.test is not None and task.test_share is not None:
        expected = "are two ways to have test records: give task.test or task.test_share"
        raise InputError("task.test_share", task.test_share, expected)
    if not is_table(task.dataset):
        return task, nodes
    path = table_schema(task.dataset) if task.schema is None else task.schema
    given = {f"task.{key}" for key in task.model_fields_set}
    given |= {f"nodes.{key}" for key in nodes.model_fields_set}
    if task.schema is None:
        task = task.model_copy(update={"schema": path})
    if nodes.data == "split" and not {"task.loss", "nodes.count", "nodes.partition"} <= given:
        schema = find_schema(path, Path(task.data_dir))
        if "task.loss" not in given:
            task = task.model_copy(update={"loss": schema.target.loss})
        # By the schema's node column, as many as it has and as they are called, if not said.
        if schema.node is not None and "nodes.partition" not in given and nodes.alpha is None:
            nodes = nodes.model_copy(update={"partition": f"by:{schema.node.column}"})
        column = nodes.partition.removeprefix("by:")
        values = schema.group_values.get(column, ()) if column != nodes.partition else ()
        if values and "nodes.count" not in given:
            nodes = nodes.model_copy(update={"count": len(values)})
        if values and nodes.names is None and nodes.count == len(values):
            nodes = nodes.model_copy(update={"names": values})
    return task, nodes
