"""Tests of the noise find each planted defect, of the size that they state, and accuse no other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from noise_bugs import LastStepBare, RootOfTheBatch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from tacit.analysis.audit.fidelity import noise_links as links
from tacit.analysis.audit.fidelity import noise_sample as of_samples
from tacit.analysis.audit.fidelity.finding import LEVEL
from tacit.analysis.audit.fidelity.noise import noise_findings
from tacit.analysis.audit.fidelity.noise_sample import (
    NoiseKind,
    NoiseSample,
    ReleasePlace,
    _cell,
    noise_sample,
    sample_of,
)
from tacit.analysis.audit.laboratory import ALONE, set_up
from tacit.analysis.audit.recorder import Pinned, Trace, run_traced
from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.gaussian import add_normal, spacing
from tacit.privacy.noise.independent import IndependentNoise
from tacit.privacy.noise.laplace import add_laplace, laplace_slack
from tacit.privacy.noise.slack import slack
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

Array = NDArray[np.float64]
STD = 3.0
ADD: MappingProxyType[str, Callable[..., torch.Tensor]] = MappingProxyType(
    {"gaussian": add_normal, "laplace": add_laplace}
)


@dataclass(frozen=True, eq=False)
class Made:
    """Releases of the product's own noise: what was handed in and what was added, in order.

    Arrays are `[runs, steps, nodes, width]`; places are those of their rows.
    """

    before: Array
    noise: Array
    places: tuple[ReleasePlace, ...]
    drawn: Array
    kind: NoiseKind

    def sample(self, after=None, **more):
        """Of what came back; by default a lattice point next to the noised total."""
        released = on_lattice(self.before + self.noise) if after is None else after
        width = self.before.shape[-1]
        given = {"drawn": self.drawn.reshape(-1), "kind": self.kind, **more}
        return sample_of(
            torch.from_numpy(self.before.reshape(-1, width).copy()),
            torch.from_numpy(released.reshape(-1, width).copy()),
            np.full(len(self.places), STD),
            self.places,
            **given,
        )

    def with_noise(self, noise):
        return replace(self, noise=noise).sample()


def on_lattice(values, times=1.0):
    unit = spacing(STD) * times
    return np.asarray(np.rint(values / unit) * unit, np.float64)


@functools.cache
def made(
    kind="gaussian",
    *,
    runs=20,
    steps=6,
    nodes=8,
    width=16,
    seed=0,
):
    shape = runs, steps, nodes, width
    noise, draw = np.zeros(shape), np.random.default_rng(seed)
    before = 5 * draw.standard_normal(shape)
    for run in range(runs):
        keys = seeded_keys(1000 * seed + run, range(nodes))
        for step in range(steps):
            total = torch.from_numpy(before[run, step].copy())
            released = ADD[kind](total, [STD] * nodes, keys, range(nodes), "noise", step)
            noise[run, step] = released.numpy() - before[run, step]
    places = tuple(
        ReleasePlace(run, node, step, 0)
        for run in range(runs)
        for step in range(steps)
        for node in range(nodes)
    )
    return Made(before, noise, places, draw.poisson(10, shape[:3]) / 10, kind)


def failed(sample):
    return {finding.name for finding in noise_findings([sample]) if not finding.passed}


def finding(sample, name):
    (found,) = (each for each in noise_findings([sample]) if each.name == name)
    return found


SHAPES: dict[str, dict[str, int]] = {
    "narrow": {},
    "wide": {"runs": 1, "steps": 5, "nodes": 4, "width": 3000},
    "one release": {"runs": 1, "steps": 1, "nodes": 1, "width": 100},
    "one number": {"runs": 1, "steps": 1, "nodes": 1, "width": 1},
    "thin": {"runs": 10, "steps": 5, "nodes": 3, "width": 2},
}


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_products_own_noise_passes(kind, shape):
    sample = made(kind, **SHAPES[shape]).sample()
    found = noise_findings([sample])
    assert all(each.p_value > 1e-3 for each in found), min(found, key=lambda each: each.p_value)
    assert len(found) >= 9


def _shared(axis):
    """Half of the variance is that of the first along an axis."""

    def plant(m):
        common = made(m.kind, seed=1).noise.take([0], axis)
        return m.with_noise(np.sqrt(0.5) * (m.noise + common))

    return plant


def _scaled(factor, *where):
    def plant(m):
        noise = m.noise.copy()
        noise[where] *= factor
        return m.with_noise(noise)

    return plant


def _opposite(m):
    noise = m.noise.copy()
    noise[:, 1::2] = -noise[:, ::2]
    return m.with_noise(noise)


def _alternating(m):
    """A part of every noise is that of the step before, with a sign that changes each time."""
    noise = m.noise.copy()
    for step in range(1, noise.shape[1]):
        sign = -1.0 if step % 2 else 1.0
        noise[:, step] = np.sqrt(0.7) * noise[:, step] + sign * np.sqrt(0.3) * noise[:, step - 1]
    return m.with_noise(noise)


def _moved_on(m):
    """Every step's stretch begins four coordinates after that of the step before."""
    noise = m.noise.copy()
    for step in range(1, noise.shape[1]):
        noise[:, step, :, :-4] = noise[:, step - 1, :, 4:]
    return m.with_noise(noise)


def _repeated(m):
    noise = m.noise.copy()
    noise[3, 4, 5] = noise[2, 1, 0]
    return m.with_noise(noise)


def _one_normal(m):
    return m.with_noise(np.broadcast_to(m.noise[..., :1], m.noise.shape))


def _neighbouring_coordinates(m):
    return m.with_noise(np.sqrt(0.5) * (m.noise + np.roll(m.noise, 3, axis=-1)))


def _direction(m):
    way = np.random.default_rng(5).standard_normal(m.noise.shape[-1])
    way /= np.linalg.norm(way)
    return m.with_noise(m.noise + 1.0 * (m.noise @ way)[..., None] * way)


def _following_batch(m):
    return m.with_noise(m.noise * np.sqrt(m.drawn)[..., None])


def _momentum(m):
    """Some of what was handed in a step earlier stays in the sum, without noise of its own."""
    after = m.before + m.noise
    after[:, 1:] += 0.1 * m.before[:, :-1]
    return m.sample(on_lattice(after))


def _shrunk(m):
    return m.sample(on_lattice(0.9 * m.before + m.noise))


def _shifted(m):
    noise = m.noise.copy()
    noise[..., 2] += 0.4 * STD
    return m.with_noise(noise)


def _plain(m):
    return m.sample(m.before + m.noise + 1e-9)


def _coarse(m):
    return m.sample(on_lattice(m.before + m.noise, 2))


def _half_floats(m):
    noise = (m.noise / STD).astype(np.float16).astype(np.float64) * STD
    return m.sample(m.before + noise)


def _uniform(m):
    draw = np.random.default_rng(7)
    root = np.sqrt(3.0)
    return m.with_noise(STD * draw.uniform(-root, root, m.noise.shape))


def _cut(m):
    return m.with_noise(np.clip(m.noise, -2.5 * STD, 2.5 * STD))


DEFECTS: dict[str, tuple[Callable[[Made], NoiseSample], str]] = {
    "a tenth less": (_scaled(0.9), "noise variance"),
    "a tenth more": (_scaled(1.1), "noise variance"),
    "less in one coordinate": (_scaled(0.7, ..., 3), "noise of each coordinate"),
    "one release bare": (_scaled(0.0, 7, 3, 2), "noise of each release"),
    "the last step bare": (_scaled(0.0, slice(None), -1), "noise of each step"),
    "one node's halved": (_scaled(0.5, slice(None), slice(None), 4), "noise of each node"),
    "following the batch": (_following_batch, "noise and batch size"),
    "half common to all steps": (_shared(1), "noise common to steps"),
    "half common to all nodes": (_shared(2), "noise common to nodes"),
    "half common to all runs": (_shared(0), "noise common to runs"),
    "minus that of the step before": (_opposite, "noise some steps apart"),
    "a part of the step before": (_alternating, "noise some steps apart"),
    "a stretch used twice": (_moved_on, "noise moved on"),
    "one noise used twice": (_repeated, "noise met twice"),
    "one normal for all coordinates": (_one_normal, "noise of coordinates"),
    "coordinates in pairs": (_neighbouring_coordinates, "noise of coordinates"),
    "more in one direction": (_direction, "noise in any direction"),
    "momentum without noise": (_momentum, "noise and what it hides"),
    "the sum shrunk": (_shrunk, "noise and what it hides"),
    "a mean": (_shifted, "mean of the noise"),
    "plain floating-point noise": (_plain, "low bits"),
    "float16 noise": (_half_floats, "low bits"),
    "a coarser lattice": (_coarse, "lowest bit"),
    "uniform noise": (_uniform, "shape of the noise"),
    "tails cut off": (_cut, "shape of the noise"),
}
ON_GAUSSIAN_ONLY = {"uniform noise"}


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_fails_the_test_that_is_for_it(defect, kind):
    plant, name = DEFECTS[defect]
    assert name in failed(plant(made(kind)))


def test_releases_that_were_not_made_or_made_again():
    m = made()
    lost = ReleasePlace(1, 2, 3, 0)
    missing = finding(m.sample(missing=[lost]), "releases")
    assert not missing.passed
    assert "node 2 at step 3 (run 1)" in missing.saw
    again = replace(m, places=(m.places[1], *m.places[1:]))
    assert "made again" in finding(again.sample(), "releases").saw
    assert failed(m.sample()) == set()


def job(algorithm=None, *, nodes=4, steps=5, **train):
    """A linear model of 20 inputs on random records."""
    config = load_config(
        {
            "task": {"loss": "mse"},
            "algorithm": {"name": "privsgp", **(algorithm or {})},
            "privacy": {"epsilon": 2.0, "delta": 1e-3, "noise_seed": 3},
            "train": {"steps": steps, "batch": 10, **train},
        },
        count=nodes,
        given_model=True,
    )
    draw = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(30, 20, generator=draw), torch.randn(30, 1, generator=draw))
        for _ in range(nodes)
    ]
    return prepare(config, model=nn.Linear(20, 1), nodes=data)


def in_laboratory(planned, context=StackedContext, repetitions=100):
    harness = set_up(planned.plan, planned.plan.steps, repetitions, context)
    seen = [harness.observe(ALONE, seed) for seed in range(2)]
    return noise_sample([one.trace for one in seen], planned.plan, copies=harness.copies)


def traced(planned, context=StackedContext):
    """A run on the job's own model and data."""
    plan = planned.plan
    exchange = InProcessExchange(
        plan.mixing.weights,
        dtype=getattr(torch, plan.config.train.dtype),
        device=torch.device("cpu"),
    )
    model, data = planned.model, planned.train
    return run_traced(plan, model, data, exchange, context=context, steps=plan.steps)


@pytest.mark.parametrize("train", [{}, {"batch": "all"}, {"dtype": "float64"}])
def test_a_run_of_the_program_passes_in_the_laboratory_and_on_its_own_model(train):
    planned = job(**train)
    laboratory, own = in_laboratory(planned), noise_sample([traced(planned)], planned.plan)
    assert (laboratory.releases, laboratory.width) == (2 * 25 * 4 * 5, 16)
    assert set(laboratory.labels["run"]) == set(range(50))
    assert set(laboratory.labels["node"]) == set(range(4))
    assert (own.releases, own.width) == (4 * 5, 21)
    found = noise_findings([laboratory, own])
    assert all(each.p_value > 1e-3 for each in found)


class Quieter(StackedContext):
    """A tenth less noise."""

    def add_noise(self, total, k, **options):
        quiet = super().add_noise(torch.zeros_like(total), k, **options)
        return total.add_(quiet, alpha=0.9)


@pytest.mark.parametrize(
    ("context", "name"),
    [
        (Quieter, "noise variance"),
        (RootOfTheBatch, "noise and batch size"),
        (LastStepBare, "noise of each step"),
    ],
)
def test_defects_of_the_program_are_found_in_the_laboratory(context, name):
    assert name in failed(in_laboratory(job(), context))


def test_what_was_drawn_is_counted_by_the_node():
    planned = job()
    trace = traced(planned)
    sample, call = noise_sample([trace], planned.plan), trace.drawn[0]
    expected = [int((call.rows == node).sum()) / 10 for node in range(4)]
    assert sample.drawn is not None
    assert sample.drawn[:4].tolist() == expected


def test_nodes_that_rest_have_nothing_missing_and_lost_releases_are_named():
    planned = job({"name": "dp-dda", "activation": 0.5})
    trace = traced(planned)
    sample = noise_sample([trace], planned.plan)
    assert 0 < sample.releases < 20
    assert failed(sample) == set()
    lost = trace.releases.pop(2)
    assert {str(place) for place in noise_sample([trace], planned.plan).missing} == {
        f"node {node} at step {lost.step} (run 0)" for node in lost.nodes
    }


@given(
    point=st.integers(2**23, 2**27) | st.integers(24, 28).map(lambda power: 2**power),
    sign=st.sampled_from([-1, 1]),
    exponent=st.integers(-9, 9),
)
@settings(max_examples=200)
def test_the_interval_of_a_release_is_that_of_the_points_rounded_to_it(point, sign, exponent):
    """Where float32 cannot hold all points, by rounding every point of the neighbourhood."""
    unit = 2.0**exponent
    points = sign * point + np.arange(-70, 71)
    rounded = (points * unit).astype(np.float32)
    released = rounded[70]
    (lowest,), (highest,) = (end[0] for end in _cell(np.array([[released]]), np.array([[unit]])))
    same = points[rounded == released]
    assert (lowest, highest) == ((same[0] - 0.5) * unit, (same[-1] + 0.5) * unit)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_totals_that_float32_holds_coarsely_pass(kind):
    rows, width = 20, 2000
    draw = torch.Generator().manual_seed(4)
    before = 2.0**19 + 100 * torch.randn(rows, width, generator=draw)  # 2^25 spacings and more
    keys = seeded_keys(8, range(rows))
    after = ADD[kind](before.clone(), [1.0] * rows, keys, range(rows), "noise", 0)
    places = [ReleasePlace(0, row, 0, 0) for row in range(rows)]
    sample = sample_of(before, after, np.ones(rows), places, kind=kind)
    assert sample.judged.sum() == 0
    found = noise_findings([sample])
    assert all(each.p_value > 1e-3 for each in found)
    assert stats.kstest(sample.scores.reshape(-1), "norm").pvalue > 1e-3


def test_of_too_many_numbers_blocks_of_coordinates_are_chosen_in_public(monkeypatch):
    monkeypatch.setattr(of_samples, "MOST_NUMBERS", 1 << 16)
    rows, width = 10, 60_000
    before = torch.arange(1.0, width + 1).expand(rows, width)
    places = [ReleasePlace(0, row, 0, 0) for row in range(rows)]
    sample, again = (sample_of(before, before, np.ones(rows), places) for _ in range(2))
    assert sample.coordinates == width
    assert (1 << 16) - 256 * rows <= sample.releases * sample.width <= 1 << 16
    assert np.array_equal(sample.handed[0], again.handed[0])
    chosen = np.rint(sample.handed[0] / sample.handed[0][0] * 1e6).astype(np.int64)
    assert len(np.unique(chosen)) == sample.width
    unit = sample.handed[0][1] - sample.handed[0][0]
    assert (np.rint(np.diff(sample.handed[0]) / unit) == 1).mean() > 0.99


def test_noise_in_finite_arithmetic_is_as_good_as_ideal():
    lost = slack(of_samples.MOST_NUMBERS, 1e-20)
    assert lost.epsilon < 1e-5
    assert lost.delta <= 2e-20
    assert laplace_slack(of_samples.MOST_NUMBERS).epsilon < 1e-26


def test_a_table_of_findings_in_words():
    found = noise_findings([made().sample(where="a"), made(seed=2).sample(where="b")])
    assert len({each.name for each in found}) == len(found)
    for each in found:
        assert each.question.endswith("?")
        assert each.saw.startswith(("In a: ", "In b: "))
        assert each.power.startswith("Finds ")
    assert {each.name for each in found if each.noise_factor is not None} >= {"noise variance"}


def test_a_program_that_releases_nothing_fails_and_noise_of_another_kind_is_refused():
    planned = job()
    plan = planned.plan
    noise = Pinned(plan.release.algorithm.releases.noise)
    bare = Trace(plan, noise, np.zeros(4, np.int64), torch.zeros(4, 21))
    (nothing,) = noise_findings([noise_sample([bare], plan)])
    assert not nothing.passed
    assert nothing.saw.startswith("20 releases were not made, first that of node 0 at step 0")
    other = replace(
        plan.release.algorithm,
        releases=replace(
            plan.release.algorithm.releases, noise=IndependentNoise("pairs", add_normal)
        ),
    )
    with pytest.raises(InputError, match="gaussian"):
        noise_sample([], replace(plan, release=replace(plan.release, algorithm=other)))


def test_of_many_copies_the_first_are_taken_from_every_run(monkeypatch):
    planned = job()
    harness = set_up(planned.plan, 5, 40, StackedContext)
    traces = [harness.observe(ALONE, seed).trace for seed in range(2)]
    every = noise_sample(traces, planned.plan, copies=harness.copies)
    monkeypatch.setattr(of_samples, "MOST_RELEASES", 2 * 3 * 5 * 4 + 1)
    some = noise_sample(traces, planned.plan, copies=harness.copies)
    assert (every.releases, some.releases) == (2 * 10 * 5 * 4, 2 * 3 * 5 * 4)
    assert set(some.labels["run"]) == set(range(6))
    assert not some.missing
    taken = (every.labels["run"] % 10 < 3) & (every.labels["step"] < 5)
    assert every.drawn is not None
    assert some.drawn is not None
    assert np.array_equal(every.drawn[taken], some.drawn)
    assert np.array_equal(every.handed[taken], some.handed)


@pytest.mark.slow
def test_of_very_many_releases_those_that_are_the_same_are_still_found():
    sample = made(runs=1, steps=3, nodes=5, width=200).sample()
    scores = np.random.default_rng(3).standard_normal((30_000, 200))
    scores[20_000] = -scores[11]
    many = replace(sample, scores=scores, places=[ReleasePlace(0, 0, 0, 0)] * 30_000)
    seen = links.pairs(many, LEVEL)
    assert seen is not None
    assert seen.p_value < LEVEL
