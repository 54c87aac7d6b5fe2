"""A plan, a recommendation and the end of a run, for people: what the commands print last."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from tacit.report.documents.plan import (
    PlanDocument,
    PlannedNode,
    PlannedPromise,
    RecommendDocument,
)
from tacit.report.documents.run import ResultDocument
from tacit.report.measures import measure_of
from tacit.report.protection import colluders_table
from tacit.report.trust_words import person_text, unit_meaning
from tacit.report.view import Block, Items, Pairs, Table, Text
from tacit.report.wording import (
    alike,
    bytes_text,
    count_text,
    epsilon_text,
    node_list,
    number_text,
    percent_up_text,
    range_text,
)


@dataclass(frozen=True)
class PlanNames:
    """What people are told of a plan beside its document.

    `title` is that of the algorithm, `model` as the experiment file names it, and `features` are in
    words, if there are any. By `scores` the run is judged, the leading one first. `test_records`
    counts the public ones, None if there are none. `clipped` says that the clipping bound is
    enforced, and not only assumed.
    """

    title: str
    model: str
    features: str | None
    scores: Sequence[str]
    test_records: int | None
    clipped: bool


def plan_blocks(plan: PlanDocument, names: PlanNames) -> list[Block]:
    """What is common to all nodes, then a row for each kind of node."""
    clip, contraction = "none", "not known"
    if plan.clip is not None:
        clip = _range(plan.clip) + ("" if names.clipped else ", assumed: nothing is clipped")
    if plan.contraction is not None:
        contraction = f"{plan.contraction:.4f} (spectral gap {1 - plan.contraction:.4f})"
    rows = (
        ("data set, model", f"{plan.dataset}, {names.model}"),
        *([] if names.features is None else [("features", names.features)]),
        ("trained parameters", f"{plan.parameters:,} (gradients by {plan.gradient_path})"),
        ("judged by", _judged_by(plan, names)),
        ("steps", str(plan.steps)),
        ("graph", f"{plan.graph}, {plan.mixing} weights"),
        ("gossip rounds a step", str(plan.rounds)),
        ("contraction a step", contraction),
        ("bytes sent a node and step", bytes_text(plan.bytes_per_step)),
        ("clipping bound", clip),
        ("mechanism", plan.mechanism or "no noise: NOT PRIVATE"),
        ("relation", plan.relation or "-"),
        ("trust model", plan.trust_model or "-"),
        ("epsilon protects", unit_meaning(plan.unit) if plan.trust_model else "-"),
    )
    blocks: list[Block] = [Pairs(rows, title=f"plan of {names.title}"), _nodes(plan)]
    if plan.colluding is not None and plan.trust_model is not None:
        by_colluders = zip(*(node.epsilon_by_colluders for node in plan.per_node), strict=True)
        deltas = [node.delta for node in plan.per_node]
        blocks.append(colluders_table(by_colluders, deltas, plan.colluding))
    if plan.promise is not None:
        blocks.append(promise_facts(plan.promise))
    blocks += map(Text, plan.notes)
    if plan.promise is not None and plan.promise.needs:
        blocks.append(Text(missing_constants(plan.promise), unbroken=True))
    return [*blocks, *(Text(f"warning: {warning}", unbroken=True) for warning in plan.warnings)]


def _judged_by(plan: PlanDocument, names: PlanNames) -> str:
    """The scores of the run, the leading one with its baseline on the public test records."""
    if names.test_records is None:
        return "nothing: there are no public test records"
    leading, *others = map(measure_of, names.scores)
    baseline = plan.baselines[leading.name]
    told = leading.title
    if baseline is not None:
        told += f" (baseline {leading.text(baseline)})"
    told = ", ".join([told, *(other.title for other in others)])
    return f"{told} on {names.test_records:,} public test records"


def _nodes(plan: PlanDocument) -> Table:
    """A row for the nodes that differ in nothing but their number."""
    key = attrgetter("records", "noise_scale", "budget", "delta", "epsilon", "guess")
    groups = alike(((key(node), node.noise_multiplier[0]), node) for node in plan.per_node)
    shared = plan.colluding is not None
    guessed = any(node.guess is not None for node in plan.per_node)
    shares = len({_shares(node) for node in plan.per_node}) > 1
    # What each column says, and whether it is there.
    columns: dict[str, tuple[bool, Callable[[PlannedNode], str]]] = {
        plan.unit.plural: (True, lambda node: str(node.records)),
        "rate": (True, lambda node: f"{node.rate:.4g}"),
        "noise multiplier": (True, lambda node: _range(node.noise_multiplier)),
        "own multiplier": (shared, lambda node: _range(node.own_noise_multiplier)),
        "noise in mean": (True, lambda node: _range(node.noise_std)),
        "share of model": (shares, lambda node: _shares(node)[0]),
        "share of noise": (shares, lambda node: _shares(node)[1]),
        "budget": (True, _budget),
        "certified epsilon": (True, lambda node: _epsilon(node.epsilon, "-")),
        "certified guess": (guessed, lambda node: epsilon_text(node.right_guess)),
        # No paper claims anything of noise that nodes share.
        "claimed epsilon": (not shared, lambda node: _epsilon(node.claimed, "no claim")),
    }
    cells = {name: cell for name, (is_there, cell) in columns.items() if is_there}
    rows = [
        (
            node_list([node.node for node in group], [node.name for node in group]),
            *(cell(group[0]) for cell in cells.values()),
        )
        for group in groups.values()
    ]
    return Table(("nodes", *cells), rows)


def _range(ends: tuple[float | None, float | None]) -> str:
    return range_text(*ends, "{:.4g}".format)


def _shares(node: PlannedNode) -> tuple[str, str]:
    return (
        f"{node.signal_share:.1%}",
        "-" if node.noise_share is None else f"{node.noise_share:.1%}",
    )


def _budget(node: PlannedNode) -> str:
    if node.guess is not None:
        return f"guess {node.guess:g}"
    epsilon = "-" if node.budget is None else f"{node.budget:g}"
    return "-" if node.delta is None else f"({epsilon}, {epsilon_text(node.delta)})"


def _epsilon(value: float | None, without: str) -> str:
    return without if value is None else epsilon_text(value)


def promise_facts(promise: PlannedPromise) -> Pairs:
    """What the paper promises of the result: its own words."""
    after = f"after {promise.steps} steps, with this noise"
    rows = [("source", promise.source)]
    if promise.bound is not None:
        rows.append((promise.quantity, f"at most {number_text(promise.bound)} {after}"))
    elif promise.evaluated is not None:
        told = f"{number_text(promise.evaluated)} {after}, and what is not evaluated"
        rows.append((promise.quantity, f"at most {told}"))
    for term in promise.terms:
        if term.value is None:
            rows.append((f"- {term.name}", f"not evaluated: {term.reason}"))
        elif len(promise.terms) > 1:
            rows.append((f"- {term.name}", number_text(term.value)))
    others = (
        ("with no theorem, G^2", promise.trivial_bound, "at most {}"),
        ("best number of steps, K*", promise.best_steps, f"{{}} (here {promise.steps})"),
        ("bound there, with the paper's noise", promise.best_bound, "{}"),
        ("order of the bound", promise.order, "{}, without constants"),
    )
    rows += [(name, told.format(number_text(one))) for name, one, told in others if one is not None]
    rows += [
        (name, number_text(value).removesuffix(".0"))
        for name, value in promise.figures.items()
        if value is not None
    ]
    broken = [condition.text for condition in promise.conditions if not condition.holds]
    rows += [
        ("" if number else "conditions not met here", text) for number, text in enumerate(broken)
    ]
    return Pairs(rows, title="what the paper promises under its conditions: not certified")


def missing_constants(promise: PlannedPromise) -> str:
    """Which constants of `[promise]` are missing, in one line."""
    needed = ", ".join(f"promise.{name}" for name in promise.needs)
    return f"note: what {promise.source} promise of this run can be told with {needed}"


def result_blocks(result: ResultDocument, out: Path, notes: Sequence[str]) -> list[Block]:
    """The short table at the end of a run; `notes` say what else happened to it."""
    measure, scores = result.leading
    shown = {} if scores is None else {measure: scores}
    rows: list[tuple[str, str]] = []
    if scores is not None:
        rows += [
            (f"test {measure.title}, mean over nodes", measure.text(scores.mean)),
            (f"test {measure.title}, worst node", measure.text(scores.worst)),
            (f"test {measure.title}, consensus model", measure.text(scores.consensus)),
        ]
        if scores.baseline is not None:
            rows.append((f"test {measure.title}, baseline", measure.text(scores.baseline)))
    for name, others in list(result.test_metrics.items())[1:]:
        other = measure_of(name)
        shown[other] = others
        rows.append((f"test {other.title}, mean over nodes", other.text(others.mean)))
    rows += _spent(result)
    rows.append(("bytes sent a node", bytes_text(result.bytes_sent)))
    rows.append(("steps", f"{result.steps} of {result.planned_steps} in {result.seconds:.1f} s"))
    told = filter(None, (own.no_better(of.mean, of.baseline) for own, of in shown.items()))
    title = f"{result.algorithm_names.title} on {result.task.dataset}"
    bare = [] if result.private else [f"NOT PRIVATE: {result.not_private_reason}"]
    ended = [] if result.message is None else [f"{result.status}: {result.message}"]
    return [
        Pairs(rows, title=f"{title}, {result.node_count} nodes"),
        *(Text(f"note: {text}", unbroken=True) for text in told),
        *(Text(text, style="bold red") for text in bare),
        *(Text(f"note: {note}") for note in notes),
        *map(Text, ended),
        Text(f"report: {out / 'report.html'}", unbroken=True),
    ]


def _spent(result: ResultDocument) -> Iterator[tuple[str, str]]:
    """What was certified, and what the paper claims or whom the nodes trust."""
    spent = [value for value in result.epsilon if value is not None]
    if not spent:
        return
    deltas = [delta for delta in result.delta if delta is not None]
    at = f" (delta {range_text(min(deltas), max(deltas), '{:g}'.format)})"
    yield f"epsilon certified, most{at}", epsilon_text(max(spent))
    yield "epsilon certified, least", epsilon_text(min(spent))
    if result.guesses:
        yield "right guess certified, most", percent_up_text(max(result.guesses))
    yield "epsilon protects", f"one {result.unit.name} of one node"
    if result.unit.apart:
        yield f"epsilon of the {result.unit.person}", person_text(result.unit)
    if result.trust is not None:
        collude = count_text(result.trust.colluding, "node")
        yield "trust model", f"{result.trust_model}, {collude} may collude"
        return
    claims = [claimed for claimed in result.claimed_epsilon if claimed is not None]
    claims += [math.inf] if result.claim.infinite else []
    claimed = range_text(min(claims), max(claims), epsilon_text) if claims else "no claim"
    yield "epsilon claimed by the paper, same noise", claimed


def recommend_blocks(document: RecommendDocument) -> list[Block]:
    """What is proposed, then the forecasts, then what is to be known before it is used."""
    proposed = [
        (row.key, json.dumps(row.value, ensure_ascii=False), row.reason)
        for row in document.proposed
    ]
    own = {"server": "all-messages"}.get(document.trust_model, document.trust_model)
    forecasts = [
        (
            f"{row.trust_model}{' (chosen)' if row.trust_model == own else ''}",
            *map(number_text, (row.noise_norm, row.signal, row.noise_over_signal)),
            str(row.rounds),
        )
        for row in document.forecasts
    ]
    missing = [f"{name} cannot be had here: {why}" for name, why in document.unavailable.items()]
    title, other = f"proposed, for {about(document)}", "noise against signal, by who sees what"
    columns = ("key", "value", "why")
    words = ("trust model", "noise over C", "signal over C", "noise over signal", "rounds")
    return [
        Table(columns, proposed, title=title, left=columns),
        Table(words, forecasts, title=other, left=words),
        Items(missing, lead="note: "),
        Items(document.conflicts, lead="conflict: "),
        Items(document.warnings, lead="warning: "),
    ]


def about(document: RecommendDocument) -> str:
    """What a recommendation is for, in a few words."""
    least, most = document.records
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    nodes = count_text(document.nodes, "node")
    return f"{nodes} of {each} records and {document.parameters:,} parameters"
