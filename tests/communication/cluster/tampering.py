"""What ranks of a crew do to themselves, at a step that is known: die, hang, fail, send nonsense.

What happens next does not depend on how fast this machine is.
"""

import importlib
import json
import os
import signal
import struct
from collections.abc import Callable
from functools import reduce
from hashlib import sha256

import torch

from tacit.communication.cluster.channel import TorchChannel
from tacit.communication.cluster.cluster import Cluster
from tacit.communication.cluster.store import KeyValueStore
from tacit.communication.exchange.messages import HEADER_BYTES, read_header

Tamper = Callable[[], None]


def raise_signal(number):
    """As if another had sent it."""
    os.kill(os.getpid(), number)


def fail():
    """A defect."""
    raise RuntimeError("something nobody thought of")


def at_step(step, act):
    """Do something before a step."""
    told = Cluster.at

    def at(self, k):
        told(self, k)
        if k == step:
            act()

    Cluster.at = at  # type: ignore[method-assign]


def around(module, name, act, *, after):
    """Do something before or after a function, or a method `Class.name`, is called."""
    *owner, name = name.split(".")
    where = reduce(getattr, owner, importlib.import_module(module))
    function = getattr(where, name)

    def acting(*arguments, **named):
        if not after:
            act()
        value = function(*arguments, **named)
        act()
        return value

    setattr(where, name, acting)


def wrap_send(change):
    """Pass every message of the algorithm, with its header's fields, through a function."""
    send = TorchChannel.send

    def changed(self, rank, message):
        header = read_header(message[:HEADER_BYTES].numpy().tobytes())
        of_algorithm = header is not None  # not metrics on their way to rank 0
        send(self, rank, change(rank, header, message) if of_algorithm else message)

    TorchChannel.send = changed  # type: ignore[method-assign]


def overheard(file, lethal):
    """Write down what is sent, and die in the middle of the exchange of a step."""

    def hear(rank, header, message):
        _, kind, step, *_ = header
        digest = sha256(message[HEADER_BYTES:].numpy().tobytes()).hexdigest()
        if step == lethal:
            raise_signal(signal.SIGKILL)
        with file.open("a") as lines:
            lines.write(json.dumps([[kind, step, rank], digest]) + "\n")
        return message

    wrap_send(hear)


def field(at, form, value):
    """Puts another value into a header."""

    def change(message):
        raw = bytearray(struct.pack(form, value))
        message[at : at + len(raw)] = torch.frombuffer(raw, dtype=torch.uint8)
        return message

    return change


def filled(value):
    """Fills all that follows the header."""

    def change(message):
        message[HEADER_BYTES:] = value
        return message

    return change


BAD = {
    "not finite": (filled(0xFF), "are not finite"),
    "another dtype": (field(32, "<I", 1), "its dtype is 1 and must be 2"),
    "more rows": (field(36, "<I", 3), "its rows is 3 and must be"),
    "another step": (field(16, "<q", 9), "its step is 9 and must be"),
    "another sender": (field(8, "<I", 0), "its sender is 0 and must be 1"),
    "another format": (field(0, "<q", 0), "it does not begin as messages of this version"),
    "short": (lambda message: message[:-8].clone(), "bytes and must hold"),
    "empty": (lambda message: message[:0].clone(), "it does not begin as"),
}


def corrupt(*which, first):
    """Spoil the messages of some steps, each in its way."""

    def change(rank, header, message):
        place = header[2] - first
        return BAD[which[place]][0](message) if 0 <= place < len(which) else message

    wrap_send(change)


def lie(words):
    """Put other texts into the store than this process means, of what is shared."""
    write = KeyValueStore.put

    def reported(self, key, text):
        what = key.removeprefix("share ").rpartition(" ")[0]
        write(self, key, words.get(what, text))
        return text

    KeyValueStore.put = reported  # type: ignore[method-assign]
