"""Page, table and pictures of a comparison: the same numbers in all of them, and valid markup."""

from copy import deepcopy
from io import StringIO

import pytest
from rich.console import Console

from tacit.report.compare_page import columns, compare_page, figure_blocks, line_cells
from tacit.report.compare_panels import panels, picture_note
from tacit.report.terminal import terminal
from web_pages import EVIL, Page, poisoned


def spread(mean, deviation=None):
    return None if mean is None else {"mean": mean, "deviation": deviation}


def line(name, **changes):
    """A line with three points on its curve, and one point of a grid."""
    point = {
        "choice": {},
        "name": "",
        "complete": 2,
        "figures": {
            "test_accuracy": spread(0.8123, 0.0149),
            "test_metrics": {},
            "score": spread(0.8123, 0.0149),
            "worst": spread(0.75, 0.02),
            "consensus": spread(0.83, 0.01),
            "baseline": spread(0.1, 0.0),
            "test_loss": spread(0.5, 0.1),
            "train_loss": None,
            "augmented_lagrangian": None,
            "consensus_distance": spread(0.1, 0.1),
            "bytes_sent": spread(2e6, 0.0),
            "seconds": spread(12.0, 1.0),
        },
        "private": True,
        "epsilon": 2.9912,
        "claimed_epsilon": 1.0,
        "delta": 1e-5,
        "runs": [
            {"folder": "runs/a", "seed": seed, "status": "done", "cached": False, "error": None}
            for seed in (0, 1)
        ],
    }
    curve = [
        {"step": step, "bytes": 1e6 * step, "epsilon": eps, "mean": mean, "deviation": 0.1}
        for step, eps, mean in ((0, 0.0, 0.1), (1, 2.0, 0.5), (2, 2.9912, 0.8123))
    ]
    made = {
        "name": name,
        "group": "",
        "algorithm": "privsgp",
        "published": {"test_accuracy": 74.65},
        "difference": 6.58,
        "points": [point],
        "chosen": 0,
        "curve": curve,
        "ends": curve[-1:],
    }
    return {**made, **changes}


def document(*lines, **changes):
    made = {
        "format_version": 1,
        "tacit_version": "0.0.0",
        "title": "Figure <3>",
        "source": "Doe & Roe",
        "notes": ["K is not printed"],
        "quick": False,
        "x": ["steps", "bytes", "epsilon"],
        "y": "test_accuracy",
        "score": "test_accuracy",
        "seeds": 2,
        "runs": 4,
        "complete": 4,
        "made": 4,
        "cached": 0,
        "stopped": False,
        "other_versions": [],
        "lines": list(lines),
        "sites": [],
        "together": [],
        "sentences": ["All 4 runs cost <much>."],
    }
    return {**made, **changes}


def bare(name):
    """A line without noise."""
    made = line(name, group="other", published={}, difference=None)
    made["points"][0] |= {"private": False, "epsilon": None, "claimed_epsilon": None}
    made["curve"] = [{**point, "epsilon": None} for point in made["curve"]]
    made["ends"] = made["curve"][-1:]
    return made


def swept(name):
    """A line of three budgets."""
    ends = [
        {"step": 2, "bytes": 2e6, "epsilon": epsilon, "mean": mean, "deviation": 0.1}
        for epsilon, mean in ((0.1, 0.3), (1.0, 0.6), (10.0, 0.7))
    ]
    return line(name, ends=ends, published={}, difference=None)


def cells(drawn):
    """What the table says of a line, by column."""
    headings = columns("test_accuracy")
    return dict(zip(headings, line_cells(drawn, "test_accuracy"), strict=True))


def test_cells_round_to_the_safe_side():
    shown = cells(line("one"))
    assert shown["certified epsilon"] == "3.00"  # up
    assert shown["test accuracy"].replace("\u202f", " ").replace("\xa0", " ") == "81.2 % ± 1.5"
    assert shown["published"] == "74.65 %"
    assert shown["difference"] == "+6.58"
    shown = cells(bare("none"))
    assert shown["certified epsilon"] == shown["claimed epsilon"] == "not private"


def test_a_claim_is_shown_where_no_epsilon_holds():
    """A paper claims one although it only assumes its bound of gradients."""
    assumed = bare("assumed")
    assumed["points"][0]["claimed_epsilon"] = 1.0
    shown = cells(assumed)
    assert (shown["claimed epsilon"], shown["certified epsilon"]) == ("1.00", "not private")


def test_panels_are_groups_on_an_axis():
    made = document(line("one"), bare("none"), line("two"))
    first, other = panels(made, "epsilon")
    assert [curve.name for curve in first.curves] == ["one", "two"]
    assert first.curves[0].x == (0.0, 2.0, 2.9912)
    assert first.curves[0].low == pytest.approx((0.0, 0.4, 0.7123))
    assert first.curves[0].high == pytest.approx((0.2, 0.6, 0.9123))
    assert first.curves[0].published == pytest.approx(0.7465)
    assert first.curves[0].colour != first.curves[1].colour
    assert (other.curves, other.absent) == ((), ("none",))
    assert panels(made, "bytes")[1].curves[0].x == (0.0, 1e6, 2e6)


def test_against_budgets_a_line_goes_through_the_ends_of_its_runs():
    level = {**bare("none"), "group": ""}
    (panel,) = panels(document(swept("two"), level, swept("three")), "budget")
    assert panel.log_x
    first, none, last = panel.curves
    assert (first.x, first.y) == (last.x, last.y) == ((0.1, 1.0, 10.0), (0.3, 0.6, 0.7))
    assert first.low == pytest.approx((0.2, 0.5, 0.6))
    assert (first.budget, none.budget) == ("", "not private")
    assert (none.x, none.y) == ((0.1, 10.0), (0.8123, 0.8123))
    assert none.high == pytest.approx((0.9123, 0.9123))
    (alone,) = panels(document(level), "budget")
    assert (alone.curves, alone.absent) == ((), ("none",))


def test_lines_are_told_apart_even_if_there_are_many():
    (panel,) = panels(document(*(line(f"line {turn}") for turn in range(20))), "steps")
    assert len({(curve.colour, curve.dash) for curve in panel.curves}) == 20
    assert len({curve.symbol for curve in panel.curves[:8]}) == 8  # without colours


def test_a_wide_range_is_drawn_on_logarithmic_axes():
    steep = line("steep", published={})
    for point, mean in zip(steep["curve"], (100.0, 1.0, 0.01), strict=True):
        point |= {"mean": mean, "deviation": 2.0}
    far = deepcopy(steep) | {"name": "far"}
    for point in far["curve"]:
        point["bytes"] *= 1000
    (panel,) = panels(document(steep, far, y="test_loss"), "bytes")
    assert panel.log_x
    assert panel.log_y
    for curve in panel.curves:
        assert all(value > 0 for value in (*curve.x, *curve.low))
        assert len(curve.x) == len(curve.y) == len(curve.low) == 2  # zero bytes cannot be shown


def test_the_page_shows_what_the_document_says():
    made = document(line("<one>"), bare("none"))
    page = Page(compare_page(made))
    for words in ("All 4 runs cost <much>.", "Figure <3>", "Doe & Roe", "K is not printed"):
        assert words in page.text
    assert "<one>" not in page.html
    figures = page.charts
    assert set(figures) == {f"compare-{axis}-{group}" for axis in made["x"] for group in (0, 1)} - {
        "compare-epsilon-1"
    }
    band, mean, printed = figures["compare-steps-0"]["data"]
    assert mean["y"] == [0.1, 0.5, 0.8123]
    assert band["fill"] == "toself"
    assert printed["y"] == [0.7465, 0.7465]
    assert "no run here has an epsilon" in page.text


def test_the_legend_names_every_line_and_hides_its_band_with_it():
    page = Page(compare_page(document(line("first"), line("second"))))
    entries = [tag["value"] for name, tag in page.tags if name == "button"]
    # traces of each line: its band, its mean, and the figure that is published
    assert entries[:4] == ["1 0", "2", "4 3", "5"]
    for name in ("first", "first, published", "second", "second, published"):
        assert name in page.text
    assert page.charts["compare-steps-0"]["layout"]["showlegend"] is False


def test_text_on_the_page_is_escaped():
    failed = line("failed", group="a group")
    failed["points"] = [{**failed["points"][0], "name": f"clip {clip}"} for clip in (1.0, 2.0)]
    failed["points"][0] |= {"runs": [{"seed": 0, "error": "an error"}]}
    made = document(failed, bare("none"))
    page = Page(compare_page(poisoned(made, keep=("x", "y"))))
    page.assert_has_the_elements_of(Page(compare_page(made)))
    page.assert_loads_nothing()
    for text in ("Figure <3>", "a group", "clip 1.0", "an error", "K is not printed", "0.0.0"):
        assert f"{text}{EVIL}" in page.text


def test_missing_runs_are_listed_and_an_empty_figure_is_a_page():
    made = line("late", published={}, difference=None, curve=[])
    made["points"][0]["runs"][0]["error"] = "train.batch = 5000: is too large"
    made["points"][0]["private"] = None
    made["points"][0]["figures"] = dict.fromkeys(made["points"][0]["figures"])
    page = compare_page(document(made, sentences=[]))
    assert "late, seed 0: train.batch = 5000" in page
    assert "What all runs cost" not in page
    assert [panel.curves for panel in panels(document(made), "steps")] == [()]


def test_a_picture_is_told_its_budgets_and_what_it_must_say():
    made = document(line("one"), bare("none"), quick=True)
    (one,), (none,) = (panel.curves for panel in panels(made, "steps"))
    assert (one.budget, none.budget) == ("epsilon 3.00", "not private")
    assert picture_note(made) == (
        "quick version: short runs, not for conclusions; "
        "bands: standard deviation over 2 seeds; dotted: published figures; "
        "in brackets: what is certified of one run"
    )
    assert picture_note(document(line("one", published={}), seeds=1)) == (
        "in brackets: what is certified of one run"
    )


def test_the_table_has_every_line_on_a_narrow_terminal():
    out = StringIO()
    gridded = line("one", group="first group")
    gridded["points"] = [{**gridded["points"][0], "name": f"clip {clip}"} for clip in (1.0, 2.0)]
    made = document(gridded, bare("none"), other_versions=["0.0.1"], stopped=True)
    terminal(figure_blocks(made), Console(file=out, width=80))
    text = out.getvalue().replace("\u202f", " ").replace("\xa0", " ")
    for words in (
        "81.2 % ± 1.5",
        "3.00",
        "not private",
        "+6.58",
        "grid of one",
        "clip 1.0 (shown)",
    ):
        assert words in text
    assert "note: All 4 runs cost <much>." in text
    assert "tacit 0.0.1" in text
    assert "run it again" in text
    assert "…" not in text
