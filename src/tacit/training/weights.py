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
from typing import TypeVar

from tacit.algorithms import Activity
from tacit.config import Config
from tacit.errors import InputError
from tacit.report.wording import node_list
from tacit.training.release import NodeRelease

Node = TypeVar("Node", bound=NodeRelease)

_MOST_OF_IT = 0.5  # of the variance of all noise
_BESIDE_SIGNAL = 4.0  # how much more of the noise than of the signal is worth a warning
_MANY = 10.0  # times the learning rate


def weighed(config: Config, nodes: Sequence[Node], activity: Activity | None) -> list[Node]:
    """The nodes with their weights, n p_i; by noise, which is known of a plan, once it is.

    Of nodes that never take part nothing is trained: n is the number of the others.

    Raises:
        InputError: on `nodes.weights`, some nodes have noise and others none, and would count
            alone.
    """
    chosen = config.weights
    if chosen == "equal":
        return list(nodes)
    if isinstance(chosen, tuple):
        shares = chosen
    elif chosen == "records":
        shares = tuple(float(node.records) for node in nodes)
    else:
        scales = [node.noise_scale for node in nodes]
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
    return [
        replace(node, weight=count * share / whole if there else 1.0)
        for node, share, there in zip(nodes, shares, here, strict=True)
    ]


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


def shares(nodes: Sequence[NodeRelease]) -> list[Share]:
    """Of each node, where all take part alike.

    Without node j the others count p_i / (1 - p_j), so that the deviation S of the noise in the
    mean becomes sqrt(S^2 - p_j^2 s_j^2) / (1 - p_j), s_j being that of its own mean.
    """
    count = len(nodes)
    variances = [(node.noise_scale / node.divisor) ** 2 for node in nodes]
    whole = math.fsum(variances)
    found = []
    for node, variance in zip(nodes, variances, strict=True):
        signal, noise = node.weight / count, variance / whole if whole else None
        left = None if noise is None or signal >= 1 else math.sqrt(max(0.0, 1 - noise))
        found.append(Share(signal, noise, None if left is None else left / (1 - signal)))
    return found


def cautions(config: Config, nodes: Sequence[NodeRelease]) -> tuple[str, ...]:
    """That one node makes most of the noise, or takes steps that are too long for its weight."""
    names, found = config.nodes.names, shares(nodes)
    rate = config.algorithm.options.settled_rate
    said: list[str] = []

    def named(number: int) -> str:
        return f"node {node_list([number], [names[number]] if names else ())}"

    noisiest = max(range(len(nodes)), key=lambda number: found[number].noise or 0.0)
    share, records = found[noisiest], [node.records for node in nodes]
    beside = share.noise is not None and share.noise > _BESIDE_SIGNAL * share.signal
    if share.noise is not None and share.noise > _MOST_OF_IT and beside and share.without:
        remedy = (
            "" if config.weights != "equal" else "; nodes.weights = 'records' would count it less"
        )
        said.append(
            f"{named(noisiest)} makes {share.noise:.0%} of the noise in the mean over all nodes "
            f"and {share.signal:.1%} of what is learnt: without its {records[noisiest]:,} of "
            f"{sum(records):,} records that noise would be {share.without:.2g} times what it "
            f"is{remedy}"
        )
    heaviest = max(nodes, key=lambda node: node.weight)
    curvature = _curvature(config)
    step = rate * (curvature or 0.0)
    known = curvature is not None and step <= 2 < step * heaviest.weight
    if known or (curvature is None and heaviest.weight >= _MANY):
        said.append(
            f"{named(heaviest.node)} counts {heaviest.weight:.3g} times as much as nodes do on "
            f"average, and takes steps of {rate * heaviest.weight:.3g} for a learning rate of "
            f"{rate:.3g}"
            + ("" if curvature is None else f", above 2 / L = {2 / curvature:.3g}")
            + ": a smaller algorithm.learning_rate may be needed"
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
