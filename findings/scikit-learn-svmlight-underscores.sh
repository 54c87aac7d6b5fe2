#!/usr/bin/env bash
# scikit-learn 1.9.1, sklearn.datasets.load_svmlight_file: an underscore within a number is passed
# over, as in Python's source code. `1_0:1_5` is read as feature 10 with the value 15, and a label
# `1_2` as 12, without a warning: a file with a slip in it gives other features, labels and shapes.
#
# Seen: features 10 and values 15.0, label 12.0. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
  scikit-learn==1.9.1 numpy==2.4.6 scipy==1.17.1
printf '1 1:2\n1_2 1_0:1_5\n' > "$folder/file.txt"
"$folder/venv/bin/python" - "$folder/file.txt" <<'PYTHON'
import sys

import sklearn
from sklearn.datasets import load_svmlight_file

inputs, labels = load_svmlight_file(sys.argv[1])
print("scikit-learn", sklearn.__version__, inputs.shape, inputs.toarray().tolist(), labels.tolist())
assert inputs.shape == (2, 10)
assert inputs[1, 9] == 15.0
assert labels.tolist() == [1.0, 12.0]
PYTHON
