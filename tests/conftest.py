"""What all tests share."""

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, settings

from nightly import COLLECTED, NIGHTLY, combinations

# How long anything takes is up to the machine, which may be busy; what is tried is up to the test.
# With every change some examples of each property, always the same; at night more.
settings.register_profile(
    "busy",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("night", settings.get_profile("busy"), max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "busy"))

# Ten thousand tests are collected, which nothing that is collected frees: to look through them for
# what can be freed takes a third of that time, and more with every test.
gc.disable()

# The problems here are small: more threads only wait for each other.
torch.set_num_threads(1)

LONGEST = (
    "tests/test_surroundings.py",
    "tests/test_docs_literally.py",
    "tests/test_tacit_dp.py",
    "tests/cli/test_cli_tune.py",
    "tests/communication/secure/test_secure_wire_returns.py",
    "tests/communication/secure/test_secure_leaving.py",
    "tests/analysis/settings/test_executors.py",
    "tests/algorithms/test_algorithms_own_everywhere.py",
    "tests/test_notebooks.py",
    "tests/training/test_resume.py::test_kills_leave_sound_files",
)


def pytest_collection_modifyitems(config, items):
    """Mark what waits for the night, before tests are chosen by their marks."""
    wanted = {(line.file, line.function): line for line in NIGHTLY}
    functions = {}
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)
        file, name = item.nodeid.partition("::")[0], getattr(item, "originalname", None)
        lines = [wanted.get((file.removeprefix("tests/"), part)) for part in (name, "")]
        if any(line is not None and line.takes(item.nodeid) for line in lines):
            item.add_marker(pytest.mark.nightly)
        else:
            functions.setdefault((file, name), []).append(item)
    for own in functions.values():
        for item in combinations(own):
            item.add_marker(pytest.mark.nightly)
    config.stash[COLLECTED] = {
        item.nodeid: frozenset(mark.name for mark in item.iter_markers()) for item in items
    }
    # Else a worker ends alone with what takes minutes.
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish():
    """From here on garbage is looked for, but not among what was loaded and collected."""
    gc.freeze()
    gc.enable()
