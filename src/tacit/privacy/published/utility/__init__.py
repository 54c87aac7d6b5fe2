"""What the papers promise of accuracy: their theorems of convergence, as printed.

Pure arithmetic that reads no data. A promise is the paper's: it holds if its theorem does and if
every condition of that theorem is met, and nothing here is certified. Constants of the problem
(such as L or f(x^0) - f*) must be supplied; nobody knows them of private records for free. A module
for each paper.
"""

from tacit.privacy.published.utility.do_adp import (
    DoAdpTask,
    do_adp_bound,
    do_adp_consensus_step,
    do_adp_contraction,
    do_adp_disagreement,
    do_adp_momentum,
    do_adp_order,
)
from tacit.privacy.published.utility.dyn_d2p import (
    dyn_bound,
    dyn_clipping_bias,
    dyn_least_noise,
    dyn_noise,
    dyn_noise_variance,
    dyn_steps,
)
from tacit.privacy.published.utility.fedspd import (
    fedspd_best_local_steps,
    fedspd_bound,
    fedspd_rate,
    fedspd_start,
)
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
    "BoundConstants",
    "Budget",
    "DoAdpTask",
    "claimed_variances",
    "convergence_bound",
    "do_adp_bound",
    "do_adp_consensus_step",
    "do_adp_contraction",
    "do_adp_disagreement",
    "do_adp_momentum",
    "do_adp_order",
    "dyn_bound",
    "dyn_clipping_bias",
    "dyn_least_noise",
    "dyn_noise",
    "dyn_noise_variance",
    "dyn_steps",
    "fedspd_best_local_steps",
    "fedspd_bound",
    "fedspd_rate",
    "fedspd_start",
    "least_steps",
    "optimal_steps",
    "published_bound",
    "published_steps",
    "utility_order",
]
