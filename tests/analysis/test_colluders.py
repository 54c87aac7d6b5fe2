"""Epsilon against any number of colluders, recomputed from what a run has left behind."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from experiments import experiment
from tacit import privacy
from tacit.analysis.colluders import epsilon_against
from tacit.analysis.ledger_report import confirm, ledger_document
from tacit.analysis.statement import check_statement, write_statement
from tacit.config import load_config
from tacit.errors import InputError
from tacit.report.documents.run import read_result, read_run_folder
from tacit.report.run_charts import run_charts
from tacit.training.budget import epsilon_by_colluders
from tacit.training.consensus import consensus_distances
from tacit.training.evaluation import Part, _notes
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from web_pages import drawn

Sections = Mapping[str, Mapping[str, Any]]


def pairwise(**changes):
    """Five nodes of unequal size on the complete graph, one of which may collude."""
    privacy_section = {"noise_std": None, "epsilon": 1.0, "delta": 1e-4, "noise": "pairwise"}
    return experiment(
        **{
            "nodes": {"count": 5, "partition": "dirichlet", "alpha": 5.0},
            "topology": {"graph": "complete"},
            "algorithm": {"name": "dp2-sgd"},
            "train": {"batch": 20},
            **changes,
            "privacy": {**privacy_section, **changes.get("privacy", {})},
        }
    )


def trained(folder, **changes):
    job = prepare(load_config(pairwise(**changes)))
    execute(job, out=folder)
    ledger = ledger_document(folder)
    assert ledger.trust is not None
    return job.plan, ledger, ledger.trust


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("pairwise") / "run")


@pytest.mark.slow
def test_a_ledger_tells_what_its_plan_told(run):
    plan, ledger, terms = run
    planned = epsilon_by_colluders(plan)
    for stated, by_plan in zip(terms.epsilon_by_colluders, planned, strict=True):
        assert stated == pytest.approx(by_plan, rel=1e-6)
    assert len(planned) == terms.colluding + 2
    guaranteed = [account.epsilon for account in ledger.nodes]
    assert guaranteed == list(terms.epsilon_by_colluders[terms.colluding])
    assert all(np.diff(np.array(planned, float), axis=0).min(axis=1) > 0)


@pytest.mark.parametrize("batch", [20, "all"])
def test_anchors_are_told_like_sums(tmp_path, batch):
    """Their mechanism has parts of two kinds."""
    plan, _, terms = trained(
        tmp_path / "run",
        algorithm={"name": "privsgp-vr", "anchor_every": 2},
        train={"batch": batch},
    )
    for stated, planned in zip(terms.epsilon_by_colluders, epsilon_by_colluders(plan), strict=True):
        assert stated == pytest.approx(planned, rel=1e-6)


def test_a_node_that_never_acts_is_counted_by_nobody(tmp_path):
    """Its mechanism is stated as if it acted in the first step, which would hide others there."""
    algorithm = {"name": "adp2-sgd"}
    train = {"steps": 3, "batch": 20}
    plan, ledger, terms = trained(tmp_path / "run", algorithm=algorithm, train=train)
    absent = [node.node for node in plan.nodes if not plan.release.active_steps(node)]
    assert absent
    assert list(terms.absent) == absent
    for stated, planned in zip(terms.epsilon_by_colluders, epsilon_by_colluders(plan), strict=True):
        for node in set(range(len(stated))) - set(absent):
            assert stated[node] == pytest.approx(planned[node], rel=1e-6)
    acting = next(
        node.node for node in plan.nodes if max(plan.release.active_steps(node), default=0)
    )
    with pytest.raises(InputError, match="must take part in no step"):
        epsilon_against(ledger, terms.model_copy(update={"absent": (acting,)}))


def test_epsilon_is_that_of_one_noised_sum_by_hand(run):
    """Sigma of the others by hand, inverted for every colluder; the worst; its epsilon."""
    plan, _, terms = run
    own = np.array(terms.own)
    for node in plan.nodes:
        counted = []
        for gone in set(range(5)) - {node.node}:
            sigma = np.diag(own**2)
            for i, j in terms.pairs:
                if gone not in (i, j):
                    sigma[[i, j], [i, j]] += terms.deviation**2
                    sigma[[i, j], [j, i]] -= terms.deviation**2
            honest = [other for other in range(5) if other != gone]
            inverse = np.linalg.inv(sigma[np.ix_(honest, honest)])
            place = honest.index(node.node)
            counted.append(inverse[place, place] ** -0.5)
        gain = min(counted) / own[node.node]
        mechanism = privacy.SampledGaussian(
            node.rate,
            gain * plan.release.own_multiplier(node, 0),
            plan.steps,
            coordinates=plan.release.noised_values,
        )
        expected = privacy.epsilon(mechanism, delta=1e-4)
        assert terms.epsilon_by_colluders[1][node.node] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp-sgd", "dp-fedavg"])
def test_a_ledger_tells_what_secure_sums_are_worth(name, tmp_path):
    """By who takes part alone: clients of unequal size, three of five a round."""
    changes = {
        "topology": {},
        "algorithm": {"name": name, "clients_per_round": 3},
        "privacy": {"noise": None, "noise_seed": None, "aggregation": "secure-sum"},
    }
    plan, ledger, terms = trained(tmp_path / "run", **changes)
    assert (terms.pairs, terms.deviation, terms.colluding) == ((), 0.0, 1)
    assert max(terms.own) / min(terms.own) - 1 < 1e-12
    planned = epsilon_by_colluders(plan)
    for stated, by_plan in zip(terms.epsilon_by_colluders, planned, strict=True):
        assert stated == pytest.approx(by_plan, rel=1e-4)
    assert all(np.diff(np.array(planned, float), axis=0).min(axis=1) > 0)
    confirm(ledger)
    path, _ = write_statement(tmp_path / "run")
    confirmed = check_statement(path)
    assert (confirmed.trust_model, confirmed.colluding) == ("secure-sum", 1)


@pytest.mark.slow
def test_who_is_away_counts_for_nothing_in_that_step(tmp_path):
    """Pairs are among the active nodes of a step, which the mechanisms tell."""
    changes = {"algorithm": {"name": "adp2-sgd"}, "train": {"batch": 20, "steps": 12}}
    plan, ledger, terms = trained(tmp_path / "run", **changes)
    assert plan.release.activity is not None
    planned = epsilon_by_colluders(plan)
    for stated, by_plan in zip(terms.epsilon_by_colluders, planned, strict=True):
        # Steps that a node is away from stand in a ledger with noise that is not quite infinite.
        assert stated == pytest.approx(by_plan, rel=1e-4)
    confirm(ledger)


def test_a_result_has_the_terms(tmp_path):
    execute(prepare(load_config(pairwise())), out=tmp_path / "run")
    result = read_result(tmp_path / "run" / "result.json")
    assert result.trust_model == "pairwise"
    assert result.trust is not None
    assert result.trust.nodes_by_process == (5,)
    assert list(result.trust.epsilon_by_colluders[1]) == list(result.epsilon)
    assert "A simulation of its trust model" in (tmp_path / "run" / "report.html").read_text()


def test_a_result_has_the_forecast_of_every_measurement(tmp_path):
    """On a ring, whose nodes stay apart: in the unit of what is measured, and of its size."""
    shape = {
        "topology": {"graph": "ring", "rounds": 1},
        "train": {"batch": 20, "evaluate_every": 2},
    }
    job = prepare(load_config(pairwise(**shape)))
    execute(job, out=tmp_path / "run")
    run = read_run_folder(tmp_path / "run")
    steps = [line.step for line in run.measurements]
    planned = consensus_distances(job.plan, steps)
    assert list(run.result.consensus_forecast) == list(zip(steps, planned, strict=True))
    for line, distance in zip(run.measurements, planned, strict=True):
        assert line.consensus_distance is not None
        assert distance is not None
        assert line.consensus_distance == pytest.approx(distance, rel=0.25)  # of noise alone
    measured, forecast = drawn(dict(run_charts(run))["The network"][0]).data
    # Where all models start, they are equal: zero has no place on a logarithmic axis.
    assert list(forecast.y) == [None, *planned[1:]]
    assert list(measured.y) == [None, *(line.consensus_distance for line in run.measurements[1:])]


def test_dropped_messages_say_that_noise_stays():
    job = prepare(load_config(pairwise()))
    part = Part((0,) * 6, 3, None, False, 0.0, None, torch.zeros(0))
    (note,) = _notes(job, [part])
    assert "3 (noise of pairs that was in them is left in the mean; privacy stands)" in note
    assert _notes(job, [replace(part, dropped=0)]) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"own": (0.1, 0.1, 0.1, 0.1, 0.3)},
        {"expected_batch": (20.0, 20.0, 20.0, 20.0, 10.0)},
        {"pairs": ((0, 1), (1, 2), (2, 3), (3, 4))},
        {"deviation": 1e-3},
        {"epsilon_by_colluders": ((0.1,) * 5, (0.2,) * 5, (0.3,) * 5)},
        {
            "own": (0.1,) * 4,
            "expected_batch": (20.0,) * 4,
            "nodes_by_process": (4,),
            "absent": (),
            "pairs": ((0, 1),),
            "epsilon_by_colluders": ((0.1,) * 4,) * 3,
        },
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_terms_of_other_noise_are_refused(run, changes):
    _, ledger, terms = run
    false = ledger.model_copy(update={"trust": terms.model_copy(update=dict(changes))})
    confirm(ledger)
    with pytest.raises(InputError, match=r"trust|colluder"):
        confirm(false)


def test_terms_are_of_the_nodes_of_the_ledger(run):
    _, ledger, terms = run
    fewer = ledger.model_copy(update={"nodes": ledger.nodes[:4]})
    with pytest.raises(InputError, match="4 nodes"):
        epsilon_against(fewer, terms)
