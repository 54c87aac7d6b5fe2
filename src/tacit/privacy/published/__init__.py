"""The papers' formulas of privacy and utility, as printed: what they claim, not what holds.

A claim is evaluated for the noise that really runs, so that claimed and certified epsilon are
about the same mechanism. The formulas of `ClaimedRun` are printed for one record a step, where sum
and mean are one; for larger batches they are applied to the batch **mean** as printed, and the
reading says so. The others have parameters of their own.

A promise of accuracy is the paper's: it holds if its theorem does and every condition of it is met.
Constants of the problem (such as L) must be supplied; nobody knows them of private records for
free. One that is not known is NaN, and so is what it enters.

Modules: `formula` (what a formula is), one for each paper's formulas (`privsgp`, `dyn_d2p`,
`do_adp`, `fedspd`, `decor`), and `settings` (the papers' experiments, each with the mechanism that
was run; the numbers stand in `papers/`, a file a paper).
"""

from tacit.privacy.published.decor import DECOR, DECOR_USER, DecorRun, decor_noise
from tacit.privacy.published.do_adp import DO_ADP, DoAdpRun, do_adp_noise, do_adp_theorem_delta
from tacit.privacy.published.dyn_d2p import (
    DYN_D2P,
    DYN_GENERAL,
    constant_mu,
    general_noise_scale,
    growing_mu,
    total_mu,
)
from tacit.privacy.published.fedspd import (
    FEDSPD_DP,
    FedspdRun,
    fedspd_rate,
    fedspd_round_epsilon,
    fedspd_sensitivity,
    fedspd_step_parameter,
)
from tacit.privacy.published.formula import ClaimedRun, Formula, FormulaCondition, PublishedFormula
from tacit.privacy.published.privsgp import (
    PRIVSGP,
    BoundConstants,
    Budget,
    claimed_variances,
    convergence_bound,
    least_steps,
    optimal_steps,
    privsgp_noise,
    published_bound,
    published_steps,
    utility_order,
)
from tacit.privacy.published.settings import PaperSetting, paper_settings

__all__ = [
    "DECOR",
    "DECOR_USER",
    "DO_ADP",
    "DYN_D2P",
    "DYN_GENERAL",
    "FEDSPD_DP",
    "PRIVSGP",
    "BoundConstants",
    "Budget",
    "ClaimedRun",
    "DecorRun",
    "DoAdpRun",
    "FedspdRun",
    "Formula",
    "FormulaCondition",
    "PaperSetting",
    "PublishedFormula",
    "claimed_variances",
    "constant_mu",
    "convergence_bound",
    "decor_noise",
    "do_adp_noise",
    "do_adp_theorem_delta",
    "fedspd_rate",
    "fedspd_round_epsilon",
    "fedspd_sensitivity",
    "fedspd_step_parameter",
    "general_noise_scale",
    "growing_mu",
    "least_steps",
    "optimal_steps",
    "paper_settings",
    "privsgp_noise",
    "published_bound",
    "published_steps",
    "total_mu",
    "utility_order",
]
