"""Scores of a run's model at home and over sites: what they are, what they cost, who sees them."""

import csv
import json
import math

import numpy as np
import pytest
import tomli_w
import torch
from scipy.special import expit
from sklearn.metrics import accuracy_score, confusion_matrix, recall_score, roc_auc_score

import tacit
from communication.memory import at_once, crew_of
from communication.secure.sites import consortium
from patient_tables import HOSPITALS, SCHEMA, write_tables
from tacit.analysis.audit.trade_off import Counts, epsilon_of_mu, mu_lower
from tacit.analysis.ledger_report import ledger_document
from tacit.analysis.private_counts import (
    cells_of,
    noised_scores,
    part_scores,
    public_edges,
    read_counted,
)
from tacit.analysis.score import evaluate_privately
from tacit.communication.colours import Released
from tacit.communication.peers import ALONE
from tacit.data import Schema
from tacit.data.tables.groups import groups_by
from tacit.data.tables.reading import read_table
from tacit.errors import BudgetError, InputError
from tacit.models.probabilities import log_odds
from tacit.training import noised_counts
from tacit.training.run_folder.predictor import load_predictor

EPSILON, DELTA = 0.5, 1e-5
pytestmark = pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with patients of five hospitals, their experiment and a run."""
    folder = tmp_path_factory.mktemp("home")
    write_tables(folder, 600)
    (folder / "patients.toml").write_text(tomli_w.dumps(experiment(folder)))
    file = experiment(folder)
    file["privacy"] = {"epsilon": 3.0, "delta": DELTA, "noise_seed": 3}
    tacit.train(file, out=folder / "run")
    return folder


def experiment(folder, budgets="budgets", **task):
    return {
        "task": {
            "dataset": f"csv:{folder / 'patients.csv'}",
            "schema": str(folder / "patients.schema.toml"),
            "test": f"csv:{folder / 'sample.csv'}",
            "model": "logistic",
            "metric": ["auc", "brier"],
            **task,
        },
        "nodes": {"count": 5, "partition": "by:hospital"},
        "algorithm": {"name": "privsgp", "learning_rate": 1.0},
        "privacy": {"epsilon": 2.0, "delta": DELTA, "ledger": str(folder / budgets)},
        "train": {"steps": 5, "batch": "all"},
    }


def table_of(home):
    """Inputs, targets and columns of all patients."""
    schema = Schema.of(home / "patients.schema.toml")
    path = home / "patients.csv"
    data = schema.dataset(read_table(path, "table", use=schema))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return data, rows, schema


def edges_at(home):
    """Log-odds between bins, of the public records."""
    schema = Schema.of(home / "patients.schema.toml")
    public = schema.dataset(read_table(home / "sample.csv", "table", use=schema))
    return public_edges(log_odds(load_predictor(home / "run").outputs(public.inputs)))


def exact(monkeypatch):
    """Counts without noise, and a plan without any."""
    monkeypatch.setattr(noised_counts, "with_noise", lambda plan, totals, *_: Released(totals))


def test_without_noise_scores_are_those_of_scikit_learn(home, monkeypatch, tmp_path):
    """Of all, of each hospital and of each group; the AUC is that of what bins are."""
    exact(monkeypatch)
    found = noised_scores(
        experiment(tmp_path) | {"task": experiment(home)["task"]}, home / "run", 0.5, by="sex"
    )
    data, rows, _ = table_of(home)
    odds = log_odds(load_predictor(home / "run").outputs(data.inputs))
    labels = data.targets.numpy()
    edges = np.array(edges_at(home))
    assert 0.0 in edges
    binned = np.searchsorted(edges, odds)
    whose = {"all": np.ones(600, bool)}
    whose |= {name: np.array([row["hospital"] == name for row in rows]) for name in HOSPITALS}
    whose |= {f"sex: {one}": np.array([row["sex"] == one for row in rows]) for one in "fm"}
    assert [part.of for part in found.parts] == list(whose)
    for part, chosen in zip(found.parts, whose.values(), strict=True):
        said, truth = odds[chosen] > 0, labels[chosen]
        assert part.records == chosen.sum()
        assert part.confusion == tuple(map(tuple, confusion_matrix(truth, said, labels=[0, 1])))
        right = part_scores(
            part.of, counted(binned[chosen], truth, len(edges) + 1), 0.0, 1, found.edges
        )
        told = {name: own.value for name, own in part.scores.items() if own.value is not None}
        assert told.items() <= {name: own.value for name, own in right.scores.items()}.items()
        values = {name: own.value for name, own in right.scores.items()}
        assert values["accuracy"] == pytest.approx(accuracy_score(truth, said))
        assert values["sensitivity"] == pytest.approx(recall_score(truth, said))
        assert values["specificity"] == pytest.approx(recall_score(1 - truth, ~said))
        assert values["prevalence"] == pytest.approx(truth.mean())
        assert values["auc"] == pytest.approx(roc_auc_score(truth, binned[chosen]))
        within = abs(values["auc"] - roc_auc_score(truth, odds[chosen]))
        assert within <= (right.auc_within or 0.0) + 1e-12
        for place, (low, high, records, share) in enumerate(right.calibration):
            inside = binned[chosen] == place
            shares = expit(odds[chosen][inside])
            assert ((shares > low - 1e-5) & (shares < high + 1e-5)).all()
            assert records == inside.sum()
            if records:
                assert share.value == pytest.approx(truth[inside].mean())


def counted(binned, labels, bins):
    return np.bincount(labels * bins + binned, minlength=2 * bins).reshape(2, bins).astype(float)


def test_many_classes_have_a_confusion_table():
    draw = np.random.default_rng(0)
    labels = torch.from_numpy(draw.integers(0, 4, 500))
    outputs = torch.from_numpy(draw.normal(size=(500, 4)))
    cells = cells_of(outputs, labels, torch.zeros_like(labels), (), (1, 4, 4))
    counts = np.bincount(cells, minlength=16).reshape(4, 4).astype(float)
    truth = confusion_matrix(labels, outputs.argmax(1))
    assert np.array_equal(counts, truth)
    (accuracy,) = part_scores("all", counts, 0.0, 1, ()).scores.values()
    assert accuracy.value == pytest.approx(np.trace(truth) / 500)


def test_two_deviations_cover_what_the_noise_does():
    """As often as a normal error would be covered, or more."""
    draw = np.random.default_rng(1)
    edges = tuple(expit(np.array(public_edges(None))).tolist())
    assert edges[5] == 0.5
    truth = draw.poisson(60, size=(2, len(edges) + 1)) * np.linspace([2, 0.3], [0.3, 2], 10).T
    right = part_scores("all", truth, 0.0, 1, edges).scores
    inside = dict.fromkeys(right, 0)
    for _ in range(400):
        made = part_scores("all", truth + draw.normal(0, 10, truth.shape), 10.0, 1, edges)
        for name, own in made.scores.items():
            assert own.value is not None
            assert own.deviation is not None
            inside[name] += abs(own.value - (right[name].value or 0)) <= 2 * own.deviation
    assert all(count >= 0.925 * 400 for count in inside.values()), inside
    empty = draw.normal(0, 10, (4000, *truth.shape))  # what is shown of nobody is wrong
    shown = [part_scores("all", made, 10.0, 1, edges).scores["sensitivity"].value for made in empty]
    assert sum(value is not None for value in shown) <= 16  # 5.4 are expected
    drowned = part_scores("all", truth / 100, 10.0, 1, edges).scores
    assert all(own.value is None for own in drowned.values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38, -1e38, 0.0, 0.5, -0.5])
@pytest.mark.parametrize("by", ["sex", "diagnosis", "age", "smoker", "creatinine"])
def test_an_extreme_record_moves_one_count_by_one(home, bad, by):
    """Whatever it says, all other records stay in their cells, and it is in exactly one."""
    data, _, schema = table_of(home)
    predictor, groups = load_predictor(home / "run"), groups_by(schema, by)
    edges = public_edges(None)
    shape = (len(groups.names), 2, len(edges) + 1)

    def cells(inputs, targets):
        outputs = predictor.outputs_of_rows(inputs, None)
        return cells_of(outputs, targets, groups.of(inputs), edges, shape)

    before = cells(data.inputs, data.targets)
    assert int(before.min()) >= 0
    assert int(before.max()) < math.prod(shape)
    inputs, targets = data.inputs.clone(), data.targets.clone()
    inputs[300], targets[300] = bad, 1 - targets[300]
    after = cells(inputs, targets)
    kept = torch.arange(600) != 300
    assert torch.equal(before[kept], after[kept])
    assert 0 <= int(after[300]) < math.prod(shape)


def test_copies_of_a_record_are_in_one_cell(monkeypatch, tmp_path):
    """Where rounding decides of a cell, what lies beside a record has no part in it.

    A process whose nodes have no records takes part.
    """
    exact(monkeypatch)
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(2000, 5, generator=draw)
    config = {
        "task": {"model": "logistic", "loss": "logistic"},
        "algorithm": {"name": "dp2-sgd"},
        "privacy": {"epsilon": "none"},
        "train": {"steps": 2, "batch": "all"},
    }
    tacit.train(config, nodes=[(inputs, inputs[:, 0] > 0)] * 2, out=tmp_path / "run")
    predictor = load_predictor(tmp_path / "run")
    weight, bias = (own.detach().double() for own in predictor.module.parameters())
    near = inputs.double() - (inputs.double() @ weight.T + bias) / weight.square().sum() * weight
    copies = near.float().repeat_interleave(7, 0).reshape(-1, 7, 5)
    torn = [rows for rows in copies if len(set(log_odds(predictor.outputs(rows)) > 0)) == 2]
    assert torn
    config["privacy"] = {"epsilon": 2.0, "delta": DELTA, "ledger": str(tmp_path / "budgets")}
    config["nodes"] = {"without_records": [1]}
    rows, none = torn[0], torch.zeros(7, dtype=torch.bool)
    nodes, crew = [(rows, none), (rows[:0], none[:0])], crew_of(2, limit=60.0)

    def one(rank):
        return noised_scores(config, tmp_path / "run", 0.5, nodes=nodes, peers=crew[rank])

    for found in at_once(one, range(2)):
        assert np.array(found.counts).max() == 7


def test_groups_are_those_of_the_table(home):
    data, rows, schema = table_of(home)
    for column in ("sex", "diagnosis", "smoker"):
        groups = groups_by(schema, column)
        named = [groups.names[k] for k in groups.of(data.inputs)]
        other = "(missing)" if column == "smoker" else "(other)"
        words = {"yes": "true", "no": "false", "": "(missing)"}
        truth = [words.get(row[column], row[column]) for row in rows]
        assert named == [one if one in groups.names else other for one in truth]
    groups = groups_by(schema, "age")
    ends = [[float(end) for end in name.split(" to ")] for name in groups.names]
    for row, place in zip(rows, groups.of(data.inputs), strict=True):
        assert ends[place][0] <= float(row["age"]) <= ends[place][1]
    embedded = {**SCHEMA["columns"], "sex": {**SCHEMA["columns"]["sex"], "embed": 2}}
    other_schema = Schema.of({**SCHEMA, "columns": embedded})
    packed = other_schema.dataset(read_table(home / "patients.csv", "table", use=other_schema))
    found = groups_by(other_schema, "sex").of(packed.inputs)
    assert ["fm"[k] for k in found] == [row["sex"] for row in rows]


def test_the_budget_of_the_data_pays_before_anything_leaves(home, monkeypatch):
    file = experiment(home, "paid")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tacit.privacy.noise.independent.IndependentNoise.add", killed)
        with pytest.raises(KeyboardInterrupt):
            noised_scores(file, home / "run", EPSILON)
    spent = [row.epsilon for row in ledger_document(home / "paid").nodes]
    assert spent == [pytest.approx(EPSILON, rel=5e-3)]
    found = noised_scores(file, home / "run", 1.0)
    assert 0.99 <= max(found.epsilon) <= 1.0
    data, _, _ = table_of(home)
    counts = np.array(found.counts).sum((0, 1, 3))
    spread = math.hypot(*found.noise_std) * math.sqrt(len(found.edges) + 1)
    assert counts == pytest.approx(np.bincount(data.targets), abs=6 * spread)
    with pytest.raises(BudgetError):
        noised_scores(file, home / "run", 1.9)


def audited(run, epsilon):
    """Whether one release of so many counts, half of which a record of its own is in, refutes it.

    Every count is an experiment of its own: the noise of each is independent.
    """
    values, inside = run
    counts = [int((values[inside == own] > 0.5).sum()) for own in (1, 0)]
    half = int((inside == 1).sum())
    found = Counts(half, counts[0], len(values) - half, counts[1])
    return epsilon_of_mu(mu_lower(found, confidence=0.999), DELTA) > epsilon


@pytest.mark.parametrize(
    ("bug", "caught"), [("none", False), ("counted twice", True), ("half the noise", True)]
)
def test_an_audit_catches_what_is_counted_twice_or_too_little_noised(
    home, monkeypatch, bug, caught
):
    """Through the release itself, of all kinds of counts."""
    cells, seen = 60_000, []
    inside = torch.arange(cells) % 2
    histograms = noised_counts.histograms

    def planted(cells, train, width):
        totals = histograms(cells, train, width)
        totals[:] = inside.double()
        return totals * 2 if bug == "counted twice" else totals

    shared = noised_counts.shared_counts

    def watched(what, released, *rest):
        seen.append(released.value.clone())
        return shared(what, released, *rest)

    monkeypatch.setattr(noised_counts, "histograms", planted)
    monkeypatch.setattr(noised_counts, "shared_counts", watched)
    if bug == "half the noise":
        from tacit.privacy.noise.independent import IndependentNoise

        add = IndependentNoise.add

        def halved(self, totals, stds, *rest, **more):
            return add(self, totals, [std / 2 for std in stds], *rest, **more)

        monkeypatch.setattr(IndependentNoise, "add", halved)
    file = experiment(home, f"audit {bug}")
    counted = read_counted(file, None, None, ALONE)
    train, labels = counted.loaded.train, counted.labels
    plan, _ = noised_counts.counted_once(counted.config, EPSILON, train, labels, cells, ALONE)
    assert plan.nodes[0].epsilon == pytest.approx(EPSILON, rel=5e-3)
    (released,) = seen
    whole = (released.reshape(-1), inside.repeat(5))
    assert audited(whole, EPSILON) == caught


@pytest.mark.slow
def test_processes_agree_on_model_records_and_groups(home, tmp_path):
    """Before anything is charged; and where they do, both have the same table."""
    other = experiment(home)
    other["privacy"] = {"epsilon": "none"}
    tacit.train(other, out=tmp_path / "other")

    def scored(budgets, changes):
        crew = crew_of(2, limit=60.0)

        def one(rank):
            try:
                run, by, held = changes[rank]
                file = experiment(home, f"{budgets}-{rank}")
                return noised_scores(file, run, EPSILON, by=by, held_out=held, peers=crew[rank])
            except Exception as error:
                crew[rank].report(error)
                raise

        return at_once(one, range(2))

    run, held = home / "run", f"csv:{home / 'patients.csv'}"
    wrong = {
        "scores.model": (tmp_path / "other", None, None),
        "scores.by": (run, "sex", None),
        "scores.records": (run, None, held),
    }
    for words, change in wrong.items():
        results = scored(words, [(run, None, None), change])
        assert all(isinstance(error, InputError) for error in results), results
        assert any(words in str(error) for error in results), results
        assert not list(home.glob(f"{words}-*"))
    first, second = scored("agreed", [(run, "sex", None)] * 2)
    assert first == second
    assert len(first.counts) == 5


@pytest.mark.parametrize(
    ("changes", "by", "words"),
    [
        ({"privacy": {"epsilon": 2.0, "delta": DELTA}}, None, "privacy.ledger"),
        ({}, "hospital", "must be a column"),
        ({}, "sx", "must be a column"),
    ],
)
def test_what_cannot_be_scored_is_refused(home, changes, by, words):
    file = experiment(home, "refused") | changes
    with pytest.raises(InputError, match=words):
        noised_scores(file, home / "run", EPSILON, by=by)
    assert not (home / "refused").exists()


def test_scores_at_home_stay_there(home):
    """By group, beside the run, for nobody else; what is there is kept."""
    data, rows, _ = table_of(home)
    found, path = evaluate_privately(home / "run", by="sex")
    again, other = evaluate_privately(home / "run", f"csv:{home / 'sample.csv'}")
    assert found.trained_on
    assert any("was trained on these records" in str(block) for block in found.blocks)
    assert not again.trained_on
    assert (path.name, other.name) == ("private-scores-1.json", "private-scores-2.json")
    assert path.stat().st_mode & 0o777 == 0o600
    odds = log_odds(load_predictor(home / "run").outputs(data.inputs))
    for own, name in zip(found.scores, (None, "f", "m"), strict=True):
        chosen = np.array([name in (None, row["sex"]) for row in rows])
        truth = data.targets.numpy()[chosen]
        assert own.records == chosen.sum()
        assert own.metrics["auc"] == pytest.approx(roc_auc_score(truth, odds[chosen]))
        assert own.accuracy == pytest.approx(accuracy_score(truth, odds[chosen] > 0))
    written = json.loads(path.read_text())
    assert written["scores"][0]["metrics"]["auc"] == found.scores[0].metrics["auc"]
    with pytest.raises(InputError, match="must be a column"):
        evaluate_privately(home / "run", by="nobody")
    at_the_same_time = at_once(lambda rank: evaluate_privately(home / "run"), range(4))
    assert len({path for _, path in at_the_same_time}) == 4


@pytest.mark.process
def test_sites_score_what_they_trained_by_real_commands(tmp_path):
    """Both say the same, and each ledger has training, labels and scores in one account."""
    names, files = ("north", "south"), {}
    for name in names:
        (home := tmp_path / f"of {name}").mkdir()
        inputs = np.random.default_rng(len(files)).normal(size=(300, 5)).astype(np.float32)
        np.savez(home / "own.npz", inputs=inputs, targets=(inputs[:, 0] > 0).astype(np.int64))
        file = {
            "task": {"model": "logistic", "outputs": 2},
            "nodes": {"count": 2, "data": "by-rank", "source": str(home / "own.npz")},
            "algorithm": {"name": "dp2-sgd"},
            "privacy": {
                "epsilon": 2.0,
                "delta": DELTA,
                "ledger": str(home / "budgets"),
                "ledger_epsilon": 4.0,
            },
            "train": {"steps": 3, "batch": "all"},
        }
        (home / "trial.toml").write_text(tomli_w.dumps(file))
        files[name] = home / "trial.toml"
    with consortium(tmp_path, names) as made:
        made.relay()
        for name in names:
            made.train(name, files[name])
        assert [ended.code for ended in made.ends()] == [0, 0]
        for words in (("labels",), ("scores", "runs/run")):
            for name in names:
                command, *more = words
                asked = ("privacy", command, files[name], *more, "--json")
                made.start(name, *asked, "--site", tmp_path / name)
            first, second = made.ends()
            assert (first.code, second.code) == (0, 0), first.err + second.err
            assert first.out == second.out
    for name in names:
        (account,) = ledger_document(files[name].with_name("budgets")).nodes
        assert account.data == name
        assert len(account.releases) == 3
