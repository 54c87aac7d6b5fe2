"""What all tests share."""

from __future__ import annotations

import torch

# The problems here are small: more threads only wait for each other.
torch.set_num_threads(1)
