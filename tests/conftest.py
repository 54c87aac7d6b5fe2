"""What all tests share."""

from __future__ import annotations

import torch

# Fixtures have no doctests, and as modules these files would all be `conftest`.
collect_ignore_glob = ["*conftest.py"]

# The problems here are small: more threads only wait for each other.
torch.set_num_threads(1)
