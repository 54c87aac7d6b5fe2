"""The digits, each of which some person wrote; some persons wrote more than count."""

from pathlib import Path

import numpy as np

from tacit import data


def load():
    digits = data.load("digits", data_dir=Path())
    persons = np.random.default_rng(3).integers(0, 600, len(digits.train))
    return data.TaskData("people", digits.train, digits.test, classes=10, units=persons)
