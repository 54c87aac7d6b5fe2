"""What holds of every page: texts of a document stay texts, and nothing is loaded from afar."""

from functools import partial

import pytest
from test_report_audit_words import ACCUSED, SAW
from test_report_claims_page import a_row
from test_report_claims_page import document as claims
from test_report_optimise_page import DOCUMENT
from test_report_statement_page import DATA_LEDGER
from test_report_statement_page import document as statement

from tacit.report import write_report
from tacit.report.claims_page import claims_blocks
from tacit.report.html import html
from tacit.report.optimise_page import optimise_blocks
from tacit.report.statement_page import statement_page
from web_pages import EVIL, Page, poisoned

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
