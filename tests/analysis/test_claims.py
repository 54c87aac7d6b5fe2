"""`tacit privacy claims`: of the papers, and of an experiment."""

import json
import math
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from experiments import strict_json, write_experiment
from tacit.analysis import claims
from tacit.analysis.claims import claims_document, verdict
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.published import paper_settings
from tacit.report.claims_page import claims_blocks
from tacit.report.documents.base import dump
from tacit.report.html import html
from tacit.report.terminal import terminal
from tacit.training.prepare import prepare

Row = dict[str, Any]


# One experiment of each, of those that take no second.
SAMPLE = (
    "MNIST, n = 50, K = 575 = K*",
    "MNIST, n = 50, ring",
    "CIFAR-10, n = 8 to 64",
    "CIFAR-10, n = 20, K = 1000, eps = 1",
    "MNIST, n = 20, T = 1000, eps = 1, p = 1, k/d = 1",
    "epsilon set, n = 20",
    "Adult, K = 100 of 100, total",
    "Adult, eps = 1 a round",
    "MNIST, n = 16, T = 1000, eps = 1, one record",
    "a9a, n = 16, T = 2000, eps = 3, a user",
)


def is_sample(setting):
    """Whether the setting is of the sample; Dyn-D2P's many noise levels are not."""
    growing = setting.algorithm.startswith("Dyn-D2P, Dyn[mu]")
    return setting.experiment.startswith(SAMPLE) and not growing


@pytest.fixture(scope="module")
def papers():
    with pytest.MonkeyPatch.context() as patch:
        sample = tuple(filter(is_sample, paper_settings()))
        patch.setattr(claims, "paper_settings", lambda: sample)
        return document_of()


def document_of(*arguments):
    """The document as its JSON has it."""
    return strict_json(dump(claims_document(*arguments)))


def printed(document, width):
    """What is printed on a terminal of a width."""
    out = StringIO()
    terminal(claims_blocks(document), Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize(
    ("claimed", "lower", "certified", "missing", "expected"),
    [
        (1.0, 1.1, 2.0, "", "does not hold"),
        (1.0, 1.0, 2.0, "", "not shown"),
        (1.0, None, 1.0, "", "holds"),
        (1.0, None, 1.1, "", "not shown"),
        (1.0, None, math.inf, "", "not shown"),
        (math.inf, 3.0, 4.0, "", "holds"),
        (1.0, None, None, "K is not printed", "not determined"),
        (None, 1.0, 2.0, "", "no claim"),
        (None, None, None, "K is not printed", "not determined"),
    ],
)
def test_verdict(claimed, lower, certified, missing, expected):
    assert verdict(claimed, lower, certified, missing) == expected


def test_every_row_is_consistent(papers):
    assert papers["rows"]
    for row in papers["rows"]:
        if row["lower"] is not None and row["certified"] is not None:
            assert row["lower"] <= row["certified"], row
        assert row["violated"] == [c["text"] for c in row["conditions"] if not c["holds"]]
        assert row["certified"] is not None or row["certified_infinite"] or row["missing"]
        if row["verdict"] == "does not hold":
            assert row["lower"] > row["claimed"]
    json.dumps(papers, allow_nan=False)


def test_what_the_papers_claim_and_what_holds(papers):
    """Privacy lost under the kindest reading; nothing is said against what is not claimed."""
    verdicts = {}
    for row in papers["rows"]:
        if row["kindest"]:
            verdicts.setdefault(row["algorithm"], set()).add(row["verdict"])
    assert verdicts["PrivSGP-VR"] == {"does not hold"}
    assert "does not hold" in verdicts["PrivSGP"]
    assert verdicts["Const-D2P, Dyn[C]-D2P"] == {"does not hold"}
    assert verdicts["Dyn-D2P, general form"] == {"does not hold"}
    assert verdicts["DO-ADP"] == {"holds"}
    assert "does not hold" in verdicts["FedSPD-DP"]
    assert verdicts["DECOR"] == {"does not hold", "holds"}  # of one record, and of a user
    assert verdicts["DP2-SGD"] == verdicts["DP-FedAvg"] == {"no claim"}
    assert verdicts["CPGT"] == verdicts["DPDO"] == {"not determined"}


@pytest.mark.parametrize("width", [60, 110])
def test_a_narrow_terminal_folds_and_shortens_nothing(papers, width):
    few = {**papers, "rows": [row for row in papers["rows"] if row["algorithm"] == "PrivSGP"]}
    text = printed(few, width)
    assert "…" not in text
    assert "5.65" in text
    assert "eps < c1 K / J^2" in " ".join(text.split())


def test_the_table_names_every_algorithm(papers):
    text = " ".join(printed(papers, 140).split())
    for row in papers["rows"]:
        assert f"{row['algorithm']} ({row['paper']})" in text
        assert row["verdict"] in text


def test_the_page_holds_every_section(papers):
    page = html(claims_blocks(papers))
    algorithms = {row["algorithm"] for row in papers["rows"]}
    assert page.count("<section>") >= len(algorithms)
    assert page.count("<tr>") >= len(papers["rows"])


def test_the_plan_of_an_experiment(tmp_path):
    file = write_experiment(
        tmp_path, privacy={"noise_std": None, "epsilon": [1.0, 1.0, 2.0, 2.0], "delta": 1e-5}
    )
    document = document_of(file)
    plan = prepare(load_config(file)).plan
    groups = {(node.records, node.budget): node for node in reversed(plan.nodes)}
    nodes = sorted(groups.values(), key=lambda node: node.node)
    assert 1 < len(nodes) == len(document["rows"])
    for row, node in zip(document["rows"], nodes, strict=True):
        assert f"J = {node.records}, K = 6" in row["experiment"]
        assert row["certified"] == node.epsilon
        assert row["claimed"] == node.claimed
        assert row["certified"] <= node.budget
        assert row["lower"] == pytest.approx(row["certified"], rel=1e-5)
        assert row["noise_multiplier"][0] == pytest.approx(plan.release.noise_multiplier(node, 0))
        assert "printed for one record a step" in row["violated"][-1]
        assert row["relation"] == "add-or-remove-one"


def test_overrides_and_sampling(tmp_path):
    file = write_experiment(tmp_path)
    document = document_of(file, ["train.batch=32", "train.steps=3", "privacy.delta=1e-4"])
    row = document["rows"][0]
    assert "Poisson-sampled Gaussian" in row["mechanism"]
    assert "3 steps" in row["mechanism"]
    assert row["delta"] == 1e-4
    assert row["lower"] <= row["certified"] <= row["lower"] * 1.02


def test_no_noise_is_not_determined(tmp_path):
    file = write_experiment(
        tmp_path, privacy={"epsilon": "none", "noise_std": None, "noise_seed": None}
    )
    document = document_of(file)
    assert {row["verdict"] for row in document["rows"]} == {"not determined"}
    assert "no noise is" in " ".join(printed(document, 100).split())
    html(claims_blocks(document))


def test_brackets_are_printed(papers):
    """What looks like the terminal's markup is a name: Dyn[mu], [privacy].published_constant."""
    words = {
        "algorithm": "Dyn-D2P, Dyn[mu]-D2P",
        "reading": "c2 is [privacy].x",
        "experiment": "[red]",
    }
    row = {**papers["rows"][0], **words}
    text = printed({**papers, "rows": [row]}, 200)
    for word in words.values():
        assert word in text


def test_an_infinite_claim_is_null_and_said(tmp_path):
    file = write_experiment(
        tmp_path, algorithm={"name": "const-d2p"}, privacy={"noise_std": 1e-4, "noise_seed": 7}
    )
    for row in document_of(file)["rows"]:
        assert row["claimed"] is None
        assert row["claimed_infinite"]


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match="missing"):
        claims_document(tmp_path / "missing.toml")
    with pytest.raises(InputError):
        claims_document(None, ["train.steps=3"])
