"""Statements: what was charged is what is stated, and the JSON proves itself."""

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from experiments import experiment, strict_json, tree
from experiments import tacit as command
from planning_cases import gaussian_delta
from tacit.analysis import ledger_report as ledgers
from tacit.analysis.statement import _unit_assumptions as unit_assumptions
from tacit.analysis.statement import check_statement, write_statement
from tacit.config import load_config
from tacit.data import Dataset
from tacit.data import load as load_data
from tacit.errors import BudgetError, InputError
from tacit.privacy import Composed, epsilon, for_a_unit, from_statement
from tacit.privacy.ledger.file import fingerprint
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.mechanisms import base
from tacit.report.documents.base import dump, load
from tacit.report.documents.ledger import ConfirmedStatement
from tacit.report.documents.unit import UnitTerms
from tacit.report.trust_words import RELATIONS, TRUST_MODELS
from tacit.report.wording import epsilon_text
from tacit.training.loop import execute
from tacit.training.prepare import prepare

PRIVATE = {"noise_std": None, "noise_seed": None, "epsilon": 2.0}


def ran(run, **changes):
    execute(prepare(load_config(experiment(**{"privacy": PRIVATE, **changes}))), out=run)
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Six steps of PrivSGP on every record, within a budget of 2."""
    return ran(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished, tmp_path):
    """The run folder, for one test alone."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def stated(folder):
    return strict_json((folder / "statement.json").read_text())


def test_a_statement_says_what_ran(run):
    assert write_statement(run) == (run / "statement.json", run / "statement.html")
    document = stated(run)
    result = strict_json((run / "result.json").read_text())
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        assert document["run"]["run"] == ledger.run_id
        assert document["run"]["plan_digest"] == ledger.digest
        snapshot = ledger.snapshot()
        assert document["run"]["ledger_head"] == snapshot.head
        assert document["run"]["ledger_key"] == fingerprint(snapshot.public_key)
        mechanisms = [from_statement(entry.statement) for entry in ledger.statements]
    assert document["run"]["status"] == "done"
    assert document["relation"]["name"] == "add-or-remove-one"
    assert (document["unit"]["name"], document["trust_model"]["name"]) == ("record", "all-messages")
    assert document["not_covered"][:-1] == result["not_covered"]
    assert document["not_covered"][-1].startswith("when a run ends")
    assert document["data_ledger"] is None
    assert len(document["nodes"]) == 4
    for node, row in enumerate(document["nodes"]):
        z = mechanisms[node].noise_multiplier[0]  # type: ignore[union-attr,index]
        assert gaussian_delta(math.sqrt(6) / z, row["epsilon"]) == pytest.approx(1e-5, rel=1e-5)
        assert row["epsilon"] == pytest.approx(result["epsilon"][node], rel=1e-9)
        assert row["claimed"] == result["claimed_epsilon"][node]
        assert row["records"] == result["records"][node]
        assert (row["budget"], row["delta"], row["audited"]) == (2.0, 1e-5, None)
    text = " ".join(document["assumptions"])
    for word in (
        "clipped",
        "keystream",
        "lattice",
        "how much a node counts are public",
        "one process",
        "ledger",
    ):
        assert word in text


def test_every_trust_model_and_relation_has_a_meaning_of_its_own():
    for known, meanings in (
        (base.TRUST_MODELS, TRUST_MODELS),
        ((base.ADD_OR_REMOVE_ONE, base.REPLACE_ONE), RELATIONS),
    ):
        assert tuple(meanings) == known
        assert len(set(meanings.values())) == len(known)


def test_a_statement_is_confirmed_by_itself(run, tmp_path):
    path, _ = write_statement(run)
    alone = tmp_path / "sent.json"
    shutil.move(path, alone)
    shutil.rmtree(run)
    confirmed = check_statement(alone)
    document = strict_json(alone.read_text())
    assert confirmed.nodes == 4
    assert confirmed.epsilon == max(row["epsilon"] for row in document["nodes"]) <= 2.0
    assert (confirmed.delta, confirmed.data_epsilon) == (1e-5, None)
    assert confirmed.run == document["run"]["run"]
    assert load(ConfirmedStatement, dump(confirmed), "a test") == confirmed


def test_steps_that_a_killed_session_booked_are_in_it(run):
    before = strict_json((run / "result.json").read_text())["epsilon"][0]
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        ledger.reserve(3, 6)
        z = from_statement(ledger.statements[0].statement).noise_multiplier[0]  # type: ignore
    write_statement(run)
    row = stated(run)["nodes"][0]
    assert row["epsilon"] > before
    assert gaussian_delta(3 / z, row["epsilon"]) == pytest.approx(1e-5, rel=1e-5)
    assert check_statement(run / "statement.json").epsilon > 2.0


def test_a_published_noise_is_stated_with_what_is_proved(tmp_path):
    run = ran(tmp_path / "run", privacy={**PRIVATE, "accounting": "published"})
    write_statement(run)
    for row in stated(run)["nodes"]:
        assert row["claimed"] == pytest.approx(2.0, rel=1e-6)
        assert row["epsilon"] != pytest.approx(2.0, rel=1e-3)
    assert stated(run)["accounting"] == "published"


def test_other_relations_and_samplers_are_stated(tmp_path):
    run = ran(
        tmp_path / "run",
        privacy={**PRIVATE, "relation": "replace-one"},
        train={"batch": 8, "sampling": "fixed"},
    )
    write_statement(run)
    assert stated(run)["relation"]["name"] == "replace-one"
    assert "drawn without replacement" in stated(run)["mechanisms_in_words"][0]
    assert check_statement(run / "statement.json").epsilon <= 2.0


# Where it is written.


def test_writing_again_changes_nothing(run):
    paths = write_statement(run)
    before = [path.read_bytes() for path in paths]
    document = stated(run)
    assert write_statement(run) == paths
    assert [path.read_bytes() for path in paths] == before
    # A page that is lost is made again, with the date that the statement has.
    paths[1].unlink()
    write_statement(run)
    assert [path.read_bytes() for path in paths] == before
    assert stated(run) == document


@pytest.mark.parametrize("name", ["statement.json", "statement.html"])
def test_other_files_are_never_overwritten(run, tmp_path, name):
    (run / name).write_text("{}")
    before = tree(run)
    with pytest.raises(InputError, match=f"{name}.* says something else"):
        write_statement(run)
    assert (run / name).read_text() == "{}"
    assert tree(run) == before
    paths = write_statement(run, tmp_path / "else" / "where")
    assert [path.parent for path in paths] == [tmp_path / "else" / "where"] * 2
    assert check_statement(paths[0]).nodes == 4


def test_an_older_statement_is_kept(run):
    write_statement(run)
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        ledger.reserve(5, 6)
    with pytest.raises(InputError, match="says something else"):
        write_statement(run)


def test_where_nothing_can_be_written_is_said(run):
    with pytest.raises(InputError, match=r"config\.toml.* cannot be written"):
        write_statement(run, run / "config.toml" / "below")


# What cannot be stated.


@pytest.mark.parametrize(
    ("privacy", "algorithm", "said"),
    [
        ({**PRIVATE, "noise_seed": 3}, {}, "seeded noise: anyone who knows the seed"),
        ({"noise_seed": None, "accounting": "none"}, {}, "the noise is not accounted"),
        ({"noise_std": None, "noise_seed": None}, {"name": "sgp"}, "sgp adds no noise"),
        ({"noise_std": None, "noise_seed": None, "epsilon": "none"}, {}, "no noise is added"),
        ({"noise_std": 1e-9, "noise_seed": None}, {}, "there is too little noise for any finite"),
    ],
)
def test_a_run_without_a_guarantee_is_refused(tmp_path, privacy, algorithm, said):
    run = ran(tmp_path / "run", privacy=privacy, algorithm=algorithm)
    with pytest.raises(InputError, match=f"not private, so nothing can be stated: {said}"):
        write_statement(run)
    assert "statement.json" not in tree(run)


@pytest.mark.parametrize("of", ["run", "ledgers"])
def test_an_older_copy_of_a_ledger_is_no_ground_for_a_statement(tmp_path, of):
    """Neither that of the run, nor those of its data."""
    privacy = {**PRIVATE, "ledger": str(tmp_path / "ledgers")}
    job, run = prepare(load_config(experiment(privacy=privacy))), tmp_path / "run"
    asked = iter([False, True])
    execute(job, out=run, should_stop=lambda: next(asked))
    shutil.copytree(tmp_path / of, tmp_path / "older")
    steps = execute(job, out=run, resume=True).steps
    for ledger in (tmp_path / "older").glob("*.sqlite"):
        shutil.copy(ledger, tmp_path / of)
    said = f"{steps - 2} of its {steps} steps are not charged to node 0, so that it is an older"
    with pytest.raises(InputError, match=said):
        write_statement(run)
    assert "statement.json" not in tree(run)


def test_no_finite_epsilon_is_no_statement(run, monkeypatch):
    monkeypatch.setattr(ledgers, "cost", lambda mechanism, delta: math.inf)
    with pytest.raises(InputError, match="has no finite epsilon"):
        write_statement(run)


def test_what_is_no_finished_run_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        write_statement(tmp_path / "missing")
    with (
        Ledger.open(run / "ledger.sqlite", digest=None),
        pytest.raises(InputError, match="one is running it now"),
    ):
        write_statement(run)
    for content, said in (("{}", "whole"), ("[]", "whole"), ('{"format', "whole")):
        (run / "result.json").write_text(content)
        with pytest.raises(InputError, match=said):
            write_statement(run)
    (run / "result.json").write_text('{"format_version": 99, "private": true}')
    with pytest.raises(InputError, match="format_version = 99"):
        write_statement(run)


# With a ledger of the nodes' data.


def test_all_runs_on_the_data_are_stated(tmp_path):
    privacy = {
        **PRIVATE,
        "epsilon": 1.0,
        "ledger": str(tmp_path / "ledgers"),
        "ledger_epsilon": 4.0,
    }
    first, second = (ran(tmp_path / name, privacy=privacy) for name in ("first", "second"))
    write_statement(second)
    confirmed = check_statement(second / "statement.json")
    assert confirmed.epsilon <= 1.0 < confirmed.data_epsilon < 2.0
    ledger = stated(second)["data_ledger"]
    assert [(row["data"], len(row["releases"])) for row in ledger["nodes"]] == [("digits", 8)]
    assert "whatever else was released" in stated(second)["assumptions"][-1]
    assert ledger["path"] == "ledgers"
    assert len(ledger["files"]) == 1
    page = (second / "statement.html").read_text()
    assert "All runs on the same data" in page
    # A statement of the first run, from other ledgers than its own, is refused.
    shutil.rmtree(tmp_path / "ledgers")
    ran(tmp_path / "third", privacy=privacy)
    with pytest.raises(InputError, match="which is not entered in it"):
        write_statement(first)


@pytest.mark.slow
def test_a_ledger_that_is_older_than_the_statement_is_found(tmp_path):
    privacy = {
        **PRIVATE,
        "epsilon": 1.0,
        "ledger": str(tmp_path / "ledgers"),
        "ledger_epsilon": 4.0,
    }
    run = ran(tmp_path / "run", privacy=privacy)
    shutil.copytree(tmp_path / "ledgers", tmp_path / "copy")
    ran(tmp_path / "again", privacy=privacy)
    write_statement(tmp_path / "again")
    statement = tmp_path / "again" / "statement.json"
    ledgers = check_statement(statement, tmp_path / "ledgers").ledgers
    assert ledgers == tuple(
        str(tmp_path / "ledgers" / file["file"]) for file in files_of(statement)
    )
    assert check_statement(statement, tmp_path / "again").ledgers == (
        str(tmp_path / "again" / "ledger.sqlite"),
    )
    assert check_statement(statement).ledgers is None
    # Later runs are no matter; the copy of before is found out, and so is another run's ledger.
    ran(tmp_path / "later", privacy=privacy)
    assert check_statement(statement, tmp_path / "ledgers").ledgers == ledgers
    with pytest.raises(InputError, match="it is an older copy"):
        check_statement(statement, tmp_path / "copy")
    with pytest.raises(InputError, match="it is neither"):
        check_statement(statement, run)
    # Where the ledgers have moved, the statement is told so.
    shutil.move(tmp_path / "ledgers", tmp_path / "moved")
    with pytest.raises(InputError, match="the file of an existing ledger"):
        write_statement(run)
    write_statement(run, ledger=tmp_path / "moved")


def hospital(first, *, rows=3):
    """Ninety persons, `first` and those after, with three rows each: the first of them so many."""
    coins = torch.Generator().manual_seed(first)
    ids = np.repeat(np.arange(first, first + 90), [rows, *[3] * 89])
    inputs = torch.rand(len(ids), 8, generator=coins)
    return Dataset(inputs, torch.arange(len(ids)) % 10, units=ids)


def digits(first):
    """A hundred rows of nobody's."""
    data = load_data("digits", data_dir=Path("data"), seed=0).train
    records = slice(first, first + 100)
    return data.inputs[records], data.targets[records]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "others", "privacy"),
    [
        (partial(digits, 0), [partial(digits, first) for first in (1, 50, 100)], {}),
        # One row of a person less; one person another; all persons others.
        (
            partial(hospital, 0),
            [partial(hospital, 0, rows=2), partial(hospital, 1), partial(hospital, 90)],
            {"unit": "column:person", "unit_rows": 3},
        ),
    ],
    ids=["by record", "by person"],
)
def test_what_is_handed_on_is_the_same_whatever_records_a_run_shares_with_another(
    tmp_path, made, others, privacy
):
    """Neighbours under one ledger: all but what is random or noised is equal, byte by byte."""
    read = []
    for place, second in enumerate([made, *others]):
        folder = tmp_path / str(place)
        kept = {"ledger": str(folder / "ledgers"), "ledger_epsilon": 4.0}
        config = experiment(
            task={"dataset": None, "model": "logistic", "outputs": 10},
            nodes={"count": 1},
            privacy={**PRIVATE, "epsilon": 1.0, **kept, "ledger_source": "hospital", **privacy},
            train={"steps": 2},
        )
        for run, records in (("first", made), ("second", second)):
            tacit.train(config, nodes=[records()], out=folder / run)
        run = folder / "second"
        write_statement(run)
        result = strict_json((run / "result.json").read_text())
        for clock in ("seconds", "steps_per_second"):
            result.pop(clock)
        files = ("statement.json", "statement.html", "config.toml")
        texts = [*((run / file).read_text() for file in files), json.dumps(result)]
        texts.append(dump(ledgers.ledger_document(folder / "ledgers")))
        random = re.compile(r"[0-9a-f]{8,}|\d{4}-\d\d-\d\d[T \d:+]*|" + re.escape(str(folder)))
        read.append([random.sub("?", text) for text in (*texts, *sorted(tree(run)))])
        with pytest.raises(BudgetError) as refused:
            tacit.train(
                {**config, "privacy": {**config["privacy"], "epsilon": 4.0}}, nodes=[made()]
            )
        assert refused.value.reported() is None
    assert all(texts == read[0] for texts in read)
    (row,) = strict_json((run / "statement.json").read_text())["data_ledger"]["nodes"]
    assert 1.2 < row["epsilon"] < 2.0  # of both runs, whatever was in both


def files_of(statement):
    files = strict_json(statement.read_text())["data_ledger"]["files"]
    return sorted(files, key=lambda file: file["file"])


@pytest.fixture(scope="module")
def pairwise(tmp_path_factory):
    """The statement of six steps of four nodes, of whom two may collude; all in one process."""
    run = tmp_path_factory.mktemp("pairwise") / "run"
    shared = {**PRIVATE, "noise": "pairwise", "colluding": 2}
    ran(
        run,
        nodes={"weights": "equal"},
        privacy=shared,
        topology={"graph": "complete"},
        algorithm={"name": "dp2-sgd"},
    )
    path, _ = write_statement(run)
    return path


def test_a_statement_says_whom_it_rests_on(pairwise):
    document = stated(pairwise.parent)
    assert document["trust_model"]["name"] == "pairwise, 2 colluding"
    terms = document["ledger"]["trust"]
    assert terms["nodes_by_process"] == [4]
    assert terms["epsilon_by_colluders"][2] == [row["epsilon"] for row in document["nodes"]]
    assert len(terms["epsilon_by_colluders"]) == 4
    assert any("all but 2 nodes kept to themselves" in text for text in document["assumptions"])
    page = " ".join(re.sub("<[^>]+>", " ", pairwise.with_suffix(".html").read_text()).split())
    for words in (
        "A simulation of its trust model",
        "Whom this rests on",
        "even if any 2 other nodes pool",
        "poisoning",
        epsilon_text(max(terms["epsilon_by_colluders"][3])),
    ):
        assert words in page
    confirmed = check_statement(pairwise)
    assert (confirmed.trust_model, confirmed.colluding) == ("pairwise", 2)


# Tampering.


@pytest.fixture(scope="module")
def sound(finished, tmp_path_factory):
    """A statement that holds, which each test alters a copy of."""
    path, _ = write_statement(finished, tmp_path_factory.mktemp("sound"))
    check_statement(path)
    return path


def edited(path, change):
    document = strict_json(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def release_of(document):
    """The first release of the first node."""
    return document["ledger"]["nodes"][0]["releases"][0]


def unbounded(ledger):
    """Ledgers of which one account has no epsilon."""
    first, *others = ledger["nodes"]
    nothing = dict.fromkeys(("epsilon", "left", "delta"))
    releases = [{**release, "epsilon": None} for release in first["releases"]]
    return {**ledger, "nodes": [{**first, **nothing, "releases": releases}, *others]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["nodes"][2].update(epsilon=0.5), "epsilon of node 2 = 0.5: must be"),
        (lambda d: d["nodes"][2].update(delta=1e-9), "delta of node 2"),
        (lambda d: d["nodes"].pop(), "a whole statement"),
        (lambda d: d["ledger"]["nodes"][1].update(epsilon=0.5), "epsilon of node 1"),
        (lambda d: d["ledger"]["nodes"][1]["releases"][0].update(charged=[[0, 5, 1]]), "node 1"),
        (lambda d: d["ledger"]["mechanisms"][0].update(noise_multiplier=[[99.0, 6]]), "node 0"),
        (lambda d: d["relation"].update(name="replace-one"), "relation = 'replace-one'"),
        (lambda d: d["unit"].update(name="client"), "unit = 'client'"),
        (lambda d: d["nodes"][0].update(records=10), "its digest does not match"),
        (lambda d: d["assumptions"].pop(), "its digest does not match"),
        (lambda d: d["not_covered"].clear(), "its digest does not match"),
        (lambda d: d.update(date="2020-01-01T00:00:00+00:00"), "its digest does not match"),
        (lambda d: d["run"].update(status="stopped"), "its digest does not match"),
        (lambda d: d.pop("digest"), "a whole statement"),
        (lambda d: d.pop("ledger"), "a whole statement"),
        (lambda d: d.update(format_version=9), "format_version = 9"),
        (lambda d: d.update(kind="a poem"), "a JSON of the kind"),
        (lambda d: d.update(more="said"), "a whole statement: .*more = 'said': is not known"),
        (lambda d: d["ledger"]["runs"][0].update(more=1), "a whole statement: .*more"),
        (lambda d: d["nodes"][0].update(claimed=math.nan), "its digest does not match"),
        (lambda d: d["nodes"][0].update(records=True), "a whole statement: .*records = True"),
        (lambda d: d["nodes"][0].update(epsilon=10**400), "a whole statement: .*epsilon"),
        (lambda d: release_of(d).update(mechanism=-1), "a whole statement: .*mechanism = -1"),
        (lambda d: release_of(d).update(charged=[[0, 6]]), "a whole statement: .*charged"),
        (lambda d: d.update(data_ledger=unbounded(d["ledger"])), "no finite epsilon holds"),
    ],
)
def test_a_tampered_statement_is_refused(sound, tmp_path, change, said):
    path = copied(sound, tmp_path / "statement.json")
    with pytest.raises(InputError, match=said):
        check_statement(edited(path, change))


def terms_of(document):
    return document["ledger"]["trust"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["ledger"].update(trust=None), "trust = None: must stand in"),
        (lambda d: d["trust_model"].update(name="all-messages"), "trust_model"),
        (lambda d: terms_of(d)["epsilon_by_colluders"][3].__setitem__(1, 1.0), "3 colluders"),
        (
            lambda d: terms_of(d).update(deviation=9.0),
            "trust: own = .*noise multipliers of the ledger",
        ),
        (lambda d: terms_of(d)["pairs"].pop(), "trust"),
        (lambda d: terms_of(d).update(colluding=3), "colluding = 3: .*'pairwise, 2 colluding'"),
        (lambda d: terms_of(d).update(colluding=1), "a whole statement: .*trust"),
        (lambda d: terms_of(d).update(nodes_by_process=[1, 1, 1, 1]), "its digest does not match"),
        (lambda d: terms_of(d).update(more=1), "a whole statement: .*more"),
    ],
)
def test_tampered_terms_of_trust_are_refused(pairwise, tmp_path, change, said):
    path = copied(pairwise, tmp_path / "statement.json")
    with pytest.raises(InputError, match=said):
        check_statement(edited(path, change))


def test_the_layout_of_the_file_does_not_matter(run):
    path, _ = write_statement(run)
    document = strict_json(path.read_text())
    path.write_text(json.dumps(dict(reversed(document.items()))))
    check_statement(path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xfe", b"{'kind': 1}"])
def test_what_is_no_statement_is_refused(tmp_path, content):
    path = tmp_path / "statement.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="statement"):
        check_statement(path)
    with pytest.raises(InputError, match="statement"):
        check_statement(tmp_path / "missing.json")


PERSONS = {"unit": "column:patient", "unit_rows": 2, "epsilon": 2.0}


def of_persons(out, **changes):
    """A run of two nodes with twelve rows each, of four patients of three: two are at both."""
    coins = torch.Generator().manual_seed(1)
    ids = np.repeat(np.arange(4), 3)
    nodes = [
        Dataset(torch.randn(12, 4, generator=coins), torch.arange(12) % 2, units=ids + first)
        for first in (0, 2)
    ]
    sections = experiment(
        task={"dataset": None, "outputs": 2},
        nodes={"count": None},
        privacy={**PRIVATE, **PERSONS, **changes},
        train={"steps": 3, "batch": None},
    )
    execute(prepare(load_config(sections, count=2), nodes=nodes), out=out)
    return out


def test_a_statement_names_the_person_and_two_epsilons(tmp_path):
    path, page = write_statement(of_persons(tmp_path / "run", unit_nodes=2))
    document = stated(tmp_path / "run")
    unit, text = document["unit"], " ".join(document["assumptions"])
    assert (unit["name"], unit["nodes"], unit["rows"]) == ("patient", 2, 2)
    assert [row["records"] for row in document["nodes"]] == [4, 4]
    both = Composed([from_statement(document["ledger"]["mechanisms"][0])] * 2)
    expected = epsilon(both.repeated(1), delta=1e-5)
    assert unit["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert unit["epsilon"] > document["nodes"][0]["epsilon"]
    assert "Ids were compared over all nodes: no patient has rows at more than 2 nodes" in text
    assert "the number J of patients of each node" in text
    assert "all rows of a patient at that node are there, or none contributes" in text
    assert not re.search(r"every record|the number of records|a record that", text)
    assert f"a patient with rows at up to 2 nodes has epsilon {epsilon_text(unit['epsilon'])}" in (
        page.read_text()
    )
    assert check_statement(path).unit.epsilon == unit["epsilon"]
    for key, value in (("epsilon", 2.0), ("delta", 1e-6), ("epsilon", None), ("nodes", 1)):
        changed = copied(path, tmp_path / f"{key}{value}.json")
        with pytest.raises(InputError, match="of a person"):
            check_statement(edited(changed, partial(update_unit, {key: value})))


def update_unit(changes, document):
    document["unit"].update(changes)


def copied(path, to):
    return Path(shutil.copy(path, to))


def test_what_all_runs_cost_is_of_a_person_only_as_long_as_all_of_them_were(tmp_path):
    """A row is charged what its person was; of a person, a run by row says nothing."""
    kept = {"ledger": str(tmp_path / "ledgers"), "ledger_epsilon": 99.0, "ledger_source": "ward"}
    run, said = tmp_path / "first", "what all of them come to is of a row, and of a patient nothing"
    of_persons(run, **kept, unit_nodes=2)
    write_statement(run, tmp_path / "before")
    shown = command("privacy", "ledger", tmp_path / "ledgers").out
    assert "spent is of all rows of one id together (by column:patient)" in " ".join(shown.split())
    of_persons(tmp_path / "second", **kept, unit="record", unit_rows=None, unit_nodes=None)
    path, _ = write_statement(run, tmp_path / "after")
    for folder, told in (("before", False), ("after", True)):
        document = strict_json((tmp_path / folder / "statement.json").read_text())
        assert (said in " ".join(document["assumptions"])) is told
        assert (said in (tmp_path / folder / "statement.html").read_text()) is told
        units = [entry.get("unit", "record") for entry in document["data_ledger"]["runs"]]
        assert units == ["column:patient", "record"][: 1 + told]
    assert check_statement(path).unit.name == "patient"
    shown = command("privacy", "ledger", tmp_path / "ledgers").out
    assert "spent is of a row, and bounds nothing" in " ".join(shown.split())
    # Of rows, every figure is what it says.
    write_statement(tmp_path / "second")
    assert said not in (tmp_path / "second" / "statement.json").read_text()


def test_between_processes_it_is_a_promise_where_persons_are(tmp_path):
    unit = UnitTerms(name="patient", person="patient", gradient="mean", rows=2, nodes=3)
    here, apart = (" ".join(unit_assumptions(unit, one)) for one in (True, False))
    assert "a promise of the consortium (privacy.unit_nodes)" in apart
    assert "no patient has rows at more than 3 nodes" in apart
    assert "promise" not in here


def test_a_statement_by_row_says_what_a_person_has(tmp_path):
    path, _ = write_statement(of_persons(tmp_path / "run", unit="record"))
    document = stated(tmp_path / "run")
    unit, text = document["unit"], " ".join(document["assumptions"])
    assert (unit["name"], unit["person"], unit["gradient"]) == ("record", "person", None)
    group = for_a_unit(from_statement(document["ledger"]["mechanisms"][0]), 2)
    assert unit["epsilon"] == pytest.approx(epsilon(group, delta=1e-5), rel=1e-6)
    assert "none has more than 2 rows at a node (privacy.unit_rows)" in text
    assert "a person with up to 2 rows at one node has epsilon" in unit["meaning"]
    check_statement(path)


def test_what_passes_of_low_precision_leave_open_is_said(tmp_path):
    job = prepare(load_config(experiment(privacy=PRIVATE, train={"precision": "bf16"})))
    assert any("passes are in bf16" in note for note in job.plan.notes)
    execute(job, out=tmp_path / "run")
    write_statement(tmp_path / "run")
    said = " ".join(stated(tmp_path / "run")["assumptions"])
    assert "passes were in bfloat16" in said
    assert "256; how far that may move a sum is not proved" in said
