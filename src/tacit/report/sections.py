"""What the page says in words: verdict, tiles, what epsilon means, and the paper's claim."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tacit.report.reading import Claim, Result
from tacit.report.wording import (
    bytes_text,
    duration_text,
    epsilon_text,
    guess_bound,
    number_text,
    percent_text,
    percent_up_text,
)

__all__ = [
    "banners",
    "claim_section",
    "heading",
    "meaning_section",
    "tiles",
    "title_text",
]

_RELATIONS = {
    "add-or-remove-one": "they differ in whether one record contributes at all, and the number of "
    "records is public",
    "replace-one": "one record of the first has another value in the second",
}
_STATUS_BANNERS = {
    "stopped": ("warn", "Stopped before the end"),
    "budget-exhausted": ("warn", "Ended early: a privacy budget was used up"),
    "diverged": ("bad", "Diverged: a model left the finite numbers"),
}
_NO_PROTECTION = 0.99


def title_text(result: Result) -> str:
    """Name the run in one line, as plain text."""
    count = len(result.nodes)
    return f"{result.title} on {result.dataset}, {count:,} {'node' if count == 1 else 'nodes'}"


def heading(result: Result) -> str:
    """Give the title of the page and what was published about the algorithm."""
    return (
        '<header><p class="eyebrow">tacit run report</p>'
        f"<h1>{escape(title_text(result))}</h1>"
        f'<p class="subtitle">{escape(result.paper)}</p></header>'
    )


def banners(result: Result) -> str:
    """Give the verdict on privacy, how the run ended, and which budgets are exceeded."""
    return "\n".join([_verdict(result), *_status_banner(result), *_budget_banner(result)])


def _banner(kind: str, headline: str, detail: str) -> str:
    more = f'<p class="detail">{escape(detail)}</p>' if detail else ""
    return (
        f'<div class="banner {kind}" role="status"><p class="headline">{escape(headline)}</p>'
        f"{more}</div>"
    )


def _why_not_private(result: Result) -> str | None:
    """Say why no guarantee holds for the run, or `None` where one holds for every node."""
    if not result.private:
        return result.not_private_reason or "the run gives no reason"
    bare = sum(row.epsilon is None or row.delta is None for row in result.nodes)
    if bare:
        return f"no epsilon is certified for {bare:,} of {len(result.nodes):,} nodes"
    return None


def _verdict(result: Result) -> str:
    mechanism = result.mechanism or ""
    reason = _why_not_private(result)
    if reason is not None:
        return _banner("bad", f"NOT PRIVATE: {reason}", mechanism)
    epsilon = epsilon_text(_highest(row.epsilon for row in result.nodes))
    over = f", the highest of {len(result.nodes):,} nodes" if len(result.nodes) > 1 else ""
    return _banner(
        "good", f"Private: certified epsilon {epsilon} at {_delta_text(result)}{over}", mechanism
    )


def _delta_text(result: Result) -> str:
    deltas = {row.delta for row in result.nodes}
    highest = epsilon_text(_highest(deltas))
    return f"delta {highest}" if len(deltas) == 1 else f"delta {highest} or less"


def _status_banner(result: Result) -> list[str]:
    if result.status not in _STATUS_BANNERS:
        return []
    kind, words = _STATUS_BANNERS[result.status]
    headline = f"{words}: {result.steps:,} of {result.planned_steps:,} steps were completed"
    return [_banner(kind, headline, result.message or "")]


def _budget_banner(result: Result) -> list[str]:
    count = sum(row.is_over_budget for row in result.nodes)
    if count == 0:
        return []
    headline = (
        f"The certified epsilon exceeds the budget of {count:,} of {len(result.nodes):,} nodes"
    )
    return [_banner("warn", headline, f"The noise was set by {result.accounting} accounting.")]


def tiles(result: Result) -> str:
    """Give the numbers that a reader looks for first."""
    shown = [
        _score_tile(result),
        _epsilon_tile(result),
        _claim_tile(result),
        _audit_tile(result),
        _bytes_tile(result),
        _time_tile(result),
    ]
    return f'<section class="tiles" aria-label="Summary">{"".join(shown)}</section>'


def _tile(label: str, value: str, note: str, kind: str = "") -> str:
    return (
        f'<div class="tile {kind}"><p class="label">{escape(label)}</p>'
        f'<p class="value">{escape(value)}</p><p class="note">{escape(note)}</p></div>'
    )


def _score_tile(result: Result) -> str:
    if result.test_accuracy is not None:
        return _tile(
            "Test accuracy, mean over nodes",
            percent_text(result.test_accuracy.mean),
            _others(
                percent_text(result.test_accuracy.worst),
                percent_text(result.test_accuracy.consensus),
            ),
        )
    if result.test_loss is not None:
        return _tile(
            "Test loss, mean over nodes",
            number_text(result.test_loss.mean),
            _others(number_text(result.test_loss.worst), number_text(result.test_loss.consensus)),
        )
    return _tile("Test accuracy", "not measured", "there was no test set")


def _others(worst: str, consensus: str) -> str:
    return f"worst node {worst} · consensus {consensus}"


def _epsilon_tile(result: Result) -> str:
    known = [row.epsilon for row in result.nodes if row.epsilon is not None]
    if not known:
        return _tile("Certified epsilon", "none", "nothing bounds what was leaked")
    value = epsilon_text(max(known))
    if _why_not_private(result) is not None:
        return _tile("Certified epsilon", value, "does not hold: this run is not private", "void")
    note = f"lowest node {epsilon_text(min(known))} · {_delta_text(result)}"
    return _tile("Certified epsilon, highest node", value, note)


def _claim_tile(result: Result) -> str:
    label = "Claimed epsilon, highest node"
    claimed = _highest(row.claimed_epsilon for row in result.nodes)
    if result.claim.infinite:
        return _tile(label, "infinite", "the paper's formula gives no bound here")
    if claimed is None:
        return _tile("Claimed epsilon", "none", "no published formula applies")
    return _tile(label, epsilon_text(claimed), "by the paper's formula, not proved for this run")


def _audit_tile(result: Result) -> str:
    if result.audited_epsilon is None or result.audit is None:
        return _tile("Audited epsilon", "not run", "no attack was tried on this run")
    audit = result.audit
    value = f"at least {number_text(result.audited_epsilon)}"
    at = f"at delta {audit.delta:g}"
    return _tile("Audited epsilon", value, f"{at}: {audit.verdict}; {audit.claim_verdict}")


def _bytes_tile(result: Result) -> str:
    highest = bytes_text(_highest(row.bytes_sent for row in result.nodes))
    return _tile("Sent by a node, mean", bytes_text(result.bytes_sent), f"highest node {highest}")


def _time_tile(result: Result) -> str:
    speed = f"{number_text(result.steps_per_second)} steps a second"
    return _tile("Time", duration_text(result.seconds), f"{result.steps:,} steps · {speed}")


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def meaning_section(result: Result) -> str:
    """Say what the epsilon of this run protects, against whom, and what it leaves out."""
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in _meaning(result))
    left_out = "".join(f"<li>{escape(text)}</li>" for text in result.not_covered)
    listed = f"<ul>{left_out}</ul>" if left_out else "<p>Nothing is listed for this run.</p>"
    bounded = any(row.epsilon is not None for row in result.nodes)
    title = "What this epsilon means" if bounded else "Why there is no epsilon"
    return (
        f'<section><h2>{title}</h2><div class="card columns">'
        f"<div>{paragraphs}</div><div><h3>Not covered by epsilon</h3>{listed}</div></div></section>"
    )


def _meaning(result: Result) -> list[str]:
    reason = _why_not_private(result)
    if reason is None:
        return [_scope(result), *_strength(result)]
    if all(row.epsilon is None for row in result.nodes):
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


def _scope(result: Result) -> str:
    trust = f"The trust model is “{result.trust_model}”. " if result.trust_model else ""
    relation = ""
    if result.relation is not None:
        explained = _RELATIONS.get(result.relation)
        relation = f"Two data sets of a node are neighbours by the relation {result.relation}"
        relation += f": {explained}. " if explained else ". "
    return (
        f"The unit of protection is one record of one node. {relation}{trust}"
        "A person with several records is protected less."
    )


def _strength(result: Result) -> list[str]:
    bound = _highest(
        guess_bound(row.epsilon, row.delta)
        for row in result.nodes
        if row.epsilon is not None and row.delta is not None
    )
    if bound is None:
        return []
    weak = " This is next to no protection." if bound >= _NO_PROTECTION else ""
    return [
        "Someone who sees everything the trust model lets an observer see, knows all else, and "
        "must guess which of two neighbouring data sets a node has, at even odds, is right with "
        f"probability {percent_up_text(bound)} at most, at the node with the weakest guarantee "
        f"(50{chr(0x202F)}% is a blind guess).{weak} Delta is the part of the probability that "
        "the bound by epsilon may miss."
    ]


def claim_section(result: Result) -> str:
    """Give the paper's own formula, how it was read, and whether its conditions hold."""
    claim = result.claim
    if claim.formula is None and claim.reading is None and not claim.conditions:
        return ""
    formula = f'<code class="formula">{escape(claim.formula)}</code>' if claim.formula else ""
    reading = f"<p>{escape(claim.reading)}</p>" if claim.reading else ""
    comparison = "".join(f"<p>{escape(text)}</p>" for text in _comparison(result))
    return (
        '<section><h2>What the paper claims</h2><div class="card columns">'
        f"<div>{formula}{reading}{comparison}</div><div>{_conditions(claim)}</div></div></section>"
    )


def _comparison(result: Result) -> list[str]:
    claimed = _highest(row.claimed_epsilon for row in result.nodes)
    certified = _highest(row.epsilon for row in result.nodes)
    if claimed is None or certified is None or result.claim.infinite:
        return []
    numbers = f"Claimed {epsilon_text(claimed)}, certified {epsilon_text(certified)}"
    if certified > claimed:
        return [f"{numbers}: the claim is lower than what could be proved for this mechanism."]
    return [f"{numbers}: what is proved is no weaker than the claim."]


def _conditions(claim: Claim) -> str:
    if not claim.conditions:
        return "<h3>Conditions of the claim</h3><p>The paper states none that can be checked.</p>"
    listed = "".join(
        f'<li><span class="mark">{"✓" if condition.holds else "✗"}</span>'
        f"{escape(condition.text)}: {'holds' if condition.holds else '<b>does not hold</b>'}</li>"
        for condition in claim.conditions
    )
    return f'<h3>Conditions of the claim</h3><ul class="conditions">{listed}</ul>'
