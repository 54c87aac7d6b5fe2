#!/usr/bin/env bash
# SciPy 1.17.1, scipy.sparse.linalg.eigsh: of a symmetric matrix of zeros, whose eigenvalues are all
# zero, it gives no eigenvalue but raises ArpackError: "ARPACK error -9: Starting vector is zero."
# No starting vector was given: SciPy draws one at random, and ARPACK multiplies it by the matrix
# before it looks. Whoever takes the norm of a Hessian by products (that of a loss which does not
# depend on the weights, say) must look for zero first. scipy.linalg.eigh of the same matrix gives
# zeros, and eigsh of the identity gives 1.
#
# Seen: the error for an array and for a LinearOperator. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import scipy
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

zeros = np.zeros((30, 30))
by_products = LinearOperator((30, 30), matvec=lambda x: 0 * x, dtype=float)
print("SciPy", scipy.__version__, "eigh:", eigh(zeros, eigvals_only=True)[-1])
for operator in (zeros, by_products):
    try:
        values = eigsh(operator, k=1, which="LA", return_eigenvectors=False)
    except ArpackError as error:
        print("eigsh:", error)
        assert "Starting vector is zero" in str(error)
    else:
        raise SystemExit(f"eigsh gave {values}")
assert np.allclose(eigsh(np.eye(30), k=1, return_eigenvectors=False), 1.0)
PYTHON
