"""Defects of who is drawn: other chances, other sizes, or coins that are not fresh."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from planting import Patch

from tacit.privacy.noise import draws
from tacit.training import sampling
from tacit.training.release import NodePlan

Nodes = Sequence[NodePlan]


def _first_step(original):
    def drawn(plan, keys, k, device, **more):
        return original(plan, keys, 0, device, **more)

    return drawn


SAME_COINS = (Patch(sampling, "disjoint_batches", _first_step),)


def by(one):
    """Another way to draw a mini-batch of a node, whatever the sampler."""

    def make(original):
        def drawn(rows, keys, k, part):
            return [
                np.arange(node.records) if node.rate == 1 else one(node, keys, k, part)
                for node in rows
            ]

        return drawn

    return tuple(Patch(sampling, name, make) for name in ("_coins", "_fixed", "_allocated"))


def _slice_of(order, size, k):
    """The next batch of an order that is gone through again and again."""
    places = np.arange(k * size, (k + 1) * size) % len(order)
    return np.sort(order[places])


def _size(node):
    return max(1, round(node.expected_batch))


def _secret_order(node, keys, k, part):
    an_epoch = max(1, node.records // _size(node))
    order = draws.permutation(keys, node.node, "order", k // an_epoch, node.records, part)
    return _slice_of(order, _size(node), k % an_epoch)


def _public_order(node, keys, k, part):
    return _slice_of(np.arange(node.records), _size(node), k)


def _with_replacement(node, keys, k, part):
    chosen = draws.choices(keys, node.node, "again", k, _size(node), node.records, part)
    return np.sort(chosen)


def _more_often(node, keys, k, part):
    rate = min(1.0, 1.1 * node.rate)
    return np.flatnonzero(draws.coins(keys, node.node, "sampling", k, node.records, rate, part))


def _exact_size(node, keys, k, part):
    return draws.subset(keys, node.node, "sampling", k, node.records, _size(node), part)


def _coins(node, keys, k, part):
    rate = node.expected_batch / node.records
    return np.flatnonzero(draws.coins(keys, node.node, "sampling", k, node.records, rate, part))


def _same_step(node, keys, k, part):
    t = node.epoch_steps
    steps = draws.choices(keys, node.node, "allocation", 0, node.records, t, part)
    return np.flatnonzero(steps == k % t)


def _first_half(node, keys, k, part):
    epoch, step = divmod(k, node.epoch_steps)
    half = max(1, node.epoch_steps // 2)
    steps = draws.choices(keys, node.node, "allocation", epoch, node.records, half, part)
    return np.flatnonzero(steps == step)


SAME_STEP = by(_same_step)
FIRST_HALF = by(_first_half)
SECRET_ORDER = by(_secret_order)
PUBLIC_ORDER = by(_public_order)
WITH_REPLACEMENT = by(_with_replacement)
MORE_OFTEN = by(_more_often)
EXACT_SIZE = by(_exact_size)
COINS = by(_coins)


def _of_the_first(original):
    def drawn(plan, keys, k, device, *, nodes=None):
        rows = plan.nodes if nodes is None else nodes
        pairs = [replace(node, node=node.node - node.node % 2) for node in rows]
        return original(plan, keys, k, device, nodes=tuple(pairs))

    return drawn


SHARED_COINS = (Patch(sampling, "disjoint_batches", _of_the_first),)
