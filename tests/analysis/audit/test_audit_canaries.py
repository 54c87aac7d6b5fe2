"""One training with mislabelled canaries: who is in, what is trained, what is guessed."""

from __future__ import annotations

import functools
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import tacit
from algorithms.battery_table import rate
from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit import canaries as module
from tacit.analysis.audit.canaries import RIDGE, Alignment, Forms, mislabel, run_once, unlike
from tacit.analysis.audit.trade_off import epsilon_of_any, of_mechanisms, p_value
from tacit.config import load_config
from tacit.data import Dataset
from tacit.privacy import Relation
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

ZERO_OUT: Relation = "add-or-remove-one"
NODES, RECORDS = 3, 60


def job_of(loss="logistic", *, units=None, **changes):
    """Separable records of two classes, or a linear target; `units` says whose they are."""
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(NODES, RECORDS, 12, generator=draw, dtype=torch.float64)
    truth = inputs @ torch.linspace(-1, 1, 12, dtype=torch.float64)
    targets = {
        "logistic": torch.where(truth > 0, 1.0, -1.0).double(),
        "cross-entropy": (truth > 0).long(),
        "mse": truth[..., None],
    }[loss]
    model = nn.Linear(12, 2 if loss == "cross-entropy" else 1)
    config = load_config(
        {
            "task": {"loss": loss},
            "algorithm": {"name": "privsgp", "learning_rate": 0.05, "clip": 1.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-4, **changes.pop("privacy", {})},
            "train": {"steps": 12, "batch": "all", "dtype": "float64", **changes},
        },
        count=NODES,
        given_model=True,
    )
    parts = list(zip(inputs, targets, strict=True))
    if units is not None:
        parts = [
            Dataset(*part, [f"{node}-{unit}" for unit in units]) for node, part in enumerate(parts)
        ]
    return prepare(config, model=model, nodes=parts)


def run(job, *, relation=ZERO_OUT, **more):
    known = {"nodes": (0, 1, 2), "steps": job.plan.steps, "canaries": 24, "seed": 4}
    return run_once(job, relation=relation, **{"context": StackedContext, **known, **more})


class Quiet(StackedContext):
    """A thousandth of the noise."""

    share = 1e-3

    def add_noise(self, total, k, **options):
        noise = super().add_noise(torch.zeros_like(total), k, **options)
        return total.add_(noise, alpha=self.share)


@pytest.mark.parametrize("loss", ["logistic", "cross-entropy", "mse"])
def test_without_noise_most_coins_are_guessed(loss):
    job = job_of(loss)
    one_run = run_once(
        job, nodes=(0, 1, 2), steps=12, relation=ZERO_OUT, canaries=12, seed=4, context=Quiet
    )
    right = (one_run.scores > np.median(one_run.scores)) == one_run.included
    assert right.mean() >= 0.75
    assert one_run.guessed.correct == one_run.guessed.guesses == 2


def test_under_replace_one_the_right_label_is_the_alternative():
    job = job_of(privacy={"relation": "replace-one"})
    one_run = run_once(
        job, nodes=(0, 1, 2), steps=12, relation="replace-one", canaries=12, seed=4, context=Quiet
    )
    assert ((one_run.scores > 0) == one_run.included).mean() >= 0.9


WHOSE = [min(row // 2, 19) for row in range(RECORDS)]  # 19 persons of two rows, one of 22
PERSONS = {"unit": "column:person", "unit_rows": 3}


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["mean", "sum"])
@pytest.mark.parametrize("relation", [ZERO_OUT, "replace-one"])
def test_without_noise_most_persons_are_guessed(relation, rows):
    privacy = {**PERSONS, "unit_gradient": rows, "relation": relation}
    job = job_of(units=WHOSE, privacy=privacy)
    assert [node.records for node in job.plan.nodes] == [20] * NODES
    wanted = {"relation": relation, "canaries": 12, "context": Quiet, "canary": "unlike"}
    runs = [run(job, **wanted) for _ in range(3)]  # whose little noise differs
    right = [(one.scores > np.median(one.scores)) == one.included for one in runs]
    assert np.mean(right) >= 0.75


def test_persons_that_are_out_are_not_there_with_any_row():
    seen: list[Any] = []

    def context(plan, model, data, keys, exchange):
        seen.append((plan, data))
        return StackedContext(plan, model, data, keys, exchange)

    job = job_of(units=WHOSE, privacy=PERSONS, batch=5)
    one_run = run(job, nodes=(0, 2), steps=1, canaries=12, context=context)
    plan, data = seen[0]
    assert NODES * 20 - len(data.units.starts) == (~one_run.included).sum()
    assert [node.records for node in plan.nodes] == data.counts.tolist()
    assert plan.nodes[1].records == 20
    everyone = torch.arange(int(data.counts.sum()))
    inputs, targets = module.records_of(data, everyone)
    mine, _ = module.records_of(job.train, torch.arange(NODES * 20))
    canaries = data.units.starts >= len(job.train.targets)
    assert canaries.sum() == one_run.included.sum()
    assert (data.units.counts[canaries] == 3).all()
    assert (inputs[canaries] == inputs[canaries][:, :1]).all()
    assert (targets[canaries] == targets[canaries][:, :1]).all()
    known = {tuple(rows.flatten().tolist()) for rows in mine}
    assert all(tuple(rows.flatten().tolist()) in known for rows in inputs[~canaries])


def test_a_certified_training_is_not_refuted():
    for seed in range(5):
        one_run = run(job_of(), seed=seed)
        assert (
            epsilon_of_any(one_run.guessed, delta=1e-4, confidence=0.99, times=one_run.times) <= 1.0
        )


def test_canaries_that_are_out_are_not_there_and_public_numbers_stay():
    seen: list[Any] = []

    def context(plan, model, data, keys, exchange):
        seen.append((plan, data))
        return StackedContext(plan, model, data, keys, exchange)

    job = job_of(batch=10)
    one_run = run_once(
        job, nodes=(0, 2), steps=1, relation=ZERO_OUT, canaries=20, seed=1, context=context
    )
    plan, data = seen[0]
    gone = NODES * RECORDS - len(data.targets)
    assert gone == (~one_run.included).sum()
    assert [node.records for node in plan.nodes] == data.sizes.tolist()
    assert plan.nodes[1].records == RECORDS
    assert [(node.rate, node.expected_batch) for node in plan.nodes] == [(1 / 6, 10.0)] * NODES
    changed = (data.targets == -1).sum() + (data.targets == 1).sum()
    assert changed == len(data.targets)
    # No record is a stranger: the inputs that are left are the nodes' own.
    assert {tuple(row) for row in data.inputs.tolist()} <= {
        tuple(row) for row in job.train.inputs.tolist()
    }


def test_canaries_are_at_most_half_of_a_nodes_records():
    one_run = run(job_of(steps=1), canaries=10_000, steps=1)
    assert one_run.guessed.canaries == NODES * RECORDS // 2
    assert one_run.guessed.guesses == one_run.guessed.canaries // 5
    assert 0.3 < one_run.included.mean() < 0.7


def test_wrong_labels_are_wrong():
    classes = torch.tensor([0, 1, 2])
    assert mislabel(classes, "cross-entropy", 3).tolist() == [1, 2, 0]
    assert mislabel(torch.tensor([-1.0, 1.0]), "logistic", 1).tolist() == [1.0, -1.0]
    assert mislabel(torch.tensor([[2.0], [0.0]]), "mse", 1).tolist() == [[-2.0], [1.0]]


def test_sampled_and_fixed_batches_run():
    fixed = job_of(batch=10, sampling="fixed", privacy={"relation": "replace-one"})
    assert run(fixed, relation="replace-one").guessed.canaries == 24
    assert run(job_of(batch=10)).guessed.canaries == 24


class Silent(Quiet):
    """Hardly any noise, where a private state takes a great deal of it."""

    share = 1e-9


def private_rows():
    """Every private algorithm, and whether its releases grow with the gradients."""
    return [name for name, row in ALGORITHMS.items() if row.private]


@functools.cache
def images(count):
    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images[:count]).double().unsqueeze(1) / 16
    return pixels, torch.from_numpy(bunch.target[:count]).long()


OPTIONS: dict[str, dict[str, Any]] = {
    "dyn-general": {"clip_schedule": [1.0] * 8, "noise_schedule": [1.0] * 8},
    "fedspd-dp": {"clip": 1.0, "diameter": 50.0},
}


def digits_job(name, model="logistic", **algorithm):
    """Eight steps on real images, of every record."""
    pixels, labels = images(240)
    config = load_config(
        {
            "task": {"loss": "cross-entropy", "model": model, "outputs": 10},
            "algorithm": {
                "name": name,
                **({} if "inverse_step" in algorithm else rate(name, 0.1)),
                **OPTIONS.get(name, {"clip": 1.0}),
                **algorithm,
            },
            "privacy": {"epsilon": 1.0, "delta": 1e-3, "noise_seed": 1},
            "train": {"steps": 8, "batch": "all", "dtype": "float64"},
        },
        count=3,
    )
    parts = [slice(start, start + 80) for start in (0, 80, 160)]
    return prepare(config, nodes=[(pixels[part], labels[part]) for part in parts])


def audited(job, context, *, canaries=45, **more):
    mechanism = job.plan.release.mechanism(job.plan.nodes[0])
    one_run = run_once(
        job,
        nodes=(0, 1, 2),
        steps=job.plan.steps,
        relation=mechanism.relation,
        canaries=canaries,
        seed=1,
        context=context,
        **more,
    )
    return one_run, of_mechanisms([mechanism], times=one_run.times, points=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", private_rows())
def test_every_private_algorithm_is_audited(name):
    """Without noise its releases give the canaries away; as it is, they do not."""
    job = digits_job(name)
    loud, allowed = audited(job, Quiet, canary="unlike")
    assert loud.guessed.correct == loud.guessed.guesses == 9
    one_run, _ = audited(job, StackedContext, canary="unlike")
    assert p_value(one_run.guessed, allowed) > 0.01
    assert p_value(loud.guessed, allowed) < p_value(one_run.guessed, allowed)


@pytest.mark.parametrize(
    ("name", "state"),
    [("privsgp-vr", "private"), ("privsgp-vr", "public"), ("fedspd-dp", "private")],
)
def test_tables_anchors_and_iterates_are_audited(name, state):
    more = {"inverse_step": 5.0, "penalty": 1.0} if name == "fedspd-dp" else {}
    job = digits_job(name, state=state, **more)
    loud, _ = audited(job, Silent, canary="unlike")
    assert loud.guessed.correct >= loud.guessed.guesses - 1


def test_a_compressed_message_hides_no_canary():
    job = digits_job("do-adp", compressor="rand-k", keep=0.2)
    loud, _ = audited(job, Quiet, canary="unlike")
    assert loud.guessed.correct == loud.guessed.guesses


def test_convolutions_are_audited():
    loud, _ = audited(digits_job("privsgp", model="cnn"), Quiet, canary="unlike")
    assert loud.guessed.correct >= loud.guessed.guesses - 1


def test_dropout_is_audited_with_a_record_in_the_canarys_place():
    pixels, labels = images(120)
    model = nn.Sequential(nn.Flatten(), tacit.Dropout(0.3), nn.Linear(64, 10))
    config = load_config(
        {
            "task": {"loss": "cross-entropy", "outputs": 10},
            "algorithm": {"name": "privsgp", "clip": 1.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-3},
            "train": {"steps": 8, "batch": "all", "dtype": "float64"},
        },
        count=3,
        given_model=True,
    )
    parts = [slice(start, start + 40) for start in (0, 40, 80)]
    nodes = [(pixels[part], labels[part]) for part in parts]
    job = prepare(config, model=model.double(), nodes=nodes)
    loud, allowed = audited(job, Quiet, canary="unlike")
    assert loud.times == 2  # one record is removed, and another one added
    assert allowed.times == 2
    assert loud.guessed.correct == loud.guessed.guesses


def test_a_long_run_is_looked_at_in_few_steps(monkeypatch):
    seen: list[int] = []
    plain = Alignment.add

    def counted(self, *values, step=0):
        seen.append(step)
        plain(self, *values, step=step)

    monkeypatch.setattr(Alignment, "add", counted)
    monkeypatch.setattr(module, "MOST_SCORED", 4)
    run(job_of())
    assert seen == [0, 3, 7, 11]


def test_a_large_model_is_looked_at_in_fewer_steps_then_with_fewer_canaries(monkeypatch):
    seen: list[int] = []
    plain = Alignment.add

    def counted(self, *values, step=0):
        seen.append(step)
        plain(self, *values, step=step)

    job = job_of()
    monkeypatch.setattr(Alignment, "add", counted)
    monkeypatch.setattr(module, "FEW_SCORED", 3)
    monkeypatch.setattr(module, "FEW_CANARIES", 5)
    for affordable, canaries, steps in ((24 * 6, 24, 6), (24 * 2, 16, 3), (1, 5, 3)):
        monkeypatch.setattr(module, "MOST_GRADIENTS", affordable * job.plan.parameters)
        seen.clear()
        assert run(job).guessed.canaries == canaries
        assert len(seen) == steps
        assert (seen[0], seen[-1]) == (0, 11)  # evenly spread


def test_a_long_training_of_a_large_model_stops_early(monkeypatch):
    job, heard = job_of(), []
    assert run(job).stopped_after is None
    each = job.plan.parameters * (NODES + module.GRADIENT_TIME * NODES * RECORDS)
    monkeypatch.setattr(module, "MOST_NOISE", 5.5 * each)
    assert run(job, on_step=heard.append).stopped_after == 5
    assert heard == [1, 2, 3, 4, 5]
    monkeypatch.setattr(module, "MOST_NOISE", 0)
    assert run(job).stopped_after == 1


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_scores_are_inner_products_with_each_canarys_gradient(joint, replaced):
    """Against a loop over canaries, node by node."""
    job, draw = job_of("cross-entropy"), torch.Generator().manual_seed(2)
    rows = torch.tensor([3, 7, 61, 62, 140])
    owners, was, right = rows // RECORDS, job.train.inputs_of(rows), job.train.targets[rows]
    forms = Forms(
        nodes=owners,
        inputs=3 * was,
        targets=1 - right,
        other_inputs=was if replaced else None,
        other_targets=right if replaced else None,
    )
    points = torch.randn(NODES, job.plan.parameters, generator=draw, dtype=torch.float64)
    released = torch.randn(points.shape, generator=draw, dtype=torch.float64)
    precision = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
    alignment = Alignment(job.model, job.train, rows, forms, clip_norm="l2", joint=joint)
    alignment.add([points], released, precision, 1.0)

    def gradient(row, inputs, target):
        node = row // RECORDS
        alone = torch.ones(1, 1, dtype=torch.bool)
        batch = points[[node]], inputs[None, None], target[None, None], alone
        return job.model.gradient(*batch, 1.0).total[0]

    whole, differences = torch.zeros_like(points), []
    for row in set(range(NODES * RECORDS)) - set(rows.tolist()):
        whole[row // RECORDS] += gradient(row, job.train.inputs[row], job.train.targets[row])
    for place, row in enumerate(rows.tolist()):
        form = gradient(row, forms.inputs[place], forms.targets[place])
        other = gradient(row, was[place], right[place]) if replaced else torch.zeros_like(form)
        whole[row // RECORDS] += (form + other) / 2
        differences.append(form - other)
    weight = precision[:, None]
    multiple = max(0.0, float((weight * released * whole).sum() / (weight * whole**2).sum()))
    rows_of = torch.stack(differences) * precision[owners].sqrt()[:, None]
    rest = (released - multiple * whole)[owners] * precision[owners].sqrt()[:, None]
    scores = (rows_of * rest).sum(1)
    if joint:
        gram = rows_of @ rows_of.T * (owners[:, None] == owners)
        scores = torch.linalg.solve(gram + RIDGE * gram.diagonal().mean() * torch.eye(5), scores)
    assert np.allclose(alignment.scores(), scores.numpy(), rtol=1e-9)


def test_a_table_of_mini_batches_keeps_its_records_in_place():
    """A record that is gone would move those after it into other mini-batches."""
    sizes: list[list[int]] = []

    def context(plan, model, data, keys, exchange):
        sizes.append(data.sizes.tolist())
        return StackedContext(plan, model, data, keys, exchange)

    for more, times in (({"table_batch": 2}, 2), ({}, 1)):
        one_run, allowed = audited(digits_job("privsgp-vr", state="private", **more), context)
        assert one_run.times == allowed.times == times
        assert (sizes[-1] == [80] * 3) == (times == 2)


class Lookup(nn.Module):
    """A model that takes a floating number as an id."""

    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(8, 3), nn.Linear(6, 2)

    def forward(self, inputs):
        ids = inputs[:, 0].abs().long()
        return cast(torch.Tensor, self.out(torch.cat([self.rows(ids), inputs[:, 1:]], 1)))


def test_a_model_that_fails_on_strangers_gets_mislabelled_records():
    inputs = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(1))
    inputs[..., 0] = torch.arange(30) % 5
    config = load_config(
        {
            "task": {"loss": "cross-entropy"},
            "algorithm": {"name": "privsgp", "learning_rate": 0.1, "clip": 1.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-3},
            "train": {"steps": 3, "batch": 8},
        },
        count=2,
        given_model=True,
    )
    nodes = [(part, torch.arange(30) % 2) for part in inputs]
    job = prepare(config, model=Lookup(), nodes=nodes)
    chosen = {"nodes": (0, 1), "steps": 3, "canaries": 20, "seed": 1, "relation": ZERO_OUT}
    one_run = run_once(job, canary="unlike", context=StackedContext, **chosen)
    assert one_run.kind == "mislabelled"


def test_inputs_that_no_record_has():
    rng, inputs = np.random.default_rng(0), torch.randn(20, 3, 4)
    made = unlike(inputs, rng, None)
    assert made.shape == inputs.shape
    norms = made.flatten(1).norm(dim=1)
    assert torch.allclose(norms, 10 * inputs.flatten(1).norm(dim=1).max().expand(20), rtol=1e-4)
    bounded = unlike(inputs, rng, 2.0).flatten(1).norm(dim=1)
    assert bool((bounded < 2.0).all())
    assert bool((bounded > 1.99).all())
    tokens = torch.randint(0, 50, (20, 7))
    assert set(unlike(tokens, rng, None).flatten().tolist()) <= set(tokens.flatten().tolist())
