"""The page of claims, from a document alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import plotly.offline
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.claims_page import (
    bound_cells,
    claims_page,
    lower_text,
    noise_text,
    violated_numbers,
    violations,
)

Row = dict[str, Any]


def a_row(**changes: Any) -> Row:
    row = {
        "paper": "A paper",
        "algorithm": "Some-SGD",
        "experiment": "digits, K = 10",
        "reading": "one record left out; K assumed",
        "kindest": True,
        "relation": "add-or-remove-one",
        "mechanism": "Gaussian on every record, 10 steps",
        "noise_multiplier": [1.0, 2.0],
        "delta": 1e-5,
        "claimed": 1.0,
        "claimed_infinite": False,
        "certified": 2.0001,
        "certified_infinite": False,
        "lower": 1.9999,
        "conditions": [{"text": "eps < 1", "holds": False}, {"text": "J > 1", "holds": True}],
        "violated": ["eps < 1"],
        "verdict": "does not hold",
        "missing": "",
    }
    return {**row, **changes}


def document(*rows: Row) -> dict[str, Any]:
    return {"format_version": 1, "source": "a test", "rows": list(rows)}


class Page(HTMLParser):
    """The words and tags of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.charts: list[Any] = []
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag if dict(attrs).get("type") != "application/json" else "chart"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "chart":
            self.charts.append(json.loads(data))
        elif not self._inside:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(*rows: Row) -> Page:
    html = claims_page(document(*rows))
    code = plotly.offline.get_plotlyjs()
    assert html.count(code) == 1
    own = html.replace(code, "")
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", own)
    return Page(own)


def test_bounds_are_rounded_to_the_safe_side() -> None:
    assert bound_cells(a_row()) == ("1.00", "2.01", "1.99")
    assert bound_cells(a_row(claimed=None, certified=None, lower=None)) == ("no claim", "–", "–")
    infinite = a_row(
        claimed=None, claimed_infinite=True, certified=None, certified_infinite=True, lower=0.0
    )
    assert bound_cells(infinite) == ("infinite", "infinite", "–")
    assert bound_cells(a_row(claimed=1.0000000002))[0] == "1.00"


@given(st.floats(1e-12, 1e12))
def test_a_lower_bound_is_never_rounded_up(value: float) -> None:
    shown = float(lower_text(value))
    assert value * 0.989 <= shown <= value


def test_noise_is_one_number_or_two() -> None:
    assert noise_text(a_row()) == "1.00 to 2.00"
    assert noise_text(a_row(noise_multiplier=[0.5, 0.5])) == "0.500"
    assert noise_text(a_row(noise_multiplier=None)) == "–"


def test_violated_conditions_are_numbered() -> None:
    met = a_row(conditions=[{"text": "eps < 1", "holds": True}])
    other = a_row(
        conditions=[{"text": "eps < 7", "holds": False}, {"text": "J > 9", "holds": False}]
    )
    assert [violated_numbers(row) for row in (met, a_row(), other)] == ["–", "1", "1, 2"]
    assert violations([met, a_row(), other]) == [(1, "eps < 1"), (2, "J > 9")]


def test_the_page_shows_every_row_and_draws_what_has_a_number() -> None:
    rows = [
        a_row(),
        a_row(experiment="digits, K = 20", certified=0.9, lower=None, verdict="holds"),
        a_row(
            algorithm="Other-SGD",
            claimed=None,
            certified=None,
            lower=None,
            noise_multiplier=None,
            delta=None,
            conditions=[],
            verdict="not determined",
            missing="K is not printed",
        ),
    ]
    page = page_of(*rows)
    for text in ("digits, K = 20", "2.01", "1.99", "does not hold", "1: eps < 1", "not printed"):
        assert text in page.text
    assert len(page.charts) == 1
    drawn = {trace["name"]: trace["x"] for trace in page.charts[0]["data"]}
    assert drawn["claimed by the paper"] == [1.0, 1.0]
    assert drawn["certified: never more"] == [2.0001, 0.9]
    assert drawn["proved: at least"] == [1.9999, None]
    assert page.charts[0]["layout"]["xaxis"]["type"] == "log"
    assert "There is nothing to draw" in page.text
    assert sum(tag == "tr" for tag, _ in page.tags) == 3 + 2
    assert sum(attrs.get("class") == "over" for _, attrs in page.tags) == 1


@pytest.mark.parametrize("field", ["experiment", "reading", "algorithm", "paper", "missing"])
def test_text_is_escaped(field: str) -> None:
    page = page_of(a_row(**{field: "</script><b>bold</b>"}))
    assert not any(tag == "b" for tag, _ in page.tags)
    assert "<b>bold</b>" in page.text


def test_zero_has_no_place_on_a_logarithmic_axis() -> None:
    page = page_of(a_row(certified=0.0, lower=None))
    names = [trace["name"] for trace in page.charts[0]["data"]]
    assert names == ["claimed by the paper"]
