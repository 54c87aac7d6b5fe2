"""What ledgers say: every epsilon recomputed from the files alone, and from the document alone."""

import json
import math
import shutil
from copy import deepcopy

import numpy as np
import pytest

from experiments import strict_json
from planning_cases import gaussian_delta
from tacit.analysis import ledger_report as ledgers
from tacit.analysis.ledger_report import check_contained, node_list
from tacit.errors import InputError
from tacit.privacy import Gaussian, SampledGaussian, epsilon, from_statement, to_statement
from tacit.privacy.ledger.ledger import Ledger, NodeStatement, read_ledger
from tacit.privacy.ledger.shared import (
    SharedLedgers,
    WantedAccount,
    account_file,
    account_files,
    folder_key,
)
from tacit.report.documents.base import dump, read
from tacit.report.documents.ledger import LedgerReport

MECHANISMS = (Gaussian(9.0, 20), Gaussian(6.0, 20), Gaussian(9.0, 20))
BUDGETS = (2.0, 3.0, None)


@pytest.fixture
def own(tmp_path):
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


def ledger_document(path, run=None):
    """What ledgers say, as its JSON has it."""
    return strict_json(dump(ledgers.ledger_document(path, run)))


def confirm(document):
    """Confirm what stands in a JSON."""
    ledgers.confirm(read(LedgerReport, document, "a whole document"))


def files_of(path):
    return ledgers.ledger_document(path).files


def share(folder, run, mechanism, steps, nodes=7, by=10):
    """A run on the ledgers of its nodes' data, each of which has `by` records."""
    folder_key(folder)
    wanted = [
        WantedAccount(
            node,
            (f"node {node}",),
            np.arange(by * node, by * (node + 1), dtype=np.uint64),
            None,
            None,
            4.0,
            1e-5,
        )
        for node in range(nodes)
    ]
    with SharedLedgers.open(folder, wanted, session=run) as shared:
        statements = dict.fromkeys(range(nodes), to_statement(mechanism))
        shared.enter(run, digest=f"plan of {run}", statements=statements, sent={})
        shared.reserve(0, 20)
        shared.settle(steps)


@pytest.fixture
def shared(tmp_path):
    """The ledgers of seven nodes' data, on which two runs were made."""
    folder = tmp_path / "ledgers"
    share(folder, "one", MECHANISMS[0], 20)
    share(folder, "two", MECHANISMS[1], 5)
    return folder


def test_a_runs_ledger_is_recomputed(own):
    document = ledger_document(own)
    assert document["path"] == str(own)
    (file,), (run,) = document["files"], document["runs"]
    with Ledger.open(own, digest=None) as ledger:
        assert run["run"] == ledger.run_id
    assert run["plan_digest"] == "plan"
    assert file["file"] == "ledger.sqlite"
    snapshot = read_ledger(own)
    assert (file["head"], file["public_key"]) == (snapshot.head, snapshot.public_key)
    assert file["of"] == f"run {run['run']}, nodes 0-2"
    assert [from_statement(statement) for statement in document["mechanisms"]] == [*MECHANISMS[:2]]
    for node, z in enumerate((9.0, 6.0, 9.0)):
        row = document["nodes"][node]
        (release,) = row["releases"]
        assert (row["node"], row["file"], row["delta"]) == (node, "ledger.sqlite", 1e-5)
        assert release["charged"] == [[0, 6, 1], [6, 10, 2], [10, 12, 1]]
        assert release["steps"] == 16
        assert release["epsilon"] == row["epsilon"]
        assert gaussian_delta(4 / z, row["epsilon"]) == pytest.approx(1e-5, rel=1e-6)
        budget = BUDGETS[node]
        assert row["left"] == (None if budget is None else budget - row["epsilon"])


def test_a_folder_of_ledgers_is_composed_over_runs(shared):
    document = ledger_document(shared)
    files = account_files(shared)
    assert sorted(file["file"] for file in document["files"]) == [file.name for file in files]
    for node, row in enumerate(document["nodes"]):
        assert [release["node"] for release in row["releases"]] == [node, node]
        assert row["data"] == f"node {node}"
        assert row["file"] == account_file(shared, f"node {node}", node).name
    assert [run["run"] for run in document["runs"]] == ["one", "two"]
    mu = math.sqrt(20 / 9.0**2 + 5 / 6.0**2)
    for row in document["nodes"]:
        assert [release["steps"] for release in row["releases"]] == [20, 5]
        assert gaussian_delta(mu, row["epsilon"]) == pytest.approx(1e-5, rel=1e-6)
        assert row["epsilon"] < sum(release["epsilon"] for release in row["releases"])
        assert row["left"] == 4.0 - row["epsilon"]


def test_one_file_of_a_folder_and_a_run_folder_are_read(shared, own):
    sixth = ledger_document(shared)["nodes"][5]
    (row,) = ledger_document(shared / sixth["file"])["nodes"]
    assert row == sixth
    assert ledger_document(own.parent)["nodes"] == ledger_document(own)["nodes"]


def test_reading_changes_nothing(shared):
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    assert ledger_document(shared) == ledger_document(shared)
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == before


def test_one_run_draws_on_sources_that_it_names(shared):
    """Seven nodes of ten records, of which a later run has those of two at one node."""
    records = np.arange(10, 30, dtype=np.uint64)
    wanted = [WantedAccount(1, ("node 1", "node 2"), records, None, None, None, 1e-5)]
    with SharedLedgers.open(shared, wanted, session="three") as running:
        assert not running.strangers
        running.enter("three", digest="d", statements={1: to_statement(MECHANISMS[1])}, sent={})
        running.reserve(0, 10)
    document = ledger_document(shared)
    before, third = 20 / 9.0**2 + 5 / 6.0**2, 10 / 6.0**2
    assert [row["data"] for row in document["nodes"]] == [f"node {node}" for node in range(7)]
    for node, row in enumerate(document["nodes"]):
        mu = math.sqrt(before + third * (node in (1, 2)))
        assert gaussian_delta(mu, row["epsilon"]) == pytest.approx(1e-5, rel=1e-6)
    confirm(document)
    # Of one run only what it drew on, with what else was spent of that.
    narrow = ledger_document(shared, "three")["nodes"]
    assert [row["data"] for row in narrow] == ["node 1", "node 2"]
    assert [row["epsilon"] for row in narrow] == [row["epsilon"] for row in document["nodes"][1:3]]
    assert ledger_document(shared, "four")["nodes"] == []


def test_a_document_says_nothing_of_records(tmp_path):
    """Two ledgers of the same runs, of which one had another record in the second."""
    texts = []
    for name, moved in (("one", 0), ("other", 1)):
        folder = tmp_path / name
        folder_key(folder)
        for run in range(2):
            digests = np.arange(run * moved, 10 + run * moved, dtype=np.uint64)
            wanted = [WantedAccount(0, ("hospital",), digests, None, None, 4.0, 1e-5)]
            with SharedLedgers.open(folder, wanted, session=str(run)) as ledgers:
                statements = {0: to_statement(MECHANISMS[run])}
                ledgers.enter(f"run {run}", digest="d", statements=statements, sent={})
                ledgers.reserve(0, 20)
        document = ledger_document(folder)
        for row in (*document["files"], *document["runs"]):
            for random in ("created", "head", "public_key"):
                row.pop(random, None)
        texts.append(json.dumps({**document, "path": ""}))
        (file,) = account_files(folder)
        assert len(read_ledger(file).digests) == 8 * (10 + moved)
    assert texts[0] == texts[1]


def test_a_run_that_goes_on_is_left_alone(shared):
    digests = np.arange(30, 40, dtype=np.uint64)
    wanted = [WantedAccount(3, ("node 3",), digests, None, None, None, 1e-5)]
    with SharedLedgers.open(shared, wanted, session="three") as running:
        statements = {3: to_statement(MECHANISMS[0])}
        running.enter("three", digest="d", statements=statements, sent={})
        with pytest.raises(InputError, match=r"data-[0-9a-f]{16}\.sqlite.*one is running it now"):
            ledger_document(shared)
        running.reserve(0, 4)
    assert ledger_document(shared)["nodes"][3]["releases"][2]["steps"] == 4


def test_accounts_stand_in_the_order_of_nodes_however_slowly_a_run_enters_them(
    tmp_path, monkeypatch
):
    seconds = iter(range(60))

    def entered():
        return {"created": f"2026-01-02T03:04:{next(seconds):02}+00:00", "tacit_version": "0.1"}

    monkeypatch.setattr("tacit.privacy.ledger.ledger.entered", entered)
    share(tmp_path / "ledgers", "one", MECHANISMS[0], 20)
    rows = ledger_document(tmp_path / "ledgers")["nodes"]
    assert [row["releases"][0]["node"] for row in rows] == list(range(7))


# Older copies.


def test_an_older_copy_is_found(shared, own, tmp_path):
    shutil.copytree(shared, tmp_path / "older")
    share(shared, "three", MECHANISMS[1], 3)
    stated = files_of(shared)
    assert len(check_contained(stated, shared)) == 7
    share(shared, "four", MECHANISMS[1], 3)
    assert len(check_contained(stated, shared)) == 7
    ledger = account_file(shared, "node 4", 4)
    assert check_contained(stated, ledger) == [str(ledger)]
    with pytest.raises(InputError, match=r"--ledger .* an older copy, or was continued from one"):
        check_contained(stated, tmp_path / "older")
    # Going on from the copy makes another chain.
    share(tmp_path / "older", "another", MECHANISMS[1], 3)
    with pytest.raises(InputError, match=r"an older copy, or was continued from one"):
        check_contained(stated, tmp_path / "older")
    ledger.unlink()
    with pytest.raises(InputError, match=r"the one of data node 4, from node 4 on is missing"):
        check_contained(stated, shared)
    assert check_contained(stated, own) == []


def test_a_ledger_of_another_key_is_found(shared, tmp_path):
    stated = files_of(shared)
    share(tmp_path / "again", "one", MECHANISMS[0], 20)
    with pytest.raises(InputError, match="it has another"):
        check_contained(stated, tmp_path / "again")


def test_what_is_no_ledger_is_refused(tmp_path, own):
    with pytest.raises(InputError, match="the file of an existing ledger"):
        ledger_document(tmp_path / "missing.sqlite")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"FILE = .*a folder with data-NAME\.sqlite"):
        ledger_document(tmp_path / "empty")
    own.write_bytes(own.read_bytes()[:-600])
    with pytest.raises(InputError, match="ledger"):
        ledger_document(own)


def test_an_epsilon_that_is_not_finite_is_null(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "cost", lambda mechanism, delta: math.inf)
    path = tmp_path / "ledger.sqlite"
    statement = to_statement(MECHANISMS[0])
    rows = [NodeStatement(0, statement, 1.0, 1e-5), NodeStatement(1, statement, None, None)]
    with Ledger.create(path, digest="plan", statements=rows) as ledger:
        ledger.reserve(0, 3)
    document = ledger_document(path)
    first, second = document["nodes"]
    assert (first["epsilon"], first["left"]) == (None, 0.0)
    assert (second["epsilon"], second["left"]) == (None, None)
    confirm(document)


# The document proves itself.


def test_a_document_confirms_itself(own, shared):
    for path in (own, shared):
        document = ledger_document(path)
        confirm(document)
        confirm({**document, "tacit_version": "0.0.1"})


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda row: row.update(epsilon=row["epsilon"] - 0.01), "epsilon of data"),
        (lambda row: row.update(epsilon=row["epsilon"] + 0.01), "epsilon of data"),
        (lambda row: row.update(epsilon=None), "epsilon of data"),
        (lambda row: row.update(left=2.0), "left of data"),
        (lambda row: row.update(delta=1e-4), "epsilon of data"),
        (lambda row: row.update(releases=row["releases"][:1]), "epsilon of data"),
        (lambda row: row["releases"][1].update(charged=[[0, 4, 1]]), "epsilon of data"),
        (lambda row: row["releases"][1].update(steps=4), "steps of run two at data"),
        (lambda row: row["releases"][1].update(mechanism=0), "epsilon of data"),
        (lambda row: row["releases"][1].update(mechanism=9), "a whole document"),
        (lambda row: row["releases"][1].update(charged=[[0, 99, 1]]), "must lie below 20"),
        (lambda row: row["releases"][1].update(charged="all"), "a whole document"),
        (lambda row: row.pop("epsilon"), "epsilon of data"),
        (lambda row: row.pop("releases"), "a whole document"),
    ],
)
def test_an_edited_document_is_refused(shared, edit, said):
    document = ledger_document(shared)
    confirm(document)
    edited = deepcopy(document)
    edit(edited["nodes"][1])
    with pytest.raises(InputError, match=said):
        confirm(edited)


def test_edited_mechanisms_are_refused(own):
    document = ledger_document(own)
    document["mechanisms"][0]["noise_multiplier"] = [[9.1, 20]]
    with pytest.raises(InputError, match="epsilon of node 0"):
        confirm(document)
    document["mechanisms"][0]["kind"] = "magic"
    with pytest.raises(InputError, match="magic"):
        confirm(document)
    with pytest.raises(InputError, match="a whole document"):
        confirm({})


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([], ""), ([4], "4"), ([0, 1, 2, 5], "0-2, 5"), ([3, 1, 2, 7, 8], "1-3, 7-8")],
)
def test_node_numbers_are_listed_in_ranges(numbers, said):
    assert node_list(numbers) == said


def test_the_figure_is_that_of_the_accountant(tmp_path):
    """Sampled batches: the ledger gives what the accountant gives for the planned mechanism."""
    mechanism = SampledGaussian(0.1, [1.0 + 0.1 * step for step in range(20)])
    share(tmp_path / "ledgers", "one", mechanism, 20, nodes=1)
    (row,) = ledger_document(tmp_path / "ledgers")["nodes"]
    assert row["epsilon"] == epsilon(mechanism, delta=1e-5)
