"""The journal: whenever the machine stops, what was written before is read, and no more."""

import errno
import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.communication.secure.frames import digest_of
from tacit.communication.secure.journal import (
    FACT,
    NOTES,
    RECEIVED,
    SENT,
    STATED,
    Journal,
    Record,
    Session,
)
from tacit.errors import InputError


def message(rank, number, topic, body):
    return Record(RECEIVED, rank, number, topic, body, digest_of(body))


CAME = [
    message(rank, number, f"topic {number}", bytes([number]) * (7 * number))
    for number, rank in enumerate((1, 2, 1, 1))
]
LEFT = [Record(SENT, 2, 5, "exchange", b"", bytes(range(32))), Record(STATED, 0, 0, "a", b"text")]
SESSION = Session(secret="5" * 64, nonce="7" * 32)


def filled(folder, step=0):
    journal = Journal(folder)
    journal.begin_segment(step)
    for record in CAME:
        journal.add_received(record)
    journal.add_sent(LEFT)
    journal.sync_received()
    return journal


def since(folder, step=None):
    return list(Journal(folder).load(step)[1])


FIELDS = (
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
    st.binary(max_size=100),
)
OTHERS = st.sampled_from([NOTES, SENT, FACT, STATED])
RECORDS = st.one_of(
    st.builds(message, *FIELDS),
    st.builds(Record, OTHERS, *FIELDS, st.binary(min_size=32, max_size=32)),
)


@given(records=st.lists(RECORDS, max_size=8))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("journal") / "s"
    journal = Journal(folder)
    journal.begin_segment(3)
    for record in records:
        journal.add_received(record)
    journal.close()
    assert since(folder) == records
    assert journal.load(None)[0] == []
    assert journal.last_segment() == 3


def test_every_cut_of_a_segment_reads_as_a_beginning(tmp_path):
    filled(tmp_path / "s").close()
    path = tmp_path / "s" / "received-00000000"
    content = path.read_bytes()
    ends = [sum(len(record.packed()) for record in CAME[:i]) for i in range(len(CAME) + 1)]
    assert ends[-1] == len(content)
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends) - 1
        assert since(tmp_path / "s") == CAME[:whole] + LEFT


def test_a_flipped_byte_ends_the_reading_there(tmp_path):
    filled(tmp_path / "s").close()
    path = tmp_path / "s" / "received-00000000"
    content = path.read_bytes()
    ends = [sum(len(record.packed()) for record in CAME[: i + 1]) for i in range(len(CAME))]
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :])
        whole = sum(end <= at for end in ends)
        assert since(tmp_path / "s") == CAME[:whole] + LEFT


@pytest.mark.parametrize("tail", [bytes(500), b"\xff" * 500, b"x"])
def test_what_follows_a_torn_record_is_written_where_it_is_read(tmp_path, tail):
    filled(tmp_path / "s").close()
    for kind in ("received", "sent"):
        with (tmp_path / "s" / f"{kind}-00000000").open("ab") as file:
            file.write(tail)
    journal = Journal(tmp_path / "s")
    journal.begin_segment(0)
    journal.add_received(CAME[0])
    journal.add_sent(LEFT[:1])
    assert since(tmp_path / "s") == [*CAME, CAME[0], *LEFT, LEFT[0]]


def test_an_earlier_segment_that_is_not_whole_is_refused(tmp_path):
    journal = filled(tmp_path / "s")
    journal.begin_segment(4)
    journal.write_snapshot(4, CAME)
    journal.close()
    path = tmp_path / "s" / "sent-00000000"
    path.write_bytes(path.read_bytes()[:-1])  # it was on the disk before the next was begun
    with pytest.raises(InputError, match=r"sent-00000000.*is damaged"):
        journal.load(None)
    assert list(journal.load(4)[1]) == []


def test_a_snapshot_is_read_whole_or_refused(tmp_path):
    journal = filled(tmp_path / "s", 5)
    held = [Record(NOTES, body=b"{}"), Record(FACT, 1, 0, "key", b"text")]
    journal.write_snapshot(5, held)
    assert journal.snapshots() == [5]
    found, after = journal.load(5)
    assert (found, list(after)) == (held, CAME + LEFT)
    path = tmp_path / "s" / "snapshot-00000005"
    content = path.read_bytes()
    flipped = (content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in range(80))
    for damaged in (b"", content[:-1], content + b"x", *flipped):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged") as caught:
            journal.load(5)
        assert "\n" not in str(caught.value)


def test_long_messages_stay_on_the_disk_until_they_are_read(tmp_path):
    body = bytes(range(256)) * 100
    long = message(1, 0, "exchange", body)
    journal = Journal(tmp_path / "s")
    journal.begin_segment(0)
    for record in (CAME[1], long, CAME[2]):
        journal.add_received(record)
    found = since(tmp_path / "s")
    assert [record.body for record in found] == [CAME[1].body, b"", CAME[2].body]
    assert [record.size for record in found] == [7, len(body), 14]
    assert [journal.whole(record) for record in found] == [CAME[1], long, CAME[2]]
    path = tmp_path / "s" / "received-00000000"
    content = path.read_bytes()
    path.write_bytes(content[:1000] + b"?" + content[1001:])
    with pytest.raises(InputError, match="is damaged"):
        journal.whole(found[1])


def test_files_are_their_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        journal = filled(tmp_path / "s")
        journal.write_session(SESSION)
        journal.write_snapshot(0, CAME)
        journal.hold()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "s").iterdir()}
    assert len(modes) == 5
    assert set(modes.values()) == {0o600}


def test_a_segment_that_anyone_could_read_is_closed_to_others(tmp_path):
    filled(tmp_path / "s").close()
    path = tmp_path / "s" / "received-00000000"
    path.chmod(0o666)
    Journal(tmp_path / "s").begin_segment(0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_place_of_a_segment_is_not_followed(tmp_path):
    journal = Journal(tmp_path / "s")
    target = tmp_path / "precious"
    (tmp_path / "s" / "sent-00000000").symlink_to(target)
    with pytest.raises(InputError):
        journal.begin_segment(0)
    assert not target.exists()


def test_earlier_steps_are_forgotten(tmp_path):
    journal = filled(tmp_path / "s")
    journal.write_session(SESSION)
    for step in (0, 10, 20):
        journal.begin_segment(step)
        journal.write_snapshot(step, CAME)
    journal.forget_before(10)
    names = {path.name for path in (tmp_path / "s").iterdir()}
    kinds = ("received", "sent", "snapshot")
    assert names == {"session.json"} | {f"{k}-000000{s}" for k in kinds for s in (10, 20)}
    assert journal.snapshots() == [10, 20]


def test_an_ended_session_leaves_nothing(tmp_path):
    journal = filled(tmp_path / "s")
    journal.hold()
    journal.write_session(SESSION)
    journal.write_snapshot(0, CAME)
    (tmp_path / "s" / "snapshot-00000010.part").write_bytes(b"of a process that was killed")
    journal.remove()
    assert not (tmp_path / "s").exists()


def test_what_is_not_of_the_journal_is_not_removed(tmp_path):
    journal = filled(tmp_path / "s")
    (tmp_path / "s" / "letter").write_text("mine")
    journal.remove()
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["letter"]


def test_a_new_session_takes_nothing_over(tmp_path):
    journal = filled(tmp_path / "s")
    journal.write_session(SESSION.model_copy(update={"ended": True}))
    journal.write_session(SESSION, is_new=True)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["session.json"]
    assert journal.session() == SESSION


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"null", b"[" * 5000, b"\xff\xfe", SESSION.model_dump_json().encode()[:-1]],
)
def test_a_damaged_session_is_refused(tmp_path, content):
    journal = Journal(tmp_path / "s")
    assert journal.session() is None
    (tmp_path / "s" / "session.json").write_bytes(content)
    with pytest.raises(InputError, match="is damaged") as caught:
        journal.session()
    assert SESSION.secret not in str(caught.value)
    assert SESSION.secret not in repr(SESSION)


class FullDisk:
    """Takes some bytes, and then no more."""

    def __init__(self, room):
        self.room, self.write = room, os.write

    def __call__(self, descriptor, content):
        part = memoryview(content)[: self.room]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(part)
        return self.write(descriptor, part)


@pytest.mark.parametrize("room", [0, 1, 60, 70])
def test_a_full_disk_loses_nothing_that_was_written(tmp_path, monkeypatch, room):
    journal = filled(tmp_path / "s")
    journal.write_snapshot(0, CAME)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", FullDisk(room))
        for work in (
            lambda: journal.add_received(CAME[-1]),
            lambda: journal.add_sent(LEFT * 2),
            lambda: journal.write_snapshot(0, CAME * 2),
            lambda: journal.write_session(SESSION),
        ):
            with pytest.raises(InputError, match="No space left on device") as caught:
                work()
            assert "\n" not in str(caught.value)
    journal.add_received(CAME[0])  # there is room again
    assert since(tmp_path / "s") == [*CAME, CAME[0], *LEFT]
    assert journal.load(0)[0] == CAME


def test_two_processes_do_not_go_on_with_one_session(tmp_path):
    first, second = Journal(tmp_path / "s"), Journal(tmp_path / "s")
    first.hold()
    first.hold()
    first.begin_segment(0)  # lets go of an earlier segment, not of the session
    with pytest.raises(InputError, match="another process of this site takes part in the run now"):
        second.hold()
    first.close()
    second.hold()
    second.close()
