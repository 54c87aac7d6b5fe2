"""Choosing steps, batch and clip for the nodes' budgets: `tacit plan FILE --optimise`.

`bound` (the constants of PrivSGP-VR's bound, estimated at the start, each with its provenance),
`noise` (what budgets really need), `search` (the certified optimum, and what a change would buy),
`results` (as data, table and flags).
"""

from tacit.analysis.optimise.bound import (
    Constant,
    Estimates,
)
from tacit.analysis.optimise.noise import OptimiseSetting
from tacit.analysis.optimise.results import (
    Choice,
    OptimiseOptions,
    OptimisePlan,
    PublishedOptimum,
    Sensitivity,
    optimise_document,
)
from tacit.analysis.optimise.search import optimise, published_optimum

__all__ = [
    "Choice",
    "Constant",
    "Estimates",
    "OptimiseOptions",
    "OptimisePlan",
    "OptimiseSetting",
    "PublishedOptimum",
    "Sensitivity",
    "optimise",
    "optimise_document",
    "published_optimum",
]
