"""Choosing steps, batch and clip for the nodes' budgets: `tacit plan FILE --optimise`.

`bound` (what the bound is made of: constants, each with its provenance, and the noise that
budgets really need), `search` (the certified optimum, and what a change would buy:
an `OptimiseDocument`), `results` (what is asked, and what it says in words).
"""

from tacit.analysis.optimise.results import OptimiseOptions
from tacit.analysis.optimise.search import optimise, published_optimum

__all__ = ["OptimiseOptions", "optimise", "published_optimum"]
