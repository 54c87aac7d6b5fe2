"""The moduli of wavelets at an angle and at minus it, against complex numbers."""

import numpy as np
import pytest

from tacit.kernels.moduli import mirrored_moduli


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("every", "both", "mirrored"), [(5, 4, 3), (1, 1, 1), (7, 0, 0)])
def test_they_are_those_of_complex_numbers(every, both, mirrored, dtype):
    draws = np.random.default_rng(every)
    s = draws.normal(size=(2, 40, every)).astype(dtype)
    t = draws.normal(size=(2, 40, both)).astype(dtype)
    made = np.full((40, every + mirrored), np.nan, dtype)
    mirrored_moduli(*s, *t, made)
    sums = s[0] + 1j * s[1]
    other = np.zeros_like(sums)
    other[:, :both] = t[0] + 1j * t[1]
    wanted = np.abs(np.hstack([sums + 1j * other, (sums - 1j * other)[:, :mirrored]]))
    np.testing.assert_allclose(made, wanted, rtol=1e-6 if dtype is np.float32 else 1e-14)


def test_what_is_not_finite_stays_with_its_own_record():
    s, t = np.ones((2, 3, 5), np.float32), np.ones((2, 3, 4), np.float32)
    s[0, 1, 2] = np.nan
    made = np.empty((3, 8), np.float32)
    mirrored_moduli(*s, *t, made)
    assert np.isfinite(made[[0, 2]]).all()
    assert np.isnan(made[1, [2, 7]]).all()
