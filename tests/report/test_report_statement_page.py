"""The page of a statement: everything that is stated, for people, in one file."""

import pytest

from tacit.report.statement_page import statement_page
from web_pages import Page

DATA_LEDGER = {
    "runs": [],
    "nodes": [
        {
            "data": "mine",
            "releases": [{"run": "ab12", "node": 0, "data": "mine", "steps": 9}],
            "epsilon": 2.5,
            "delta": 1e-5,
            "epsilon_budget": 3.0,
        }
    ],
    "files": [{"file": "data-mine.sqlite", "head": "the head", "public_key": "the key"}],
}


def document(**changes):
    """A statement on three nodes, of which two are alike."""
    release = {"run": "ab12", "mechanism": 0, "charged": [[0, 50, 1]], "steps": 50}
    nodes = [
        {"node": node, "records": records, "signal_share": records / 1380}
        | {"epsilon": epsilon, "delta": 1e-5}
        | {"budget": 2.0, "claimed": claimed, "audited": None}
        for node, records, epsilon, claimed in (
            (0, 90, 1.9901, 0.5),
            (1, 90, 1.9901, 0.5),
            (2, 1200, 1.2, None),
        )
    ]
    content = {
        "date": "2026-01-02T03:04:05+00:00",
        "tacit_version": "9.8.7",
        "run": {
            "run": "ab12",
            "created": "2026-01-01T00:00:00+00:00",
            "tacit_version": "9.8.6",
            "plan_digest": "plan-digest",
            "ledger_head": "ledger-head",
            "ledger_key": "ledger-key",
            "status": "done",
        },
        "algorithm": {"name": "privsgp", "title": "PrivSGP", "paper": "A paper"},
        "task": {"dataset": "digits", "model": "logistic", "loss": "mse", "parameters": 1234},
        "accounting": "certified",
        "relation": {"name": "replace-one", "meaning": "the relation's meaning"},
        "unit": {"name": "record", "meaning": "the unit's meaning"},
        "trust_model": {"name": "all-messages", "meaning": "the observer's meaning"},
        "epsilon_meaning": "the meaning of epsilon",
        "claim": {"formula": "eps = 1", "infinite": False},
        "audit": None,
        "nodes": nodes,
        "mechanisms_in_words": ["the first mechanism", "the second mechanism"],
        "ledger": {
            "nodes": [
                {"node": 0, "releases": [release]},
                {"node": 1, "releases": [release]},
                {"node": 2, "releases": [{**release, "mechanism": 1, "steps": 1234}]},
            ]
        },
        "curve": {
            "node": 0,
            "right_guess": 0.75,
            "epsilons": [[1e-4, 1.5], [1e-8, None]],
            "errors": [[0.01, 0.91239]],
            "mu": 0.7771,
        },
        "declared": {"purpose": "To warn <early>"},
        "software": {"tacit": "9.8.7"},
        "data_ledger": None,
        "assumptions": ["an assumption", "another one"],
        "not_covered": ["a gap"],
        "digest": "statement-digest",
    }
    return {**content, **changes}


def page_of(content):
    return Page(statement_page(content), has_charts=False)


def test_the_page_says_everything():
    page = page_of(document())
    for words in (
        "PrivSGP on digits, 3 nodes",
        "Moderate protection: whoever sees everything guesses right with probability 88.0 % at",
        "Certified: epsilon 2.00 at delta 1e-5, the highest of all nodes",
        "Relation replace-one, unit one record, trust model all-messages",
        "the relation's meaning",
        "the unit's meaning",
        "the observer's meaning",
        "the meaning of epsilon",
        "an assumption",
        "another one",
        "a gap",
        "1,234 parameters",
        "plan-digest",
        "ledger-head",
        "ledger-key",
        "statement-digest",
        "tacit 9.8.7",
        "2026-01-02",
        "tacit privacy check statement.json",
        "Name and office",
        "Place and date",
        "Signature",
    ):
        assert words in page.text, words


def test_nodes_that_are_alike_share_a_row_and_nothing_is_rounded_down():
    rows = page_of(document()).rows
    alike = next(row for row in rows if row[0] == "0-1" and len(row) == 8)
    # (1 + delta e^-eps) / (1 + e^-eps) at 1.9901 is 0.87975, a share that is rounded up.
    assert alike == ["0-1", "90", "6.5%", "88.0\u202f%", "2.00", "1e-5", "2", "not run"]
    other = next(row for row in rows if row[0] == "2" and len(row) == 8)
    assert other[1] == "1,200"
    assert other[4:6] == ["1.20", "1e-5"]
    assert ["0-1", "the first mechanism; 50 steps charged"] in rows
    assert ["2", "the second mechanism; 1,234 steps charged"] in rows


def test_what_is_declared_stands_beside_what_is_computed():
    page = page_of(document())
    for words in (
        "To warn <early>",
        "not declared",
        "0.778, but for events of weight 1e-5",
        "1.50 at 1e-4",
        "cannot be known from here",
        "docs/concepts/epsilon-for-a-lawyer.md",
    ):
        assert words in page.text, words
    assert ["1\u202f%", "91.2\u202f%"] in page.rows
    assert "claimed" not in page.text


def test_each_site_has_a_block_to_sign_with_what_was_verified():
    nodes = [{**row, "name": name} for row, name in zip(document()["nodes"], "xyz", strict=True)]
    nodes[0]["organisation"] = "X House"
    sites = [{"name": name, "rank": 0, "fingerprint": f"key of {name}"} for name in "xy"]
    content = document(nodes=nodes, sites=sites, consortium="a consortium")
    page = page_of(content)
    assert ["x", "X House", "key of x"] in page.rows
    assert ["y", "not declared", "key of y"] in page.rows
    assert page.text.count("Signature of ") == 2
    signed = Page(statement_page(content, {"x": "signed", "q": "NOT VALID"}), has_charts=False)
    assert "Signature of q" in signed.text
    assert "NOT VALID" in signed.text


@pytest.mark.parametrize(
    ("epsilon", "kind"), [(0.5, "good"), (2.0, "good"), (4.0, "warn"), (8.0, "bad"), (1e52, "bad")]
)
def test_the_banner_is_green_only_where_there_is_protection(epsilon, kind):
    weakest = {**document()["nodes"][0], "epsilon": epsilon}
    page = page_of(document(nodes=[weakest]))
    assert page.count("div", **{"class": f"banner {kind}"}) == 1
    assert ("more than 1,000 is no protection" in page.text.replace("\u00a0", " ")) == (
        epsilon > 1000
    )


def test_all_runs_on_the_data_are_shown():
    assert "All runs on the same data" not in statement_page(document())
    releases = [
        {"run": "ab12", "node": 7, "data": "other", "steps": 3},
        {"run": "cd34", "node": 8, "data": "mine", "steps": 5},
        {"run": "ef56", "node": 9, "data": "mine", "steps": 0},
    ]
    rows = [
        {
            "data": "mine",
            "releases": [*releases, {"run": "ab12", "node": node, "data": "mine", "steps": 9}],
            "epsilon": 2.5001,
            "delta": 1e-5,
            "epsilon_budget": 3.0,
        }
        for node in (0, 1)
    ]
    runs = [{"run": "ab12", "unit": "column:patient"}, {"run": "cd34"}]
    ledger = {"nodes": rows, "files": DATA_LEDGER["files"] * 14, "runs": runs}
    page = page_of(document(data_ledger=ledger))
    # The nodes are those of this run, whatever numbers others gave them.
    assert ["0-1", "2", "2.51", "1e-5", "3"] in page.rows
    assert "data-mine.sqlite: head the head, key the key" in page.text
    assert "and 2 more, in statement.json" in page.text


def test_the_page_is_fit_for_print():
    page = page_of(document())
    assert page.scripts == []
    assert "@media print" in page.html
    assert len(page.html) < 40_000
