"""P-values of noise tests hold for correct noise, and each test finds what it states to find."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from tacit.analysis.audit.fidelity import noise_law as law
from tacit.analysis.audit.fidelity import noise_links as links
from tacit.analysis.audit.fidelity.finding import LEVEL, POWER
from tacit.analysis.audit.fidelity.noise_law import Look
from tacit.analysis.audit.fidelity.noise_sample import (
    NoiseSample,
    ReleasePlace,
    sample_of,
)
from tacit.privacy.noise.gaussian import spacing

Array = NDArray[np.float64]
Look_ = Callable[[NoiseSample, float], Look | None]
RUNS, STEPS, NODES, WIDTH = 12, 4, 3, 10
SHAPE = RUNS, STEPS, NODES, WIDTH
STD = 3.0
PLACES = tuple(
    ReleasePlace(run, node, step, 0)
    for run in range(RUNS)
    for step in range(STEPS)
    for node in range(NODES)
)
DRAWN = np.random.default_rng(9).poisson(10, SHAPE[:3]) / 10

LOOKS: dict[str, Look_] = {
    "all": law.of_all,
    "coordinates": law.of_coordinates,
    "releases": law.of_releases,
    "nodes": partial(law.of_groups, "node"),
    "steps": partial(law.of_groups, "step"),
    "batch": law.by_batch,
    "common to steps": partial(links.common, "step"),
    "common to nodes": partial(links.common, "node"),
    "common to runs": partial(links.common, "run"),
    "steps apart": links.steps_apart,
    "shifted": links.shifted,
    "pairs": links.pairs,
    "links of coordinates": links.coordinates,
    "directions": links.directions,
    "handed": links.along_handed,
    "mean": law.mean,
    "lowest bit": law.lowest_bit,
    "shape": law.shape,
}


def ideal(kind, rng):
    draw = rng.standard_normal if kind == "gaussian" else lambda shape: rng.laplace(size=shape)
    return STD * np.asarray(draw(SHAPE))


def sampled(before, noise, kind, seed, times=1.0):
    unit = spacing(STD) * times
    after = np.rint((before + noise) / unit) * unit
    return sample_of(
        torch.from_numpy(before.reshape(-1, WIDTH)),
        torch.from_numpy(after.reshape(-1, WIDTH)),
        np.full(len(PLACES), STD),
        PLACES,
        kind=kind,
        seed=seed,
        drawn=DRAWN.reshape(-1),
    )


def clean(kind, seed):
    """What is handed in follows the noise of the step before, as a training does."""
    rng = np.random.default_rng([1, seed])
    noise = ideal(kind, rng)
    before = rng.standard_normal(SHAPE)
    before[:, 1:] -= 0.7 * np.cumsum(noise, axis=1)[:, :-1]
    return sampled(before, noise, kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_p_values_of_correct_noise_are_uniform_or_larger(kind):
    seeds = 60
    found: dict[str, list[float]] = {name: [] for name in LOOKS}
    exact = set()
    for seed in range(seeds):
        sample = clean(kind, seed)
        for name, look in LOOKS.items():
            seen = look(sample, LEVEL)
            assert seen is not None
            found[name].append(seen.p_value)
            exact |= {name} if seen.exact else set()
    for name, p_values in found.items():
        for level in (0.02, 0.1, 0.3):
            count = sum(p <= level for p in p_values)
            assert stats.binom.sf(count - 1, seeds, level) > 1e-4, (name, level, count)
    for name in exact - {"lowest bit"}:  # which is discrete
        assert stats.kstest(found[name], "uniform").pvalue > 1e-4, name
    assert exact >= {"all", "batch", "common to steps", "common to nodes", "common to runs"}


Plant = Callable[[Array, float, np.random.Generator], Array]
"""(noise, the smallest defect that is found, coins) -> noise with that defect."""


def less(*where):
    def plant(noise, least, rng):
        noise = noise.copy()
        noise[where] *= 1 - least
        return noise

    return plant


def following(noise, least, rng):
    order = np.argsort(DRAWN.reshape(-1), kind="stable")
    many = np.zeros(len(PLACES), np.bool_)
    many[order[-(len(PLACES) // 3) :]] = True
    return noise * np.where(many, 1 + least, 1.0).reshape(*SHAPE[:3], 1)


def shared(axis):
    def plant(noise, least, rng):
        common = STD * rng.standard_normal(noise.take([0], axis).shape)
        return np.sqrt(1 - least) * noise + np.sqrt(least) * common

    return plant


def like_the_step_before(noise, least, rng):
    noise = noise.copy()
    for step in range(1, STEPS):
        noise[:, step] = np.sqrt(1 - least**2) * noise[:, step] + least * noise[:, step - 1]
    return noise


def moved_on(noise, least, rng):
    noise = noise.copy()
    for step in range(1, STEPS):
        noise[:, step] *= np.sqrt(1 - least**2)
        noise[:, step, :, 2:] += least * noise[:, step - 1, :, :-2]
    return noise


def one_pair(noise, least, rng):
    noise = noise.copy()
    noise[3, 2, 1] = np.sqrt(1 - least**2) * noise[3, 2, 1] - least * noise[5, 1, 0]
    return noise


def one_way(noise, least, rng):
    way = rng.standard_normal(WIDTH)
    way /= np.linalg.norm(way)
    return noise + least * (noise @ way)[..., None] * way


def one_mean(noise, least, rng):
    noise = noise.copy()
    noise[..., 4] -= least * STD
    return noise


def cut(noise, least, rng):
    edge = STD * float(stats.norm.isf(least)) - spacing(STD)
    return np.where(noise > edge, 0.0, noise)


PLANTED: dict[str, Plant] = {
    "all": less(...),
    "coordinates": less(..., 6),
    "releases": less(7, 1, 2),
    "nodes": less(slice(None), slice(None), 1),
    "steps": less(slice(None), 3),
    "batch": following,
    "common to steps": shared(1),
    "common to nodes": shared(2),
    "common to runs": shared(0),
    "steps apart": like_the_step_before,
    "shifted": moved_on,
    "pairs": one_pair,
    "links of coordinates": shared(3),
    "directions": one_way,
    "mean": one_mean,
    "shape": cut,
}
ALSO_LAPLACE = ("all", "coordinates", "releases", "nodes", "steps", "batch", "mean")
CASES = [(name, "gaussian") for name in PLANTED] + [(name, "laplace") for name in ALSO_LAPLACE]


def _found(name, kind, samples):
    look, trials = LOOKS[name], 30
    at_first = look(clean(kind, 0), LEVEL)
    assert at_first is not None
    count = 0
    for seed in range(trials):
        seen = look(samples(at_first.least, seed), LEVEL)
        assert seen is not None
        count += seen.p_value <= LEVEL
    assert stats.binom.cdf(count, trials, POWER) > 1e-3, (count, at_first.least)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_smallest_defect_that_is_stated_is_found(name, kind):
    def samples(least, seed):
        rng = np.random.default_rng([2, seed])
        before = rng.standard_normal(SHAPE)
        return sampled(before, PLANTED[name](ideal(kind, rng), least, rng), kind, seed)

    _found(name, kind, samples)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_what_was_handed_in_is_found_in_the_noise(earlier, kind):
    def samples(least, seed):
        rng = np.random.default_rng([3, seed])
        before, noise = rng.standard_normal(SHAPE), ideal(kind, rng)
        way = before / np.linalg.norm(before, axis=-1, keepdims=True)
        noise[:, earlier:] += least * STD * way[:, : STEPS - earlier]
        return sampled(before, noise, kind, seed)

    _found("handed", kind, samples)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_a_coarser_lattice_in_some_releases_is_found(kind):
    def samples(least, seed):
        rng = np.random.default_rng([4, seed])
        before = rng.standard_normal(SHAPE)
        coarse = np.where(rng.random(SHAPE) < least, 2.0, 1.0)
        return sampled(before, ideal(kind, rng), kind, seed, coarse)

    _found("lowest bit", kind, samples)
