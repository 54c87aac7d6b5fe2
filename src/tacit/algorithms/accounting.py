"""What a node's run is to an accountant: its mechanism, and what its paper's formula reads.

An algorithm states both as functions of a `NodeRun`. Those here are of the methods whose messages
are functions of noised sums of clipped gradients, which is most of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tacit import privacy
from tacit.errors import InputError
from tacit.privacy.mechanisms.allocation import allocated
from tacit.privacy.published import ClaimedRun


@dataclass(frozen=True)
class NodeRun:
    """One node, and the steps whose messages it releases.

    Args:
        records: J.
        rate: q, chance that one mini-batch draws a given record.
        expected_batch: q J.
        coordinates: d, numbers that one message holds; where pairs of nodes add noise that
            cancels, all values of a step that noise is drawn for.
        steps: K, of the whole run.
        released: numbers of the steps in which the node takes part, with repeats if a step was
            run again; the schedules below have one entry for each.
        noise_multiplier: noise standard deviation (Laplace: scale) over the clipping bound, for
            the sum over a batch.
        clip: the clipping bound C_k.
        delta: of the claim.
        constant: the paper's unspecified constant, as `[privacy].published_constant` gives it.
        local_steps: Q, mini-batches of one step.
        disjoint: whether the mini-batches of a step share no record.
        trust_model: who sees single messages: everyone, or the server only.
        completed: of the K steps, those that a claim is about, released or not; None for all.
        over_time: what all K steps release, where noise is correlated over them, or records take
            part in turns.
    """

    options: Any
    records: int
    rate: float
    expected_batch: float
    sampling: Literal["poisson", "fixed", "allocation", "cyclic"]
    relation: privacy.Relation
    coordinates: int
    nodes: int
    steps: int
    released: Sequence[int]
    noise_multiplier: Sequence[float]
    clip: Sequence[float]
    delta: float
    constant: float
    local_steps: int = 1
    disjoint: bool = True
    trust_model: str = "all-messages"
    completed: int | None = None
    over_time: privacy.MatrixGaussian | None = None


def noised_sums(run: NodeRun) -> privacy.Mechanism:
    """A message is a function of the noised sum over one batch, and of public values.

    Gaussian on every record at rate 1; with batches of fixed size, `FixedBatchGaussian`
    (replace-one); with Poisson sampling, `SampledGaussian`; with one random step of each epoch,
    `RandomAllocationGaussian` (add-or-remove-one).
    """
    if run.over_time is not None:
        return run.over_time.of_steps([(k, k + 1, 1) for k in run.released])
    if run.sampling == "allocation" and run.rate < 1:
        return allocated(
            round(1 / run.rate),
            run.released,
            run.noise_multiplier,
            relation=run.relation,
            trust_model=run.trust_model,
            coordinates=run.coordinates,
        )
    return released_sums(run, run.noise_multiplier, run.rate, int(run.expected_batch))


def released_sums(
    run: NodeRun, multipliers: Sequence[float], rate: float, batch: int
) -> privacy.Mechanism:
    """The same for other multipliers, chance of being drawn and number of drawn records.

    For a step whose release moves by at most the clipping bound when one record is left out (by
    twice that when it is replaced), if it draws the record, and not at all if it does not.

    Raises:
        InputError: each record takes part in one random step of an epoch: what another chance of
            being drawn is then, is not proved.
    """
    d, trust = run.coordinates, run.trust_model
    if rate == 1:
        return privacy.Gaussian(
            multipliers, relation=run.relation, trust_model=trust, coordinates=d
        )
    if run.sampling == "allocation":
        expected = "is for messages that are functions of one noised sum a step"
        raise InputError("train.sampling", run.sampling, expected)
    if run.sampling == "fixed":
        return privacy.FixedBatchGaussian(
            batch, run.records, multipliers, trust_model=trust, coordinates=d
        )
    return privacy.SampledGaussian(
        rate, multipliers, relation=run.relation, trust_model=trust, coordinates=d
    )


def laplace_sums(run: NodeRun) -> privacy.Mechanism:
    """A message is a function of a sum with Laplace noise; clipping is in the l1 norm.

    Raises:
        InputError: batches are sampled under `replace-one`, for which no bound is known.
    """
    return privacy.Laplace(
        run.noise_multiplier,
        sample_rate=run.rate,
        relation=run.relation,
        trust_model=run.trust_model,
    )


def claimed_sums(run: NodeRun) -> ClaimedRun:
    """What the formulas of noised-gradient methods read: noise in the batch **mean**."""
    pairs = zip(run.noise_multiplier, run.clip, strict=True)
    return ClaimedRun(
        records=run.records,
        clip=run.clip,
        noise_std=[multiplier * clip / run.expected_batch for multiplier, clip in pairs],
        expected_batch=run.expected_batch,
        delta=run.delta,
        constant=run.constant,
    )
