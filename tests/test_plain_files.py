"""Plain files: no pipe, no device, no more than is allowed; TOML in bounded time."""

import os
import tomllib

import pytest

from tacit.base import plain_files
from tacit.base.plain_files import check_plain, open_plain, parse_toml, read_plain, read_toml
from tacit.errors import InputError


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
