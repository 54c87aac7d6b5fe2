"""Mixing weights of a whole matrix, for tests of few nodes."""

import numpy as np

from tacit.topology.mixing import Weights


def weights_of(matrix):
    """The weights of a matrix `[nodes, nodes]`."""
    matrix = np.asarray(matrix, np.float64)
    targets, sources = np.nonzero(matrix)
    return Weights.of_entries(len(matrix), targets, sources, matrix[targets, sources])
