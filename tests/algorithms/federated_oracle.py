"""Methods with a server as plain NumPy loops over rounds, clients, local steps and records."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import recursion_oracle as oracle
from recursion_runs import drawn_in

Array = oracle.Array


def proximal(name, lam):
    """Closed forms, one coordinate at a time."""
    forms = {
        "none": lambda x, step: x,
        "l1": lambda x, step: math.copysign(max(abs(x) - step * lam, 0.0), x),
        "l2": lambda x, step: x / (1 + step * lam),
        "elastic-net": lambda x, step: (
            math.copysign(max(abs(x) - step * lam, 0.0), x) / (1 + step * lam)
        ),
        "box": lambda x, step: min(max(x, -lam), lam),
    }
    return lambda x, step: np.array([forms[name](value, step) for value in x])


@dataclass(frozen=True)
class Rounds:
    """What happened by chance in a run, and its settings.

    Args:
        task: what is trained.
        active: clients of each round.
        batches: (round, mini-batch, client) -> record numbers.
        divisors: expected size of each client's mini-batch.
        rates: learning rate of each round.
        clip: bound, or None.
    """

    task: oracle.Problem
    active: list[list[int]]
    batches: Callable[[int, int, int], Array]
    divisors: list[float]
    rates: list[float]
    clip: float | None = None

    def gradient(self, client, at, k, part, clip):
        """Mean over a mini-batch, of gradients clipped one by one."""
        inputs, targets = (values.numpy() for values in self.task.nodes[client])
        chosen = self.batches(k, part, client)
        rows = self.task.gradients(at, inputs[chosen], targets[chosen])
        return np.asarray(oracle.clipped(rows, clip).sum(axis=0) / self.divisors[client])

    def weight(self, client):
        """By records, among the clients that ever take part."""
        ever = sorted({i for clients in self.active for i in clients})
        return oracle.weight(self.task, client, ever)


def rounds_of(result, task, rates, clip=None):
    """Read who was active and what was drawn from a run's plan and keys."""
    plan, drawn = result.plan, drawn_in(result.plan)
    everyone = list(range(len(plan.nodes)))
    flags = None if plan.release.activity is None else plan.release.activity.active

    return Rounds(
        task,
        [
            everyone if flags is None else [int(i) for i in np.flatnonzero(flags[k])]
            for k in range(plan.steps)
        ],
        lambda k, part, client: drawn(k, client, part),
        [node.expected_batch for node in plan.nodes],
        rates,
        clip,
    )


def dp_sgd(run, prox):
    """The server's model after all rounds, `[d]`."""
    x = run.task.start
    for k, clients in enumerate(run.active):
        g = sum(run.weight(i) * run.gradient(i, x, k, 0, run.clip) for i in clients) / len(clients)
        x = prox(x - run.rates[k] * g, run.rates[k])
    return np.asarray(x)


def fedavg(run, local_steps, prox):
    """The server's model after all rounds, `[d]`; each client's change is clipped if asked."""
    server = run.task.start
    for k, clients in enumerate(run.active):
        changes = []
        for i in clients:
            x = server
            for part in range(local_steps):
                x = prox(x - run.rates[k] * run.gradient(i, x, k, part, None), run.rates[k])
            change = x - server
            norm = math.sqrt(sum(value**2 for value in change))
            if run.clip is not None and norm > run.clip:
                change = change * (run.clip / norm)
            changes.append(run.weight(i) * change)
        server = server + sum(changes) / len(clients)
    return np.asarray(server)


def admm(run, rho, subgradient):
    """The clients' models `[clients, d]` and the server's `[d]`, after all rounds."""
    count = len(run.task.nodes)
    x = [run.task.start] * count
    dual = [np.zeros_like(run.task.start)] * count
    server = run.task.start
    for k, clients in enumerate(run.active):
        eta = run.rates[k]
        for i in clients:
            g = run.gradient(i, x[i], k, 0, run.clip) + subgradient(x[i])
            x[i] = (rho * server + dual[i] - g + x[i] / eta) / (rho + 1 / eta)
            dual[i] = dual[i] + rho * (server - x[i])
        server = sum(x[i] - dual[i] / rho for i in range(count)) / count
    return np.array(x), np.asarray(server)
