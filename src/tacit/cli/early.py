"""What is missing is said before PyTorch is loaded, which takes seconds.

Only files are looked for: everything else of an experiment is read where it is checked,
`tacit.config`, which says the same of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.errors import InputError

_FILES = ("csv", "parquet", "svmlight")  # kinds of data sets that name a file after a colon


def check_files(file: Path, overrides: Sequence[str]) -> None:
    """Refuse an experiment whose file, or whose file of records, is not there.

    Args:
        file: the experiment.
        overrides: `section.key=value` strings.

    Raises:
        InputError: naming the key, the file, and where it was looked for; or what the file is
            in place of an experiment.
    """
    from tacit.plain_files import read_toml

    task = _task(read_toml(file, "experiment file", "experiment"), overrides)
    folders = [Path(), Path(os.path.expanduser(str(task.get("data_dir", "data"))))]
    for key in ("dataset", "test"):
        kind, _, wanted = str(task.get(key, "")).partition(":")
        if kind in _FILES and wanted:
            paths = dict.fromkeys(folder / os.path.expanduser(wanted) for folder in folders)
            if not any(os.path.exists(path) for path in paths):
                looked = " or ".join(map(str, paths))
                expected = f"there is no file {looked}: name one, or task.data_dir"
                raise InputError(f"task.{key}", str(task[key]), expected)


def _task(experiment: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The section `[task]` as far as it can be read here."""
    task = experiment.get("task", {})
    if "figure" in experiment:  # whose lines may each have a data set of their own
        return {}
    pairs = (override.partition("=") for override in overrides)
    given = {
        key.strip().removeprefix("task."): value.strip().strip("\"'")
        for key, _, value in pairs
        if key.strip().startswith("task.")
    }
    return {**task, **given} if isinstance(task, dict) else {}
