"""How much each node counts in what a run trains: see `Config.weights`.

Node i counts p_i: the run minimises sum_i p_i f_i, f_i being the mean loss of its records. Its
noised mean is multiplied by n p_i before it is averaged, a public factor of what is noised already:
no epsilon changes. Where all p_i are alike the factor is 1 to the last bit.

By records, and with one rate q for all, node i adds its noised *sum* times n / (q sum_j J_j): what
a small node adds of signal and of noise shrinks alike. With equal weights its noise in the mean is
C z_i / (q J_i), however few records it is of, and the smallest nodes make nearly all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacit.algorithms import Activity, Algorithm
from tacit.config import Config
from tacit.errors import InputError
from tacit.report.wording import node_list
from tacit.training.release import NodePlan

_MOST_OF_IT = 0.5  # of the variance of all noise
_BESIDE_SIGNAL = 4.0  # times the odds of the signal: how much more of the noise is worth a warning
_MANY = 10.0  # times the learning rate


def weighed(config: Config, nodes: Sequence[NodePlan], activity: Activity | None) -> list[NodePlan]:
    """The nodes with their weights, n p_i; by noise, which is known of a plan, once it is.

    Of nodes that never take part nothing is trained: n is the number of the others. Nodes without
    records are among these where a server averages what is sent; elsewhere they are averaged too.

    Raises:
        InputError: on `nodes.weights`, some nodes have noise and others none, and would count
            alone.
    """
    chosen = config.weights
    if isinstance(chosen, tuple):
        shares = chosen
    elif chosen != "noise":
        alike = chosen == "equal"
        shares = tuple(float(min(1, node.records) if alike else node.records) for node in nodes)
    else:
        scales = [node.noise_scale for node in nodes if node.records]
        if min(scales) == 0 < max(scales):
            expected = "would leave out all nodes that add noise: use 'records'"
            raise InputError("nodes.weights", chosen, expected)
        largest = max(node.expected_batch / (node.noise_scale or 1.0) for node in nodes)
        shares = tuple(
            (node.expected_batch / (node.noise_scale or 1.0) / largest) ** 2 for node in nodes
        )
    here = [activity is None or bool(activity.active[:, node.node].any()) for node in nodes]
    count = sum(here) or 1
    whole = math.fsum(share for share, there in zip(shares, here, strict=True) if there)
    weights = [
        count * share / whole if there else float(node.records > 0)
        for node, share, there in zip(nodes, shares, here, strict=True)
    ]
    return [replace(node, weight=own) for node, own in zip(nodes, weights, strict=True)]


@dataclass(frozen=True)
class Share:
    """A node's part of what is averaged.

    Args:
        signal: p_i.
        noise: of the variance of the noise in the mean over all nodes; None without noise.
        without: what leaving the node out would multiply the deviation of that noise by; likewise.
    """

    signal: float
    noise: float | None
    without: float | None


def shares(nodes: Sequence[NodePlan]) -> list[Share]:
    """Of each node, where all take part alike.

    Without node j the others count p_i / (1 - p_j), so that the deviation S of the noise in the
    mean becomes sqrt(S^2 - p_j^2 s_j^2) / (1 - p_j), s_j being that of its own mean.
    """
    count = round(math.fsum(node.weight for node in nodes))
    variances = [(node.noise_scale / node.divisor) ** 2 for node in nodes]
    whole = math.fsum(variances)
    found = []
    for node, variance in zip(nodes, variances, strict=True):
        signal, noise = node.weight / count, variance / whole if whole else None
        left = None if noise is None or signal >= 1 else math.sqrt(max(0.0, 1 - noise))
        found.append(Share(signal, noise, None if left is None else left / (1 - signal)))
    return found


def check_empty(config: Config, records: Sequence[int]) -> None:
    """Refuse nodes without records that are not said to have none, and the other way round."""
    empty = config.nodes.empty
    for node, size in enumerate(records):
        if (size == 0) != (node in empty):
            has = f"{size:,}: leave it out" if size else "none: name it, or give it records"
            expected = f"names the nodes that have no records, and this one has {has}"
            raise InputError("nodes.without_records", named(config, node), expected)
    if empty and config.task.calibrate == "private":
        expected = "counts records of every node, and some have none: use 'public'"
        raise InputError("task.calibrate", "private", expected)


def sending(
    definition: Algorithm[Any, Any], activity: Activity | None, records: Sequence[int], steps: int
) -> Activity | None:
    """Who takes part when, where a server averages what is sent: only who has something to send.

    Without a server nodes without records mix in every step, and `StackedContext` knows them.
    """
    some = np.array(records) > 0
    if definition.graph.weights != "server" or some.all():
        return activity
    everybody = Activity(np.ones((steps, 1), np.bool_)) if activity is None else activity
    return replace(everybody, active=everybody.active & some)


def without_records(config: Config) -> tuple[str, ...]:
    """What nodes without records do, and what their epsilon says, in one line; none: nothing."""
    empty = sorted(config.nodes.empty)
    if not empty:
        return ()
    return (
        f"without records: {named(config, *empty)}. Such a node mixes and gets the model, adds "
        "nothing to it and no noise, and has epsilon 0 since it has no record to protect: numbers "
        "of records are public, and neighbouring data sets have as many, under either relation",
    )


def named(config: Config, *nodes: int) -> str:
    """Nodes by number, and by name if they have any."""
    names = config.nodes.names
    return f"node {node_list(nodes, [names[node] for node in nodes] if names else ())}"


def cautions(config: Config, nodes: Sequence[NodePlan]) -> tuple[str, ...]:
    """That a node makes most of the noise, has steps too long for its weight, or one record."""
    found = shares(nodes)
    rate = config.algorithm.options.settled_rate
    said: list[str] = []

    noisiest = max(range(len(nodes)), key=lambda number: found[number].noise or 0.0)
    share, records = found[noisiest], [node.records for node in nodes]
    most, odds = share.noise or 0.0, _BESIDE_SIGNAL * share.signal
    if most > max(_MOST_OF_IT, odds / (odds + 1 - share.signal)) and share.without is not None:
        remedy = "; nodes.weights = 'records' would count it less"
        said.append(
            f"{named(config, noisiest)} makes {most:.0%} of the noise in the mean over all "
            f"nodes and {share.signal:.1%} of what is learnt: without its {records[noisiest]:,} of "
            f"{sum(records):,} records that noise would be {share.without:.2g} times what it "
            f"is{remedy if config.weights == 'equal' else ''}"
        )
    heaviest = max(nodes, key=lambda node: node.weight)
    curvature = _curvature(config)
    step = rate * (curvature or 0.0)
    known = curvature is not None and step <= 2 < step * heaviest.weight
    if known or (curvature is None and heaviest.weight >= _MANY):
        said.append(
            f"{named(config, heaviest.node)} counts {heaviest.weight:.3g} times as much as nodes "
            f"do on average, and takes steps of {rate * heaviest.weight:.3g} for a learning rate "
            f"of {rate:.3g}"
            + ("" if curvature is None else f", above 2 / L = {2 / curvature:.3g}")
            + ": a smaller algorithm.learning_rate may be needed"
        )
    if single := [node.node for node in nodes if node.records == 1]:
        more = f" and {len(single) - 1:,} more" if len(single) > 1 else ""
        said.append(
            f"{named(config, single[0])}{more}: a single record each, of which little is learnt "
            "beside its noise: take fewer nodes, or parts that are less unequal (nodes.alpha)"
        )
    return tuple(said)


def _curvature(config: Config) -> float | None:
    """L, of the gradient of a record's loss, where it is given or known; None: it is not.

    That of a linear model with a logistic loss, of inputs of norm up to B and a bias, is at most
    (B^2 + 1) / 2, whatever the number of classes.
    """
    bound, task = config.input_bound, config.task
    if config.promise.smoothness is not None:
        return config.promise.smoothness
    linear = task.model == "logistic" and task.output is None and not task.class_weights
    if linear and bound is not None and task.loss in ("cross-entropy", "logistic"):
        return (bound**2 + 1) / 2
    return None
