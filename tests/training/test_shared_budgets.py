"""A budget belongs to records: whoever holds them, however they are dealt, they spend it once.

On real digits. Every record joins every step, so that what one has paid is a Gaussian's mu: the
root of the sum, over runs, of steps / z^2 of the node that held it.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

import tacit
from communication.cluster.crew import train
from experiments import experiment
from experiments import tacit as command
from few import few
from tacit.analysis.ledger_report import ledger_document
from tacit.config import load_config
from tacit.data import Dataset, load
from tacit.errors import BudgetError, InputError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import account_files
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.release import Release

pytestmark = pytest.mark.process

DIGITS = load("digits", data_dir=Path("data"), seed=0).train
PAIRS = list[tuple[Tensor, Tensor]]


def epsilon_of(mu, delta=1e-5):
    """Balle and Wang: of a Gaussian mechanism, solved for epsilon."""

    def beyond(epsilon):
        low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high)) - delta

    return float(brentq(beyond, 0.0, 50.0)) if mu and beyond(0.0) > 0 else 0.0


def settled(folder, epsilon, budget=1.2, **sections):
    """An experiment whose data have a budget in a folder."""
    privacy = {
        "noise_std": None,
        "noise_seed": None,
        "epsilon": epsilon,
        "ledger": str(folder / "ledgers"),
        "ledger_epsilon": budget,
        **sections.pop("privacy", {}),
    }
    train = {"steps": 2, **sections.pop("train", {})}
    task = {"dataset": "digits", "model": "logistic", **sections.pop("task", {})}
    return experiment(task=task, privacy=privacy, train=train, **sections)


def split(folder, epsilon, budget=1.2, *, nodes, seed=0):
    return settled(folder, epsilon, budget, nodes={"count": nodes}, train={"seed": seed})


def write(path, config):
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    return path


def given_nodes(folder, epsilon, parts, budget=1.2, source=None):
    named = {} if source is None else {"ledger_source": source}
    task = {"dataset": None, "outputs": 10}
    config = settled(folder, epsilon, budget, task=task, privacy=named)
    config["nodes"].pop("count")
    return tacit.train(config, nodes=parts)


def parts(*ranges):
    return [(DIGITS.inputs[list(one)], DIGITS.targets[list(one)]) for one in ranges]


# The two programs that once spent a budget twice.


def test_another_seed_with_swapped_budgets_is_refused(tmp_path):
    """Records move between the nodes, each of which is a source, since each has a budget."""
    budgets = [1.1, 0.4]
    files = {
        "first": split(tmp_path, [0.9, 0.3], budgets, nodes=2),
        "swapped": split(tmp_path, [0.1, 0.1], budgets[::-1], nodes=2, seed=1),
        "moved": split(tmp_path, [0.1, 0.1], budgets, nodes=2, seed=1),
    }
    files = {name: write(tmp_path / f"{name}.toml", file) for name, file in files.items()}
    assert command("train", files["first"], "--out", tmp_path / "run", "--quiet").code == 0
    spent = ledger_document(tmp_path / "ledgers")
    assert [row.data for row in spent.nodes] == ["digits, node 0", "digits, node 1"]
    again = command("train", files["swapped"], "--out", tmp_path / "again", "--quiet")
    assert again.code == 2
    assert "was set to 1.1 when it was made" in again.err
    again = command("train", files["moved"], "--out", tmp_path / "again", "--quiet")
    assert again.code == 3
    said = r"node 0: \d+ of its 719 .*ledger_source = 'digits, node 0 \+ digits, node 1' at"
    assert re.search(said, again.err), again.err
    assert not (tmp_path / "again").exists()
    assert ledger_document(tmp_path / "ledgers") == spent


def test_two_nodes_and_then_six_are_refused(tmp_path):
    tacit.train(split(tmp_path, 1.0, nodes=2))
    with pytest.raises(BudgetError, match=r"1 is spent, and this run would bring it to 1\.4") as no:
        tacit.train(split(tmp_path, 1.0, nodes=6))
    said = re.search(
        r"privacy\.epsilon = ([\d.]+) would still fit; run \w+, entered", str(no.value)
    )
    assert said is not None
    fits = float(said[1])
    with pytest.raises(BudgetError):
        tacit.train(split(tmp_path, 1.05 * fits, nodes=6))
    tacit.train(split(tmp_path, fits, nodes=6))
    (row,) = ledger_document(tmp_path / "ledgers").nodes
    assert row.data == "digits"
    assert 1.1 < row.epsilon <= 1.2


# However the same records come.


def held(folder):
    """Two nodes have spent 1.0 of 1.2, of 40 records each."""
    given = parts(range(40), range(40, 80))
    given_nodes(folder, 1.0, given)
    return given


def reordered(pairs):
    return [(inputs.flip(0), targets.flip(0)) for inputs, targets in pairs[::-1]]


def relabelled(pairs):
    return [(inputs, 9 - targets) for inputs, targets in pairs]


def as_images(pairs):
    return [(inputs.double().reshape(-1, 1, 8, 8), targets) for inputs, targets in pairs]


def dealt_anew(pairs):
    inputs, targets = (torch.cat(values) for values in zip(*pairs, strict=True))
    return [(inputs[first::4], targets[first::4]) for first in range(4)]


def extended(pairs):
    more = parts(range(80, 120), range(120, 160))
    return [
        (torch.cat([inputs, new]), torch.cat([targets, labels]))
        for (inputs, targets), (new, labels) in zip(pairs, more, strict=True)
    ]


@pytest.mark.parametrize("change", [reordered, relabelled, as_images, extended])
def test_the_same_records_draw_on_what_is_left(tmp_path, change):
    """Their source has paid, whatever else has joined it."""
    given = held(tmp_path)
    with pytest.raises(BudgetError, match=r"1 is spent, and this run would bring it to 1\.4"):
        given_nodes(tmp_path, 1.0, change(given))
    # Others of another source have a budget of their own.
    given_nodes(tmp_path, 1.0, parts(range(200, 240), range(240, 280)), source=["new", "newer"])


@pytest.mark.parametrize("change", [reordered, relabelled, as_images, dealt_anew, extended])
def test_the_same_records_under_another_name_are_caught(tmp_path, change):
    given = held(tmp_path)
    changed = change(given)
    names = [f"new {place}" for place in range(len(changed))]
    with pytest.raises(BudgetError, match="of a source that it does not name") as caught:
        given_nodes(tmp_path, 0.1, changed, source=names)
    # The remedy that is named works, from where the user stands.
    for _ in changed:
        said = re.search(r"node (\d): .*ledger_source = '(.*)' at this node", str(caught.value))
        assert said is not None, str(caught.value)
        names[int(said[1])] = said[2]
        try:
            given_nodes(tmp_path, 0.1, changed, source=names)
        except BudgetError as error:
            caught = pytest.ExceptionInfo.from_exception(error)
            continue
        break
    rows = {row.data: row.epsilon for row in ledger_document(tmp_path / "ledgers").nodes}
    for source in ("node 0", "node 1"):
        assert rows[source] >= epsilon_of(math.hypot(solved(1.0), solved(0.1))) - 2e-3


def test_records_by_another_name_are_known_again(tmp_path):
    """Split by tacit, passed in Python, and read from files of each node's own."""
    tacit.train(split(tmp_path, 1.0, nodes=3))
    with pytest.raises(BudgetError, match=r"node 0: 30 of its 30 .*ledger_source = 'digits' at"):
        given_nodes(tmp_path, 1.0, parts(range(30), range(700, 730)))
    for node, one in enumerate((range(40), range(40, 80))):
        (pair,) = parts(one)
        arrays = dict(zip(("inputs", "targets"), (value.numpy() for value in pair), strict=True))
        np.savez(tmp_path / f"own-{node}.npz", **arrays)
    nodes = {"count": 2, "data": "by-rank", "source": str(tmp_path / "own-{node}.npz")}
    own = settled(tmp_path, 1.0, nodes=nodes)
    with pytest.raises(BudgetError, match=r"ledger_source = 'digits' at"):
        tacit.train(own)
    with pytest.raises(BudgetError, match=r"its data \('digits'\)"):
        tacit.train({**own, "privacy": {**own["privacy"], "ledger_source": "digits"}})


@pytest.mark.parametrize(
    "other",
    [
        {"task": {"input_bound": 0.5}},
        {"nodes": {"count": 5, "partition": "shards", "per_node": 2}},
        {"train": {"seed": 7}},
    ],
)
def test_other_settings_make_no_other_source(tmp_path, other):
    tacit.train(split(tmp_path, 1.0, nodes=2))
    with pytest.raises(BudgetError, match=r"its data \('digits'\) .* 1 is spent"):
        tacit.train(settled(tmp_path, 1.0, **{"nodes": {"count": 2}, **other}))


def test_parties_that_name_one_source_add_up(tmp_path):
    """Two of them may hold one record: whether they do is not asked."""
    given_nodes(tmp_path, 0.5, parts(range(40), range(40, 80)), source="both")
    (row,) = ledger_document(tmp_path / "ledgers").nodes
    assert row.epsilon == pytest.approx(epsilon_of(math.sqrt(2) * solved(0.5)), rel=2e-3)


def test_a_run_goes_on_only_with_records_that_its_sources_hold(tmp_path):
    """Also where it goes on, a node with another source's records does not take part."""
    given_nodes(tmp_path, 0.3, parts(range(100, 140)), source="other")
    run, steps = tmp_path / "run", iter([False, True])
    sections = settled(tmp_path, 0.3, train={"steps": 4})
    config = load_config({**sections, "nodes": {}, "task": {"outputs": 10}}, count=1)
    job = prepare(config, nodes=parts(range(40)))
    assert execute(job, out=run, should_stop=lambda: next(steps, True)).status == "stopped"
    job = prepare(config, nodes=parts(range(99, 139)))
    with pytest.raises(BudgetError, match=r"39 of its 40 .*'node 0 \+ other'"):
        execute(job, out=run, resume=True)


def test_whole_clients_have_sources_of_their_own(tmp_path, monkeypatch):
    """Another client's data could change several clients of the earlier run at once."""
    stated = Release.mechanism

    def of_clients(*arguments):
        return replace(stated(*arguments), unit="client")

    monkeypatch.setattr(Release, "mechanism", of_clients)
    together = parts(range(30), range(30, 60))
    given_nodes(tmp_path, 0.5, together)
    given_nodes(tmp_path, 0.3, together)
    with pytest.raises(BudgetError, match="of a source that it does not name"):
        given_nodes(tmp_path, 0.1, parts(range(20), range(20, 60)))
    with pytest.raises(InputError, match="a source for each node, in every run: whole clients"):
        tacit.train(split(tmp_path / "other", 0.1, nodes=2))


# Many runs: nobody pays more than their budgets allow.


@settings(few(2, 5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=12, max_size=12),
            st.lists(st.sampled_from([0.3, 0.6, 1.0]), min_size=3, max_size=3),
        ),
        min_size=3,
        max_size=4,
    )
)
def test_no_record_pays_more_than_a_budget_it_belongs_to(tmp_path_factory, runs):
    """A register of its own keeps what was released of each record."""
    folder = tmp_path_factory.mktemp("runs")
    paid, spent = [0.0] * 12, 0.0
    for places, wanted in runs:
        groups = [[who for who in range(12) if places[who] == node] for node in range(3)]
        epsilons = [one for one, group in zip(wanted, groups, strict=True) if group]
        groups = [group for group in groups if group]
        if len(groups) < 2:
            continue
        together = math.sqrt(sum(solved(epsilon) ** 2 for epsilon in epsilons))
        try:
            result = given_nodes(folder, epsilons, parts(*groups), source="all")
        except BudgetError:
            # Refused with reason: a record of the source may have paid more than it may.
            assert epsilon_of(math.hypot(spent, together)) > 1.2 - 1e-3
            continue
        spent = math.hypot(spent, together)
        for group, node in zip(groups, result.plan.nodes, strict=True):
            for who in group:
                paid[who] = math.hypot(paid[who], math.sqrt(2) / node.noise_scale)
    rows = ledger_document(folder / "ledgers").nodes if any(paid) else []
    for row in rows:
        assert epsilon_of(max(paid)) <= row.epsilon <= 1.2
        assert row.epsilon == pytest.approx(epsilon_of(spent), rel=1e-3)


def solved(epsilon):
    """The mu of a run that was calibrated to an epsilon."""
    return float(brentq(lambda mu: epsilon_of(mu) - epsilon, 1e-3, 3.0))


# Several processes, which share a folder.


def test_processes_of_a_run_draw_on_one_folder_and_each_books_its_own(tmp_path):
    """An earlier run dealt the records to two nodes; now four are at two processes."""
    tacit.train(split(tmp_path, 0.5, nodes=2))
    file = split(tmp_path, 0.5, nodes=4)
    path = write(tmp_path / "four.toml", file)
    launched = train(tmp_path, path, tmp_path / "run", 2)
    assert [(answer.code, answer.err) for answer in launched] == [(0, "")] * 2
    document = ledger_document(tmp_path / "ledgers")
    (row,) = document.nodes
    assert [release.node for release in row.releases] == [0, 1, 0, 1, 2, 3]
    assert len(account_files(tmp_path / "ledgers")) == 2
    mu = math.hypot(solved(0.5), solved(0.5))
    assert row.epsilon == pytest.approx(epsilon_of(mu), rel=2e-3)
    with pytest.raises(BudgetError, match="has drawn on it, as 1 more"):
        tacit.train(file | {"privacy": file["privacy"] | {"epsilon": 1.0}})
    assert ledger_document(tmp_path / "ledgers") == document
    # Every process's ledger is signed with a key of its own.
    keys = {path.read_bytes() for path in tmp_path.glob("run/rank-*/ledger.key")}
    assert len(keys) == 2


# Where the ledgers are.


def test_the_ledgers_lie_beside_the_experiment_file(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    file = write(tmp_path / "project" / "experiment.toml", split(Path(), 0.5, nodes=2))
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        assert command("train", file, "--out", "run", "--quiet").code == 0
        assert list(Path().iterdir()) == [Path("run")]
    ledgers = tmp_path / "project" / "ledgers"
    assert [len(read_ledger(one).runs) for one in account_files(ledgers)] == [2]
    assert command("privacy", "statement", "run").code == 0


def test_a_run_goes_on_where_its_ledgers_have_moved(tmp_path):
    config = split(tmp_path, 1.0, nodes=2)
    run, steps = tmp_path / "run", iter([False, True])
    execute(prepare(load_config(config)), out=run, should_stop=lambda: next(steps, True))
    (tmp_path / "ledgers").rename(tmp_path / "moved")
    moved = load_config(config, overrides=[f"privacy.ledger={tmp_path / 'moved'}"])
    none = load_config(config, overrides=[f"privacy.ledger={tmp_path / 'none'}"])
    assert prepare(moved).plan.digest() == prepare(none).plan.digest()
    assert execute(prepare(moved), out=run, resume=True).steps == 2


BY_PERSON = {"unit": "column:person", "unit_rows": 4}


def persons(first, rows=90, *, seed=0):
    """A node with three fresh rows of each of thirty persons, `first` and those after."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(rows, 64, generator=generator)
    targets = torch.arange(rows) % 10
    return Dataset(inputs, targets, [f"p{first + row // 3}" for row in range(rows)])


def by_person(folder, parts, budget=1.2, epsilon=1.0, **privacy):
    task = {"dataset": None, "outputs": 10}
    config = settled(folder, epsilon, budget, task=task, privacy={**BY_PERSON, **privacy})
    config["nodes"].pop("count")
    return tacit.train(config, nodes=parts)


def test_new_rows_of_known_persons_draw_on_what_is_left(tmp_path):
    """No row is the same in both runs, nor how many a person has."""
    by_person(tmp_path, [persons(0)])
    fewer = Dataset(persons(0, seed=1).inputs[::2], torch.arange(45) % 10, persons(0).units[::2])
    with pytest.raises(BudgetError, match=r"epsilon = 0.* would still fit"):
        by_person(tmp_path, [fewer])
    by_person(tmp_path, [fewer], epsilon=0.1)


def test_new_rows_of_known_persons_are_caught_under_another_name(tmp_path):
    by_person(tmp_path, [persons(0)], ledger_source="ward")
    # Of these thirty, the first ten are persons of the ward: 10 of 90 rows and 30 units.
    with pytest.raises(BudgetError, match=r"10 of its 120 different records and units .*ward"):
        by_person(tmp_path, [persons(20, seed=1)], ledger_source="clinic")
    by_person(tmp_path, [persons(20, seed=1)], ledger_source="clinic + ward", epsilon=0.1)
    # Persons that nobody knows, and rows of theirs.
    by_person(tmp_path, [persons(100, seed=2)], ledger_source="school")


def test_a_person_at_two_nodes_needs_one_source(tmp_path):
    """Of several parties, and what they release of the person adds up there."""
    two = [persons(0), persons(0, seed=1)]
    with pytest.raises(BudgetError, match="different records and units are of a source"):
        by_person(tmp_path, two, unit_nodes=2)
    with pytest.raises(BudgetError, match="the budget of its data"):
        by_person(tmp_path, two, unit_nodes=2, ledger_source="all")
    by_person(tmp_path, two, unit_nodes=2, ledger_source="all", budget=3.0)


def test_rows_are_charged_what_their_persons_were_and_no_person_by_rows(tmp_path):
    rows = persons(0, seed=1)
    by_person(tmp_path, [persons(0)])
    by_row = {"unit": "record"}
    # The source has paid 1 for each person, so that each row of theirs has 0.2 of 1.2 left.
    with pytest.raises(BudgetError, match="the budget of its data"):
        by_person(tmp_path, [rows], **by_row)
    by_person(tmp_path, [rows], epsilon=0.1, **by_row)
    with pytest.raises(InputError, match=r"privacy.unit = 'column:person'.*was by 'record'"):
        by_person(tmp_path, [persons(0, seed=2)], epsilon=0.01)
    # The same rows under another name do not hide it.
    with pytest.raises(BudgetError, match="different records and units are of a source"):
        by_person(tmp_path, [rows], epsilon=0.01, ledger_source="new")
