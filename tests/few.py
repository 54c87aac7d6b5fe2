"""How many examples a property is tried on: few with every change, and more at night."""

from hypothesis import settings

_USUAL = settings.default.max_examples
_NIGHT = _USUAL > 100  # of the profiles in `conftest.py`


def few(day, night=_USUAL):
    """Settings of a property, with so many examples."""
    return settings(max_examples=night if _NIGHT else day)
