#!/usr/bin/env bash
# riskcal 1.5.1, analysis.get_beta_from_pld: a false positive rate given as an *integer*, 0 or 1, or as an array of
# them, makes it store the false negative rate as an integer too, which cuts its fraction off.
#
# A test with no false positives of a Gaussian mechanism misses nearly everyone: at alpha = 0.0 it says 0.99999999999995.
# At alpha = 0 it says 0, as if an attacker could tell everyone apart without an error, and nothing warns. The same
# happens in riskcal.analysis.get_beta_from_plrvs and in the method get_beta of CTDAccountant. get_beta_from_gdp
# gives 1.0 at both.
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

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from riskcal.accountants import CTDAccountant
from riskcal.analysis import get_beta_from_gdp, get_beta_from_pld

print("riskcal", version("riskcal"))
for rate in (1.0, 0.1):  # of a Gaussian that is symmetric, and one that is not
    loss = from_gaussian_mechanism(1.0, sampling_prob=rate)
    by_float, by_integer = get_beta_from_pld(loss, alpha=0.0), get_beta_from_pld(loss, alpha=0)
    print(f"rate {rate}: alpha 0.0 -> {by_float}, alpha 0 -> {by_integer}")
    assert by_float > 1 - 1e-9 and by_integer == 0
accountant = CTDAccountant()
accountant.step(noise_multiplier=1.0, sample_rate=1.0)
ends = accountant.get_beta(alpha=np.array([0, 1]))
print("CTDAccountant, alpha [0, 1] ->", ends, ends.dtype)
assert not ends.any()
assert get_beta_from_gdp(1.0, 0) == get_beta_from_gdp(1.0, 0.0) == 1.0
PYTHON
