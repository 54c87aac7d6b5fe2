"""Experiments for every row of the battery's table."""

import numpy as np
import torch
from battery_table import ROWS, Array

from tacit.algorithms import ALGORITHMS
from tacit.communication.exchange import InProcessExchange
from tacit.communication.exchange.protocol import Descent
from tacit.data import Dataset, stack
from tacit.training.budget import node_keys
from tacit.training.stacked_context import StackedContext

DELTA = 1e-5
DECAY, GROWTH = 3.0, 4.0
OUTPUTS = {"cross-entropy": {"outputs": 10}}


def levels(steps):
    """An uneven noise schedule for the general form."""
    return [1.0 + k % 3 for k in range(steps)]


def bounds(steps):
    """An uneven clipping schedule for the general form."""
    return [2.0 / (1 + k) for k in range(steps)]


def schedule_options(case, steps):
    """Schedules that vary, for the methods that have any."""
    known = {
        "clip_decay": DECAY,
        "budget_growth": GROWTH,
        "clip_schedule": bounds(steps),
        "noise_schedule": levels(steps),
    }
    name = ROWS[case].name
    return {key: known[key] for key in ALGORITHMS[name].options.model_fields if key in known}


def clipped_schedules(case, steps, clip):
    """`schedule_options`, and a clipping bound where they have none for each step."""
    options = schedule_options(case, steps)
    return options if "clip_schedule" in options else {"clip": clip, **options}


def experiment(
    case,
    *,
    loss="cross-entropy",
    model="logistic",
    steps=3,
    batch="all",
    dtype="float64",
    sampling="poisson",
    graph=None,
    options=None,
    privacy=None,
):
    """Of a row of the table; a graph is for algorithms without a server."""
    row = ROWS[case]
    given = {"epsilon": 3.0, "delta": DELTA, "noise_seed": 1} if privacy is None else privacy
    chosen = graph is not None and ALGORITHMS[row.name].graph.weights != "server"
    return {
        "task": {"loss": loss, "model": model, **OUTPUTS.get(loss, {})},
        "topology": {"graph": graph} if chosen else {},
        "algorithm": {
            "name": row.name, "learning_rate": 0.1, **row.options, **(options or {})
        },
        "privacy": given if ALGORITHMS[row.name].private else {},
        "train": {
            "steps": steps,
            "batch": batch,
            "dtype": dtype,
            "sampling": sampling,
            "evaluate_every": steps,
        },
    }  # fmt: skip


class OpenExchange(InProcessExchange):
    """The exchange of one process, which keeps what it is handed: `messages`, in that order."""

    messages: list[Array]

    def mix(self, k, *values, **rest):
        sent = [value.value for value in values]
        if rest.get("descent") is not None:
            direction, step = rest["descent"]
            sent[0] = Descent(direction.value, step).of(sent[0])
        self._keep(sent)
        return super().mix(k, *values, **rest)

    def swap(self, k, partner, *values):
        self._keep([value.value for value in values])
        return super().swap(k, partner, *values)

    def average(self, k, *values, **rest):
        clients = len(self.bytes_sent)
        flags = self._active(k)
        sent = torch.ones(clients, dtype=torch.bool) if flags is None else torch.tensor(flags)
        for value in [message.value for message in values]:  # of those that send, or of everyone
            rows = sent if len(value) < clients else torch.ones_like(sent)
            whole = value.new_zeros(clients, *value.shape[1:])
            whole[rows] = value
            self._keep([whole])
        return super().average(k, *values, **rest)

    def _keep(self, values):
        self.messages = [
            *getattr(self, "messages", []),
            *(value.clone().numpy() for value in values),
        ]


def single_step(job, k):
    """States before and after step k, made from the start, and what was sent in it."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    plan = job.plan
    exchange = OpenExchange(
        plan.mixing.weights, dtype=job.dtype, device=job.device, active=plan.release.active
    )
    context = StackedContext(plan, job.model, job.train, node_keys(plan), exchange)
    before = algorithm.start(
        job.model.start(len(plan.nodes), job.dtype, job.device), options, context
    )
    after = algorithm.step(before, k, options, context)
    return before, after, getattr(exchange, "messages", [])


def active(job, k):
    """Which nodes take part in step k, `[nodes]`."""
    flags = job.plan.release.active(k)
    return np.ones(len(job.plan.nodes), dtype=bool) if flags is None else flags


def part_of(train, hosted):
    """The records of some nodes."""
    rows = [torch.arange(int(train.sizes[node])) + int(train.offsets[node]) for node in hosted]
    parts = [Dataset(train.inputs[own], train.targets[own]) for own in rows]
    return stack(parts, train.inputs.dtype, "cpu")


def quadratic(nodes, *, shared):
    """Records of a linear regression; `shared` inputs give every node the same curvature."""
    draw = torch.Generator().manual_seed(4)
    made = []
    inputs = torch.randn(8, 3, generator=draw, dtype=torch.float64)
    for _ in range(nodes):
        if not shared:
            inputs = torch.randn(8, 3, generator=draw, dtype=torch.float64)
        made.append((inputs, torch.randn(8, 1, generator=draw, dtype=torch.float64)))
    return made
