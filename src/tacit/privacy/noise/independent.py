"""Noise as an object, which an algorithm's row names, and the noise that is drawn anew each time.

A step asks its context for noise, and the context asks the object: what is added is decided here
and nowhere else. Noise of another kind, say one that is correlated over steps or cancels between
nodes, is an object of its own in a file of its own, beside the mechanism that states what it hides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import NoiseNorm
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.gaussian import add_normal
from tacit.privacy.noise.laplace import add_laplace
from tacit.privacy.noise.lattice import Offsets

_PURPOSE = "noise"  # of the draws, which have nothing in common with those of batches


class Noise(Protocol):
    """What is added to a node's sum before anything of it leaves the node."""

    @property
    def name(self) -> str:
        """What it is called, in one word."""

    @property
    def norm(self) -> NoiseNorm:
        """The norm of a shift that decides how well it hides it."""

    def begin(self) -> Noise:
        """Noise for the steps of one process, which follow one another."""

    def add(
        self,
        total: Tensor,
        stds: Sequence[float],
        keys: NodeKeys,
        nodes: Sequence[int],
        k: int,
        *,
        part: int,
        offsets: Offsets | None = None,
    ) -> Tensor:
        """`total` plus the noise of step k, in place, on a public lattice.

        Args:
            total: one sum a node, `[nodes, d]`.
            stds: how much noise is added to each row: what the plan's noise multiplier times the
                clipping bound comes to, for a **sum**.
            keys: secret keys of at least these nodes.
            nodes: which nodes, in the order of the rows.
            k: the step.
            part: its number, where a step releases several sums.
            offsets: what else is added before all is rounded to the lattice, such as
                `tacit.privacy.noise.pairwise.pair_sums`.

        Raises:
            InputError: offsets are given, and this noise has none.
        """


@dataclass(frozen=True)
class IndependentNoise:
    """Every node, step and part has noise of its own, independent of all other."""

    name: str  # what it is called, in one word
    # Adds it; `add_normal` takes standard deviations, `add_laplace` scales.
    draw: Callable[..., Tensor]
    norm: NoiseNorm = "l2"  # of a shift, which decides how well it is hidden
    # Whether `draw` can add what cancels between nodes before it rounds.
    takes_offsets: bool = False

    def begin(self) -> Noise:
        """Itself: steps have nothing to do with each other."""
        return self

    def add(
        self,
        total: Tensor,
        stds: Sequence[float],
        keys: NodeKeys,
        nodes: Sequence[int],
        k: int,
        *,
        part: int,
        offsets: Offsets | None = None,
    ) -> Tensor:
        """`total` plus fresh noise, in place; see `Noise.add`."""
        if offsets is None:
            return self.draw(total, stds, keys, nodes, _PURPOSE, k, part=part)
        if not self.takes_offsets:
            expected = f"must be none: {self.name} noise is not proved to cancel between nodes"
            raise InputError("offsets", tuple(offsets.points.shape), expected)
        return self.draw(total, stds, keys, nodes, _PURPOSE, k, part=part, offsets=offsets)


GAUSSIAN = IndependentNoise("gaussian", add_normal, takes_offsets=True)
LAPLACE = IndependentNoise("laplace", add_laplace, norm="l1")
