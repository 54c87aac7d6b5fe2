"""A statement in words: half a page of plain ones, its short facts, and answers in two other forms.

These are the questions of NIST SP 800-226, and the record of a public registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tacit.errors import InputError
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
_MODELS = {
    "all-messages": "each node adds noise before anything leaves it (local to the node, which sees "
    "its own records in clear), and nobody else is trusted",
    "server": "each client adds noise before anything leaves it, and the server is not trusted",
    "pairwise": "nodes add noise of their own and noise that cancels between them (distributed)",
    "secure-sum": "clients add noise, and the server sees their sum alone (distributed)",
}
"""Where noise is added, by trust model."""
_POST_PROCESSING = (
    "All else that was sent, and the models, are computed from the noised sums without another "
    "look at the records (post-processing): that costs nothing more, and neither does any use of "
    "what was released."
)
_UNANSWERED = "not answered by the software"
_SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
_NEEDED = (
    "organisation_kind",
    "purpose",
    "region",
    "contact",
    "data_domain",
    "settings_chosen_on",
    "why_epsilon",
    "access",
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
        ("Where noise is added", _MODELS.get(where, where)),
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


_DECLARED_NAMES = {
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
    return [(name, declared.get(key, NOT_DECLARED)) for key, name in _DECLARED_NAMES.items()]


def nist_answers(document: Mapping[str, Any]) -> str:
    """The questions of NIST SP 800-226 (March 2025) on a claim of privacy, as Markdown.

    They follow the layers of its pyramid, in our words: parameters and unit, algorithms and
    hazards, trust, security and access. What the software cannot answer is said so.
    """
    worst = max(document["nodes"], key=lambda row: (row["epsilon"], row["delta"]))
    facts = " ".join(f"{what}: {value}." for what, value in curve_facts(document))
    budget = f"epsilon {epsilon_text(worst['epsilon'])} at delta {epsilon_text(worst['delta'])}"
    model, signed = document["trust_model"]["name"].partition(",")[0], document.get("sites")
    keys = ", ".join(f"{site['name']} {site['fingerprint']}" for site in signed or ())

    def declared(key: str) -> str:
        said = document["declared"].get(key)
        return f"*Declared:* {said}" if said else f"{_UNANSWERED} ({NOT_DECLARED}: statement.{key})"

    def computed(text: str) -> str:
        return f"*Computed:* {text}"

    layers = {
        "Parameters and unit of privacy": [
            ("What are epsilon and delta?", computed(f"{budget}, the highest of all nodes.")),
            ("What else is known of the guarantee?", computed(facts)),
            ("Why are these values right for the use?", declared("why_epsilon")),
            ("Who decided?", declared("decided_by")),
            ("What is the unit of privacy?", computed(f"{document['unit']['meaning']}.")),
            ("When are two data sets neighbours?", computed(f"{document['relation']['meaning']}.")),
        ],
        "Algorithms, utility and bias": [
            ("Which mechanisms were used?", computed(" ".join(document["mechanisms_in_words"]))),
            ("How do releases compose?", computed(composition_words(document))),
            ("Is the result of use for its purpose?", f"{_UNANSWERED}: see the run's report."),
            ("Do small groups fare worse?", f"{_UNANSWERED}: scores by group are to be looked at."),
            ("What was done before training, and on which data?", declared("settings_chosen_on")),
        ],
        "Hazards of implementations": [
            (
                "Is noise safe in finite arithmetic?",
                computed("noise is on a lattice, and what rounding adds is part of epsilon."),
            ),
            ("Which side channels are left?", computed("; ".join(document["not_covered"]) + ".")),
            ("Was the implementation tested?", computed(audit_words(document))),
            (
                "Which code was it?",
                computed("; ".join(f"{key} {is_}" for key, is_ in document["software"].items())),
            ),
        ],
        "Trust, security and access": [
            ("Who has to be trusted?", computed(f"{document['trust_model']['meaning']}.")),
            ("Where is noise added?", computed(f"{_MODELS[model]}.")),
            ("Who may reach the result?", declared("access")),
            ("Whose keys stand for the sites?", computed(keys) if keys else _UNANSWERED),
            ("Are records guarded where they lie?", f"{_UNANSWERED}: a matter of each node."),
        ],
        "Collection of the data": [
            ("What are the data, and who is in them?", declared("data_domain")),
            ("On which legal basis are they used?", declared("legal_basis")),
            ("How long is what kept?", declared("retention")),
            ("What of a person who withdraws?", declared("withdrawal")),
        ],
    }
    lines = [
        "# Questions of NIST SP 800-226, answered from a statement",
        f"Run {document['run']['run']}. *Computed* follows from the statement and can be "
        "recomputed; *declared* is what people say, which nothing checked.",
    ]
    for layer, questions in layers.items():
        lines += [f"## {layer}", *(f"**{asked}** {told}" for asked, told in questions)]
    return "\n\n".join(lines) + "\n"


def registry_record(document: Mapping[str, Any]) -> str:
    """The record of a statement, in YAML, which is a draft until its authors hand it in.

    The form is that of opendp/deployments-registry-data, `schemas/deployments-schema.yaml`, tier 3:
    no key but those it knows. Strings are quoted as in JSON, which YAML reads as they are.

    Raises:
        InputError: naming the keys of `[statement]` that the registry asks for and nobody filled.
    """
    declared, nodes = document["declared"], document["nodes"]
    lacking = [key for key in _NEEDED if key not in declared]
    if any("organisation" not in row for row in nodes):
        lacking.insert(0, "organisations (one for each node)")
    if lacking:
        expected = (
            f"the registry asks for what nobody declared; fill in [statement]: {', '.join(lacking)}"
            " (--declared FILE takes them from there)"
        )
        raise InputError("--registry", None, expected)
    name = f"{document['algorithm']['title']} on {document['task']['dataset']}"
    weakest = max(nodes, key=lambda row: (row["epsilon"], row["delta"]))
    organisations = dict.fromkeys(row["organisation"] for row in nodes)
    curators = [
        {"data_curator_name": each, "data_curator_type": declared["organisation_kind"]}
        for each in organisations
    ]
    sector = declared.get("sector", "").capitalize()
    facts = [f"{what}: {value}." for what, value in curve_facts(document)]
    also = ("legal_basis", "sector", "period", "retention", "withdrawal", "decided_by")
    model = document["trust_model"]["name"].partition(",")[0]
    said = [f"{key.replace('_', ' ')}: {declared[key]}" for key in also if key in declared]
    mechanisms = "; ".join(document["mechanisms_in_words"])
    software = "; ".join(f"{key} {value}" for key, value in document["software"].items())
    dynamic = document["data_ledger"] is not None
    record = {
        "url_slug": f"tacit-{document['run']['run'][:16]}",
        "deployment": {
            "basic": {
                "name": declared.get("title", name),
                "data_curators": curators,
                "description": " ".join(plain_words(document)),
                "intended_use": declared["purpose"],
                "data_product_type": "Machine learning model",
                "data_product_region": declared["region"],
                **({"data_product_sector": sector} if sector in _SECTORS else {}),
                "publication_date": document["date"][:10],
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": declared["data_domain"],
                "unprotected_quantities": "; ".join(document["not_covered"]),
            },
            "privacy_loss": {
                "privacy_unit": document["unit"]["meaning"],
                "privacy_unit_details": document["relation"]["meaning"],
                "number_of_privacy_units": sum(row["records"] for row in nodes),
                "privacy_parameters": {"epsilon": weakest["epsilon"], "delta": weakest["delta"]},
                "privacy_parameters_details": " ".join(facts),
            },
            "deployment_model": {
                "model_name": "Federated",
                "model_name_details": _MODELS[model],
                "trust_assumptions": " ".join(document["assumptions"]),
                "actors": document["trust_model"]["meaning"],
                "release_type": "Many releases" if dynamic else "One release",
                "release_type_details": composition_words(document),
                "data_source_type": "Static",
                "data_source_type_details": "The records of a node are the same at every step.",
                "access_type": "Non-interactive",
                "access_type_details": declared["access"],
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": declared["settings_chosen_on"],
                "mechanisms": f"{mechanisms}. Software: {software}.",
                "composition": composition_words(document),
                "post_processing": _POST_PROCESSING,
                "justification": declared["why_epsilon"],
                "utility": "Not stated: scores are in the report of the run.",
                **({"additional_information": "; ".join(said)} if said else {}),
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [declared["contact"]],
                "tier": 3,
            },
        },
    }
    return "\n".join(_yaml(record)) + "\n"


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A mapping of mappings, lists and scalars, in block style."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            for one in item:
                lines = _yaml(one, indent + "    ") if isinstance(one, Mapping) else [_scalar(one)]
                yield f"{indent}  - " + "\n".join(lines).lstrip()
        else:
            yield f"{indent}{key}: {_scalar(item)}"


def _scalar(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # A number of YAML 1.1 has a point: 1e-05 would be a text.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
