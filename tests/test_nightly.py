"""What waits for the night is there, and says what of it every change is still asked."""

import re
from pathlib import Path

import pytest

from nightly import NIGHTLY

TESTS = Path(__file__).parent


@pytest.mark.parametrize("line", NIGHTLY, ids=lambda line: line.function)
def test_what_waits_for_the_night_is_a_test_that_there_is(line):
    text = (TESTS / line.file).read_text(encoding="utf-8")
    assert re.search(rf"^def {line.function}\(", text, re.MULTILINE)
    assert line.stays
    if line.kept:
        assert "parametrize" in text
