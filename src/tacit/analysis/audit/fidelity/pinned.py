"""Noise that keeps what it released, and releases the same again whatever it is then given.

Two runs with the same releases differ in nothing but what reached the outside by another way. The
pin replaces the `noise` of the plan's row, which is the only thing that a step may noise with. A
context that adds something before or after it, or leaves it out, is therefore run as it is, and is
seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tacit.privacy.mechanisms.clipping import NoiseNorm
from tacit.privacy.noise.draws import NodeKeys
from tacit.privacy.noise.independent import Noise
from tacit.privacy.noise.lattice import Offsets

Place = tuple[int, int, int, int]
"""Step, part, node, and how often that was asked for before."""


@dataclass(frozen=True)
class Asked:
    """One call for noise: for each row a node and a deviation, and what was handed in."""

    step: int
    part: int
    nodes: tuple[int, ...]
    deviations: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str


@dataclass(eq=False)
class Pinned:
    """Noise that does what another one does, and keeps what came out, or brings out what was kept.

    Args:
        inner: draws noise. It is called in any case, so that the same code runs.
        kept: what came out, by place, each row `[d]`.
        replays: whether rows come out as they were kept. One that was not kept is as it is drawn.
        asked: all calls, in order.
    """

    inner: Noise
    kept: dict[Place, Tensor] = field(default_factory=dict)
    replays: bool = False
    asked: list[Asked] = field(default_factory=list)
    _times: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """See `Noise`."""
        return self.inner.name

    @property
    def norm(self) -> NoiseNorm:
        """See `Noise`."""
        return self.inner.norm

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
        """See `Noise.add`; where it replays, `total` decides nothing but shape and type."""
        asked = Asked(k, part, tuple(nodes), tuple(stds), tuple(total.shape), str(total.dtype))
        self.asked.append(asked)
        released = self.inner.add(total, stds, keys, nodes, k, part=part, offsets=offsets)
        for row, node in enumerate(nodes):
            place = (k, part, node, self._times[k, part, node])
            self._times[k, part, node] += 1
            if not self.replays:
                self.kept[place] = released[row].clone()
                continue
            before = self.kept.get(place)
            if before is not None and before.shape == released[row].shape:
                released[row] = before
        return released


def pinned(inner: Noise, before: Mapping[Place, Tensor] | None = None) -> Pinned:
    """Noise of a run that is kept, or of one that releases what was kept `before`."""
    return Pinned(inner, {} if before is None else dict(before), before is not None)
