"""What all runs cost together: against closed forms, the accountant, and the folders of runs."""

import math
import shutil

import pytest
import tomli_w

import tacit
from experiments import experiment
from tacit import privacy
from tacit.analysis.settings.runs import run_digest
from tacit.analysis.settings.spent import sentences, spent_together, together
from tacit.analysis.tune.search import load_search
from tacit.config import load_config
from tacit.privacy import Composed, Gaussian, Laplace, SampledGaussian
from tacit.privacy.ledger.spent import dominating
from tacit.report.documents.figure import SpentTogether

DELTA = 1e-5


def test_runs_of_equal_nodes_are_composed():
    runs = [SampledGaussian(0.1, 2.0, 30), SampledGaussian(0.2, 3.0, 20)]
    epsilon, composed = together([[run] * 3 for run in runs], DELTA)
    assert composed
    assert epsilon == privacy.epsilon(Composed(runs), delta=DELTA)
    assert epsilon < sum(privacy.epsilon(run, delta=DELTA) for run in runs)


def test_gaussians_add_up_as_their_closed_form_does():
    """Every record at every step: mu^2 adds up over runs, steps and the worst node of each."""
    runs = [[Gaussian(4.0, 8), Gaussian(5.0, 8)], [Gaussian(3.0, 2)]]
    mu = math.sqrt(8 / 16 + 2 / 9)
    epsilon, composed = together(runs, DELTA)
    assert composed
    assert epsilon == pytest.approx(privacy.epsilon(Gaussian(1 / mu, 1), delta=DELTA), rel=1e-9)


def test_what_cannot_be_composed_is_summed_at_shares_of_delta():
    apart = [Laplace(8.0), Laplace(4.0)]
    mechanism = SampledGaussian(0.1, 2.0, 10)
    epsilon, composed = together([apart, [mechanism]], DELTA)
    assert not composed
    expected = max(privacy.epsilon(node, delta=DELTA / 2) for node in apart)
    assert epsilon == expected + privacy.epsilon(mechanism, delta=DELTA / 2)


def train(folder, name, **changes):
    return tacit.train(experiment(**changes), out=folder / name)


SECRET = {"noise_seed": None}


def test_folders_are_read_by_their_ledgers(tmp_path):
    """Batch "all": the closed form again; nodes of 449 or 450 records add the same noise."""
    results = [
        train(tmp_path, f"run{seed}", privacy=SECRET, train={"seed": seed}) for seed in range(2)
    ]
    train(tmp_path, "seeded")
    (row,) = spent_together(sorted(tmp_path.iterdir()))
    assert (row.runs, row.not_private, row.unreadable) == (2, 1, 0)
    worst = [
        dominating([run.plan.release.mechanism(node) for node in run.plan.nodes]) for run in results
    ]
    expected = privacy.epsilon(
        Composed([mechanism for mechanism in worst if mechanism is not None]), delta=1e-5
    )
    assert row.epsilon == pytest.approx(expected, rel=1e-9)
    assert (row.relation, row.unit) == ("add-or-remove-one", "record")
    assert row.epsilon > max(value for run in results for value in run.epsilon if value)


def test_a_run_whose_bound_is_assumed_is_not_private_and_not_damaged(tmp_path):
    train(
        tmp_path,
        "assumed",
        algorithm={"name": "do-adp", "clip": 1.0, "clip_norm": "assumed"},
        privacy={"noise_std": None, "epsilon": 1.0, "accounting": "published", "noise_seed": None},
        train={"steps": 4, "batch": 1},
    )
    (row,) = spent_together([tmp_path / "assumed"])
    assert (row.not_private, row.unreadable, row.epsilon) == (1, 0, None)
    (text,) = sentences([row], chosen=False)
    assert "a bound that is assumed" in text


def test_runs_that_were_cut_off_count(tmp_path):
    train(tmp_path, "whole", privacy=SECRET)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    (row,) = spent_together(sorted(tmp_path.iterdir()))
    assert row.runs == 2
    (alone,) = spent_together([tmp_path / "whole"])
    assert row.epsilon > alone.epsilon


def test_relations_are_kept_apart_and_damage_is_told(tmp_path):
    train(tmp_path, "a", privacy=SECRET)
    train(tmp_path, "b", privacy={**SECRET, "relation": "replace-one"})
    train(tmp_path, "c", privacy=SECRET)
    (tmp_path / "c" / "ledger.sqlite").write_bytes(b"no ledger")
    (tmp_path / "d").mkdir()
    rows = spent_together(sorted(tmp_path.iterdir()))
    known = {row.relation: row for row in rows if row.dataset == "digits"}
    assert set(known) == {"add-or-remove-one", "replace-one"}
    assert {row.runs for row in known.values()} == {1}
    assert {row.unreadable for row in known.values()} == {1}
    text = sentences(rows, chosen=False)
    assert any("cannot be read" in sentence for sentence in text)


def test_the_words_say_what_was_spent():
    row = SpentTogether(
        dataset="adult",
        relation="replace-one",
        unit="client",
        trust_model="server-sees-all",
        runs=6,
        epsilon=3.1416,
        delta=1e-5,
        composed=True,
        not_private=2,
        unreadable=0,
    )
    text = " ".join(sentences([row], chosen=True))
    assert "All 6 runs on the records of adult together cost certified epsilon 3.15" in text
    assert "replacing one client" in text
    assert "server-sees-all" in text
    assert "are in no total: 2." in text
    assert "chosen among several" in text
    alone = row.model_copy(update={"runs": 1, "not_private": 0})
    assert sentences([alone], chosen=False) == []
    infinite = row.model_copy(update={"epsilon": None})
    assert "no finite epsilon holds" in " ".join(sentences([infinite], chosen=True))


# Comparisons and searches of earlier versions are found again: by the same digests.


PRIVACY = {"noise_std": None, "noise_seed": None, "epsilon": 1.0, "delta": 1e-5}
LEDGER = {"ledger": "/x/y", "ledger_epsilon": 3.0}


@pytest.mark.parametrize(
    ("privacy", "run", "search"),
    [
        (PRIVACY, "a37e87ec7192", "b58b312bc0482faf5dfbe499d32d5192"),
        (PRIVACY | LEDGER, "cd8cd070e281", "0adcc3811b71c688b9fe867e87258e2b"),
    ],
)
def test_digests_are_what_they_were(privacy, run, search, tmp_path):
    assert run_digest(load_config(experiment(privacy=privacy))) == run
    file = tmp_path / "s.toml"
    sections = experiment(privacy=privacy, nodes={"count": 1})
    file.write_text(tomli_w.dumps({**sections, "tune": {"grid": {"algorithm.clip": [0.5, 1.0]}}}))
    assert load_search(file).digest() == search
