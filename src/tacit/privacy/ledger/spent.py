"""From steps on the books to the mechanism that they make up, which an accountant then composes.

What a run releases is its mechanism, restricted to the steps that it was charged; what has been
released from a node's data is the adaptive composition of that of all runs. It bounds what an
observer of all of them learns, provided that

- every run's noise and sampling coins are fresh;
- mechanisms and numbers of steps do not depend on what was released before. Gaussian mechanisms
  on every record may: a budget on the sum of their mu^2 is a privacy filter (Smith and Thakurta,
  *Fully adaptive composition for Gaussian differential privacy*, 2022). For sampled ones no such
  theorem is known for the composed privacy losses: a setting that was chosen by looking at an
  earlier run is outside the proof, as is a stop chosen by looking at the models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tacit.errors import InputError
from tacit.privacy.accounting.accounting import epsilon
from tacit.privacy.ledger.records import BookedRun, Interval, StepRun, step_runs
from tacit.privacy.mechanisms.composed import (
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
)
from tacit.privacy.mechanisms.serialise import from_statement

__all__ = ["check_agreement", "combined", "cost", "dominating", "released", "run_mechanism"]

_GAUSSIANS: tuple[type[Mechanism], ...] = (Gaussian, SampledGaussian)
_AGREE = ("relation", "unit", "trust_model")


def released(mechanism: Mechanism, steps: Sequence[StepRun]) -> Mechanism | None:
    """What is released when only some steps of a mechanism run, some of them repeatedly.

    What that is, the mechanism says: `Mechanism.of_steps`.

    Args:
        mechanism: of all planned steps.
        steps: which of them ran, disjoint, with their multiplicity.

    Returns:
        The mechanism; None where no step ran.

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


def run_mechanism(run: BookedRun, node: int, more: Iterable[Interval] = ()) -> Mechanism | None:
    """What a run released from a node's data, by the books; None where nothing was charged.

    Args:
        run: the run.
        node: the node.
        more: steps that it is about to release on top.

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
    distribution, and hockey-stick divergences are jointly convex.

    Args:
        nodes: mechanisms.
    """
    distinct = list(dict.fromkeys(nodes))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    terms = {
        (mechanism.relation, mechanism.unit, mechanism.trust_model, mechanism.steps)
        for mechanism in distinct
    }
    kinds = {type(mechanism) for mechanism in distinct}
    if len(terms) > 1 or not (kinds <= set(_GAUSSIANS) or kinds == {FixedBatchGaussian}):
        return None
    gaussians: list[Any] = list(distinct)
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


def check_agreement(mechanism: Mechanism, run: BookedRun, node: int, where: str) -> None:
    """Refuse a mechanism that cannot be composed with what an earlier run released.

    Args:
        mechanism: what a node is to release.
        run: that released something from some of the same records.
        node: that is to release, for the message.
        where: the run's ledger, likewise.

    Raises:
        InputError: relation, unit or trust model differ.
    """
    for statement in run.statements.values():
        before = from_statement(statement)
        for key in _AGREE:
            if getattr(before, key) != getattr(mechanism, key):
                raise InputError(
                    f"{key} of node {node}",
                    getattr(mechanism, key),
                    f"run {run.run_id[:8]} in {where} was booked under {getattr(before, key)!r}, "
                    "and the two do not add up: use the same, or another ledger",
                )
