"""Still pictures: every line, band and word of the panels, the same on every machine."""

import re
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from tacit.report.charts import BLUE, RED
from tacit.report.compare_panels import Curve, Panel
from tacit.report.pictures import svg_picture

SVG = "{http://www.w3.org/2000/svg}"
CURVE = Curve(
    name="one & all",
    colour=BLUE,
    dash="solid",
    symbol="circle",
    budget="epsilon 3.00",
    x=(0.0, 1.0, 2.0),
    y=(0.1, 0.5, 0.8),
    low=(0.0, 0.4, 0.7),
    high=(0.2, 0.6, 0.9),
    published=0.75,
)
OTHER = replace(
    CURVE, name="two", colour=RED, symbol="square", budget="", low=(), high=(), published=None
)
PANEL = Panel("steps-0", "a group", "steps", "test_accuracy", False, False, (CURVE, OTHER), ())
EMPTY = replace(PANEL, title="without lines", curves=(), absent=("one",))


def words(picture):
    root = ElementTree.fromstring(picture)
    return ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]


def drawn(picture, colour):
    """The lines of a colour within axes: their paths."""
    root = ElementTree.fromstring(picture)
    return [
        node.attrib["d"]
        for group in root.iter(f"{SVG}g")
        if group.attrib.get("id", "").startswith("axes_")
        for node in group.iter(f"{SVG}path")
        if f"stroke: {colour}" in node.attrib.get("style", "") and "clip-path" in node.attrib
    ]


def places(path):
    numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_picture_holds_every_line_band_and_word():
    picture = svg_picture("Figure <3>", [PANEL, EMPTY], "dotted: published figures")
    assert {"without lines", "There is nothing to draw."}.isdisjoint(words(picture))
    assert {"without lines", "There is nothing to draw."} <= set(words(svg_picture("", [EMPTY])))
    assert {
        "Figure <3>",
        "a group",
        "one & all (epsilon 3.00)",
        "one & all, published",
        "two",
        "steps completed",
        "test accuracy, mean over nodes",
        "dotted: published figures",
        "80 %",
    } <= set(words(picture))
    root = ElementTree.fromstring(picture)
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "Figure <3>"
    mean, printed = drawn(picture, BLUE)
    assert len(drawn(picture, RED)) == 1
    bands = [node.attrib["id"] for node in root.iter(f"{SVG}g") if "id" in node.attrib]
    assert sum(name.startswith("FillBetweenPolyCollection") for name in bands) == 1
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    points = places(mean)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    # The curve rises in proportion: later points lie further right and higher up.
    (_, start), (_, middle), (_, end) = sorted(points)
    assert start > middle > end
    assert (start - middle) / (start - end) == pytest.approx(0.4 / 0.7, abs=1e-3)
    (_, left), (_, right) = places(printed)
    assert left == right
    assert (start - left) / (start - end) == pytest.approx(0.65 / 0.7, abs=1e-3)


def test_a_picture_is_the_same_whatever_the_machine_says():
    first = svg_picture("title", [PANEL])
    with mpl.rc_context({"font.size": 20, "svg.fonttype": "path", "lines.linewidth": 9}):
        assert svg_picture("title", [PANEL]) == first
    assert mpl.rcParams["svg.fonttype"] == mpl.rcParamsDefault["svg.fonttype"]
    assert "dc:date" not in first
    assert "script" not in first


def test_lines_differ_in_more_than_colour():
    """Without colours, they are told apart by their symbols: by eight of them."""
    picture = svg_picture("title", [PANEL])
    root = ElementTree.fromstring(picture)
    symbols = {
        colour: {
            node.attrib["{http://www.w3.org/1999/xlink}href"]
            for node in root.iter(f"{SVG}use")
            if f"fill: {colour}" in node.attrib.get("style", "")
        }
        for colour in (BLUE, RED)
    }
    assert all(symbols.values())
    assert symbols[BLUE].isdisjoint(symbols[RED])


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show():
    curve = replace(CURVE, y=(0.01, 1.0, 100.0), low=(), high=(), published=0.0)
    panel = replace(PANEL, measure="test_loss", log_y=True, curves=(curve,))
    picture = svg_picture("log", [panel])
    assert len(drawn(picture, BLUE)) == 1
    assert "one & all, published" not in words(picture)
    start, middle, end = (y for _, y in sorted(places(drawn(picture, BLUE)[0])))
    assert start - middle == pytest.approx(middle - end, abs=1e-3)


@pytest.mark.parametrize(
    "name", ["$\\alpha_1$ costs $5", "_hidden", "模型", "<script>alert(1)</script>"]
)
def test_names_are_drawn_as_they_are(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = svg_picture(name, [replace(PANEL, curves=(replace(CURVE, name=name),))])
    assert f"{name} (epsilon 3.00)" in words(picture)
    assert "<script" not in picture


def test_numbers_of_logarithmic_axes_are_plain():
    curve = replace(CURVE, x=(0.0501, 0.3, 1.0), y=(5e-3, 0.5, 50.0), low=(), high=())
    swept = replace(
        PANEL, axis="budget", measure="test_loss", log_x=True, log_y=True, curves=(curve,)
    )
    shown = words(svg_picture("budgets", [swept]))
    assert {"0.05", "0.3", "1"} <= set(shown)
    assert {"0.01", "0.1", "10"} <= set(shown)
    assert not [word for word in shown if "$" in word]


def test_bytes_are_written_with_their_unit():
    curve = replace(CURVE, x=(0.0, 1e6, 2e6))
    picture = svg_picture("bytes", [replace(PANEL, axis="bytes", curves=(curve,))])
    assert {"0\N{NO-BREAK SPACE}bytes", "1.00\N{NO-BREAK SPACE}MB"} <= {
        word.replace("\u202f", "\N{NO-BREAK SPACE}").replace(" ", "\N{NO-BREAK SPACE}")
        for word in words(picture)
    }
