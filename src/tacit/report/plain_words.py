"""A statement in half a page of plain words, its short facts, and what nobody declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report.documents.base import read
from tacit.report.documents.ledger import StatementUnit
from tacit.report.trust_words import person_text
from tacit.report.wording import (
    count_text,
    epsilon_text,
    guess_bound,
    lower_text,
    node_list,
    percent_up_text,
)

NOT_DECLARED = "not declared"
MODELS = {
    "all-messages": "each node adds noise before anything leaves it (local to the node, which sees "
    "its own records in clear), and nobody else is trusted",
    "server": "each client adds noise before anything leaves it, and the server is not trusted",
    "pairwise": "nodes add noise of their own and noise that cancels between them (distributed)",
    "secure-sum": "clients add noise, and the server sees their sum alone (distributed)",
}
"""Where noise is added, by trust model."""
POST_PROCESSING = (
    "All else that was sent, and the models, are computed from the noised sums without another "
    "look at the records (post-processing): that costs nothing more, and neither does any use of "
    "what was released."
)
_ALL_ELSE = (
    "No ledger of the data was kept (privacy.ledger): what other runs or releases there were on "
    "these data cannot be known from here, and each would come on top."
)


def plain_words(document: Mapping[str, Any]) -> list[str]:
    """What a statement says, for a reader who reads no further."""
    nodes, declared = document["nodes"], document["declared"]
    who = [row.get("organisation") or row.get("name") for row in nodes]
    names = f" ({', '.join(filter(None, who))})" if len(who) <= 12 and any(who) else ""
    task, algorithm = document["task"], document["algorithm"]["title"]
    purpose = ""
    if "purpose" in declared:
        purpose = f" The purpose, as declared: {declared['purpose'].rstrip('.')}."
    guess = percent_up_text(max(map(node_guess, nodes)))
    unit = read(StatementUnit, document["unit"], "unit")
    more = f" Besides: {person_text(unit)}." if unit.apart else ""
    return [
        f"This is about {count_text(len(nodes), 'node')}{names}, which took part in training one "
        f"model ({algorithm} on {task['dataset']}).{purpose}",
        "Records stayed at their node. What left it are sums to which noise was added first.",
        f"Somebody who saw all of that, knew all other records, and had to guess whether one "
        f"{unit.name} was there, would be right in at most {guess} of cases. A coin is in "
        "50\u202f%.",
        f"Protected is {unit.meaning}.{more}",
        composition_words(document),
        audit_words(document),
        "What stands here as computed was computed by the software, and can be recomputed. What "
        "is declared was said by people, and the software checked none of it.",
    ]


def node_guess(row: Mapping[str, Any]) -> float:
    """How often a guess about a node's record is right at most: by its curve, or its epsilon."""
    known: float | None = row.get("right_guess")
    return guess_bound(row["epsilon"], row["delta"]) if known is None else known


def composition_words(document: Mapping[str, Any]) -> str:
    """How many releases there were, and what else was released of the same records."""
    account = document["ledger"]["nodes"][0]
    steps = count_text(sum(release["steps"] for release in account["releases"]), "step")
    told = f"It is one run of many releases: epsilon is of all {steps} together (composition)."
    ledger = document["data_ledger"]
    if ledger is None:
        return f"{told} {_ALL_ELSE}"
    others = {run["run"] for run in ledger["runs"]} - {document["run"]["run"]}
    return (
        f"{told} The ledger of the data has {count_text(len(others), 'other run')} on some of the "
        "same records; what all come to stands under 'All runs on the same data'."
    )


def audit_words(document: Mapping[str, Any]) -> str:
    """What an audit says of whether the model may leave a protected environment."""
    audit = document["audit"]
    found = "No attack was tried on this run (tacit audit does so)."
    if audit is not None:
        found = f"{count_text(audit['attacks'], 'attack')} found: {audit['verdict']}."
    return (
        "Whether the model may leave a secure environment is for people to decide. Whoever has "
        f"only the model guesses no better than whoever saw everything. {found}"
    )


def curve_facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The variant of privacy, other deltas, and mu; all computed."""
    curve, relation = document["curve"], document["relation"]["name"]
    rows = document["nodes"]
    row = next((row for row in rows if row["node"] == curve["node"]), rows[0])
    delta = epsilon_text(row["delta"])
    mu = "none is stated: epsilon is beyond all meaning"
    if curve["mu"] is not None:
        mu = (
            f"at most {epsilon_text(curve['mu'])}, but for events of weight {delta} (the steps "
            "are not Gaussian to the last digit, so that no mu holds without them)"
        )
    others = [
        f"{epsilon_text(epsilon)} at {epsilon_text(delta)}" for delta, epsilon in curve["epsilons"]
    ]
    where = document["trust_model"]["name"].partition(",")[0]
    return [
        ("Variant", f"approximate differential privacy, (epsilon, delta), {relation}"),
        ("Where noise is added", MODELS.get(where, where)),
        ("Weakest guarantee", f"node {node_list([row['node']], [row.get('name')])}"),
        (
            "Best guess there, by the whole curve",
            f"right in {percent_up_text(curve['right_guess'])} at most",
        ),
        ("Epsilon at other deltas", "; ".join(others)),
        ("mu of Gaussian privacy", mu),
    ]


def error_rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The trade-off curve: false accusations, and the least share that is overlooked."""
    return [
        (f"{100 * false:g}\u202f%", f"{lower_text(100 * missed)}\u202f%")
        for false, missed in document["curve"]["errors"]
    ]


DECLARED_NAMES = {
    "title": "Title",
    "organisation_kind": "Kind of organisations",
    "purpose": "Purpose",
    "legal_basis": "Legal basis",
    "sector": "Sector",
    "region": "Region",
    "period": "Period of the data",
    "contact": "Contact",
    "decided_by": "Decided by",
    "why_epsilon": "Why this epsilon",
    "settings_chosen_on": "Settings were chosen on",
    "data_domain": "The data",
    "access": "Who has access to the model",
    "retention": "Retention and deletion",
    "withdrawal": "Withdrawal of a person",
}
"""The keys of `[statement]`, as a page calls them."""


def declared_pairs(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All that may be declared, by its name, and what was."""
    declared = document["declared"]
    return [(name, declared.get(key, NOT_DECLARED)) for key, name in DECLARED_NAMES.items()]
