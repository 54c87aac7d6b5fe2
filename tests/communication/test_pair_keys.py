"""Keys of pairs: the same at both ends, new at every start, and nobody else's."""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from threading import Barrier

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.communication.colours import Summand
from tacit.communication.masks import PairMasks, wrapped_sum
from tacit.communication.pair_keys import agreed_pair_keys
from tacit.communication.peers import ALONE, Peers
from tacit.communication.received import PUBLIC_KEY
from tacit.errors import PeerError
from tacit.privacy.noise.draws import keystream

RANKS = (0, 0, 1, 1, 2)  # of five nodes
PAIRS = tuple(combinations(range(5), 2))


class Together(Peers):
    """One of three processes, here threads, which share what they say; `tell` may change it."""

    processes = 3

    def __init__(self, rank, room, gate, tell):
        self.rank, self._room, self._gate, self._tell = rank, room, gate, tell

    def share(self, what, value, schema):
        self._room[self.rank] = value
        self._gate.wait(30)
        said = [self._tell(self.rank, rank, self._room[rank]) for rank in range(3)]
        self._gate.wait(30)
        said[self.rank] = value
        return [schema.read(schema.write(text), rank, what) for rank, text in enumerate(said)]


def agreed(purpose="a test", tell=lambda to, of, said: said):
    """What three processes agree on, by rank."""
    room = {}
    gate = Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        return list(
            pool.map(
                lambda rank: agreed_pair_keys(
                    Together(rank, room, gate, tell), PAIRS, RANKS, purpose
                ),
                range(3),
            )
        )


def drawn(keys):
    """The first bytes of what each pair draws."""
    return {
        pair: keystream(keys.keys, place, "test", 0, 16).tobytes()
        for place, pair in enumerate(keys.pairs)
    }


def test_both_ends_have_the_key_and_nobody_else():
    keys = agreed()
    streams = [drawn(one) for one in keys]
    for pair in PAIRS:
        ends = {RANKS[node] for node in pair}
        found = [stream[pair] for rank, stream in enumerate(streams) if pair in stream]
        assert {rank for rank in range(3) if pair in streams[rank]} == ends
        assert len(set(found)) == 1
    everything = {key for stream in streams for key in stream.values()}
    assert len(everything) == len(PAIRS)  # two pairs of the same two processes have two keys
    assert not any(one.seeded for one in keys)


def test_keys_of_another_start_or_purpose_have_nothing_in_common():
    first, again, other = (
        {key for keys in agreed(purpose) for key in drawn(keys).values()}
        for purpose in ("a test", "a test", "another")
    )
    assert not first & again
    assert not first & other


def test_a_half_that_was_changed_on_its_way_gives_the_ends_different_keys():
    own = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    keys = agreed(tell=lambda to, of, said: own if (to, of) == (0, 1) else said)
    assert drawn(keys[0])[0, 2] != drawn(keys[1])[0, 2]
    assert drawn(keys[0])[0, 4] == drawn(keys[2])[0, 4]


def test_a_half_of_low_order_is_refused():
    with pytest.raises(PeerError, match="rank 1 sent a wrong key of a test"):
        agreed(tell=lambda to, of, said: "00" * 32 if of == 1 and to != 1 else said)


def test_a_process_alone_has_keys_of_its_own():
    keys = agreed_pair_keys(ALONE, PAIRS, (0,) * 5, "a test")
    assert keys.pairs == PAIRS
    assert len(set(drawn(keys).values())) == len(PAIRS)
    assert agreed_pair_keys(ALONE, (), (0,), "a test").pairs == ()


@pytest.mark.parametrize("text", ['""', '"xyz"', '"' + "0" * 63 + '"', '"' + "A" * 64 + '"', "7"])
def test_what_is_no_half_is_refused_where_it_comes_in(text):
    with pytest.raises(PeerError, match="rank 1 sent a wrong key"):
        PUBLIC_KEY.read(text, 1, "key")


def test_masks_of_agreed_keys_cancel():
    parties = [0, 2, 4]
    values = torch.arange(12).view(3, 1, 4) - 5
    hidden = [
        PairMasks(party, keys).over(Summand(value), 7, 0, parties).value
        for party, keys, value in zip(parties, agreed(), values, strict=True)
    ]
    assert torch.equal(wrapped_sum(torch.cat(hidden)), values.sum(0))
    assert not any(torch.equal(one, value) for one, value in zip(hidden, values, strict=True))
