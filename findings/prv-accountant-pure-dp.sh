#!/usr/bin/env bash
# prv-accountant 0.2.0, PRVAccountant of a PureDPMechanism composed with itself: its upper bound on epsilon,
# which should hold but for the errors it was asked for, lies far below the true epsilon.
#
# Composed 100 times, a mechanism of epsilon 1 costs 79.8 at delta = 1e-5; the accountant says 69.9 to 70.1, and
# at the upper of these the true delta is 140 times 1e-5. Composed 300 times, epsilon 200 becomes "133.9 to
# 134.1", 1,000 times 578 becomes "45.7 to 45.9": more steps cost less. With few steps or a small epsilon it is right.
#
# The truth is that of randomized response, the worst mechanism of pure privacy (Kairouz et al., ICML 2015): a sum
# over a binomial distribution. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    prv-accountant==0.2.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from prv_accountant import PRVAccountant, PureDPMechanism
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

DELTA = 1e-5


def true_delta(one, steps, epsilon):
    """Of randomized response with a loss of +-one, as often as steps."""
    positive = np.arange(steps + 1)
    loss = (2 * positive - steps) * one
    return float(np.sum(binom.pmf(positive, steps, expit(one)) * -np.expm1(np.minimum(epsilon - loss, 0))))


def bounds(one, steps):
    accountant = PRVAccountant(PureDPMechanism(one), eps_error=0.1, delta_error=1e-8, max_self_compositions=steps)
    lower, _, upper = accountant.compute_epsilon(DELTA, steps)
    return lower, upper


print("prv-accountant", version("prv-accountant"))
for one, steps, right in ((0.1, 100, True), (1.0, 10, True), (1.0, 100, False), (1.0, 300, False), (1.0, 1000, False)):
    lower, upper = bounds(one, steps)
    true = brentq(lambda epsilon: true_delta(one, steps, epsilon) - DELTA, 0, steps * one)
    held = true_delta(one, steps, upper)
    print(f"{steps} times epsilon {one}: said {lower:.4g} to {upper:.4g}, true {true:.4g}; delta there {held:.2g}")
    if right:
        assert lower <= true <= upper
    else:
        assert upper < 0.9 * true and held > 100 * DELTA
PYTHON
