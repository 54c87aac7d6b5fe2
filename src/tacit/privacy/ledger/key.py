"""The key of ledgers: it signs them, and it makes the digests of records secret.

One file of 32 random bytes, `ledger.key`, lies beside the ledgers: in the run folder, or in the
folder of the data's ledgers. Whoever has it can write ledgers that pass for true, and can test
whether a known record is in them; whoever lacks it can do neither.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.errors import InputError
from tacit.private_files import appearing

__all__ = ["KEY_FILE", "LedgerKey", "find_key", "fingerprint", "is_signed", "make_key", "new_key"]

KEY_FILE = "ledger.key"
_BYTES = 32


@dataclass(frozen=True)
class LedgerKey:
    """A secret key.

    Args:
        secret: its 32 bytes.
    """

    secret: bytes = field(repr=False)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @property
    def public(self) -> str:
        """The public key that its signatures are checked with, hexadecimal."""
        return self._private.public_key().public_bytes_raw().hex()

    @property
    def salt(self) -> bytes:
        """The key of the digests of records, `[32]` bytes."""
        return hashlib.blake2b(b"digests of records", digest_size=32, key=self.secret).digest()

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature of a message, `[64]` bytes."""
        return self._private.sign(message)


def new_key() -> LedgerKey:
    """A fresh key of the operating system's random source, in memory alone."""
    return LedgerKey(secrets.token_bytes(_BYTES))


def make_key(folder: Path) -> LedgerKey:
    """The key in a folder, made durably if there is none.

    Raises:
        InputError: it is damaged, or cannot be read or made.
    """
    path = folder / KEY_FILE
    if not path.exists():
        try:
            with appearing(path) as aside, aside.open("r+b") as file:
                file.write(secrets.token_bytes(_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            pass  # another process made it at the same moment
        except OSError as error:
            expected = f"a file that can be written: {error.strerror}"
            raise InputError("ledger key", str(path), expected) from None
    key = find_key(folder)
    assert key is not None
    return key


def find_key(folder: Path) -> LedgerKey | None:
    """The key in a folder; None where there is none.

    Raises:
        InputError: it is damaged or cannot be read.
    """
    path = folder / KEY_FILE
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        expected = f"a key that can be read: {error.strerror}"
        raise InputError("ledger key", str(path), expected) from None
    if len(secret) != _BYTES:
        raise InputError("ledger key", str(path), f"a key of {_BYTES} bytes; it has {len(secret)}")
    return LedgerKey(secret)


def is_signed(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key has signed a message."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public: str) -> str:
    """A public key in 16 hexadecimal digits, for people to compare."""
    return hashlib.blake2b(bytes.fromhex(public), digest_size=8).hexdigest()
