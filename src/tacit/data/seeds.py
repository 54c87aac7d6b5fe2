"""The public seed: one generator for each purpose, so that draws for one never move another's."""

from __future__ import annotations

import numpy as np

from tacit.errors import InputError

__all__ = ["PARTITION", "TEST_SPLIT", "public_generator"]

TEST_SPLIT = 1
PARTITION = 2


def public_generator(seed: int, purpose: int) -> np.random.Generator:
    """A generator for one purpose (`TEST_SPLIT`, `PARTITION`) from the experiment's seed.

    Nothing secret may be drawn from it.

    Raises:
        InputError: if the seed is negative.
    """
    if seed < 0:
        raise InputError("train.seed", seed, "must be 0 or more")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose])))
