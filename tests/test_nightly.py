"""What waits for the night is there, and says what of it every change is still asked."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forked import said_in_fork
from nightly import ALIKE, COLLECTED, KINDS, NIGHTLY
from tacit.algorithms import ALGORITHMS

TESTS = Path(__file__).parent
MARKED = re.compile(r"mark\.(slow|process)")  # as `make test-rest` looks for it


@pytest.mark.parametrize("line", NIGHTLY, ids=lambda line: line.function or line.file)
def test_what_waits_for_the_night_is_a_test_that_there_is(line):
    text = (TESTS / line.file).read_text(encoding="utf-8")
    assert re.search(rf"^def {line.function or 'test_'}", text, re.MULTILINE)
    assert line.stays
    if line.kept or line.sent != ("",):
        assert "parametrize" in text


COMBINED = """
import pytest

@pytest.mark.parametrize("size, name", [(1, "one"), (2, "two"), (2, "other")])
@pytest.mark.parametrize("kind", ["a", "b"])
@pytest.mark.parametrize("many", [True, False])
def test_combined(size, name, kind, many): ...

@pytest.mark.parametrize("kind", ["a", "b", "c"])
def test_rows(kind): ...
"""


def test_every_row_of_every_decorator_stays(tmp_path):
    for file in ("conftest.py", "nightly.py", "nightly.txt"):
        shutil.copy(TESTS / file, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  nightly: later\n")
    (tmp_path / "test_it.py").write_text(COMBINED)

    class Seen:
        def pytest_collection_finish(self, session):
            self.names = [item.nodeid for item in session.items]

    def collected():
        seen = Seen()
        command = ["--collect-only", "-p", "no:xdist", "-m", "not nightly", str(tmp_path)]
        pytest.main(command, plugins=[seen])
        return "\n".join(seen.names)

    found = said_in_fork(collected).splitlines()
    names = [line.partition("[")[2][:-1] for line in found if "[" in line]
    assert [name for name in names if len(name) == 1] == ["a", "b", "c"]
    kept = [name.split("-") for name in names if len(name) > 1]
    assert sorted({tuple(name[2:]) for name in kept}) == [
        ("1", "one"),
        ("2", "other"),
        ("2", "two"),
    ]
    assert {name[0] for name in kept} == {"True", "False"}
    assert {name[1] for name in kept} == {"a", "b"}
    assert len(kept) == 3


def test_no_function_has_two_lines():
    lines = [(line.file, line.function) for line in NIGHTLY]
    assert len(set(lines)) == len(lines)


def test_what_stands_for_algorithms_are_algorithms():
    assert {name.removeprefix("[") for name in (*ALIKE, *KINDS)} <= set(ALGORITHMS)


def test_what_stays_is_there(request):
    """A parameter with another name would send every row of its test into the night, or none."""
    files = sorted({f"tests/{line.file}" for line in NIGHTLY})
    rows = list(request.config.stash[COLLECTED])
    if not set(files) <= {row.partition("::")[0] for row in rows}:  # they were not asked for
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *files]
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=250, cwd=TESTS.parent
        )
        rows = [line for line in found.stdout.splitlines() if "::" in line]
    for line in NIGHTLY:
        named = f"tests/{line.file}::{line.function}"
        own = [row for row in rows if row.partition("[")[0] == named or not line.function]
        own = [row for row in own if row.startswith(named)]
        assert any(line.takes(row) for row in own), line
        assert not line.kept or not all(line.takes(row) for row in own), line
        parts = {*line.kept, *line.sent} - {*ALIKE, *KINDS}
        assert not [part for part in parts if not any(part in row for row in own)], line


def test_files_say_which_tests_are_not_quick(request):
    """`make test-rest` collects those files alone: what says so elsewhere, it would never run."""
    rest = {
        row.partition("::")[0]
        for row, marks in request.config.stash[COLLECTED].items()
        if marks & {"slow", "process"}
    }
    assert all(MARKED.search((TESTS.parent / file).read_text(encoding="utf-8")) for file in rest)
