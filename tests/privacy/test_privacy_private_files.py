"""Files of one's own: nobody else reads them, and none is there in part."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.privacy.private_files import appearing, make_private_folder, new_private_file


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_nobody_else_may_read_whatever_the_umask(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "folder")
    os.close(new_private_file(tmp_path / "folder" / "one"))
    with appearing(tmp_path / "folder" / "two") as aside:
        aside.write_text("content")
    assert mode(tmp_path / "folder") == 0o700
    assert {mode(path) for path in (tmp_path / "folder").iterdir()} == {0o600}
    assert (tmp_path / "folder" / "two").read_text() == "content"


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    make_private_folder(tmp_path)
    assert mode(tmp_path) == 0o750


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def cut_short() -> None:
        with appearing(tmp_path / "file") as aside:
            aside.write_text("half")
            assert not (tmp_path / "file").exists()
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        cut_short()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("first")
    with pytest.raises(FileExistsError), appearing(tmp_path / "file") as aside:
        aside.write_text("second")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]
    with pytest.raises(FileExistsError):
        new_private_file(tmp_path / "file")
