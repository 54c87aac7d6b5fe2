"""Keys that two nodes share: agreed anew by their processes at every start, known to nobody else.

Each process has an X25519 key for the session, shows the public half to all, and derives the key of
every pair of nodes that it has one end of from what the halves of the two processes come to, by
HKDF-SHA256; the purpose, the numbers of the two nodes and both public halves are part of what is
derived. A pair with both ends in one process gets a secret key there. No key is sent.

In one rack every start is a new session: a run that goes on from a checkpoint has other keys, so
that a step that is run again has other noise of pairs, and other masks. A site that comes back to a
session that goes on (`tacit.communication.peers.SessionMemory`) derives the same keys again: it
makes the same messages again, and others do not leave (`tacit.communication.secure.wire`).

*Trust model.* Public halves go the way of all that processes share, and are as authentic as that
way is: between sites they are signed with the sites' identities, in one rack they travel in clear.
There, whoever hands others a half of its own in place of theirs could take off what they share: the
other processes and the network are taken to be curious, and honest. Processes that end with
different keys, since a half was changed on its way, draw different noise: it does not cancel, and
hides no less.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.communication.peers import Peers, gone_ranks
from tacit.communication.received import PUBLIC_KEY
from tacit.errors import PeerError
from tacit.privacy.noise.draws import KEY_BYTES
from tacit.privacy.noise.pairwise import Pair, PairKeys


def agreed_pair_keys(
    peers: Peers, pairs: Sequence[Pair], ranks: Sequence[int], purpose: str
) -> PairKeys:
    """New keys of those of some pairs that have an end in this process.

    Every process calls it at the same place with the same pairs (of nodes, the smaller number
    first), and waits for all. `ranks` holds the process of each node, by its number. Keys for
    different purposes have nothing in common.

    Raises:
        PeerError: a process was lost, or showed no public key, or another's; or the run goes on
            without one, in whose place somebody could have shown a key.
    """
    own = X25519PrivateKey.from_private_bytes(peers.session.secret(f"half of {purpose}"))
    shown = own.public_key().public_bytes_raw()
    halves = [
        bytes.fromhex(half) for half in peers.share(f"key of {purpose}", shown.hex(), PUBLIC_KEY)
    ]
    if gone := gone_ranks(peers):
        raise PeerError(f"no keys of {purpose} can be agreed on without {', '.join(gone.values())}")
    common: dict[int, bytes] = {}
    for rank, half in enumerate(halves):
        if half in halves[:rank]:
            raise PeerError(f"rank {rank} sent a wrong key of {purpose}: it is another's")
        if rank == peers.rank:
            continue
        try:
            common[rank] = own.exchange(X25519PublicKey.from_public_bytes(half))
        except ValueError:  # a point of low order, with which every key is the same
            expected = f"rank {rank} sent a wrong key of {purpose}: it is no public key"
            raise PeerError(expected) from None
    secret: dict[Pair, bytes] = {}
    for first, second in pairs:
        ends = ranks[first], ranks[second]
        if peers.rank not in ends:
            continue
        if ends[0] == ends[1]:
            secret[first, second] = peers.session.secret(f"{purpose} {first} {second}")
            continue
        other = ends[1] if ends[0] == peers.rank else ends[0]
        numbers = first.to_bytes(8, "big") + second.to_bytes(8, "big")
        info = f"tacit key of {purpose} 1".encode() + numbers + halves[ends[0]] + halves[ends[1]]
        derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(common[other])
        secret[first, second] = derived
    return PairKeys.of(secret, seeded=False)
