"""Keys of masks: the same at both ends of a pair, nobody else's, and new at every start."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
from tacit.communication.mask_keys import agreed_mask_keys

from tacit.communication.colours import Summand
from tacit.communication.masks import PairMasks, wrapped_sum
from tacit.communication.peers import ALONE
from tacit.communication.received import PUBLIC_KEY
from tacit.errors import PeerError


def agreed(parties: list[int], changed: dict[int, str] | None = None) -> list[Any]:
    """The keys of all processes, in threads that wait for each other."""
    barrier = threading.Barrier(len(parties))
    halves: dict[int, str] = {}
    found: list[Any] = [None] * len(parties)

    class Peer:
        def __init__(self, rank: int) -> None:
            self.rank, self.processes = rank, len(parties)

        def share(self, what: str, value: str, schema: Any) -> list[str]:
            halves[self.rank] = schema.read(schema.write(value), self.rank, what)
            barrier.wait(10)
            shown = {**halves, **(changed or {})}
            return [value if rank == self.rank else shown[rank] for rank in range(len(parties))]

    def run(rank: int) -> None:
        peer: Any = Peer(rank)
        try:
            found[rank] = agreed_mask_keys(peer, parties)
        except PeerError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parties))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return found


def by_pair(keys: Any) -> dict[tuple[int, int], bytes]:
    return {pair: keys.keys.secret[place] for place, pair in enumerate(keys.pairs)}


def test_both_ends_of_every_pair_have_one_key_that_nobody_else_has() -> None:
    parties = [4, 0, 9]  # the first node of each process, in whatever order
    every = [by_pair(keys) for keys in agreed(parties)]
    for (one, mine), (other, theirs) in itertools.combinations(zip(parties, every, strict=True), 2):
        pair = (min(one, other), max(one, other))
        assert mine.keys() & theirs.keys() == {pair}
        assert mine[pair] == theirs[pair]
    assert len({key for keys in every for key in keys.values()}) == 3
    assert not any(keys.seeded for keys in agreed(parties))


def test_every_start_has_keys_of_its_own() -> None:
    first, second = (by_pair(agreed([0, 1])[0]) for _ in range(2))
    assert first.keys() == second.keys()
    assert not {*first.values()} & {*second.values()}


def test_masks_of_agreed_keys_cancel() -> None:
    parties = [3, 1, 8]
    values = torch.arange(12).view(3, 1, 4) - 5
    hidden = [
        PairMasks(party, keys).over(Summand(value), 7, 0, parties).value
        for party, keys, value in zip(parties, agreed(parties), values, strict=True)
    ]
    assert torch.equal(wrapped_sum(torch.cat(hidden)), values.sum(0))
    assert not any(torch.equal(one, value) for one, value in zip(hidden, values, strict=True))


def test_a_process_alone_needs_no_keys() -> None:
    assert agreed_mask_keys(ALONE, [0]).pairs == ()


@pytest.mark.parametrize("half", ["00" * 32, "01" + "00" * 31])
def test_a_half_with_which_every_key_is_the_same_is_refused(half: str) -> None:
    found = agreed([0, 1, 2], {2: half})
    assert [str(one) for one in found[:2]] == [
        "rank 2 sent a wrong mask key: it is no public key"
    ] * 2


@pytest.mark.parametrize("text", ['""', '"xyz"', '"' + "0" * 63 + '"', '"' + "A" * 64 + '"', "7"])
def test_what_is_no_half_is_refused_where_it_comes_in(text: str) -> None:
    with pytest.raises(PeerError, match="rank 1 sent a wrong mask key"):
        PUBLIC_KEY.read(text, 1, "mask key")
