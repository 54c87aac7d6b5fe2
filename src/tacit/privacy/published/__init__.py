"""The papers' formulas of privacy and utility, as printed: what they claim, not what holds.

A claim is evaluated for the noise that really runs, so that claimed and certified epsilon are
about the same mechanism. The formulas of `ClaimedRun` are printed for one record a step, where sum
and mean are one; for larger batches they are applied to the batch **mean** as printed, and the
reading says so. The others have parameters of their own.

Modules: `formula` (what a formula and a line of the table of claims are), and one for each paper
(formulas, its experiments, the mechanism of each): `push_sum`, `do_adp`, `fedspd`, `decor`; and
`utility` (what the papers promise of accuracy).
"""

from functools import lru_cache
from itertools import chain

from tacit.privacy.published.decor import (
    DECOR,
    DECOR_USER,
    DecorRun,
    decor_noise,
    decor_settings,
)
from tacit.privacy.published.do_adp import (
    DO_ADP,
    DoAdpRun,
    do_adp_noise,
    do_adp_settings,
    do_adp_theorem_delta,
)
from tacit.privacy.published.fedspd import (
    FEDSPD_DP,
    FedspdRun,
    fedspd_round_epsilon,
    fedspd_sensitivity,
    fedspd_settings,
    fedspd_step_parameter,
)
from tacit.privacy.published.formula import (
    ClaimedRun,
    Formula,
    FormulaCondition,
    PaperSetting,
    PublishedFormula,
)
from tacit.privacy.published.push_sum import (
    DYN_D2P,
    DYN_GENERAL,
    PRIVSGP,
    constant_mu,
    dyn_settings,
    general_noise_scale,
    growing_mu,
    privsgp_noise,
    privsgp_settings,
    total_mu,
)
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


@lru_cache(maxsize=1)
def paper_settings() -> tuple[PaperSetting, ...]:
    """The papers' own experiments: every private algorithm, with claim, mechanism and bounds.

    Row by row, algorithm by algorithm; of one experiment, the kindest reading comes first. Building
    the table takes a moment, and each row's bounds are computed when its `bounds` are called.
    """
    parts = (
        privsgp_settings(),
        dyn_settings(),
        do_adp_settings(),
        fedspd_settings(),
        decor_settings(),
    )
    rows = tuple(chain.from_iterable(parts))
    order = {row.algorithm: index for index, row in reversed(list(enumerate(rows)))}
    return tuple(sorted(rows, key=lambda row: order[row.algorithm]))
