"""Summands on a common lattice: what they are, the law of their sum, and how large they can be."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from tacit.errors import InputError
from tacit.privacy.noise import gaussian
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.gaussian import add_normal, spacing
from tacit.privacy.noise.summands import MOST_PARTICIPANTS, MOST_POINTS, most_points, summands

Array = NDArray[np.float64]


def test_summands_are_the_usual_release_counted_in_lattice_points():
    nodes, keys, deviation = [4, 0, 7], seeded_keys(3, range(9)), 0.37
    values = torch.randn(3, 1000, generator=torch.Generator().manual_seed(2)).double()
    points = summands(values.clone(), deviation, keys, nodes, 5, part=1)
    assert points.dtype == torch.int64
    for row, node in enumerate(nodes):  # whoever else is in the stack
        alone = values[row : row + 1].clone()
        right = add_normal(alone, [deviation], keys, [node], "noise", 5, part=1)
        assert torch.equal(points[row].double() * spacing(deviation), right[0])
    # Whole spacings move a summand by as many points, exactly, up to the largest that is allowed.
    for shift in (1, -77, (1 << 45) + 1, 1 - MOST_POINTS):
        moved = summands(values + shift * spacing(deviation), deviation, keys, nodes, 5, part=1)
        near = summands(values.clone(), deviation, keys, nodes, 5, part=1) + shift
        assert int((moved - near).abs().max()) <= (0 if abs(shift) < 1 << 30 else 1)


def test_values_that_would_lose_points_to_their_dtype_are_refused():
    with pytest.raises(InputError, match=r"values = 'torch.float32': must be float64"):
        summands(torch.zeros(1, 4), 1.0, seeded_keys(1, [0]), [0], 0)


def rounded_sum(shifts, deviation):
    """The exact law of the sum of rounded normals, in lattice points, and where it lies."""
    reach = math.ceil(12 * deviation + 3)
    points = np.arange(-reach, reach + 1)
    law = np.ones(1)
    for shift in shifts:
        upper = stats.norm.cdf((points + 0.5 - shift) / deviation)
        law = np.convolve(law, upper - stats.norm.cdf((points - 0.5 - shift) / deviation))
    places = np.arange(len(law)) - reach * len(shifts)
    return law, places


def one_gaussian(shifts, deviation, at):
    """Density of N(sum of shifts, h sigma^2) and h uniforms on [-1/2, 1/2], by inversion."""
    t = np.linspace(-60.0, 60.0, 24_001) / deviation
    h = len(shifts)
    transform = np.exp(-h * (deviation * t) ** 2 / 2) * np.sinc(t / (2 * np.pi)) ** h
    waves = np.cos(np.outer(at - math.fsum(shifts), t)) * transform
    return np.asarray(np.trapezoid(waves, t, axis=1) / (2 * np.pi))


def aliasing(honest, deviation):
    """The theorem's bound on the relative error, at this deviation in lattice points."""
    alpha = 2 * math.fsum(math.exp(-((math.pi * m * deviation) ** 2)) for m in range(1, 50))
    return (1 + alpha) ** (honest - 1) - 1


@pytest.mark.parametrize("honest", [2, 3, 4])
@pytest.mark.parametrize("deviation", [0.4, 0.6, 0.9])
def test_the_sum_has_the_law_of_one_gaussian_within_the_bound(honest, deviation):
    """At deviations far below 64 points, where the difference can be seen at all."""
    found = []
    for shifts in ([0.0] * honest, [0.3, -0.45, 7.2, 0.11][:honest]):
        law, places = rounded_sum(shifts, deviation)
        likely = law > 1e-9
        right = one_gaussian(shifts, deviation, places[likely])
        found.append(float(np.abs(law[likely] / right - 1).max()))
    assert max(found) <= aliasing(honest, deviation) + 1e-6
    if deviation < 0.5:
        assert max(found) > 0.01 * aliasing(honest, deviation)  # the bound is about something


def test_at_the_lattice_that_is_used_nothing_is_left_of_that_difference():
    finest = min(std / spacing(std) for std in np.geomspace(0.5, 2.0, 101))
    assert finest >= 64
    assert (math.pi * finest) ** 2 / math.log(2) - 1 > 58_000


def test_the_noise_of_all_is_in_the_sum():
    nodes, deviation, d = range(6), 0.02, 20_000
    values = torch.linspace(-1, 1, 6).double().unsqueeze(1).expand(6, d).contiguous()
    total = summands(values, deviation, seeded_keys(8, nodes), list(nodes), 0).sum(0)
    unit = spacing(deviation)
    law = stats.norm(0, math.sqrt(6 * deviation**2 + 6 * unit**2 / 12))
    assert stats.kstest(total.numpy() * unit, law.cdf).pvalue > 1e-3


def test_no_draw_is_beyond_what_the_range_allows():
    smallest = -(1 + 30 + 64 + gaussian._TAIL_BITS) * math.log(2.0)
    assert math.sqrt(-2 * smallest) < 30
    for bound, deviation in ((3.0, 1.0), (1e3, 0.013), (0.0, 7.9)):
        points = most_points(bound, deviation)
        assert points * spacing(deviation) > bound + 30 * deviation
        assert (points - 2) * spacing(deviation) <= bound + 30 * deviation
        values = torch.full((1, 5000), bound, dtype=torch.float64)
        drawn = summands(values, deviation, seeded_keys(1, [0]), [0], 0)
        assert int(drawn.abs().max()) <= points
    assert MOST_PARTICIPANTS * MOST_POINTS == 1 << 62
