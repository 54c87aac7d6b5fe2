"""How a run ends: measured, charged and written down, whatever ended it.

A clean stop settles the ledger at the step reached; one that follows from what was released, a
callback's or that of a run that diverges, keeps all planned steps charged (`tacit.training.hooks`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from tacit.base.private_files import lacks_room, write_private
from tacit.base.version import __version__
from tacit.communication.colours import Released, opened
from tacit.communication.peers import gone_ranks
from tacit.communication.received import FLAG, SUMMARY, Summary
from tacit.errors import BudgetError, DivergenceError, InputError, PeerError, TacitError
from tacit.models.metrics import majority, says_the_same
from tacit.models.probabilities import calibration_bins
from tacit.report import write_report
from tacit.report.documents.base import plain_json
from tacit.report.documents.metrics import Scores
from tacit.report.documents.run import (
    OWN_LEDGER,
    AlgorithmNames,
    CalibrationBin,
    ClaimCondition,
    CommunicationGraph,
    ModelShape,
    NoiseMultipliers,
    PublishedClaim,
    ResultDocument,
    TaskNames,
)
from tacit.report.documents.trust import TrustTerms
from tacit.training import weights
from tacit.training.budget import (
    RunLedger,
    claimed_spent,
    epsilon_by_colluders,
    epsilon_spent,
    unit_spent,
)
from tacit.training.calibration import calibrate
from tacit.training.consensus import consensus_distances
from tacit.training.evaluation import consensus_of, models_public
from tacit.training.hooks import LOG, Hooks
from tacit.training.plan import not_covered
from tacit.training.release import Interval
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder.metrics import summaries
from tacit.training.run_folder.result import Result, mechanism_line, shared_conditions
from tacit.training.state import RunState, drawn_again, record, take_rows, together

LARGEST = 1e15  # of a model's numbers: beyond, no data set that is scaled at all leads there
_CONSTANT = (
    "the model says the same of all {:,} public test records, whatever their inputs: scale inputs "
    "and targets by public bounds to about -1 to 1, or give more steps, a larger "
    "algorithm.learning_rate or a larger epsilon"
)
_LEFT_OUT = (
    "was left out, since it was away for longer than train.patience: for its nodes "
    "stand the scores that it sent last, and an epsilon as if they had gone on; its own "
    "ledger holds what it spent"
)
_TOLD = "the scores on test records, and what other nodes sent, are as rank 0 told them"
# What cannot be written in the middle of a run.
_WRITTEN = ("out", "checkpoint", "ledger", "session", "RUN")


def finish(run: RunState, hooks: Hooks) -> Result:
    """Measure, write down, and hand over."""
    job, plan, communication, rank = run.job, run.plan, run.communication, run.peers.rank
    seconds = run.seconds
    communication.finish()
    hooks.metrics(take_rows(run))
    calibrate(run)
    hooks.metrics(record(run, whole=True))
    communication.finish()
    hooks.metrics(take_rows(run, whole=True))
    left_out = gone_ranks(run.peers).values()
    run.notes = (*run.notes, *(f"{name} {_LEFT_OUT}" for name in left_out))
    models = run.models.expand(len(job.hosted), -1).contiguous()
    own_models = {folders.NODES: {"parameters": models}}
    if run.folder is not None and run.folder is not run.common_folder:
        run.folder.write_tensors(folders.NODES, own_models.pop(folders.NODES))
    # From here on each process has its models, so that none needs another once rank 0 has the rest.
    own = {} if run.ledger is None else run.ledger.charged()
    charged = together(run.peers, "list of steps reserved at the end", job, own)
    consensus = run.consensus
    if run.peers.processes > 1 and models_public(job):
        consensus = communication.mean(Released(run.models))
    curve: tuple[CalibrationBin, ...] = ()
    if job.test is not None:
        model, targets = consensus.to(job.device, job.dtype).unsqueeze(0), job.test.targets
        outputs = job.model.outputs(model, job.test.inputs)[0]
        are_classes = majority(job.loss, outputs, targets) is not None
        if are_classes and bool(torch.isfinite(outputs).all()):
            rows = calibration_bins(outputs, targets)
            curve = tuple(CalibrationBin(predicted=p, observed=o, records=r) for p, o, r in rows)
        if says_the_same(job.loss, outputs, targets, by_class=not job.metrics):
            run.notes = (*run.notes, _CONSTANT.format(len(job.test)))
    document = result_document(run, charged, seconds, others="rank {rank}", calibration=curve)
    state_dict = {folders.MODEL: job.model.module(consensus).state_dict()}
    if run.common_folder is not None:
        run.common_folder.write_result(document, {**own_models, **state_dict})
        write_report(run.common_folder.path)
    # Nobody leaves before rank 0 has written everything down, which alone has the scores.
    summary = None
    if rank == 0:
        said = {key: plain_json(getattr(document, key)) for key in Summary.model_fields}
        said["test_metrics"] = list(said["test_metrics"].values())
        summary = Summary.model_validate(said)
    told, *_ = run.peers.share("summary of the result", summary, SUMMARY)
    document = document if rank == 0 else _as_told(run, document, told)
    if run.folder is not None and run.folder is not run.common_folder:
        # Each has what all commands open, with an epsilon of its nodes from its own ledger. A page,
        # which would show what was measured on its records, is for it to ask for.
        run.folder.write_result(document, state_dict)
        if run.status != "stopped":
            run.folder.write_known()
            # Whoever is lost before it has its result finds all the others again.
            run.peers.share("sign that the result is known", True, FLAG)
    LOG.info("the run is %s after step %d of %d", run.status, run.step, plan.steps)
    return Result(
        document=document,
        parameters=models,
        consensus=consensus,
        rows=run.rows,
        notes=run.notes,
        out=None if run.common_folder is None else run.common_folder.path,
        job=job,
    )


def _as_told(run: RunState, document: ResultDocument, told: Summary | None) -> ResultDocument:
    """The document of another process, with what rank 0 says of all nodes; else a `PeerError`."""
    if told is None:
        raise PeerError("rank 0 gave no summary of the result")
    job, sent = run.job, list(told.bytes_sent_by_node)
    if len(sent) != len(run.plan.nodes):
        raise PeerError(
            f"rank 0 gave bytes of {len(sent)} nodes, and there are {len(run.plan.nodes)}"
        )
    for node, count in zip(job.hosted, run.communication.exchange.bytes_sent.tolist(), strict=True):
        sent[node] = count
    if told.test_metrics and len(told.test_metrics) != len(job.metrics):
        raise PeerError(
            f"rank 0 gave {len(told.test_metrics)} metrics, and the task has {len(job.metrics)}"
        )
    accuracy, loss, *metrics = (
        None if one is None else Scores(**one.model_dump())
        for one in (told.test_accuracy, told.test_loss, *told.test_metrics)
    )
    names = [metric.name for metric in job.metrics]
    return document.model_copy(
        update={
            "test_accuracy": accuracy,
            "test_loss": loss,
            "test_metrics": dict(zip(names, metrics, strict=False)),
            "bytes_sent": sum(sent) / len(sent),
            "bytes_sent_by_node": tuple(sent),
            "notes": (*document.notes, _TOLD),
        }
    )


def failed(run: RunState, error: BaseException, watched: bool = False) -> None:
    """Write down that the run diverged; say what is safe where something could not be written."""
    if isinstance(error, DivergenceError):
        _diverged(run, str(error))
    more = "; when there is room to write, go on with --resume"
    if isinstance(error, InputError) and error.where in _WRITTEN:
        expected = error.expected + cut_short(run) + more
        raise InputError(error.where, error.value, expected) from error
    if isinstance(error, OSError) and lacks_room(error):
        # Of a file that is no part of the run folder, or of a user's own.
        expected = f"cannot be written ({error.strerror}){cut_short(run)}{more}"
        raise InputError("out", str(error.filename), expected) from error
    unlike = PeerError | BudgetError if watched else PeerError | BudgetError | KeyboardInterrupt
    if not isinstance(error, unlike) and run.ledger is not None and run.reserved > run.first:
        # A model or loss that fails does so because of records and of what was released.
        _reserve_all(run, run.ledger)


def cut_short(run: RunState) -> str:
    """Where a run ended, what is safe, and how to go on."""
    kept = None
    with suppress(OSError):  # the folder itself may be gone
        kept = run.folder and checkpoints.latest(run.folder.path)
    where = f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint yet"
    return f"; the run ended after step {run.step}: what was sent is in the ledger, and {where}"


def stopped(run: RunState, hooks: Hooks, asked: bool, called: bool) -> str:
    """Who stopped the run, and what that means for its epsilon."""
    by = "by the user" if asked else "by the user of another process"
    if called:
        by = f"by a callback ({hooks.stopped_by})" if hooks.stopped_by else "by a callback"
    if run.ledger is None or run.charged == run.step:
        return by
    if not called and run.peers.processes == 1:
        return f"{by}; an earlier stop by a callback keeps all {run.charged} steps charged"
    more = "going on costs no more"
    if drawn_again(run.job, run.job.hosted, run.step):
        more = "who goes on draws the epoch under way anew, and is charged for it again"
    return (
        f"{by}: such a stop may depend on what was released, so that all {run.charged} planned "
        f"steps are charged and epsilon is that of the whole plan; {more}"
    )


def settle(run: RunState, ledger: RunLedger, adaptive: bool) -> None:
    """Give back what was reserved and not sent; nothing, where what was released chose the end.

    The run is at its last step. It is `adaptive` if what was released may have chosen that: a
    callback, another process, or a model that left the finite numbers; `tacit.training.hooks` has
    the reason.
    """
    if adaptive:
        _reserve_all(run, ledger)
    ledger.settle(run.step, max(run.step, run.own_paid))


def _reserve_all(run: RunState, ledger: RunLedger) -> None:
    if run.reserved < run.until:
        ledger.reserve(run.reserved, run.until)
    run.paid, run.own_paid = max(run.paid, run.until), max(run.own_paid, run.until)
    run.reserved = max(run.reserved, run.until)


def check_finite(run: RunState) -> None:
    """Stop at a model that is not finite, or absurdly large, before it is saved over a good one.

    Only at one that is released: a stop says something of what it looks at, and everyone sees it.

    Raises:
        DivergenceError: names the model, the step and the last good state.
    """
    released = run.job.config.algorithm.definition.releases.models
    iterates = run.iterates
    if not released:
        iterates = consensus_of(run.job, iterates, run.state).unsqueeze(0)
    _check_models(run, iterates, released)
    if run.averages is not None:
        _check_models(run, run.models if released else run.consensus.unsqueeze(0), released)


def _check_models(run: RunState, models: Tensor, released: bool) -> None:
    # One pass over `[nodes, d]` or `[1, d]`; what is no number is not below any.
    if bool(torch.linalg.vector_norm(models, math.inf) <= LARGEST):
        return
    finite = bool(torch.isfinite(models).all())
    rows = (~(models.abs() <= LARGEST).all(1)).nonzero().flatten().tolist()
    of_nodes = len(models) == len(run.job.hosted) and released
    bad = f"the model of node {run.job.hosted[rows[0]]}" if of_nodes else "the server's model"
    kept = None if run.folder is None else checkpoints.latest(run.folder.path)
    where = "nothing was saved" if kept is None else f"the last good state is {kept}"
    if run.ledger is not None and run.step > run.first:
        settle(run, run.ledger, adaptive=True)
        where += f"; all {run.charged} planned steps stay charged, since what was released ended it"
    raise DivergenceError(
        bad
        + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")
        + (f" has numbers above {LARGEST:g}" if finite else " is no longer finite")
        + f" after step {run.step}: lower algorithm.learning_rate "
        + f"(now {run.job.config.algorithm.options.settled_rate:g}); {where}"
    )


def _diverged(run: RunState, message: str) -> None:
    """Write down that the run diverged, here or in another process."""
    with suppress(TacitError):  # another may have ended before it told what it measured
        take_rows(run)
    run.status, run.message, run.measured = "diverged", message, None
    if run.ledger is not None and run.reserved > run.first:  # of its own model, or of another's
        _reserve_all(run, run.ledger)
    # Of other processes' nodes nothing is known: they are not asked what they have reserved.
    own = {} if run.ledger is None else run.ledger.charged()
    known = {node: own.get(node, ()) for node in run.job.hosted}
    document = result_document(run, known, run.seconds, others="not asked")
    for written in filter(None, (run.folder, run.common_folder)):
        written.write_document(folders.RESULT, document)
    if run.common_folder is None:
        return
    if not run.rows:
        write_private(run.common_folder.metrics, b"")
    write_report(run.common_folder.path)


def result_document(
    run: RunState,
    charged: Mapping[int, Sequence[Interval]],
    seconds: float,
    *,
    others: str,
    calibration: Sequence[CalibrationBin] = (),
) -> ResultDocument:
    """The content of `result.json`: of the steps that each node has reserved, where that is known.

    `others` says where epsilon of another process's node is from, with `{rank}` for its rank.
    """
    job, plan, config, measured = run.job, run.plan, run.job.config, run.measured
    algorithm, nodes = config.algorithm.definition, range(len(plan.nodes))

    more: dict[str, Any] = {}
    features: dict[str, Any] = {}
    before: dict[str, Any] = {}
    if job.features is not None:
        features["features"] = job.features.words()
        before["record_shape"] = job.features.record_shape
    if run.charged > run.step:
        more["charged_steps"] = run.charged
    if plan.release.pairs is not None and run.rows:
        measured_at = [row.step for row in run.rows]
        forecast = consensus_distances(plan, measured_at)
        more["consensus_forecast"] = tuple(zip(measured_at, forecast, strict=True))
    if config.nodes.names is not None:
        more["node_names"] = config.nodes.names
    if config.privacy.guess is not None:
        more["guess"] = tuple(node.guess for node in plan.nodes)
        guesses = [plan.release.right_guess(n, charged.get(n.node, ())) for n in plan.nodes]
        more["right_guess"] = _known(guesses, charged)
    own = dict(zip(job.hosted, run.communication.exchange.bytes_sent.tolist(), strict=True))
    sent = tuple(map(own.get, nodes)) if measured is None else measured.bytes_sent
    counts = [count for count in sent if count is not None]
    scores = None
    if measured is not None and measured.evaluation is not None:
        scores = opened(measured.evaluation, "the scores of a result")
    accuracy = None if scores is None else scores.accuracy
    own_scores = zip(job.metrics, scores.own, strict=True) if scores is not None else ()
    formula = algorithm.claims.formula if plan.release.claims else None
    gone, hosted = gone_ranks(run.peers), frozenset(job.hosted)
    sources = [
        OWN_LEDGER
        if node in hosted
        else f"rank {rank}, left out: as if it had gone on"
        if rank in gone
        else others.format(rank=rank)
        for node, rank in enumerate(job.placement.ranks)
    ]
    last, schedule = max(run.step - 1, 0), plan.mixing.schedule
    claimed, shares = claimed_spent(plan, run.charged), weights.shares(plan.nodes)
    return ResultDocument(
        format_version=1,
        tacit_version=__version__,
        status=run.status,
        message=run.message,
        private=plan.not_private_reason is None,
        not_private_reason=plan.not_private_reason,
        algorithm=AlgorithmNames(name=algorithm.name, title=algorithm.title, paper=algorithm.paper),
        task=TaskNames(
            dataset=config.task.dataset, model=config.task.model, loss=config.task.loss, **features
        ),
        model=ModelShape(
            input_shape=tuple(job.train.first.inputs.shape[1:]), outputs=job.outputs, **before
        ),
        nodes=len(nodes),
        parameters=plan.parameters,
        steps=run.step,
        planned_steps=plan.steps,
        relation=config.privacy.relation if plan.accounted else None,
        trust_model=plan.release.trust_model if plan.accounted else None,
        trust=_trust_terms(run, charged),
        accounting=config.privacy.accounting,
        unit=unit_spent(plan, charged),
        mechanism=mechanism_line(plan),
        epsilon=_known(epsilon_spent(plan, charged), charged),
        epsilon_budget=tuple(node.budget for node in plan.nodes),
        delta=tuple(node.delta for node in plan.nodes),
        claimed_epsilon=claimed,
        claim=PublishedClaim(
            formula=None if formula is None else f"{formula.statement} ({formula.source})",
            reading=None if formula is None else formula.reading,
            conditions=tuple(
                ClaimCondition(text=condition.text, holds=condition.holds)
                for condition in shared_conditions(plan)
            ),
            infinite=math.inf in claimed,
        ),
        audited_epsilon=None,
        audit=None,
        **summaries(scores, job.metrics, job.baselines),
        test_accuracy_by_node=None if accuracy is None else accuracy[:-1],
        test_metrics_by_node={metric.name: row[:-1] for metric, row in own_scores},
        bytes_sent=sum(counts) / len(counts) if len(counts) == len(nodes) else None,
        bytes_sent_by_node=sent,
        seconds=seconds,
        steps_per_second=run.step / seconds if seconds > 0 else 0.0,
        records=tuple(node.records for node in plan.nodes),
        signal_share=tuple(share.signal for share in shares),
        noise_share=tuple(share.noise for share in shares),
        sampling_rate=tuple(node.rate for node in plan.nodes),
        expected_batch=tuple(node.expected_batch for node in plan.nodes),
        noise_multiplier=NoiseMultipliers(
            first=tuple(plan.release.noise_multiplier(node, 0) for node in plan.nodes),
            last=tuple(plan.release.noise_multiplier(node, last) for node in plan.nodes),
        ),
        topology=CommunicationGraph(
            graph=schedule.name,
            names=schedule.names,
            directed=schedule.directed,
            period=schedule.period,
            contraction=plan.contraction,
            edges=tuple(
                tuple(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
                for graph in schedule.graphs
            ),
        ),
        gradient_path=job.model.path,
        warnings=plan.warnings,
        notes=(*plan.notes, *run.notes, *(() if measured is None else measured.notes)),
        not_covered=not_covered(config, plan.unit) if plan.accounted else (),
        epsilon_source=tuple(sources) if plan.accounted else None,
        calibration=tuple(calibration),
        **more,
    )


def _trust_terms(run: RunState, charged: Mapping[int, Sequence[Interval]]) -> TrustTerms | None:
    """What nodes hide behind beside their own noise; None where each relies on itself alone."""
    job, plan, shared = run.job, run.plan, run.plan.release.shared
    if shared is None or not plan.accounted:
        return None
    pairs, hosts = plan.release.pairs, job.placement.ranks
    return TrustTerms(
        colluding=shared.colluding,
        nodes_by_process=tuple(hosts.count(rank) for rank in range(job.placement.processes)),
        keys_signed=job.authenticated,
        own=tuple(node.noise_scale / node.divisor for node in plan.nodes),
        expected_batch=tuple(n.divisor if n.records else 0.0 for n in plan.nodes),
        absent=tuple(n.node for n in plan.nodes if not plan.release.active_steps(n)),
        pairs=() if pairs is None else pairs.pairs,
        deviation=0.0 if pairs is None else pairs.deviation,
        epsilon_by_colluders=tuple(
            _known(row, charged) for row in epsilon_by_colluders(plan, charged)
        ),
    )


def _known(
    spent: Sequence[float | None], charged: Mapping[int, Sequence[Interval]]
) -> tuple[float | None, ...]:
    return tuple(value if node in charged else None for node, value in enumerate(spent))
