"""Keys of masks: agreed anew by every two processes at every start, and known to nobody else.

Each process makes an X25519 key of its own, shows the public half to all, and derives from what the
two halves of a pair come to, by HKDF-SHA256, the key of that pair; both public halves are part of
what is derived. Private halves are forgotten at once, and no key is stored or sent: a run that goes
on from a checkpoint has other masks.

*Trust model.* Public halves go the way of all that processes share (`tacit.communication.cluster`),
and are as authentic as that way is. Whoever hands others a half of its own in place of theirs could
take their masks off: the server and the network are taken to be curious, and honest.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.communication.peers import Peers
from tacit.communication.received import PUBLIC_KEY
from tacit.errors import PeerError
from tacit.privacy.noise.draws import KEY_BYTES
from tacit.privacy.noise.pairwise import PairKeys

__all__ = ["agreed_mask_keys"]

_PURPOSE = b"tacit key of masks 1"


def agreed_mask_keys(peers: Peers, parties: Sequence[int]) -> PairKeys:
    """New keys of the pairs of this process's party with every other one.

    Every process calls it at the same place, and waits for all.

    Args:
        peers: the other processes.
        parties: the number of each process's party, by rank; each once.

    Raises:
        PeerError: a process was lost, or showed no public key.
    """
    own = X25519PrivateKey.generate()
    shown = own.public_key().public_bytes_raw()
    halves = [bytes.fromhex(half) for half in peers.share("mask key", shown.hex(), PUBLIC_KEY)]
    secret: dict[tuple[int, int], bytes] = {}
    for rank, half in enumerate(halves):
        if rank == peers.rank:
            continue
        try:
            common = own.exchange(X25519PublicKey.from_public_bytes(half))
        except ValueError:  # a point of low order, with which every key is the same
            raise PeerError(f"rank {rank} sent a wrong mask key: it is no public key") from None
        first, second = sorted((peers.rank, rank), key=lambda one: parties[one])
        info = _PURPOSE + halves[first] + halves[second]
        derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(common)
        secret[parties[first], parties[second]] = derived
    return PairKeys.of(secret, seeded=False)
