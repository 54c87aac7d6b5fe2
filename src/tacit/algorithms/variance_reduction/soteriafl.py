"""SoteriaFL-SVRG: snapshot gradients, shifted compression and a server (Li, Zhao, Li and Chi,
NeurIPS 2022).

SoteriaFL-SAGA: gradient tables, shifted compression and a server.

*SoteriaFL: A Unified Framework for Private Federated Learning with Communication Compression*.

| paper | here |
|---|---|
| x^t, server's model | `state.x`, `[nodes, d]`, the same row for every client |
| s_i^t, shift of client i | `state.shift` |
| s^t, the server's shift | `state.server_shift`: always the mean of the s_i |
| g~_i^t, noised gradient estimator | `variance_reduction.by_table` (SAGA), `.by_snapshot` (SVRG) |
| C_i^t, unbiased compression | `compressor`, `keep`, scaled up by the receiver: below |
| eta_t | `learning_rate` |
| gamma_t, of the shifts | `shift_step`: below |
| w^t, the SVRG snapshot | renewed every `anchor_every` rounds, not by a coin |

In each round every client sends v_i = C(g~_i - s_i) and sets s_i += gamma v_i; the server computes
v = s + mean of v_i, sets s += gamma times that mean, and x -= eta v. All clients take part, with
equal weights, and s_i = s = 0 at first.

*Left open here.* Messages carry the kept values as they are; everyone multiplies them by d / k
(`rand-k`) or 1 / keep (`bernoulli`), which makes the compression unbiased, with variance at most
omega = d / k - 1 times the squared norm. `top-k` has no such factor and is outside the paper's
theory. `shift_step` is by default sqrt((1 + 2 omega) / (2 (1 + omega)^3)), never above
1 / (1 + omega), up to which shifts of unbiased compressions contract.

Mechanism: of the noised estimators (`variance_reduction`); shifts, compression and the server's
work are functions of them. SAGA's table and, with `state = "private"`, SVRG's un-noised snapshot
gradients are private state: Theorem A or Bound B. SVRG's `state = "public"`, the default, releases
its snapshot gradients with noise, and costs what ordinary composition does. Relation: the plan's;
trust model: the server sees each client's message. Proofs, and why there is no claim:
`docs/proofs/variance-reduction.md`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import FAULTS, Participation, Releases
from tacit.algorithms.federated import WITH_SERVER
from tacit.algorithms.options import Idle, Options, step_size
from tacit.algorithms.parts import CompressorName, Keep, compressed, keeps_back
from tacit.algorithms.variance_reduction.estimators import (
    Anchor,
    AnchorOptions,
    TableOptions,
    by_anchor,
    by_snapshot,
    by_table,
    check_differences,
    private_state,
    reduced_sums,
    table_request,
)
from tacit.communication import compression
from tacit.communication.colours import Released


class ShiftedOptions(Options):
    """Options of shifted compression."""

    compressor: CompressorName = "none"
    keep: Keep = 1.0
    shift_step: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Idle(
            lambda options: options.compressor == "none",
            "is for compressed messages: set algorithm.compressor, or leave it out",
        ),
    ] = None


class SagaOptions(ShiftedOptions, TableOptions):
    """Options of SoteriaFL-SAGA, whose state is private always."""

    state: Literal["private"] = "private"


class SvrgOptions(ShiftedOptions, AnchorOptions):
    """Options of SoteriaFL-SVRG."""

    state: Literal["public", "private"] = "public"


class ShiftState(NamedTuple):
    """Model and shifts; snapshot and full gradients there; `[nodes, d]`, `[nodes, 0]` if unused."""

    x: Tensor
    shift: Tensor
    server_shift: Tensor
    point: Tensor
    anchor: Tensor


def start(x: Tensor, options: ShiftedOptions, context: StepContext) -> ShiftState:
    """x^0, no shift, and a snapshot that the first round takes."""
    zeros = torch.zeros_like(x)
    return ShiftState(x, zeros, zeros.clone(), x.clone(), zeros.clone())


def saga_start(x: Tensor, options: SagaOptions, context: StepContext) -> ShiftState:
    """The table begins with every record's gradient at x^0."""
    context.table.fill(x)
    none = x.new_zeros(len(x), 0)
    return start(x, options, context)._replace(point=none, anchor=none.clone())


def saga_step(state: ShiftState, k: int, options: SagaOptions, context: StepContext) -> ShiftState:
    """A round of SoteriaFL-SAGA."""
    return _round(state, by_table(state.x, k, options, context), k, options, context)


def svrg_step(state: ShiftState, k: int, options: SvrgOptions, context: StepContext) -> ShiftState:
    """A round of SoteriaFL-SVRG."""
    estimate = by_anchor if options.state == "public" else by_snapshot
    g, anchor = estimate(state.x, k, options, context, Anchor(state.point, state.anchor))
    return _round(state, g, k, options, context)._replace(
        point=anchor.point, anchor=anchor.gradient
    )


def _round(
    state: ShiftState, g: Tensor, k: int, options: ShiftedOptions, context: StepContext
) -> ShiftState:
    """Compress, shift, average and step, from noised estimators g `[nodes, d]`."""
    message = compressed(g - state.shift, k, options, context)
    factor, omega = scaling(options, g.shape[1])
    (mean,) = context.exchange.average(k, Released(message.values), coding=message.coding)
    gamma = options.shift_step or math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))
    direction = state.server_shift.add(mean, alpha=factor)
    return state._replace(
        x=state.x.sub(direction, alpha=step_size(options, k, context.steps)),
        shift=state.shift.add(message.values, alpha=gamma * factor),
        server_shift=state.server_shift.add(mean, alpha=gamma * factor),
    )


def scaling(options: ShiftedOptions, d: int) -> tuple[float, float]:
    """What received values are multiplied by, and omega."""
    share = compression.share_sent(options.compressor, options.keep, d)
    return 1.0 if options.compressor == "top-k" else 1 / share, 1 / share - 1


SOTERIAFL_SVRG: Algorithm[ShiftState, Any] = Algorithm(
    name="soteriafl-svrg",
    title="SoteriaFL-SVRG",
    documentation=__doc__,
    options=SvrgOptions,
    start=start,
    step=svrg_step,
    check=check_differences,
    differences=True,
    graph=replace(
        WITH_SERVER,
        no_faults=dict.fromkeys(
            FAULTS,
            "keeps the mean of the clients' shifts at the server, and a message moves both: one "
            "that is lost would leave them apart for ever, and every client has to take part in "
            "every round",
        ),
    ),
    releases=Releases(
        mechanism=reduced_sums,
        hides=keeps_back,
        cost_depends_on_step=lambda options: options.state == "public",
        no_secure_sum="compresses each client's message by itself, and keeps a shift for each "
        "client",
        not_covered=private_state,
    ),
    participation=Participation(
        no_empty="keeps a shift for each client, towards a message that it sends in every round"
    ),
)

SOTERIAFL_SAGA = replace(
    SOTERIAFL_SVRG,
    name="soteriafl-saga",
    title="SoteriaFL-SAGA",
    options=SagaOptions,
    start=saga_start,
    step=saga_step,
    table=table_request,
)
