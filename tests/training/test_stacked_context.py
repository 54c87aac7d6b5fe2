"""The stacked context does what the plan says, step by step."""

import os
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from forked import said_in_fork
from plain_noise import normals
from tacit import data
from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.noise import draws as noise
from tacit.training import sampling, stacked_context
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

RECORDS = (6, 3, 9)
STEPS = 4


def records(seed=5):
    draw = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(count, 2, generator=draw, dtype=torch.float64),
            torch.randn(count, 1, generator=draw, dtype=torch.float64),
        )
        for count in RECORDS
    ]


def job_of(*, privacy=None, algorithm=None, **train):
    chosen = {"name": "dyn-d2p", **(algorithm or {})}
    if chosen["name"] == "dyn-d2p" and ("clip" in chosen or privacy):
        chosen.setdefault("clip_decay", 4.0)
    config = load_config(
        {
            "task": {"loss": "mse"},
            "algorithm": chosen,
            "privacy": privacy or {"epsilon": "none"},
            "train": {"steps": STEPS, "batch": "all", "dtype": "float64", **train},
        },
        count=len(RECORDS),
        given_model=True,
    )
    return prepare(config, model=nn.Linear(2, 1), nodes=records())


def context_of(job, keys=None):
    exchange = InProcessExchange(job.plan.mixing.weights, dtype=job.dtype, device=job.device)
    return StackedContext(job.plan, job.model, job.train, keys or keys_of(), exchange)


def keys_of(seed=1):
    return noise.seeded_keys(seed, range(len(RECORDS)))


def points(dtype=torch.float64):
    """A different model for every node, `[nodes, 3]`: two weights and a bias."""
    return torch.randn(len(RECORDS), 3, generator=torch.Generator().manual_seed(8)).to(dtype)


def gradient_sum(node, at, clip, chosen=None):
    """Sum over records of the clipped gradient of (w x + b - y)^2, record by record."""
    inputs, targets = (values.numpy() for values in records()[node])
    total = np.zeros(3)
    for record in range(len(inputs)) if chosen is None else chosen:
        residual = inputs[record] @ at[:2] + at[2] - targets[record, 0]
        gradient = 2 * residual * np.append(inputs[record], 1.0)
        length = np.linalg.norm(gradient)
        total += gradient if clip is None or length <= clip else gradient * clip / length
    return total


@pytest.mark.parametrize("clip", [None, 1.5])
def test_the_batch_gradient_sums_records_clipped_at_the_steps_own_bound(clip):
    job = job_of(algorithm={} if clip is None else {"clip": clip})
    context, at = context_of(job), points()
    for k in (0, 3, 1):
        bound = None if clip is None else clip * 4.0 ** (-k / STEPS)
        found = context.batch_gradient(at, k).numpy().copy()
        right = [gradient_sum(node, at[node].numpy(), bound) for node in range(len(RECORDS))]
        np.testing.assert_allclose(found, right, rtol=1e-11, atol=1e-12)
        if bound is not None:
            assert all(
                np.linalg.norm(row) <= count * bound * (1 + 1e-12)
                for row, count in zip(found, RECORDS, strict=True)
            )


def test_the_batch_gradient_takes_the_drawn_records_only():
    job = job_of(batch=2)
    context, at, keys = context_of(job), points(), keys_of()
    sizes = set()
    for k in range(STEPS):
        batch = sampling.draw(job.plan, keys, k, job.device)
        found = context.batch_gradient(at, k).numpy().copy()
        for node in range(len(RECORDS)):
            chosen = batch.indices[node][batch.mask[node]].tolist()
            sizes.add(len(chosen))
            right = gradient_sum(node, at[node].numpy(), None, chosen)
            np.testing.assert_allclose(found[node], right, rtol=1e-11, atol=1e-12)
        assert context.last_mask is not None
        assert torch.equal(context.last_mask, batch.mask)
    assert len(sizes) > 2


def test_a_step_where_no_node_draws_a_record_sums_to_zero():
    job = job_of(batch=1)
    quiet = replace(
        job, plan=replace(job.plan, nodes=tuple(replace(n, rate=1e-12) for n in job.plan.nodes))
    )
    context = context_of(quiet)
    total = context.batch_gradient(points(), 0)
    assert total.shape == (len(RECORDS), 3)
    assert not bool(total.any())
    assert torch.equal(context.divide(total), torch.zeros(len(RECORDS), 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("batch", "expected"), [("all", [6, 6, 6]), (4, [4, 6, 8 / 3]), (1, [1, 2, 2 / 3])]
)
def test_sums_are_divided_by_the_expected_batch_in_place_and_weighed(batch, expected):
    """Of 6, 3 and 9 records the nodes count once, a half and one and a half times."""
    context = context_of(job_of(batch=batch))
    total = torch.ones(len(RECORDS), 3, dtype=torch.float64)
    found = context.divide(total)
    assert found.data_ptr() == total.data_ptr()
    np.testing.assert_allclose(found.numpy(), [[1 / size] * 3 for size in expected], rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_is_each_nodes_own_normals_times_the_planned_deviation(dtype):
    job = job_of(
        privacy={"epsilon": [0.5, 1.0, 2.0], "delta": 1e-4}, algorithm={"clip": 2.0}, dtype=dtype
    )
    context, keys = context_of(job), keys_of()
    seen = []
    for k in range(STEPS):
        total = torch.full((len(RECORDS), 3), 0.25, dtype=job.dtype)
        found = context.add_noise(total, k)
        assert found.data_ptr() == total.data_ptr()
        for node, plan in enumerate(job.plan.nodes):
            clip = 2.0 * 4.0 ** (-k / STEPS)
            # Dyn-D2P: the multiplier falls by budget_growth = 2 over the run.
            std = plan.noise_scale * 2.0 ** (-k / STEPS) * clip
            drawn = normals(keys, node, "noise", k, 3)
            # The nearest point of a lattice finer than std / 64.
            ideal = 0.25 + std * drawn
            np.testing.assert_allclose(found[node].numpy(), ideal, rtol=0, atol=std / 127)
            seen.append(tuple(drawn))
    assert len(set(seen)) == len(seen)
    scales = [node.noise_scale for node in job.plan.nodes]
    assert scales[0] > scales[1] > scales[2] > 0


def test_a_plan_without_noise_adds_none():
    total = torch.full((len(RECORDS), 3), 0.25, dtype=torch.float64)
    found = context_of(job_of()).add_noise(total, 0)
    assert torch.equal(found, torch.full((len(RECORDS), 3), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("batch", ["all", 2], ids=["whole", "sampled"])
@pytest.mark.parametrize("node", range(len(RECORDS)))
def test_a_node_alone_computes_what_it_computes_in_the_stack(node, batch):
    job = job_of(
        privacy={"noise_std": 0.1, "accounting": "none"}, algorithm={"clip": 1.0}, batch=batch
    )
    alone = replace(
        job,
        plan=replace(job.plan, nodes=(job.plan.nodes[node],)),
        train=data.stack([data.Dataset(*records()[node])], job.dtype, job.device),
    )
    at = points()
    together, single = context_of(job), context_of(alone, keys_of().subset([node]))
    for k in range(STEPS):
        right = together.add_noise(together.batch_gradient(at, k), k)[node].clone()
        found = single.add_noise(single.batch_gradient(at[node : node + 1], k), k)[0]
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_the_last_batch_is_kept_for_the_progress_line():
    context, at = context_of(job_of(algorithm={"clip": 1.0})), points()
    assert context.last is None
    context.batch_gradient(at, 0)
    assert context.last is not None
    assert context.last_mask is not None
    assert context.last_mask.sum(dim=1).tolist() == list(RECORDS)
    for node, (inputs, targets) in enumerate(records()):
        residuals = inputs @ at[node, :2] + at[node, 2] - targets[:, 0]
        losses = context.last.losses[node][context.last_mask[node]]
        torch.testing.assert_close(losses, residuals.square(), rtol=1e-11, atol=1e-12)


def federated_world(active):
    options = {} if active is None else {"clients_per_round": active}
    job = job_of(
        algorithm={"name": "dp-sgd", **options},
        privacy={"noise_std": 0.5, "accounting": "none"},
        batch=2,
    )
    return context_of(job)


@pytest.mark.parametrize("k", range(STEPS))
def test_the_world_of_active_nodes_has_their_rows_of_the_whole(k):
    context, alone = federated_world(2), federated_world(2)
    here = alone.among(k)
    rows = context.active(k)[:, 0].nonzero().flatten()
    assert here.nodes == tuple(rows.tolist())
    assert len(here.nodes) == 2
    at = points()
    assert torch.equal(here.take(at), at[rows])
    gradient = context.batch_gradient(at, k)
    assert torch.equal(here.batch_gradient(at[rows], k), gradient[rows])
    assert torch.equal(gradient[~context.active(k)[:, 0]], torch.zeros(len(at) - 2, 3).double())
    assert alone.last is not None
    assert alone.last.losses.shape[0] == 2
    released = context.add_noise(gradient.clone(), k)
    assert torch.equal(here.add_noise(gradient[rows], k), released[rows])
    for name in ("batch_size", "records", "rate"):
        assert torch.equal(getattr(here, name), getattr(context, name)[rows])
    assert torch.equal(here.noise_std(k), context.noise_std(k)[rows])
    put = here.put(at.clone(), -at[rows])
    expected = at.clone()
    expected[rows] *= -1
    assert torch.equal(put, expected)


@pytest.mark.parametrize("active", [None, 2])
def test_mini_batches_read_together_are_those_read_one_by_one(active):
    job = prepare(
        load_config(
            {
                "task": {"loss": "mse"},
                "algorithm": {"name": "fedavg", "local_steps": 3, "clients_per_round": active},
                "privacy": {"epsilon": "none"},
                "train": {"steps": STEPS, "batch": 1, "sampling": "fixed", "dtype": "float64"},
            },
            count=len(RECORDS),
            given_model=True,
        ),
        model=nn.Linear(2, 1),
        nodes=records(),
    )
    for k in range(STEPS):
        together, apart = (context_of(job).among(k) for _ in range(2))
        at = points()[list(together.nodes)]
        for part in (0, 2, 1):
            found = together.batch_gradient(at, k, part=part)
            with patch.object(stacked_context, "_FEW", 0):
                right = apart.batch_gradient(at, k, part=part)
            assert together._gathered is not None
            assert apart._gathered is None
            assert torch.equal(found, right)


def test_where_all_are_active_their_world_is_the_whole():
    context = federated_world(None)
    at = points()
    assert context.among(0) is context
    assert context.take(at) is at
    assert context.put(at, -at) is not at


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_draws_no_noise_of_the_world_it_came_with():
    job = job_of(privacy={"noise_std": 0.5, "delta": 1e-5})
    context = context_of(job)
    zeros = torch.zeros(len(RECORDS), 3, dtype=torch.float64)
    drawn = context.add_noise(zeros.clone(), 0)
    said = said_in_fork(lambda: context.add_noise(zeros.clone(), 0))
    assert said.startswith("InputError: noise keys = 'process ")
    assert torch.equal(context.add_noise(zeros.clone(), 0), drawn)


@pytest.mark.parametrize("norm", ["l1", "coordinate", "automatic"])
def test_what_is_clipped_in_l2_alone_is_refused_under_another_norm(norm):
    """Also to a row of a user's own, such as one with Laplace noise, accounted in l1."""
    job = job_of(algorithm={"name": "dp2-sgd", "clip": 1.0, "clip_norm": norm})
    context, at = context_of(job), points()
    context.batch_gradient(at, 0)
    for ask in (lambda: context.table, lambda: context.batch_difference(at, at, 0, None)):
        with pytest.raises(InputError, match=rf"clip_norm = '{norm}': must be 'l2' where"):
            ask()
