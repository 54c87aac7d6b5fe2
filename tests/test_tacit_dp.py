"""A stranger's `tacit` in the same environment: said in one line, whoever came first.

The stranger's wheel is made here. It has what the one of the package index has: a package `tacit`
with a module `errors`, and no command.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from environments import ROOT, Shell, builders

FILES = {
    "tacit/__init__.py": 'NAME = "the stranger"\n',
    "tacit/errors.py": "",
    "tacit-9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tacit\nVersion: 9.0\n",
    "tacit-9.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
RECORD = "".join(f"{name},,\n" for name in (*FILES, "tacit-9.0.dist-info/RECORD"))
REMEDY = "run `pip uninstall --yes tacit tacit-dp` and install tacit-dp anew"
WHOLE = ""
OVERLAP = r"another project's tacit 9\.0 lies in .*, and its files overlap those of tacit-dp"
THEIRS = r".*tacit/__init__\.py is another project's, and not of tacit-dp"
GONE = r"tacit/__init__\.py of tacit-dp has gone"
# Steps, then what the command says, `import tacit`, and `import tacit.privacy`; None: no code of
# this project runs there.
ORDERS = {
    "ours": (WHOLE, WHOLE, WHOLE),
    "theirs, ours": (OVERLAP, OVERLAP, OVERLAP),
    "ours, theirs": (THEIRS, None, THEIRS),
    "editable, theirs": (THEIRS, None, None),
    "theirs, editable": (THEIRS, None, None),
    "ours, theirs, without theirs": (GONE, None, GONE),
    "theirs, ours, without theirs": (GONE, None, GONE),
    "ours, theirs, without both, ours": (WHOLE, WHOLE, WHOLE),
    "theirs, editable, without both, editable": (WHOLE, WHOLE, WHOLE),
}


def stranger(folder):
    path = folder / "tacit-9.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**FILES, "tacit-9.0.dist-info/RECORD": RECORD}.items():
            wheel.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    wheels = builders(folder / "wheels")
    made = Shell(folder, wheels)
    stranger(folder)
    for line in (
        "python -m venv .venv",
        ". .venv/bin/activate",
        "pip install .",
        "pip wheel --no-index --no-deps --wheel-dir .. .",
    ):
        done = made.run(line)
        assert done.returncode == 0, done.stderr
    yield made
    shutil.rmtree(folder)


STEPS = {
    "ours": "pip install --no-deps --force-reinstall ../tacit_dp-*.whl",
    "editable": "pip install --no-deps --editable .",
    "theirs": "pip install --no-deps ../tacit-9.0-py3-none-any.whl",
    "without theirs": "pip uninstall --yes tacit",
    "without both": "pip uninstall --yes tacit tacit-dp",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ORDERS)
def test_two_projects_of_one_name_do_not_half_work(order, shell):
    for step in ("without both", *order.split(", ")):
        done = shell.run(STEPS[step])
        assert done.returncode == 0, f"{step}: {done.stderr}"
    lines = ("tacit --version", "python -c 'import tacit'", "python -c 'import tacit.privacy'")
    for line, wanted in zip(lines, ORDERS[order], strict=True):
        done = shell.run(f"cd .venv; {line}")
        said = done.stderr.strip().splitlines()
        if wanted is None:
            assert "tacit-dp" not in done.stderr
        elif wanted == WHOLE:
            assert (done.returncode, said) == (0, []), line
        elif line.startswith("tacit"):
            assert done.returncode == 2
            (one,) = said
            assert re.match(f"tacit: {wanted}: {re.escape(REMEDY)}", one)
        else:
            assert re.match(f"ImportError: {wanted}: {re.escape(REMEDY)}", said[-1])


@pytest.mark.slow
def test_what_was_called_tacit_before_does_no_harm(shell):
    """An editable installation of this project under its first name owns no file of `tacit`."""
    assert shell.run(STEPS["without both"]).returncode == 0
    project = shell.clone / "pyproject.toml"
    kept = project.read_text(encoding="utf-8")
    project.write_text(kept.replace('name = "tacit-dp"', 'name = "tacit"'), encoding="utf-8")
    assert shell.run(STEPS["editable"]).returncode == 0
    project.write_text(kept, encoding="utf-8")
    assert shell.run(STEPS["editable"]).returncode == 0
    done = shell.run("tacit --version && python -c 'import tacit, tacit.privacy'")
    assert (done.returncode, done.stderr) == (0, "")
    # `make` takes it away, before it installs.
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^\t@\$\(BIN\)/(python .* uninstall .*)$", makefile, re.MULTILINE)
    for _ in range(2):
        done = shell.run(recipe)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(shell.environment.rglob("tacit-*.dist-info"))
    assert shell.run(STEPS["editable"]).returncode == 0
    assert shell.run("tacit --version").returncode == 0


@pytest.fixture
def beside(tmp_path):
    """A folder on the import path in which the stranger's project is installed."""
    with zipfile.ZipFile(stranger(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "there")
    return tmp_path / "there"


def said(beside, *words, paths):
    ended = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=beside.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, ended.stderr.strip().splitlines()


def test_ours_is_found_first_and_theirs_lies_elsewhere(beside):
    paths = (ROOT / "src", beside)
    code, (line,) = said(beside, "-c", "import tacit_dp; tacit_dp.main()", paths=paths)
    assert code == 2
    assert re.match(f"tacit: {OVERLAP}: {re.escape(REMEDY)}", line)
    code, (line,) = said(beside, "-m", "tacit", "--version", paths=paths)
    assert code == 1
    assert re.search(OVERLAP, line)
    for module in ("tacit", "tacit.privacy", "tacit.errors"):
        code, lines = said(beside, "-c", f"import {module}", paths=paths)
        assert code == 1
        assert re.match(f"ImportError: {OVERLAP}: {re.escape(REMEDY)}", lines[-1])


def test_theirs_is_found_first(beside):
    command = "import tacit_dp; tacit_dp.main()"
    code, (line,) = said(beside, "-c", command, paths=(beside, ROOT / "src"))
    assert code == 2
    assert re.match(f"tacit: {THEIRS}: {re.escape(REMEDY)}", line)
    # Nothing of theirs was run for that.
    (beside / "tacit" / "__init__.py").write_text("raise SystemExit('run')\n", encoding="utf-8")
    assert said(beside, "-c", command, paths=(beside, ROOT / "src"))[1] == [line]


def test_ours_without_its_first_file_is_refused(tmp_path):
    copy = tmp_path / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "tacit" / "__init__.py").unlink()
    for words in (("-c", "import tacit_dp; tacit_dp.main()"), ("-m", "tacit", "--version")):
        code, (line,) = said(copy, "-S", *words, paths=(copy,))  # no other tacit is found
        assert code == 2
        assert re.match(f"tacit: {GONE}: ", line)


def test_a_package_of_another_distribution_of_that_name_is_no_matter(beside):
    """It installs no package `tacit`: nothing overlaps."""
    shutil.rmtree(beside / "tacit")
    record = beside / "tacit-9.0.dist-info" / "RECORD"
    record.write_text(RECORD.replace("tacit/", "other/"), encoding="utf-8")
    code, lines = said(beside, "-c", "import tacit", paths=(ROOT / "src", beside))
    assert (code, lines) == (0, [])
