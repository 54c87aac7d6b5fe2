"""A package that an extra brings is missing: every door says what to install, in one line.

Each door is a process in which the package cannot be imported, nor in any process that it starts.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from consortia import consortium
from environments import required, requirements
from experiments import write_experiment
from rooms import tree_of
from tacit.errors import OPTIONAL

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
# What Python loads first in every process of a door, as where the package is not installed.
BLOCKER = """
import os, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
PROGRAM = """
import sys, tacit, tacit.callbacks as c
try:
    {}
except tacit.InputError as error:
    sys.exit(f"tacit: {{error}}")
"""
CLI, PYTHON = ("-m", "tacit"), ("-c",)
ONE_FROM = {  # module that is missing, and a door: how it is called
    ("zenoh", "train"): (*CLI, "train", "experiment.toml", "--site", "north", "--out", "runs/a"),
    ("zenoh", "service"): (
        *CLI,
        *("train", "experiment.toml", "--site", "north", "--out", "runs/a", "--resume-if-there"),
    ),
    ("zenoh", "relay"): (*CLI, "relay", "--site", "relay"),
    ("zenoh", "Python"): (
        *PYTHON,
        PROGRAM.format("tacit.train('experiment.toml', site='north', out='runs/a')"),
    ),
    ("flwr", "Python"): (*PYTHON, PROGRAM.format("import tacit.hosts.flower")),
    ("matplotlib", "Python"): (*PYTHON, PROGRAM.format("import tacit.report.pictures")),
    ("networkx", "train"): (
        *(*CLI, "train", "experiment.toml", "--set", "topology.graph=barabasi-albert"),
        *("--set", "topology.degree=2"),
    ),
    ("mlflow", "Python"): (*PYTHON, PROGRAM.format("c.MLflow()")),
    ("tensorboard", "Python"): (*PYTHON, PROGRAM.format("c.TensorBoard()")),
    ("wandb", "Python"): (*PYTHON, PROGRAM.format("c.WeightsAndBiases()")),
    ("nvflare", "Python"): (*PYTHON, PROGRAM.format("import tacit.hosts.nvflare")),
    ("onnx", "export"): (*CLI, "export", "runs/alone", "--to", "onnx"),
    ("onnxscript", "export"): (*CLI, "export", "runs/alone", "--to", "onnx"),
    ("pandas", "Python"): (*PYTHON, PROGRAM.format("tacit.train('experiment.toml').to_pandas()")),
    ("polars", "Python"): (*PYTHON, PROGRAM.format("tacit.train('experiment.toml').to_polars()")),
    ("transformers", "the example"): (str(ROOT / "examples" / "lora.py"),),
    ("peft", "the example"): (str(ROOT / "examples" / "lora.py"),),
}
# Of Python's own and of torch: what these extras bring, no module of tacit imports.
NO_DOOR = {"docs", "lightning", "test"}
REMEDY = {"transformers": "'.[huggingface]'", "peft": "'.[huggingface]'"}
REMEDY |= {row[1].split(">")[0]: f"'{row[1]}'" for row in OPTIONAL.values()}
REMEDY |= {module: f"'{row[1]}'" for module, row in OPTIONAL.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("extras")
    consortium(made)
    write_experiment(made)
    (made / "sitecustomize.py").write_text(BLOCKER, encoding="utf-8")
    return made


def without(module, folder, arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "BLOCKED": module, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize(("module", "door"), ONE_FROM, ids=list(map(" by ".join, ONE_FROM)))
def test_a_missing_package_is_one_line_that_says_what_to_install(module, door, folder):
    ended = without(module, folder, ONE_FROM[module, door])
    said = [line for line in ended.stderr.splitlines() if "NOT PRIVATE" not in line]
    lines = [*{line.replace("tacit: rank 1: ", "tacit: ") for line in said}]  # each says its own
    assert len(lines) == 1, ended.stderr
    assert f"No module named '{module}'" in lines[0]
    assert f"pip install {REMEDY[module]}" in lines[0]
    assert "a defect" not in lines[0]
    assert ended.stdout == ""
    assert ended.returncode == (2 if ONE_FROM[module, door][:2] == CLI else 1)


@pytest.mark.process
def test_a_run_of_one_process_needs_nothing_of_sites(folder):
    words = ("train", "experiment.toml", "--out", "runs/alone", "--resume-if-there", "--quiet")
    for _ in range(2):
        ended = without("zenoh", folder, (*CLI, *words))
        assert ended.returncode == 0, ended.stderr


def test_each_extra_has_a_door_and_what_is_said_is_what_the_project_names():
    named = {extra for extra, _ in OPTIONAL.values() if extra}
    assert named == {*EXTRAS} - NO_DOOR - {"huggingface"}
    asked = {requirement for extra, requirement in OPTIONAL.values() if extra}
    assert asked == {requirement for extra in named for requirement in EXTRAS[extra]}
    for module, (extra, requirement) in OPTIONAL.items():
        assert requirement in EXTRAS[extra or "test"]
        assert [door for missing, door in ONE_FROM if missing in (module, extra)], module


BY_NAME = ("import_module", "__import__", "find_spec")


def imported(tree):
    """The top packages that a module imports, by a statement or by name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")).endswith(BY_NAME)
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value))
    return {name.partition(".")[0] for name in found}


def test_what_is_imported_is_required_or_asked_for_by_the_one_function():
    """Elsewhere a missing package would end as a defect of ours."""
    direct = {canonicalize_name(Requirement(line).name) for line in requirements()}
    # typing_extensions and others come with what is required, and are not asked for by us.
    there = required(requirements())
    assert direct <= set(there)
    # As text: a path for each of torch's files takes longer than all else here.
    records = [there[name].read_text("RECORD") or "" for name in direct]
    of_project = {
        re.split("[/,]", line, maxsplit=1)[0].removesuffix(".py")
        for record in records
        for line in record.splitlines()
    }
    known = {*sys.stdlib_module_names, *of_project, "tacit", "tacit_dp"}
    known |= {"pydantic_core", "markupsafe"}  # parts of pydantic and of jinja2
    known |= {"IPython"}  # asked only where a notebook runs, which is IPython's
    known |= {"triton"}  # imported only where it was found: PyTorch for CUDA brings it
    found = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        asked = set(re.findall(r'\boptional\("([\w.]+)"\)', text))
        home = path.parent / "__init__.py"
        asked |= set(re.findall(r'\boptional\("([\w.]+)"\)', home.read_text("utf-8")))
        assert asked <= set(OPTIONAL), path
        if others := imported(tree_of(path)) - known - asked:
            found[str(path.relative_to(SOURCE))] = others
    assert found == {}
