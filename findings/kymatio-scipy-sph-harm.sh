#!/usr/bin/env bash
# kymatio 0.3.0 with SciPy 1.17.1: `from kymatio.numpy import Scattering1D` (or Scattering2D) ends with an ImportError.
#
# What is asked of SciPy, scipy.special.sph_harm, is gone since 1.17 and is used by the transforms in three dimensions
# alone; the frontends import all of them. The transforms of one and two dimensions, imported from their own modules,
# work, and give what they give with SciPy 1.16.3. kymatio names no highest version of SciPy, so that a plain
# installation has one that it cannot be imported with.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for scipy in 1.17.1 1.16.3; do
  python3 -m venv "$folder/$scipy"
  "$folder/$scipy/bin/pip" --disable-pip-version-check --quiet install kymatio==0.3.0 numpy==2.3.5 "scipy==$scipy"
  "$folder/$scipy/bin/python" -W ignore - "$folder/values.npy" <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

print("kymatio", version("kymatio"), "scipy", version("scipy"), end=": ")
try:
    from kymatio.numpy import Scattering1D, Scattering2D  # noqa: F401

    imported = True
except ImportError as error:
    imported = False
    print(error.msg.partition(" (")[0], end="; ")
assert imported == version("scipy").startswith("1.16")
from kymatio.scattering1d.frontend.numpy_frontend import ScatteringNumPy1D
from kymatio.scattering2d.frontend.numpy_frontend import ScatteringNumPy2D

image = np.sin(np.arange(28 * 28.0) ** 1.1).reshape(28, 28)
made = [ScatteringNumPy2D(J=2, shape=(28, 28))(image).ravel(), ScatteringNumPy1D(J=3, shape=784)(image.ravel()).ravel()]
made = np.concatenate(made)
print(f"{made.size} coefficients from the modules of 1 and 2 dimensions")
before = Path(sys.argv[1])
if before.exists():
    assert np.allclose(np.load(before), made, rtol=1e-10, atol=1e-12)
np.save(before, made)
PYTHON
done
