#!/usr/bin/env bash
# dp-accounting 0.6.0: one event under one neighbouring relation, REPLACE_ONE, has two meanings in its
# two accountants.
#
# `GaussianDpEvent(1.0)` at delta = 1e-5: `RdpAccountant(neighboring_relation=REPLACE_ONE)` says epsilon
# 4.73, `PLDAccountant(neighboring_relation=REPLACE_ONE)` says 10.00. Both are right for their own reading: the
# former takes the noise as a multiple of what *replacing* a record moves, the latter as a
# multiple of what *adding* one moves, so that replacing one moves twice as much: it agrees with
# the exact curve of a Gaussian of sensitivity 2, and the former lies below that curve. Under
# ADD_OR_REMOVE_ONE and REPLACE_SPECIAL both take one meaning (4.73, and a tighter 4.38). So the noise
# that is calibrated by the one has about half the deviation of that by the other.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    dp-accounting==0.6.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON' 2>/dev/null
from math import exp, inf

from dp_accounting import GaussianDpEvent, pld, rdp
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.optimize import brentq
from scipy.stats import norm

DELTA = 1e-5


def exact(sensitivity):
    """Epsilon of a Gaussian of deviation 1 (Balle and Wang, ICML 2018, Theorem 8)."""

    def delta(epsilon):
        half, shift = sensitivity / 2, epsilon / sensitivity
        return norm.cdf(half - shift) - exp(epsilon) * norm.cdf(-half - shift)

    return brentq(lambda epsilon: delta(epsilon) - DELTA, 0, 50)


def epsilon(accountant, relation):
    made = accountant(neighboring_relation=relation)
    made.compose(GaussianDpEvent(1.0))
    return float(made.get_epsilon(DELTA))


once, twice = exact(1.0), exact(2.0)
print(f"exact, sensitivity 1: {once:.3f}; sensitivity 2: {twice:.3f}")
for relation in NeighboringRelation:
    of_rdp = epsilon(rdp.RdpAccountant, relation)
    of_pld = epsilon(pld.PLDAccountant, relation)
    print(f"{relation.name}: RdpAccountant {of_rdp:.3f}, PLDAccountant {of_pld:.3f}")
    wanted = twice if relation is NeighboringRelation.REPLACE_ONE else once
    assert once < of_rdp < once + 0.5 < inf
    assert wanted - 1e-3 < of_pld < wanted + 1e-2
PYTHON
