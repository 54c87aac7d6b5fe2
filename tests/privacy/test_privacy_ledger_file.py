"""The key of ledgers: made once, kept secret, and the only thing that signs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.errors import InputError
from tacit.privacy.ledger.file import (
    KEY_FILE,
    LedgerKey,
    find_key,
    fingerprint,
    is_signed,
    make_key,
    new_key,
)


def test_a_key_is_made_once_whoever_comes_first(tmp_path):
    assert find_key(tmp_path) is None
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make_key, [tmp_path] * 16))
    assert len({key.secret for key in made}) == 1
    assert find_key(tmp_path) == made[0]
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    assert make_key(tmp_path) == made[0]


def test_only_the_key_signs_and_only_what_it_was_given():
    key, other = new_key(), new_key()
    signature = key.sign(b"a head")
    assert is_signed(key.public, b"a head", signature)
    assert not is_signed(key.public, b"another head", signature)
    assert not is_signed(other.public, b"a head", signature)
    assert not is_signed(key.public, b"a head", b"")
    assert not is_signed("no key", b"a head", signature)
    # It is Ed25519, so that anyone can check it with other software.
    private = Ed25519PrivateKey.from_private_bytes(key.secret)
    assert private.sign(b"a head") == signature


def test_what_is_public_does_not_tell_what_is_secret():
    key = LedgerKey(bytes(range(32)))
    shown = (repr(key), key.public, fingerprint(key.public))
    assert not any(key.secret.hex() in text or str(key.secret) in text for text in shown)
    assert key.salt not in (key.secret, bytes.fromhex(key.public))
    assert len(fingerprint(key.public)) == 16
    assert fingerprint(key.public) != fingerprint(new_key().public)


def test_a_key_that_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(InputError, match="a file that can be written"):
        make_key(tmp_path / "no folder")
    (tmp_path / KEY_FILE).mkdir()
    with pytest.raises(InputError, match="a key that can be read"):
        find_key(tmp_path)
    (tmp_path / KEY_FILE).rmdir()
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(InputError, match="a key of 32 bytes; it has 5"):
        make_key(tmp_path)
