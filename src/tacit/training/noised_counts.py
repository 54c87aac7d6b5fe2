"""Counts of each node's records under noise: one release, charged before it leaves.

*Mechanism.* A record of node i is of one cell, and c_i `[cells]` counts its records: the node
releases c_i + Normal(0, s_i^2 I), where s_i is the standard deviation of the noise in that sum.
*Sensitivity.* A record adds a one to one count, so with or without it c_i differs by 1 in the l2
norm, which is the plan's clipping bound; by `replace-one` it differs by sqrt(2) at most, and the
plan accounts 2. A unit of `privacy.unit` adds one for each of its rows, of which no more than
`privacy.unit_rows` = m are kept, a choice among the unit's rows alone: it adds a vector of whole
numbers whose sum is at most m, so its l2 norm, at most the sum, is at most m (attained where all
rows are of one cell), and two units in each other's place differ by 2 m at most (sqrt(2) m is
attained). Counts are whole numbers below 2^53 in float64, so no sum is rounded. *Theorem.* The
Gaussian mechanism on a public lattice, as for a gradient (`docs/proofs/finite-arithmetic.md`).
*Trust model.* That of the experiment: everyone sees the noised counts of every node, or the server
does. Whatever is made of them is post-processing. What cells there are must be public, and what
cell a record is of must follow from that record and from what is public.

The budget is that of the data (`privacy.ledger`), which training draws on as well: without one, two
releases about the same records would each claim to be the only one, and this is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from tacit.algorithms import plain_method
from tacit.communication.colours import Released, opened
from tacit.communication.peers import Peers, Placement, SessionMemory, place
from tacit.communication.received import EXPERIMENT, LABEL_COUNTS, SESSION_ID, Experiment
from tacit.config import Config
from tacit.config.schema import LEDGER_KEYS, UNIT_KEYS
from tacit.data import StackedData
from tacit.errors import InputError, PeerError
from tacit.training.budget import node_keys, open_ledger
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.processes.agreement import Scalar, compare, counts, identity
from tacit.training.shared_budgets import check_shared, open_shared


def check_counted(config: Config) -> None:
    """Refuse to count the records of an experiment whose data have no ledger."""
    if config.privacy.ledger is None:
        expected = (
            "must name the folder of the budgets of the data, which the count and the training "
            'then share, such as privacy.ledger = "ledgers"'
        )
        raise InputError("privacy.ledger", None, expected)


def placed(config: Config, peers: Peers) -> Placement:
    """Which process has which nodes; a simulator has all, wherever they would be placed."""
    return place(config.nodes.count, peers.processes, peers.placed(config.nodes.placement))


def counted_once(
    config: Config,
    epsilon: float,
    train: StackedData,
    cells: Tensor,
    width: int,
    peers: Peers,
    agreed: Mapping[str, Scalar] | None = None,
) -> tuple[Plan, list[list[float]]]:
    """The noised counts `[nodes][width]` of an experiment's records, and the plan of that one step.

    It may cost each node `epsilon`, certified, at the experiment's `privacy.delta`. `train` are the
    records of this process's nodes, and `cells` int64 `[rows]` those of its rows, 0 to `width` - 1.
    `agreed` is what processes must have in common beside the experiment, by name.

    Raises:
        BudgetError: the budget of a node's data does not cover it.
        InputError: the processes do not count the same.
        PeerError: another process was lost, or sent what cannot be added up.
    """
    placement = placed(config, peers)
    hosted = placement.hosted(peers.rank)
    server = config.algorithm.definition.graph.weights == "server"
    method, unit = plain_method("server" if server else "doubly-stochastic"), train.units
    release = Config(
        task=config.task.model_copy(update={"calibrate": "none"}),
        nodes=config.nodes,
        topology={} if server else {"graph": "complete"},
        algorithm={"name": method, "clip": 1.0 if unit is None else float(unit.rule.most)},
        privacy={
            "epsilon": epsilon,
            "delta": config.privacy.delta,
            "relation": config.privacy.relation,
            **{key: getattr(config.privacy, key) for key in (*LEDGER_KEYS, *UNIT_KEYS)},
        },
        train={"steps": 1, "batch": "all", "seed": config.train.seed, "dtype": "float64"},
    )
    start = torch.zeros(width, dtype=torch.float64)
    settings = identity(release, layout={"counts": (width,)}, start=start, dtype=start.dtype)
    own = Experiment(identity={**settings, **(agreed or {})}, records=train.counts.tolist())
    experiments = peers.share("experiment", own, EXPERIMENT)
    compare([experiment.identity for experiment in experiments])
    records = counts([experiment.records for experiment in experiments], placement)
    plan = build_plan(release, records, width)
    session, *_ = peers.share("run", secrets.token_hex(16), SESSION_ID)
    with ExitStack() as stack:
        # Data without an account get the budget that the experiment has for them.
        shared = stack.enter_context(open_shared(plan, train, hosted, session, config.privacy))
        check_shared(plan, shared)
        peers.share("sign that the budgets cover it", session, SESSION_ID)
        ledger = open_ledger(plan, None, False, shared, hosted)
        assert ledger is not None
        stack.enter_context(ledger)
        ledger.reserve(0, 1)
        noised = with_noise(plan, histograms(cells, train, width), hosted, 0)
        ledger.settle(1)
    return plan, shared_counts("noised counts of records", noised, width, placement, peers)


def histograms(cells: Tensor, train: StackedData, width: int) -> Tensor:
    """The true counts `[nodes, width]`, exact; they do not leave this process."""
    parts = torch.split(cells.cpu(), train.sizes.tolist())
    return torch.stack([torch.bincount(own, minlength=width).to(torch.float64) for own in parts])


def with_noise(
    plan: Plan,
    totals: Tensor,
    hosted: Sequence[int],
    step: int,
    session: SessionMemory | None = None,
) -> Released[Tensor]:
    """Counts `[nodes, width]` of this process's nodes as they are released, which are charged."""
    if plan.noisy:
        stds = [plan.release.noise_std(plan.nodes[node], step) for node in hosted]
        known: dict[str, Any] = {} if session is None else {"session": session}
        keys = node_keys(plan, hosted, **known)
        plan.release.algorithm.releases.noise.add(totals, stds, keys, hosted, step, part=0)
    return Released(totals)


def shared_counts(
    what: str, released: Released[Tensor], width: int, placement: Placement, peers: Peers
) -> list[list[float]]:
    """The noised counts of all nodes, `[nodes][width]`.

    Raises:
        PeerError: a process gave others than those of its nodes.
    """
    own = opened(released, what).tolist()
    rows: dict[int, list[float]] = {}
    for rank, lists in enumerate(peers.share(what, own, LABEL_COUNTS)):
        nodes = placement.hosted(rank)
        if len(lists) != len(nodes) or any(len(row) != width for row in lists):
            raise PeerError(f"rank {rank} sent counts that are not those of its nodes")
        rows |= dict(zip(nodes, lists, strict=True))
    return [rows[node] for node in sorted(rows)]
