"""What is noised moves by the accounted sensitivity at most, in every algorithm of the table.

A record is replaced, with the same coins and the same released values: the noise is exchanged for
one that ignores what it is given, so that runs on neighbouring data differ in nothing but sums.
"""

import math
from dataclasses import replace

import pytest
import torch
from battery_experiments import DELTA, experiment, schedule_options
from battery_table import ANY_CLIP, CLIP, NOISED, ROWS
from test_algorithms_battery import digits
from torch import Tensor

from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.data import Dataset, stack
from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import CLIP_NORMS
from tacit.privacy.mechanisms.steps import PersistentState, PrivateState, schedule
from tacit.privacy.noise.independent import IndependentNoise
from tacit.training.budget import node_keys
from tacit.training.planner import build_plan
from tacit.training.prepare import prepare
from tacit.training.processes.communication import local_exchange
from tacit.training.stacked_context import StackedContext

STEPS, RECORDS, RECORD = 4, 7, 2

Noised = dict[tuple[int, int, int], tuple[Tensor, float]]
"""What is noised: (step, part, node) to the row before noise, and the noise's scale."""


def job_of(case, dtype, model, batch, privacy=None, nodes=None, **more):
    options = {**schedule_options(case, STEPS), **ROWS[case].resumed, **more}
    if not ROWS[case].trains:
        model = ROWS[case].network
    given = {"epsilon": 8.0, "delta": DELTA, "noise_seed": 1, **(privacy or {})}
    config = experiment(
        case, dtype=dtype, model=model, steps=STEPS, batch=batch, options=options, privacy=given
    )
    nodes = digits(RECORDS, RECORDS, RECORDS) if nodes is None else nodes
    return prepare(load_config(config, count=3), nodes=nodes)


def noised(job):
    """All that is handed to the gate in a run whose released values are fixed."""
    found = {}

    def ignoring(total, stds, keys, nodes, purpose, k, *, part=0):
        for row, (std, node) in enumerate(zip(stds, nodes, strict=True)):
            found[k, part, node] = total[row].clone(), std
            draws = torch.Generator().manual_seed(1000 * k + 10 * part + node)
            total[row] = std * torch.randn(total.shape[1], generator=draws, dtype=total.dtype)
        return total

    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    context = StackedContext(
        job.plan, job.model, job.train, node_keys(job.plan), local_exchange(job)
    )
    context._noise = IndependentNoise("ignored", ignoring)
    state = algorithm.start(
        job.model.start(len(job.plan.nodes), job.dtype, job.device), options, context
    )
    for k in range(STEPS):
        state = algorithm.step(state, k, options, context)
    return found


def shifts(job, k):
    """What the accounted mechanism lets one record shift step k by, over the noise; and how often.

    The second: records of several hits add up.
    """
    node = job.plan.nodes[0]
    whole = job.plan.release.mechanism(node)
    if isinstance(whole, PersistentState):
        # Every round may hit, and each hit is seen again in the rounds that follow.
        hits = schedule(whole)[: job.plan.release.active_steps(node).index(k) + 1]
        return sum(1 / multiplier for multiplier in hits), job.plan.release.local_steps
    alone = job.plan.release.mechanism(node, [(k, k + 1)])
    (multiplier,) = schedule(alone)
    return (alone.drawn_norm if isinstance(alone, PrivateState) else 1.0) / multiplier, 1


CHANGES = {
    "null": lambda record: torch.full_like(record, math.nan),
    "huge": lambda record: record * 1e10,
    "beyond": lambda record: record * 1e35,
    "negated": lambda record: -5 * record,
    "denormal": lambda record: record * 1e-40,
}


def with_records(job):
    """The job with another record in its place, one after the other; and whether that is none."""
    record = job.train.inputs[RECORD].clone()
    for name, change in CHANGES.items():
        job.train.inputs[RECORD] = change(record)
        yield name, name == "null", job
        job.train.inputs[RECORD] = record


def assert_moves_as_accounted(job, changed=with_records):
    laplace = job.config.algorithm.definition.releases.noise.norm == "l1"
    before = noised(job)
    moved = False
    for name, gone, other in changed(job):
        after = noised(other)
        assert after.keys() == before.keys()
        for place, (row, std) in before.items():
            k, _, node = place
            difference = (after[place][0].double() - row.double()).abs()
            assert after[place][1] == std
            assert bool(torch.isfinite(difference).all())
            if node:
                assert not difference.any()
                continue
            length = float(difference.sum() if laplace else difference.square().sum().sqrt())
            shift, hits = shifts(job, k)
            pair = 1 if gone else 2
            assert length <= pair * hits * shift * std * (1 + 1e-12), (name, place)
            moved |= length > 0
    assert moved


@pytest.mark.parametrize(
    ("model", "batch", "dtype"),
    [
        ("logistic", 3, "float32"),
        ("logistic", 3, "float64"),
        ("logistic", "all", "float32"),
        pytest.param("cnn", 3, "float32", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", NOISED)
def test_what_is_noised_moves_by_the_accounted_sensitivity(case, model, batch, dtype):
    assert_moves_as_accounted(job_of(case, dtype, model, batch))


PERSONS = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 5, 5, 6]  # whose each row of a node is
MOST = 4  # rows of a person that count


def of_persons():
    """As many persons a node as there are records elsewhere."""
    count = len(PERSONS)
    return [
        Dataset(images, labels, [f"{node}-{person}" for person in PERSONS])
        for node, (images, labels) in enumerate(digits(count, count, count))
    ]


def _some(row, rows):
    return row.expand(rows, *row.shape[1:])


def _cancelling(row):
    rest = torch.linspace(-1, 1, MOST).view(-1, 1, 1, 1)
    signs = torch.tensor([1.0, -1.0] * (MOST // 2)).view(-1, 1, 1, 1)
    return 1e8 * signs * row + rest


def _one_null(row):
    rows = _some(1e6 * row, MOST).clone()
    rows[1] = math.nan
    return rows


UNITS = {
    "null": lambda row: _some(torch.full_like(row, math.nan), MOST),
    "one row null": _one_null,
    "one row": lambda row: -1e6 * row,
    "as they were but one": lambda row: torch.cat([row, row, -1e10 * row]),
    "agreeing": lambda row: _some(-1e6 * row, MOST),
    "beyond": lambda row: _some(1e35 * row, MOST),
    "cancelling": _cancelling,
    "denormal": lambda row: _some(1e-40 * row, MOST),
    "thousands": lambda row: _some(-1e6 * row, 10_000),
}
"""Of one row of a person, `[1, 1, 8, 8]`: all rows that the person has instead."""


def with_units(job):
    """The job with other rows of one person, who is stacked as always."""
    parts, person = of_persons(), RECORD
    rule, whose = job.train.units.rule, torch.tensor(PERSONS)
    row = parts[0].inputs[whose == person][:1].to(job.dtype)
    for name, change in UNITS.items():
        rows, others = change(row), whose != person
        inputs = torch.cat([parts[0].inputs[others].to(job.dtype), rows])
        labels = torch.cat([parts[0].targets[others], torch.full((len(rows),), 3)])
        ids = [f"0-{own}" for own in [*whose[others].tolist(), *[person] * len(rows)]]
        changed = [Dataset(inputs, labels, ids), *parts[1:]]
        train = stack(changed, job.dtype, "cpu", rule, range(len(changed)))
        yield name, "null" in name, replace(job, train=job.train_of(train))


@pytest.mark.parametrize(
    ("rows", "model", "batch", "dtype"),
    [
        ("mean", "logistic", 3, "float32"),
        ("sum", "logistic", "all", "float32"),
        pytest.param("sum", "mlp", 3, "float32", marks=pytest.mark.slow),
        pytest.param("mean", "mlp", "all", "float64", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "case",
    [
        "privsgp",
        "dpdo",
        "privsgp-vr",
        "privsgp-vr, private",
        "soteriafl-saga",
        "soteriafl-svrg",
        "dp-fedavg",
        "fedspd-dp, private",
        "dp-srm",
        "ldp-spider",
        "noised-moments",
    ],
)
def test_all_rows_of_a_person_move_what_is_noised_as_one_record(case, rows, model, batch, dtype):
    privacy = {"unit": "column:person", "unit_rows": MOST, "unit_gradient": rows}
    job = job_of(case, dtype, model, batch, privacy, of_persons())
    assert job.plan.nodes[0].records == RECORDS
    assert_moves_as_accounted(job, with_units)


@pytest.mark.parametrize(
    "case", ["fedspd-dp", "fedspd-dp, private", "dpdo", "dp-admm", "dp-radmm-gradient", "privsgp"]
)
def test_steps_below_a_unit_in_the_last_place_of_the_model(case):
    """Of a model at full size, what one record adds would be lost, or rounded up."""
    small = {"learning_rate": 1e-7}
    if case.startswith("fedspd"):
        small |= {"local_steps": 1}
    if case.endswith("private"):  # smaller steps are refused beside a model of this size
        small |= {"learning_rate": 1e-2}
    assert_moves_as_accounted(job_of(case, "float32", "mlp", "all", **small))


@pytest.mark.parametrize("norm", CLIP_NORMS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_clip_norm_that_is_not_proved_is_refused(name, norm):
    case = next(case for case, row in ROWS.items() if row.name == name)
    options = {"clip": 1.0, **schedule_options(case, STEPS), "clip_norm": norm}
    if "clip_schedule" in options:  # which is the bound of each step
        del options["clip"]
    config = load_config(experiment(case, steps=STEPS, options=options), count=3)
    if norm in CLIP.get(name, ("l2",)):
        assert build_plan(config, [RECORDS] * 3, 5).release.clip.norm == norm
        return
    with pytest.raises(InputError) as refused:
        build_plan(config, [RECORDS] * 3, 5)
    assert (refused.value.where, refused.value.value) == ("algorithm.clip_norm", norm)
    others = " or ".join(f"'{other}'" for other in CLIP.get(name, ("l2",)))
    assert refused.value.expected == f"must be {others} for this method"


@pytest.mark.parametrize("norm", ["coordinate", "l1", "automatic"])
@pytest.mark.parametrize("case", [case for case in NOISED if ROWS[case].name in ANY_CLIP])
def test_with_any_clip_that_is_proved_it_moves_by_the_accounted_sensitivity(
    case, norm, monkeypatch
):
    """Kept and subtracted gradients are clipped in l2, whatever `clip_norm` says: none is taken."""

    def refused(*_):
        raise AssertionError("is clipped in l2 only")

    monkeypatch.setattr(StackedContext, "batch_difference", refused)
    monkeypatch.setattr(StackedContext, "table", property(refused))
    assert_moves_as_accounted(job_of(case, "float64", "logistic", 3, clip_norm=norm))
