"""The filters of a scattering transform in two dimensions: Morlet wavelets and a Gaussian.

They are those of Andreux et al. 2020 (kymatio, arXiv:1812.11214) and of Oyallon and Mallat 2015
(arXiv:1412.8659): wavelets at scales 2^j, j < J, and `ANGLES` orientations over half a turn, and a
Gaussian of scale 2^J. All is computed in float64, once an image size, and no record is looked at.

The Morlet wavelet at angle a is psi(u) = g(u) (exp(i xi.u) - b), with xi of length 3 pi / 4 / 2^j
in the direction of a, g a Gaussian of standard deviation s = 0.8 2^j along xi and 2 s across it,
and b such that psi sums to 0. Its Fourier transform is real, as psi(-u) is the conjugate of psi(u),
and the wavelet at -a is that at a with the second axis reversed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ANGLES = 8
"""Orientations of wavelets, L: from 3 pi / 8 down to -pi / 2, in steps of pi / 8."""

_WIDTH = 0.8
_SLANT = 4.0 / ANGLES
_FREQUENCY = 3.0 / 4.0 * math.pi
_PI = 3.1415  # in the constant before the Gaussian, kymatio has so many digits
_COPIES = range(-2, 3)  # of the period, that are added up

Array = NDArray[np.float64]


def reflected(size: int, scales: int) -> Array:
    """The matrix `[padded, size]` that continues a side by reflection, as far before as after."""
    step = 1 << scales
    padded = ((size + step) // step + 1) * step  # a multiple of 2^J
    period = 2 * (size - 1)
    places = (np.arange(padded) - (padded - size) // 2) % period
    places = np.minimum(places, period - places)
    continued = np.zeros((padded, size))
    continued[np.arange(padded), places] = 1.0
    return continued


def wavelets(height: int, width: int, scale: int) -> Array:
    """Fourier transforms of the wavelets at scale 2^j, `[ANGLES, height, width]`, real.

    Height and width are those of a padded image, and j is `scale`.
    """
    deviation, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    made = np.empty((ANGLES, height, width))
    for number in range(ANGLES):
        angle = (ANGLES // 2 - 1 - number) * math.pi / ANGLES
        wave = _gabor(height, width, deviation, angle, frequency)
        envelope = _gabor(height, width, deviation, angle, 0.0)
        made[number] = np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real
    return made


def _gabor(
    height: int, width: int, deviation: float, angle: float, frequency: float
) -> NDArray[np.complex128]:
    """A Gaussian times a wave, periodic."""
    cosine, sine = math.cos(angle), math.sin(angle)
    rows, columns = (
        (np.arange(size)[:, None] + size * np.array(_COPIES)).reshape(-1)
        for size in (height, width)
    )
    along = cosine * rows[:, None] + sine * columns[None, :]
    across = cosine * columns[None, :] - sine * rows[:, None]
    exponent = -(along**2 + (_SLANT * across) ** 2) / (2 * deviation**2) + 1j * frequency * along
    copies = np.exp(exponent).reshape(height, len(_COPIES), width, len(_COPIES))
    total: NDArray[np.complex128] = copies.sum(axis=(1, 3))
    return total * _SLANT / (2 * _PI * deviation**2)


def gaussian_spectrum(size: int, scales: int) -> Array:
    """Fourier transform of the Gaussian of scale 2^J along one axis, `[size]`, real.

    That in two dimensions is the product of both axes'.
    """
    deviation = _WIDTH * 2 ** (scales - 1)
    places = np.arange(size)[:, None] + size * np.array(_COPIES)
    wave = np.exp(-(places**2) / (2 * deviation**2)).sum(axis=1)
    found: Array = np.fft.fft(wave).real / math.sqrt(2 * _PI * deviation**2)
    return found


def spectrum_at(spectrum: Array, resolution: int) -> Array:
    """A filter for signals of which every 2^resolution-th number is kept: its lower frequencies.

    A spectrum `[..., height, width]` becomes that many times shorter along height and width, and
    one of a single axis, `[size]`, along that.
    """
    for axis in range(max(0, spectrum.ndim - 2), spectrum.ndim):
        size = spectrum.shape[axis]
        half = size >> (resolution + 1)
        spectrum = spectrum.take([*range(half), *range(size - half, size)], axis=axis)
    return spectrum
