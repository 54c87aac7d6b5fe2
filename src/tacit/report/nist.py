"""The questions of NIST SP 800-226 (March 2025) on a claim of privacy, with a statement's answers.

They follow the layers of its pyramid, in our words: parameters and unit, algorithms and hazards,
trust, security and access. What the software cannot answer is said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report.plain_words import (
    MODELS,
    NOT_DECLARED,
    audit_words,
    composition_words,
    curve_facts,
)
from tacit.report.wording import epsilon_text

UNANSWERED = "not answered by the software"


def nist_answers(document: Mapping[str, Any]) -> str:
    """The questions with answers, as Markdown."""
    lines = [
        "# Questions of NIST SP 800-226, answered from a statement",
        f"Run {document['run']['run']}. *Computed* follows from the statement and can be "
        "recomputed; *declared* is what people say, which nothing checked.",
    ]
    for layer, questions in _questions(document).items():
        lines += [f"## {layer}", *(f"**{asked}** {told}" for asked, told in questions)]
    return "\n\n".join(lines) + "\n"


def _questions(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    worst = max(document["nodes"], key=lambda row: (row["epsilon"], row["delta"]))
    facts = " ".join(f"{what}: {value}." for what, value in curve_facts(document))
    budget = f"epsilon {epsilon_text(worst['epsilon'])} at delta {epsilon_text(worst['delta'])}"
    model, signed = document["trust_model"]["name"].partition(",")[0], document.get("sites")
    keys = ", ".join(f"{site['name']} {site['fingerprint']}" for site in signed or ())

    def declared(key: str) -> str:
        said = document["declared"].get(key)
        return f"*Declared:* {said}" if said else f"{UNANSWERED} ({NOT_DECLARED}: statement.{key})"

    def computed(text: str) -> str:
        return f"*Computed:* {text}"

    return {
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
            ("Is the result of use for its purpose?", f"{UNANSWERED}: see the run's report."),
            ("Do small groups fare worse?", f"{UNANSWERED}: scores by group are to be looked at."),
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
            ("Where is noise added?", computed(f"{MODELS[model]}.")),
            ("Who may reach the result?", declared("access")),
            ("Whose keys stand for the sites?", computed(keys) if keys else UNANSWERED),
            ("Are records guarded where they lie?", f"{UNANSWERED}: a matter of each node."),
        ],
        "Collection of the data": [
            ("What are the data, and who is in them?", declared("data_domain")),
            ("On which legal basis are they used?", declared("legal_basis")),
            ("How long is what kept?", declared("retention")),
            ("What of a person who withdraws?", declared("withdrawal")),
        ],
    }
