"""What the command line shows: the progress line, the tables, and their data as JSON."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.algorithms import ALGORITHMS
from tacit.analysis.promise import planned_promise, promise_facts, promise_line
from tacit.cli.interrupts import interrupt
from tacit.cli.logs import as_json_lines, say
from tacit.privacy.mechanisms.clipping import Clipping
from tacit.report.documents.plan import PlanDocument, PlannedNode
from tacit.report.measures import ACCURACY, LOSS, measure_of
from tacit.report.protection import colluders_table
from tacit.report.view import Block, Pairs, Table, Text
from tacit.report.wording import (
    bytes_text,
    count_text,
    epsilon_text,
    node_list,
    percent_text,
)
from tacit.training import weights
from tacit.training.budget import epsilon_by_colluders
from tacit.training.plan import NodePlan, Plan
from tacit.training.prepare import Job
from tacit.training.run_folder.result import (
    Result,
    bytes_per_step,
    mechanism_line,
    message_bytes,
)

if TYPE_CHECKING:
    from tacit.training.hooks import Progress as Moment

DONE_ALREADY = "this run was done already: nothing was trained, and nothing charged"


@contextmanager
def stop_signals(*, hidden: bool = False, leaves: bool = False) -> Iterator[Callable[[], bool]]:
    """Within, the first SIGINT, SIGTERM or SIGHUP asks for a clean stop; a second one interrupts.

    So does SIGHUP, of a terminal that is closed, unless it is ignored (`nohup`); a second one says
    nothing new, since system and shell may each send one.

    Args:
        hidden: nothing is said of it.
        leaves: whether SIGTERM ends this process at once, as the system sends it before it goes
            down: the others wait, and this one comes back to where it was.

    Yields what tells whether a stop was asked for.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        else:
            signal.signal(number, interrupt)
        stopping = "stopping after this step; once more to interrupt at once"
        if not say(stopping) and not hidden:
            sys.stderr.write(f"\n{stopping}\n")

    received = [signal.SIGINT] if leaves else [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        received.append(signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in received}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _leave_closed_terminal()  # where SIGHUP is ignored, nothing else has told


def _leave_closed_terminal() -> None:
    """Standard output and error go nowhere from now on, if they went to a terminal that is gone."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextmanager
def progress_line(
    *, hidden: bool, warnings: Sequence[str] = ()
) -> Iterator[Callable[[Moment], None]]:
    """One live line on a terminal; a plain line at every tenth of the run elsewhere.

    Warnings come first, hidden or not, but not before the first step: a run that is refused says
    one line only. Where log lines are JSON there is no progress line, and warnings are logged.
    Yields what shows where the run stands.
    """
    console = Console(stderr=True)
    coming = list(warnings)
    hidden = hidden or as_json_lines()
    show = _plain_lines() if not hidden else lambda moment: None
    bar = Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=hidden or not console.is_terminal,
        transient=True,
    )
    if not bar.disable:
        show = _live_line(bar)

    noted = hidden and not as_json_lines()

    def update(moment: Moment) -> None:
        nonlocal noted
        with suppress(OSError):  # whoever read this is gone; the run is not
            if not noted:
                coming.extend(moment.notes)
                noted = True
            while coming:
                line = coming.pop(0)
                if not say(line, logging.WARNING):
                    console.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)
            show(moment)

    with bar:
        yield update


def _live_line(bar: Progress) -> Callable[[Moment], None]:
    task = bar.add_task("", total=None, state="", visible=False)

    def show(moment: Moment) -> None:
        state = _state(moment)
        bar.update(task, completed=moment.step, total=moment.steps, state=state, visible=True)

    return show


def _plain_lines() -> Callable[[Moment], None]:
    shown = -1

    def show(moment: Moment) -> None:
        nonlocal shown
        tenth = 10 * moment.step // moment.steps
        if tenth == shown:
            return
        shown = tenth
        remaining = (moment.steps - moment.step) / max(moment.steps_per_second, 1e-9)
        sys.stderr.write(
            f"step {moment.step}/{moment.steps}  {_state(moment)}  {remaining:.0f} s left\n"
        )

    return show


def _state(moment: Moment) -> str:
    parts = [
        None
        if moment.metric is None
        else f"{measure_of(moment.metric).title} {measure_of(moment.metric).text(moment.score)}",
        None if moment.loss is None else f"loss {moment.loss:.4f}",
        None if moment.accuracy is None else f"accuracy {percent_text(moment.accuracy)}",
        None if moment.epsilon is None else f"epsilon {epsilon_text(moment.epsilon)}",
        f"{moment.steps_per_second:.1f} steps/s",
    ]
    return "  ".join(part for part in parts if part)


def closing_line(result: Result, rank: int, nothing_made: bool) -> None:
    """Say what the table does not: that nothing was left to do, or how another rank ended.

    Args:
        result: of this process.
        rank: of this process.
        nothing_made: whether a resumed run made no step.
    """
    if nothing_made and result.status == "done":
        tell(DONE_ALREADY)
    if rank:
        nodes = node_list(result.job.hosted)
        tell(
            f"rank {rank}: {result.status} after {result.steps} of {result.plan.steps} steps; its "
            f"nodes are {nodes}, and the results are in the run folder of rank 0"
        )


def tell(line: str) -> None:
    """Say a line on standard error, in the form that all lines have there."""
    if not say(line):
        sys.stderr.write(f"{line}\n")


def result_blocks(result: Result) -> list[Block]:
    """The short table at the end of a run."""
    plan = result.plan
    rows: list[tuple[str, str]] = []
    measure, scores = result.leading
    if scores is not None:
        rows += [
            (f"test {measure.title}, mean over nodes", measure.text(scores.mean)),
            (f"test {measure.title}, worst node", measure.text(scores.worst)),
            (f"test {measure.title}, consensus model", measure.text(scores.consensus)),
        ]
        if scores.baseline is not None:
            rows.append((f"test {measure.title}, baseline", measure.text(scores.baseline)))
    shown = {} if scores is None else {measure: scores}
    for name, others in list(result.test_metrics.items())[1:]:
        other = measure_of(name)
        shown[other] = others
        rows.append((f"test {other.title}, mean over nodes", other.text(others.mean)))
    spent = [value for value in result.epsilon if value is not None]
    if spent:
        deltas = sorted({node.delta for node in plan.nodes if node.delta is not None})
        at = f" (delta {_spread(deltas, '{:g}'.format)})"
        rows.append((f"epsilon certified, most{at}", epsilon_text(max(spent))))
        rows.append(("epsilon certified, least", epsilon_text(min(spent))))
        shared = plan.release.shared
        if shared is None:
            claims = sorted({row.claimed for row in result.claims if row.claimed is not None})
            claimed = _spread(claims, epsilon_text) if claims else "no claim"
            rows.append(("epsilon claimed by the paper, same noise", claimed))
        else:
            collude = count_text(shared.colluding, "node")
            rows.append(("trust model", f"{plan.release.trust_model}, {collude} may collude"))
    rows.append(("bytes sent a node", bytes_text(sum(result.bytes_sent) / len(result.bytes_sent))))
    rows.append(("steps", f"{result.steps} of {plan.steps} in {result.seconds:.1f} s"))
    title = f"{plan.config.algorithm.definition.title} on {plan.config.task.dataset}, "
    title += f"{len(plan.nodes)} nodes"
    told = filter(None, (own.no_better(of.mean, of.baseline) for own, of in shown.items()))
    bare = [] if result.private else [f"NOT PRIVATE: {plan.not_private_reason}"]
    ended = [] if result.message is None else [f"{result.status}: {result.message}"]
    written = [] if result.out is None else [f"report: {result.out / 'report.html'}"]
    return [
        Pairs(rows, title=title),
        *(Text(f"note: {text}", unbroken=True) for text in told),
        *(Text(text, style="bold red") for text in bare),
        *(Text(f"note: {note}") for note in result.notes),
        *map(Text, ended),
        *(Text(text, unbroken=True) for text in written),
    ]


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    if not values:
        return "-"
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def plan_document(job: Job) -> PlanDocument:
    """The plan as a document."""
    plan = job.plan
    size = job.dtype.itemsize
    per_step = bytes_per_step(plan, message_bytes(plan, size) / size, size)
    bounds, last = plan.release.clip.bounds, plan.steps - 1
    shared, pairs = plan.release.shared, plan.release.pairs
    by_colluders = epsilon_by_colluders(plan)
    return PlanDocument(
        algorithm=plan.config.algorithm.name,
        dataset=plan.config.task.dataset,
        nodes=len(plan.nodes),
        parameters=plan.parameters,
        steps=plan.steps,
        relation=plan.config.privacy.relation if plan.accounted else None,
        trust_model=plan.release.trust_model if plan.accounted else None,
        colluding=None if shared is None else shared.colluding,
        pair_noise=None if pairs is None else pairs.ratio,
        mechanism=mechanism_line(plan),
        clip=None if bounds is None else (bounds[0], bounds[last]),
        graph=plan.mixing.schedule.name,
        mixing=plan.mixing.kind,
        rounds=plan.rounds,
        contraction=plan.contraction,
        spectral_gap=None if plan.contraction is None else 1 - plan.contraction,
        bytes_per_step=per_step.mean().item(),
        gradient_path=job.model.path,
        metrics=tuple(metric.name for metric in job.metrics),
        baselines=job.baselines.by_name(job.metrics),
        warnings=plan.warnings,
        notes=plan.notes,
        promise=planned_promise(job),
        per_node=tuple(
            _planned_node(plan, node, share, tuple(row[node.node] for row in by_colluders))
            for node, share in zip(plan.nodes, weights.shares(plan.nodes), strict=True)
        ),
    )


def _planned_node(
    plan: Plan, node: NodePlan, share: weights.Share, by_colluders: tuple[float | None, ...]
) -> PlannedNode:
    release, last, names = plan.release, plan.steps - 1, plan.config.nodes.names
    more: dict[str, Any] = {} if names is None else {"name": names[node.node]}
    first_std, last_std = (release.noise_std(node, k) / node.divisor for k in (0, last))
    return PlannedNode(
        **asdict(node),
        signal_share=share.signal,
        noise_share=share.noise,
        noise_multiplier=(release.noise_multiplier(node, 0), release.noise_multiplier(node, last)),
        own_noise_multiplier=(release.own_multiplier(node, 0), release.own_multiplier(node, last)),
        noise_std=(first_std, last_std),
        epsilon_by_colluders=by_colluders,
        **more,
    )


def plan_blocks(job: Job, document: PlanDocument) -> list[Block]:
    """The plan for people: what is common to all nodes, then a row for each kind of node."""
    plan = job.plan
    features = () if job.features is None else (("features", job.features.words()),)
    contraction, factor = "not known", plan.contraction
    if factor is not None:
        contraction = f"{factor:.4f} (spectral gap {1 - factor:.4f})"
    rows = (
        ("data set, model", f"{plan.config.task.dataset}, {plan.config.task.model}"),
        *features,
        ("trained parameters", f"{plan.parameters:,} (gradients by {job.model.path})"),
        ("judged by", _judged_by(job)),
        ("steps", str(plan.steps)),
        ("graph", f"{document.graph}, {document.mixing} weights"),
        ("gossip rounds a step", str(plan.rounds)),
        ("contraction a step", contraction),
        ("bytes sent a node and step", bytes_text(document.bytes_per_step)),
        ("clipping bound", _clipping(plan.release.clip)),
        ("mechanism", document.mechanism or "no noise: NOT PRIVATE"),
        ("relation", document.relation or "-"),
        ("trust model", document.trust_model or "-"),
    )
    shared = plan.release.shared is not None
    # No paper claims anything of noise that nodes share.
    kind = ("own multiplier",) if shared else ()
    shares = tuple(map(_share_cells, weights.shares(plan.nodes)))
    shares = shares if len(set(shares)) > 1 else ()
    parts = ("share of model", "share of noise") if shares else ()
    headings = ("nodes", "records", "rate", "noise multiplier", *kind, "noise in mean", *parts)
    claim = () if shared else ("claimed epsilon",)
    headings = (*headings, "budget", "certified epsilon", *claim)
    cells = [
        _plan_row(plan, numbers, node, shares[node.node] if shares else ())
        for numbers, node in _groups(plan)
    ]
    blocks: list[Block] = [
        Pairs(rows, title=f"plan of {plan.config.algorithm.definition.title}"),
        Table(headings, cells),
    ]
    if shared and plan.accounted:
        by_colluders = zip(*(node.epsilon_by_colluders for node in document.per_node), strict=True)
        deltas = [node.delta for node in plan.nodes]
        blocks.append(colluders_table(by_colluders, deltas, document.colluding or 0))
    promise = document.promise
    line = None if promise is None else promise_line(promise)
    return [
        *blocks,
        *([] if promise is None else [promise_facts(promise)]),
        *map(Text, plan.notes),
        *([] if line is None else [Text(line, unbroken=True)]),
        *(Text(f"warning: {warning}", unbroken=True) for warning in plan.warnings),
    ]


def _judged_by(job: Job) -> str:
    """The leading score of the run, with its baseline on the public test records."""
    if job.test is None:
        return "nothing: there are no public test records"
    known = job.baselines
    names = [measure_of(metric.name) for metric in job.metrics]
    pairs = list(zip(names, known.metrics, strict=True))
    if not pairs:
        pairs = [(LOSS, known.loss)]
        if job.loss.accuracy is not None:
            pairs = [(ACCURACY, known.accuracy)]
    (measure, baseline), *others = pairs
    told = measure.title
    if baseline is not None:
        told += f" (baseline {measure.text(baseline)})"
    told = ", ".join([told, *(other.title for other, _ in others)])
    return f"{told} on {len(job.test):,} public test records"


def _plan_row(
    plan: Plan, numbers: Sequence[int], node: NodePlan, share: tuple[str, ...]
) -> tuple[str, ...]:
    release, ends, names = plan.release, (0, plan.steps - 1), plan.config.nodes.names
    own = () if release.shared is None else ([release.own_multiplier(node, k) for k in ends],)
    return (
        node_list(numbers, [names[number] for number in numbers] if names else ()),
        str(node.records),
        f"{node.rate:.4g}",
        _first_last([release.noise_multiplier(node, k) for k in ends]),
        *map(_first_last, own),
        _first_last([release.noise_std(node, k) / node.divisor for k in ends]),
        *share,
        _budget(node),
        "-" if node.epsilon is None else epsilon_text(node.epsilon),
        *(() if own else ("no claim" if node.claimed is None else epsilon_text(node.claimed),)),
    )


def _share_cells(share: weights.Share) -> tuple[str, str]:
    return f"{share.signal:.1%}", "-" if share.noise is None else f"{share.noise:.1%}"


def _budget(node: NodePlan) -> str:
    """Epsilon and delta that must hold; a dash for what was not asked."""
    epsilon = "-" if node.budget is None else f"{node.budget:g}"
    return "-" if node.delta is None else f"({epsilon}, {epsilon_text(node.delta)})"


def _groups(plan: Plan) -> list[tuple[list[int], NodePlan]]:
    """Nodes that differ in nothing but their number, together."""
    groups: dict[tuple[Any, ...], list[NodePlan]] = {}
    for node in plan.nodes:
        counted = plan.release.noise_multiplier(node, 0)
        key = (node.records, node.noise_scale, node.budget, node.delta, node.epsilon, counted)
        groups.setdefault(key, []).append(node)
    return [([node.node for node in group], group[0]) for group in groups.values()]


def _clipping(clip: Clipping) -> str:
    if clip.bounds is None:
        return "none"
    shown = _first_last((clip.bounds[0], clip.bounds[-1]))
    return shown if clip.enforced else f"{shown}, assumed: nothing is clipped"


def _first_last(values: Sequence[float]) -> str:
    first, last = f"{values[0]:.4g}", f"{values[-1]:.4g}"
    return first if first == last else f"{first} to {last}"


def algorithms_document() -> list[dict[str, Any]]:
    """The table of algorithms as JSON-ready data."""
    return [
        {
            "name": row.name,
            "title": row.title,
            "paper": row.paper,
            "summary": row.summary,
            "setting": row.setting,
            "weights": row.graph.weights,
            "private": row.private,
            "claim": None if row.claims.formula is None else row.claims.formula.statement,
            "options": {key: field.default for key, field in row.options.model_fields.items()},
        }
        for row in ALGORITHMS.values()
    ]


def algorithms_blocks() -> list[Block]:
    """The table of algorithms for people."""
    rows = [
        (
            row.name,
            "yes" if row.private else "no",
            row.summary,
            row.graph.weights.removesuffix("-stochastic"),
            row.paper,
            "-" if row.claims.formula is None else row.claims.formula.source,
        )
        for row in ALGORITHMS.values()
    ]
    columns = ("name", "private", "what it is", "mixing stochastic", "paper", "its claim")
    return [Table(columns, rows, left=columns)]
