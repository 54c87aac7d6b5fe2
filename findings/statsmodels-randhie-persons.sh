#!/usr/bin/env bash
# statsmodels 0.15.0, datasets.randhie: the RAND Health Insurance Experiment, "number of observations
# 20,190". load() and load_pandas() give ten columns, and none of them says whose a row is: not the
# number of the person and not the year. The table is no cross-section, though: the package also ships
# the source file, in which the same 20,190 rows are of 5,912 persons, with 1 to 5 years each, in the
# same order. Who fits or splits what load() gives treats years of one person as independent, and has
# rows of most test persons in the training part.
#
# Seen: no column of persons; 5,912 persons in the source; of a fifth of the rows, drawn at random, more
# than nine in ten are of a person with other rows in the rest. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
  statsmodels==0.15.0 pandas==3.1.1 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.datasets.randhie as randhie

given = randhie.load_pandas().data
source = pd.read_csv(Path(randhie.__file__).parent / "src" / "randhie.csv")
print("statsmodels", version("statsmodels"), "columns:", *given.columns)
assert len(given.columns) == 10
assert not {"zper", "year", "person", "id"} & set(given.columns)
assert len(given) == len(source) == 20_190
assert np.array_equal(given["mdvis"], source["mdvis"])  # row by row
rows = source.groupby("zper").size()
print(len(rows), "persons, rows each:", rows.min(), "to", rows.max())
assert (len(rows), rows.min(), rows.max()) == (5_912, 1, 5)
test = np.random.default_rng(0).permutation(len(source)) < len(source) // 5
known = source["zper"][test].isin(source["zper"][~test])
print(f"{known.mean():.1%} of a random fifth of the rows are of persons with rows in the rest")
assert known.mean() > 0.9
PYTHON
