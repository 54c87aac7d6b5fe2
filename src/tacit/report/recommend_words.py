"""What is said of a recommendation: what is proposed and why, and noise by who sees what."""

from __future__ import annotations

import json

from tacit.report.documents.plan import RecommendDocument
from tacit.report.view import Block, Items, Table
from tacit.report.wording import count_text, number_text

_PROPOSED = ("key", "value", "why")
_FORECASTS = ("trust model", "noise over C", "signal over C", "noise over signal", "rounds")


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
    return [
        Table(_PROPOSED, proposed, title=title, left=_PROPOSED),
        Table(_FORECASTS, forecasts, title=other, left=_FORECASTS),
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
