"""Data sets, where they come from, and how their records are divided among nodes.

`load` finds a data set by name, `partition` divides its training records, `stack` lays the
records of many nodes in one tensor. `as_dataset` and `check_dataset` take in what a user gives,
`load_own` reads what a process needs for its own nodes alone.
"""

from tacit.data.datasets import (
    Dataset,
    TaskData,
    as_dataset,
    bounded_inputs,
    check_dataset,
    class_labels,
)
from tacit.data.own import load_own, record_layout
from tacit.data.partitions import PARTITIONS, partition
from tacit.data.sources import SOURCES, load
from tacit.data.stacked import StackedData, stack, stack_parts
from tacit.data.tables import Schema

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Dataset",
    "Schema",
    "StackedData",
    "TaskData",
    "as_dataset",
    "bounded_inputs",
    "check_dataset",
    "class_labels",
    "load",
    "load_own",
    "partition",
    "record_layout",
    "stack",
    "stack_parts",
]
