"""The ledger: its life cycle, real kills, its lock, and what damage it detects."""

import multiprocessing
import random
import shutil
import sqlite3
import stat
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from forks import forked_process
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
from tacit.privacy.ledger.ledger import (
    Interval,
    Ledger,
    NodeStatement,
    StepRun,
    read_ledger,
    step_runs,
)

STATEMENTS = [
    NodeStatement(4, {"kind": "sampled", "sample_rate": 0.01, "clips": [1.0, 0.5]}, 1.0, 1e-5),
    NodeStatement(0, {"kind": "gaussian", "noise_multiplier": 1.25}, None, None),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def new(path):
    return Ledger.create(path, digest="d1", statements=STATEMENTS)


def test_a_ledger_keeps_what_it_was_given(path):
    with new(path) as ledger:
        run_id = ledger.run_id
        assert ledger.nodes == (0, 4)
        assert ledger.charged() == {0: (), 4: ()}
    with Ledger.open(path, digest="d1") as again:
        assert again.run_id == run_id
        assert again.digest == "d1"
        assert again.statements == tuple(sorted(STATEMENTS, key=lambda one: one.node))
        assert again.charged() == {0: (), 4: ()}
    assert len(run_id) == 32


def test_settled_steps_are_charged_as_used_and_open_ones_in_full(path):
    with new(path) as ledger:
        ledger.reserve(0, 10)
        ledger.reserve(10, 20)
        ledger.reserve(20, 30)
        assert step_runs(ledger.charged()[4]) == (StepRun(0, 30, 1),)
        ledger.settle(13)
        assert ledger.charged()[4] == (Interval(0, 10), Interval(10, 13))
        ledger.reserve(13, 23)
    with Ledger.open(path, digest="d1") as again:
        # The block 13 .. 22 was left open, and stays charged whatever later sessions settle.
        again.reserve(15, 40)
        again.settle(20)
        runs = (StepRun(0, 15, 1), StepRun(15, 20, 2), StepRun(20, 23, 1))
        assert step_runs(again.charged()[0]) == runs
        assert again.charged()[0] == again.charged()[4]


def test_a_repeated_step_is_charged_each_time():
    ledger = Ledger.in_memory(digest="d1", statements=STATEMENTS)
    for _ in range(3):
        ledger.reserve(5, 8)
        ledger.settle(7)
    assert step_runs(ledger.charged()[4]) == (StepRun(5, 7, 3),)
    assert ledger.charged()[4] == (Interval(5, 7),) * 3


def test_settling_twice_or_late_changes_nothing(path):
    with new(path) as ledger:
        ledger.settle(3)
        ledger.reserve(0, 10)
        ledger.settle(25)
        ledger.settle(2)
        assert step_runs(ledger.charged()[0]) == (StepRun(0, 10, 1),)
    with Ledger.open(path, digest="d1") as again:
        assert step_runs(again.charged()[0]) == (StepRun(0, 10, 1),)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda s: Interval(s[0], sum(s))),
        max_size=12,
    )
)
def test_step_runs_count_every_step(intervals):
    runs = step_runs(intervals)
    counted = Counter(step for first, until in intervals for step in range(first, until))
    assert counted == {s: times for first, until, times in runs for s in range(first, until)}
    for one, following in pairwise(runs):
        assert one.until <= following.first
        assert one.until < following.first or one.times != following.times


def hold(path, ready):
    with Ledger.open(path, digest="d1"):
        ready.send_bytes(b"held")
        time.sleep(60)


@pytest.mark.process
def test_one_process_at_a_time_until_it_dies(path):
    new(path).close()
    receiving, sending = multiprocessing.Pipe(duplex=False)
    holder = forked_process(hold, path, sending)
    holder.start()
    try:
        assert receiving.poll(60)
        assert receiving.recv_bytes() == b"held"
        with pytest.raises(InputError, match="no other process") as refused:
            Ledger.open(path, digest="d1")
        assert str(path) in str(refused.value)
    finally:
        holder.kill()
        holder.join(60)
    Ledger.open(path, digest="d1").close()


def test_the_same_process_cannot_open_it_twice_either(path):
    with new(path), pytest.raises(InputError, match="no other process"):
        Ledger.open(path, digest="d1")


def test_closing_twice_is_harmless_and_a_closed_ledger_books_nothing(path):
    ledger = new(path)
    ledger.close()
    ledger.close()
    with pytest.raises(InputError, match="ledger"):
        ledger.reserve(0, 1)


def used(path):
    """The bytes of a ledger with a few blocks of two sessions, one of them killed."""
    with new(path) as ledger:
        for first in range(0, 40, 5):
            ledger.reserve(first, first + 5)
    with Ledger.open(path, digest="d1") as ledger:
        ledger.reserve(35, 50)
        ledger.settle(42)
    return path.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path, share):
    content = used(path)
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="ledger"):
        Ledger.open(path, digest="d1")


def test_a_flipped_bit_is_refused_wherever_it_is(path):
    content = used(path)
    rng = random.Random(3)
    # SQLite's change counters mean nothing between sessions.
    places = set(range(len(content))) - set(range(24, 28)) - set(range(92, 100))
    for place in rng.sample(sorted(places), 250):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="ledger"):
            Ledger.open(path, digest="d1").close()
    path.write_bytes(content)
    Ledger.open(path, digest="d1").close()


CHANGED = "UPDATE entry SET content = replace(content, '{}', '{}') WHERE {}"


@pytest.mark.parametrize(
    "edit",
    [
        CHANGED.format('"until": 5', '"until": 4', "id = 4"),
        CHANGED.format('"session": 1', '"session": 9', "id = 5"),
        CHANGED.format("reserve", "nothing", "id = 6"),
        CHANGED.format("[4, 1.0, ", "[4, 9.0, ", "1"),
        CHANGED.format("1.25", "2.25", "1"),
        CHANGED.format('"digest": "d1"', '"digest": "d2"', "1"),
        CHANGED.format("[0, null", "[1, null", "1"),
        CHANGED.format('"until": 42', '"until": 35', "1"),
        CHANGED.format('"public_key": "', '"public_key": "00', "1"),
        "UPDATE entry SET id = 99 WHERE id = 6",
        "UPDATE entry SET content = 'no JSON' WHERE id = 6",
        "UPDATE entry SET digest = zeroblob(32) WHERE id = 5",
        "DELETE FROM entry WHERE id = 5",
        "DELETE FROM entry WHERE id = (SELECT max(id) FROM entry)",
        "DELETE FROM entry",
        "DELETE FROM seal",
        "UPDATE seal SET signature = zeroblob(64)",
        "UPDATE seal SET signature = 7",
        "DELETE FROM records",
        "DROP TABLE entry",
        "INSERT INTO entry SELECT 99, content, digest FROM entry WHERE id = 4",
    ],
)
def test_an_edited_row_is_refused(path, edit):
    used(path)
    for sealed in (True, False):
        edited = path.with_name(f"{sealed}-{path.name}")
        shutil.copy(path, edited)
        with sqlite3.connect(edited) as connection:
            if not sealed:
                # As a kill between a change and its seal leaves it: the chain must do alone.
                connection.execute("UPDATE seal SET image = zeroblob(32)")
            before = list(connection.iterdump())
            connection.execute(edit)
            assert list(connection.iterdump()) != before
        connection.close()
        with pytest.raises(InputError, match="ledger"):
            Ledger.open(edited, digest=None)


UNDO = """
CREATE TRIGGER forget AFTER INSERT ON entry BEGIN DELETE FROM entry WHERE id > {last}; END;
CREATE TRIGGER undo AFTER UPDATE ON seal WHEN new.signature <> x'{signature}'
BEGIN UPDATE seal SET image = zeroblob(32), signature = x'{signature}'; END;
"""


# What reads like a table may be a view that never ends: it is not looked into.
VIEW = """
DROP TABLE entry;
CREATE VIEW entry AS SELECT 1 AS id, NULL AS content, NULL AS digest;
"""


@pytest.mark.parametrize(
    "addition", [UNDO, VIEW, "CREATE TABLE other (id);", "CREATE INDEX other ON entry (content);"]
)
def test_nothing_else_may_be_in_the_file(path, addition):
    """A trigger would undo what is reserved, and leave a chain that is sound."""
    used(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE seal SET image = zeroblob(32)")
        ((last,),) = connection.execute("SELECT max(id) FROM entry")
        ((signature,),) = connection.execute("SELECT hex(signature) FROM seal")
        connection.executescript(addition.format(last=last, signature=signature))
    connection.close()
    for opened in (lambda: Ledger.open(path, digest=None), lambda: read_ledger(path)):
        with pytest.raises(InputError, match="tables, triggers or the like"):
            opened()


def forged(path, key):
    """Take the last entry, a settlement, away, and make everything fit again with some key."""
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entry WHERE id = (SELECT max(id) FROM entry)")
        ((head,),) = connection.execute("SELECT digest FROM entry ORDER BY id DESC LIMIT 1")
        signature = key.sign(b"head of a tacit ledger: " + head)
        connection.execute("UPDATE seal SET image = zeroblob(32), signature = ?", (signature,))
    connection.close()


def test_who_has_not_the_key_cannot_write(path):
    used(path)
    forged(path, new_key())
    with pytest.raises(InputError, match="its signature was"):
        Ledger.open(path, digest=None)
    # With the key anyone could: the key is what must be kept. What is found then is an older head.
    key = find_key(path.parent)
    assert key is not None
    forged(path, key)
    Ledger.open(path, digest="d1").close()


def test_the_key_beside_it_must_be_its_own(path):
    content = used(path)
    secret = (path.parent / KEY_FILE).read_bytes()
    assert stat.S_IMODE((path.parent / KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (path.parent / KEY_FILE).write_bytes(bytes(32))
    with pytest.raises(InputError, match="signed with another"):
        read_ledger(path)
    (path.parent / KEY_FILE).write_bytes(bytes(31))
    with pytest.raises(InputError, match="a key of 32 bytes; it has 31"):
        read_ledger(path)
    (path.parent / KEY_FILE).unlink()
    # An auditor reads it without the key, by the public key in it; nobody reserves without it.
    assert read_ledger(path).public_key == LedgerKey(secret).public
    with pytest.raises(InputError, match="without it nothing can be reserved"):
        Ledger.open(path, digest="d1")
    assert path.read_bytes() == content


def test_every_earlier_head_stays_on_file(path):
    heads = []
    with new(path) as ledger:
        for first in range(3):
            heads.append(ledger.snapshot().head)
            ledger.reserve(first, first + 1)
        ledger.settle(2)
        heads.append(ledger.snapshot().head)
    now = read_ledger(path).heads
    assert len(set(now)) == len(now)
    assert [head for head in now if head in heads] == heads
    assert now[-1] == heads[-1]


def test_a_ledger_killed_before_its_seal_opens(path):
    used(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE seal SET image = zeroblob(32)")
    connection.close()
    with Ledger.open(path, digest="d1") as ledger:
        assert step_runs(ledger.charged()[0]) == (
            StepRun(0, 35, 1),
            StepRun(35, 40, 2),
            StepRun(40, 42, 1),
        )


def test_another_format_version_is_named(path):
    used(path)
    with sqlite3.connect(path) as connection:
        edit = CHANGED.format('"format_version": 6', '"format_version": 7', "1")
        connection.execute(edit)
    connection.close()
    expected = "format_version = 7: this version of tacit reads format 6"
    with pytest.raises(InputError, match=expected):
        Ledger.open(path, digest="d1")


def test_another_plan_is_refused_and_a_reader_is_not(path):
    new(path).close()
    with pytest.raises(InputError, match="it is that of d1"):
        Ledger.open(path, digest="d2")
    with Ledger.open(path, digest=None) as reader:
        assert reader.digest == "d1"


def test_missing_foreign_and_existing_files_are_refused(tmp_path, path):
    with pytest.raises(InputError, match="existing ledger"):
        Ledger.open(path, digest="d1")
    path.write_text("no ledger at all, but text that is longer than a header\n" * 40)
    with pytest.raises(InputError, match="ledger"):
        Ledger.open(path, digest="d1")
    with pytest.raises(InputError, match="does not exist yet"):
        new(path)
    with pytest.raises(InputError, match="can be written"):
        new(tmp_path / "no folder" / "ledger.sqlite")


@pytest.mark.parametrize(
    "statements",
    [
        [],
        [NodeStatement(-1, {}, None, None)],
        [NodeStatement(0, {}, None, None), NodeStatement(0, {}, None, None)],
        [NodeStatement(0, {"sigma": float("nan")}, None, None)],
        [NodeStatement(0, {"sigma": object()}, None, None)],
    ],
    ids=["none", "negative", "twice", "not finite", "not JSON"],
)
def test_unusable_statements_leave_no_file(path, statements):
    with pytest.raises(InputError):
        Ledger.create(path, digest="d1", statements=statements)
    assert not path.exists()


@settings(max_examples=20, deadline=None)
@given(first=st.integers(-5, 5), length=st.integers(-5, 0))
def test_impossible_bookings_are_refused(first, length):
    ledger = Ledger.in_memory(digest="d1", statements=STATEMENTS)
    with pytest.raises(InputError, match="at least one"):
        ledger.reserve(first, first + length)
    with pytest.raises(InputError, match="at least 0"):
        ledger.settle(length - 1)
    assert ledger.charged() == {0: (), 4: ()}


@pytest.mark.parametrize("charged_until", [2, 6])
def test_what_stays_charged_was_reserved_and_holds_what_was_sent(charged_until):
    ledger = Ledger.in_memory(digest="d1", statements=STATEMENTS)
    ledger.reserve(0, 5)
    with pytest.raises(InputError, match="steps that are reserved, and at least 3"):
        ledger.settle(3, charged_until)
    assert ledger.charged() == {0: ((0, 5),), 4: ((0, 5),)}
    assert ledger.unsent is None
    ledger.settle(3, 5)
    assert ledger.unsent == (3, 5)


# The key of ledgers: made once, kept secret, and the only thing that signs.


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
