"""From an experiment to all that a run needs: data on every node, the model, and the plan."""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacit import data, gradients
from tacit.communication.peers import ALONE, Peers, Placement, place
from tacit.communication.received import EXPERIMENT, IDENTITY, Experiment
from tacit.config import GIVEN, Config
from tacit.data import Dataset, Schema, StackedData
from tacit.errors import InputError, RecordsError, TacitError
from tacit.features.kept import Kept
from tacit.features.maps import FeatureMap, find_features
from tacit.gradients import AUGMENTATIONS, Augmentation, Loss, Moments, Output, StackedModel
from tacit.gradients.augmentation import ViewFunction
from tacit.gradients.losses import OF_NUMBERS, class_axis
from tacit.gradients.precision import precision_notes
from tacit.gradients.table_storage import available_bytes, table_need
from tacit.models import architectures as models
from tacit.models.architectures import find_loss, find_output
from tacit.models.imports import import_function
from tacit.models.lightning import lightning_loss, lightning_notes
from tacit.models.metrics import Baselines, baselines, check_metrics, find_metrics
from tacit.training.allocator import plain_memory_errors
from tacit.training.job import DTYPES, Job, bounded, bounded_records
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.processes.agreement import (
    WHOLE_SCHEMA,
    agree,
    counts,
    do_without,
    identity,
    planned,
    stated_parts,
)
from tacit.training.recalibration import find_recalibration, halves
from tacit.training.recommend import facts_of, with_settings, with_task
from tacit.training.records import (
    TrainingRecords,
    load_records,
    node_names,
    warn_of_private,
    with_features,
)
from tacit.training.settled import with_clip
from tacit.training.slow_path import slow_path

Function = Callable[[Tensor, Tensor], Any]
"""Of outputs `[r, ...]` and targets `[r, ...]`: a loss or a metric."""


_EXAMPLES = 8  # records that the gradient engine tries itself on
_EXAMPLE_SEED = 22
_DROWNED = 0.1  # of the sum of all eigenvalues, which noise alone may reach
_FAR_TARGET, _FAR_INPUT = 10.0, 100.0  # sizes of numbers that are scaled to no bound
_IMBALANCED = 0.8  # the share of one class above which accuracy says little

_LOG = logging.getLogger("tacit")


@plain_memory_errors()
def prepare(
    config: Config,
    *,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    test: Any = None,
    given_loss: Function | None = None,
    given_metrics: Mapping[str, Function] | None = None,
    output: Output | None = None,
    schema: Schema | None = None,
    peers: Peers = ALONE,
    instead: StackedData | None = None,
    keep_raw: bool = False,
) -> Job:
    """Load and split the data, build the model, make the plan; agree on it with other processes.

    Args:
        config: the experiment.
        model: a module whose present weights are every node's start; None builds
            `[task].model`.
        nodes: each node's records, those of other processes too (they are left alone); None loads
            `[task].dataset` and splits it, or the own data of the nodes of this process.
        test: public test records; None takes the data set's own, if any.
        given_loss: the loss of the task, where it was passed as an object.
        given_metrics: those metrics of the task that were passed as objects, by name.
        output: takes the prediction from what the model returns; None takes `[task].output`.
        schema: of frames; None takes that of `[task].schema`, if any.
        peers: the other processes.
        instead: records in the place of those that are read, as they are before features are made
            of them; an audit puts others there.
        keep_raw: whether a job with features keeps the records that they were made of.

    Raises:
        InputError: something is wrong with the settings, the data or the model, or processes do
            not agree on them.
        BudgetError: a node's budget cannot be met.
        PeerError: another process was lost.
    """
    if config.train.suboptimality and peers.processes > 1 and nodes is not None:
        raise InputError(
            "train.suboptimality",
            True,
            "is of the records of all nodes, and each process was given its own: leave it out, "
            "name a data set that all processes read, or simulate all nodes in one process",
        )
    wanted = peers.placed(config.nodes.placement)
    placement = place(config.nodes.count, peers.processes, wanted)
    hosted = placement.hosted(peers.rank)
    device = _device(config.train.device)
    dtype = DTYPES[config.train.dtype]
    _LOG.info("reading the records of %d nodes", len(hosted))
    records = load_records(config, nodes, test, schema, dtype, device, hosted, instead)
    config = config.with_names(node_names(records.names, placement, peers))
    if instead is None and records.test is not None:
        warn_of_private("test", records.test.inputs, records.train.inputs)
    config = with_task(config, facts_of(config, records, ()))
    raw, classes = records.train, records.classes
    packed = raw.packed
    tables = {} if records.schema is None else records.schema.tables
    if packed is not None:
        _check_packed(config, built_in=bool(tables))
    named = "task.dataset" if config.task.test is None else "task.test"
    shown = named if test is None else "test"
    features = _features(config, records, shown, dtype, device)
    if features is not None:
        _LOG.info("computing the features of all records")
        folder = config.task.features_cache if instead is None else None
        records = with_features(features, records, hosted, None if folder is None else Kept(folder))
    train, public = records.train, records.test
    fitting = public
    if config.task.calibrate == "public" and public is not None:
        public, fitting = halves(public)
    first = train.first
    own_loss = None
    if config.task.loss == GIVEN and given_loss is None:
        own_loss = lightning_loss(model)
    loss = own_loss or find_loss(config.task.loss, given_loss)
    if config.task.class_weights is not None:
        loss = gradients.weighted(loss, config.task.class_weights)
    unscaled = None if records.schema is None else records.schema.target.unscaled
    metrics = find_metrics(config.task.metric, given_metrics, unscaled)
    if metrics and public is None:
        expected = (
            "is a score of public test records, and there are none: give some, or leave it out"
        )
        raise InputError("task.metric", metrics[0].name, expected)
    if public is not None:
        declared = config.task.outputs if loss.name == "cross-entropy" else None
        _check_public(public, first, shown, declared or classes)
    given_model = model
    if model is None:
        if config.task.model == GIVEN:
            raise InputError("task.model", GIVEN, "pass the module as model=, or name a model")
        model = models.build_model(
            config.task.model,
            input_shape=tuple(first.inputs.shape[1:]),
            outputs=config.task.outputs or _outputs(loss, public, first, classes),
            seed=config.train.seed,
            tables=tables,
        )
    layout = data.record_layout(raw.first)
    if features is not None:
        layout["record features"] = features.identity
    schema_digest = None if records.schema is None else records.schema.digest
    if records.schema is not None:
        layout |= stated_parts(records.schema.stated) | {WHOLE_SCHEMA: records.schema.digest}
    # What is tried out, and may be refused for what comes of it, are no private records.
    example = _made(model, loss, first) if public is None else _few(public)
    kind = models.input_dtype(model, example.inputs, dtype)
    kind = dtype if first.inputs.is_floating_point() else kind
    example = _on_device(example, kind, dtype, device)
    _LOG.info("looking for the quickest way to the gradients of every record")
    moments = _moments(config, model, loss)
    try:
        engine = gradients.build(
            model if moments is None else moments.module,
            loss if moments is None else moments.loss,
            example.inputs,
            example.targets,
            dtype=dtype,
            device=device,
            output=find_output(config.task.output) if output is None else output,
            augmentation=find_augmentation(config, example.inputs),
            unit_rows=None if train.units is None else train.units.rule.most,
            packed=packed,
            precision=config.train.precision,
        )
    except RecordsError as error:  # a few of them were tried
        raise RecordsError(shown, "some of its records", error.expected) from None
    except InputError as error:
        if public is None and error.where == "task.model" and error.__cause__ is not None:
            expected = f"{error.expected} (the records it was tried on were made up, {_MADE_UP})"
            raise InputError(error.where, error.value, expected) from error
        if error.where != "task.dataset":
            raise
        # What was tried is shaped and typed as public records are, or else as those of every node.
        count = int(train.sizes[0]) if public is None else len(public)
        found = f"targets {[count, *example.targets.shape[1:]]} of {example.targets.dtype}"
        where = records.whose[0] if public is None else shown
        raise InputError(where, found, error.expected) from None
    engine = replace(engine, moments=moments)
    chosen = config.algorithm
    keeps = chosen.definition.table(chosen.options) is not None
    if keeps or chosen.definition.differences:
        gradients.refuse_coins(engine)
    outputs = engine.outputs(engine.start(1, dtype, device), example.inputs)[0]

    def scored(some: Dataset | None) -> Dataset | None:
        if some is None:
            return None
        records = _on_device(some, kind, dtype, device)
        return replace(records, inputs=bounded(config, records.inputs))

    held_out = scored(public)
    given = _given(config, outputs, example.targets)
    if held_out is not None:
        _check_fit(loss.check, outputs, held_out.targets, shown)
    if not train.bytes:
        train = replace(train, stored=train.stored.to(kind))
    loaded = train if features is None else raw
    train = bounded_records(config, train)
    _check_records(engine, loss, outputs, train, records.whose)
    if config.accounted and moments is None and instead is None:
        _check_scale(config, loss, train, records.whose)
    ignorant = Baselines()
    if held_out is None:  # of made-up targets, once it is known that those of the nodes will do
        _check_fit(loss.check, outputs, example.targets, shown)
    else:
        check_metrics(metrics, loss, outputs, held_out.targets, config.train.evaluate_records)
        ignorant = baselines(metrics, loss, outputs, held_out.targets)
    recalibration, how = None, config.task.calibrate
    if how != "none":
        recalibration = find_recalibration(how, engine, loss, scored(fitting), dtype)
    settled, rule = with_clip(config, engine, held_out)
    counted = _agreed_records(config, engine, train, dtype, placement, peers, layout)
    table = _table_notes(config, engine, train.counts.tolist(), dtype)
    described = () if features is None else (features.note(),)
    passes = precision_notes(config.train.precision, device)
    described = (*described, *_view_notes(engine), *passes)
    notes = (*rule, *records.notes, *described, *table, *lightning_notes(model, loss))
    if moments is not None and moments.target_bound is not None:
        shortened = f"targets longer than {moments.target_bound:.6g} are shortened to it"
        notes += (f"{shortened}: a public bound, algorithm.target_bound",)
    cautions = _imbalance(config, loss, ignorant)
    linear = engine.path == "closed form"
    seen = facts_of(config, records, counted)
    try:
        settled, completed = with_settings(settled, seen, engine.parameters_count)
        notes += completed
        plan = build_plan(
            settled,
            counted,
            engine.parameters_count,
            notes,
            cautions,
            linear=linear,
            person=records.person,
        )
    except TacitError as error:
        if peers.session.rejoins is None:  # the others had a plan without who has come back
            back = [rank for rank in range(peers.processes) if peers.can_spare({rank})]
            do_without(peers, back, f"came back, and there is no plan with them: {error}")
        raise
    plan = replace(
        plan, schema=schema_digest, features=None if features is None else features.identity
    )
    if moments is not None:
        if plan.noisy:  # of the first step's own noise in the mean over all nodes
            own = [plan.release.noise_std(node, 0) / node.divisor for node in plan.nodes]
            averaged = round(math.fsum(node.weight for node in plan.nodes))  # over by a server
            deviation = math.sqrt(math.fsum(std**2 for std in own)) / averaged
            moments = replace(moments, deviation=deviation)
        engine = replace(engine, moments=moments)
        plan = replace(plan, cautions=(*plan.cautions, *_moment_cautions(plan, moments)))
    slow = slow_path(engine, example.inputs, example.targets, dtype)
    if slow is not None:
        batches = [plan.nodes[node].expected_batch for node in hosted]
        warning = slow.warning(batches, plan.release.local_steps)
        cautions = plan.cautions if warning is None else (*plan.cautions, warning)
        plan = replace(plan, cautions=cautions, notes=(*plan.notes, slow.note()))
    _LOG.info("plan made: %s", _words(plan))
    plans = peers.share("plan", planned(plan), IDENTITY)
    agree(plans, peers)

    again = partial(
        prepare,
        config,
        model=given_model,
        nodes=nodes,
        test=test,
        given_loss=given_loss,
        given_metrics=given_metrics,
        output=output,
        schema=schema,
    )
    return Job(
        plan=plan,
        model=engine,
        train=train,
        test=held_out,
        loss=loss,
        metrics=metrics,
        baselines=ignorant,
        outputs=given,
        output_shape=tuple(outputs.shape[1:]),
        placement=placement,
        authenticated=peers.authenticated,
        hosted=hosted,
        loaded=train if config.privacy.ledger is None else loaded,
        features=features,
        raw=raw if features is not None and keep_raw else None,
        schema=records.schema,
        recalibration=recalibration,
        again=lambda other, listening: again(peers=listening, instead=other),
    )


_MADE_UP = (
    "as there are no public ones: normal numbers, and ids that every embedding has; give test "
    "records, or what is a code as integers, an input of its own beside the numbers"
)


def _check_packed(config: Config, *, built_in: bool) -> None:
    expected, task = "is for records of one input, and these have several", config.task
    if not built_in and task.model != GIVEN and ":" not in task.model:
        more = f"{expected}: give a module of your own, whose forward takes them"
        raise InputError("task.model", task.model, more)
    of_one = {
        "augmentation": task.augmentation,
        "input_bound": config.input_bound,
        "features": task.feature_map,
    }
    for key, value in of_one.items():
        if value is not None:
            raise InputError(f"task.{key}", value, f"{expected}: leave it out")


def find_augmentation(config: Config, examples: Tensor) -> Augmentation | None:
    """What the views of a record are, as `[task].augmentation` and `[train].views` say.

    Views of a user's own stay within `input_bound`; those that are built in lengthen no record.
    `examples` `[few, ...]` are inputs as the model takes them. What is not for such records, or
    cannot be found, is refused.
    """
    name, views, bound = config.task.augmentation, config.train.views or 1, config.input_bound
    if name is None:
        return None
    if name in AUGMENTATIONS:
        ids = not examples.is_floating_point()
        return gradients.image_views(name, views, tuple(examples.shape[1:]), ids)
    function: ViewFunction = import_function(name, "task.augmentation")
    if bound is None:
        return Augmentation(name, function, views)

    def bounded(records: Tensor, coins: Tensor) -> Tensor:
        return data.bounded_inputs(function(records, coins), bound)

    return Augmentation(name, bounded, views)


def _view_notes(engine: StackedModel) -> tuple[str, ...]:
    chosen = engine.augmentation
    if chosen is None:
        return ()
    many = "1 view" if chosen.views == 1 else f"{chosen.views} views"
    work = "" if chosen.views == 1 else f", and take the work of {chosen.views} times the records"
    note = (
        f"augmentation {chosen.name}: {many} of each record, new ones at every step, over which "
        f"its gradient is averaged before the clip; they cost no privacy{work}"
    )
    if not chosen.alone:
        return (note,)
    return (
        note,
        f"{chosen.name} is called for one view after the other, which is slow, because nothing "
        "else shows that what it makes of a record does not depend on other records "
        "(torch.func.vmap cannot follow it)",
    )


def _moments(config: Config, model: nn.Module, loss: Loss) -> Moments | None:
    chosen, bound = config.algorithm, config.input_bound
    if chosen.definition.moments is None or bound is None:
        return None
    if config.task.output is not None:
        expected = "is for models of another kind than the linear one that this algorithm solves"
        raise InputError("task.output", config.task.output, expected)
    found: Moments = chosen.definition.moments(chosen.options, model, loss, bound)
    return found


def _moment_cautions(plan: Plan, moments: Moments) -> tuple[str, ...]:
    """That moments are of few records, or that their noise is beyond what they could say."""
    cautions: tuple[str, ...] = ()
    if any(node.rate < 1 for node in plan.nodes):
        cautions += (
            "moments are released once: train.batch = 'all' takes all records into them, with much "
            "less noise for the same epsilon",
        )
    if moments.noise_norm > _DROWNED:
        cautions += (
            f"the noise of the moments has eigenvalues up to {moments.noise_norm:.2g} in the mean "
            "over all nodes, and those of the records add up to 1 at most: little is left of what "
            "they say; take fewer features, more records, a larger epsilon or noise of pairs",
        )
    return cautions


def _imbalance(config: Config, loss: Loss, ignorant: Baselines) -> tuple[str, ...]:
    share = ignorant.accuracy
    if config.task.metric is not None or share is None or share <= _IMBALANCED:
        return ()
    weights = "" if loss.weights else ", and task.class_weights makes rare classes count for more"
    return (
        f"{share:.1%} of the public test records are of one class, so that a model which ignores "
        f"its inputs has this accuracy: task.metric = 'auc' says more{weights}",
    )


def _words(plan: Plan) -> str:
    task, spent = plan.config.task, [node.epsilon for node in plan.nodes if node.epsilon]
    epsilon = f"epsilon {max(spent):.4g}" if spent else "no epsilon"
    return (
        f"{plan.config.algorithm.name} on {task.dataset}, {len(plan.nodes)} nodes, "
        f"{plan.steps} steps, {epsilon}"
    )


def _agreed_records(
    config: Config,
    model: StackedModel,
    train: StackedData,
    dtype: torch.dtype,
    placement: Placement,
    peers: Peers,
    layout: Mapping[str, str],
) -> list[int]:
    start = model.start(1, dtype, "cpu")[0]
    shapes = {slot.name: slot.shape for slot in model.layout.slots}
    computed = {"gradient path": model.path, "device": train.targets.device.type}
    settings = identity(config, layout=shapes, start=start, dtype=dtype)
    own = Experiment(identity={**settings, **layout, **computed}, records=train.counts.tolist())
    experiments = peers.share("experiment", own, EXPERIMENT)
    agree([experiment.identity for experiment in experiments], peers)
    absent = [site.rank for site in peers.seen() if site.left_from == 0]
    return counts([experiment.records for experiment in experiments], placement, absent)


def _table_notes(
    config: Config, model: StackedModel, records: Sequence[int], dtype: torch.dtype
) -> tuple[str, ...]:
    chosen = config.algorithm
    request = chosen.definition.table(chosen.options)
    if request is None:
        return ()
    need = table_need(model, records, dtype, mini_batch=request.mini_batch)
    free = available_bytes(config.train.device)
    if request.directory is None and need.bytes > free:
        raise InputError(
            "algorithm.state",
            "private",
            f"its gradient table would take {need.bytes / 2**30:.3g} GiB of memory, and "
            f"{free / 2**30:.3g} are available: keep it on disk (algorithm.table_directory), store "
            "mini-batches in place of records (algorithm.table_batch), or use state = 'public'",
        )
    return (need.describe(),)


def _features(
    config: Config,
    records: TrainingRecords,
    where: str,
    dtype: torch.dtype,
    device: torch.device,
) -> FeatureMap | None:
    """The feature map, tried out on public records (errors call them `where`), or made-up ones."""
    if config.task.feature_map is None:
        return None
    first, public = records.train.first, records.test
    examples = _made_inputs(first).to(device)
    if public is not None:
        _check_public(public, first, where, None)
        examples = data.stack([_few(public)], dtype, device).inputs
    return find_features(config.task.feature_map, examples, dtype, device)


def _check_public(public: Dataset, first: Dataset, where: str, classes: int | None) -> None:
    """Public test records must be shaped as the nodes', and hold no class that is not declared."""
    data.check_dataset(public, where, classes)
    if public.packed != first.packed:
        shown = [part.packed.words if part.packed else "one input" for part in (public, first)]
        expected = f"must have the inputs of the nodes' records: {shown[1]}"
        raise InputError(where, f"records of {shown[0]}", expected)
    if public.inputs.shape[1:] != first.inputs.shape[1:]:
        raise InputError(
            where,
            f"records of shape {list(public.inputs.shape[1:])}",
            f"must be shaped as the nodes' records: {list(first.inputs.shape[1:])}",
        )


def _given(config: Config, outputs: Tensor, targets: Tensor) -> int:
    """How many numbers the model gives for a record, or for a place of it: as are declared."""
    declared, given = config.task.outputs, outputs[0].numel()
    axis = class_axis(outputs, targets) if outputs.ndim > 2 else None
    if axis is not None and not targets.is_floating_point():
        given = outputs.shape[axis]
    if declared is not None and declared != given:
        expected = f"the model gives {given} numbers for a record: write that, or leave it out"
        raise InputError("task.outputs", declared, expected)
    return given


def _check_fit(
    check: Callable[[Tensor, Tensor], None], outputs: Tensor, targets: Tensor, where: str
) -> None:
    """Ask targets `[r, ...]` for a rule of the loss.

    `check` is that of a loss, or its `check_records` for private targets; `outputs` `[few, ...]`
    are of a few records. An error names `where`.
    """
    try:
        check(outputs, targets)
    except InputError as error:
        if error.where != "task.dataset":
            raise
        raise type(error)(where, error.value, error.expected) from None


def _few(public: Dataset) -> Dataset:
    """Some public records, from all over: where they are sorted, the first may be equal."""
    rows = torch.linspace(0, len(public) - 1, _EXAMPLES).long()
    return public.chosen(rows.numpy())


def _made(model: nn.Module, loss: Loss, first: Dataset) -> Dataset:
    """Records of the shape and type of the nodes', drawn from a seed that everyone knows.

    Numbers are normal; integers may be ids, and lie in the smallest embedding; targets are
    labels 0 and 1, or lie between them.
    """
    generator = torch.Generator().manual_seed(_EXAMPLE_SEED)
    rows = [
        module.num_embeddings
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ]
    inputs = _made_inputs(first, min(rows, default=2), generator)
    targets = torch.rand(_EXAMPLES, *first.targets.shape[1:], generator=generator)
    if loss.labels or not first.targets.is_floating_point():
        targets = targets.round()
    return data.Dataset(inputs, targets.to(first.targets.dtype), packed=first.packed)


def _made_inputs(first: Dataset, ids: int = 2, generator: torch.Generator | None = None) -> Tensor:
    """Normal numbers, or ids below `ids`, in the shape and type of the nodes' inputs."""
    generator = generator or torch.Generator().manual_seed(_EXAMPLE_SEED)
    shape = (_EXAMPLES, *first.inputs.shape[1:])
    inputs = torch.randn(shape, generator=generator)
    if first.packed is not None:  # ids 0 and 1, which any embedding has
        inputs = first.packed.possible(inputs, torch.arange(2.0)[:, None].expand(2, *shape[1:]))
    if not first.inputs.is_floating_point():
        inputs = torch.randint(ids, shape, generator=generator)
    return inputs.to(first.inputs.dtype)


def _on_device(
    records: Dataset, kind: torch.dtype, dtype: torch.dtype, device: torch.device
) -> Dataset:
    """Records on the run's device, inputs in the type that the model takes."""
    alone = data.stack([records], dtype, device)
    return data.Dataset(alone.inputs.to(kind), alone.targets, packed=records.packed)


def _check_records(
    engine: StackedModel, loss: Loss, outputs: Tensor, train: StackedData, whose: Sequence[str]
) -> None:
    """Ask every node's records for the public rules, before anything is sent."""
    tables = nn.Embedding | nn.EmbeddingBag
    ids = any(isinstance(part, tables) for part in engine.original.modules()) or (
        train.packed is not None and train.packed.has_ids
    )
    if not train.bytes and not train.stored.is_floating_point():
        ids = True
    if ids:
        module = copy.deepcopy(engine.original).to(outputs.dtype)
        module = engine.wired(module, outputs.dtype)
    fits = False
    if not ids:  # all at once: a node at a time takes longer
        with suppress(InputError):
            loss.check_records(outputs, train.targets)
            fits = True
    ends = zip(whose, train.offsets.tolist(), train.sizes.tolist(), strict=True)
    for name, start, size in () if fits else ends:
        rows = slice(start, start + size)
        _check_fit(loss.check_records, outputs, train.targets[rows], name)
        if not ids:
            continue
        numbers = torch.arange(start, start + size, device=train.targets.device)
        wrong = models.failures(module, train.inputs_of(numbers))
        if wrong:
            rule = "every id must have a row in the model's embeddings"
            raise RecordsError(name, f"{wrong:,} of {size:,} records", rule)


def _check_scale(config: Config, loss: Loss, train: StackedData, whose: Sequence[str]) -> None:
    """Refuse targets far outside [-1, 1], to which clipped gradients do not lead in any steps.

    Of such inputs the own screen is told.
    """
    bound, far = config.task.target_bound or _FAR_TARGET, []
    measured = train.stored.is_floating_point() and train.packed is None and not train.bytes
    scaled = not measured or config.input_bound is not None
    numbers = loss.formula in OF_NUMBERS
    if not (numbers and _largest(train.targets) > bound) and (
        scaled or _largest(train.stored) <= _FAR_INPUT
    ):
        return
    remedy = "scale them by public bounds to about -1 to 1, or declare"
    for name, start, size in zip(whose, train.offsets.tolist(), train.sizes.tolist(), strict=True):
        rows = slice(start, start + size)
        large = train.targets[rows].reshape(size, train.targets[:1].numel()).abs() > bound
        if numbers and large.any():
            rule = f"targets must lie within -{bound:g} and {bound:g}: {remedy} task.target_bound"
            raise RecordsError(name, f"{int(large.any(1).sum()):,} of {size:,} records", rule)
        if not scaled and size and float(train.stored[rows].abs().max()) > _FAR_INPUT:
            far.append(name)
    if far:
        names = far[0] if len(far) == 1 else f"{far[0]} and {len(far) - 1} more"
        what = f"inputs of {names} are beyond {_FAR_INPUT:g}, and the clip leaves little of others"
        _LOG.warning("%s: %s task.input_bound", what, remedy)


def _largest(values: Tensor) -> float:
    return float(torch.stack(values.aminmax()).abs().max()) if values.numel() else 0.0


def _outputs(loss: Loss, public: Dataset | None, first: Dataset, classes: int | None) -> int:
    """Numbers that the model gives for a record, as public records show them."""
    shown = first.targets[:0] if public is None else public.targets  # of no private label
    outputs = loss.outputs(shown, classes)
    if outputs is None:
        raise InputError(
            "task.outputs",
            None,
            "write how many classes there are, such as task.outputs = 10: neither the data set nor "
            "public test records say it, and labels of the nodes' own records are private",
        )
    return outputs


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        if name == "cuda" and "LOCAL_RANK" in os.environ:  # of the processes of one machine
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.zeros(1, device=device).item()  # "meta" and the like hold no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            "train.device", name, f"cannot be used here ({reason}); try 'cpu'"
        ) from None
    return device
