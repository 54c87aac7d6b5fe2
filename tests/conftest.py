"""What all tests share."""

import torch
from hypothesis import HealthCheck, settings

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
