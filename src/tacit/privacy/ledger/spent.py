"""From steps in the ledger to the mechanism that they make up, which an accountant then composes.

What a run releases is its mechanism, restricted to the steps that it was charged; what has been
released from a node's data is the adaptive composition of that of all runs. It bounds what an
observer of all of them learns, provided that

- every run's noise and sampling coins are fresh;
- mechanisms and numbers of steps do not depend on what was released before. Gaussian mechanisms
  on every record may: a budget on the sum of their mu^2 is a privacy filter (Smith and Thakurta,
  *Fully adaptive composition for Gaussian differential privacy*, 2022). For sampled ones no such
  theorem is known for the composed privacy losses: a setting that was chosen by looking at an
  earlier run is outside the proof, as is a stop chosen by looking at the models.

*A source* (`tacit.privacy.ledger.shared`) has paid what the worst of its records may have been
through: in each run, what one of its nodes released where tacit divided the records among the
nodes, and what all of them released where parties brought their own, of which two may be the same.
Which node had a record is not asked, so that nothing here follows from a record.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tacit.errors import InputError
from tacit.privacy.accounting.accounting import epsilon
from tacit.privacy.ledger.ledger import EnteredRun, Interval, StepRun, step_runs
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.base import Mechanism
from tacit.privacy.mechanisms.composed import Composed
from tacit.privacy.mechanisms.serialise import from_statement
from tacit.privacy.mechanisms.steps import FixedBatchGaussian, Gaussian, SampledGaussian

_GAUSSIANS: tuple[type[Mechanism], ...] = (Gaussian, SampledGaussian)
_OF_ONE_KIND: tuple[set[type[Mechanism]], ...] = ({FixedBatchGaussian}, {RandomAllocationGaussian})
_AGREE = ("relation", "unit", "trust_model")


def released(mechanism: Mechanism, steps: Sequence[StepRun]) -> Mechanism | None:
    """What is released when only some steps of a mechanism run, some of them repeatedly.

    What that is, the mechanism of all planned steps says: `Mechanism.of_steps`. The steps that ran
    are disjoint, each with its multiplicity; where none ran, the result is None.

    Raises:
        InputError: a step lies beyond the last.
    """
    if not steps:
        return None
    if max(run.until for run in steps) > (mechanism.steps or 0):
        raise InputError("steps", steps[-1], f"must lie below {mechanism.steps}, the planned steps")
    return mechanism.of_steps(steps)


def combined(mechanisms: Iterable[Mechanism | None]) -> Mechanism | None:
    """All of the mechanisms on the same data, in as few parts as can be; None where there are none.

    Raises:
        InputError: they differ in relation, unit or trust model.
    """
    known = [mechanism for mechanism in mechanisms if mechanism is not None]
    if len(known) < 2:
        return known[0] if known else None
    whole = Composed(known)
    return whole.parts[0] if len(whole.parts) == 1 else whole


def run_mechanism(run: EnteredRun, node: int, more: Iterable[Interval] = ()) -> Mechanism | None:
    """What a run released from a node's data, by the ledger; None where nothing was charged.

    `more` are steps that it is about to release on top.

    Raises:
        InputError: the statement is none that this version can read, or lacks a charged step.
    """
    charged = step_runs([*run.charged[node], *more])
    return released(from_statement(run.statements[node]), charged)


def dominating(nodes: Sequence[Mechanism]) -> Mechanism | None:
    """A mechanism at least as revealing as each of the given ones; None where none is known.

    Of (sampled) Gaussians of equal length the one with the largest rate and, step by step, the
    smallest noise multiplier dominates: less noise by post-processing; a smaller rate q' < q,
    because its pair is the mixture, with weight q'/q, of the pair of q and of one identical
    distribution, and hockey-stick divergences are jointly convex. Of random allocations with epochs
    of equal length likewise the one with the smallest multipliers.
    """
    distinct = list(dict.fromkeys(nodes))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    terms = {
        (mechanism.relation, mechanism.unit, mechanism.trust_model, mechanism.steps)
        for mechanism in distinct
    }
    kinds = {type(mechanism) for mechanism in distinct}
    if len(terms) > 1 or not (kinds <= set(_GAUSSIANS) or kinds in _OF_ONE_KIND):
        return None
    gaussians: list[Any] = list(distinct)
    if kinds == {RandomAllocationGaussian} and len({each.rate for each in gaussians}) > 1:
        return None
    worst = max(gaussians, key=lambda mechanism: mechanism.rate)
    least = tuple(
        map(min, zip(*(mechanism.noise_multiplier for mechanism in gaussians), strict=True))
    )
    coordinates = max(mechanism.coordinates for mechanism in gaussians)
    # What finite arithmetic adds grows with the coordinates: their largest number is safe.
    made: Mechanism = replace(worst, noise_multiplier=least, coordinates=coordinates)
    return made


def cost(mechanism: Mechanism | None, delta: float) -> float:
    """Certified epsilon at `delta`, an upper bound; 0 for nothing."""
    return 0.0 if mechanism is None else epsilon(mechanism, delta=delta)


def check_agreement(
    mechanism: Mechanism, unit: str, run: EnteredRun, node: int, where: str
) -> None:
    """Refuse a mechanism that cannot be composed with what an earlier run released.

    The run released something from some of the same records. `node`, which is to release, and
    `where`, the run's ledger, are for the message. `unit` is as in `EnteredRun`: what a run cost a
    person it cost each of their records, but what one cost a record bounds nothing of a person, of
    whom no ledger says how many records that run had.

    Raises:
        InputError: relation, unit or trust model differ.
    """
    if unit not in ("record", run.unit):
        raise InputError(
            "privacy.unit",
            unit,
            f"run {run.run_id[:8]} in {where} was by {run.unit!r}: how many records of a unit it "
            "had is in no ledger, so that what it cost a unit is not known. Use the same, "
            "privacy.unit = 'record', or another ledger",
        )
    for statement in run.statements.values():
        before = from_statement(statement)
        for key in _AGREE:
            if getattr(before, key) != getattr(mechanism, key):
                raise InputError(
                    f"{key} of node {node}",
                    getattr(mechanism, key),
                    f"run {run.run_id[:8]} in {where} was reserved under {getattr(before, key)!r}, "
                    "and the two do not add up: use the same, or another ledger",
                )


MOST_WAYS = 16  # of one source; beyond, nodes of a run are taken together


def alternatives(nodes: Iterable[Mechanism | None], *, apart: bool) -> tuple[Mechanism, ...]:
    """What a run may have released of one record of a source: each of them, at most once.

    `nodes` are what its nodes released of the source, None for nothing; `apart` is as in
    `EnteredRun`.
    """
    possible = nodes if apart else [combined(nodes)]
    return tuple(dict.fromkeys(one for one in possible if one is not None))


def compositions(runs: Iterable[Sequence[Mechanism]], delta: float) -> tuple[Mechanism | None, ...]:
    """What one record of a source may have been through: at least as revealing as every choice.

    `runs` are the alternatives of each. Delta is that of the account, at which the cheaper of two
    bounds is taken.

    Returns:
        At least one, for `cost`; at most `MOST_WAYS`, or as many as one run has alternatives.

    Raises:
        InputError: relation, unit or trust model of two runs differ.
    """
    known = [run for run in runs if run]
    choosing = sum(len(run) > 1 for run in known)
    ways = _ways(known, max([MOST_WAYS, *map(len, known)]))
    if ways is None:
        groups = int(MOST_WAYS ** (1 / choosing) + 1e-9)
        ways = _ways([_grouped(run, groups, delta) for run in known], MOST_WAYS)
    assert ways is not None
    return tuple(combined(way) for way in ways)


def _ways(runs: Sequence[Sequence[Mechanism]], most: int) -> list[tuple[Mechanism, ...]] | None:
    """Every choice of one alternative a run, in any order; None where there are more than that."""
    ways: dict[object, tuple[Mechanism, ...]] = {(): ()}
    for run in runs:
        chosen = ((*way, mechanism) for way in ways.values() for mechanism in run)
        ways = {frozenset(Counter(way).items()): way for way in chosen}
        if len(ways) > most:
            return None
    return list(ways.values())


def _grouped(run: Sequence[Mechanism], groups: int, delta: float) -> list[Mechanism]:
    """As few alternatives as asked for, each at least as revealing as all that it stands for."""
    ordered = sorted(run, key=lambda mechanism: getattr(mechanism, "rate", 1.0))
    size = math.ceil(len(ordered) / groups)
    return [_worst(ordered[at : at + size], delta) for at in range(0, len(ordered), size)]


def _worst(nodes: Sequence[Mechanism], delta: float) -> Mechanism:
    """At least as revealing as each: all of them together are, and so is one that dominates."""
    bounds = [bound for bound in (dominating(nodes), combined(nodes)) if bound is not None]
    return min(bounds, key=lambda bound: cost(bound, delta))
