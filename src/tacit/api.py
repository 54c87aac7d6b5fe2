"""Training in one call: what `tacit train` does, for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tacit import folder as folders
from tacit.config import Config, load_config
from tacit.errors import InputError
from tacit.prepare import prepare
from tacit.result import Result
from tacit.run import execute

__all__ = ["train"]


def train(
    config: str | Path | Mapping[str, Any] | Config,
    *,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    test: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Train one model across nodes, each within its privacy budget.

    Args:
        config: a path of an experiment file, the same as a mapping, or a `Config`.
        model: a module whose present weights are every node's start; by default `[task].model`.
        nodes: each node's `(inputs, targets)` or `Dataset`; by default `[task].dataset` is loaded
            and split.
        test: public test records, likewise; by default those of `[task].dataset`.
        out: a new run folder; by default nothing is written.
        resume: continue the run in `out`.

    Raises:
        InputError: something given is wrong; names it.
        BudgetError: a node's budget cannot be met.
        DivergenceError: the model of a node left the finite numbers.
    """
    if nodes is not None and not len(nodes):
        raise InputError("nodes", "[]", "needs one data set a node")
    if model is not None and not isinstance(model, nn.Module):
        raise InputError("model", model, "must be a torch.nn.Module")
    parsed = load_config(
        config, count=None if nodes is None else len(nodes), given_model=model is not None
    )
    path = None if out is None else Path(out)
    if path is not None and not resume:
        folders.check_new(path)
    return execute(prepare(parsed, model=model, nodes=nodes, test=test), out=path, resume=resume)
