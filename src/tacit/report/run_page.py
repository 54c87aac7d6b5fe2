"""The page of a run: what it says in words and numbers, and which charts it shows."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tacit.report.audit_words import NOT_SHOWN, audit_alarm, found_blocks
from tacit.report.documents.metrics import Scores
from tacit.report.documents.run import RecordedRun, ResultDocument
from tacit.report.documents.trust import TrustTerms
from tacit.report.html import html
from tacit.report.measures import ACCURACY, LOSS, Measure, measure_of
from tacit.report.protection import (
    LEVELS,
    MOST_SHOWN,
    colluders_table,
    epsilon_words,
    lower_words,
    protection,
    size_note,
)
from tacit.report.run_charts import run_charts
from tacit.report.trust_words import (
    SIMULATED,
    TRUST_MODELS,
    observer_words,
    person_text,
    relation_meaning,
    trust_texts,
    unit_meaning,
    verdict,
)
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
    result, trust, rows = run.result, _trust(run.result), run.result.node_count
    audit, alarm = result.audit, audit_alarm(run.result.audit)
    trial = f"A trial of a search: {result.choosing}." if result.choosing else ""
    highest = bytes_text(_highest(result.bytes_sent_by_node))
    speed = f"{number_text(result.steps_per_second)} steps a second"
    named = f"{result.algorithm_names.title} on {result.task.dataset}, {count_text(rows, 'node')}"
    nothing = texts(["Nothing is listed for this run."])
    blocks: list[Block] = [
        Heading("tacit run report", named, result.algorithm_names.paper),
        *_banners(result, alarm),
        Tiles(
            [
                _score_tile(result),
                _epsilon_tile(result, alarmed=alarm is not None),
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
        words = texts(trust_texts(result.trust_model or "", trust))
        table = colluders_table(trust.epsilon_by_colluders, result.delta, trust.colluding)
        aside = "Certified epsilon by number of colluders"
        blocks.append(columns("Whom this rests on", words, aside, [table]))
    asked = []
    if audit is not None:
        found, aside = found_blocks(audit, result.audited_epsilon), "What an audit does not show"
        blocks.append(columns("What the audit found", found, aside, [Items(NOT_SHOWN)]))
        if audit.asked:
            title = f"What the audit asked ({len(audit.asked)})"
            asked = [folded(title, Items(audit.asked, "questions"))]
    blocks += [
        *_claim_section(result),
        Text("The charts need JavaScript; the numbers below and above them do not.", "noscript"),
        *(Titled(title, charts, "charts") for title, charts in run_charts(run)),
        Titled("The run", [Pairs(_facts(run))], "card"),
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
    if bare := result.node_count - len(_guarantees(result)):
        return f"no epsilon is certified for {bare:,} of {result.node_count:,} nodes"
    return None


def _banners(result: ResultDocument, alarm: Banner | None) -> list[Banner]:
    """An audit's alarm, the verdict on privacy, how the run ended, which budgets are exceeded."""
    mechanism, nodes, trust = result.mechanism or "", result.node_count, _trust(result)
    if (reason := _why_not_private(result)) is not None:
        privacy = Banner("bad", f"NOT PRIVATE: {reason}", [mechanism])
    else:
        epsilon = epsilon_words(result.certified)
        over = f", the highest of {nodes:,} nodes" if nodes > 1 else ""
        person = f" {_capital(person_text(result.unit))}." if result.unit.apart else ""
        detail = (
            f"Certified epsilon {epsilon} at {_delta_text(result)}{over}. A blind guess is right "
            f"with 50{_NARROW}%.{person} {mechanism}"
        )
        observer = observer_words(result.trust_model or "", trust)
        strength = verdict(result.unit, _guarantees(result), result.guesses)
        privacy = strength.banner(observer, detail, in_doubt=alarm is not None)
    banners = [privacy] if alarm is None else [alarm, privacy]
    if trust is not None and trust.simulated:
        banners.append(SIMULATED)
    if result.status in _STATUS_BANNERS:
        kind, words = _STATUS_BANNERS[result.status]
        headline = f"{words}: {result.steps:,} of {result.planned_steps:,} steps were completed"
        banners.append(Banner(kind, headline, [result.message or ""]))
    if exceeded := len(result.over_budget):
        headline = f"The certified epsilon exceeds the budget of {exceeded:,} of {nodes:,} nodes"
        detail = f"The noise was set by {result.accounting} accounting."
        banners.append(Banner("warn", headline, [detail]))
    measure, scores = result.leading
    told = "" if scores is None else measure.no_better(scores.mean, scores.baseline)
    if told:
        banners.append(Banner("warn", f"Nothing was learned that shows: {told}"))
    return banners


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _delta_text(result: ResultDocument) -> str:
    highest = epsilon_text(_highest(result.delta))
    return f"delta {highest}" if len(set(result.delta)) == 1 else f"delta {highest} or less"


def _score_tile(result: ResultDocument) -> Tile:
    measure, scores = result.leading
    if scores is None:
        return Tile("Test accuracy", "not measured", "there was no test set")
    note = f"worst node {measure.text(scores.worst)} · consensus {measure.text(scores.consensus)}"
    if scores.baseline is not None:
        note += f" · baseline {measure.text(scores.baseline)}"
    return Tile(f"Test {measure.title}, mean over nodes", measure.text(scores.mean), note)


def _epsilon_tile(result: ResultDocument, *, alarmed: bool) -> Tile:
    if result.certified is None:
        return Tile("Certified epsilon", "none", "nothing bounds what was leaked")
    value = epsilon_words(result.certified)
    if _why_not_private(result) is not None:
        return Tile("Certified epsilon", value, "does not hold: this run is not private", "void")
    if alarmed:
        return Tile("Certified epsilon", value, "in doubt: an audit raised an alarm", "void")
    lowest = min(epsilon for epsilon in result.epsilon if epsilon is not None)
    note = f"lowest node {epsilon_words(lowest)} · {_delta_text(result)}"
    if result.unit.apart and result.unit.epsilon is not None:
        note += f" · {result.unit.person} {epsilon_words(result.unit.epsilon)}"
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
        strength = protection(_guarantees(result), result.guesses)
        return [
            "Someone who sees everything the trust model lets an observer see, knows all else, and "
            "must guess which of two neighbouring data sets a node has, at even odds, is right "
            f"with probability {strength.right_guess} at most, at the node with the weakest "
            f"guarantee (50{_NARROW}% is a blind guess). This page calls that "
            f"{strength.words.lower()}: {LEVELS} Delta is the part of the probability that the "
            "bound by epsilon may miss.",
            _scope(result),
        ]
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
        neighbours = relation_meaning(result.relation, result.unit)
        relation = f"By the relation {result.relation}, {neighbours}. "
    return f"The unit of protection is {unit_meaning(result.unit)}. {relation}{trust}".rstrip()


def _trust(result: ResultDocument) -> TrustTerms | None:
    """What nodes rely on each other for; None where each relies on itself alone."""
    return None if result.trust_model is None else result.trust


def _guarantees(result: ResultDocument) -> list[tuple[float, float]]:
    """Epsilon and delta of the nodes that have both."""
    pairs = zip(result.epsilon, result.delta, strict=True)
    return [(own, delta) for own, delta in pairs if own is not None and delta is not None]


def _comparison(result: ResultDocument) -> str:
    """Compare the paper's claim with what is certified; empty where either is missing."""
    claimed, certified = result.claimed, result.certified
    if claimed is None or certified is None or result.claim.infinite:
        return ""
    numbers = f"Claimed {epsilon_words(claimed)}, certified {epsilon_words(certified)}"
    if certified > claimed:
        return f"{numbers}: the claim is lower than what could be proved for this mechanism."
    return f"{numbers}: what is proved is no weaker than the claim."


def _facts(run: RecordedRun) -> list[tuple[str, str]]:
    """List the settings and outcomes that have no place elsewhere."""
    result = run.result
    topology, named = result.topology, result.task.features
    direction = "directed" if topology.directed else "undirected"
    turns = f", {topology.period} graphs in turn" if topology.period > 1 else ""
    least, most = min(result.records), max(result.records)
    a_node = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return [
        ("Algorithm", result.algorithm_names.name),
        ("Data set", result.task.dataset),
        *([("Features", f"{named}: a fixed public map of each record")] if named else []),
        ("Model", f"{result.task.model}, {result.parameters:,} parameters"),
        ("Loss", result.task.loss),
        ("Steps", f"{result.steps:,} of {result.planned_steps:,} planned"),
        (_capital(result.unit.plural), f"{sum(result.records):,} in all, {a_node} a node"),
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
        ("Noise", _noise_text(run)),
    ]


def _noise_text(run: RecordedRun) -> str:
    """The noise that was added, of which there is a chart only where it changes."""
    known = [line.noise_std for line in run.measurements if line.noise_std is not None]
    if not known:
        return "none was added, or its level was not recorded"
    norm = number_text(known[-1] * math.sqrt(run.result.parameters))
    told = (
        f"{range_text(known[0], known[-1])} in one coordinate of a mean gradient, about {norm} "
        "in all together at the end"
    )
    trust = run.result.trust
    if trust is not None and trust.deviation:
        ratio = trust.deviation / math.sqrt(math.fsum(own**2 for own in trust.own) / len(trust.own))
        told += f"; the noise of a pair is {number_text(ratio)} times that, and cancels in the mean"
    return told


def _score_facts(result: ResultDocument) -> list[tuple[str, str]]:
    """Every score of the run with its baseline, the leading one first."""
    scores: dict[Measure, Scores | None] = {
        measure_of(name): found for name, found in result.test_metrics.items()
    }
    if result.test_accuracy is not None:
        scores.setdefault(ACCURACY, result.test_accuracy)
    scores[LOSS] = result.test_loss
    facts = []
    for measure, found in scores.items():
        told = NOTHING
        if found is not None:
            told = (
                f"mean {measure.text(found.mean)}, worst node {measure.text(found.worst)}, "
                f"consensus {measure.text(found.consensus)}"
            )
            if found.baseline is not None:
                worse = "no better than a" if measure.no_better(found.mean, found.baseline) else "a"
                ignorant = measure.text(found.baseline)
                told += f"; {worse} model that ignores its inputs {ignorant}"
        facts.append((f"Test {measure.title}", told))
    return facts


def _node_table(result: ResultDocument) -> Table:
    measure, nodes = result.leading[0], result.node_count
    certified = zip(result.epsilon, result.epsilon_source or ("",) * nodes, strict=True)
    noise = result.noise_multiplier
    cells: dict[str, Iterable[str]] = {
        "node": [
            node_list([n], [name]) for n, name in enumerate(result.node_names or (None,) * nodes)
        ],
        result.unit.plural: map("{:,}".format, result.records),
        "share of model": map("{:.1%}".format, result.signal_share),
        "share of noise": [
            NOTHING if share is None else f"{share:.1%}" for share in result.noise_share
        ],
        "sampling rate": map(number_text, result.sampling_rate),
        "batch": map(number_text, result.expected_batch),
        "noise multiplier": map(range_text, noise.first, noise.last),
        "delta": map(epsilon_text, result.delta),
        "budget": [NOTHING if own is None else f"{own:.6g}" for own in result.epsilon_budget],
        "certified epsilon": [
            # not read from a ledger: a process has said it
            epsilon_words(epsilon) + (f", as {told} reports" if told.startswith("rank ") else "")
            for epsilon, told in certified
        ],
        "claimed epsilon": map(epsilon_words, result.claimed_epsilon),
        f"test {measure.title}": map(measure.text, result.leading_by_node),
        "sent": map(bytes_text, result.bytes_sent_by_node),
    }
    rows = list(zip(*cells.values(), strict=True))
    over = {(node, "certified epsilon") for node in result.over_budget}
    return Table(tuple(cells), rows, over=over, over_note="above the budget", note=size_note(rows))
