"""Proposing an experiment from public facts: `tacit plan --recommend FILE`.

The rules are those by which any open experiment is completed (`tacit.training.recommend`). Here are
the forecasts for other trust models (`search`), and the experiment file (`results`).
"""

from tacit.analysis.recommend.search import (
    TRUST_MODELS,
    Recommendation,
    read_facts,
    recommend,
    recommend_for,
)
from tacit.training.recommend import Facts, Proposal

__all__ = [
    "TRUST_MODELS",
    "Facts",
    "Proposal",
    "Recommendation",
    "read_facts",
    "recommend",
    "recommend_for",
]
