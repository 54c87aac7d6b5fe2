"""The noise of many releases, made into what a correct program draws it from: ideal numbers.

A release is the lattice point next to the exact sum of a total t and its noise, s round((t + std x)
/ s), then rounded to the total's dtype. So a total and its release say in which interval x lies,
and not where. The auditor draws a point of that interval with coins of its own, by the law that x
has there. If x is ideal and independent of the total, what is drawn has exactly the law of x and is
independent of the total too, whatever the total, the spacing and the dtype. So every test that is
exact for ideal noise is exact here. Proof: `docs/proofs/audits.md`, section Noise.

What is drawn is kept as *scores*: standard normal for both kinds of noise (for Laplace noise by its
distribution function), and as *sizes*: x^2 for Gaussian noise and 2 |x| for Laplace noise of scale
1, which are chi-square with one and with two degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from tacit.analysis.audit.recorder import Trace, TracedRelease
from tacit.errors import InputError
from tacit.privacy.mechanisms.matrix import applied
from tacit.privacy.noise.gaussian import spacing
from tacit.privacy.noise.laplace import laplace_spacing
from tacit.privacy.noise.matrix import MatrixNoise
from tacit.training.plan import Plan

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
NoiseKind = Literal["gaussian", "laplace"]

MOST_NUMBERS = 1 << 24
"""Of a sample. Where there are more, some coordinates are looked at, by a public choice."""

MOST_RELEASES = 1 << 16
"""Of a sample: of runs that have more together, so many copies of the graph as have less."""

_BLOCK = 256
"""Neighbouring coordinates are chosen together, so that their noises can be compared."""

_SPACINGS = {"gaussian": spacing, "laplace": laplace_spacing}
_FREEDOM: dict[str, int] = {"gaussian": 1, "laplace": 2}
_WHOLE_FLOAT32 = 2.0**24
"""Float32 has every whole number up to this."""

_FAR = 38.0
"""In place of what no finite number describes: beyond every ideal value."""


@dataclass(frozen=True)
class ReleasePlace:
    """Where one release stood; `run` counts independent runs, or copies of the graph."""

    run: int
    node: int
    step: int
    part: int

    def __str__(self) -> str:
        more = f", part {self.part}" if self.part else ""
        return f"node {self.node} at step {self.step}{more} (run {self.run})"


@dataclass(frozen=True, eq=False)
class NoiseSample:
    """The noise of many releases, in the order in which they were made.

    Args:
        where: it was taken, for people: `the laboratory`.
        scores: standard normal and independent if the program is correct, `[releases, width]`.
        sizes: of the noise of each release: chi-square with `width * freedom` degrees of freedom,
            `[releases]`.
        column_sizes: of the noise of each coordinate: `releases * freedom`, `[width]`.
        handed: the direction of what was handed in, of length 1, `[releases, width]`; the first
            coordinate's where it was zero.
        off_lattice: how many numbers of a release are not on its public lattice, `[releases]`.
        odd: how many are an odd multiple of the spacing, among `judged`, `[releases]`.
        judged: numbers whose lowest lattice bit the dtype can hold, `[releases]`.
        coordinates: how many a release has, of which `width` were looked at.
        drawn: records that were drawn over those that were expected, `[releases]`; None: unknown.
        missing: releases that the plan has, and that were not made.
    """

    where: str
    kind: NoiseKind
    scores: Array
    sizes: Array
    column_sizes: Array
    handed: Array
    places: Sequence[ReleasePlace]
    off_lattice: Counts
    odd: Counts
    judged: Counts
    coordinates: int
    drawn: Array | None = None
    missing: Sequence[ReleasePlace] = ()

    @property
    def freedom(self) -> int:
        """Of one number's size: 1 for Gaussian noise, 2 for Laplace noise."""
        return _FREEDOM[self.kind]

    @property
    def releases(self) -> int:
        """How many releases there are."""
        return len(self.scores)

    @property
    def width(self) -> int:
        """How many coordinates of each were looked at."""
        return int(self.scores.shape[1])

    @cached_property
    def labels(self) -> Mapping[str, Counts]:
        """The numbers of each release: its `run`, `node`, `step` and `part`, `[releases]` each."""
        names = ("run", "node", "step", "part")
        return {
            name: np.array([getattr(place, name) for place in self.places], np.int64)
            for name in names
        }


def sample_of(
    before: Tensor,
    after: Tensor,
    deviations: Array,
    places: Sequence[ReleasePlace],
    *,
    kind: NoiseKind = "gaussian",
    where: str = "the run",
    seed: int = 0,
    drawn: Array | None = None,
    missing: Sequence[ReleasePlace] = (),
    offsets: Tensor | None = None,
) -> NoiseSample:
    """The noise of releases from what was handed in, `before`, and what came back, `after`.

    Both are `[releases, d]`, of one dtype, float32 or float64; `deviations` are the planned
    standard deviations, or scales of Laplace noise, `[releases]`. `offsets` are what was added
    besides before all was rounded, float64 `[releases, d]`. `seed` is of the auditor's coins, and
    of the public choice of coordinates. All else is as in `NoiseSample`.

    Raises:
        InputError: a planned deviation is not between 2^-500 and 2^500.
    """
    rng = np.random.default_rng([0x6E6F697365, seed])
    chosen = columns_of(len(places), int(before.shape[1]), rng)
    shape = len(places), len(chosen)
    scores, handed = np.empty(shape), np.empty(shape)
    sizes, columns = np.empty(len(places)), np.zeros(len(chosen))
    off, odd, judged = (np.empty(len(places), np.int64) for _ in range(3))
    height = max(1, (1 << 20) // max(1, len(chosen)))
    for first in range(0, len(places), height):
        rows = slice(first, first + height)
        given, released = (values[rows][:, chosen].cpu().numpy() for values in (before, after))
        total = given.astype(np.float64)
        if offsets is not None:
            total = total + offsets[rows][:, chosen].cpu().numpy()
        deviation = deviations[rows, None]
        unit = np.array([[_SPACINGS[kind](float(value))] for value in deviations[rows]])
        scores[rows], size = _ideal(total, released, deviation, unit, kind, rng)
        sizes[rows] = size.sum(1)
        columns += size.sum(0)
        handed[rows] = _directions(given.astype(np.float64) / deviation)
        off[rows], odd[rows], judged[rows] = _lattice_counts(total, released, unit)
    return NoiseSample(
        where=where,
        kind=kind,
        scores=scores,
        sizes=sizes,
        column_sizes=columns,
        handed=handed,
        places=places,
        off_lattice=off,
        odd=odd,
        judged=judged,
        coordinates=int(before.shape[1]),
        drawn=drawn,
        missing=missing,
    )


def noise_sample(
    traces: Sequence[Trace],
    plan: Plan,
    *,
    steps: int | None = None,
    copies: int = 1,
    where: str = "the run",
) -> NoiseSample:
    """The noise of the releases of some runs of one plan, each with noise seeds of its own.

    Of many copies of the graph the first ones are taken, at least one of every run. The plan is of
    one graph; node i of copy c is number `c * nodes + i` in a run. Where `steps` is None, all of
    the plan were run.

    Raises:
        InputError: the plan's noise is of another kind than Gaussian or Laplace.
    """
    name = plan.release.algorithm.releases.noise.name
    if name not in _FREEDOM:
        raise InputError("noise", name, "'gaussian' or 'laplace' noise, whose law the tests know")
    kind: NoiseKind = "laplace" if name == "laplace" else "gaussian"
    count, ran = len(plan.nodes), plan.steps if steps is None else steps
    taken = min(copies, max(1, MOST_RELEASES // (count * ran * max(1, len(traces)))))
    made = [(run, trace, release) for run, trace in enumerate(traces) for release in trace.releases]
    kept = np.array(
        [node < taken * count for *_, release in made for node in release.nodes], np.bool_
    )
    places = [
        ReleasePlace(run * taken + node // count, node % count, release.step, release.part)
        for run, _, release in made
        for node in release.nodes
        if node < taken * count
    ]
    drawn = [_drawn(trace, release, plan) for _, trace, release in made]
    known = [shares for shares in drawn if shares is not None]
    # A node that takes part in a step releases something in it, and all parts that any node does.
    found, parts = set(places), dict[int, set[int]]()
    for place in places:
        parts.setdefault(place.step, set()).add(place.part)
    planned = (
        ReleasePlace(run, node, step, part)
        for step, active in enumerate(map(plan.release.active, range(ran)))
        for node in range(count)
        if active is None or active[node % len(active)]
        for part in sorted(parts.get(step, {0}))
        for run in range(len(traces) * taken)
    )
    missing = [place for place in planned if place not in found]
    besides = [release.offsets for *_, release in made if release.offsets is not None]
    if plan.release.over_time is not None:
        besides = [moved for trace in traces for moved in _moved(trace, plan.release.over_time)]

    def rows(tensors: Sequence[Tensor]) -> Tensor:
        together = torch.cat(list(tensors)) if tensors else torch.zeros(0, 1)
        return together if kept.all() else together[torch.from_numpy(kept).to(together.device)]

    return sample_of(
        rows([release.before for *_, release in made]),
        rows([release.after for *_, release in made]),
        np.concatenate([np.zeros(0), *(release.deviations for *_, release in made)])[kept],
        places,
        kind=kind,
        where=where,
        drawn=np.concatenate(known)[kept] if known and len(known) == len(made) else None,
        missing=missing,
        offsets=rows(besides) if besides else None,
    )


def _moved(trace: Trace, noise: MatrixNoise) -> list[Tensor]:
    """What C says that earlier noise adds to each release, float64 `[rows, d]`: without it the
    noise is independent.
    """
    added: list[Tensor] = []
    found, unit = [], np.eye(len(trace.releases))
    for t, release in enumerate(trace.releases):
        rows = np.array([[applied(noise.of(i), u)[t] for u in unit[:t]] for i in release.nodes])
        own = torch.from_numpy(release.deviations).unsqueeze(1)
        moved = torch.zeros(release.before.shape, dtype=torch.float64)
        for j, earlier in enumerate(added):
            moved -= torch.from_numpy(rows[:, j : j + 1]) * earlier * own
        found.append(moved)
        added.append((release.after.cpu().double() - release.before.cpu().double()) / own)
    return found


def _drawn(trace: Trace, release: TracedRelease, plan: Plan) -> Array | None:
    """Records of the release's last batch over those expected, a row a node; None: unknown."""
    calls = trace.drawn[release.draws]
    if not calls:
        return None
    rows = calls[-1].rows.cpu().numpy()
    if len(rows) and rows.max() >= len(release.nodes):
        return None
    counts = np.bincount(rows, minlength=len(release.nodes))
    expected = [plan.nodes[node % len(plan.nodes)].expected_batch for node in release.nodes]
    return np.asarray(counts / np.asarray(expected), np.float64)


def columns_of(releases: int, width: int, rng: np.random.Generator) -> Counts:
    """All coordinates, or blocks of them by a public choice where the numbers are too many."""
    most = max(_BLOCK, MOST_NUMBERS // max(1, releases))
    if width <= most:
        return np.arange(width)
    blocks = -(-width // _BLOCK)
    chosen = np.sort(rng.choice(blocks, max(1, most // _BLOCK), replace=False))
    columns = (chosen[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
    return np.asarray(columns[columns < width], np.int64)


def _ideal(
    total: Array,
    after: NDArray[np.floating],
    deviation: Array,
    unit: Array,
    kind: NoiseKind,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Scores and sizes of points drawn from the intervals in which the ideal noise lies."""
    lowest, highest = _cell(after, unit)
    lowest, highest = (lowest - total) / deviation, (highest - total) / deviation
    # On the upper side of the law, where its tail keeps its relative accuracy.
    turned = lowest + highest < 0
    low, high = np.where(turned, -highest, lowest), np.where(turned, -lowest, highest)
    tail, upper = (ndtr(-x) if kind == "gaussian" else _laplace_above(x) for x in (high, low))
    chance = tail + rng.random(low.shape) * (upper - tail)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.nan_to_num(-ndtri(chance), nan=_FAR, posinf=_FAR, neginf=-_FAR)
        if kind == "gaussian":
            size = score**2
        else:
            size = -2.0 * np.log(2.0 * np.minimum(chance, 1.0 - chance))
            size = np.nan_to_num(size, nan=_FAR**2, posinf=_FAR**2)
    return np.where(turned, -score, score), size


def _laplace_above(x: Array) -> Array:
    half = 0.5 * np.exp(-np.abs(x))
    return np.where(x < 0, 1.0 - half, half)


def _cell(after: NDArray[np.floating], unit: Array) -> tuple[Array, Array]:
    """The exact sums that are released as `after`: from where to where.

    Where float32 cannot hold every lattice point, they are those of all points that are rounded to
    `after`: to the nearest, and between two to the one whose last bit is 0.
    """
    exact = after.astype(np.float64)
    lowest, highest = exact - unit / 2, exact + unit / 2
    coarse = np.abs(exact) >= unit * _WHOLE_FLOAT32
    if after.dtype != np.float32 or not coarse.any():
        return lowest, highest
    middles = [
        (exact + np.nextafter(after, np.float32(end)).astype(np.float64)) / 2
        for end in (-np.inf, np.inf)
    ]
    even = (np.ascontiguousarray(after).view(np.int32) & 1) == 0
    # A middle that is no lattice point stands as far from the next ones inside as outside.
    shift = np.where(even, unit / 2, -unit / 2)
    below, upper = (middle / unit for middle in middles)
    shift_below = np.where(below == np.rint(below), shift, 0.0)
    shift_above = np.where(upper == np.rint(upper), shift, 0.0)
    return (
        np.where(coarse, middles[0] - shift_below, lowest),
        np.where(coarse, middles[1] + shift_above, highest),
    )


def _directions(values: Array) -> Array:
    """Rows of length 1 along some values; along the first coordinate where they are zero."""
    largest = np.abs(values).max(1, keepdims=True)
    usable = (largest > 0) & np.isfinite(largest)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(usable, values / largest, 0.0)
    scaled[~usable[:, 0], 0] = 1.0
    return np.asarray(scaled / np.linalg.norm(scaled, axis=1, keepdims=True), np.float64)


def _lattice_counts(
    total: Array, after: NDArray[np.floating], unit: Array
) -> tuple[Counts, Counts, Counts]:
    """How many numbers are off the lattice, an odd multiple of its spacing, and judged for that.

    Whether a number is judged follows from what was handed in alone, which says nothing of the
    noise; noise of 2^22 spacings or more has a chance below 1e-300.
    """
    points = after.astype(np.float64) / unit
    whole = points == np.rint(points)
    most = _WHOLE_FLOAT32 if after.dtype == np.float32 else 2.0**52
    judged = np.abs(total / unit) < most / 2
    with np.errstate(invalid="ignore"):
        odd = whole & judged & (np.mod(points, 2.0) == 1.0)
    return (~whole).sum(1), odd.sum(1), judged.sum(1)
