"""Scattering in two dimensions (Bruna and Mallat 2013, arXiv:1203.1513): orders 0, 1 and 2.

x is an image, psi_n the wavelet of scale 2^j(n) and one of 8 angles, phi the Gaussian of scale 2^J.
The coefficients are

    S0 = x * phi
    S1[n] = |x * psi_n| * phi
    S2[n, m] = ||x * psi_n| * psi_m| * phi        where j(n) < j(m)

each read at every 2^J-th place: `1 + 8 J + 64 J (J - 1) / 2` channels, 81 for J = 2, in the order
of kymatio (Andreux et al. 2020, arXiv:1812.11214), whose numbers these are.

**Filters** are those of Andreux et al. 2020 and of Oyallon and Mallat 2015 (arXiv:1412.8659), in
float64, once an image size; no record is looked at. The Morlet wavelet of scale 2^j at angle a is
psi(u) = g(u) (exp(i xi.u) - b), with xi of length 3 pi / 4 / 2^j in the direction of a, g a
Gaussian of standard deviation s = 0.8 2^j along xi and 2 s across it, and b such that psi sums to
0. Its Fourier transform is real, as psi(-u) is the conjugate of psi(u), and the wavelet at -a is
that at a with the second axis reversed.

**How it is computed.** A convolution with a wavelet that is read at every f-th place is linear, and
images are small: products of dense matrices are faster than Fourier transforms of them. With u and
v the two axes, H and W long, k a frequency of the first, H' = H / f:

1. Along u, a Fourier transform for all images and colours at once: one product.
2. For every k, a convolution along v, read at every f-th place: one product a k. At k the wavelet
   at angle a is R + i I along v, with real R and I, and that at -a is R - i I. So the products with
   R and with I, of real and of imaginary parts, serve two angles each, and none of them is complex.
   Frequencies k, k + H', ..., which coincide where every f-th row is read, are added in the same
   product, and so is what belongs to -k, the conjugate of what is read at k: sums make the real
   parts of step 3, differences the imaginary ones.
3. Back along u: two products. Sums and differences of the parts of R and of I are the two angles;
   the root of two squares is the modulus.

Padding is a matrix too, multiplied into those of 1 and 2. The Gaussian is a product of one along
each axis, so that low-passing and reading every 2^J-th place are one small matrix an axis.

What step 2 takes for granted of two angles is so but for the highest frequency of filters that are
cropped, from J = 3 on: kymatio keeps one of its two signs. That changes coefficients by below 1e-6
of the largest.

The matrices of step 2 have some 9 H W^2 numbers: too many for large images, which are transformed
by FFT.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ANGLES = 8
"""Orientations of wavelets, L: from 3 pi / 8 down to -pi / 2, in steps of pi / 8."""

_WIDTH = 0.8
_SLANT = 4.0 / ANGLES
_FREQUENCY = 3.0 / 4.0 * math.pi
_PI = 3.1415  # in the constant before the Gaussian, kymatio has so many digits
_COPIES = range(-2, 3)  # of the period, that are added up

Array = NDArray[np.float64]
_Made = Callable[[Array], Tensor]
_Signals = Callable[[Tensor], Tensor]

_AT_ONCE = 64  # signals of the second order: what is made of them stays in a core's own cache
_FEW_NUMBERS = 1 << 17
_LONGEST_SIDE = 96  # padded; above, a product takes longer than a Fourier transform
_SLANTED = (0, 1, 2, 7)  # numbers of the angles of which R and I are both needed
_STRAIGHT = (3,)  # angle 0: I = 0
_MIRRORED = (6, 5, 4)  # those at minus the angle of the first three
_ORDER = (*_SLANTED, *_STRAIGHT, *_MIRRORED)  # in which angles are computed


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


def channels_of(scales: int) -> int:
    """How many channels an image channel has after scattering with J scales."""
    return 1 + ANGLES * scales + ANGLES**2 * scales * (scales - 1) // 2


@dataclass(frozen=True, eq=False)
class _AlongRows:
    """What some wavelets do along the second axis, at all frequencies k of the first.

    Frequencies between 0 and H' / 2 stand before these two.

    Args:
        sums: of what is done at k and at -k: `[k, a w, angles w']`, a frequencies that coincide.
        differences: likewise, where k and -k are two.
    """

    sums: Tensor
    differences: Tensor

    def along(self, spectra: Tensor) -> Tensor:
        """Sums and then differences, `[k, c b, angles w']`, of spectra `[k, c b, a w]`."""
        every, rows, _ = spectra.shape
        two = len(self.differences)
        made = spectra.new_empty(every + two, rows, self.sums.shape[-1])
        torch.bmm(spectra, self.sums, out=made[:every])
        torch.bmm(spectra[:two], self.differences, out=made[every:])
        return made


@dataclass(frozen=True, eq=False)
class _Bank:
    """The wavelets of one scale as matrices, read at every f-th place.

    Args:
        forward: `[a k c, h]`, c the real and the imaginary part.
        real: R, of slanted and straight wavelets.
        imaginary: I, of slanted ones.
        back_real: `[h', k c]`, from sums.
        back_imaginary: `[h', k c]`, from what is neither doubled nor a sum, and differences.
        aliases: f.
        width: w'.
    """

    forward: Tensor
    real: _AlongRows
    imaginary: _AlongRows
    back_real: Tensor
    back_imaginary: Tensor
    aliases: int
    width: int

    def moduli(self, signals: Tensor) -> Tensor:
        """Moduli of the convolutions: `[h, b, w]` to `[h', b, 8, w']`, angles as in `_ORDER`."""
        height, batch, width = signals.shape
        spectra = self.forward @ signals.reshape(height, batch * width)
        spectra = spectra.view(self.aliases, -1, batch, width).permute(1, 2, 0, 3)
        spectra = spectra.reshape(-1, 2 * batch, self.aliases * width)
        # Of the two, s + i t and s - i t are the wavelets at an angle and at minus it.
        return _moduli(
            self._back(self.real.along(spectra)), self._back(self.imaginary.along(spectra))
        )

    def _back(self, made: Tensor) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts `[h', b, angles, w']` of what `_AlongRows.along` makes."""
        every, two = len(self.real.sums), len(self.real.differences)
        shape = (len(self.back_real), made.shape[1] // 2, -1, self.width)
        real = self.back_real @ made[:every].view(2 * every, -1)
        imaginary = self.back_imaginary @ made[two:].view(2 * every, -1)
        return real.view(shape), imaginary.view(shape)


def _moduli(s: tuple[Tensor, Tensor], t: tuple[Tensor, Tensor]) -> Tensor:
    """The moduli of s + i t and of s - i t, real and imaginary parts, `[h', b, 8, w']`."""
    few, slanted = len(_MIRRORED), len(_SLANTED)
    rows, batch, _, width = s[0].shape
    made = s[0].new_empty(rows, batch, ANGLES, width)
    # What importing a compiled loop takes is never won back on small images.
    if made.device.type == "cpu" and made.numel() >= _FEW_NUMBERS:
        from tacit.kernels.moduli import mirrored_moduli

        mirrored_moduli(*(part.view(rows * batch, -1).numpy() for part in (*s, *t, made)))
        return made
    turned = torch.complex(*s)
    turned[:, :, :slanted] += 1j * torch.complex(*t)
    made[:, :, :-few] = turned.abs()
    mirrored = torch.complex(
        s[0][:, :, :few] + t[1][:, :, :few], s[1][:, :, :few] - t[0][:, :, :few]
    )
    made[:, :, -few:] = mirrored.abs()
    return made


def _bank(spectra: Array, aliases: int, before: tuple[Array, Array], tensor: _Made) -> _Signals:
    """Moduli by the matrices of a scale; see `_Bank`.

    They are made of the `spectra` of its wavelets, `[8, H, W]`; f is `aliases`. `before` is what is
    done to each axis before, `[H, h]` and `[W, w]`.
    """
    rows, columns = before
    _, height, width = spectra.shape
    read, across = height // aliases, width // aliases
    two = np.arange(1, (read + 1) // 2)
    order = np.array([*two, *(k for k in range(read // 2 + 1) if k not in two)])
    waves = order + read * np.arange(aliases)[:, None]  # [a, k]
    turns = 2 * np.pi / height * waves[..., None] * np.arange(height)
    forward = np.stack([np.cos(turns), -np.sin(turns)], axis=2) @ rows
    kernels = np.fft.ifft(spectra, axis=-1)
    shifts = (aliases * np.arange(across) - np.arange(width)[:, None]) % width

    def along(values: Array, angles: tuple[int, ...]) -> _AlongRows:
        def matrices(places: NDArray[np.int64]) -> Array:
            chosen = values[list(angles)][:, places % height]  # [angles, a, k, W]
            spread: Array = columns.T @ chosen[..., shifts]  # [angles, a, k, w, w']
            ordered = spread.transpose(2, 1, 3, 0, 4)
            return ordered.reshape(places.shape[1], -1, len(angles) * across)

        plus, minus = matrices(waves), matrices(-waves)[: len(two)]
        differences = plus[: len(two)] - minus
        plus[: len(two)] += minus
        return _AlongRows(tensor(plus), tensor(differences))

    def back(first: float, numbers: NDArray[np.int64], swapped: bool) -> Tensor:
        angles = 2 * np.pi / read * np.arange(read)[:, None] * numbers
        parts = [np.cos(angles), first * np.sin(angles)]
        return tensor(np.stack(parts[::-1] if swapped else parts, -1).reshape(read, -1) / height)

    return _Bank(
        forward=tensor(forward.reshape(-1, rows.shape[1])),
        real=along(kernels.real, (*_SLANTED, *_STRAIGHT)),
        imaginary=along(kernels.imag, _SLANTED),
        back_real=back(-1.0, order, swapped=False),
        back_imaginary=back(1.0, np.array([*order[len(two) :], *two]), swapped=True),
        aliases=aliases,
        width=across,
    ).moduli


def _low(scales: int, resolution: int, before: tuple[Array, Array], tensor: _Made) -> _Signals:
    """The Gaussian, read at every 2^J-th place but the outermost: `[h, b, ..., w]` to the same.

    Of signals of which every 2^resolution-th place is kept. `before` is what is done to each axis
    before, `[H, h]` and `[W, w]`, with H and W at this resolution; J is `scales`.
    """
    step = 2 ** (scales - resolution)

    def along(matrix: Array) -> Array:
        size = len(matrix)
        spectrum = gaussian_spectrum(size << resolution, scales)
        kernel = np.fft.ifft(spectrum_at(spectrum, resolution)).real
        read = step * np.arange(1, size // step - 1)
        made: Array = kernel[(read[:, None] - np.arange(size)) % size] @ matrix
        return made

    by_row, by_column = map(along, before)
    rows, columns = tensor(by_row), tensor(by_column.T)

    def low(signals: Tensor) -> Tensor:
        height, *between, width = signals.shape
        made = (rows @ signals.reshape(height, -1)).view(-1, width) @ columns
        return made.view(len(rows), *between, -1)

    return low


def _fourier_bank(
    spectra: Array, aliases: int, before: tuple[Array, Array], tensor: _Made
) -> _Signals:
    """As `_bank`, by Fourier transforms, for large images."""
    waves, rows, columns = tensor(spectra), tensor(before[0]), tensor(before[1].T)

    def moduli(signals: Tensor) -> Tensor:
        height, batch, width = signals.shape
        padded = (rows @ signals.reshape(height, -1)).view(-1, width) @ columns
        images = padded.view(len(rows), batch, -1).permute(1, 0, 2)
        transformed, f = torch.fft.fft2(images), aliases
        read, across = (size // f for size in transformed.shape[1:])
        made = signals.new_empty(read, batch, ANGLES, across)
        for place, angle in enumerate(_ORDER):
            product = (transformed * waves[angle]).view(batch, f, read, f, across)
            folded = product.mean(dim=(1, 3)) if f > 1 else product.view(batch, read, across)
            made[:, :, place] = torch.fft.ifft2(folded).abs().permute(1, 0, 2)
        return made

    return moduli


class Scattering(torch.nn.Module):
    """Images `[records, channels, height, width]` to `[records, channels, 81, h, w]` (for J = 2).

    J = `scales` is 1 or more, and an image's sides are at least 2^J; h and w are the sides over
    2^J, rounded down. Inputs, matrices and coefficients are of `dtype`, float32 or float64, and on
    `device`. A coefficient is a function of its own image's channel alone.
    """

    def __init__(
        self,
        scales: int,
        height: int,
        width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.scales, self.height, self.width = scales, height, width

        def tensor(matrix: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(matrix)).to(device, dtype)

        outer = reflected(height, scales), reflected(width, scales)
        sides = len(outer[0]), len(outer[1])
        make = _bank if max(sides) <= _LONGEST_SIDE else _fourier_bank
        spectra = [wavelets(*sides, scale) for scale in range(scales)]
        identities = [
            (np.eye(sides[0] >> resolution), np.eye(sides[1] >> resolution))
            for resolution in range(scales)
        ]
        self._smooth = _low(scales, 0, outer, tensor)
        self._lows = [_low(scales, j, identities[j], tensor) for j in range(scales)]
        self._first = [make(spectra[j], 2**j, outer, tensor) for j in range(scales)]
        self._second = {
            (j, i): make(spectrum_at(spectra[i], j), 2 ** (i - j), identities[j], tensor)
            for j in range(scales)
            for i in range(j + 1, scales)
        }
        self._order = _places(scales).to(device)
        self.digest = _digest([*spectra, *(gaussian_spectrum(side, scales) for side in sides)])

    def forward(self, images: Tensor) -> Tensor:
        """The coefficients, `[records, channels, 1 + 8 J + ..., h, w]`."""
        records, channels, height, width = images.shape
        signals = images.reshape(-1, height, width).permute(1, 0, 2).contiguous()
        batch, parts = records * channels, [self._smooth(signals).unsqueeze(2)]
        for j, bank in enumerate(self._first):
            moduli = bank(signals)
            parts.append(self._lows[j](moduli))
            again = moduli.view(moduli.shape[0], batch * ANGLES, -1)
            for i in range(j + 1, self.scales):
                bank, low = self._second[j, i], self._lows[i]
                some = [low(bank(part)) for part in torch.split(again, _AT_ONCE, dim=1)]
                made = torch.cat(some, dim=1)
                parts.append(made.view(made.shape[0], batch, ANGLES**2, -1))
        together = torch.cat(parts, dim=2).permute(1, 2, 0, 3)
        made = together.index_select(1, self._order)
        return made.view(records, channels, *made.shape[1:])


def _places(scales: int) -> Tensor:
    """Where the channels, in kymatio's order, stand in the order in which they are computed."""
    angle = [_ORDER.index(number) for number in range(ANGLES)]
    start, first, second = 1, [], []
    for j in range(scales):
        first += [start + place for place in angle]
        start += ANGLES
        later = scales - j - 1
        second += [
            start + ANGLES**2 * i + ANGLES * one + other
            for one in angle
            for i in range(later)
            for other in angle
        ]
        start += ANGLES**2 * later
    return torch.tensor([0, *first, *second])


def _digest(filters: list[Array]) -> str:
    """A digest of filters to nine digits, since processors differ in the last ones."""
    found = hashlib.blake2b(digest_size=16)
    for values in filters:
        found.update(str(values.shape).encode() + np.rint(values * 1e9).astype("<i8").tobytes())
    return found.hexdigest()
