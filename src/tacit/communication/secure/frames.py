"""What one site sends to another: a header, a body, and the sender's signature over both.

Everything here came over a network and is believed by nobody before it was checked, in this order:
its length, its magic, the bounds of its fields, the run, the sender's certificate, the signature
(Ed25519, over the header with the body's SHA-256), and the digest of the body. A relay can
therefore delay or drop a frame. It cannot change one, make one, or pass one off as another's, as
one of another run or session, or as one for another site. One that is sent again has a number
that has been seen (`tacit.communication.secure.wire`).

| bytes | what |
|---|---|
| 0-7 | `tacit`, and the version of this format |
| 8-11 | kind: 1 data, 2 beat |
| 12-15 | rank of the sender |
| 16-19 | rank of the receiver |
| 20-21 | length of the topic |
| 22-23 | zero |
| 24-39 | the run |
| 40-55 | the session |
| 56-63 | number of the frame in its stream |
| 64-71 | length of the body |
| 72-103 | SHA-256 of the body |

Then the topic in ASCII, the signature of 64 bytes over all before it, and the body. Integers are
little-endian and unsigned.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tacit.errors import PeerError

DATA, BEAT = 1, 2
LONGEST_TOPIC = 160
_MAGIC = b"tacit\x00\x01\x01"
_HEADER = struct.Struct("<8sIIIHH16s16sQQ32s")
_SIGNATURE = 64
LONGEST_HEAD = _HEADER.size + LONGEST_TOPIC + _SIGNATURE  # bytes of a frame beside its body
_PURPOSE = b"tacit frame 1\x00"  # no signature over anything else begins with it

Body: TypeAlias = bytes | memoryview
"""Of a frame: one that came in several pieces stays where it lies, and may be written over."""

Sign = Callable[[bytes], bytes]
Verify = Callable[[int, bytes, bytes], str | None]
"""Of a sender's rank, a signature and what it is over: why it is refused; None: it is right."""


class RefusedError(PeerError):
    """A frame was not accepted; the text says why. Nothing of it was believed."""


@dataclass(frozen=True)
class Frame:
    """What was sent, checked.

    `kind` is `DATA` or `BEAT`; sender and receiver are ranks, and the topic says what reads it.
    `session` is that of the run, 16 bytes; `number` is the frame's in the stream from the sender to
    the receiver, 0 of a beat; `digest` is the SHA-256 of the body.
    """

    kind: int
    sender: int
    receiver: int
    session: bytes
    number: int
    topic: str
    body: Body
    digest: bytes


def digest_of(body: Body) -> bytes:
    """SHA-256 of a body."""
    return hashlib.sha256(body).digest()


def pack(frame: Frame, run: bytes, sign: Sign) -> bytes:
    """The bytes of a frame, signed by its sender with `sign`; its digest is that of its body.

    `run` is 16 bytes, the same at every site of the run.
    """
    topic = frame.topic.encode("ascii")
    header = _HEADER.pack(
        _MAGIC,
        frame.kind,
        frame.sender,
        frame.receiver,
        len(topic),
        0,
        run,
        frame.session,
        frame.number,
        len(frame.body),
        frame.digest,
    )
    return b"".join((header, topic, sign(_PURPOSE + header + topic), frame.body))


def unpack(
    message: bytes | bytearray,
    *,
    run: bytes,
    own: int,
    sites: Sequence[str],
    largest: int,
    verify: Verify,
    whole: bool = True,
) -> tuple[Frame, int]:
    """The frame that some bytes are, and how many bytes its body has.

    All of it was signed by the sender, and the length and the digest of the body with it. The
    `message` is as it came; it must be of the `run`, and to `own`, the rank of this site. `sites`
    are the names of all by rank, and `largest` is how many bytes a body may have. Where it is not
    `whole`, but the beginning of one, its head at least, the frame is without its body.

    Raises:
        RefusedError: it is no frame, or not one of this run, to this site, or of the sender that it
            names; one plain line, which names a sender only where the signature was right.
    """
    if len(message) < _HEADER.size + _SIGNATURE:
        raise RefusedError(f"a message of {len(message)} bytes is too short to be one of tacit's")
    magic, kind, sender, receiver, topic_length, zero, of_run, session, number, length, digest = (
        _HEADER.unpack_from(message)
    )
    if magic != _MAGIC:
        raise RefusedError("a message does not begin as those of this version of tacit do")
    if (
        kind not in (DATA, BEAT)
        or zero
        or topic_length > LONGEST_TOPIC
        or length > largest
        or len(message) < (ends := _HEADER.size + topic_length + _SIGNATURE)
        or (whole and len(message) != ends + length)
    ):
        raise RefusedError(f"a message of {len(message)} bytes does not have the form that it says")
    if not sender < len(sites):
        raise RefusedError(f"a message says that it is of site {sender}; there are {len(sites)}")
    at = _HEADER.size + topic_length
    signed, signature = bytes(message[:at]), bytes(message[at : at + _SIGNATURE])
    reason = verify(sender, signature, _PURPOSE + signed)
    if reason is not None:
        raise RefusedError(f"a message in the name of {sites[sender]} was refused: {reason}")
    if of_run != run:
        raise RefusedError(f"{sites[sender]} sent a message of another run")
    if receiver != own or sender == own:
        raise RefusedError(f"a message of {sites[sender]} is for another site")
    topic = signed[_HEADER.size :].decode("ascii", "replace")
    if not topic.isascii() or not topic.isprintable():
        raise RefusedError(f"{sites[sender]} sent a message whose topic is none")
    body: Body = b""
    if whole:
        body = message[ends:] if isinstance(message, bytes) else memoryview(message)[ends:]
        if digest_of(body) != digest:
            raise RefusedError(f"a message in the name of {sites[sender]} was changed on its way")
    return Frame(kind, sender, receiver, session, number, topic, body, digest), length
