#!/usr/bin/env bash
# diffprivlib 0.6.6 (IBM) with scikit-learn 1.9.1: its metadata asks for scikit-learn 1.4.0 or newer,
# without an upper limit, and pip installs both and finds nothing broken. But `import diffprivlib`
# ends with an ImportError: diffprivlib.models.forest takes DOUBLE, a private name, out of
# sklearn.tree._tree, which has none any more. What needs no trees, such as its mechanisms and its
# budget accountant, cannot be imported either, as the package imports its models first.
#
# Seen: `pip check` is content; the package and diffprivlib.mechanisms fail with "cannot import name
# 'DOUBLE'". Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
  diffprivlib==0.6.6 scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1 setuptools==80.9.0
"$folder/venv/bin/pip" --disable-pip-version-check check
"$folder/venv/bin/python" - <<'PYTHON'
import subprocess
import sys
from importlib.metadata import requires, version

asked = [line for line in requires("diffprivlib") if line.startswith("scikit-learn")]
print("diffprivlib", version("diffprivlib"), asked, "scikit-learn", version("scikit-learn"))
assert asked == ["scikit-learn>=1.4.0"]
for name in ("diffprivlib", "diffprivlib.mechanisms"):  # each in a process of its own
    tried = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True)
    said = tried.stderr.strip().splitlines()[-1] if tried.returncode else "was imported"
    print(name, "->", said.partition(" (")[0])
    assert said.startswith("ImportError: cannot import name 'DOUBLE' from 'sklearn.tree._tree'")
PYTHON
