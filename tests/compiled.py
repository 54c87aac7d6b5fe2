"""Compile the loops that tests run: once, before many processes would each do it for themselves.

`python tests/compiled.py` trains for two steps in each way that has a loop of its own. It needs
tacit alone, so that it can run while the tools of tests are installed.
"""

from itertools import product

import torch

import tacit
from tacit.data import Dataset

# Of sections, what is not as in `main`: whole batches and drawn ones, networks, images, features,
# and noise of pairs, of few nodes and of many.
WAYS: tuple[dict[str, dict[str, object]], ...] = (
    {"train": {"batch": "all"}},
    {"train": {"batch": 8}},
    {"task": {"model": "mlp"}},
    {"task": {"model": "cnn"}},
    {"task": {"features": "scattering:1"}},
    {"privacy": {"noise": "pairwise"}, "algorithm": {"name": "dyn-d2p"}},
    {"privacy": {"noise": "pairwise"}, "algorithm": {"name": "dyn-d2p"}, "nodes": {"count": 60}},
)
# Of records that are given, how many numbers each has and a node has of them: few, and so many that
# they are read by blocks; and those of persons, with several rows each.
GIVEN = {"few": (5, 40), "wide": (6000, 300), "persons": (5, 40)}


def records(node: int, way: str, loss: str) -> Dataset:
    """A node's records, none of which says anything."""
    width, count = GIVEN[way]
    targets = torch.arange(count) % 3 if loss == "cross-entropy" else torch.zeros(count, 3)
    persons = [f"{node} {k // 2}" for k in range(count)] if way == "persons" else None
    return Dataset(torch.full((count, width), float(node)), targets, persons)


def main() -> None:
    """Each way in both precisions."""
    for dtype in ("float32", "float64"):
        for way in WAYS:
            config: dict[str, dict[str, object]] = {
                "task": {"dataset": "digits", "model": "logistic", **way.get("task", {})},
                "nodes": way.get("nodes", {"count": 4}),
                "algorithm": way.get("algorithm", {"name": "privsgp"}),
                "privacy": {"epsilon": 3.0, **way.get("privacy", {})},
                "train": {"steps": 2, "dtype": dtype, **way.get("train", {})},
            }
            tacit.train(config)
        for given, loss, batch in product(GIVEN, ("cross-entropy", "mse"), ("all", 8)):
            config = {
                "task": {"model": "linear", "loss": loss, "outputs": 3},
                "algorithm": {"name": "privsgp"},
                "privacy": {"epsilon": 3.0, "delta": 1e-3, "unit": "column:person"}
                if given == "persons"
                else {"epsilon": 3.0, "delta": 1e-3},
                "train": {"steps": 2, "dtype": dtype, "batch": batch},
            }
            tacit.train(config, nodes=[records(node, given, loss) for node in range(2)])


if __name__ == "__main__":
    main()
