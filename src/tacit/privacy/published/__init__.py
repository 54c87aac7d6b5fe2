"""The papers' formulas of privacy and utility, as printed: what they claim, not what holds.

A claim is evaluated for the noise that really runs, so that claimed and certified epsilon are
about the same mechanism. The formulas of `ClaimedRun` are printed for one record a step, where sum
and mean are one; for larger batches they are applied to the batch **mean** as printed, and the
reading says so. The others have parameters of their own.

Modules: `formula` (what a formula is), one for the formulas of each paper (`push_sum`, `do_adp`,
`fedspd`, `decor`), `utility` (what the papers promise of accuracy), and `settings` (their
experiments, each with the mechanism that was run; the numbers stand in `papers/`, a file a paper).
"""

from tacit.privacy.published.decor import (
    DECOR,
    DECOR_USER,
    DecorRun,
    decor_noise,
)
from tacit.privacy.published.do_adp import (
    DO_ADP,
    DoAdpRun,
    do_adp_noise,
    do_adp_theorem_delta,
)
from tacit.privacy.published.fedspd import (
    FEDSPD_DP,
    FedspdRun,
    fedspd_round_epsilon,
    fedspd_sensitivity,
    fedspd_step_parameter,
)
from tacit.privacy.published.formula import (
    ClaimedRun,
    Formula,
    FormulaCondition,
    PublishedFormula,
)
from tacit.privacy.published.push_sum import (
    DYN_D2P,
    DYN_GENERAL,
    PRIVSGP,
    constant_mu,
    general_noise_scale,
    growing_mu,
    privsgp_noise,
    total_mu,
)
from tacit.privacy.published.settings import PaperSetting, paper_settings
from tacit.privacy.published.utility.fedspd import fedspd_rate
from tacit.privacy.published.utility.privsgp_vr import (
    BoundConstants,
    Budget,
    claimed_variances,
    convergence_bound,
    least_steps,
    optimal_steps,
    published_bound,
    published_steps,
    utility_order,
)

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
