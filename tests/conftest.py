"""What all tests share."""

import pytest
import torch
from hypothesis import HealthCheck, settings

from nightly import NIGHTLY

# Fixtures have no doctests, and as modules these files would all be `conftest`. The other one is
# for the server alone that forks processes.
collect_ignore_glob = ["*conftest.py", "*forks_loaded.py"]

# How long anything takes is up to the machine, which may be busy; what is tried is up to the test.
settings.register_profile(
    "busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

# The problems here are small: more threads only wait for each other.
torch.set_num_threads(1)

LONGEST = ("tests/test_surroundings.py", "tests/test_docs_literally.py", "tests/test_tacit_dp.py")


def pytest_collection_modifyitems(items):
    """Mark what waits for the night, of what is not quick, before it is chosen by its marks."""
    wanted = {(line.file, line.function): line.kept for line in NIGHTLY}
    for item in items:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        kept = wanted.get((file, getattr(item, "originalname", "")))
        slow = any(item.get_closest_marker(mark) for mark in ("slow", "process"))
        if slow and kept is not None and not any(name in item.nodeid for name in kept):
            item.add_marker(pytest.mark.nightly)
    # Else a worker ends alone with what takes minutes.
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
