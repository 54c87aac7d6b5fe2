"""How the house is laid out: who may import whom, what is documented, what is loaded when."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from experiments import tacit

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tacit"
MODULES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
LONGEST = 800

# What each of these may import of tacit, itself aside; a module that is not listed is free, but
# for cycles and the command line.
MAY_IMPORT = {
    "errors": set(),
    "colours": {"errors"},
    "free_memory": set(),
    "user_code": {"errors"},
    "privacy": {"errors", "private_files"},
    "topology": {"errors"},
    "data": {"errors", "free_memory", "user_code"},
    "gradients": {"errors", "free_memory"},
    "exchange": {"colours", "errors", "compression", "topology"},
    "private_files": {"errors"},
    "report": {"errors", "private_files"},
    "compression": {"errors", "compressors"},
    "compressors": {"errors"},
    "algorithms": {"colours", "errors", "exchange", "privacy", "compression"},
    "models": {"errors", "user_code"},
    "placement": {"errors"},
    "peers": {"errors", "received"},
    "received": {"errors"},
    "faults": {"errors", "algorithms", "config", "topology"},
    "cluster": {"errors", "exchange", "placement", "config", "plan", "received", "topology"},
    "config_sections": {"errors", "algorithms"},
    "config_checks": {"errors", "config_sections"},
    "config": {"errors", "algorithms", "config_sections", "config_checks"},
}
# What only these may import.
IMPORTED_BY = {
    "cli": {"__main__"},
    "cli_privacy": {"cli"},
    "cli_compare": {"cli"},
    "cli_launch": {"cli"},
    "cli_cluster": {"cli"},
    "joined": {"api", "cli"},
    "compare": {"cli_compare"},
    "audit": {"cli"},
    "optimise": {"cli"},
    "claims": {"cli_privacy"},
    "guarantee": {"cli_privacy"},
    "terminal": {"cli", "cli_compare"},
    "run": {"api", "cli", "compare", "terminal"},
    "api": {"__init__"},
    "__main__": set(),
}
# Trees that a build, a run or a tool leaves in a checkout.
NOT_OURS = {"runs", "data", "build", "dist", "__pycache__", "node_modules"}


def unit(module: str) -> str:
    """The package or top-level module that a file belongs to: `privacy/keys.py` to `privacy`."""
    return Path(module).parts[0].removesuffix(".py")


def imported_units(path: Path) -> set[str]:
    """The units of tacit that a file imports, anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return set(filter(None, (_unit_of(name) for name in _imported_names(tree))))


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _unit_of(name: str) -> str | None:
    first, _, rest = name.partition(".")
    found = rest.partition(".")[0]
    is_module = (SOURCE / found).is_dir() or (SOURCE / f"{found}.py").is_file()
    return found if first == "tacit" and found and is_module else None


def exported(tree: ast.Module) -> list[str] | None:
    """The names in `__all__`; None without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Of each unit, the other units that it imports."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        found.setdefault(unit(name), set()).update(imported_units(path) - {unit(name)})
    return found


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_layer_imports_only_what_lies_below_it(name: str, imports: dict[str, set[str]]) -> None:
    assert imports[name] <= MAY_IMPORT[name]


@pytest.mark.parametrize("name", IMPORTED_BY)
def test_the_top_is_imported_by_nobody_else(name: str, imports: dict[str, set[str]]) -> None:
    assert name in imports
    assert {other for other, used in imports.items() if name in used} <= IMPORTED_BY[name]


def test_imports_have_no_cycle(imports: dict[str, set[str]]) -> None:
    # The package itself imports on first use only.
    graph = {name: used for name, used in imports.items() if name != "__init__"}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("privacy") < order.index("algorithms") < order.index("config")
    assert order.index("config") < order.index("plan") < order.index("run") < order.index("cli")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_and_what_it_offers(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "needs a docstring"
    if name == "__main__.py":  # run, never imported
        return
    names = exported(tree)
    assert names is not None, "needs __all__"
    assert len(names) == len(set(names))
    defined = {
        node.name: node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
    }
    bare = [key for key in names if key in defined and not ast.get_docstring(defined[key])]
    assert bare == []


@pytest.mark.parametrize("name", MODULES)
def test_a_file_has_one_job(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_names_that_are_offered_exist() -> None:
    for name, path in MODULES.items():
        if name == "__main__.py":
            continue
        dotted = ".".join(("tacit", *Path(name).with_suffix("").parts)).removesuffix(".__init__")
        module = __import__(dotted, fromlist=["*"])
        names = exported(ast.parse(path.read_text(encoding="utf-8"))) or []
        assert [key for key in names if not hasattr(module, key)] == [], dotted


def test_test_files_have_names_of_their_own() -> None:
    """Without packages, two test files of one name would shadow each other."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)
    assert not list((ROOT / "tests").rglob("__init__.py"))


def our_files() -> Iterator[Path]:
    """Every file of the repository, without what tools and runs leave."""
    for folder, folders, files in os.walk(ROOT):
        at_root = Path(folder) == ROOT
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__"
            and not (at_root and name in NOT_OURS)
            and (not name.startswith(".") or name == ".ci")
        ]
        yield from (Path(folder) / name for name in files)


def test_no_file_names_the_host_of_a_package_registry() -> None:
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
    assert Path(__file__).resolve() in files
    found = [
        (str(path.relative_to(ROOT)), host.decode())
        for path in files
        if path.is_file()
        for host in forbidden
        if host in path.read_bytes().lower()
    ]
    assert found == []


@pytest.mark.parametrize("module", ["tacit", "tacit.cli", "tacit.privacy", "tacit.privacy.ledger"])
def test_importing_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_help_lists_the_commands() -> None:
    answer = tacit("--help")
    assert (answer.code, answer.err) == (0, "")
    commands = ("train", "plan", "compare", "audit", "algorithms", "evaluate", "report", "privacy")
    for command in commands:
        assert f"\n  {command} " in answer.out
        assert tacit(command, "--help").code == 0
    for command in ("claims", "ledger", "statement", "check"):
        assert f"\n  {command} " in tacit("privacy", "--help").out
