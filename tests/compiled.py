"""Compile the loops that tests run: once, before many processes would each do it for themselves.

`python tests/compiled.py` trains for two steps in each way that has a loop of its own. It needs
tacit alone, so that it can run while the tools of tests are installed.
"""

from itertools import product

import tacit

# Of sections, what is not as in `main`: whole batches and drawn ones, networks, images, features,
# and noise of pairs.
WAYS = (
    {"train": {"batch": "all"}},
    {"train": {"batch": 8}},
    {"task": {"model": "mlp"}},
    {"task": {"model": "cnn"}},
    {"task": {"features": "scattering:1"}},
    {"privacy": {"noise": "pairwise"}, "algorithm": {"name": "dyn-d2p"}},
)


def main() -> None:
    """Each way in both precisions."""
    for way, dtype in product(WAYS, ("float32", "float64")):
        config = {
            "task": {"dataset": "digits", "model": "logistic", **way.get("task", {})},
            "nodes": {"count": 4},
            "algorithm": way.get("algorithm", {"name": "privsgp"}),
            "privacy": {"epsilon": 3.0, **way.get("privacy", {})},
            "train": {"steps": 2, "dtype": dtype, **way.get("train", {})},
        }
        tacit.train(config)


if __name__ == "__main__":
    main()
