"""Small experiments with a model and records of their own, in which defects are planted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.battery_table import rate
from tacit.config import load_config
from tacit.data import Dataset
from tacit.training.prepare import prepare

NODES = 4
RECORDS = 40

Settings = Mapping[str, Any]

POISSON: Settings = {"train": {"steps": 6, "batch": 10}}
FIXED: Settings = {
    "train": {"steps": 6, "batch": 10, "sampling": "fixed"},
    "privacy": {"relation": "replace-one"},
}
REPLACED: Settings = {
    "train": {"steps": 6, "batch": 10},
    "privacy": {"relation": "replace-one"},
}
ALLOCATION: Settings = {"train": {"steps": 8, "batch": 10, "sampling": "allocation"}}
WHOLE: Settings = {"train": {"steps": 6, "batch": "all"}}
PAIRED: Settings = {
    "train": {"steps": 3, "batch": 10},
    "privacy": {"noise": "pairwise", "colluding": 1, "pair_noise": 3.0},
}
SAMPLERS: Mapping[str, Settings] = {"poisson": POISSON, "replace-one": REPLACED, "fixed": FIXED}
PERSONS: Settings = {"unit": "column:person", "unit_rows": 3}
"""Of privacy: persons have one to five rows, of which three count."""


class _MeanOfPositions(nn.Module):
    """The mean over the positions of `[b, positions, width]`."""

    def forward(self, values):
        return values.mean(dim=1)


def _classes(*shape, outputs):
    def drawn(draw, rows=RECORDS):
        return torch.randn(rows, *shape, generator=draw), torch.arange(rows) % outputs

    return drawn


def _of_persons(records, draw, named):
    """As many persons as there are records elsewhere, in no order of rows; how each name begins."""
    persons = torch.arange(RECORDS)
    whose = persons.repeat_interleave(persons % 5 + 1)
    whose = whose[torch.randperm(len(whose), generator=draw)]
    return Dataset(*records(draw, len(whose)), [f"{named}{one}" for one in whose.tolist()])


def _linear():
    return nn.Linear(4, 3)


def _layers():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def _positions():
    return nn.Sequential(nn.Linear(32, 32), _MeanOfPositions())


def _images():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[..., tuple[Tensor, Tensor]]]] = {
    "linear": (_linear, _classes(4, outputs=3)),
    "layers": (_layers, _classes(4, outputs=3)),
    "positions": (_positions, _classes(4, 32, outputs=3)),
    "images": (_images, _classes(1, 8, 8, outputs=3)),
}


def job(
    settings=POISSON,
    *,
    model="linear",
    nodes=NODES,
    algorithm="privsgp",
    options=None,
    privacy=None,
    shared=False,
    **train,
):
    """An experiment that could start now; the same one where it was asked for before.

    Args:
        settings: what is particular to the sampler and the relation.
        model: a key of `MODELS`; None: the logistic regression of the table, whose outputs are
            whatever is found.
        nodes: how many.
        algorithm: its name.
        options: of it.
        privacy: budget and so on.
        shared: whether the same persons have rows at all nodes.
        train: steps and so on, before those of the settings.
    """
    experiment = {
        "task": {"loss": "cross-entropy", **({} if model else {"model": "logistic"})},
        "algorithm": {"name": algorithm, **rate(algorithm, 0.1), **(options or {})},
        "privacy": {
            "epsilon": 2.0, "delta": 1e-3, **settings.get("privacy", {}), **(privacy or {})
        },
        "train": {**settings["train"], **train},
    }  # fmt: skip
    return _prepared(json.dumps(experiment), model, nodes, shared)


def forget():
    """Make every experiment anew from here on."""
    _prepared.cache_clear()


@lru_cache(maxsize=64)
def _prepared(experiment, model, nodes, shared):
    draw = torch.Generator().manual_seed(7)
    build, records = MODELS[model or "linear"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build() if model else None
    config = load_config(json.loads(experiment), count=nodes, given_model=module is not None)
    data = [records(draw) for _ in range(nodes)]
    if config.privacy.unit_column is not None:
        data = [_of_persons(records, draw, "" if shared else f"{n}-") for n in range(nodes)]
    return prepare(config, model=module, nodes=data)


def of_samplers(*samplers, **more):
    """An experiment for each sampler; by default for all."""
    chosen = samplers or tuple(SAMPLERS)
    return {
        name: lambda name=name: job(SAMPLERS[name], **more)  # type: ignore[misc]
        for name in chosen
    }


def of(name, settings=POISSON, **more):
    """One experiment under a name."""
    return {name: lambda: job(settings, **more)}
