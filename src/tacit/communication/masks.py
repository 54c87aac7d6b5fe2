"""Masks under which parties add up whole numbers that none of them shows.

Every two parties p < q that take part in a round draw the same words from a key that only they have
and add them modulo 2^64, p as they are and q negated. In the sum over all who take part every mask
cancels. Without one of the masks of a party its message is uniformly random, whatever it holds, so
that whoever pools the keys of some parties sees the sum over the others and nothing else of them
(Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017,
Lemma 6.1, here with a mask for every pair). It is computational: words are AES-256 in counter mode,
positioned by round and part.

A mask that is used twice shows the difference of what it hid, so no position is. Of a round in
which a message is lost, masks stay in the sum of the others, and nothing here helps anyone to take
them off: it is lost, and run again after a new start, with new keys.

Parties are named by numbers; between processes by the smallest number of a node that each hosts.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.communication.colours import Masked, Summand, summand_value
from tacit.errors import InputError, LeakError
from tacit.privacy.noise.draws import keystream
from tacit.privacy.noise.pairwise import PairKeys

_PURPOSE = "masks of sums"


class PairMasks:
    """The masks of one party, from the keys of its pairs with all others that may take part.

    The keys are fresh at every start.
    """

    def __init__(self, own: int, keys: PairKeys) -> None:
        self._own, self._keys = own, keys.keys
        self._place = {pair: place for place, pair in enumerate(keys.pairs)}
        self._last = (-1, -1)

    def over(
        self, summand: Summand[Tensor], k: int, part: int, parties: Collection[int]
    ) -> Masked[Tensor]:
        """A party's part of a sum, int64 of any shape, under the masks of all its pairs.

        `parties` are all who take part in round `k`, this one among them; `part` is the number of
        the sum, where a round has several.

        Raises:
            LeakError: no later position than the last, the party is not among those who take part,
                or what is given is no `Summand`; nothing was masked.
            InputError: the key of a pair is not held.
        """
        value = summand_value(summand, "what is to be masked")
        if (k, part) <= self._last or self._own not in parties:
            raise LeakError(
                f"the masks of party {self._own} were asked for at round {k}, part {part}, after "
                f"{self._last} and for {sorted(parties)}: each is used once, by those who take part"
            )
        self._last = (k, part)
        words = value.detach().cpu().contiguous().numpy().view(np.uint64).ravel()
        for other in sorted(parties):
            if other != self._own:
                mask = self._mask(other, k, part, len(words))
                words = words + mask if self._own < other else words - mask
        return Masked(_signed(words).view(value.shape).to(value.device))

    def _mask(self, other: int, k: int, part: int, count: int) -> NDArray[np.uint64]:
        pair = (min(self._own, other), max(self._own, other))
        if pair not in self._place:
            raise InputError("party", other, f"one that party {self._own} shares a key with")
        drawn = keystream(self._keys, self._place[pair], _PURPOSE, k, 8 * count, part)
        return drawn.view("<u8").astype(np.uint64, copy=False)


def wrapped_sum(rows: Tensor) -> Tensor:
    """The sum `[1, ...]` of int64 rows `[n, ...]` modulo 2^64, from -2^63 on."""
    words = rows.detach().cpu().contiguous().numpy().view(np.uint64)
    return _signed(words.sum(axis=0, keepdims=True, dtype=np.uint64)).to(rows.device)


def _signed(words: NDArray[np.uint64]) -> Tensor:
    return torch.from_numpy(words.view(np.int64))
