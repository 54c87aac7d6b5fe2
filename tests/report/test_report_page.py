import pytest

from tacit.errors import InputError
from tacit.report import write_report
from web_pages import Page


def page_of(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def own_html(folder):
    """Give the page without plotly's own code."""
    return page_of(folder).html


def test_a_private_run_is_told_from_top_to_bottom(write_run):
    text = page_of(write_run()).text
    for words in [
        "Dyn-D2P on digits, 16 nodes",
        "Weak protection: whoever sees everything guesses right with probability 95.3 % at most",
        "Certified epsilon 3.00 at delta 1e-5, the highest of 16 nodes",
        "strong up to 75 %, moderate up to 90 %, weak up to 99 %, next to none above",
        "Poisson-sampled Gaussian, rate 0.356",
        "93.1 %",
        "worst node 91.2 % · consensus 94.6 %",
        "lowest node 2.61 · delta 1e-5",
        "1.20",
        "not run",
        "19.2 MB",
        "42.2 s",
        "add-or-remove-one",
        "“all messages”",
        "gradient norms and clip rates",
        "one record is drawn at each step: does not hold",
        "Claimed 1.20, certified 3.00: the claim is lower than what could be proved",
        "4.21 to 2.73",
        'partition = "iid"',
    ]:
        assert words in text, words
    assert "NOT PRIVATE" not in text
    assert "Stopped" not in text


def test_the_sections_come_in_order(write_run):
    html = own_html(write_run())
    keys = [
        "<h1>",
        'class="banner warn"',
        'class="tiles"',
        "What this epsilon means",
        "What the paper claims",
        'id="accuracy-steps"',
        'id="accuracy-bytes"',
        'id="loss-steps"',
        'id="loss-bytes"',
        'id="epsilon-steps"',
        'id="epsilon-nodes"',
        'id="gradients"',
        'id="noise"',
        'id="consensus"',
        'id="graph"',
        "<table>",
        "<pre>",
    ]
    places = [html.index(key) for key in keys]
    assert places == sorted(places)


def test_every_chart_carries_readable_json_and_a_caption(write_run):
    page = page_of(write_run())
    assert len(page.charts) == 11
    figures = page.charts.values()
    assert all(figure["data"] and figure["layout"]["autosize"] for figure in figures)
    assert page.count("figcaption") == 11


def test_seeded_noise_is_shown_in_red_and_strikes_the_epsilon(write_run):
    folder = write_run({"private": False, "not_private_reason": "seeded noise"})
    html, text = own_html(folder), page_of(folder).text
    assert (
        '<div class="banner bad" role="status"><p class="headline">NOT PRIVATE: seeded noise'
        in html
    )
    assert 'class="tile void"' in html
    assert "does not hold for this run: seeded noise" in text
    assert "protection:" not in text
    assert "right with probability" not in text


@pytest.mark.parametrize("missing", ["epsilon", "delta"])
def test_a_node_without_a_guarantee_makes_the_run_not_private(write_run, missing):
    text = page_of(write_run({missing: [None, *[1e-5] * 15]})).text
    assert "NOT PRIVATE: no epsilon is certified for 1 of 16 nodes" in text
    assert "protection:" not in text


def test_a_run_without_privacy_has_no_epsilon_to_show(star_run):
    text = page_of(star_run).text
    assert "NOT PRIVATE: no noise was added" in text
    assert "No epsilon is certified for this run" in text
    assert "there was no test set" in text
    assert "No epsilon was computed while this run trained." in text
    assert "none was added, or its level was not recorded" in text
    assert "What the paper claims" not in text


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        ("stopped", "Stopped before the end: 120 of 500 steps", "warn"),
        ("budget-exhausted", "a privacy budget was used up: 120 of 500 steps", "warn"),
        ("diverged", "Diverged: a model left the finite numbers: 120 of 500 steps", "bad"),
    ],
)
def test_a_run_that_ended_early_says_so(write_run, status, words, kind):
    folder = write_run({"status": status, "steps": 120, "message": "the reason is this"})
    html = own_html(folder)
    assert words in html
    assert f'class="banner {kind}"' in html
    assert "the reason is this" in html


def test_an_exceeded_budget_is_said_and_marked(write_run):
    folder = write_run({"epsilon_budget": [2.9] * 16, "accounting": "published"})
    html = own_html(folder)
    assert "The certified epsilon exceeds the budget of 4 of 16 nodes" in html
    assert "set by published accounting" in html
    assert html.count('<td class="over"') == 4
    assert '<td class="over"' not in own_html(write_run())


def test_an_epsilon_that_another_process_reported_is_called_its_word(write_run):
    sources = ["own ledger"] * 12 + ["rank 1"] * 4
    html = own_html(write_run({"epsilon_source": sources}))
    assert html.count(", as rank 1 reports</td>") == 4
    assert "reports</td>" not in own_html(write_run({"epsilon_source": ["not asked"] * 16}))
    with pytest.raises(InputError, match="epsilon_source"):
        own_html(write_run({"epsilon_source": sources[1:]}))


def test_an_infinite_claim_is_called_infinite(write_run):
    claim = {"formula": "f", "reading": None, "conditions": [], "infinite": True}
    text = page_of(write_run({"claim": claim, "claimed_epsilon": [None] * 16})).text
    assert "infinite the paper's formula gives no bound here" in text
    assert "Claimed 1.20" not in text


def test_different_deltas_are_bounded_by_the_largest(write_run):
    text = page_of(write_run({"delta": [1e-6, *[2.001e-5] * 15]})).text
    assert "Certified epsilon 3.00 at delta 2.01e-5 or less" in text


@pytest.mark.parametrize(
    ("epsilon", "kind", "words"),
    [
        (
            1.0,
            "good",
            "Strong protection: whoever sees everything guesses right with probability 73",
        ),
        (2.0, "good", "Moderate protection"),
        (3.0, "warn", "Weak protection"),
        (12.0, "bad", "Next to no protection"),
    ],
)
def test_the_banner_says_what_the_weakest_node_is_worth(write_run, epsilon, kind, words):
    page = page_of(write_run({"epsilon": [0.1] * 15 + [epsilon]}))
    assert page.count("div", **{"class": f"banner {kind}"}) == 1
    assert f" {words}" in page.text


def test_an_epsilon_beyond_all_meaning_is_said_in_words(write_run):
    page = page_of(write_run({"epsilon": [4.14e289] * 16, "claimed_epsilon": [2e52] * 16}))
    assert "e289" not in page.text
    assert "e52" not in page.text
    assert "An epsilon of more than 1,000 is no protection." in page.text
    assert "this is no protection" in page.text
    assert "this would be no protection" in page.text
    assert "Next to no protection" in page.text
    assert "An epsilon of" not in page_of(write_run()).text


def test_all_series_may_be_null(write_run):
    keys = [
        "test_accuracy",
        "test_loss",
        "train_loss",
        "consensus_distance",
        "gradient_norm",
        "clip",
        "clip_rate",
        "noise_std",
        "epsilon",
        "claimed_epsilon",
        "bytes_sent",
        "seconds",
    ]
    text = page_of(write_run(metrics=[{"step": 1, **dict.fromkeys(keys)}])).text
    assert "The consensus distance was not recorded." in text
    assert "No gradient norms were recorded." in text


def test_without_measurements_the_page_is_written(write_run):
    text = page_of(write_run(metrics=[])).text
    assert text.count("Nothing was measured in this run.") == 7
    assert "Certified epsilon 3.00" in text


def test_the_page_replaces_an_older_one_and_leaves_nothing_else(write_run):
    folder = write_run()
    (folder / "report.html").write_text("old")
    assert write_report(folder) == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "report.html",
        "result.json",
    ]
    first = (folder / "report.html").read_bytes()
    write_report(folder)
    assert (folder / "report.html").read_bytes() == first


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path):
    with pytest.raises(InputError, match=r"result\.json"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


TRUST = {
    "colluding": 1,
    "nodes_by_process": [16],
    "absent": [],
    "own": [0.1] * 16,
    "expected_batch": [32.0] * 16,
    "pairs": [[node, node + 1] for node in range(15)],
    "deviation": 0.4,
    "epsilon_by_colluders": [[1.234] * 16, [2.9912] * 16, [4.5] * 15 + [5.678]],
}


def test_a_trust_model_that_counts_on_others_is_explained(write_run):
    changes = {"trust_model": "pairwise", "trust": TRUST}
    text = page_of(write_run(changes)).text
    for words in (
        "A simulation of its trust model",
        "Whom this rests on",
        "Certified epsilon by number of colluders",
        "even if any 1 other node gives away",
        "poisoning",
        "1.24",
        "5.68",
    ):
        assert words in text
    apart = page_of(write_run({**changes, "trust": {**TRUST, "nodes_by_process": [1] * 16}})).text
    assert "simulation" not in apart
    assert "X25519" in apart


def test_a_trust_model_without_others_has_no_such_part(write_run):
    text = page_of(write_run({"trust_model": "all-messages"})).text
    assert "Whom this rests on" not in text
    assert "the observer sees every message of every node" in text
