"""What a run releases, what it costs, and what its paper claims: usable without the rest of tacit.

```python
>>> from tacit import privacy
>>> m = privacy.SampledGaussian(sample_rate=0.01, noise_multiplier=1.25, steps=1000)
>>> round(privacy.epsilon(m, delta=1e-4), 2)
1.01
>>> s = privacy.calibrate(lambda s: privacy.Gaussian(s, 50), epsilon=1.0, delta=1e-4)
>>> privacy.epsilon(privacy.Gaussian(s, 50), delta=1e-4) <= 1.0
True

```

Modules: `mechanisms` (frozen statements), `accounting` (certified bounds), `calibration`,
`published` (the papers' formulas), `noise` (cryptographic randomness), `pairwise` (what noise that
cancels between nodes is worth), `ledger` (what was spent).
"""

import tacit_dp.alone  # noqa: F401
from tacit.privacy import published
from tacit.privacy.accounting.accounting import (
    delta,
    delta_bounds,
    epsilon,
    epsilon_bounds,
    epsilon_curve,
    right_guess,
)
from tacit.privacy.accounting.calibration import calibrate
from tacit.privacy.accounting.choosing import (
    NegativeBinomialTrials,
    PoissonTrials,
    choosing_delta,
    choosing_epsilon,
)
from tacit.privacy.accounting.curve import (
    advantage,
    bayes_factor,
    mu,
    reconstruction,
    trade_off,
    trade_off_figure,
)
from tacit.privacy.accounting.renyi import rdp, zcdp
from tacit.privacy.known import (
    discrete_gaussian,
    exponential_mechanism,
    from_dp_event,
    from_losses,
    from_trade_off,
    gaussian_dp,
    report_noisy_max,
)
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, REPLACE_ONE, Mechanism, Relation
from tacit.privacy.mechanisms.composed import (
    ClientSampling,
    Composed,
    Person,
    across_nodes,
    compose,
    for_a_unit,
)
from tacit.privacy.mechanisms.known import KnownRelease
from tacit.privacy.mechanisms.matrix import MatrixGaussian, banded_correlation
from tacit.privacy.mechanisms.serialise import from_statement, to_statement
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PersistentState,
    PrivateState,
    SampledGaussian,
)
from tacit.privacy.pairwise import pairwise_multipliers, pairwise_person

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "ClientSampling",
    "Composed",
    "FixedBatchGaussian",
    "Gaussian",
    "KnownRelease",
    "Laplace",
    "MatrixGaussian",
    "Mechanism",
    "NegativeBinomialTrials",
    "PersistentState",
    "Person",
    "PoissonTrials",
    "PrivateState",
    "RandomAllocationGaussian",
    "Relation",
    "SampledGaussian",
    "across_nodes",
    "advantage",
    "banded_correlation",
    "bayes_factor",
    "calibrate",
    "choosing_delta",
    "choosing_epsilon",
    "compose",
    "delta",
    "delta_bounds",
    "discrete_gaussian",
    "epsilon",
    "epsilon_bounds",
    "epsilon_curve",
    "exponential_mechanism",
    "for_a_unit",
    "from_dp_event",
    "from_losses",
    "from_statement",
    "from_trade_off",
    "gaussian_dp",
    "mu",
    "pairwise_multipliers",
    "pairwise_person",
    "published",
    "rdp",
    "reconstruction",
    "report_noisy_max",
    "right_guess",
    "to_statement",
    "trade_off",
    "trade_off_figure",
    "zcdp",
]
