"""What all runs cost together: against closed forms, the accountant, and the folders of runs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from experiments import experiment
from tacit import privacy
from tacit.compare.together import dominating, sentences, spent_together, together
from tacit.privacy import Composed, FixedBatchGaussian, Gaussian, Laplace, SampledGaussian

DELTA = 1e-5


def test_runs_of_equal_nodes_are_composed() -> None:
    runs = [SampledGaussian(0.1, 2.0, 30), SampledGaussian(0.2, 3.0, 20)]
    epsilon, composed = together([[run] * 3 for run in runs], DELTA)
    assert composed
    assert epsilon == privacy.epsilon(Composed(runs), delta=DELTA)
    assert epsilon < sum(privacy.epsilon(run, delta=DELTA) for run in runs)


def test_gaussians_add_up_as_their_closed_form_does() -> None:
    """Every record at every step: mu^2 adds up over runs, steps and the worst node of each."""
    runs = [[Gaussian(4.0, 8), Gaussian(5.0, 8)], [Gaussian(3.0, 2)]]
    mu = math.sqrt(8 / 16 + 2 / 9)
    epsilon, composed = together(runs, DELTA)
    assert composed
    assert epsilon == pytest.approx(privacy.epsilon(Gaussian(1 / mu, 1), delta=DELTA), rel=1e-9)


gaussians = st.builds(
    lambda rate, multipliers: SampledGaussian(rate, multipliers),
    st.floats(0.05, 1.0),
    st.lists(st.floats(0.8, 4.0), min_size=3, max_size=3),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(gaussians, min_size=1, max_size=3))
def test_the_dominating_mechanism_costs_no_less(nodes: list[SampledGaussian]) -> None:
    whole = dominating(nodes)
    assert whole is not None
    for epsilon in (0.3, 2.0):
        above = privacy.delta(whole, epsilon=epsilon)
        for node in nodes:
            # Both are upper bounds: what is proved from below of a node may not lie above.
            assert privacy.delta_bounds(node, epsilon=epsilon)[0] <= above * (1 + 1e-9)


def test_the_dominating_mechanism_takes_the_worst_of_each() -> None:
    nodes = [SampledGaussian(0.1, [1.0, 3.0]), SampledGaussian(0.3, [2.0, 2.0], coordinates=4)]
    whole = dominating(nodes)
    assert whole == SampledGaussian(0.3, [1.0, 2.0], coordinates=4)
    assert dominating([Gaussian([2.0, 1.0]), nodes[0]]) == Gaussian([1.0, 1.0])
    fixed = [FixedBatchGaussian(2, 10, 1.0, 3), FixedBatchGaussian(2, 5, 2.0, 3)]
    assert dominating(fixed) == FixedBatchGaussian(2, 5, 1.0, 3)
    assert dominating([Laplace(1.0), Laplace(2.0)]) is None
    assert dominating([Gaussian(1.0, 2), Gaussian(1.0, 3)]) is None


def test_what_cannot_be_composed_is_summed_at_shares_of_delta() -> None:
    apart = [Laplace(8.0), Laplace(4.0)]
    one = SampledGaussian(0.1, 2.0, 10)
    epsilon, composed = together([apart, [one]], DELTA)
    assert not composed
    expected = max(privacy.epsilon(node, delta=DELTA / 2) for node in apart)
    assert epsilon == expected + privacy.epsilon(one, delta=DELTA / 2)


def train(folder: Path, name: str, **changes: Any) -> tacit.Result:
    return tacit.train(experiment(**changes), out=folder / name)


SECRET = {"noise_seed": None}


def test_folders_are_read_by_their_ledgers(tmp_path: Path) -> None:
    """Batch "all": the closed form again; nodes of 449 or 450 records add the same noise."""
    results = [
        train(tmp_path, f"run{seed}", privacy=SECRET, train={"seed": seed}) for seed in range(2)
    ]
    train(tmp_path, "seeded")
    (row,) = spent_together(sorted(tmp_path.iterdir()))
    assert (row["runs"], row["not_private"], row["unreadable"]) == (2, 1, 0)
    worst = [dominating([run.plan.mechanism(node) for node in run.plan.nodes]) for run in results]
    expected = privacy.epsilon(Composed([one for one in worst if one is not None]), delta=1e-5)
    assert row["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert (row["relation"], row["unit"]) == ("add-or-remove-one", "record")
    assert row["epsilon"] > max(value for run in results for value in run.epsilon if value)


def test_runs_that_were_cut_off_count(tmp_path: Path) -> None:
    train(tmp_path, "whole", privacy=SECRET)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    (row,) = spent_together(sorted(tmp_path.iterdir()))
    assert row["runs"] == 2
    (alone,) = spent_together([tmp_path / "whole"])
    assert row["epsilon"] > alone["epsilon"]


def test_relations_are_kept_apart_and_damage_is_told(tmp_path: Path) -> None:
    train(tmp_path, "a", privacy=SECRET)
    train(tmp_path, "b", privacy={**SECRET, "relation": "replace-one"})
    train(tmp_path, "c", privacy=SECRET)
    (tmp_path / "c" / "ledger.sqlite").write_bytes(b"no ledger")
    (tmp_path / "d").mkdir()
    rows = spent_together(sorted(tmp_path.iterdir()))
    known = {row["relation"]: row for row in rows if row["dataset"] == "digits"}
    assert set(known) == {"add-or-remove-one", "replace-one"}
    assert {row["runs"] for row in known.values()} == {1}
    assert {row["unreadable"] for row in known.values()} == {1}
    said = sentences({"together": rows, "lines": [], "ledger": False, "seeds": 1})
    assert any("cannot be read" in sentence for sentence in said)


def test_the_words_say_what_was_spent() -> None:
    row = {
        "dataset": "adult",
        "relation": "replace-one",
        "unit": "client",
        "trust_model": "server-sees-all",
        "runs": 6,
        "epsilon": 3.1416,
        "delta": 1e-5,
        "composed": True,
        "not_private": 2,
        "unreadable": 0,
    }
    document = {"together": [row], "lines": [{"points": [1, 2]}], "ledger": True, "seeds": 3}
    said = " ".join(sentences(document))
    assert "All 6 runs on the records of adult together cost certified epsilon 3.15" in said
    assert "replacing one client" in said
    assert "server-sees-all" in said
    assert "are in no total: 2." in said
    assert "chosen among several" in said
    assert "deals the records to the nodes anew" in said
    nothing = {"together": [{**row, "runs": 1, "not_private": 0}], "lines": [{"points": [1]}]}
    assert sentences({**nothing, "ledger": False, "seeds": 1}) == []
    infinite = {**document, "together": [{**row, "epsilon": None}]}
    assert "no finite epsilon holds" in " ".join(sentences(infinite))
