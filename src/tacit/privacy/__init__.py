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
    "banded_correlation",
    "calibrate",
    "choosing_delta",
    "choosing_epsilon",
    "compose",
    "delta",
    "delta_bounds",
    "epsilon",
    "epsilon_bounds",
    "epsilon_curve",
    "for_a_unit",
    "from_statement",
    "pairwise_multipliers",
    "pairwise_person",
    "published",
    "right_guess",
    "to_statement",
]
