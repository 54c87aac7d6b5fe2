"""`tacit tune`: searches settings under one budget that covers the choosing."""

from __future__ import annotations

from tacit.analysis.tune.costs import SearchPlan, plan_search
from tacit.analysis.tune.folder import SearchFolder
from tacit.analysis.tune.search import Search, Tune, load_search
from tacit.analysis.tune.show import plan_document, plan_table, result_table
from tacit.analysis.tune.trials import SearchMonitor
from tacit.analysis.tune.winner import run_search

__all__ = [
    "Search",
    "SearchFolder",
    "SearchMonitor",
    "SearchPlan",
    "Tune",
    "load_search",
    "plan_document",
    "plan_search",
    "plan_table",
    "result_table",
    "run_search",
]
