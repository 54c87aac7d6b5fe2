"""A step on a device never waits for it: by every row of the battery, and what still waits."""

from contextlib import nullcontext
from dataclasses import replace

import golden
import numpy as np
import pytest
import torch
from battery_experiments import experiment, schedule_options
from battery_table import ROWS

from elsewhere import META, elsewhere, watched
from tacit.base.sending import sent
from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.gradients.captured import WaitError
from tacit.gradients.table_storage import entry_shapes
from tacit.training import stacked_context
from tacit.training.budget import node_keys
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

STEPS = 5

WAITING = ["fedspd-dp", "fedspd-dp, private"]
"""Their rounds compare the length of the server's model with what rounding allows."""

TABLES = ["privsgp-vr, private", "soteriafl-saga"]
"""A gradient table waits where it checks which entries a batch renews; it cannot be made here."""


class HostNoise:
    """In place of the noise, which has tests of its own: takes numbers of the host."""

    def add(self, total, stds, keys, nodes, k, *, part=0, offsets=None):
        assert all(type(std) is float for std in stds)
        return total


def steps_elsewhere(case, monkeypatch):
    """Run a row on the device without numbers; after the first step everything is watched."""
    options = {**schedule_options(case, STEPS), **ROWS[case].resumed}
    settings = experiment(
        case, model=ROWS[case].network, steps=STEPS, batch=2, dtype="float32", options=options
    )
    nodes = [golden.records(node, size, 10, (1, 8, 8)) for node, size in enumerate(golden.SIZES)]
    nodes = [(inputs.float(), labels) for inputs, labels in nodes]
    job = prepare(load_config(settings, count=len(nodes)), nodes=nodes)
    plan, chosen = job.plan, job.config.algorithm
    # What it finds out once, before the first step, is found out where there are numbers.
    shapes = entry_shapes(job.model) if chosen.definition.differences else ()
    monkeypatch.setattr(stacked_context, "entry_shapes", lambda model: shapes)
    monkeypatch.setattr(torch, "autocast", lambda *device, **options: nullcontext())
    model = replace(elsewhere(job.model), loop=None, path="taps")
    exchange = InProcessExchange(
        plan.mixing.weights, dtype=job.dtype, device=META, active=plan.release.active
    )
    context = StackedContext(plan, model, elsewhere(job.train), node_keys(plan), exchange)
    monkeypatch.setattr(context, "_noise", HostNoise())
    start = model.start(len(plan.nodes), job.dtype, META)
    state = chosen.definition.start(start, chosen.options, context)
    for k in range(STEPS):
        with watched() if k else nullcontext():
            state = chosen.definition.step(state, k, chosen.options, context)
    return context


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ROWS if case not in (*WAITING, *TABLES)])
def test_no_step_waits_for_its_device(case, monkeypatch):
    context = steps_elsewhere(case, monkeypatch)
    assert context.last.losses.device == META


@pytest.mark.parametrize("case", WAITING)
def test_a_step_that_waits_is_known(case, monkeypatch):
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta tensors"):
        steps_elsewhere(case, monkeypatch)


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: x + torch.ones(3).to(META),
        lambda x: torch.tensor([1.0], device=META),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.normal_(),
    ],
    ids=[
        "item",
        "bool",
        "mask",
        "cpu",
        "nonzero",
        "equal",
        "to",
        "tensor",
        "copy",
        "index",
        "normal",
    ],
)
def test_what_waits_is_seen(act):
    with watched(), pytest.raises((WaitError, RuntimeError, NotImplementedError)):
        act(torch.empty(3, device=META))


def test_what_is_sent_does_not_wait():
    with watched():
        assert sent(np.arange(3), META).device == META
    array = np.arange(3)
    assert sent(array, torch.device("cpu")).data_ptr() == torch.from_numpy(array).data_ptr()
