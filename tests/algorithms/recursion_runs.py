"""Runs that oracles are compared with: graph, records, steps, draws, minimisers, costs."""

import numpy as np
import recursion_oracle as oracle
import torch
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq

import tacit
from planning_cases import gaussian_delta
from tacit.communication.exchange import InProcessExchange
from tacit.training import sampling
from tacit.training.budget import node_keys
from tacit.training.stacked_context import StackedContext

EDGES = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 0)]
IRREGULAR = oracle.metropolis(5, EDGES)
RATE = 0.3


def graph_file(folder, edges):
    """A graph for `[topology]` with these edges, one way."""
    path = folder / "graph.txt"
    path.write_text("\n".join(f"{a} {b}" for a, b in edges))
    return f"file:{path}"


def on_graph(folder, name, *, steps, loss="logistic", seed=2, **options):
    """Every record at every step, without noise, in float64.

    Five nodes on an irregular graph if there is a folder to describe it in, else a ring.
    """
    both = [edge for a, b in EDGES for edge in ((a, b), (b, a))]
    graph = "ring" if folder is None else graph_file(folder, both)
    rate = {"learning_rate": RATE}
    return plain(loss, name, rate | options, topology={"graph": graph}, steps=steps, seed=seed)


def plain(loss, name, options, *, topology=None, empty=None, **train):
    """Without noise, in float64; six steps on every record, if nothing else is said."""
    return {
        "task": {"loss": loss},
        "nodes": {"without_records": empty},
        "topology": topology or {},
        "algorithm": {"name": name, **options},
        "privacy": {"epsilon": "none"},
        "train": {"steps": 6, "batch": "all", "dtype": "float64", **train},
    }


def on_batches(options, *, privacy=None, **sections):
    """Seven steps of a logistic regression on batches of two records; without noise by default."""
    rate = {"learning_rate": RATE}
    config = plain("logistic", "privsgp-vr", rate | options, batch=2, steps=7, seed=3)
    config |= {name: {**config[name], **keys} for name, keys in sections.items()}
    return config if privacy is None else {**config, "privacy": privacy}


def train(task, name, options, **settings):
    """The result of a plain experiment on a problem."""
    return trained(task, plain(task.loss, name, options, empty=task.empty, **settings))


def trained(task, config):
    """The result of an experiment on a problem."""
    return tacit.train(config, model=task.module, nodes=task.nodes)


def drawn_in(plan, group=None):
    """(step, node, mini-batch of the step) -> numbers of the records, or groups, that it drew."""
    keys, cpu = node_keys(plan), torch.device("cpu")

    def records(k, node, part=0):
        if group is None:
            drawn = sampling.draw(plan, keys, k, cpu, part=part)
        else:
            drawn = sampling.draw_units(plan.nodes, keys, k, cpu, group)
        return drawn.indices[node][drawn.mask[node]].numpy()

    return records


def context_of(job, exchange=None, train=None):
    """What the steps of a job use, in this process, on other records of the same sizes if given."""
    plan = job.plan
    if exchange is None:
        exchange = InProcessExchange(plan.mixing.weights, dtype=job.dtype, device=job.device)
    return StackedContext(plan, job.model, train or job.train, node_keys(plan), exchange)


def gaussian_epsilon(mu, delta):
    """Of a Gaussian mechanism, mu being shift over deviation."""
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 1e-9, 200.0))


def pld(*events, delta=1e-4, grid=3e-3):
    """Epsilon of events and their counts, by the accountant of dp_accounting."""
    accountant = PLDAccountant(value_discretization_interval=grid)
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def activity_of(result):
    """Who took part, bool `[steps, nodes]`: not everybody always."""
    active = result.plan.release.activity.active
    assert 0 < active.mean() < 1
    return active


def disagreeing(nodes):
    """Eight records of a regression each, whose minimisers are far from that of all."""
    draw = torch.Generator().manual_seed(4)
    data = [
        tuple(torch.randn(8, width, generator=draw, dtype=torch.float64) for width in (3, 1))
        for _ in range(nodes)
    ]
    best = least_squares(data)
    assert min(np.abs(least_squares([one]) - best).max() for one in data) > 0.1
    return data


def least_squares(nodes):
    """The minimiser of the mean squared error of all records: weights and biases, `[d]`."""
    inputs, targets = (np.concatenate(part) for part in zip(*nodes, strict=True))
    design = np.column_stack([inputs, np.ones(len(inputs))])
    solved = np.linalg.lstsq(design, targets, rcond=None)[0]
    return np.concatenate([solved[:-1].T.reshape(-1), solved[-1]])


def assert_same(found, right):
    """To 1e-9."""
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-9, atol=1e-9)
