#!/usr/bin/env bash
# flwr-datasets 0.6.1, InnerDirichletPartitioner: labels that are not 0, 1, 2, ... are left out without a word.
#
# It counts the labels and then looks for the rows of label 0, 1, ... up to that count, whatever they are called. Of a
# table with labels 1, 2 and 3, 60 rows each, no partition ever has a row of label 3; asked for all 180 rows,
# or with labels "a", "b", "c" or -1 and 1, it ends with a ValueError, "Probabilities contain NaN". The other
# partitioners by label of the package (Dirichlet, Pathological, Shard) take labels of any name.
#
# Seen: no row of label 3 for any of ten seeds; with 0, 1 and 2 all labels. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install \
    flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from collections import Counter
from importlib.metadata import version

from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, InnerDirichletPartitioner


def labels(names, partitioner):
    """How many rows of each label all partitions have together, of 60 rows of each."""
    partitioner.dataset = Dataset.from_dict({"label": [name for _ in range(60) for name in names]})
    parts = [partitioner.load_partition(part)["label"] for part in range(partitioner.num_partitions)]
    return dict(sorted(Counter(label for part in parts for label in part).items()))


def inner(names, size, seed):
    return labels(names, InnerDirichletPartitioner([size] * 3, partition_by="label", alpha=1.0, seed=seed))


print("flwr-datasets", version("flwr-datasets"))
for seed in range(10):
    from_zero, from_one = inner((0, 1, 2), 30, seed), inner((1, 2, 3), 30, seed)
    print(f"seed {seed}: labels 0 to 2 {from_zero}, labels 1 to 3 {from_one}")
    assert sum(from_zero.values()) == sum(from_one.values()) == 90
    assert set(from_zero) == {0, 1, 2} and set(from_one) == {1, 2}
assert inner((0, 1, 2), 60, 0) == {0: 60, 1: 60, 2: 60}
for names, size in (((1, 2, 3), 60), (("a", "b", "c"), 30), ((-1, 1), 30)):
    try:
        inner(names, size, 0)
    except ValueError as error:
        print(names, size, "rows each:", error)
        assert "contain NaN" in str(error)
    else:
        raise SystemExit("no error")
for names in ((1, 2, 3), ("a", "b", "c")):
    dirichlet = DirichletPartitioner(3, partition_by="label", alpha=1.0)
    assert labels(names, dirichlet) == dict.fromkeys(names, 60)
PYTHON
