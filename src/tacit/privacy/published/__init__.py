"""The papers' privacy formulas, exactly as printed: what they claim, not what holds.

A claim is evaluated for the noise that really runs, so that claimed and certified epsilon are
about the same mechanism. The formulas of `ClaimedRun` are printed for one record a step, where sum
and mean are one; for larger batches they are applied to the batch **mean** as printed, and the
reading says so. The others have parameters of their own.

Modules: `formula` (what a formula is), `privsgp`, `dyn`, `fedspd`, `do_adp` (the formulas),
`fedspd_state` (what FedSPD-DP as printed reveals), and, not imported from here, `settings` (the
papers' experiments, with the mechanism of each).
"""

from tacit.privacy.published.do_adp import DO_ADP, DoAdpRun, do_adp_noise, do_adp_theorem_delta
from tacit.privacy.published.dyn import (
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
    fedspd_round_epsilon,
    fedspd_sensitivity,
    fedspd_step_parameter,
)
from tacit.privacy.published.formula import ClaimedRun, Formula, FormulaCondition, PublishedFormula
from tacit.privacy.published.privsgp import (
    PRIVSGP,
    UtilityConstants,
    optimal_steps,
    privsgp_noise,
)

__all__ = [
    "DO_ADP",
    "DYN_D2P",
    "DYN_GENERAL",
    "FEDSPD_DP",
    "PRIVSGP",
    "ClaimedRun",
    "DoAdpRun",
    "FedspdRun",
    "Formula",
    "FormulaCondition",
    "PublishedFormula",
    "UtilityConstants",
    "constant_mu",
    "do_adp_noise",
    "do_adp_theorem_delta",
    "fedspd_round_epsilon",
    "fedspd_sensitivity",
    "fedspd_step_parameter",
    "general_noise_scale",
    "growing_mu",
    "optimal_steps",
    "privsgp_noise",
    "total_mu",
]
