"""What ledgers say: every epsilon recomputed from the files alone, and from the document alone."""

from __future__ import annotations

import json
import math
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from experiments import strict_json
from tacit import books
from tacit.books import confirm, ledger_document, ledger_table, mechanism_words, node_list
from tacit.errors import InputError
from tacit.privacy import (
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    PrivateState,
    SampledGaussian,
    epsilon,
    from_statement,
    to_statement,
)
from tacit.privacy.ledger import Ledger, NodeStatement, read_ledger
from tacit.privacy.ledger_shared import SharedLedgers, WantedAccount

MECHANISMS = (Gaussian(9.0, 20), Gaussian(6.0, 20), Gaussian(9.0, 20))
BUDGETS = (2.0, 3.0, None)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A run's ledger on three nodes: 12 steps, of which 4 were repeated after a kill."""
    path = tmp_path / "ledger.sqlite"
    statements = [
        NodeStatement(node, to_statement(mechanism), budget, 1e-5)
        for node, (mechanism, budget) in enumerate(zip(MECHANISMS, BUDGETS, strict=True))
    ]
    with Ledger.create(path, digest="plan", statements=statements) as ledger:
        ledger.reserve(0, 10)
    with Ledger.open(path, digest="plan") as ledger:
        ledger.reserve(6, 16)
        ledger.settle(12)
    return path


def share(folder: Path, run: str, mechanism: Mechanism, steps: int, nodes: int = 11) -> None:
    """A run on the ledgers of its nodes' data."""
    wanted = [WantedAccount(node, None, None, 4.0, 1e-5) for node in range(nodes)]
    with SharedLedgers.open(folder, wanted) as shared:
        statements = dict.fromkeys(range(nodes), to_statement(mechanism))
        shared.enter(run, digest=f"plan of {run}", statements=statements, sent={})
        shared.reserve(0, 20)
        shared.settle(steps)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The ledgers of eleven nodes' data, on which two runs were made."""
    folder = tmp_path / "books"
    share(folder, "one", MECHANISMS[0], 20)
    share(folder, "two", MECHANISMS[1], 5)
    return folder


def gaussian_delta(epsilon: float, mu: float) -> float:
    low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high))


def test_a_runs_ledger_is_recomputed(own: Path) -> None:
    document = ledger_document(own)
    assert document["path"] == str(own)
    (file,), (run,) = document["files"], document["runs"]
    with Ledger.open(own, digest=None) as ledger:
        assert run["run"] == ledger.run_id
    assert run["plan_digest"] == "plan"
    assert file["file"] == "ledger.sqlite"
    assert file["digest"] == read_ledger(own).head
    assert [from_statement(one) for one in document["mechanisms"]] == [*MECHANISMS[:2]]
    for node, z in enumerate((9.0, 6.0, 9.0)):
        row = document["nodes"][node]
        (release,) = row["releases"]
        assert (row["node"], row["file"], row["delta"]) == (node, "ledger.sqlite", 1e-5)
        assert release["charged"] == [[0, 6, 1], [6, 10, 2], [10, 12, 1]]
        assert release["steps"] == 16
        assert release["epsilon"] == row["epsilon"]
        assert gaussian_delta(row["epsilon"], 4 / z) == pytest.approx(1e-5, rel=1e-6)
        budget = BUDGETS[node]
        assert row["left"] == (None if budget is None else budget - row["epsilon"])


def test_a_folder_of_ledgers_is_composed_over_runs(shared: Path) -> None:
    document = ledger_document(shared)
    assert [row["node"] for row in document["nodes"]] == list(range(11))
    assert [file["file"] for file in document["files"]][:3] == [
        "node-0.sqlite", "node-1.sqlite", "node-2.sqlite",
    ]  # fmt: skip
    assert [run["run"] for run in document["runs"]] == ["one", "two"]
    mu = math.sqrt(20 / 9.0**2 + 5 / 6.0**2)
    for row in document["nodes"]:
        assert [release["steps"] for release in row["releases"]] == [20, 5]
        assert gaussian_delta(row["epsilon"], mu) == pytest.approx(1e-5, rel=1e-6)
        assert row["epsilon"] < sum(release["epsilon"] for release in row["releases"])
        assert row["left"] == 4.0 - row["epsilon"]


def test_one_file_of_a_folder_and_a_run_folder_are_read(shared: Path, own: Path) -> None:
    (row,) = ledger_document(shared / "node-7.sqlite")["nodes"]
    assert row == ledger_document(shared)["nodes"][7]
    assert ledger_document(own.parent)["nodes"] == ledger_document(own)["nodes"]


def test_reading_changes_nothing(shared: Path) -> None:
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    assert ledger_document(shared) == ledger_document(shared)
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == before


def test_a_run_that_goes_on_is_left_alone(shared: Path) -> None:
    wanted = [WantedAccount(3, None, None, None, 1e-5)]
    with SharedLedgers.open(shared, wanted) as running:
        statements = {3: to_statement(MECHANISMS[0])}
        running.enter("three", digest="d", statements=statements, sent={})
        with pytest.raises(InputError, match=r"node-3\.sqlite.*one is running it now"):
            ledger_document(shared)
        running.reserve(0, 4)
    assert ledger_document(shared)["nodes"][3]["releases"][2]["steps"] == 4


def test_what_is_no_ledger_is_refused(tmp_path: Path, own: Path) -> None:
    with pytest.raises(InputError, match="the file of an existing ledger"):
        ledger_document(tmp_path / "missing.sqlite")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"FILE = .*a folder with node-0\.sqlite"):
        ledger_document(tmp_path / "empty")
    own.write_bytes(own.read_bytes()[:-600])
    with pytest.raises(InputError, match="ledger"):
        ledger_document(own)


def test_an_epsilon_that_is_not_finite_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "cost", lambda mechanism, delta: math.inf)
    path = tmp_path / "ledger.sqlite"
    statement = to_statement(MECHANISMS[0])
    rows = [
        NodeStatement(0, statement, 1.0, 1e-5),
        NodeStatement(1, statement, None, None),
    ]
    with Ledger.create(path, digest="plan", statements=rows) as ledger:
        ledger.reserve(0, 3)
    document = ledger_document(path)
    first, second = document["nodes"]
    assert (first["epsilon"], first["left"]) == (None, 0.0)
    assert (second["epsilon"], second["left"]) == (None, None)
    confirm(document)
    out = printed(document)
    assert "infinite" in out


# The document proves itself.


def test_a_document_confirms_itself(own: Path, shared: Path) -> None:
    for path in (own, shared):
        document = strict_json(json.dumps(ledger_document(path)))
        confirm(document)
        confirm({**document, "tacit_version": "0.0.1"})


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda row: row.update(epsilon=row["epsilon"] - 0.01), "epsilon of node 1"),
        (lambda row: row.update(epsilon=row["epsilon"] + 0.01), "epsilon of node 1"),
        (lambda row: row.update(epsilon=None), "epsilon of node 1"),
        (lambda row: row.update(left=2.0), "left of node 1"),
        (lambda row: row.update(delta=1e-4), "epsilon of node 1"),
        (lambda row: row.update(releases=row["releases"][:1]), "epsilon of node 1"),
        (lambda row: row["releases"][1].update(charged=[[0, 4, 1]]), "epsilon of node 1"),
        (lambda row: row["releases"][1].update(steps=4), "steps of run two at node 1"),
        (lambda row: row["releases"][1].update(mechanism=0), "epsilon of node 1"),
        (lambda row: row["releases"][1].update(mechanism=9), "a whole document"),
        (lambda row: row["releases"][1].update(charged=[[0, 99, 1]]), "must lie below 20"),
        (lambda row: row["releases"][1].update(charged="all"), "a whole document"),
        (lambda row: row.pop("epsilon"), "epsilon of node 1"),
        (lambda row: row.pop("releases"), "a whole document"),
    ],
)
def test_an_edited_document_is_refused(shared: Path, edit: Any, said: str) -> None:
    document = ledger_document(shared)
    confirm(document)
    edited = deepcopy(document)
    edit(edited["nodes"][1])
    with pytest.raises(InputError, match=said):
        confirm(edited)


def test_edited_mechanisms_are_refused(own: Path) -> None:
    document = ledger_document(own)
    document["mechanisms"][0]["noise_multiplier"] = [[9.1, 20]]
    with pytest.raises(InputError, match="epsilon of node 0"):
        confirm(document)
    document["mechanisms"][0]["kind"] = "magic"
    with pytest.raises(InputError, match="magic"):
        confirm(document)
    with pytest.raises(InputError, match="a whole document"):
        confirm({})


# For people.


def printed(document: Any) -> str:
    out = StringIO()
    with redirect_stdout(out):
        ledger_table(document)
    return out.getvalue()


def test_the_table_groups_nodes(shared: Path, own: Path) -> None:
    out = printed(ledger_document(shared))
    assert "0-10" in out
    assert "one" in out
    total = ledger_document(shared)["nodes"][0]["epsilon"]
    assert f"{math.ceil(100 * total) / 100:.2f}" in out
    assert "do not add up" in " ".join(out.split())
    assert "noise multiplier 9.00" in " ".join(printed(ledger_document(own)).split())


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([], ""), ([4], "4"), ([0, 1, 2, 5], "0-2, 5"), ([3, 1, 2, 7, 8], "1-3, 7-8")],
)
def test_node_numbers_are_listed_in_ranges(numbers: list[int], said: str) -> None:
    assert node_list(numbers) == said


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (Gaussian(2.0, 3), "every record at every step, noise multiplier 2.00, 3 steps"),
        (SampledGaussian(0.1, [1.0, 2.0]), "probability 0.100 (Poisson sampling), noise multiplier "
         "1.00 to 2.00, 2 steps"),
        (FixedBatchGaussian(3, 4000, 2.0, 1), "3 of 4,000 records, drawn without replacement"),
        (Laplace(2.0, 3, 0.5), "Laplace noise"),
        (PrivateState(0.1, 2.0, 0.5, 3.0, 7), "at most 2.00 clipping bounds then and 0.500 at any"),
        (Composed([Gaussian(2.0, 3), SampledGaussian(0.5, 1.0, 2)]), "; then Gaussian noise on"),
        (ClientSampling(Gaussian(2.0, 1), 0.5, 9), "9 rounds, in each of which a client takes part "
         "with probability 0.500 and then releases: Gaussian"),
    ],
)  # fmt: skip
def test_every_mechanism_has_words(mechanism: Mechanism, said: str) -> None:
    assert said in mechanism_words(mechanism)


def test_the_figure_is_that_of_the_accountant(tmp_path: Path) -> None:
    """Sampled batches: the books give what the accountant gives for the planned mechanism."""
    mechanism = SampledGaussian(0.1, [1.0 + 0.1 * step for step in range(20)])
    share(tmp_path / "books", "one", mechanism, 20, nodes=1)
    (row,) = ledger_document(tmp_path / "books")["nodes"]
    assert row["epsilon"] == epsilon(mechanism, delta=1e-5)
