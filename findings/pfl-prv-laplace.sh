#!/usr/bin/env bash
# pfl 0.6.0, PRVPrivacyAccountant of the Laplace mechanism: more noise costs more.
#
# Its noise_parameter is documented as the scale of the noise, and the PLD and RDP accountants of the same package
# take it so: a scale of 10, at sensitivity 1, costs epsilon 0.1, one of 0.1 costs 10. PRVPrivacyAccountant
# says 10 for the former and 0.1 for the latter: it passes the scale to prv_accountant.LaplaceMechanism, whose mu is
# the sensitivity over the scale. At a scale of 1 they agree. Asked for the scale of an epsilon it ends with
# a ValueError, as its search takes it that noise lowers delta.
#
# Exact, for one use: epsilon = 1 / scale + 2 log(1 - delta). Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    pfl==0.6.0 prv-accountant==0.2.0 dp-accounting==0.5.1 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version
from math import log1p

from pfl.privacy.privacy_accountant import PLDPrivacyAccountant, PRVPrivacyAccountant, RDPPrivacyAccountant

DELTA = 1e-6
print("pfl", version("pfl"))
for scale in (0.1, 0.5, 1.0, 2.0, 10.0):
    exact = 1 / scale + 2 * log1p(-DELTA)
    by_pld, by_prv, by_rdp = (
        float(accountant(1, 1.0, "laplace", delta=DELTA, noise_parameter=scale).epsilon)
        for accountant in (PLDPrivacyAccountant, PRVPrivacyAccountant, RDPPrivacyAccountant)
    )
    print(f"scale {scale}: exact {exact:.3f}, PLD {by_pld:.3f}, RDP {by_rdp:.3f}, PRV {by_prv:.3f}")
    assert abs(by_pld - exact) < 1e-3 and 0 <= by_rdp - exact < 0.01
    assert abs(by_prv - scale) < 0.01  # within its own error of 0.07
try:
    PRVPrivacyAccountant(1, 1.0, "laplace", epsilon=1.0, delta=DELTA)
except ValueError as error:
    print("asked for the scale:", error)
else:
    raise SystemExit("no error")
PYTHON
