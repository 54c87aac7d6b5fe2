"""Records that are searched for: within what is declared, and further than where they began."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tacit.analysis.audit.plain_gradients import clipped, plain_model
from tacit.analysis.audit.records import ascend, candidates, marker
from tacit.config import load_config
from tacit.training.prepare import prepare

CLASSES, ROWS = 3, 7


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(ROWS, 5), nn.Linear(5, CLASSES)

    def forward(self, inputs):
        outputs: Tensor = self.head(torch.tanh(self.words(inputs)).mean(dim=1))
        return outputs


def job_of(module, *, ids=False, **sections):
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


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def tried(job):
    """Inputs and targets of everything that is tried in the place of the first record."""
    inputs, targets = job.train.inputs, job.train.targets
    place = inputs[:1], targets[:1], inputs[1:2], targets[1:2]
    start = job.model.start(1, job.dtype, job.device)[0]
    found = list(candidates(job, place, start, 0))
    return torch.cat([one.inputs for one in found]), torch.cat([one.targets for one in found])


@pytest.mark.parametrize("ids", [False, True])
def test_one_of_them_puts_clipping_to_the_test(ids):
    job = job_of(Words() if ids else mlp(), ids=ids)
    plain = plain_model(job.model, torch.float64, job.device)
    start = job.model.start(1, torch.float64, job.device)[0]
    lengths = plain.gradients(start, *tried(job)).norm(dim=1)
    assert float(lengths.max()) > 0.5  # the clipping bound


def test_all_are_within_what_is_declared():
    inputs, targets = tried(job_of(mlp(), task={"input_bound": 2.0}))
    assert float(inputs.double().norm(dim=1).max()) <= 2.0
    assert bool(torch.isfinite(inputs).all())
    ids, labels = tried(job_of(Words(), ids=True))
    assert int(ids.min()) >= 0
    assert int(ids.max()) < ROWS
    for found in (targets, labels):
        assert bool(((found >= 0) & (found < CLASSES)).all())


def test_ascent_goes_further_than_any_label_does():
    job = job_of(mlp())
    plain, at = (
        plain_model(job.model, torch.float64, job.device),
        job.model.start(1, torch.float64, "cpu")[0],
    )
    record, target = job.train.inputs[0].double(), job.train.targets[0]
    labels = [torch.tensor(label) for label in range(CLASSES)]
    own = clipped(plain.gradients(at, record[None], target[None]), 0.5, "l2")[0]

    def distance(record, target):
        moved = clipped(plain.gradients(at, record[None], target[None]), 0.5, "l2")[0]
        return float((moved - own).norm())

    found = ascend(plain, at, record, labels, own, 0.5)
    assert found is not None
    assert max(distance(record, label) for label in labels) < distance(*found) <= 1.0 + 1e-9


def test_a_marker_is_like_no_record():
    job = job_of(Words(), ids=True)
    found = marker(job, job.train.inputs, job.train.targets, 0)
    assert found is not None
    assert not bool((job.train.inputs == found.inputs).all(dim=1).any())
    everything = torch.arange(ROWS).unsqueeze(1)
    assert marker(job, everything, torch.zeros(ROWS), 0) is None


def test_the_first_kinds_are_the_same_at_every_call():
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
