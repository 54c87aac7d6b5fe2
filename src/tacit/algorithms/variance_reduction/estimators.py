"""Variance-reduced gradients, and what they leak: by a table, by released anchors, by a snapshot.

With sampling rate q, batch B, clipping bound C, and new_j the clipped gradient of record j now:

| estimator | sum that is noised, and divided by q J | old_j, clipped |
|---|---|---|
| table (SAGA) | sum_B clip_{C_d}(new_j - old_j) + q sum_j old_j | of when j was drawn last |
| snapshot (SVRG) | the same | at the last snapshot, a public point |
| anchors | sum_B clip_{C_d}(new_j - old_j) | at the last anchor, a public point |

**Table and snapshot.** What is stored is clipped, un-noised and never sent. One record moves the
sum by at most *hit* C where it is drawn, hit = q + (1 - q) min(2, C_d / C), and by *miss* C, miss =
q, at every other step: its old gradient is in the sum whether it is drawn or not.

| batches | bound | relation |
|---|---|---|
| Poisson | Theorem A (`tacit.privacy.accounting.private_state`) | either |
| fixed size | Bound B (`tacit.privacy.accounting.private_state`) | replace-one |
| mini-batches that are drawn whole (`table_batch`) | Bound B | either |
| every record | `Gaussian` | either |

**Anchors.** Every `anchor_every` steps a = (sum_j new_j + noise) / J is released at the public
point of that step, and is that step's gradient. Other steps add a to the noised difference, which
one record moves by at most C_d, or 2 C without `clip_difference`. Every query is a function of
released values: Gaussians for the anchors, sampled Gaussians for the rest, composed. `anchor_share`
divides the budget between them; not set, it is C / (C + C_d), which makes the noise of the sum of
all steps least.

Proofs: `docs/proofs/variance-reduction.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun, released_sums
from tacit.algorithms.base import TableRequest
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Setup
from tacit.algorithms.options import LOCAL, Idle, Options, Size
from tacit.errors import InputError

Count = Annotated[int, Field(ge=1)]


class DifferenceOptions(Options):
    """Option of every estimator here."""

    clip_difference: Size | None = None


class AnchorOptions(DifferenceOptions):
    """Options of anchors and snapshots."""

    anchor_every: Annotated[
        Count,
        Idle(
            lambda options: options.state == "private" and isinstance(options, TableOptions),
            "is for anchors, in place of which state = 'private' has a table: leave it out",
        ),
    ] = 10
    anchor_share: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        Idle(
            lambda options: options.state == "private",
            "divides a budget between steps and anchors, which are released with state = 'public' "
            "only: leave it out",
        ),
    ] = None


_WITH_TABLE = Idle(lambda options: options.state != "private", "is for state = 'private'")


class TableOptions(DifferenceOptions):
    """Options of a gradient table."""

    table_batch: Annotated[Count | None, _WITH_TABLE] = None
    table_directory: Annotated[Annotated[str, Field(min_length=1)] | None, _WITH_TABLE, LOCAL] = (
        None
    )


class Anchor(NamedTuple):
    """A point `[nodes, d]`, and every node's full gradient there: released, or private."""

    point: Tensor
    gradient: Tensor


def by_table(at: Tensor, k: int, options: TableOptions, context: StepContext) -> Tensor:
    """Noised gradient at `at` `[nodes, d]` from the table, whose drawn entries are renewed."""
    total = context.table.total().mul_(context.rate)
    total += context.table.replace(at, k, options.clip_difference)
    return context.divide(context.add_noise(total, k)).to(at.dtype)


def by_snapshot(
    at: Tensor, k: int, options: AnchorOptions, context: StepContext, snapshot: Anchor
) -> tuple[Tensor, Anchor]:
    """Noised gradient at `at`, and the snapshot to keep: its gradient is a **private** sum."""
    if k % options.anchor_every == 0:
        snapshot = Anchor(at, context.batch_gradient(at, k, whole=True))
        total = snapshot.gradient.double() * context.rate
    else:
        total = context.batch_difference(at, snapshot.point, k, options.clip_difference)
        total += snapshot.gradient.double() * context.rate
    return context.divide(context.add_noise(total, k)).to(at.dtype), snapshot


def by_anchor(
    at: Tensor, k: int, options: AnchorOptions, context: StepContext, anchor: Anchor
) -> tuple[Tensor, Anchor]:
    """Noised gradient at `at`, and the anchor to keep: its gradient is a **released** mean."""
    if k % options.anchor_every == 0:
        total = context.batch_gradient(at, k, whole=True)
        scale = anchor_ratio(options, context.steps, context.clip(k)) / context.on_host.rate
        context.add_noise(total, k, scale=scale)
        anchor = Anchor(at, context.divide(total.mul_(context.rate)))
        return anchor.gradient, anchor
    total = context.batch_difference(at, anchor.point, k, options.clip_difference)
    return context.divide(context.add_noise(total, k)).to(at.dtype) + anchor.gradient, anchor


def anchor_ratio(options: AnchorOptions, steps: int, clip: float | None) -> float:
    """Standard deviation of an anchor's noise in its mean, over that of another step."""
    anchors = -(-steps // options.anchor_every)
    if anchors == steps:
        return 1.0
    bound = difference_bound(options, clip)
    share = options.anchor_share or 1 / (1 + bound)
    ratio = math.sqrt((1 - share) * anchors / (share * (steps - anchors)))
    return ratio / bound


def difference_bound(options: DifferenceOptions, clip: float | None) -> float:
    """C_d / C, at most 2: what the difference of a record's clipped gradients is clipped to."""
    return min(2.0, (options.clip_difference or math.inf) / (clip or 1.0))


def reduced_sums(run: NodeRun) -> privacy.Mechanism:
    """What the messages leak: of released anchors, or by the state that `options.state` keeps.

    Table or snapshot: Theorem A, or Bound B with batches of fixed size and whole groups.
    """
    if run.options.state == "public":
        return _anchored_sums(run)
    q = run.rate
    groups = getattr(run.options, "table_batch", None) is not None
    if q == 1:
        return released_sums(run, run.noise_multiplier, q, run.records)
    if run.sampling == "allocation" or run.sampling == "cyclic":
        raise InputError("train.sampling", run.sampling, "is not proved for private state")
    return privacy.PrivateState(
        sample_rate=q,
        drawn_norm=q + (1 - q) * difference_bound(run.options, run.clip[0]),
        undrawn_norm=q,
        noise_multiplier=run.noise_multiplier,
        sampling="groups" if groups else run.sampling,
        relation=run.relation,
        trust_model=run.trust_model,
        coordinates=run.coordinates,
    )


def _anchored_sums(run: NodeRun) -> privacy.Mechanism:
    """Released anchors: their Gaussians, and the sampled ones of the differences."""
    options, clip = run.options, run.clip[0]
    bound = difference_bound(options, clip)
    ratio = anchor_ratio(options, run.steps, clip) / run.rate
    pairs = list(zip(run.released, run.noise_multiplier, strict=True))
    anchors = [ratio * z for k, z in pairs if k % options.anchor_every == 0]
    others = [z / bound for k, z in pairs if k % options.anchor_every]
    return anchors_and_others(run, anchors, others)


def anchors_and_others(
    run: NodeRun, anchors: Sequence[float], others: Sequence[float]
) -> privacy.Mechanism:
    """Releases over every record, and over batches, with these multipliers each, composed.

    A multiplier is the deviation of the noise over what one record that takes part moves the
    release by, where it is left out.
    """
    parts = [released_sums(run, anchors, 1.0, run.records)] if anchors else []
    if others:
        parts.append(released_sums(run, others, run.rate, int(run.expected_batch)))
    return parts[0] if len(parts) == 1 else privacy.Composed(parts)


def private_state(options: Any) -> tuple[str, ...]:
    """What epsilon does not cover of a method that may keep un-noised gradients."""
    if options.state != "private":
        return ()
    return ("un-noised gradients of state = 'private', in memory and in checkpoints",)


def table_request(options: Any) -> TableRequest | None:
    """The table that these `TableOptions` ask for, where their state is private."""
    if options.state != "private":
        return None
    directory = options.table_directory
    return TableRequest(options.table_batch, None if directory is None else Path(directory))


def check_differences(setup: Setup) -> tuple[str, ...]:
    """Refuse what has no bound, and warn of what is expensive.

    Raises:
        InputError: on `algorithm.table_batch` with clipped differences or batches of fixed size.
    """
    options: Any = setup.options
    private = options.state == "private"  # un-noised gradients are kept
    table = private and isinstance(options, TableOptions)
    if table and options.table_batch is not None:
        if options.clip_difference is not None:
            expected = "clips single records' differences: leave algorithm.table_batch out"
            raise InputError("algorithm.clip_difference", options.clip_difference, expected)
        if setup.sampling == "fixed":
            expected = "draws mini-batches by coins: use train.sampling = 'poisson'"
            raise InputError("algorithm.table_batch", options.table_batch, expected)
        return (
            "a table over mini-batches is bounded without amplification by sampling: a table over "
            "records, or state = 'public' where there is one, may need far less noise",
        )
    if private and setup.accounted and setup.sampling == "fixed":
        return (
            "private state with batches of fixed size (other than 'all') is bounded without "
            "amplification by sampling: train.sampling = 'poisson' may need far less noise",
        )
    return ()
