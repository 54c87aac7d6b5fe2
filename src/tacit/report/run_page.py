"""The page of a run: what it says in words and numbers, and which charts it shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tacit.report.audit_words import AuditWords, audit_words, in_doubt
from tacit.report.documents.metrics import Scores
from tacit.report.documents.run import NodeRow, RecordedRun, ResultDocument
from tacit.report.html import html
from tacit.report.measures import ACCURACY, LOSS, Measure, measure_of
from tacit.report.protection import (
    LEVELS,
    MOST_SHOWN,
    Protection,
    epsilon_words,
    lower_words,
    protection,
    size_note,
)
from tacit.report.run_charts import run_charts
from tacit.report.trust_words import RELATIONS, SIMULATED, TRUST_MODELS, TrustWords, trust_words
from tacit.report.view import (
    Banner,
    Block,
    Heading,
    Items,
    Pairs,
    Table,
    Text,
    Tile,
    Tiles,
    Titled,
    columns,
    folded,
    texts,
)
from tacit.report.wording import (
    NOTHING,
    bytes_text,
    count_text,
    duration_text,
    epsilon_text,
    node_list,
    number_text,
    range_text,
)

_STATUS_BANNERS = {
    "stopped": ("warn", "Stopped before the end"),
    "budget-exhausted": ("warn", "Ended early: a privacy budget was used up"),
    "diverged": ("bad", "Diverged: a model left the finite numbers"),
}
_NARROW = "\u202f"


def run_page(run: RecordedRun) -> str:
    """Give the page of a run as HTML."""
    result, trust, rows = run.result, _trust(run.result), len(run.result.nodes)
    recorded = result.audit
    audit = None if recorded is None else audit_words(recorded, result.audited_epsilon)
    trial = f"A trial of a search: {result.choosing}." if result.choosing else ""
    highest = bytes_text(_highest(row.bytes_sent for row in result.nodes))
    speed = f"{number_text(result.steps_per_second)} steps a second"
    named = f"{result.algorithm_names.title} on {result.task.dataset}, {count_text(rows, 'node')}"
    nothing = texts(["Nothing is listed for this run."])
    blocks: list[Block] = [
        Heading("tacit run report", named, result.algorithm_names.paper),
        *_banners(result, None if audit is None else audit.alarm),
        Tiles(
            [
                _score_tile(result),
                _epsilon_tile(result, audit),
                _claim_tile(result),
                _audit_tile(result),
                Tile(
                    "Sent by a node, mean", bytes_text(result.bytes_sent), f"highest node {highest}"
                ),
                Tile("Time", duration_text(result.seconds), f"{result.steps:,} steps · {speed}"),
            ]
        ),
        columns(
            "What this epsilon means"
            if result.certified is not None
            else "Why there is no epsilon",
            texts([*_meaning(result), trial]),
            "Not covered by epsilon",
            [Items(result.not_covered)] if result.not_covered else nothing,
        ),
    ]
    if trust is not None:
        words, aside = (
            texts([*trust.texts, *trust.limits]),
            "Certified epsilon by number of colluders",
        )
        blocks.append(columns("Whom this rests on", words, aside, [trust.table]))
    asked = []
    if audit is not None:
        limits = "What an audit does not show"
        blocks.append(
            columns("What the audit found", audit.blocks(), limits, [Items(audit.limits)])
        )
        if audit.questions:
            title = f"What the audit asked ({len(audit.questions)})"
            asked = [folded(title, Items(audit.questions, "questions"))]
    blocks += [
        *_claim_section(result),
        Text("The charts need JavaScript; the numbers below and above them do not.", "noscript"),
        *(Titled(title, charts, "charts") for title, charts in run_charts(run)),
        Titled("The run", [Pairs([*_facts(result), *_noise_facts(run)])], "card"),
        Titled(
            "Details",
            [
                folded(f"Every node ({rows:,})", _node_table(result), rows=rows),
                *asked,
                folded("The resolved experiment (config.toml)", Text(run.config, "pre")),
            ],
        ),
    ]
    return html(blocks, f"Written by tacit {result.tacit_version} from the run folder alone.")


def _claim_section(result: ResultDocument) -> list[Block]:
    """What the paper claims, and on which conditions; nothing where it claims nothing."""
    claim, conditions = result.claim, result.claim.conditions
    if claim.formula is None and claim.reading is None and not conditions:
        return []
    checked = texts(["The paper states none that can be checked."])
    if conditions:
        told = [f"{own.text}: {'holds' if own.holds else 'does not hold'}" for own in conditions]
        marks = ["\u2713" if own.holds else "\u2717" for own in conditions]
        checked = [Items(told, "conditions", names=marks)]
    formula = [Text(claim.formula, "code")] if claim.formula else []
    claimed = [*formula, *texts([claim.reading or "", _comparison(result)])]
    return [columns("What the paper claims", claimed, "Conditions of the claim", checked)]


def _why_not_private(result: ResultDocument) -> str | None:
    """Say why no guarantee holds for the run, or `None` where one holds for every node."""
    if not result.private:
        return result.not_private_reason or "the run gives no reason"
    bare = sum(row.epsilon is None or row.delta is None for row in result.nodes)
    if bare:
        return f"no epsilon is certified for {bare:,} of {len(result.nodes):,} nodes"
    return None


def _banners(result: ResultDocument, alarm: Banner | None) -> list[Banner]:
    """An audit's alarm, the verdict on privacy, how the run ended, which budgets are exceeded."""
    mechanism, nodes, trust = result.mechanism or "", len(result.nodes), _trust(result)
    reason = _why_not_private(result)
    if reason is not None:
        verdict = Banner("bad", f"NOT PRIVATE: {reason}", [mechanism])
    else:
        epsilon = epsilon_words(result.certified)
        over = f", the highest of {nodes:,} nodes" if nodes > 1 else ""
        strength = _protection(result)
        detail = (
            f"Certified epsilon {epsilon} at {_delta_text(result)}{over}. A blind guess is right "
            f"with 50{_NARROW}%. {mechanism}"
        )
        told = strength.sentence() if trust is None else strength.sentence(trust.observer)
        verdict = Banner(strength.kind, told, [detail])
        if alarm is not None:
            verdict = Banner("warn", in_doubt(told), [detail])
    banners = [verdict] if alarm is None else [alarm, verdict]
    if trust is not None and trust.simulated:
        banners.append(SIMULATED)
    if result.status in _STATUS_BANNERS:
        kind, words = _STATUS_BANNERS[result.status]
        headline = f"{words}: {result.steps:,} of {result.planned_steps:,} steps were completed"
        banners.append(Banner(kind, headline, [result.message or ""]))
    exceeded = sum(row.is_over_budget for row in result.nodes)
    if exceeded:
        headline = f"The certified epsilon exceeds the budget of {exceeded:,} of {nodes:,} nodes"
        detail = f"The noise was set by {result.accounting} accounting."
        banners.append(Banner("warn", headline, [detail]))
    measure, scores = result.leading
    told = "" if scores is None else measure.no_better(scores.mean, scores.baseline)
    if told:
        headline = f"Nothing was learned that shows: {told}"
        banners.append(Banner("warn", headline))
    return banners


def _delta_text(result: ResultDocument) -> str:
    deltas = {row.delta for row in result.nodes}
    highest = epsilon_text(_highest(deltas))
    return f"delta {highest}" if len(deltas) == 1 else f"delta {highest} or less"


def _score_tile(result: ResultDocument) -> Tile:
    measure, scores = result.leading
    if scores is None:
        return Tile("Test accuracy", "not measured", "there was no test set")
    others = [
        f"worst node {measure.text(scores.worst)}",
        f"consensus {measure.text(scores.consensus)}",
    ]
    if scores.baseline is not None:
        others.append(f"baseline {measure.text(scores.baseline)}")
    label = f"Test {measure.title}, mean over nodes"
    return Tile(label, measure.text(scores.mean), " · ".join(others))


def _epsilon_tile(result: ResultDocument, audit: AuditWords | None) -> Tile:
    if result.certified is None:
        return Tile("Certified epsilon", "none", "nothing bounds what was leaked")
    value = epsilon_words(result.certified)
    if _why_not_private(result) is not None:
        return Tile("Certified epsilon", value, "does not hold: this run is not private", "void")
    if audit is not None and audit.alarm is not None:
        return Tile("Certified epsilon", value, "in doubt: an audit raised an alarm", "void")
    lowest = min(epsilon for epsilon in result.epsilon if epsilon is not None)
    note = f"lowest node {epsilon_words(lowest)} · {_delta_text(result)}"
    if result.certified > MOST_SHOWN:
        note += " · this is no protection"
    return Tile("Certified epsilon, highest node", value, note)


def _claim_tile(result: ResultDocument) -> Tile:
    label = "Claimed epsilon, highest node"
    claimed = result.claimed
    if result.claim.infinite:
        return Tile(label, "infinite", "the paper's formula gives no bound here")
    if claimed is None:
        return Tile("Claimed epsilon", "none", "no published formula applies")
    note = "by the paper's formula, not proved for this run"
    if claimed > MOST_SHOWN:
        note += "; this would be no protection"
    return Tile(label, epsilon_words(claimed), note)


def _audit_tile(result: ResultDocument) -> Tile:
    if result.audited_epsilon is None or result.audit is None:
        return Tile("Audited epsilon", "not run", "no attack was tried on this run")
    audit = result.audit
    value = f"at least {lower_words(result.audited_epsilon)}"
    verdict = "ALARM, see above" if audit.failures else audit.verdict
    note = f"at delta {audit.delta:g}: {verdict}; {audit.claim_verdict}"
    return Tile("Audited epsilon", value, note)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _meaning(result: ResultDocument) -> list[str]:
    reason = _why_not_private(result)
    if reason is None:
        return [_strength(result), _scope(result)]
    if result.certified is None:
        return [
            f"No epsilon is certified for this run: {reason}. Whoever sees its messages may learn "
            "anything about its records."
        ]
    return [
        f"The epsilon on this page does not hold for this run: {reason}. It is what the same "
        "mechanism would cost if that were not so: good for comparing experiments, but not a "
        "guarantee, and it must not be reported as one.",
        _scope(result),
    ]


def _scope(result: ResultDocument) -> str:
    trust = f"The trust model is “{result.trust_model}”" if result.trust_model else ""
    observer = TRUST_MODELS.get(result.trust_model or "")
    trust += f": {observer}. " if observer else ". " if trust else ""
    relation = ""
    if result.relation is not None:
        neighbours = RELATIONS.get(result.relation, "it is decided which data sets are neighbours")
        relation = f"By the relation {result.relation}, {neighbours}. "
    return (
        f"The unit of protection is one record of one node. {relation}{trust}"
        "A person with several records is protected less."
    )


def _trust(result: ResultDocument) -> TrustWords | None:
    """What nodes rely on each other for; None where each relies on itself alone."""
    if result.trust is None or result.trust_model is None:
        return None
    return trust_words(result.trust_model, result.trust, result.delta)


def _protection(result: ResultDocument) -> Protection:
    """What the guarantee of the weakest node is worth; every node must have one."""
    return protection(
        (row.epsilon, row.delta)
        for row in result.nodes
        if row.epsilon is not None and row.delta is not None
    )


def _strength(result: ResultDocument) -> str:
    strength = _protection(result)
    return (
        "Someone who sees everything the trust model lets an observer see, knows all else, and "
        "must guess which of two neighbouring data sets a node has, at even odds, is right with "
        f"probability {strength.right_guess} at most, at the node with the weakest guarantee "
        f"(50{_NARROW}% is a blind guess). This page calls that {strength.words.lower()}: {LEVELS} "
        "Delta is the part of the probability that the bound by epsilon may miss."
    )


def _comparison(result: ResultDocument) -> str:
    """Compare the paper's claim with what is certified; empty where either is missing."""
    claimed, certified = result.claimed, result.certified
    if claimed is None or certified is None or result.claim.infinite:
        return ""
    numbers = f"Claimed {epsilon_words(claimed)}, certified {epsilon_words(certified)}"
    if certified > claimed:
        return f"{numbers}: the claim is lower than what could be proved for this mechanism."
    return f"{numbers}: what is proved is no weaker than the claim."


def _facts(result: ResultDocument) -> list[tuple[str, str]]:
    """List the settings and outcomes that have no place elsewhere."""
    topology, named = result.topology, result.task.features
    direction = "directed" if topology.directed else "undirected"
    turns = f", {topology.period} graphs in turn" if topology.period > 1 else ""
    return [
        ("Algorithm", result.algorithm_names.name),
        ("Data set", result.task.dataset),
        *([("Features", f"{named}: a fixed public map of each record")] if named else []),
        ("Model", f"{result.task.model}, {result.parameters:,} parameters"),
        ("Loss", result.task.loss),
        ("Steps", f"{result.steps:,} of {result.planned_steps:,} planned"),
        ("Records", _records_text(result.nodes)),
        ("Graph", f"{topology.graph}, {direction}{turns}"),
        (
            "Contraction",
            "not known"
            if topology.contraction is None
            else f"{number_text(topology.contraction)} a step (0: all average at once, 1: never)",
        ),
        *_score_facts(result),
        ("Accounting", result.accounting),
        ("Relation", result.relation or NOTHING),
        ("Trust model", result.trust_model or NOTHING),
    ]


def _noise_facts(run: RecordedRun) -> list[tuple[str, str]]:
    """The noise that was added, of which there is a chart only where it changes."""
    known = [line.noise_std for line in run.measurements if line.noise_std is not None]
    if not known:
        return [("Noise", "none was added, or its level was not recorded")]
    norm = number_text(known[-1] * math.sqrt(run.result.parameters))
    told = (
        f"{range_text(known[0], known[-1])} in one coordinate of a mean gradient, about {norm} "
        "in all together at the end"
    )
    trust = run.result.trust
    if trust is not None and trust.deviation:
        ratio = trust.deviation / math.sqrt(math.fsum(own**2 for own in trust.own) / len(trust.own))
        told += f"; the noise of a pair is {number_text(ratio)} times that, and cancels in the mean"
    return [("Noise", told)]


def _records_text(nodes: Sequence[NodeRow]) -> str:
    counts = [row.records for row in nodes]
    low, high = min(counts), max(counts)
    a_node = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{sum(counts):,} in all, {a_node} a node"


def _score_facts(result: ResultDocument) -> list[tuple[str, str]]:
    """Every score of the run with its baseline, the leading one first."""
    scores: dict[Measure, Scores | None] = {
        measure_of(name): found for name, found in result.test_metrics.items()
    }
    if result.test_accuracy is not None:
        scores.setdefault(ACCURACY, result.test_accuracy)
    scores[LOSS] = result.test_loss
    return [
        (f"Test {measure.title}", _scores_text(measure, found)) for measure, found in scores.items()
    ]


def _scores_text(measure: Measure, scores: Scores | None) -> str:
    if scores is None:
        return NOTHING
    told = (
        f"mean {measure.text(scores.mean)}, worst node {measure.text(scores.worst)}, "
        f"consensus {measure.text(scores.consensus)}"
    )
    if scores.baseline is None:
        return told
    worse = "no better than a" if measure.no_better(scores.mean, scores.baseline) else "a"
    return f"{told}; {worse} model that ignores its inputs {measure.text(scores.baseline)}"


_COLUMNS = (
    "node",
    "records",
    "share of model",
    "share of noise",
    "sampling rate",
    "batch",
    "noise multiplier",
    "delta",
    "budget",
    "certified epsilon",
    "claimed epsilon",
    "sent",
)
_SCORE = len(_COLUMNS) - 1  # where the column of the leading score stands


def _node_table(result: ResultDocument) -> Table:
    over = {
        (place, "certified epsilon") for place, row in enumerate(result.nodes) if row.is_over_budget
    }
    measure, _ = result.leading
    rows = [_node_cells(row, measure) for row in result.nodes]
    columns = (*_COLUMNS[:_SCORE], f"test {measure.title}", *_COLUMNS[_SCORE:])
    return Table(columns, rows, over=over, over_note="above the budget", note=size_note(rows))


def _node_cells(row: NodeRow, measure: Measure) -> tuple[str, ...]:
    return (
        node_list([row.node], [row.name]),
        f"{row.records:,}",
        f"{row.signal_share:.1%}",
        NOTHING if row.noise_share is None else f"{row.noise_share:.1%}",
        number_text(row.sampling_rate),
        number_text(row.expected_batch),
        range_text(row.first_noise, row.last_noise),
        epsilon_text(row.delta),
        NOTHING if row.budget is None else f"{row.budget:.6g}",
        epsilon_words(row.epsilon) + (f", as {row.reported_by} reports" if row.reported_by else ""),
        epsilon_words(row.claimed_epsilon),
        measure.text(row.test_score),
        bytes_text(row.bytes_sent),
    )
