"""The page of an optimised plan, from its document alone."""

import copy

import pytest

from tacit.report.html import html
from tacit.report.optimise_page import optimise_blocks
from web_pages import Page


def choice(steps, bound, **changes):
    return {
        "bound": bound,
        "clipping_bias": None,
        "steps": steps,
        "batch": 100,
        "clip": 0.5,
        "noise_multiplier": 1.5,
        "noise_std": 0.05,
        "accumulated_noise": 0.001,
        "over_least_noise": 1.7,
        "record_gradients": 100.0 * steps,
        **changes,
    }


DOCUMENT = {
    "algorithm": "privsgp",
    "title": "PrivSGP",
    "dataset": "digits",
    "model": "logistic",
    "nodes": 16,
    "records": [89, 90],
    "budgets": [[0.5, 1e-5], [3.0, 1e-4]],
    "parameters": 650,
    "relation": "add-or-remove-one",
    "sampling": "poisson",
    "constants": [
        {"name": "L", "value": 1.159, "kind": "public", "how": "a lower estimate", "private": True}
    ],
    "warning": None,
    "as_is": choice(50, 2.652),
    "certified": choice(39, 2.634),
    "published": {
        "exact": 6.41,
        "steps": 6,
        "bound": 6.539,
        "noise_std": 0.0414,
        "gradient_bound": 0.5,
        "c2": 1.0,
        "certified": choice(6, 3.891),
        "one_record": choice(6, 117.0, batch=1),
    },
    "curve": [choice(4, 4.556), choice(39, 2.634), choice(288, 4.045)],
    "claimed_curve": [{"steps": 4, "bound": 6.8}, {"steps": 6, "bound": 6.539}],
    "batches": [],
    "clips": [],
    "theorem": {"least_steps": 7.8e13, "excluded": True},
    "purchases": [{"change": "one more node", **choice(50, 2.573)}],
    "learning_rate": 0.64,
    "flags": ["--set train.steps=39"],
    "advice": ["larger batches first: <much> wasted"],
    "not_modelled": ["momentum is left out"],
}


def page_of(document):
    return Page(html(optimise_blocks(document)))


def test_the_page_tells_the_plan():
    html = page_of(DOCUMENT).html
    for words in (
        "PrivSGP on digits, 16 nodes",
        "budgets (0.5, 1e-05), (3, 0.0001), add-or-remove-one, poisson sampling",
        "<code>--set train.steps=39</code>",
        "39 steps",
        "bound 2.63",
        "K* = 6.41; claimed bound 6.54",
        "one more node",
        "larger batches first: &lt;much&gt; wasted",
        "momentum is left out",
        "a lower estimate",
        "650",
    ):
        assert words in html
    assert "NOT PRIVATE" not in html


def test_both_optima_are_marked_on_both_curves():
    figures = page_of(DOCUMENT).charts
    assert set(figures) == {"bound", "waste"}
    traces = {trace["name"]: (trace["x"], trace["y"]) for trace in figures["bound"]["data"]}
    assert traces == {
        "claimed noise, one record a step": ([4, 6], [6.8, 6.539]),
        "certified noise, the file's batch": ([4, 39, 288], [4.556, 2.634, 4.045]),
        "published optimum": ([6], [6.539]),
        "certified optimum": ([39], [2.634]),
        "as it stands": ([50], [2.652]),
        "published steps, certified noise": ([6], [3.891]),
    }
    axes = figures["bound"]["layout"]
    assert axes["xaxis"]["type"] == axes["yaxis"]["type"] == "log"
    waste = {trace["name"]: trace["y"] for trace in figures["waste"]["data"]}
    assert waste == {"the file's batch": [1.7, 1.7, 1.7], "as it stands": [1.7]}


def test_noise_that_is_the_least_at_every_step_is_not_drawn():
    document = copy.deepcopy(DOCUMENT)
    for row in (*document["curve"], document["as_is"]):
        row["over_least_noise"] = 1.0
    assert set(page_of(document).charts) == {"bound"}


def test_chosen_batches_and_clips_are_drawn():
    document = copy.deepcopy(DOCUMENT)
    document["batches"] = [choice(9, 3.0, batch="all"), choice(10, 4.0, batch=3)]
    document["clips"] = [
        choice(39, 2.0, clip=0.5, clipping_bias=7.0),
        choice(11, 5.0, clip=1.0, clipping_bias=1.0),
    ]
    document["certified"] = choice(11, 5.0, batch="all", clip=1.0, clipping_bias=1.0)
    page = page_of(document)
    assert "bound 5.00, clipping bias 1.00" in page.text
    figures = page.charts
    (batches,) = figures["batches"]["data"]
    assert batches["text"] == ["batch all, 9 steps", "batch 3, 10 steps"]
    assert (batches["x"], batches["y"]) == ([900.0, 1000.0], [3.0, 4.0])
    both, alone = figures["clips"]["data"]
    assert (both["x"], both["y"], alone["y"]) == ([0.5, 1.0], [9.0, 6.0], [2.0, 5.0])
    names = [trace["name"] for trace in figures["bound"]["data"]]
    assert "certified optimum (batch all, clip 1.0)" in names


def test_private_constants_are_a_red_banner():
    document = copy.deepcopy(DOCUMENT)
    document["warning"] = "constants were read off the nodes' own records"
    document["constants"][0] |= {"kind": "private", "private": False}
    page = page_of(document)
    assert page.count("div", **{"class": "banner bad"}) == 1
    assert "NOT PRIVATE: constants were read off the nodes' own records" in page.text
    assert "PRIVATE RECORDS, not covered by epsilon" in page.text


@pytest.mark.parametrize("key", ["certified", "one_record"])
def test_what_could_not_be_computed_is_left_out(key):
    document = copy.deepcopy(DOCUMENT)
    document["published"][key] = None
    document["advice"], document["flags"] = [], []
    page = page_of(document)
    assert "<h2>Advice</h2>" not in page.html
    names = [trace["name"] for trace in page.charts["bound"]["data"]]
    assert ("published steps, certified noise" in names) == (key != "certified")
