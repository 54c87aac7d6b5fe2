"""What is drawn from the public seed: one generator for each purpose.

Draws for one purpose never move another's, and nothing secret may be drawn here.
"""

from __future__ import annotations

import numpy as np

from tacit.errors import InputError

TEST_SPLIT = 1
PARTITION = 2
UNIT_ROWS = 3


def public_generator(seed: int, purpose: int, *of: int) -> np.random.Generator:
    """A generator for one purpose, such as `PARTITION`, of the experiment's seed; or one of many.

    Raises:
        InputError: if the seed is negative.
    """
    if seed < 0:
        raise InputError("train.seed", seed, "must be 0 or more")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, *of])))
