#!/usr/bin/env bash
# autodp 0.2.3.1 with SciPy 1.10.1 and newer: the analytical Fourier accountant (phi_off=False, ComposeAFA)
# gives the same *negative* epsilon, -0.0048, for every delta, every noise and every number of compositions of a
# Gaussian. autodp asks for SciPy 1.2.1 or newer, and nothing warns.
#
# autodp inverts delta(exp(epsilon)) by scipy.optimize.minimize_scalar with bounds=[0, 1], a bracket and no method.
# Up to SciPy 1.9 this was Brent's method, which does not look at bounds; from 1.10 on bounds without a method
# choose the bounded one, and then exp(epsilon) cannot exceed 1.
#
# Seen: with SciPy 1.9.3 4.380 (exact 4.377, Balle and Wang, ICML 2018) and 10.001 for four of them (exact
# 9.997); with 1.10.1 and 1.17.1 -0.0048 for all. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for versions in "scipy==1.9.3 numpy==1.23.5 matplotlib==3.7.5 contourpy==1.2.1" \
    "scipy==1.10.1 numpy==1.26.4" "scipy==1.17.1 numpy==2.4.6"; do
  python3 -m venv --clear "$folder/venv"
  # shellcheck disable=SC2086
  "$folder/venv/bin/pip" --disable-pip-version-check --quiet install autodp==0.2.3.1 $versions
  "$folder/venv/bin/pip" --disable-pip-version-check --quiet check
  "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import contextlib
import io
from math import exp

import scipy
from autodp.mechanism_zoo import GaussianMechanism
from autodp.transformer_zoo import ComposeAFA
from scipy.optimize import brentq
from scipy.stats import norm


def exact(mu, delta):
    def off(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(off, 0, 50)


old = tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 10)
for sigma, steps, delta in ((1.0, 1, 1e-5), (1.0, 4, 1e-5), (1.0, 1, 1e-2), (5.0, 100, 1e-5)):
    one = GaussianMechanism(sigma, phi_off=False, RDP_off=True, approxDP_off=True)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints each step of its search
        said = float(ComposeAFA()([one], [steps]).get_approxDP(delta))
    true = exact(steps**0.5 / sigma, delta)
    print(f"SciPy {scipy.__version__}, {steps} times sigma {sigma}, delta {delta}: {said:.4f}, exact {true:.4f}")
    assert abs(said - true) < 0.01 if old else -0.0049 < said < -0.0048
PYTHON
done
