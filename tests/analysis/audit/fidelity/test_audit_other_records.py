"""Other records of the same public kind: as many, shaped alike, and each of them another one."""

from __future__ import annotations

from dataclasses import replace

import audit_cases
import pytest
import torch
from fidelity_jobs import CLASSES, SIZES, job_of
from torch import Tensor, nn

from tacit.analysis.audit import records as changing
from tacit.analysis.audit.canaries import records_of
from tacit.analysis.audit.records import CHANGES, candidates, other_records
from tacit.config import load_config
from tacit.training.prepare import prepare

_ON = torch.float32, "cpu"


def made(job, name):
    data = other_records(job, CHANGES[name])
    assert data is not None
    assert (data.stored.shape, data.stored.dtype) == (
        job.train.stored.shape,
        job.train.stored.dtype,
    )
    assert (data.targets.shape, data.targets.dtype) == (
        job.train.targets.shape,
        job.train.targets.dtype,
    )
    assert data.sizes.equal(job.train.sizes)
    return data


def given(model, records, loss="mse", **more):
    config = load_config(
        {
            "task": {"loss": loss},
            "algorithm": {"name": "dp2-sgd"},
            "privacy": {"noise_std": 5.0, "delta": 1e-3},
            "train": {"steps": 2, "batch": 2},
        },
        count=2,
        given_model=True,
    )
    return prepare(config, model=model, nodes=[records] * 2, **more)


def differs(one, other):
    """Of each record, whether anything is another number."""
    return (one != other).reshape(len(one), -1).any(1)


@pytest.mark.parametrize("name", CHANGES)
def test_numbers_and_labels(name):
    job = job_of("privsgp")
    data = made(job, name)
    moved = differs(data.stored, job.train.stored)
    first = torch.zeros(sum(SIZES), dtype=torch.bool)
    first[job.train.offsets] = True
    assert moved.equal(first) if name == "one extreme" else bool(moved.all())
    assert int(data.targets.min()) >= 0
    assert int(data.targets.max()) < CLASSES
    if name == "all others":
        assert bool((data.targets != job.train.targets.flip(0)).all())
    if name == "all zeros":  # the largest label is not among them
        assert int(data.targets.max()) == 0
    job.loss.check_records(torch.zeros(1, CLASSES), data.targets)


@pytest.mark.parametrize("name", CHANGES)
def test_persons_change_with_all_of_their_rows(name):
    job = audit_cases.job(privacy=audit_cases.PERSONS)
    data, units = other_records(job, CHANGES[name]), job.train.units
    assert data is not None
    assert data.units is not None
    assert data.counts.equal(units.sizes)
    if name == "all others":
        assert (data.units.counts == 1).all()
        assert data.sizes.equal(units.sizes)
        return
    assert data.units.counts.equal(units.counts)
    moved = differs(data.stored, job.train.stored)
    first = torch.zeros(len(moved), dtype=torch.bool)
    first[units.rows(units.offsets)] = True
    assert moved.equal(first) if name == "one extreme" else bool(moved.all())


def test_the_worst_persons_agree_cancel_or_are_unlike_in_their_rows():
    job = audit_cases.job(privacy=audit_cases.PERSONS)
    own = records_of(job.train, job.train.units.offsets)
    place = *own, *records_of(job.train, job.train.units.offsets + 1)
    found = {one.name: one for one in candidates(job, place, job.model.start(1, *_ON)[0], 3)}
    for one in found.values():
        assert one.inputs.shape == own[0].shape
        assert one.targets.shape == own[1].shape
    agreeing = found["found by ascent"].inputs
    assert (agreeing == agreeing[:, :1]).all()
    opposite = found["whose rows of 1e+08 cancel"].inputs
    assert (opposite[:, 0] + opposite[:, 1]).abs().max() < 1e-6 * opposite.abs().max()
    mixed = found["half of whose rows have a wrong target"].targets
    assert (mixed[:, 0] != mixed[:, 1]).all()


@pytest.mark.parametrize("name", CHANGES)
def test_inputs_stay_within_the_public_bound(name):
    job = job_of("privsgp", task={"input_bound": 1.0})
    norms = made(job, name).inputs.double().norm(dim=1)
    assert bool((norms <= 1.0).all())


@pytest.mark.parametrize("name", CHANGES)
def test_bytes_stay_bytes(name):
    job = job_of("privsgp")
    pixels = torch.arange(6 * sum(SIZES)).reshape(-1, 6).byte()
    job = replace(job, train=replace(job.train, stored=pixels, bytes=True))
    data = made(job, name)
    wanted = {"all zeros": 0, "all large": 255}.get(name)
    assert wanted is None or bool((data.stored == wanted).all())
    assert bool(differs(data.stored, job.train.stored).any())


@pytest.mark.parametrize("name", CHANGES)
def test_ids_have_a_row_in_every_embedding(name):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.many, self.few, self.last = nn.Embedding(9, 2), nn.Embedding(4, 2), nn.Linear(4, 1)

        def forward(self, ids):
            pair = torch.cat([self.many(ids[:, 0]), self.few(ids[:, 1])], dim=1)
            out: Tensor = self.last(pair)
            return out

    ids = torch.stack([torch.arange(6) % 4, torch.arange(6) % 3], dim=1)
    job = given(Two(), (ids, torch.rand(6, 1)))
    data = made(job, name)
    assert int(data.stored.max()) < 4
    assert bool(differs(data.stored, job.train.stored).any())


@pytest.mark.parametrize(
    ("values", "allowed"), [((0.0, 1.0), {0.0, 1.0}), ((-1.0, 1.0), {-1.0, 1.0})]
)
@pytest.mark.parametrize("name", CHANGES)
def test_two_classes_keep_their_two_numbers(name, values, allowed):
    targets = torch.tensor(values).repeat(3)
    job = given(nn.Linear(3, 1), (torch.randn(6, 3), targets), loss="logistic")
    data = made(job, name)
    assert set(data.targets.tolist()) <= allowed
    job.loss.check_records(torch.zeros(1, 1), data.targets)


@pytest.mark.parametrize("name", CHANGES)
def test_targets_of_a_users_own_loss_are_those_of_other_records(name):
    targets = torch.rand(6, 2)
    job = given(nn.Linear(3, 2), (torch.randn(6, 3), targets), "given", given_loss=nn.HuberLoss())
    known = {tuple(row) for row in job.train.targets.tolist()}
    assert {tuple(row) for row in made(job, name).targets.tolist()} <= known


class _FirstNumberIsAnId(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds, self.last = nn.Embedding(8, 2), nn.Linear(3, 1)

    def forward(self, inputs):
        kinds = self.kinds(inputs[:, 0].abs().long())
        outputs: Tensor = self.last(torch.cat([kinds, inputs[:, 1:]], dim=1))
        return outputs


def test_numbers_that_are_ids_are_asked_of_all_records():
    """In another order, the one record that becomes an unknown id comes late."""
    inputs = torch.zeros(1100, 2)
    inputs[0, 0] = 5
    job = given(_FirstNumberIsAnId(), (inputs, torch.rand(1100, 1)))
    assert other_records(job, CHANGES["all others"]) is None
    assert other_records(job, CHANGES["all zeros"]) is not None


def test_records_that_a_model_fails_on_are_not_tried(monkeypatch):
    def failing(model, inputs):
        return int((inputs.abs().amax(dim=1) > 100).sum())

    monkeypatch.setattr(changing, "failures", failing)
    job = job_of("privsgp")
    assert {name for name, change in CHANGES.items() if other_records(job, change) is None} == {
        "all large",
        "one extreme",
    }
