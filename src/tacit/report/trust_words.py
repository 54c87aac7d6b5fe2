"""Trust models in plain words: who sees what, who has to keep to the rules, and what if not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tacit.report.documents.trust import TrustTerms
from tacit.report.documents.unit import UnitTerms
from tacit.report.protection import Protection, epsilon_words, protection
from tacit.report.view import Banner
from tacit.report.wording import count_text, epsilon_text, with_article

RELATIONS = {
    "add-or-remove-one": "two data sets of a node are neighbours if they differ in whether one "
    "record contributes at all; the number of records is public",
    "replace-one": "two data sets of a node are neighbours if one record has another value in the "
    "second",
}
NO_PERSON = "if a person has several rows, this is not the person's epsilon"
TRUST_MODELS = {
    "all-messages": "the observer sees every message of every node at every step, the graph, the "
    "mixing weights, the start, who takes part, and all settings; it may be all the other nodes "
    "together, and knows everything else about the data",
    "server": "the observer is the server, or whoever it talks to: it sees every message of every "
    "client in every round, who takes part, and all settings, and knows everything else about the "
    "data; clients see only what the server sends them",
    "pairwise": "the observer sees every message of every node at every step, the graph, the "
    "mixing weights, the start, who takes part, and all settings, and knows everything else about "
    "the data; it may also know all that up to so many nodes know as the run allowed to collude, "
    "their noise and every secret that they share with others included; epsilon counts on all "
    "other nodes adding the noise that they share in pairs, of which one adds what the other "
    "subtracts, and keeping it secret",
    "secure-sum": "the observer is the server, or whoever it talks to: it sees, in every round, "
    "the sum of the messages of all who take part, and no message alone; it sees who takes part "
    "and all settings, and knows everything else about the data; it may also know all that up to "
    "so many participants know as the run allowed to collude, their noise and every secret that "
    "they share with others included, and participants in the server's own process are among "
    "these; epsilon counts on all other participants adding their noise "
    "and masking their messages with secrets that they keep",
}
"""The observer of each trust model, in one sentence that a statement hands over."""

COUNTING_ON_OTHERS = ("pairwise", "secure-sum")
"""The trust models in which a node's epsilon rests on what other nodes do and keep secret."""

_HIDDEN = {
    "pairwise": "Everybody may read every message. Each node hides its records behind a small "
    "noise of its own, and behind noise that it shares with its partners: of two partners, one "
    "adds it and the other subtracts it, so that it is gone from the mean of all nodes. Who does "
    "not know the secrets of two partners cannot take their noise away.",
    "secure-sum": "The server learns the sum of the participants' messages, and no single one: "
    "masks that cancel in the sum hide each. Every participant adds a small noise of its own "
    "before, and the noise of all of them hides the records of each.",
}
_OBSERVERS = {
    "pairwise": "whoever reads all messages",
    "secure-sum": "the server, or whoever it talks to,",
}
SIMULATED = Banner(
    "warn",
    "A simulation of its trust model: all secrets were in one process",
    [
        "Whoever runs that process can take away all that nodes hide behind each other, and sees "
        "the records in any case. The epsilon here is what it would be if each node ran by itself."
    ],
)
"""What is said of a run whose nodes could keep nothing from each other."""
_KEYS = (
    "The nodes ran in {processes} processes. At every start, each two that share secrets agreed "
    "on fresh ones: X25519, then HKDF-SHA256. No certificate says whose a public key is: whoever "
    "relayed the keys is trusted not to have put its own in their place."
)
_SIGNED_KEYS = (
    "The nodes ran at {processes} sites. For this run, each two that share secrets agreed on fresh "
    "ones: X25519, then HKDF-SHA256. Each public key was signed with the identity of its site."
)
_POISONING = (
    "Nodes that send false numbers are not covered: they can spoil the model (poisoning). "
    "Colluders may look at all that they know, but they and all others must follow the protocol."
)


def unit_meaning(unit: UnitTerms) -> str:
    """Whom epsilon protects, and what else is certified of a person."""
    if unit.person is None:
        return "one record of one node, a row: " + NO_PERSON
    one = with_article(unit.person)
    whom = f"one record of one node, a row, and not {one}"
    if unit.gradient is not None:
        whom = (
            f"one {unit.name} at one node, with all rows there; of {one} up to "
            f"{count_text(unit.rows, 'row')} count, by the {unit.gradient} of their gradients, and "
            "where there are more, public coins leave out the others"
        )
    return f"{whom}; {person_text(unit)}" if unit.apart else whom


def person_text(unit: UnitTerms) -> str:
    """What is certified of a person, where that is another epsilon than a node's."""
    by_row, several = unit.gradient is None, unit.nodes > 1
    rows = f"up to {count_text(unit.rows, 'row')}" if by_row else "rows"
    nodes = f"{'each of ' * by_row}up to {unit.nodes} nodes" if several else "one node"
    told = f"{with_article(unit.person or '')} with {rows} at {nodes} has"
    if unit.epsilon is None or unit.delta is None:
        return f"{told} no epsilon that is known"
    across = f"composition over the worst {unit.nodes} nodes"
    how = " and ".join(["group privacy"] * by_row + [across] * several)
    epsilon, delta = epsilon_words(unit.epsilon), epsilon_text(unit.delta)
    return f"{told} epsilon {epsilon} at delta {delta}, by {how}"


def of_rows_text(unit: UnitTerms, of: Collection[str]) -> str | None:
    """Whom what all runs on the same data cost is not of; None where it is of the same as a run's.

    `of` is what epsilon was of in these runs, as `LedgerReport.units` says.
    """
    if unit.gradient is None or "record" not in of:
        return None
    one = with_article(unit.name)
    return (
        "Of the runs on the same data some were by record: what all of them come to is of a row, "
        f"and of {one} nothing is known, since how many rows of {one} those had is in no ledger."
    )


def verdict(
    unit: UnitTerms, guarantees: Iterable[tuple[float, float]], guesses: Sequence[float] = ()
) -> Protection:
    """What is protected, of the nodes' guarantees and of a person's, if that is another."""
    if not unit.apart or unit.epsilon is None or unit.delta is None:
        return protection(guarantees, guesses)
    found = protection([*guarantees, (unit.epsilon, unit.delta)])
    return replace(found, words=f"{found.words} of {with_article(unit.person or '')}")


def relation_meaning(relation: str, unit: UnitTerms) -> str:
    """Which data sets of a node are neighbours."""
    told = unit.said(RELATIONS.get(relation, "it is decided which data sets are neighbours"))
    if unit.gradient is None:
        return told
    there = "are others" if relation == "replace-one" else "are there, or none contributes"
    return f"{told}; all rows of {with_article(unit.name)} at the node {there}"


def trust_texts(trust_model: str, trust: TrustTerms) -> list[str]:
    """What a trust model in which nodes rely on each other comes to in a run, a paragraph each.

    How nodes hide behind each other, for how many colluders, where secrets come from, and what is
    not covered. Its name may end in the number of those who may collude, or not.
    """
    model, processes = trust_model.partition(",")[0], trust.nodes_by_process
    keys = _SIGNED_KEYS if trust.keys_signed else _KEYS
    told = [_HIDDEN[model], _guarantee(trust.colluding), keys.format(processes=len(processes))]
    if trust.simulated:
        told.append(". ".join((SIMULATED.headline, *SIMULATED.details)))
    elif (most := max(processes)) > 1:
        told.append(
            f"A process hosted up to {most} nodes: whoever runs it is so many of the colluders, "
            "and knows the secrets of all of them."
        )
    if model == "secure-sum" and not trust.simulated:
        told.append(server_words(trust))
    return [*told, _POISONING]


def observer_words(trust_model: str, trust: TrustTerms | None) -> str:
    """Who guesses, for the verdict on a run: what they see and know."""
    if trust is None:
        return "whoever sees everything"
    model = trust_model.partition(",")[0]
    own = " (those of its own process included)" * (model == "secure-sum" and not trust.simulated)
    known = "and knows no node's secrets"
    if (most := trust.colluding) > 0:
        known = f"and knows all that any {count_text(most, 'node')} know" + "s" * (most == 1)
    return f"{_OBSERVERS[model]} {known}{own}"


def server_words(trust: TrustTerms) -> str:
    """How many others may collude with a server that is itself a client, in a run of processes."""
    own = trust.nodes_by_process[0]
    left = max(0, trust.colluding - own)
    others = f"no more than {left} of the others may" if left else "none of the others may"
    return (
        "The process of rank 0 did the server's work. Whoever runs it is the server and "
        f"{own} of the nodes, so that with the server {others} collude."
    )


def _guarantee(colluding: int) -> str:
    rest = "as long as all others follow the protocol and keep their secrets"
    if colluding == 0:
        return f"Epsilon holds {rest}: nobody may give away what only a node may know."
    pool = f"any {colluding} other nodes pool all that they know, their"
    if colluding == 1:
        pool = "any 1 other node gives away all that it knows, its"
    return f"Epsilon holds even if {pool} noise and secrets included, {rest}."
