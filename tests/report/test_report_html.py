"""Pages of blocks: what they are given is escaped and must be there; templates are read once."""

import gzip
import hashlib
import subprocess
import sys
from functools import partial
from importlib import resources

import pytest
from jinja2 import UndefinedError
from test_report_audit_words import ACCUSED, SAW
from test_report_claims_page import a_row
from test_report_claims_page import document as claims
from test_report_optimise_page import DOCUMENT
from test_report_statement_page import DATA_LEDGER
from test_report_statement_page import document as statement

from tacit.report import write_report
from tacit.report.charts import Axis, Chart, Drawing, base_layout, scatter
from tacit.report.claims_page import claims_blocks
from tacit.report.html import html
from tacit.report.optimise_page import optimise_blocks
from tacit.report.statement_page import statement_page
from tacit.report.view import Block, Heading, Table, Text, Tile, Tiles, folded
from web_pages import EVIL, PLOTLY, Page, poisoned

HEADING = Heading("a kind", "A title", "a subtitle")


def page_of(*blocks):
    return Page(html([HEADING, *blocks]))


def test_what_a_block_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="Block"):
        html([HEADING, Block()])


def test_a_value_that_is_not_known_is_never_called_none():
    with pytest.raises(ValueError, match="not known"):
        page_of(Text(None))  # type: ignore[arg-type]


def test_cells_are_aligned_and_marked_by_the_name_of_their_column():
    table = Table(
        ("name", "value"),
        [("x", "1"), (EVIL, "2")],
        left=("name",),
        over={(1, "value")},
        over_note=EVIL,
    )
    page = page_of(table)
    assert page.rows == [["name", "value"], ["x", "1"], [EVIL, f"2, {EVIL}"]]
    assert page.count("td", **{"data-label": "value"}) == 2
    assert page.count("th", **{"class": "left"}) == 1
    assert page.count("td", **{"class": "left"}) == 2
    assert page.count("td", **{"class": "over"}) == 1


def test_what_must_not_be_missed_is_printed_and_nothing_is_cut_off_on_paper():
    """Browsers print no backgrounds unless they are told to: white words on red would vanish."""
    text = page_of().html
    paper = text[text.index("@media print {") : text.index("</style>")]
    assert ".banner, td.over { -webkit-print-color-adjust: exact;" in paper
    assert "overflow: auto" not in text
    assert "max-height: 40rem" not in text
    assert "@media (prefers-color-scheme" not in text  # the dark theme is for screens alone
    assert text.index("@media screen and (prefers-color-scheme: dark)") < text.index(paper)
    assert "thead { display: table-header-group; }" in paper
    for event in ("beforeprint", "afterprint"):
        assert f'addEventListener("{event}"' in text


def test_every_row_of_a_table_has_all_cells():
    with pytest.raises(ValueError, match="2 cells"):
        Table(("a", "b"), [("1", "2"), ("1",)])


def test_a_tile_has_a_note_only_where_there_is_one():
    tiles = [Tile("label", "1"), Tile(EVIL, EVIL, EVIL, "void")]
    page = page_of(Tiles(tiles))
    assert page.count("p", **{"class": "note"}) == 1
    assert (
        page.count("div", **{"class": "tile"}) == page.count("div", **{"class": "tile void"}) == 1
    )
    assert page.text.count(EVIL) == 3


def test_a_chart_cannot_leave_its_script():
    figure = Drawing([scatter(x=[1], y=[2], name=EVIL)], base_layout(Axis("x"), Axis("y")))
    chart = Chart("chart", EVIL, EVIL, figure, "")
    page = page_of(chart)
    harmless = Chart("chart", "title", "caption", figure, "")
    page.assert_has_the_elements_of(page_of(harmless))
    assert page.charts["chart"]["data"][0]["name"] == EVIL
    assert page.count("div", **{"aria-label": EVIL}) == 1


def test_the_code_of_plotly_is_that_of_its_licence():
    packed = gzip.decompress(PLOTLY.read_bytes())
    code = packed.decode()
    folder = resources.files("tacit.report") / "plotly"
    assert hashlib.sha256(packed).hexdigest() in (folder / "README.md").read_text()
    notice = page_of().html
    assert code.startswith("/**\n* plotly.js (basic - minified) v4.1.1\n")
    for words in ("Copyright 2012-2026, Plotly, Inc.", "Licensed under the MIT license"):
        assert words in code[:300]
        assert words in notice
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_a_table_without_a_note_has_none():
    tables = [Table(("a",), [("1",)], note=note) for note in ("", EVIL)]
    pages = [page_of(table) for table in tables]
    assert [page.count("p", **{"class": "table-note"}) for page in pages] == [0, 1]
    assert EVIL in pages[1].text


def test_long_tables_are_folded():
    for count, is_open in ((20, 1), (21, 0)):
        table = Table(("a",), [("1",)] * count)
        assert page_of(folded("rows", table, rows=count)).html.count("<details open>") == is_open


def test_the_templates_are_part_of_the_package():
    names = {path.name for path in (resources.files("tacit.report") / "templates").iterdir()}
    assert names == {"page.html.j2", "page.css", "page.js"}


def test_no_template_is_loaded_before_a_page_is_written():
    code = "import sys, tacit, tacit.report, tacit.cli.main; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# What holds of every page: texts of a document stay texts, and nothing is loaded from afar.


ENDED = {"status": "stopped", "message": "a message", "private": False}


def claimed(change, _):
    rows = claims(a_row(), a_row(paper="Another", missing="K is not printed"))
    return html(claims_blocks(change(rows, keep=("verdict",))))


def optimised(change, _):
    return html(optimise_blocks(change({**DOCUMENT, "warning": "a warning"})))


def stated(change, _):
    return statement_page(change(statement(data_ledger=DATA_LEDGER, audit=ACCUSED)))


def ran(change, write_run):
    config = f"name = '''{change('a name')}.'''"
    changes = {**ENDED, "not_private_reason": "a reason"}
    folder = write_run(changes, config=config, change=partial(change, keep=("status",)))
    return write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (claimed, "digits, K = 10; Some-SGD; K is not printed"),
        (optimised, "a warning; --set train.steps=39; one more node; a lower estimate"),
        (stated, f"PrivSGP; an assumption; a gap; the first mechanism; statement-digest; {SAW}"),
        (ran, "a message; a reason; Dyn-D2P; digits; a name; training loss; exponential"),
        (ran, "add-or-remove-one; all messages; one record is drawn at each step; certified"),
    ],
)
def test_texts_stay_texts_and_nothing_is_loaded(make, told, write_run):
    has_charts = make is not stated
    page = Page(make(poisoned, write_run), has_charts=has_charts)
    harmless = Page(make(lambda content, keep=(): content, write_run), has_charts=has_charts)
    page.assert_has_the_elements_of(harmless)
    page.assert_loads_nothing()
    assert not any(EVIL in script for script in page.scripts)
    for text in told.split("; "):
        assert text in harmless.text
        assert f"{text}{EVIL}" in page.text, text
