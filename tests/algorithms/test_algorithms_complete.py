"""What the project asks of each algorithm: whoever adds one to the table reads what is missing.

Each line names the file, and what to write there. That what stands there is right is for others:
the battery, the golden results and the tests of the documentation.
"""

import ast
import functools
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import golden
import pytest
from battery_table import CLIP, NOISED, ROWS, SPECIAL

from rooms import tree_of
from tacit.algorithms import ALGORITHMS
from tacit.algorithms.privsgp import PRIVSGP, PushSumOptions

ROOT = Path(__file__).resolve().parents[2]
KEYS = ROOT / "docs" / "reference" / "experiment-file.md"
CHOICE = ROOT / "docs" / "concepts" / "which-algorithm.md"


@functools.cache
def golden_results():
    return json.loads(golden.FILE.read_text(encoding="utf-8"))["runs"]


@functools.cache
def in_experiments():
    """The algorithms that an example or a figure of a paper runs."""
    files = [*ROOT.glob("examples/*.toml"), *ROOT.glob("papers/**/*.toml")]
    return frozenset().union(*(texts(tomllib.loads(file.read_text("utf-8"))) for file in files))


def texts(value):
    """The texts in a value of TOML; that each file is an experiment or a figure, others test."""
    if isinstance(value, str):
        return {value}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(texts, inner))


@functools.cache
def first_cells(page, heading):
    """The names in the first cells of the table under a heading of a page."""
    text = page.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    text = re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


def missing(row):
    """One line for each thing that an algorithm still needs."""
    table = "tests/algorithms/battery_table.py"
    cases = {case: way for case, way in ROWS.items() if way.name == row.name}
    if not cases:
        yield f"{table}: add a row to ROWS, whose `recursion` names the test of its steps"
        yield "tests/algorithms/: that test, against a loop of its own (CONTRIBUTING.md shows one)"
    elif row.private and all(way.release is None for way in cases.values()):
        yield f"{table}: say in its row where its noise is seen (`release`)"
    for case, way in cases.items():
        file, _, function = way.recursion.partition("::")
        path = ROOT / "tests" / "algorithms" / file
        if not path.is_file() or f"def {function}(" not in path.read_text(encoding="utf-8"):
            yield f"tests/algorithms/{file}: add {function}, which the row {case!r} names"
    if not any(row.name in (same.name, same.other) for same in SPECIAL):
        yield f"{table}: add to SPECIAL the settings at which it is another algorithm"
    if set(row.releases.clip_norms(row.options())) != set(CLIP.get(row.name, ("l2",))):
        yield f"{table}: say in CLIP for which `clip_norm` its mechanism is proved, as its row does"
    results = golden_results()
    for case in cases or [row.name]:
        if case not in results:
            command = f"PYTHONPATH=tests python tests/algorithms/golden.py '{case}'"
            yield f"tests/algorithms/golden.json: add its result with `{command}`"
    if row.private and row.name not in in_experiments():
        yield "examples/ or papers/: add an experiment, or a line of a figure, that runs it"
    if row.name not in first_cells(CHOICE, "## The table"):
        yield "docs/concepts/which-algorithm.md, The table: add a row: its paper, noise and claim"
    if row.name not in first_cells(KEYS, "### Names"):
        yield "docs/reference/experiment-file.md, Names: add a row with its default clipping bound"
    for option in sorted(set(row.options.model_fields) - first_cells(KEYS, "### Options")):
        yield f"docs/reference/experiment-file.md, Options: add a row for `{option}`"


def test_nothing_that_an_algorithm_needs_is_missing():
    lines = [f"{row.name}: {line}" for row in ALGORITHMS.values() for line in missing(row)]
    assert lines == []


def named_elsewhere(source):
    """Places where an algorithm is named, but for files of algorithms and the published formulas.

    In small or capital letters, by its name, its title, or that of its module; a word that is part
    of another counts for nothing, nor does a title of common words ("noised moments").
    """
    rows = ALGORITHMS.values()
    words = {row.name for row in rows} | {row.title for row in rows if " " not in row.title}
    words |= {word.replace("-", "_") for word in words}
    longest = sorted(map(re.escape, words), key=len, reverse=True)
    named = re.compile(rf"(?<![\w-])({'|'.join(longest)})(?![\w-])", re.IGNORECASE)
    folder = source / "tacit" / "algorithms"
    own = {row.documentation for row in rows}
    lower = {word.lower() for word in words}
    for file in sorted(source.rglob("*")):
        if file.suffix not in (".py", ".html", ".js", ".css", ".md", ".toml"):
            continue
        if file == folder / "__init__.py" or "published" in file.parent.parts:
            continue
        text = file.read_text(encoding="utf-8")
        small = text.lower()
        if not any(word in small for word in lower):
            continue
        if folder in file.parents and ast.get_docstring(tree_of(file), clean=False) in own:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if "privacy.published" not in line and (found := named.search(line)):
                yield f"{file.relative_to(source)}:{number}: {found.group()}"


def test_an_algorithm_is_named_in_its_file_alone():
    assert list(named_elsewhere(ROOT / "src")) == []


def test_only_algorithms_of_the_table_have_rows():
    named = {way.name for way in ROWS.values()}
    named |= {same.name for same in SPECIAL} | {same.other for same in SPECIAL}
    assert named <= set(ALGORITHMS)
    assert all(ALGORITHMS[ROWS[case].name].private for case in NOISED)


def test_a_newcomer_reads_all_that_is_missing_at_once():
    class Options(PushSumOptions):
        step_decay: float = 0.5

    places = [
        line.partition(":")[0]
        for line in missing(replace(PRIVSGP, name="newcomer", options=Options))
    ]
    assert places == [
        "tests/algorithms/battery_table.py",
        "tests/algorithms/",
        "tests/algorithms/battery_table.py",
        "tests/algorithms/battery_table.py",
        "tests/algorithms/golden.json",
        "examples/ or papers/",
        "docs/concepts/which-algorithm.md, The table",
        "docs/reference/experiment-file.md, Names",
        "docs/reference/experiment-file.md, Options",
    ]


def test_a_row_that_names_no_test_or_no_release_is_told_so(monkeypatch):
    wrong = replace(
        ROWS["privsgp"], recursion="test_algorithms_recursion.py::nowhere", release=None
    )
    monkeypatch.setitem(cast("dict[str, Any]", ROWS), "privsgp", wrong)
    lines = list(missing(ALGORITHMS["privsgp"]))
    assert [line.partition(":")[0] for line in lines] == [
        "tests/algorithms/battery_table.py",
        "tests/algorithms/test_algorithms_recursion.py",
    ]


def test_summary_and_paper_come_from_the_docstring():
    row = replace(
        PRIVSGP,
        title="A(DP)2SGD, mine",
        documentation="""First: what it does, in
short (Somebody et al., 2020). *Title*: more.

| paper | here |

A(DP)2SGD, mine: pairs average: gradients are stale. It says more.
""",
    )
    assert (row.summary, row.paper) == (
        "pairs average: gradients are stale",
        "Somebody et al., 2020",
    )
    first = replace(row, title="First")
    assert (first.summary, first.paper) == ("what it does, in short", "Somebody et al., 2020")
    stripped = replace(row, documentation=None)  # by `python -OO`
    assert (stripped.summary, stripped.paper) == ("", "")


@pytest.mark.parametrize(
    "documentation",
    [
        "",
        "PrivSGP.",
        "Others: do this (Paper, 2020).",
        "PrivSGP: has no paper.",
        "PrivSGP: none (A, 1)",
    ],
)
def test_a_docstring_without_summary_or_paper_is_refused(documentation):
    with pytest.raises(ValueError, match=r"^PrivSGP: .* must begin 'PrivSGP: SUMMARY \(PAPER\)\.'"):
        replace(PRIVSGP, documentation=documentation)


def test_no_text_of_the_table_is_empty():
    assert all(row.summary and row.paper for row in ALGORITHMS.values())
