#!/usr/bin/env bash
# riskcal 1.5.1, analysis.get_beta_from_zcdp and get_advantage_from_zcdp with a small rho.
#
# get_beta_from_zcdp says which false negative rate every attacker has at least who has a given rate of false
# positives, against any mechanism of rho-zCDP. A Gaussian with mu = sqrt(2 rho) is such a mechanism, so its own
# curve, Phi(Phi^-1(1 - alpha) - mu), cannot lie below. It does: with rho = 0.001 and alpha = 0.1 riskcal says
# 0.9, an attack no better than a coin, where the Gaussian has 0.892; with rho = 0.01 and alpha = 0.001 it says 0.999, where
# the Gaussian has 0.9984. From rho = 0.1 on it is below, as it should be. With rho = 0.0001 both functions
# raise a TypeError ("Cannot convert 'complex' with non-zero imaginary component to 'double'").
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    riskcal==1.5.1 dp-accounting==0.6.0 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version

from riskcal.analysis import get_advantage_from_zcdp, get_beta_from_zcdp
from scipy.stats import norm

print("riskcal", version("riskcal"))
for rho, alpha, above in ((0.001, 0.01, True), (0.001, 0.1, True), (0.001, 0.9, True), (0.01, 0.001, True),
                          (0.1, 0.001, False), (0.1, 0.1, False), (0.5, 0.1, False)):
    said = get_beta_from_zcdp(rho, alpha)
    gaussian = norm.cdf(norm.isf(alpha) - (2 * rho) ** 0.5)
    print(f"rho {rho}, alpha {alpha}: at least {said:.6f}, a Gaussian has {gaussian:.6f}")
    assert bool(said > gaussian + 1e-4) == above
for function, *rest in ((get_beta_from_zcdp, 0.1), (get_advantage_from_zcdp,)):
    try:
        function(0.0001, *rest)
    except TypeError as error:
        print(f"{function.__name__}, rho 0.0001:", error)
        assert "complex" in str(error)
    else:
        raise SystemExit("no error")
PYTHON
