"""Tables on terminals of any width: no name is ever broken, and nothing is left out."""

import re
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from experiments import tacit, write_experiment
from tacit.algorithms import ALGORITHMS
from tacit.report import view
from tacit.report.terminal import terminal

WIDTHS = (60, 80, 100, 200)


def printed(table, width):
    out = StringIO()
    terminal([table], Console(file=out, width=width))
    return out.getvalue()


def table_of(headings, rows):
    return view.Table(headings, rows, title="all of it", left=headings)


def test_a_table_that_fits_is_a_table_and_one_that_does_not_is_cards():
    prose = "PrivSGP with a falling clipping bound and a growing budget a step"
    table = table_of(["name", "private", "what it is"], [["dyn-d2p", "yes", prose]])
    wide, narrow = printed(table, 100), printed(table, 40)
    assert "───" in wide
    assert re.search(r"dyn-d2p +yes +PrivSGP with", wide)
    assert narrow.splitlines() == [
        "all of it",
        "dyn-d2p",
        "  private yes",
        "  what it is: PrivSGP with a falling",
        "    clipping bound and a growing budget",
        "    a step",
        "",
    ]


words = st.text(alphabet="abcde-1", min_size=1, max_size=12)
cells = st.lists(words, min_size=1, max_size=8).map(" ".join)


@settings(max_examples=25)
@given(
    st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=4), st.integers(40, 120)
)
def test_every_word_of_every_cell_stands_whole_in_its_order(rows, width):
    """Whatever the width; a dash, which says that there is nothing, may be left out of a card."""
    text = printed(table_of(["first", "second", "third", "fourth"], rows), width)
    assert max(map(len, text.splitlines())) <= width
    found = set(text.split())
    for row in rows:
        for cell in row:
            assert cell == "-" or set(cell.split()) <= found


def test_no_figure_of_many_columns_loses_a_digit():
    """A certified epsilon of 2.99 whose last digit is cut off looks smaller than it is."""
    headings = ["nodes", "noise multiplier", "own multiplier", "noise in mean", "share of model"]
    headings += ["share of noise", "budget", "rate", "records", "certified epsilon"]
    row = ["1-3", "2.996", "1.791", "0.004984", "25.0%", "25.0%", "(3, 1e-4)", "1", "359", "2.99"]
    for width in range(60, 140):
        assert "2.99" in printed(view.Table(headings, [row]), width).split()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("colour", [True, False])
def test_the_algorithms_keep_their_names_at_any_width(width, colour, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    answer = tacit("algorithms")
    assert (answer.code, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= width
    assert set(ALGORITHMS) <= set(answer.out.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_claims_take_few_lines_a_node(width, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    file = write_experiment(tmp_path_factory.mktemp("claims"), nodes={"count": 4})
    answer = tacit("privacy", "claims", file)
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert max(map(len, lines)) <= width
    starts = [place for place, line in enumerate(lines) if "digits" in line]
    ends = next(place for place, line in enumerate(lines) if line.startswith("  reading: "))
    assert len(starts) == 2  # nodes of one size together
    assert ends - starts[-1] <= 6
    for figure in ("claimed", "certified", "at least", "verdict", "violated"):
        assert figure in " ".join(answer.out.split())


@pytest.mark.parametrize("name", ["runs/:heart:/x", "runs/[bold]x[/]", "runs\\"])
def test_a_name_is_printed_as_it_is(name, capsys):
    """A folder `:heart:`, as rich would draw it, a style, and a backslash at the end."""
    table, pairs = view.Table(["a", "b"], [[name, "1"]]), view.Pairs([("a", name)], title=name)
    terminal([view.Text(name), table, pairs])
    printed = capsys.readouterr().out
    assert printed.count(name) == 4
    assert f"{name}\\" not in printed
