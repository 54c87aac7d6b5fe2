"""What is compiled keeps IEEE 754: fused where it says so, and nowhere else."""

from fractions import Fraction

import numpy as np
import pytest

from tacit.kernels.compile import compiled, fused, inlined


@inlined
def _three(one):
    return one * np.float32(3.0)


@compiled
def _sums(one, other, added, fuse, out):
    for i in range(len(one)):
        if fuse:
            out[i] = fused(one[i], other[i], added[i])
        else:
            out[i] = one[i] * other[i] + added[i]


@compiled
def _tripled(values):
    for i in range(len(values)):
        values[i] = _three(values[i])


@pytest.mark.parametrize("fuse", [True, False])
def test_products_are_fused_with_sums_where_that_is_said_and_nowhere_else(fuse):
    draw = np.random.default_rng(0)
    one, other = (draw.standard_normal(4_000).astype(np.float32) for _ in range(2))
    added = -(one * other)  # what is left of the sum is what rounding the product lost
    added[::2] += draw.standard_normal(2_000).astype(np.float32)
    out = np.empty_like(one)
    _sums(one, other, added, fuse, out)
    if not fuse:
        assert np.array_equal(out, one * other + added)
        return
    assert np.count_nonzero(out != one * other + added) > 1_000
    for a, b, c, found in zip(*(x.tolist() for x in (one, other, added, out)), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        error = abs(Fraction(found) - exact)
        for near in (
            np.nextafter(np.float32(found), np.float32(side)) for side in (-np.inf, np.inf)
        ):
            assert error <= abs(Fraction(float(near)) - exact)


def test_parts_are_compiled_into_loops():
    values = np.arange(5, dtype=np.float32)
    _tripled(values)
    assert values.tolist() == [0, 3, 6, 9, 12]
