"""Whether the noise of pairs is what the plan says: drawn by its law, anew, and added at both ends.

Mechanism: both ends of a pair draw a discrete normal of `LEAST_POINTS` points a deviation from a
key that only they know; one adds it and the other subtracts it. Relation and trust model do not
matter here: the auditor has all keys, as runs under audit are seeded, and looks from inside.

He asks the product for the noise of every pair by itself. That noise is then tested as every noise
is (`noise`). Its law is a discrete one: let P be the chances of its numbers and F their sums. If k
is drawn by P and u is uniform, F(k - 1) + u P(k) is uniform, and its normal quantile is a standard
normal number, exactly. And what the run told its noise to add to each row is compared with the sum
of what its pairs drew, computed here: that finds pairs that are left out, that count where an end
is away, that are added twice, or whose ends do not cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.analysis.audit.colluders import drawn_pairs
from tacit.analysis.audit.fidelity.finding import Finding, exact_finding, finding
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample, ReleasePlace, columns_of
from tacit.analysis.audit.recorder import Trace, pair_keys_of
from tacit.communication.peers import ALONE
from tacit.config.schema import LEDGER_KEYS
from tacit.privacy.noise.pairwise import LEAST_POINTS
from tacit.training import budget
from tacit.training.job import Job
from tacit.training.plan import Plan

Array = NDArray[np.float64]

MOST_DRAWN = 1 << 14
"""Pairs times releases of a sample; of more, so many copies of the graph as have less."""

_OFF = 2.0**-40  # of a pair's deviation: far more than a sum in float64 loses
_FAR = 38.0  # in place of what no finite number describes
_COMPARED = 64  # coordinates of two starts: alike with a chance far below 2^-256, where keys differ


@dataclass(frozen=True, eq=False)
class PairSample:
    """The noise of pairs in some runs, and what the runs made of it.

    Args:
        noise: of the pairs, as a sample whose `node` is a pair's number.
        values: that were compared with what the pairs drew,
        wrong: and how many of them were something else.
        worst: where, in words; empty where nothing was.
    """

    noise: NoiseSample
    values: int
    wrong: int
    worst: str


def pair_sample(
    traces: Sequence[Trace], plan: Plan, *, copies: int = 1, where: str = "the run"
) -> PairSample | None:
    """The noise of pairs in some runs of one plan; None without any.

    Of many copies of the graph the first ones are taken, at least one of every run; what is given
    is as for `noise_sample`.
    """
    pairs, count = plan.release.pairs, len(plan.nodes)
    made = [(run, trace, one) for run, trace in enumerate(traces) for one in trace.releases]
    if pairs is None or not made:
        return None
    taken = min(copies, max(1, MOST_DRAWN // (len(made) * len(pairs.pairs))))
    rng = np.random.default_rng([0x7061697273, 0])
    width = int(made[0][2].before.shape[1])
    chosen = columns_of(len(made) * taken * len(pairs.pairs), width, rng)
    numbers, places = [np.zeros((0, len(chosen)))], list[ReleasePlace]()
    values, wrong, worst = 0, 0, ""
    for run, trace, release in made:
        keys = pair_keys_of(trace.plan, range(taken * count))
        assert keys is not None
        active = {node for node in release.nodes if node < taken * count}
        both = [place for place, pair in enumerate(keys.pairs) if active.issuperset(pair)]
        drawn = drawn_pairs(trace.plan, keys, both, width, release.step, release.part)
        ends = [keys.pairs[place] for place in both]
        # What was added to the first nodes and is not what their pairs drew.
        rows = [row for row, node in enumerate(release.nodes) if node < taken * count]
        mine = [release.nodes[row] for row in rows]
        added = np.zeros((taken * count, width))
        for (i, j), moved in zip(ends, drawn, strict=True):
            added[i] += moved
            added[j] -= moved
        own = [trace.plan.release.noise_std(trace.plan.nodes[n], release.step) for n in mine]
        batch = np.array([trace.plan.nodes[node].divisor for node in mine])
        mean = (
            release.deviations[rows] / np.array(own) * batch
        )  # what a unit of it is in these rows
        assert release.offsets is not None
        given = release.offsets[rows].cpu().numpy() / mean[:, None]
        deviation = trace.plan.release.pair_noise_std(release.step)
        off = ~(np.abs(given - added[mine]) <= _OFF * deviation)
        values, wrong = values + off.size, wrong + int(off.sum())
        if off.any() and not worst:
            row = int(off.any(axis=1).argmax())
            worst = f"node {row % count} at step {release.step}"
        numbers.append(drawn[:, chosen] / (deviation / LEAST_POINTS))
        places += [
            ReleasePlace(
                run * taken + i // count,
                pairs.pairs.index((i % count, j % count)),
                release.step,
                release.part,
            )
            for i, j in ends
        ]
    noises = np.concatenate(numbers)
    # A number is a product of one and its unit, each rounded once.
    whole = np.abs(noises - np.rint(noises)) <= _OFF
    noises = np.where(whole, np.rint(noises), noises)
    scores = _scores(noises, rng)
    sizes, first = scores**2, np.zeros_like(scores)
    first[:, 0] = 1.0
    noise = NoiseSample(
        where=where,
        kind="gaussian",
        scores=scores,
        sizes=sizes.sum(1),
        column_sizes=sizes.sum(0),
        handed=first,
        places=places,
        off_lattice=(~whole).sum(1),
        odd=(whole & (np.mod(noises, 2.0) == 1.0)).sum(1),
        judged=np.full(len(noises), noises.shape[1], np.int64),
        coordinates=width,
    )
    return PairSample(noise, values, wrong, worst)


@lru_cache(maxsize=2)
def _chances(points: int) -> tuple[Array, Array]:
    """Of a discrete normal: the chance of each number from 0 up, and of that or a larger one."""
    numbers = np.arange(40 * points)
    weights = np.exp(-(numbers**2) / (2 * points**2))
    chances = weights / (2 * weights[::-1].sum() - 1)
    return chances, chances[::-1].cumsum()[::-1]


def _scores(numbers: Array, rng: np.random.Generator) -> Array:
    """Standard normal for numbers of a discrete normal of `LEAST_POINTS` points a deviation."""
    chances, above = _chances(LEAST_POINTS)
    sizes = np.abs(np.rint(numbers)).astype(np.int64)
    inside = sizes < len(chances) - 1
    sizes = np.where(inside, sizes, 0)
    chance = above[sizes + 1] + rng.random(sizes.shape) * chances[sizes]
    with np.errstate(divide="ignore"):
        score = np.where(inside, np.nan_to_num(-ndtri(chance), posinf=_FAR), _FAR)
    return np.where(numbers < 0, -score, score)


def ends_finding(samples: Sequence[PairSample]) -> Finding:
    """Whether every node adds the noise of its pairs, and no other."""
    values, wrong = sum(one.values for one in samples), sum(one.wrong for one in samples)
    worst = next((one for one in samples if one.worst), None)
    saw = f"All {values:,} values were the sums of what the pairs of their node drew."
    if worst is not None:
        saw = (
            f"{wrong:,} of {values:,} values were something else, first in {worst.noise.where}, of "
            f"{worst.worst}."
        )
    return exact_finding(
        "ends of the pairs",
        "Does every node add what each of its pairs drew, once, so that it cancels?",
        wrong,
        "values that are not the sum of what a node's pairs drew",
        saw,
        "It finds a single value that is off: a pair that is left out or counted twice, ends that "
        "do not cancel, and a pair with an end that takes no part.",
    )


def keys_finding(job: Job) -> Finding:
    """Whether a run that starts again draws the noise of its pairs from new keys.

    Keys are asked for as a run asks for them at its start, without a `noise_seed`, twice: as by a
    run that was killed, and by the one that resumes it. With the same noise twice, the difference
    of what a node releases in a step that is run again shows what it summed up, under its own noise
    alone.
    """
    seedless = dict.fromkeys((*LEDGER_KEYS, "noise_seed"))
    plan = replace(job.plan, config=job.plan.config.with_keys(privacy=seedless))
    starts = [budget.pair_keys(plan, job.placement, ALONE) for _ in range(2)]
    drawn = []
    for keys in starts:
        assert keys is not None
        everyone = range(len(keys.pairs))
        drawn.append(drawn_pairs(plan, keys, everyone, _COMPARED, step=0))
    again = int((drawn[0] == drawn[1]).all(axis=1).sum())
    same = len(drawn[0]) - len({row.tobytes() for row in drawn[0]})
    found = again + same
    saw = f"{len(drawn[0])} pairs drew other noise after a second start."
    if found:
        saw = (
            f"{again} of {len(drawn[0])} pairs drew the same noise after a second start, and "
            f"{same} drew that of another pair."
        )
    return finding(
        "keys of the pairs",
        "Does a run that is resumed draw the noise of its pairs from new keys?",
        float(found),
        "pairs that drew noise that was drawn before",
        saw,
        "It finds a single pair whose key is used again, or is that of another pair.",
        p_value=0.0 if found else 1.0,
        exact=False,
    )
