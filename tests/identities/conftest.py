"""What the tests of identities share."""

import shutil
from pathlib import Path

import pytest

from consortia import consortium


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with two sites and a relay that have joined; nothing in it is changed."""
    folder = tmp_path_factory.mktemp("made")
    consortium(folder)
    return folder


@pytest.fixture
def own(made, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "own"))
