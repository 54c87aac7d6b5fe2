"""Noise that cancels between nodes: both ends of a pair draw it from a key that only they know.

*Mechanism.* A pair e = (i, j), i < j, has noise zeta_e in each step: node i adds it and node j
subtracts it, so that the sum over nodes has none of it, and whoever does not know the key sees it
in each of the two messages. What it hides is proved in `docs/proofs/pairwise-noise.md`; the noise
that stays in the sum is each node's own (`tacit.privacy.noise.gaussian`).

*Law.* zeta_e is a whole number, a discrete normal of `LEAST_POINTS` points a deviation
(`tacit.privacy.noise.discrete`), times b / `LEAST_POINTS`. Both ends get exactly the same one, and
sums of them are exact in any order. Under the own noise of its two ends such noise has the density
of normal noise up to a share of 2^-100: where that asks for more points, the plan refuses it.

*Trust model.* Whoever has a pair's key can subtract its noise: keys are as secret as those of nodes
and protected alike. A process that hosts many nodes, as a simulation does, has the keys of all
pairs among them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

import torch

from tacit.errors import InputError
from tacit.privacy.noise.discrete import table_of
from tacit.privacy.noise.draws import KEY_BYTES, NodeKeys, position
from tacit.privacy.noise.lattice import LARGEST_POINT, Offsets, check_size

Pair = tuple[int, int]

LEAST_POINTS = 64
"""The standard deviation of a pair's noise in points of its lattice."""


@dataclass(frozen=True, eq=False)
class PairKeys:
    """The secret keys of pairs of nodes (i, j), i < j, of which this process hosts an end.

    They are held as the keys of nodes are, and protected alike: never shown, pickled, copied,
    stored or sent, and a child that this process forks holds none of them. `keys` go by the places
    of the pairs among `pairs`.
    """

    pairs: tuple[Pair, ...]
    keys: NodeKeys

    @classmethod
    def of(cls, secret: Mapping[Pair, bytes], seeded: bool) -> Self:
        """Keys of 32 bytes; `seeded` says that they derive from a public number.

        Raises:
            InputError: a pair is not of two nodes in ascending order, or a key is of another
                length.
        """
        for i, j in secret:
            if not 0 <= i < j:
                raise InputError("pair", (i, j), "two nodes, the smaller number first")
        return cls(tuple(secret), NodeKeys(dict(enumerate(secret.values())), seeded))

    @property
    def seeded(self) -> bool:
        """Whether the keys derive from a public number; such a run is not private."""
        return self.keys.seeded

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("keys of pairs are never copied, stored or sent")


def fresh_pair_keys(pairs: Iterable[Pair]) -> PairKeys:
    """A new key for each of `pairs` from the operating system's generator.

    For pairs that have both ends in this process.

    Raises:
        InputError: a pair is not of two nodes in ascending order.
    """
    return PairKeys.of({pair: secrets.token_bytes(KEY_BYTES) for pair in pairs}, seeded=False)


def seeded_pair_keys(noise_seed: int, pairs: Iterable[Pair]) -> PairKeys:
    """Keys that derive from a public number, for experiments: whatever they noise is not private.

    The key of (i, j) is BLAKE2b of (seed, i, j), whichever other pairs there are, and has nothing
    in common with any key of a node.

    Raises:
        InputError: the seed is not in 0 .. 2^64 - 1, or a pair is not of two nodes in ascending
            order.
    """
    if not 0 <= noise_seed < 1 << 64:
        raise InputError("privacy.noise_seed", noise_seed, "a whole number from 0 to 2^64 - 1")
    return PairKeys.of({pair: _seeded_key(noise_seed, pair) for pair in pairs}, seeded=True)


def _seeded_key(seed: int, pair: Pair) -> bytes:
    data = b"".join(int(number).to_bytes(8, "big", signed=True) for number in pair)
    data = int(seed).to_bytes(8, "big") + data
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"tacit pair key 1").digest()


def pair_sums(
    keys: PairKeys,
    nodes: Sequence[int],
    active: Collection[int] | None,
    factors: Sequence[float],
    deviation: float,
    d: int,
    k: int,
    part: int,
    device: torch.device,
) -> Offsets:
    """What the noise of its pairs adds to each node's release, `[nodes, d]`.

    Row i is `factors[i]` times the sum over the node's pairs, both ends active, of +zeta where the
    node's number is the smaller one, and -zeta where it is the larger. zeta depends on the pair's
    key, k, part and the deviation only: whatever the nodes of this process, each gets the same row.
    A pair is drawn once, also where both its ends are here.

    Args:
        keys: of at least the pairs with an end among `nodes`.
        nodes: which nodes, in the order of the rows.
        active: all nodes that take part, here or elsewhere; None for all.
        factors: what each row is multiplied by.
        deviation: of a pair's noise, b; the same for all.
        d: length of a row.
        k: the step, 0 .. 2^48 - 1.
        part: number of the release, where a step has several, 0 .. 2^16 - 1.
        device: where the result is to lie.

    Raises:
        InputError: the deviation is not between 2^-500 and 2^500, a position is out of range, a
            node has too many pairs for exact sums (above 4,500), or the keys were dropped by a
            fork.
    """
    # Compiled loops, which a process that draws nothing does not load.
    from tacit.privacy.noise.pair_loop import draw_rows

    check_size("deviation of the noise of pairs", deviation)
    rows = {node: row for row, node in enumerate(nodes)}
    ends = {
        place: (rows.get(i, -1), rows.get(j, -1))
        for place, (i, j) in enumerate(keys.pairs)
        if (i in rows or j in rows) and (active is None or (i in active and j in active))
    }
    table = table_of(LEAST_POINTS)
    degree = max(
        Counter(row for pair in ends.values() for row in pair if row >= 0).values(), default=0
    )
    # The loop counts halves, and no number is further out than the last border.
    largest = 2 * len(table.borders) * degree
    if largest > LARGEST_POINT:
        most = LARGEST_POINT // (2 * len(table.borders))
        raise InputError("pairs of a node", degree, f"at most {most}")
    dtype = torch.int16 if largest <= torch.iinfo(torch.int16).max else torch.int32
    sums = draw_rows(keys.keys, ends, len(nodes), d, position(k, part), table, dtype)
    half = deviation / (2 * LEAST_POINTS)
    return Offsets(sums.to(device), tuple(half * factor for factor in factors))
