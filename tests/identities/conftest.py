"""What the tests of identities share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from consortia import consortium


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sites and a relay that have joined; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("made")
    consortium(folder)
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "own"))
