"""Private files: whole or not there, nobody else's to read; a lock that dies with its process."""

import os
import stat
import subprocess
import sys
import tomllib

import pytest

from tacit.base import plain_files
from tacit.base.plain_files import check_plain, open_plain, parse_toml, read_plain, read_toml
from tacit.base.private_files import (
    appearing,
    append_line,
    locked,
    make_private_folder,
    new_private_file,
    plain_errors,
    remove_files,
    write_private,
    write_together,
)
from tacit.errors import InputError


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_writing_replaces_the_whole_file_or_nothing(tmp_path):
    path = tmp_path / "file"
    write_private(path, b"first, and longer")
    path.chmod(0o644)
    write_private(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == {"file"}
    (tmp_path / "file.part").mkdir()
    with pytest.raises(IsADirectoryError):
        write_private(path, b"after")
    assert path.read_bytes() == b"second"


def test_what_lies_under_the_temporary_name_is_not_followed(tmp_path):
    (tmp_path / "other").write_bytes(b"another's")
    (tmp_path / "file.part").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        write_private(tmp_path / "file", b"ours")
    assert (tmp_path / "other").read_bytes() == b"another's"


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_takes_the_place_of_one_that_ends(tmp_path, linked):
    old, backup = tmp_path / "old", tmp_path / "backup"
    write_private(old, b"old, and longer")
    place = old.stat().st_ino
    if linked:
        backup.hardlink_to(old)
    write_private(tmp_path / "new", b"new", over=old)
    assert (tmp_path / "new").read_bytes() == b"new"
    assert ((tmp_path / "new").stat().st_ino == place) != linked
    assert names(tmp_path) == ({"new", "backup"} if linked else {"new"})
    assert not linked or backup.read_bytes() == b"old, and longer"


def test_files_are_replaced_together_or_not_at_all(tmp_path):
    write_together(tmp_path, {"a": b"1", "b": b"1", "last": b"1"})
    (tmp_path / "last.part").mkdir()  # so that the last one cannot be written
    with pytest.raises(IsADirectoryError):
        write_together(tmp_path, {"a": b"2", "b": b"2", "last": b"2"})
    assert {(tmp_path / name).read_bytes() for name in ("a", "b", "last")} == {b"1"}
    assert names(tmp_path) == {"a", "b", "last", "last.part"}


def test_lines_begin_where_lines_begin(tmp_path):
    path = tmp_path / "lines"
    append_line(path, b"one")
    with path.open("ab") as file:
        file.write(b"to")
    append_line(path, b"three")
    assert path.read_bytes() == b"one\nto\nthree\n"


def test_a_folder_that_is_there_stays_and_a_file_is_no_folder(tmp_path):
    make_private_folder(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "new").chmod(0o750)
    make_private_folder(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")
    remove_files(tmp_path, "file", "missing")
    assert names(tmp_path) == {"new"}


def test_errors_of_the_system_are_one_plain_line(tmp_path):
    with (
        pytest.raises(InputError, match=r"cannot be written \(No such file or directory\)"),
        plain_errors("out", tmp_path),
    ):
        write_private(tmp_path / "missing" / "file", b"")


def test_a_lock_is_one_processes_and_dies_with_it(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from tacit.base.private_files import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="one is running it now"), locked(tmp_path):
            pass
        other.kill()
        other.wait(timeout=60)
    with locked(tmp_path), pytest.raises(InputError, match="one is running"), locked(tmp_path):
        pass
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_nobody_else_may_read_whatever_the_umask(tmp_path):
    make_private_folder(tmp_path / "folder")
    os.close(new_private_file(tmp_path / "folder" / "one"))
    with appearing(tmp_path / "folder" / "two") as aside:
        aside.write_text("content")
    assert mode(tmp_path / "folder") == 0o700
    assert {mode(path) for path in (tmp_path / "folder").iterdir()} == {0o600}
    assert (tmp_path / "folder" / "two").read_text() == "content"


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    tmp_path.chmod(0o750)
    make_private_folder(tmp_path)
    assert mode(tmp_path) == 0o750


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    def cut_short():
        with appearing(tmp_path / "file") as aside:
            aside.write_text("half")
            assert not (tmp_path / "file").exists()
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        cut_short()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_never_replaced(tmp_path):
    (tmp_path / "file").write_text("first")
    with pytest.raises(FileExistsError), appearing(tmp_path / "file") as aside:
        aside.write_text("second")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]
    with pytest.raises(FileExistsError):
        new_private_file(tmp_path / "file")


# Plain files: no pipe, no device, no more than is allowed; TOML in bounded time.


def test_a_plain_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert read_plain(path, 8) == read_plain(str(path), 100) == b"12345678"
    with open_plain(path) as file:
        assert file.read() == b"12345678"
    check_plain(path)
    with pytest.raises(OSError, match="holds more than 7 bytes"):
        read_plain(path, 7)


def test_what_is_no_plain_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "is no plain file"),
        ("/dev/zero", "is no plain file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
        (f"{tmp_path}/a\0b", "null"),
    ):
        for read in (open_plain, check_plain, lambda path: read_plain(path, 100)):
            with pytest.raises(OSError, match=reason) as refusal:
                read(path)
            assert refusal.value.strerror


def test_what_memory_does_not_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2**23)
    check_plain(path)
    monkeypatch.setattr(plain_files, "host_bytes", lambda: 2**24 - 1)
    with pytest.raises(OSError, match=r"holds 8\.39 MB, for which 16\.8 MB of memory are too few"):
        check_plain(path)
    path.open("wb").truncate(2**40)  # announces a terabyte, and holds none of it
    with pytest.raises(InputError, match="holds more than"):
        read_toml(path, "file", "experiment")


@pytest.mark.parametrize("text", ["a." * 40 + "b = 1", "a = " + "[" * 5000, f"a = {'9' * 5000}"])
def test_toml_that_would_take_for_ever_is_none(text):
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml(text)
