"""Choosing steps, batch and clip for the nodes' budgets: `tacit plan FILE --optimise`.

`bound` (the constants of PrivSGP-VR's bound, estimated at the start, each with its provenance),
`noise` (what budgets really need), `search` (the certified optimum, and what a change would buy:
an `OptimiseDocument`), `results` (what it says in words, and its tables).
"""

from tacit.analysis.optimise.results import OptimiseOptions, optimise_table
from tacit.analysis.optimise.search import optimise, published_optimum

__all__ = ["OptimiseOptions", "optimise", "optimise_table", "published_optimum"]
