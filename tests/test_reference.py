"""The reference names whatever a user can name: functions, keys, options, commands, words."""

import math
import re
import sys
from pathlib import Path

import pytest
import typer

import tacit
from experiments import tacit as command_line
from tacit import callbacks, privacy
from tacit.algorithms import ALGORITHMS
from tacit.cli.main import app
from tacit.config import Config

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
DESCRIBED = {"tacit": "python.md", "tacit.callbacks": "python.md", "tacit.privacy": "privacy.md"}
CODE = re.compile(r"`([^`]+)`")

sys.path.insert(0, str(ROOT / "docs" / "hooks"))
from generated_reference import algorithms, commands  # noqa: E402


def read(name):
    return (REFERENCE / name).read_text(encoding="utf-8")


def first_cells(text):
    """What stands as code in the first cell of a table's row."""
    cells = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {name for cell in cells for name in CODE.findall(cell)}


def under(text, heading):
    """What stands under a heading, up to the next one of its rank."""
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"^{heading.split()[0]} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("module", [tacit, callbacks, privacy], ids=lambda module: module.__name__)
def test_every_public_name_is_described(module):
    page = read(DESCRIBED[module.__name__])
    described = set(re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", page, re.MULTILINE))
    described |= {"__version__"} if "`tacit.__version__`" in page else set()
    # A module among the names is described by its own.
    described |= {name for name in module.__all__ if f"{module.__name__}.{name}" in DESCRIBED}
    missing = set(module.__all__) - described
    assert not missing, f"add `::: {module.__name__}.NAME` to {DESCRIBED[module.__name__]}"
    assert described <= {*module.__all__, "__version__"}


def test_every_key_of_every_section_is_described():
    page = read("experiment-file.md")
    for section, field in Config.model_fields.items():
        if section == "algorithm":
            continue
        model = field.annotation
        keys = first_cells(under(page, f"## `[{section}]`"))
        assert set(model.model_fields) <= keys, section


def test_every_option_of_every_algorithm_is_described_and_listed():
    options = {name for row in ALGORITHMS.values() for name in row.options.model_fields}
    assert options <= first_cells(under(read("experiment-file.md"), "### Options"))
    sections = re.split(r"^## ", algorithms(), flags=re.MULTILINE)[1:]
    for name, row in ALGORITHMS.items():
        (section,) = [text for text in sections if f"`{name}`" in text.partition("\n")[0]]
        listed = set(CODE.findall(section.partition("**Options:**")[2]))
        assert set(row.options.model_fields) <= listed, name
        assert row.title in section


def every_command(command, *path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from every_command(inner, *path, name)


@pytest.mark.parametrize("path", list(every_command(typer.main.get_command(app))), ids=" ".join)
def test_every_command_and_option_of_the_help_is_described(path: tuple[str, ...]) -> None:
    """The page comes from the commands; what it is compared with is the help that users read."""
    assert "<!-- generated: commands -->" in read("command-line.md")
    answer = command_line(*path, "--help")
    assert answer.code == 0
    page = commands()
    if path:
        page = under(page, f"## `{' '.join(('tacit', *path))}`")
    names = re.findall(r"^\s+(--[\w-]+|[A-Z]{2,}\b(?=.*\[required\]))", answer.out, re.MULTILINE)
    assert "--help" in names
    described = " ".join(first_cells(page)) if path else page
    assert [name for name in names if name not in described] == []


def test_a_mark_on_a_page_is_replaced():
    from generated_reference import on_page_markdown

    for name in ("command-line.md", "algorithms.md"):
        made = on_page_markdown(read(name), page=None, config=None, files=None)
        assert "<!-- generated" not in made
        assert made.count("\n## ") > 5


WORDS = """node, client, server, round, step, mixing matrix, push-sum weight, de-biased parameter,
local data set, sampling rate, clipping bound, noise multiplier, neighbouring relation,
add-or-remove-one, replace-one, privacy loss distribution, trust model, epsilon, delta,
certified epsilon, claimed epsilon, audited epsilon, ledger, statement, plan, run folder"""


def test_the_glossary_has_the_words_of_the_field_in_order():
    terms = re.findall(r"^\*\*([^*]+)\*\*", read("glossary.md"), re.MULTILINE)
    named = {part.strip() for term in terms for part in term.split(",")}
    assert {" ".join(word.split()) for word in WORDS.split(",")} <= named
    assert terms == sorted(terms, key=str.lower)
    explained = re.findall(r"^\*\*[^*]+\*\*.*\n: \w", read("glossary.md"), re.MULTILINE)
    assert len(explained) == len(terms)


def test_every_pitfall_has_a_severity_and_a_way_out():
    page = read("pitfalls.md")
    for severity in ("Privacy lost", "Result wrong", "Time lost"):
        assert f"- **{severity.lower()}**:" in page
        rows = [
            line.strip("|").split(" | ")
            for line in under(page, f"## {severity}").splitlines()
            if line.startswith("| ") and not line.startswith("| mistake")
        ]
        assert len(rows) >= 8
        assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)


def up(value, digits):
    return math.ceil(value * 10**digits - 1e-9) / 10**digits


def test_the_probabilities_for_a_lawyer_are_those_of_the_definition():
    """Rounded up: (e^epsilon + delta) / (e^epsilon + 1) of guesses; odds grow by e^epsilon."""
    page = (ROOT / "docs" / "concepts" / "epsilon-for-a-lawyer.md").read_text(encoding="utf-8")
    guesses = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \|$", page, re.MULTILINE)
    assert len(guesses) == 7
    for epsilon, percent in guesses:
        factor = math.exp(float(epsilon))
        digits = len(percent.partition(".")[2])
        assert float(percent) == up(100 * (factor + 1e-4) / (factor + 1), digits)
    beliefs = re.findall(r"^\| ([\d.]+) \| 5 % \| ([\d.]+) % \|$", page, re.MULTILINE)
    assert len(beliefs) == 4
    for epsilon, percent in beliefs:
        odds = math.exp(float(epsilon)) * 0.05 / 0.95
        assert float(percent) == up(100 * odds / (1 + odds), 1)
    assert "at most 73.2 %" in page.replace("\n> ", " ")
