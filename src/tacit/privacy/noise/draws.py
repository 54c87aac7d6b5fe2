"""The secret keys of nodes, and what is drawn from them: keystreams, coins, random subsets.

Every secret draw of a node, noise and sampling coins alike, is a stretch of a keystream: AES-256 in
counter mode or, for devices that compute it themselves, ChaCha20. The stream is keyed by (the
node's key, purpose) and positioned by (step, part), so a draw depends neither on the process that
hosts the node, nor on the other nodes, nor on what was drawn before: the simulator and a real run
can agree bit for bit. The keystream is the same on every machine.

AES's 128-bit counter block is `step` (48 bits), `part` (16 bits), block index (64 bits), all
big-endian, so that draws at different positions never share a block. The key of a purpose is
BLAKE2b of the purpose's name under the node's key. AES-256 costs about a tenth more than AES-128,
which is a few hundredths of the time of a normal draw, hence the longer key.

ChaCha20 (RFC 8439) has blocks of 64 bytes, of which block b of a draw has the counter b, 32 bits,
and the nonce `step` and `part` (64 bits, little-endian), then 32 zeros: no two draws of a key share
a block. A draw of more than 2^32 blocks, 256 GiB, is refused. The keys of purposes are others than
those of AES, so that no key serves two ciphers.

Deriving a key and setting up its cipher takes 8 to 20 us, which 50 nodes pay several times a step;
moving a cipher to another position takes 1 us. So ciphers are kept with the keys (`NodeKeys.read`).
A kept cipher has no state that matters: every read positions it first, and it is taken out of the
store while it is read, so no two threads ever share one.

A forked child that went on with its parent's keys would draw the same noise for other values, and
the difference of two such releases holds no noise at all. So keys do not survive a fork: in the
child, all of them are dropped before any other code runs, and whoever asks for one gets an error.
"""

from __future__ import annotations

import hashlib
import operator
import os
import secrets
import struct
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from tacit.errors import InputError

KEY_BYTES = 32
BLOCK_BYTES = 16  # of AES; draws are counted in them, whatever the cipher
CHACHA_BYTES = 64  # of a block of ChaCha20
STEP_BITS = 48
PART_BITS = 16
# Ciphers kept with the keys: a few purposes of every node. One takes about a kilobyte.
_MOST_CIPHERS = 1 << 15

Keystream: TypeAlias = Literal["aes", "chacha20"]
"""The cipher of all draws from the keys of nodes."""


@dataclass(frozen=True, eq=False, repr=False)
class NodeKeys:
    """The secret keys of the nodes that this process hosts, 32 bytes each.

    Whoever has a node's key can subtract its noise. Keys are therefore never shown, pickled, copied
    or sent: `repr` hides them, and pickling and copying raise `TypeError`. A child that this
    process forks holds none of them: every use there raises `InputError`.

    `seeded` says that the keys derive from a public number; such a run is not private.
    `on_devices` is what devices were sent of the keys, by whoever sent it; it is dropped with them.

    Raises:
        InputError: a key is not 32 bytes long.
    """

    secret: Mapping[int, bytes]
    seeded: bool
    cipher: Keystream = "aes"
    on_devices: dict[Hashable, Any] = field(default_factory=dict, init=False)
    _ciphers: dict[tuple[int, str, str], CipherContext] = field(default_factory=dict, init=False)
    _dropped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for node, key in self.secret.items():
            if len(key) != KEY_BYTES:
                raise InputError(f"key of node {node}", len(key), f"a key of {KEY_BYTES} bytes")
        object.__setattr__(self, "secret", MappingProxyType(dict(self.secret)))
        _LIVE.add(self)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes whose keys are held, in the order given."""
        return tuple(self.secret)

    def subset(self, nodes: Iterable[int]) -> NodeKeys:
        """The keys of `nodes` only, for a process that hosts only those.

        Raises:
            InputError: the key of one of `nodes` is not held.
        """
        self._check_held()
        return NodeKeys({node: self._of(node) for node in nodes}, self.seeded, self.cipher)

    def purpose_key(self, node: int, purpose: str) -> bytes:
        """The 32-byte key of one purpose of one node: BLAKE2b of `purpose` under the node's key.

        Raises:
            InputError: the node's key is not held, or `purpose` is empty.
        """
        if not purpose:
            raise InputError("purpose", purpose, "a name such as 'noise' or 'sampling'")
        own, person = self._of(node), b"tacit purpose 1"
        name = purpose.encode()
        return hashlib.blake2b(name, key=own, digest_size=KEY_BYTES, person=person).digest()

    def chacha_key(self, node: int, purpose: str) -> bytes:
        """The 32-byte key of one purpose of one node for ChaCha20."""
        return self.purpose_key(node, f"{purpose}, ChaCha20")

    def check(self, node: int) -> None:
        """Raise `InputError` unless the node's key is held."""
        self._of(node)

    def read(self, node: int, purpose: str, counter: int, zeros: bytes, buffer: memoryview) -> None:
        """Write the keystream of one purpose of one node from the block `counter` on.

        Safe from several threads at once; the interpreter lock is released meanwhile. The key is
        that of `purpose_key` or `chacha_key`, and the block one as `position` gives. There are as
        many zeros as bytes are wanted, and the buffer that is written has room for one block more.

        Raises:
            InputError: the node's key is not held, `purpose` is empty, or ChaCha20 has too few
                blocks.
        """
        start = counter.to_bytes(BLOCK_BYTES, "big")
        if self.cipher == "chacha20":
            start = _chacha_start(counter, len(zeros))
        try:
            cipher = self._ciphers.pop((node, purpose, "stream"))
            cipher.reset_nonce(start)
        except KeyError:
            if self.cipher == "chacha20":
                method = algorithms.ChaCha20(self.chacha_key(node, purpose), start)
                cipher = Cipher(method, None).encryptor()
            else:
                cipher = encryptor(self.purpose_key(node, purpose), counter)
        if self.cipher == "chacha20":  # from within a block
            cipher.update(bytes(counter % _PER_CHACHA * BLOCK_BYTES))
        cipher.update_into(zeros, buffer)
        if len(self._ciphers) < _MOST_CIPHERS:
            self._ciphers[node, purpose, "stream"] = cipher

    def blocks(self, node: int, purpose: str, counters: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Single blocks of the keystream of one purpose of one node, from anywhere: `[blocks, 16]`.

        A block of AES-CTR is its counter, encrypted; of ChaCha20, each is read by itself. The
        counter blocks `[blocks, 16]` are as `position` gives them.

        Raises:
            InputError: the node's key is not held, or `purpose` is empty.
        """
        if self.cipher == "chacha20":
            room = np.empty((len(counters) + 1, BLOCK_BYTES), np.uint8)
            for i, counter in enumerate(counters):
                first = int.from_bytes(counter.tobytes(), "big")
                self.read(node, purpose, first, bytes(BLOCK_BYTES), room[i:].reshape(-1).data)
            return room[:-1]
        name = (node, purpose, "blocks")
        cipher = (
            self._ciphers.pop(name, None)
            or Cipher(algorithms.AES(self.purpose_key(node, purpose)), modes.ECB()).encryptor()
        )
        drawn = np.empty(counters.size + BLOCK_BYTES, np.uint8)
        cipher.update_into(counters.tobytes(), drawn.data)
        if len(self._ciphers) < _MOST_CIPHERS:
            self._ciphers[name] = cipher
        return drawn[: counters.size].reshape(-1, BLOCK_BYTES)

    def _of(self, node: int) -> bytes:
        self._check_held()
        try:
            return self.secret[node]
        except KeyError:
            held = f"one of the {len(self.secret)} nodes whose keys this process holds"
            raise InputError("node", node, held) from None

    def _check_held(self) -> None:
        if self._dropped:
            raise InputError(
                "noise keys",
                f"process {os.getpid()}",
                "is a fork of the process that made them, and would release its own values under "
                "the noise of that process: start the run in this process, or start this process "
                "with the method 'spawn' of multiprocessing",
            )

    def _drop(self) -> None:
        """Forget all keys and ciphers, for good."""
        object.__setattr__(self, "secret", MappingProxyType({}))
        object.__setattr__(self, "_dropped", True)
        self._ciphers.clear()
        self.on_devices.clear()

    def __repr__(self) -> str:
        return f"NodeKeys(nodes={self.nodes}, seeded={self.seeded})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("keys of nodes are never copied, stored or sent")


_LIVE: weakref.WeakSet[NodeKeys] = weakref.WeakSet()


def _drop_all() -> None:
    for keys in list(_LIVE):
        keys._drop()


# Systems without fork have no such function, and need none.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)


def fresh_keys(nodes: Iterable[int]) -> NodeKeys:
    """A new key for each of `nodes` from the operating system's generator."""
    return NodeKeys({node: secrets.token_bytes(KEY_BYTES) for node in nodes}, seeded=False)


def seeded_keys(noise_seed: int, nodes: Iterable[int], cipher: Keystream = "aes") -> NodeKeys:
    """Keys that derive from a public number, for experiments: whatever they noise is not private.

    Node i's key is BLAKE2b of (seed, i), whichever other nodes there are.

    Raises:
        InputError: the seed or a node is not in 0 .. 2^64 - 1.
    """
    seed = _fits("privacy.noise_seed", noise_seed, 64)
    return NodeKeys({node: _seeded_key(seed, node) for node in nodes}, seeded=True, cipher=cipher)


def _seeded_key(seed: int, node: int) -> bytes:
    data = seed.to_bytes(8, "big") + _fits("node", node, 64).to_bytes(8, "big")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"tacit seeded key").digest()


def _fits(where: str, value: int, bits: int) -> int:
    whole = operator.index(value)  # NumPy's integers would overflow when shifted
    if not 0 <= whole < 1 << bits:
        raise InputError(where, value, f"a whole number from 0 to 2^{bits} - 1")
    return whole


def aes_ctr(key: bytes, counter: int, count_bytes: int) -> NDArray[np.uint8]:
    """The first bytes of the AES-CTR keystream of `key` from the 128-bit block `counter` on.

    As NIST SP 800-38A, section 6.5, defines it for a plaintext of zeros: `[count_bytes]`. The key
    has 16, 24 or 32 bytes, and the counter is big-endian.
    """
    buffer = np.empty(count_bytes + BLOCK_BYTES, np.uint8)
    encryptor(key, counter).update_into(bytes(count_bytes), buffer.data)
    return buffer[:count_bytes]


def encryptor(key: bytes, counter: int) -> CipherContext:
    """What turns zeros into the keystream of `key` from the 128-bit block `counter` on."""
    return Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(BLOCK_BYTES, "big"))).encryptor()


_PER_CHACHA = CHACHA_BYTES // BLOCK_BYTES


def _chacha_start(counter: int, count_bytes: int) -> bytes:
    """Counter and nonce of the ChaCha20 block that holds a counter block of `position`."""
    place, index = counter >> 64, counter & ((1 << 64) - 1)
    if index * BLOCK_BYTES + count_bytes > CHACHA_BYTES << 32:
        expected = "draws of at most 2^32 blocks at a step and part; 'aes' has 2^64"
        raise InputError("privacy.keystream", "chacha20", expected)
    return struct.pack("<IQI", index // _PER_CHACHA, place, 0)


def position(step: int, part: int) -> int:
    """The first counter block of a draw: step, part, then a block index of 64 bits from 0.

    Raises:
        InputError: step or part is out of range.
    """
    position = (_fits("step", step, STEP_BITS) << PART_BITS) | _fits("part", part, PART_BITS)
    return position << 64


def keystream(
    keys: NodeKeys, node: int, purpose: str, step: int, count_bytes: int, part: int = 0
) -> NDArray[np.uint8]:
    """Secret random bytes of one node, purpose, step and part: `[count_bytes]`.

    A shorter draw at the same position is a prefix of a longer one.

    Raises:
        InputError: the node's key is not held, or step or part is out of range.
    """
    buffer = np.empty(count_bytes + BLOCK_BYTES, np.uint8)
    keys.read(node, purpose, position(step, part), bytes(count_bytes), buffer.data)
    return buffer[:count_bytes]


def coins(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, rate: float, part: int = 0
) -> NDArray[np.bool_]:
    """Independent coins of one node, each True with probability `rate`: `[count]`.

    A coin compares a 64-bit word with `floor(rate * 2^64)`: the probability that is realised is
    never above `rate`, and below it by less than 2^-64. Rate 1 gives True always. A shorter draw
    is a prefix of a longer one.

    Raises:
        InputError: `rate` is not in [0, 1], the node's key is not held, or the position is out of
            range.
    """
    words_below = threshold(rate)
    if words_below == 1 << 64:
        return np.ones(count, np.bool_)
    return _words(keys, node, purpose, step, count, part) < np.uint64(words_below)


def coins_of_all(
    keys: NodeKeys,
    nodes: Sequence[int],
    purpose: str,
    step: int,
    counts: Sequence[int],
    rates: Sequence[float],
    part: int = 0,
) -> NDArray[np.bool_]:
    """The coins of many nodes, `[sum of counts]`: what `coins` gives of one after the other.

    Raises:
        InputError: as `coins`.
    """
    counter, zeros = position(step, part), bytes(8 * max(counts))
    below = [threshold(rate) for rate in rates]
    stream = bytearray(8 * sum(counts) + BLOCK_BYTES)  # a block more, which the next overwrites
    room, start = memoryview(stream), 0
    for i, (node, count) in enumerate(zip(nodes, counts, strict=True)):
        end = start + 8 * count
        if below[i] == 1 << 64:
            room[start:end], below[i] = zeros[: 8 * count], 1
        else:
            keys.read(node, purpose, counter, zeros[: 8 * count], room[start:])
        start = end
    words = np.frombuffer(stream, "<u8", sum(counts))
    return words < np.repeat(np.array(below, np.uint64), counts)


def threshold(rate: float) -> int:
    """How many of the 2^64 words are a coin of this rate.

    Raises:
        InputError: `rate` is not in [0, 1].
    """
    if not 0.0 <= rate <= 1.0:
        raise InputError("rate", rate, "a probability from 0 to 1")
    # Scaling by a power of two is exact, and int() drops the fraction: the exact floor.
    return int(rate * 2.0**64)


def _words(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, part: int
) -> NDArray[np.uint64]:
    return keystream(keys, node, purpose, step, 8 * count, part).view("<u8")


def subset(
    keys: NodeKeys, node: int, purpose: str, step: int, population: int, size: int, part: int = 0
) -> NDArray[np.int64]:
    """A uniformly random subset of `0 .. population - 1` of fixed size, sorted: `[size]`.

    The elements with the smallest 64-bit words are taken; between equal words 64 more bits decide,
    and between those (probability below `population^2 / 2^129`) the lower index wins. So the size
    is always exact, and the law is that close to uniform.

    Raises:
        InputError: `size` is not in 0 .. population, the node's key is not held, or the position
            is out of range.
    """
    if not 0 <= size <= population:
        raise InputError("size", size, f"a number from 0 to the population, {population}")
    words = _words(keys, node, purpose, step, population, part)
    return _smallest(
        words, size, lambda: _words(keys, node, f"{purpose}, ties", step, population, part)
    )


def _smallest(
    words: NDArray[np.uint64], size: int, more: Callable[[], NDArray[np.uint64]]
) -> NDArray[np.int64]:
    """Indices of the `size` smallest words, sorted; between equal ones `more` words decide."""
    if size == 0:
        return np.empty(0, np.int64)
    largest = np.partition(words, size - 1)[size - 1]
    below = np.flatnonzero(words < largest)
    ties = np.flatnonzero(words == largest)
    wanted = size - len(below)
    if wanted < len(ties):
        ties = ties[np.argsort(more()[ties], kind="stable")][:wanted]
    return np.sort(np.concatenate([below, ties])).astype(np.int64)


def permutation(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, part: int = 0
) -> NDArray[np.int64]:
    """A random order of `0 .. count - 1`, `[count]`: that of their 64-bit words.

    Uniform but for a chance of equal words, below `count^2 / 2^65`.

    Raises:
        InputError: the node's key is not held, or the position is out of range.
    """
    words = _words(keys, node, purpose, step, count, part)
    return np.argsort(words, kind="stable").astype(np.int64)


def choices(
    keys: NodeKeys, node: int, purpose: str, step: int, count: int, sides: int, part: int = 0
) -> NDArray[np.int64]:
    """Independent numbers from `0 .. sides - 1`, `[count]`: words modulo `sides`.

    Uniform but for `sides / 2^64`. A shorter draw is a prefix of a longer one.

    Raises:
        InputError: the node's key is not held, or the position is out of range.
    """
    words = _words(keys, node, purpose, step, count, part)
    return (words % np.uint64(sides)).astype(np.int64)
