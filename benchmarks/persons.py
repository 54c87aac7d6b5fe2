"""What it costs to protect a person and not a row: the tables of `docs/how-to/persons.md`.

    python benchmarks/persons.py time
    python benchmarks/persons.py rand [--seeds 3] [--epsilon 2 1] [--clip C --learning-rate R]
    .venv-peers/bin/python benchmarks/persons.py opacus

`time`: one clipped sum of a batch of persons over that of the same rows, each a record; the least
of fifteen calls that take turns. `rand`: the RAND Health Insurance Experiment, which the package
statsmodels has (`pip install statsmodels==0.15.0`): 20,190 rows of 5,912 persons at 6 sites, with
the rows of a fifth of the persons as public test records. A row is positive where the person was in
hospital that year; what follows from that is left out. Test AUC by row, and that of logistic
regressions of scikit-learn without privacy.
`opacus`: a step of one node beside the gradients of records of Opacus, which are added up and
clipped by person by hand: the largest difference, and the times.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import tacit
from tacit.gradients import LOSSES, StackedModel, build

Rows = Callable[[int, int], torch.Tensor]
"""Of nodes and persons: rows of each person, `[nodes, persons]`."""

MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "linear, 36 inputs": (lambda: nn.Linear(36, 2), 36),
    "MLP 36-64-2": (lambda: nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 2)), 36),
    "MLP 784-128-10": (
        lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
        784,
    ),
}
ROWS: dict[str, tuple[Rows, int]] = {
    "4 each": (lambda nodes, persons: torch.full((nodes, persons), 4), 4),
    "1 to 5": (lambda nodes, persons: 1 + torch.arange(nodes * persons).view(nodes, -1) % 5, 5),
}
NODES, PERSONS, CALLS = 6, 64, 15


def seconds(module: Callable[[], nn.Module], width: int, rows: Rows, most: int) -> list[float]:
    """Of one clipped sum by row, and by person."""
    draws = torch.Generator().manual_seed(1)
    counts = rows(NODES, PERSONS)
    total = int(counts.sum(dim=1).max())
    inputs = torch.randn(NODES, total, width, generator=draws)
    targets = torch.randint(0, 2, (NODES, total), generator=draws)
    mask = torch.arange(total) < counts.sum(dim=1, keepdim=True)
    # The same rows, a person's one after the other.
    there = torch.arange(most) < counts.unsqueeze(2)
    numbers = (counts.cumsum(dim=1) - counts).unsqueeze(2) + torch.arange(most) * there
    nodes = torch.arange(NODES).view(-1, 1, 1)
    shares = there / counts.unsqueeze(2)
    engines: list[StackedModel] = [
        build(
            module(),
            LOSSES["cross-entropy"],
            inputs[0, :8],
            targets[0, :8],
            dtype=torch.float32,
            device="cpu",
            unit_rows=unit_rows,
        )
        for unit_rows in (None, most)
    ]
    at = engines[0].start(NODES, torch.float32, "cpu")
    everyone = torch.ones(NODES, PERSONS, dtype=torch.bool)
    persons = inputs[nodes, numbers], targets[nodes, numbers], everyone
    calls = (
        lambda: engines[0].gradient(at, inputs, targets, mask, 1.0),
        lambda: engines[1].gradient(at, *persons, 1.0, shares=shares),
    )
    times: list[list[float]] = [[], []]
    for _ in range(CALLS):
        for own, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return [min(own) for own in times]


def opacus(make: Callable[[], nn.Module], width: int) -> tuple[float, list[float]]:
    """How far a step by person is from gradients of Opacus, grouped by hand; seconds of both."""
    from opacus import GradSampleModule

    torch.manual_seed(0)
    module, clip = make(), 0.5
    counts = 1 + torch.arange(PERSONS) % 5
    owners = torch.repeat_interleave(torch.arange(PERSONS), counts)
    rows, labels = torch.randn(len(owners), width), torch.randint(0, 2, (len(owners),))
    examples = rows[:8], labels[:8]
    kind = {"dtype": torch.float32, "device": "cpu", "unit_rows": 5}
    engine = build(module, LOSSES["cross-entropy"], *examples, **kind)
    there = torch.arange(5) < counts.unsqueeze(1)
    numbers = (counts.cumsum(0) - counts).unsqueeze(1) + torch.arange(5) * there
    person = rows[numbers][None], labels[numbers][None], torch.ones(1, PERSONS).bool()
    at, shares = engine.start(1, torch.float32, "cpu"), (there / counts.unsqueeze(1))[None]
    wrapped = GradSampleModule(module, loss_reduction="sum")
    criterion = nn.CrossEntropyLoss(reduction="sum")

    def by_hand() -> torch.Tensor:
        wrapped.zero_grad()
        criterion(wrapped(rows), labels).backward()
        each = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)
        means = torch.zeros(PERSONS, each.shape[1]).index_add_(0, owners, each)
        means /= counts.unsqueeze(1)
        return (means * (clip / means.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)

    def here() -> torch.Tensor:
        return engine.gradient(at, *person, clip, shares=shares).total[0]

    apart = float((by_hand() - here()).abs().max() / by_hand().abs().max())
    times: list[list[float]] = [[], []]
    for _ in range(CALLS):
        for own, call in zip(times, (by_hand, here), strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return apart, [min(own) for own in times]


OUTCOME = ("totadm", "inpdol", "inpmis", "meddol", "lnmeddol", "time", "binexp")
"""The number of stays, and what follows from it."""


def rand() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Rows of the nodes' persons and of the public ones, and the schema of both."""
    import statsmodels.datasets.randhie as source

    table = pd.read_csv(Path(source.__file__).parent / "src" / "randhie.csv")
    table["stay"] = np.where(table["totadm"] > 0, "yes", "no")
    table["site"] = table["site"].astype(str)
    table = table.drop(columns=list(OUTCOME))
    persons = np.random.default_rng(0).permutation(table["zper"].unique())
    public = table["zper"].isin(persons[: len(persons) // 5])
    shown = table[public]
    roles = ("stay", "site", "zper")
    schema: dict[str, Any] = {
        "confirmed_public": True,
        "target": {"column": "stay", "kind": "class", "labels": ["no", "yes"]},
        "node": {"column": "site", "values": sorted(table["site"].unique())},
        "unit": {"column": "zper", "name": "person"},
        "columns": {
            name: {
                "kind": "number",
                # Bounds that the public persons show.
                "low": float(shown[name].quantile(0.005)),
                "high": float(max(shown[name].quantile(0.995), shown[name].quantile(0.005) + 1)),
                "missing": "indicator" if table[name].isna().any() else "refuse",
            }
            for name in table.columns
            if name not in roles
        },
    }
    return table[~public], shown.drop(columns=["site"]), schema


def private(
    data: tuple[Any, Any, Any], seed: int, epsilon: float, algorithm: dict[str, Any], **privacy: Any
) -> float:
    """Test AUC of one run of a linear model, by tacit's defaults but for what `algorithm` says."""
    nodes, test, schema = data
    config = {
        "task": {"model": "logistic", "metric": "auc"},
        "nodes": {"count": 6},
        "algorithm": algorithm,
        "privacy": {"epsilon": epsilon, "noise_seed": seed, "unit_rows": 5, **privacy},
        "train": {"seed": seed},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = tacit.train(config, nodes=nodes, test=test, schema=schema)
    return float(found.test_metrics["auc"].mean)


def without_privacy(data: tuple[Any, Any, Any]) -> tuple[float, list[float]]:
    """Test AUC of scikit-learn's logistic regression on all sites together, and on each alone."""
    nodes, test, schema = data

    def inputs(table: pd.DataFrame) -> Any:
        return table[list(schema["columns"])].fillna(0.0)

    def score(rows: pd.DataFrame) -> float:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(inputs(rows), rows["stay"] == "yes")
        return float(roc_auc_score(test["stay"] == "yes", model.predict_proba(inputs(test))[:, 1]))

    alone = [score(rows) for _, rows in nodes.groupby("site")]
    return score(nodes), alone


RUNS: dict[str, dict[str, Any]] = {
    "a row": {},
    "a person, mean": {"unit": "column:zper"},
    "a person, sum": {"unit": "column:zper", "unit_gradient": "sum"},
    "a person, sum, noise of pairs": {
        "unit": "column:zper",
        "unit_gradient": "sum",
        "noise": "pairwise",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["time", "rand", "opacus"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 1.0])
    parser.add_argument("--clip", type=float)
    parser.add_argument("--learning-rate", type=float)
    wanted = parser.parse_args()
    if wanted.what == "time":
        print("| model | rows of a person | by row | by person | ratio |\n|---|---|---|---|---|")
        for name, (module, width) in MODELS.items():
            for kind, (rows, most) in ROWS.items():
                row, person = seconds(module, width, rows, most)
                times = f"{1e3 * row:.2f} ms | {1e3 * person:.2f} ms"
                print(f"| {name} | {kind} | {times} | {person / row:.2f} |", flush=True)
        return
    if wanted.what == "opacus":
        print("| model | largest difference | Opacus, grouped by hand | tacit |\n|---|---|---|---|")
        for name, model in MODELS.items():
            apart, both = opacus(*model)
            print(f"| {name} | {apart:.1e} | {1e3 * both[0]:.2f} ms | {1e3 * both[1]:.2f} ms |")
        return
    data = rand()
    together, alone = without_privacy(data)
    print(f"without privacy: all sites {together:.3f}, one {min(alone):.3f} to {max(alone):.3f}\n")
    given = {"clip": wanted.clip, "learning_rate": wanted.learning_rate}
    algorithm = {key: value for key, value in given.items() if value is not None}
    columns = "".join(f" | epsilon {epsilon:g}" for epsilon in wanted.epsilon)
    print(f"| protected{columns} |\n|---{'|---' * len(wanted.epsilon)}|")
    for name, privacy in RUNS.items():
        cells = []
        for epsilon in wanted.epsilon:
            runs = range(wanted.seeds)
            found = [private(data, seed, epsilon, algorithm, **privacy) for seed in runs]
            cells.append(f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
