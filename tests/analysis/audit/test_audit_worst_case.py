"""Records that are searched for: within what is declared, and further than where they began."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.analysis.audit.plain_gradients import clipped, plain_model
from tacit.analysis.audit.worst_case import ascend, candidates, marker, worst_records
from tacit.config import load_config
from tacit.errors import InputError
from tacit.gradients import Dropout
from tacit.training.prepare import Job, prepare

CLASSES, ROWS = 3, 7


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(ROWS, 5), nn.Linear(5, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.words(inputs)).mean(dim=1))
        return outputs


def job_of(module: nn.Module, *, ids: bool = False, **sections: Any) -> Job:
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 6, generator=draws)
    if ids:
        inputs = torch.randint(ROWS, (8, 6), generator=draws)
    node = inputs, torch.randint(CLASSES, (8,), generator=draws)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                layer.reset_parameters()
    config = load_config(
        {
            "task": {"loss": "cross-entropy", "outputs": CLASSES, **sections.pop("task", {})},
            "algorithm": {"name": "privsgp", "clip": 0.5},
            "privacy": {"epsilon": 5.0, "delta": 1e-3},
            "train": {"steps": 2, "batch": 4},
        },
        count=1,
        given_model=True,
    )
    return prepare(config, model=module, nodes=[node])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


@pytest.mark.parametrize("ids", [False, True])
def test_they_come_in_the_order_of_what_they_move(ids: bool) -> None:
    job = job_of(Words() if ids else mlp(), ids=ids)
    found = worst_records(job, 0, count=5)
    assert len(found.names) == len(found.inputs) == len(found.targets) == 5
    assert list(found.reaches) == sorted(found.reaches, reverse=True)
    assert 0.99 < found.reaches[0] <= 1
    lengths = found.directions.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    again = worst_records(job, 0, count=5)
    assert torch.equal(again.inputs, found.inputs)


def test_the_direction_is_that_of_the_records_own_clipped_gradient() -> None:
    job = job_of(mlp())
    found = worst_records(job, 0, count=3)
    plain, at = plain_model(job.model, torch.float64, job.device), job.model.layout.flatten
    own = plain.gradients(at(job.model.original).double(), found.inputs, found.targets)
    own = clipped(own, 1.0, "l2")
    directions = own / own.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found.directions, directions, rtol=1e-3, atol=1e-4)


def test_all_are_within_what_is_declared() -> None:
    bounded = job_of(mlp(), task={"input_bound": 2.0})
    found = worst_records(bounded, 0, count=50)
    assert float(found.inputs.double().norm(dim=1).max()) <= 2.0
    assert bool(torch.isfinite(found.inputs).all())
    ids = worst_records(job_of(Words(), ids=True), 0, count=50)
    assert int(ids.inputs.min()) >= 0
    assert int(ids.inputs.max()) < ROWS
    for records in (found, ids):
        assert bool(((records.targets >= 0) & (records.targets < CLASSES)).all())


def test_ascent_goes_further_than_any_label_does() -> None:
    job = job_of(mlp())
    plain, at = (
        plain_model(job.model, torch.float64, job.device),
        job.model.start(1, torch.float64, "cpu")[0],
    )
    record, target = job.train.inputs[0].double(), job.train.targets[0]
    labels = [torch.tensor(label) for label in range(CLASSES)]
    own = clipped(plain.gradients(at, record[None], target[None]), 0.5, "l2")[0]

    def distance(record: Tensor, target: Tensor) -> float:
        moved = clipped(plain.gradients(at, record[None], target[None]), 0.5, "l2")[0]
        return float((moved - own).norm())

    found = ascend(plain, at, record, labels, own, 0.5)
    assert found is not None
    assert max(distance(record, label) for label in labels) < distance(*found) <= 1.0 + 1e-9


def test_a_marker_is_like_no_record() -> None:
    job = job_of(Words(), ids=True)
    found = marker(job, job.train.inputs, job.train.targets, 0)
    assert found is not None
    assert not bool((job.train.inputs == found.inputs).all(dim=1).any())
    everything = torch.arange(ROWS).unsqueeze(1)
    assert marker(job, everything, torch.zeros(ROWS), 0) is None


def test_the_first_kinds_are_the_same_at_every_call() -> None:
    job = job_of(mlp())
    place = (
        job.train.inputs[:2],
        job.train.targets[:2],
        job.train.inputs[2:4],
        job.train.targets[2:4],
    )
    names = [[one.name for one in candidates(job, place, None, 3)] for _ in range(2)]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0]) > 8


def test_what_has_no_worst_record_is_refused() -> None:
    dropping = nn.Sequential(nn.Linear(6, 8), Dropout(0.5), nn.Linear(8, CLASSES))
    with pytest.raises(InputError, match=r"task\.model"):
        worst_records(job_of(dropping), 0)
