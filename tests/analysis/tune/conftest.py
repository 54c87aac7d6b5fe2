"""What the winner of trials costs, once a session."""

import functools

import pytest

from tacit.analysis.tune import costs
from tacit.privacy.accounting.choosing import choosing_epsilon


@pytest.fixture(scope="session", autouse=True)
def _each_cost_once():
    """Searches for noise ask it dozens of times, of the same trials in most tests."""

    @functools.cache
    def known(mechanisms, trials, delta):
        return choosing_epsilon(mechanisms, trials, delta=delta)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            costs,
            "choosing_epsilon",
            lambda mechanisms, trials, *, delta: known(tuple(mechanisms), trials, delta),
        )
        yield
