"""What tests of runs in other processes share."""

import pytest

from forks import forks
from tacit.analysis.settings.processes import _Process


@pytest.fixture
def forked_workers(monkeypatch):
    """Processes of our own are forked, where spawned ones would load everything anew."""

    def process(self, *args, **options):
        self.started.append(forks().Process(*args, **options))
        return self.started[-1]

    monkeypatch.setattr(_Process, "Process", process)
