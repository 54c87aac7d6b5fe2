"""Small experiments, and the command line as a function of its arguments.

The experiments train on the digits that ship with scikit-learn. With `batch = "all"` the
accountant has a closed form, so that a whole run takes a tenth of a second.
"""

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from unittest.mock import patch

import tomli_w
import typer

from tacit.cli import main as cli

Sections = dict[str, dict[str, Any]]

BASE = {
    "task": {"dataset": "digits", "model": "logistic"},
    "nodes": {"count": 4},
    "algorithm": {"name": "privsgp", "learning_rate": 0.5},
    "privacy": {"noise_std": 0.05, "noise_seed": 7},
    "train": {"steps": 6, "batch": "all"},
}
"""PrivSGP on four nodes with a given, seeded noise: quick, repeatable, and accounted."""
SEEDED = (
    "warning: this run is NOT PRIVATE: seeded noise: anyone who knows the seed can subtract it\n"
)
"""What the command line says of a seeded run, however quiet it is to be."""

_numbers = itertools.count()
# What `typer` makes of all signatures takes as long as a small run, and is the same each time.
_command = functools.cache(typer.main.get_command)


def experiment(**changes):
    """The base experiment with some keys changed; a key that is None is left out."""
    sections = {}
    for section in {**BASE, **changes}:
        merged = {**BASE.get(section, {}), **changes.get(section, {})}
        sections[section] = {key: value for key, value in merged.items() if value is not None}
    return sections


def write_experiment(folder, **changes):
    """`experiment` as a file in a folder."""
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(experiment(**changes)), encoding="utf-8")
    return path


def write_module(folder, source):
    """A module of the user's in a folder, under a name that was never imported before."""
    name = f"user_experiment_{next(_numbers)}"
    header = "import torch\nfrom torch import nn\nfrom tacit.data import Dataset, TaskData\n"
    (folder / f"{name}.py").write_text(header + textwrap.dedent(source), encoding="utf-8")
    return name


@dataclass(frozen=True)
class Answer:
    """What the command line said."""

    code: int
    out: str
    err: str

    @property
    def refusal(self):
        """The one line on standard error that says why it failed.

        A run that is not private and fails after a step has warned of that before, and a site says
        for whom it waits.
        """
        said = r"^(warning: this run is NOT PRIVATE: |.* waits for .* to come to this run: ).*\n"
        line = re.sub(said, "", self.err, flags=re.MULTILINE)
        assert self.out == ""
        assert "Traceback" not in line
        assert line.startswith("tacit: ")
        assert line.endswith("\n")
        assert line.count("\n") == 1
        return line

    @property
    def json(self):
        """Standard output as JSON proper: neither NaN nor Infinity."""
        assert self.code == 0, self.err
        return strict_json(self.out)


def tacit(*arguments):
    """The command line in this process."""
    out, err = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", ["tacit", *map(str, arguments)]),
        patch.object(typer.main, "get_command", _command),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as done:
            code = int(done.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def start_tacit(*arguments):
    """The command line in a process of its own, on one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "tacit", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_tacit(*arguments):
    """The command line in a process of its own, to its end."""
    process = start_tacit(*arguments)
    out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


def strict_json(text):
    """JSON as its standard has it."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def after(steps):
    """Asks for a stop once so many steps were made."""
    made = itertools.count(1)
    return lambda: next(made) == steps


def tree(folder):
    """The files and folders below a folder, but for what Python caches."""
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return {str(path) for path in found if "__pycache__" not in path.parts}
