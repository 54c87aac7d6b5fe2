#!/usr/bin/env bash
# dp-accounting 0.6.0, RdpAccountant, Poisson sampled Gaussians: the divergence at orders between 1 and 2 is
# up to 2.4 times the true one, or infinite, and falls where a Renyi divergence cannot.
#
# With a sampling rate of 0.1 and a multiplier of 4 it says 8.4e-4 at order 1.1 and 6.4e-4 at order 2, though a
# Renyi divergence never falls with its order; numerical integration gives 3.5e-4 and 6.4e-4. With 0.1 and 1
# orders 1.1 to 1.5 are given up (infinite, "failed to converge", an order that is left out), with 0.5 and 2
# order 1.75 too. At orders that are whole numbers it is exact, and above 2 too large by 0 to 5 %. All of it is
# on the safe side. Since a divergence at an order is at most that at the next whole number, the
# value at 2 would be a smaller one for each of these.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    dp-accounting==0.6.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
from math import inf, log

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp
from scipy.integrate import quad
from scipy.stats import norm


def true(rate, multiplier, order):
    """Of the mixture against the Gaussian, the larger direction (Mironov et al., 2019)."""

    def value(x):
        ratio = 1 - rate + rate * np.exp((2 * x - 1) / (2 * multiplier**2))
        return norm.pdf(x, scale=multiplier) * ratio**order

    whole, _ = quad(value, -40 * multiplier, 40 * multiplier, limit=500, epsabs=0, epsrel=1e-13, points=[0])
    return log(whole) / (order - 1)


def said(rate, multiplier, order):
    accountant = rdp.RdpAccountant([order])
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)))
    return float(accountant._rdp[0])


SETTINGS = {(0.1, 4.0): (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0), (0.1, 1.0): (1.1, 1.25, 1.5, 2.0), (0.5, 2.0): (1.75, 2.0, 2.5)}
found = {}
for (rate, multiplier), orders in SETTINGS.items():
    for order in orders:
        own, exact = said(rate, multiplier, order), true(rate, multiplier, order)
        found[rate, multiplier, order] = own / exact
        print(f"rate {rate}, multiplier {multiplier}, order {order}: {own:.4g}, true {exact:.4g}")
        assert own > exact * (1 - 1e-9)
assert said(0.1, 4.0, 1.1) > 1.3 * said(0.1, 4.0, 2.0)  # which no Renyi divergence does
assert 2.3 < found[0.1, 4.0, 1.1] < 2.5
assert all(found[0.1, 1.0, order] == inf for order in (1.1, 1.25, 1.5))
assert found[0.5, 2.0, 1.75] == inf
assert all(ratio < 1 + 1e-9 for (*_, order), ratio in found.items() if order in (2.0, 3.0))
PYTHON
