"""A statement as a record of the Differential Privacy Deployments Registry, in YAML.

The form is that of opendp/deployments-registry-data, `schemas/deployments-schema.yaml`, tier 3: no
key but those it knows. Strings are quoted as in JSON, which YAML reads as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tacit.errors import InputError
from tacit.report.plain_words import MODELS, POST_PROCESSING, composition_words, curve_facts
from tacit.report.plain_words import plain_words as in_plain_words

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


def registry_record(document: Mapping[str, Any]) -> str:
    """The record of a statement, which is a draft until its authors hand it in.

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
    return "\n".join(_yaml(_record(document))) + "\n"


def _record(document: Mapping[str, Any]) -> dict[str, Any]:
    declared, nodes = document["declared"], document["nodes"]
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
    return {
        "url_slug": f"tacit-{document['run']['run'][:16]}",
        "deployment": {
            "basic": {
                "name": declared.get("title", name),
                "data_curators": curators,
                "description": " ".join(in_plain_words(document)),
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
                "model_name_details": MODELS[model],
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
                "post_processing": POST_PROCESSING,
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
