"""How the house is laid out: who may import whom, what is documented, what is loaded when."""

import ast
import doctest
import importlib
import os
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from experiments import tacit
from rooms import imported_names, tree_of

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tacit"
MODULES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
LONGEST = 800

# Who may import whom: each of these imports of tacit what stands before it, and itself.
ORDER = (
    "errors",
    "base",
    "identities",
    "kernels",
    "privacy",
    "topology",
    "gradients",
    "report",
    "communication",
    "models",
    "data",
    "features",
    "algorithms",
    "config",
    "training",
    "callbacks",
    "estimators",
    "analysis",
    "hosts",
    "cli",
    "__main__",
)
# Trees that a build, a run or a tool leaves in a checkout.
NOT_OURS = {"runs", "data", "build", "dist", "__pycache__", "node_modules"}


def unit(module):
    """The package or top-level module that a file belongs to: `privacy/keys.py` to `privacy`."""
    return Path(module).parts[0].removesuffix(".py")


def _dotted(module):
    return ".".join(("tacit", *Path(module).with_suffix("").parts)).removesuffix(".__init__")


def imported_units(path):
    """The units of tacit that a file imports, anywhere in it."""
    return set(filter(None, (_unit_of(name) for name in _names_of(path))))


def edges(names, modules):
    """The modules of tacit that a file imports: at its top, within functions, or for types alone.

    What is imported from a module is either a module itself, or makes an edge to that one.
    """
    for name in names:
        used = name if name in modules else name.rpartition(".")[0]
        if used in modules:
            yield used


@cache
def _names_of(path):
    return tuple(imported_names(tree_of(path)))


@cache
def _unit_of(name):
    first, _, rest = name.partition(".")
    found = rest.partition(".")[0]
    is_module = (SOURCE / found).is_dir() or (SOURCE / f"{found}.py").is_file()
    return found if first == "tacit" and found and is_module else None


def exported(tree):
    """The names in `__all__`; None without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def test_imports_go_one_way():
    above = [
        f"{name} imports tacit.{used}"
        for name, path in MODULES.items()
        if name != "__init__.py"  # imports on first use only
        for used in imported_units(path)
        if ORDER.index(used) > ORDER.index(unit(name))
    ]
    assert above == []


DOTTED = {_dotted(name): path for name, path in MODULES.items()}


def used_by(name, text):
    """The modules that one of them imports, of its text."""
    return set(edges(imported_names(ast.parse(text)), DOTTED)) - {name}


@cache
def imports():
    """Which modules each imports; the root package offers names of all others, and is apart."""
    return {
        name: set(edges(_names_of(path), DOTTED)) - {name}
        for name, path in DOTTED.items()
        if name != "tacit"
    }


def test_no_modules_import_each_other():
    TopologicalSorter(imports()).prepare()  # raises CycleError


def test_nothing_imports_the_root_package():
    assert [name for name, used in imports().items() if "tacit" in used] == []


@pytest.mark.parametrize(
    "line",
    [
        "from tacit.topology.graphs import ring",
        "from tacit.topology import graphs",
        "import tacit.topology.graphs",
        "if TYPE_CHECKING:\n    from tacit.topology.graphs import Graph",
        "def late():\n    from tacit.topology.graphs import ring",
    ],
)
def test_every_way_to_import_is_seen(line):
    low = "tacit.errors"
    text = DOTTED[low].read_text(encoding="utf-8")
    with pytest.raises(CycleError):
        TopologicalSorter({**imports(), low: used_by(low, f"{text}\n{line}\n")}).prepare()
    assert "tacit" in used_by(low, f"{text}\nfrom tacit import train\n")


def test_few_files_stand_at_the_top():
    assert len(list(SOURCE.glob("*.py"))) <= 5


def test_modules_say_what_they_are_and_what_they_offer():
    wrong = {name: problem for name, path in MODULES.items() if (problem := _unsaid(path))}
    assert wrong == {}


def of_rows():
    """The files of algorithms: those from which the table takes its rows, and nothing else."""
    table = tree_of(MODULES["algorithms/__init__.py"])
    return {
        str(node.module)
        for node in table.body
        if isinstance(node, ast.ImportFrom) and all(alias.name.isupper() for alias in node.names)
    }


def test_only_files_of_algorithms_offer_rows_in_place_of_names():
    assert {"tacit.algorithms.privsgp", "tacit.algorithms.fedspd_dp"} <= of_rows()
    assert not of_rows() & {"tacit.algorithms.base", "tacit.algorithms.parts"}


def _unsaid(path):
    tree = tree_of(path)
    if not ast.get_docstring(tree):
        return "needs a docstring"
    defined = {
        node.name: node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
    }
    bare = [
        name
        for name, node in defined.items()
        if not name.startswith("_") and not ast.get_docstring(node)
    ]
    if bare:
        return f"these need docstrings: {bare}"
    names = exported(tree)
    if names is None:
        return "needs __all__" if path.name == "__init__.py" and len(tree.body) > 1 else ""
    if len(names) != len(set(names)):
        return "offers a name twice"
    passed_on = {name.rpartition(".")[2] for name in _names_of(path)} & set(names)
    if path.name == "__init__.py" or passed_on:
        return ""
    return "needs no __all__: it offers its names without an underscore"


def test_no_class_name_stands_for_two_things():
    places = {}
    for name, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {key: files for key, files in places.items() if len(files) > 1} == {}


def test_files_have_one_job():
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_names_that_are_offered_exist():
    for name, path in MODULES.items():
        # What is inside another carrier is imported where that is: by the tests of `tests/hosts`.
        if name in ("__main__.py", "hosts/flower.py", "hosts/nvflare.py"):
            continue
        dotted = _dotted(name)
        module = __import__(dotted, fromlist=["*"])
        names = exported(tree_of(path)) or []
        assert [key for key in names if not hasattr(module, key)] == [], dotted


@pytest.mark.parametrize("name", [name for name in MODULES if ">>> " in MODULES[name].read_text()])
def test_examples_in_docstrings_give_what_they_say(name):
    failed, tried = doctest.testmod(importlib.import_module(_dotted(name)))
    assert tried
    assert not failed


def test_test_files_have_names_of_their_own():
    """Without packages, two test files of one name would shadow each other."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)
    assert not list((ROOT / "tests").rglob("__init__.py"))


def our_files():
    """Every file of the repository, without what tools and runs leave."""
    for folder, folders, files in os.walk(ROOT):
        at_root = Path(folder) == ROOT
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__"
            and not (at_root and name in NOT_OURS)
            and (not name.startswith(".") or name in (".ci", ".github"))
        ]
        yield from (Path(folder) / name for name in files)


def test_what_pages_write_is_not_kept_at_the_root():
    """Who follows a page in a clone makes files at its root, which `git add .` takes along."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    root = {name for name in listed.stdout.split("\n") if name and "/" not in name}
    kept = {name for name in root if not name.startswith(".") and not name.isupper()}
    papers = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "README.md", "SECURITY.md"}
    built = {"Makefile", "constraints.txt", "mkdocs.yml", "pyproject.toml"}
    assert kept == papers | built


def test_no_file_names_the_host_of_a_package_registry():
    """Where packages come from is for whoever installs: pip's own settings decide it."""
    hosts = [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("anaconda", "org"),
        ("pytorch", "org/whl"),
        ("npmjs", "org"),
        ("crates", "io"),
    ]
    forbidden = [".".join(parts).encode() for parts in hosts]
    files = list(our_files())
    assert ROOT / "pyproject.toml" in files
    assert ROOT / ".github" / "workflows" / "ci.yml" in files
    assert Path(__file__).resolve() in files
    found = [
        (str(path.relative_to(ROOT)), host.decode())
        for path in files
        if path.is_file()
        for host in forbidden
        if host in path.read_bytes().lower()
    ]
    assert found == []


@pytest.mark.parametrize(
    "module", ["tacit", "tacit.cli.main", "tacit.privacy", "tacit.privacy.ledger.ledger"]
)
def test_importing_loads_neither_torch_nor_pyarrow(module):
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'pyarrow'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_version_is_printed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    answer = tacit("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"tacit {project['version']}\n", "")


def test_help_lists_the_commands():
    answer = tacit("--help")
    assert (answer.code, answer.err) == (0, "")
    commands = ("train", "plan", "compare", "audit", "algorithms", "evaluate", "report", "privacy")
    for command in commands:
        assert f"\n  {command} " in answer.out
        assert tacit(command, "--help").code == 0
    for command in ("claims", "ledger", "statement", "check"):
        assert f"\n  {command} " in tacit("privacy", "--help").out
