"""Scattering is what its definition says, and what kymatio computes."""

import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tacit.features import scattering
from tacit.features.scattering import Scattering, channels_of

Array = NDArray[np.float64]

# Channel, its mean and the first number of its last row, by kymatio 0.3.0 of `image`.
KYMATIO = {
    (2, 28, 28): {
        0: (0.474936, 0.514437),
        1: (0.059039, 0.051651),
        6: (0.057897, 0.067731),
        40: (0.00591, 0.007544),
        80: (0.008482, 0.002067),
    },
    (1, 7, 10): {
        0: (0.45565, 0.309321),
        1: (0.059565, 0.035938),
        6: (0.060779, 0.064275),
        4: (0.049999, 0.023863),
        8: (0.053853, 0.049325),
    },
    (3, 17, 24): {
        0: (0.477534, 0.488973),
        1: (0.057632, 0.052858),
        6: (0.061161, 0.063665),
        108: (0.003683, 0.002838),
        216: (0.006673, 0.004374),
    },
}
SHAPES = [*KYMATIO, (2, 4, 5), (2, 9, 16), (1, 2, 3), (3, 8, 8)]

# From J = 3 on, cropped filters have a highest frequency of each sign, of which
# kymatio keeps the negative one: there wavelets at an angle and at minus it are no mirror images.
EXACT = {1: 1e-9, 2: 1e-9, 3: 1e-6}


def image(height, width):
    """A fixed image with edges in all directions."""
    i, j = np.mgrid[0:height, 0:width]
    return ((7 * i + 3 * j * j + i * j) % 17) / 17


def continued(values, scales):
    """Reflected at its edges, to the next but one multiple of 2^J."""
    widths = []
    for size in values.shape:
        padded = ((size + 2**scales) // 2**scales + 1) * 2**scales
        before = (padded - size) // 2
        widths.append((before, padded - size - before))
    return np.pad(values, widths, mode="reflect")


def gabor(shape, deviation, angle, wave, slant):
    """A periodic Gaussian times a wave, number by number as it is defined."""
    total = np.zeros(shape, complex)
    for row in range(-2, 3):
        for column in range(-2, 3):
            u, v = np.mgrid[0 : shape[0], 0 : shape[1]].astype(float)
            u, v = u + row * shape[0], v + column * shape[1]
            along = np.cos(angle) * u + np.sin(angle) * v
            across = -np.sin(angle) * u + np.cos(angle) * v
            size = np.exp(-(along**2 + slant**2 * across**2) / (2 * deviation**2))
            total += size * np.exp(1j * wave * along)
    return total * slant / (2 * 3.1415 * deviation**2)


def convolved(signal, kernel):
    return np.fft.ifft2(np.fft.fft2(signal) * np.fft.fft2(kernel))


def lower(kernel, resolution):
    """The kernel for signals of which every so many-th number is kept: its low frequencies."""
    spectrum = np.fft.fft2(kernel).real
    for axis, size in enumerate(kernel.shape):
        low = np.abs(np.fft.fftfreq(size)) < 0.5 / 2**resolution
        low |= np.fft.fftfreq(size) == -0.5 / 2**resolution
        if resolution:
            spectrum = spectrum.compress(low, axis=axis)
    return np.fft.ifft2(spectrum)


def by_definition(values, scales):
    """Every convolution at once, at the resolution of its signal, and read afterwards."""
    signal = continued(values, scales)
    shape = signal.shape
    angles = [(3 - number) * np.pi / 8 for number in range(8)]
    waves = {}
    for j in range(scales):
        for number, angle in enumerate(angles):
            wave = gabor(shape, 0.8 * 2**j, angle, 3 * np.pi / 4 / 2**j, 0.5)
            flat = gabor(shape, 0.8 * 2**j, angle, 0.0, 0.5)
            waves[j, number] = wave - wave.sum() / flat.sum() * flat
    smooth = gabor(shape, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)

    def read(found, resolution):
        step = 2 ** (scales - resolution)
        low = convolved(found, lower(smooth, resolution)).real
        return low[::step, ::step][1:-1, 1:-1]

    orders = [[read(signal, 0)], [], []]
    for (j, _), wave in waves.items():
        step = 2**j
        first = np.abs(convolved(signal, wave))[::step, ::step]
        orders[1].append(read(first, j))
        for (i, _), other in waves.items():
            if i > j:
                step = 2 ** (i - j)
                second = np.abs(convolved(first, lower(other, j)))[::step, ::step]
                orders[2].append(read(second, i))
    return np.stack([*orders[0], *orders[1], *orders[2]])


def computed(values, scales, dtype=torch.float64):
    transform = Scattering(scales, *values.shape, dtype)
    made = transform(torch.from_numpy(values).to(dtype)[None, None])
    return made[0, 0].double().numpy()


@pytest.mark.parametrize(("scales", "height", "width"), SHAPES)
def test_it_is_the_definition(scales, height, width):
    values = image(height, width)
    wanted = by_definition(values, scales)
    assert wanted.shape == (channels_of(scales), height // 2**scales, width // 2**scales)
    np.testing.assert_allclose(computed(values, scales), wanted, atol=EXACT[scales])
    np.testing.assert_allclose(computed(values, scales, torch.float32), wanted, atol=3e-6)


@pytest.mark.parametrize(("scales", "height", "width"), SHAPES)
def test_large_images_are_transformed_to_the_same(scales, height, width, monkeypatch):
    values = image(height, width)
    wanted = computed(values, scales)
    monkeypatch.setattr(scattering, "_LONGEST_SIDE", 0)
    np.testing.assert_allclose(computed(values, scales), wanted, atol=EXACT[scales])


@pytest.mark.parametrize("case", KYMATIO)
def test_it_is_what_kymatio_printed(case):
    scales, height, width = case
    made = computed(image(height, width), scales, torch.float32)
    for channel, (mean, one) in KYMATIO[case].items():
        assert made[channel].mean() == pytest.approx(mean, abs=2e-6)
        assert made[channel][-1, 0] == pytest.approx(one, abs=2e-6)


def test_it_is_what_kymatio_computes(monkeypatch):
    """Where kymatio is installed: images of the digits, of noise, and of large numbers."""
    import scipy.special

    # kymatio's transforms on a sphere, which are not looked at, ask SciPy for what it has no more.
    if not hasattr(scipy.special, "sph_harm"):
        monkeypatch.setattr(scipy.special, "sph_harm", None, raising=False)
    kymatio = pytest.importorskip("kymatio.torch")
    draws = torch.Generator().manual_seed(3)
    for size in (1.0, 1e4):
        images = size * torch.rand(4, 3, 28, 28, generator=draws)
        wanted = kymatio.Scattering2D(J=2, shape=(28, 28), L=8)(images)
        torch.testing.assert_close(
            Scattering(2, 28, 28)(images), wanted, rtol=1e-5, atol=1e-5 * size
        )
    assert "kymatio" in sys.modules


def test_an_image_has_its_coefficients_wherever_it_stands():
    draws = torch.Generator().manual_seed(4)
    images = torch.rand(6, 2, 12, 8, generator=draws)
    transform = Scattering(2, 12, 8)
    whole = transform(images)
    for record in range(6):
        for channel in range(2):
            alone = transform(images[record, channel][None, None])
            torch.testing.assert_close(whole[record, channel], alone[0, 0])


@pytest.mark.parametrize("other", [0.0, 1e30, 3e38, float("inf"), float("nan")])
def test_an_image_beside_any_other_is_the_same_to_the_bit(other):
    draws = torch.Generator().manual_seed(5)
    images = torch.rand(8, 1, 28, 28, generator=draws)
    transform = Scattering(2, 28, 28)
    before = transform(images)
    for place in (0, 3, 7):
        crowd = torch.full_like(images, other)
        crowd[place] = images[place]
        assert torch.equal(transform(crowd)[place], before[place])


def test_many_images_are_transformed_as_one_is():
    """Blocks of images take a compiled loop, and one image none."""
    images = torch.rand(32, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    transform = Scattering(2, 28, 28)
    together = transform(images)
    alone = torch.cat([transform(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
