"""Full batches of a wide linear model: read where they lie, by all nodes or by some."""

import pytest
import torch
from torch import nn

from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.gradients import linear, stacked
from tacit.privacy.noise import draws as noise
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

STEPS = 6


@pytest.fixture(autouse=True)
def narrow():
    """Layers of any size are wide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "MOST_WEIGHTS", 0)
        patch.setattr(stacked, "LEAST_RECORDS", 1)
        yield


def job_of(sizes, inputs=None, **algorithm):
    draw = torch.Generator().manual_seed(5)
    values = torch.randn(sum(sizes), 4, generator=draw) if inputs is None else inputs
    labels = torch.randint(0, 3, (sum(sizes),), generator=draw)
    config = load_config(
        {
            "task": {"loss": "cross-entropy", "outputs": 3},
            "algorithm": {"name": "dp-sgd", "clip": 0.4, **algorithm},
            "privacy": {"noise_std": 0.1, "accounting": "none"},
            "train": {"steps": STEPS, "batch": "all"},
        },
        count=len(sizes),
        given_model=True,
    )
    nodes = list(zip(values.split(sizes), labels.split(sizes), strict=True))
    return prepare(config, model=nn.Linear(4, 3), nodes=nodes)


def context_of(job):
    exchange = InProcessExchange(job.plan.mixing.weights, dtype=job.dtype, device=job.device)
    keys = noise.seeded_keys(1, range(len(job.plan.nodes)))
    return StackedContext(job.plan, job.model, job.train, keys, exchange)


def points(nodes):
    return torch.randn(nodes, 15, generator=torch.Generator().manual_seed(8))


def alone(job, at, node):
    """The clipped sum of one node's records, in a stack of its own."""
    rows = slice(int(job.train.offsets[node]), int(job.train.offsets[node] + job.train.sizes[node]))
    inputs, targets = job.train.inputs[rows], job.train.targets[rows]
    mask = torch.ones(1, len(inputs), dtype=torch.bool)
    batch = inputs.unsqueeze(0), targets.unsqueeze(0), mask
    return job.model.gradient(at[node : node + 1], *batch, 0.4).total[0]


@pytest.mark.parametrize("sizes", [(9, 9, 9), (9, 3, 14)])
def test_whole_batches_are_neither_copied_nor_padded(sizes):
    job, at = job_of(sizes), points(len(sizes))
    context = context_of(job)
    found = context.batch_gradient(at, 0)
    right = torch.stack([alone(job, at, node) for node in range(len(sizes))])
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
    assert "_whole" not in vars(context)
    assert context._whole_rows is not None
    store = job.train.stored.untyped_storage().data_ptr()
    assert [len(rows) for rows in context._whole_rows[0]] == list(sizes)
    assert all(rows.untyped_storage().data_ptr() == store for rows in context._whole_rows[0])
    mask, seen = context.last_mask, context.last
    assert mask is not None
    assert seen is not None
    assert mask.sum(dim=1).tolist() == list(sizes)
    assert seen.norms.shape == seen.losses.shape == mask.shape
    assert not bool(seen.norms[~mask].any())


def test_those_who_take_part_read_their_own_rows():
    sizes = (9, 3, 14, 5)
    job, at = job_of(sizes, clients_per_round=2), points(len(sizes))
    seen = set()
    for k in range(STEPS):
        context = context_of(job)
        here = context.among(k)
        assert len(here.nodes) == 2
        seen |= set(here.nodes)
        found = here.batch_gradient(at[list(here.nodes)], k)
        right = torch.stack([alone(job, at, node) for node in here.nodes])
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
        everyone = context.batch_gradient(at, k)
        torch.testing.assert_close(everyone[list(here.nodes)], right, rtol=1e-5, atol=1e-6)
        assert int(everyone.any(dim=1).sum()) == 2
    assert seen == {0, 1, 2, 3}


def test_records_that_are_kept_as_bytes_are_read_as_numbers():
    sizes = (9, 3)
    pixels = torch.randint(0, 256, (12, 4), generator=torch.Generator().manual_seed(2)) / 255
    job, at = job_of(sizes, pixels), points(2)
    assert job.train.bytes
    assert torch.equal(torch.cat(job.train.rows()), pixels)
    found = context_of(job).batch_gradient(at, 0)
    right = torch.stack([alone(job, at, node) for node in range(2)])
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


def test_gradients_that_are_clamped_by_coordinate_take_padded_batches():
    job, at = job_of((9, 3), name="do-adp", clip_norm="coordinate"), points(2)
    context = context_of(job)
    context.batch_gradient(at, 0)
    assert context._whole_rows is None
    assert "_whole" in vars(context)
