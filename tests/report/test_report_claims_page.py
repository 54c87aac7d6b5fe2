"""The page of claims, from a document alone."""

from tacit.report.claims_page import claim_cells, claims_blocks, violations
from tacit.report.html import html
from web_pages import Page


def a_row(**changes):
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


def document(*rows):
    return {"format_version": 1, "source": "a test", "rows": list(rows)}


def page_of(*rows):
    return Page(html(claims_blocks(document(*rows))))


def cells(*names, **changes):
    told = claim_cells(a_row(**changes))
    return tuple(told[name] for name in names)


def test_bounds_are_rounded_to_the_safe_side():
    bounds = ("claimed", "certified", "at least")
    assert cells(*bounds) == ("1.00", "2.01", "1.99")
    assert cells(*bounds, claimed=None, certified=None, lower=None) == ("no claim", "–", "–")
    infinite = {"claimed_infinite": True, "certified_infinite": True, "lower": 0.0}
    told = cells(*bounds, claimed=None, certified=None, **infinite)
    assert told == ("infinite", "infinite", "–")
    assert cells("claimed", claimed=1.0000000002) == ("1.00",)


def test_noise_is_one_number_or_two():
    assert cells("noise multiplier") == ("1.00 to 2.00",)
    assert cells("noise multiplier", noise_multiplier=[0.5, 0.5]) == ("0.500",)
    assert cells("noise multiplier", noise_multiplier=None) == ("–",)


def test_violated_conditions_are_numbered():
    met = a_row(conditions=[{"text": "eps < 1", "holds": True}])
    other = a_row(
        conditions=[{"text": "eps < 7", "holds": False}, {"text": "J > 9", "holds": False}]
    )
    assert [claim_cells(row)["violated"] for row in (met, a_row(), other)] == ["–", "1", "1, 2"]
    assert violations([met, a_row(), other]) == [(1, "eps < 1"), (2, "J > 9")]


def test_the_page_shows_every_row_and_draws_what_has_a_number():
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
    drawn = {trace["name"]: trace["x"] for trace in page.charts["claims-0"]["data"]}
    assert drawn["claimed by the paper"] == [1.0, 1.0]
    assert drawn["certified: never more"] == [2.0001, 0.9]
    assert drawn["proved: at least"] == [1.9999, None]
    assert page.charts["claims-0"]["layout"]["xaxis"]["type"] == "log"
    assert "There is nothing to draw" in page.text
    assert page.count("tr") == 3 + 2
    assert page.count("td", **{"class": "left over"}) == 1
    assert page.count("th", **{"class": "left"}) == 2 * 3  # columns of words, in both tables


def test_where_there_is_no_room_for_names_rows_are_found_by_their_numbers():
    page = page_of(a_row(), a_row(experiment="digits, K = 20"))
    axis = page.charts["claims-0"]["layout"]["yaxis"]
    assert axis["tickvals"] == ["1", "2"]
    assert axis["ticktext"][1] == "2: digits, K = 20"
    assert [trace["y"] for trace in page.charts["claims-0"]["data"]] == [["1", "2"]] * 3
    assert "delete figure.layout.yaxis.ticktext" in page.html


def test_zero_has_no_place_on_a_logarithmic_axis():
    page = page_of(a_row(certified=0.0, lower=None))
    names = [trace["name"] for trace in page.charts["claims-0"]["data"]]
    assert names == ["claimed by the paper"]


def test_what_is_beyond_all_meaning_is_said_in_words_and_stands_at_the_edge():
    page = page_of(a_row(certified=4.14e289, lower=1000.5), a_row(certified=999.0, lower=900.0))
    assert "e289" not in "".join(page.words)
    assert "An epsilon of more than 1,000 is no protection." in page.text
    chart = page.charts["claims-0"]
    drawn = {trace["name"]: trace["x"] for trace in chart["data"]}
    assert drawn["certified: never more"] == [5000.0, 999.0]
    assert drawn["proved: at least"] == [5000.0, 900.0]
    axis = chart["layout"]["xaxis"]
    assert dict(zip(axis["tickvals"], axis["ticktext"], strict=True))[5000.0] == "more"
    assert "stands at the right edge" in page.text
    assert "stands at the right edge" not in page_of(a_row()).text
    # what one points at still says the number
    assert chart["data"][1]["customdata"][0] == "4.14e289 (1: digits, K = 10)"
