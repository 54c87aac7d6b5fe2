"""Tests of who is drawn: a correct program passes, and each defect is found by the test for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import drawing_lab as lab
import numpy as np
import pytest
import sampling_bugs as bugs
from audit_bugs import NeighboursKey
from noise_bugs import PublicSeed
from planting import Patch, patched

from algorithms.battery_table import ROWS
from tacit.algorithms import ALGORITHMS
from tacit.training import sampling
from tacit.training.stacked_context import StackedContext

POISSON: Mapping[str, Any] = {}
TWO_PARTS: Mapping[str, Any] = {"name": "dp-fedavg", "local_steps": 2}
AGAIN: Mapping[str, Any] = {**TWO_PARTS, "sampling": "with-replacement"}
PRIMAL: Mapping[str, Any] = {"name": "fedspd-dp", "local_steps": 2, "clients_per_round": 3}
ANCHORS: Mapping[str, Any] = {"name": "privsgp-vr", "anchor_every": 4}
TABLE: Mapping[str, Any] = {"name": "privsgp-vr", "state": "private", "table_batch": 3}
PRIVATE = [case for case, row in ROWS.items() if ALGORITHMS[row.name].private]
BOTH = pytest.mark.parametrize("setting", [POISSON, lab.FIXED], ids=["poisson", "fixed"])


def failed(findings):
    """Names of the tests that did not pass."""
    return {name for name, finding in findings.items() if not finding.passed}


def found(
    context,
    setting,
    algorithm=None,
    *,
    patches=(),
    **options,
):
    """The findings about a defect, of what executes a step or of the sampler that it calls."""
    job = lab.drawing_job(algorithm, **setting)
    with patched(patches):
        return lab.findings_of(lab.observe(job, context, **options))


def planned_as(runs, others):
    """What runs show, under the plans of others."""
    return [replace(run, plan=other.plan) for run, other in zip(runs, others, strict=True)]


# Correct programs.


@BOTH
@pytest.mark.parametrize(
    "algorithm",
    [None, TWO_PARTS, AGAIN, PRIMAL, ANCHORS],
    ids=["one", "disjoint", "independent", "partial", "anchors"],
)
def test_a_correct_program(setting, algorithm):
    findings = found(StackedContext, setting, algorithm)
    assert not failed(findings)
    assert {"batches", "favoured records", "records drawn together"} <= set(findings)
    assert {"coins of steps", "coins of nodes", "coins of runs"} <= set(findings)
    assert ("sampling rate" in findings) == ("batch sizes" in findings) == (setting is POISSON)
    assert ("parts of a step" in findings) == (algorithm in (TWO_PARTS, PRIMAL))


def test_a_correct_program_with_random_allocation():
    job = lab.drawing_job(records=(20, 12, 17, 5), train={"sampling": "allocation", "steps": 10})
    assert [node.epoch_steps for node in job.plan.nodes] == [4, 3, 4, 1]
    findings = lab.findings_of(lab.observe(job))
    assert not failed(findings)
    assert {"batches", "epochs", "sampling rate", "favoured records"} <= set(findings)
    assert {"coins of steps", "coins of nodes", "coins of runs"} <= set(findings)
    assert "batch sizes" not in findings  # those of an epoch add up to all records
    assert not failed(lab.findings_of(lab.observe(job, absent=True, seed=5)))


def test_an_epoch_in_which_a_record_is_drawn_twice():
    runs = lab.observe(lab.drawing_job(**lab.ALLOCATION))
    assert lab.findings_of(runs)["epochs"].saw.startswith("In all 256 whole epochs")
    drawn_by_coins = lab.observe(lab.drawing_job())
    finding = lab.findings_of(planned_as(drawn_by_coins, runs))["epochs"]
    assert finding.p_value == 0
    assert "times in the epoch from step" in finding.saw


@pytest.mark.parametrize(
    ("patches", "name"),
    [(bugs.PUBLIC_ORDER, "coins of runs"), (bugs.SAME_COINS, "epochs")],
    ids=["public order", "same coins"],
)
def test_defects_of_an_allocation(patches, name):
    assert name in failed(found(StackedContext, lab.ALLOCATION, patches=patches))


def test_nodes_of_several_sizes_and_nodes_that_lack_a_record():
    runs = lab.observe(lab.drawing_job(records=(20, 12, 17, 5)), absent=True)
    assert not failed(lab.findings_of(runs))


def test_where_every_batch_holds_everything_only_that_is_asked():
    job = lab.drawing_job(train={"batch": "all"})
    assert set(lab.findings_of(lab.observe(job))) == {"batches"}
    assert failed(lab.findings_of(lab.observe(job, lab.ForeignRecords))) == {"batches"}


def test_a_table_of_mini_batches():
    runs = lab.observe(lab.drawing_job(TABLE))
    findings = lab.findings_of(runs)
    assert not failed(findings)
    assert "sampling rate" in findings


# What needs no chance.


@pytest.mark.parametrize(
    ("context", "setting", "saw"),
    [
        (lab.ForeignRecords, POISSON, "Step 2 drew a record that its node does not have."),
        (lab.RecordTwice, POISSON, "Step 2 drew a record twice in one batch."),
        (lab.LastIsDropped, POISSON, None),
        (lab.InPairs, lab.FIXED, r"Step \d drew \d records where 5 are planned."),
    ],
)
def test_what_a_batch_holds(context, setting, saw):
    finding = found(context, setting)["batches"]
    assert finding.passed == (saw is None)
    assert saw is None or re.match(saw, finding.saw)


def test_the_record_that_is_not_there_is_never_drawn():
    job = lab.drawing_job()
    assert lab.findings_of(lab.observe(job, absent=True))["batches"].passed
    runs = lab.observe(job)
    short = lab.observe(job, absent=True, steps=1)
    seen = lab.findings_of(planned_as(runs, short))["batches"]
    assert seen.p_value == 0
    assert "does not have" in seen.saw


def test_a_sum_over_every_record_that_leaves_one_out():
    finding = found(lab.WithoutTheLast, POISSON, ANCHORS)["batches"]
    assert finding.p_value == 0
    assert "Step 0 drew 19 records where 20 are planned." in finding.saw


def test_a_mini_batch_of_a_table_that_is_drawn_in_part():
    """The table's mini-batches are shorter by one record than the plan says."""
    runs = lab.observe(lab.drawing_job({**TABLE, "table_batch": 2}))
    short = lab.observe(lab.drawing_job(TABLE), steps=1)
    assert "drawn whole" in lab.findings_of(planned_as(runs, short))["batches"].saw


@BOTH
def test_parts_that_share_a_record(setting):
    finding = found(lab.SharedParts, setting, TWO_PARTS)["parts of a step"]
    assert (finding.statistic, finding.p_value) == (2.0, 0.0)  # once in each of two runs
    assert finding.saw == "In run 0, two parts of step 2 of node 3 share a record."


# Chance.


def _every_second(original):
    return lambda plan, keys, k, *rest, **more: original(plan, keys, k - k % 2, *rest, **more)


EVERY_SECOND = (Patch(sampling, "disjoint_batches", _every_second),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "name", "settings", "algorithm"),
    [
        (lab.SameParts, "coins of steps", (POISSON, lab.FIXED), AGAIN),
        (PublicSeed, "coins of runs", (POISSON, lab.FIXED), None),
        (PublicSeed, "coins of runs", (POISSON, lab.FIXED), TWO_PARTS),
        (NeighboursKey, "coins of nodes", (POISSON, lab.FIXED), None),
        (NeighboursKey, "coins of nodes", (POISSON, lab.FIXED), TWO_PARTS),
        (lab.InPairs, "records drawn together", (POISSON,), None),
        (lab.InPairs, "batch sizes", (POISSON,), None),
        (lab.LastIsDropped, "favoured records", (POISSON, lab.FIXED), None),
        (lab.NotDealt, "favoured records", (POISSON,), TWO_PARTS),
    ],
)
def test_a_defect(context, name, settings, algorithm):
    for setting in settings:
        assert name in failed(found(context, setting, algorithm))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patches", "name", "settings", "algorithm"),
    [
        (bugs.SAME_COINS, "coins of steps", (POISSON, lab.FIXED), None),
        (bugs.SAME_COINS, "coins of steps", (POISSON, lab.FIXED), TWO_PARTS),
        (bugs.SAME_COINS, "coins of steps", (POISSON, lab.FIXED), PRIMAL),
        (EVERY_SECOND, "coins of steps", (POISSON,), None),
        (bugs.SECRET_ORDER, "coins of steps", (lab.FIXED,), None),
        (bugs.PUBLIC_ORDER, "coins of steps", (lab.FIXED,), None),
        (bugs.PUBLIC_ORDER, "coins of nodes", (lab.FIXED,), None),
        (bugs.PUBLIC_ORDER, "coins of runs", (lab.FIXED,), None),
        (bugs.PUBLIC_ORDER, "favoured records", (lab.FIXED,), None),
        (bugs.EXACT_SIZE, "batch sizes", (POISSON,), None),
    ],
)
def test_a_defect_of_the_sampler(patches, name, settings, algorithm):
    for setting in settings:
        assert name in failed(found(StackedContext, setting, algorithm, patches=patches))


def test_a_key_that_two_nodes_of_several_sizes_share():
    job = lab.drawing_job(records=(20, 12, 17, 10))
    assert "coins of nodes" in failed(lab.findings_of(lab.observe(job, NeighboursKey)))


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_another_rate(factor):
    context = type("Other", (lab.AtRate,), {"rate_of_coins": 0.25 * factor})
    finding = found(context, POISSON)["sampling rate"]
    assert not finding.passed
    assert finding.statistic == pytest.approx(factor, rel=0.03)


# Power: what a test says that it finds, it finds.


def stated(finding):
    """The smallest defect that a finding states: a chance, or a percentage as a share."""
    number = re.search(r"(\d[\d.]*)( %)?", finding.power)
    assert number is not None
    return float(number[1]) / (100 if number[2] else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "key", "name", "smaller"),
    [
        (lab.AtRate, "rate_of_coins", "sampling rate", None),
        (lab.StepsRepeated, "share", "coins of steps", 0.4),
        (lab.SometimesFixed, "share", "batch sizes", 0.4),
        (lab.OneFavoured, "share", "favoured records", None),
    ],
)
def test_power(context, key, name, smaller):
    """And one that is much smaller is missed: the figure is not merely large."""
    least = stated(found(StackedContext, POISSON)[name])
    seen = [
        found(type("Least", (context,), {key: least}), POISSON, seed=1000 * seed)[name].passed
        for seed in range(1, 6)
    ]
    assert seen.count(False) >= 4
    if smaller is not None:
        small = type("Small", (context,), {key: least * smaller})
        assert found(small, POISSON, seed=100)[name].passed


def test_too_little_says_so():
    findings = lab.findings_of(lab.observe(lab.drawing_job(), nodes=4, runs=1, steps=1))
    assert "coins of runs" not in findings
    assert "coins of steps" not in findings
    assert findings["batch sizes"].power.startswith("There are too few batches")
    assert not failed(findings)


@pytest.mark.slow
def test_how_often_a_correct_program_is_accused():
    """A p-value of 1/20 or less comes up in at most one run of twenty: bounds are seldom near."""
    job = lab.drawing_job()
    low = dict[str, int]()
    for seed in range(60):
        for name, finding in lab.findings_of(
            lab.observe(job, nodes=4, steps=4, seed=10 * seed)
        ).items():
            low[name] = low.get(name, 0) + (finding.p_value <= 0.05)
    # More than 8 of 60 have a chance below 0.005 where each has 1/20.
    assert max(low.values()) <= 8
    assert np.mean(list(low.values())) <= 3


# Every private algorithm.


@pytest.mark.slow
@pytest.mark.parametrize("case", PRIVATE)
def test_no_private_algorithm_is_accused(case):
    row = ROWS[case]
    options = {"name": row.name, **row.options, **row.resumed}
    # Sampled Laplace noise has no bound for batches of a fixed size.
    laplace = ALGORITHMS[row.name].releases.noise.norm == "l1"
    for setting in (POISSON,) if laplace else (POISSON, lab.FIXED):
        job = lab.drawing_job(options, records=(20, 16, 18, 20), **setting)
        findings = lab.findings_of(lab.observe(job, nodes=16, steps=4))
        assert not failed(findings)
        assert {"batches", "favoured records", "coins of runs"} <= set(findings)
