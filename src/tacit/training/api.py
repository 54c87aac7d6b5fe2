"""Training in one call: what `tacit train` does, for Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.communication.crew import Crew
from tacit.communication.peers import ALONE, Peers
from tacit.config import GIVEN, Config, load_config
from tacit.data import Schema
from tacit.data.tables import is_frame
from tacit.errors import InputError, NotPrivateWarning, nearest
from tacit.models.lightning import lightning_loss
from tacit.models.metrics import named_metrics
from tacit.training.hooks import Callback, checked_callbacks
from tacit.training.job import Job
from tacit.training.loop import execute
from tacit.training.prepare import Function, prepare
from tacit.training.processes.agreement import agreed_folder, with_processes
from tacit.training.records import node_records, with_units
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder.result import Result

Source = str | Path | Mapping[str, Any] | Config
_DATA = ("model", "nodes", "test", "loss", "metric", "output", "schema", "units", "graph")


def train(
    config: Source,
    *,
    model: nn.Module | None = None,
    nodes: Any = None,
    test: Any = None,
    loss: str | Function | None = None,
    metric: str | Function | Sequence[str | Function] | None = None,
    output: str | int | Callable[[Any], Any] | None = None,
    schema: str | Path | Mapping[str, Any] | Schema | None = None,
    units: Any = None,
    graph: Any = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: bool = False,
    distributed: bool = False,
    site: str | Path | None = None,
    allow_insecure_network: bool = False,
) -> Result:
    """Train one model across nodes, each within its privacy budget.

    A run that guarantees nothing warns with a `NotPrivateWarning`: one whose algorithm adds no
    noise, that was asked for with `epsilon = "none"`, `noise_seed` or `accounting = "none"`, or
    whose noise is too small for any finite epsilon.

    Args:
        config: a path of an experiment file, the same as a mapping, or a `Config`.
        model: a module whose present weights are every node's start; by default `[task].model`.
            A LightningModule brings its loss along (`tacit.models.lightning`), unless
            `[task].loss` is set.
        nodes: each node's `(inputs, targets)` or `Dataset`, in a list or by the nodes' names; or,
            with a schema, each node's frame of pandas or polars or the path of its table, or one
            frame or path of all with the schema's node column. By default `[task].dataset` is
            loaded and split.
        test: public test records, likewise; by default those of `[task].dataset`.
        loss: in place of `[task].loss`: a name, or a function (outputs `[r, ...]`, targets
            `[r, ...]`) -> mean loss over the records, a scalar.
        metric: in place of `[task].metric`: a name, a function (outputs, targets) -> one number for
            all the public test records, or a list of these, of which the first leads. Of a function
            larger numbers are better.
        output: which part of what the model returns is the prediction: a key, an attribute, a
            position, or a function of what it returns; by default `[task].output`.
        schema: what is public of the columns of tables: a path, a mapping or a `Schema`; by
            default `[task].schema`, and of a path in `nodes` the schema beside it.
        units: whose each record of `nodes` is, such as the number of a person: one array of texts
            or whole numbers a node, in a list or by the nodes' names as `nodes`. They count where
            the experiment says so (`privacy.unit = "column:NAME"`, by any name). Of a table its
            schema says it.
        graph: in place of `[topology].graph`: a name, a graph of networkx, a matrix of NumPy or
            SciPy (`tacit.topology.own`), or a list of these, which take turns.
        callbacks: told of the run while it goes on (`tacit.callbacks`), in the process of rank 0.
            One that ends the run early leaves all planned steps charged.
        out: a new run folder; by default nothing is written.
        resume: continue the run in `out`.
        distributed: take part in a run of several processes, as torchrun started this one; the
            result has the models of this process's nodes, and the common one.
        site: take part as the site of a consortium whose folder this is; `out` must be given, and
            its name is that of the run, the same at each site. A run that this site was in already
            goes on.
        allow_insecure_network: whether they may talk in clear over a public address.

    Raises:
        InputError: something given is wrong; names it.
        BudgetError: a node's budget cannot be met.
        DivergenceError: the model of a node left the finite numbers.
        PeerError: another process was lost.
    """
    data = (model, nodes, test, loss, metric, output, schema, units, graph)
    parsed, job_among = understood(config, out, dict(zip(_DATA, data, strict=True)))
    called = checked_callbacks(callbacks)
    path = None if out is None else Path(out)
    own_site = None if site is None else Path(site)
    if path is not None and not resume and not distributed and own_site is None:
        folders.check_new(path)

    def take_part(cluster: Crew | None, resume: bool) -> Result:
        peers: Peers = ALONE if cluster is None else cluster
        folder = path
        if path is not None:
            # After a restart by torchrun, the arguments are as they were.
            folder, resume = agreed_folder(cluster, path, resume, lambda: Path("runs"))
        job = job_among(peers)
        warn_of(job, 4 if cluster is None else 5)  # who called `train`
        return execute(job, out=folder, resume=resume, callbacks=called, cluster=cluster)

    if not distributed and own_site is None:
        return take_part(None, resume)
    return with_processes(
        parsed,
        take_part,
        resume=resume,
        allow_insecure_network=allow_insecure_network,
        site=own_site,
        out=path,
    )


def understood(
    config: Source, out: object, data: Mapping[str, Any]
) -> tuple[Config, Callable[[Peers], Job]]:
    """The experiment that arguments of `train` speak of, and what prepares it among peers."""
    for name in data.keys() - set(_DATA):
        raise InputError(name, data[name], f"is no argument; {nearest(name, _DATA)}")
    model, nodes, test, loss, metric, output, schema, units, graph = map(data.get, _DATA)
    check_arguments(config, model, nodes, out, loss)
    nodes, declared, names = node_records(nodes, schema)
    nodes = with_units(nodes, units, declared, names)
    given_metrics = named_metrics(metric)
    task: dict[str, Any] = {}
    if loss is not None:
        task["loss"] = loss if isinstance(loss, str) else GIVEN
    if given_metrics:
        task["metric"] = list(given_metrics)
    if output is not None:  # a function cannot be written down; that there is one can
        task["output"] = GIVEN if callable(output) else output
    # Where `[task].loss` is not set: the module's own, or what goes with the target.
    default_loss = None if declared is None else declared.target.loss
    if lightning_loss(model) is not None:
        default_loss = GIVEN
    parsed = load_config(
        config,
        count=None if nodes is None else len(nodes),
        names=names,
        given_model=model is not None,
        task=task,
        loss=default_loss,
    )
    if graph is not None:
        parsed = parsed.with_keys(topology={"graph": graph, "undirected": None})

    given = partial(
        prepare,
        parsed,
        model=model,
        nodes=nodes,
        test=test,
        given_loss=None if isinstance(loss, str) else loss,
        given_metrics={name: one for name, one in given_metrics.items() if one is not None},
        output=output if callable(output) else None,
        schema=declared,
    )
    return parsed, lambda peers: given(peers=peers)


def check_arguments(
    config: object, model: object, nodes: object, out: object, loss: object = None
) -> None:
    """Refuse arguments of `tacit.train` that are of a wrong kind, with an `InputError` on each."""
    if not isinstance(config, str | os.PathLike | Mapping | Config):
        expected = (
            "must be the path of an experiment file, a mapping of its sections such as "
            "{'task': {'dataset': 'digits'}}, or a tacit.Config"
        )
        raise InputError("config", _kind(config), expected)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError("out", out, "must be the path of a new run folder")
    if loss is not None and not (isinstance(loss, str) or callable(loss)):
        raise InputError("loss", loss, "must be the name of a loss, or a function")
    if model is not None:
        _check_model(model)
    if not (nodes is None or isinstance(nodes, str | os.PathLike) or is_frame(nodes)):
        _check_nodes(nodes)


def _check_model(model: object) -> None:
    if isinstance(model, type) and issubclass(model, nn.Module):
        expected = f"is a class: pass an instance, such as {model.__name__}(...)"
        raise InputError("model", _kind(model), expected)
    if not isinstance(model, nn.Module):
        raise InputError("model", _kind(model), "must be a torch.nn.Module")
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        if values.is_meta:
            expected = (
                "is on the device 'meta', and has no numbers: build the module on 'cpu', or call "
                "its to_empty(device='cpu') and load its weights"
            )
            raise InputError("model", name, expected)
        if values.is_complex():
            raise InputError("model", name, "has complex numbers: parameters must be real")


def _check_nodes(nodes: object) -> None:
    expected = "must be a list with one data set a node, or a mapping by their names"
    if isinstance(nodes, Mapping):
        names = ["" if name is None or name != name else str(name) for name in nodes]
        if not names or "" in names or len(set(names)) < len(names):
            rule = "must have one data set a node, each by a name of its own"
            raise InputError("nodes", names, rule)
        return
    if isinstance(nodes, str | bytes | torch.Tensor) or not isinstance(nodes, Sequence):
        raise InputError("nodes", _kind(nodes), f"{expected}: [(inputs, targets), ...]")
    if not nodes:
        raise InputError("nodes", "[]", "needs one data set a node")
    if len(nodes) == 2 and all(isinstance(part, torch.Tensor) for part in nodes):
        raise InputError("nodes", "a pair of tensors", f"{expected}; of a single node, [nodes]")


def _kind(value: object) -> str:
    """The type of an argument, or the class that was given in place of an object."""
    return repr(value) if value is None or isinstance(value, type) else type(value).__name__


def warn_of(job: Job, above: int) -> None:
    """Warn who called, so many frames above, of a run that guarantees nothing."""
    if job.plan.not_private_warning is not None:
        warnings.warn(job.plan.not_private_warning, NotPrivateWarning, stacklevel=above)
