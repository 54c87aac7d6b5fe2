"""Who takes part in which step: drawn from the public seed before the run, and visible to all.

Since everybody knows it, participation earns no amplification: a node's mechanism is that of the
steps in which it is active, whose number the plan knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError

__all__ = ["Activity", "Crowd", "chosen_clients", "independent", "public_draws"]

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Crowd:
    """What activity is drawn for.

    Args:
        nodes: how many.
        steps: K.
        seed: the public one.
        neighbours: of each node, in the graph of step 0, ascending.
    """

    nodes: int
    steps: int
    seed: int
    neighbours: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Activity:
    """Who is active when.

    Args:
        active: bool `[steps, nodes]`.
        partner: int64 `[steps, nodes]`, whom a node is paired with (itself: nobody); None where
            an algorithm has no pairs.
        notes: what came of it, for people: name to value.
    """

    active: Flags
    partner: NDArray[np.int64] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


def public_draws(seed: int, purpose: int) -> np.random.Generator:
    """Public random numbers: reproducible from the seed by everyone, and no secret."""
    return np.random.default_rng(np.random.SeedSequence([seed, 0x74616369, purpose]))


_CLIENTS, _COINS = 1, 2


def chosen_clients(crowd: Crowd, count: int | None) -> Activity | None:
    """`count` clients, drawn anew in every round without replacement; None: all of them.

    Raises:
        InputError: on `algorithm.clients_per_round`, above the number of clients.
    """
    if count is None or count == crowd.nodes:
        return None
    if count > crowd.nodes:
        raise InputError(
            "algorithm.clients_per_round", count, f"must be at most {crowd.nodes}, the clients"
        )
    order = public_draws(crowd.seed, _CLIENTS).random((crowd.steps, crowd.nodes)).argsort(axis=1)
    active = np.zeros((crowd.steps, crowd.nodes), dtype=np.bool_)
    np.put_along_axis(active, order[:, :count], True, axis=1)
    return Activity(active)


def independent(crowd: Crowd, chance: float) -> Activity | None:
    """Every node at every step with the same chance, independently; None where that is 1."""
    if chance == 1:
        return None
    draws = public_draws(crowd.seed, _COINS).random((crowd.steps, crowd.nodes))
    return Activity(draws < chance)
