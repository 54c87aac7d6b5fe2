"""The audit of a real training run: canaries in a node's own records, guessed from what it left.

Before the run the owner of some nodes plants canaries: each takes the place of one of the owner's
records, or leaves it there, by a secret fair coin. The run trains as always, with its own noise, in
any layout of processes. Afterwards the coins are guessed from the common model that it released,
and the number of right guesses refutes epsilons (`trade_off`).

The coins lie in a file of mode 0600. Whoever reads it knows which of the records were changed,
so that it must never leave the owner. No guess is made from it: scores are made of the model, of
both forms of every canary and of other records, and the coins are compared with the guesses after.

Canaries are records. J stays as it was, since each stands in the place of another. Between the two
forms of one lies a replacement: one neighbouring step under replace-one, two under
add-or-remove-one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tacit import gradients, privacy
from tacit.analysis.audit.canaries import (
    Alignment,
    Canaries,
    Canary,
    Forms,
    choose_rows,
    guess,
    in_place,
    mislabel,
    unlike,
)
from tacit.analysis.audit.fidelity.finding import ALARM_RATE
from tacit.analysis.audit.trade_off import (
    TradeOff,
    epsilon_of_any,
    epsilon_of_family,
    of_mechanisms,
    p_value,
)
from tacit.analysis.ledger_report import ledger_document
from tacit.base.plain_files import check_plain
from tacit.base.private_files import new_private_file, plain_errors, sync_folder
from tacit.config import GIVEN, Config
from tacit.data import Dataset, StackedData, bounded_inputs
from tacit.errors import FormatError, InputError
from tacit.features.maps import known_features
from tacit.gradients import StackedModel
from tacit.models import architectures as models
from tacit.models.architectures import find_loss, find_output
from tacit.privacy import ADD_OR_REMOVE_ONE
from tacit.privacy.mechanisms.steps import Scheduled, schedule
from tacit.report.documents.claims import PlantedAuditDocument
from tacit.report.documents.run import LET_IT_END, ResultDocument, read_result
from tacit.report.protection import upper_words
from tacit.report.wording import lower_text
from tacit.training.job import DTYPES
from tacit.training.prepare import find_augmentation
from tacit.training.run_folder.folder import MODEL, RESULT, trusted_config

FORMAT_VERSION = "1"
POINTS = 8  # between the start and the released model, where gradients are taken
RIDGE = 1e-2  # of the mean square of a record's gradient
MOST_NUMBERS = 5 * 10**7  # of all gradients at once
MOST_KNOWN = 512  # other records that stand for all


def deployed_lines(audit: PlantedAuditDocument) -> list[str]:
    """The audit for people, a line each."""
    level = f"{100 * audit.confidence:g} % confidence"
    at = f"epsilon at delta {audit.delta:g}"
    certified = math.inf if audit.certified_epsilon is None else audit.certified_epsilon
    lines = [
        f"{audit.canaries} canaries were planted in {len(audit.nodes)} nodes; "
        f"{audit.correct} of {audit.guessed} guesses were right",
        f"{at}: certified {upper_words(certified)}, {audit.relation}",
        f"{at}: at least {lower_text(audit.audited_epsilon)} at {level}, whatever ran",
    ]
    if audit.audited_epsilon_of_plan is not None and audit.noise_less_than is not None:
        lines.append(
            f"{at}: at least {lower_text(audit.audited_epsilon_of_plan)} at {level}, if what ran "
            "is the plan with another amount of noise, which is then less than "
            f"{audit.noise_less_than:.3g} times the planned one"
        )
    return [*lines, audit.verdict]


def plant_canaries(
    nodes: Sequence[Any],
    file: str | Path,
    *,
    loss: str,
    outputs: int = 2,
    own: Sequence[int] | None = None,
    count: int = 200,
    canary: Canary = "unlike",
    input_bound: float | None = None,
) -> list[Any]:
    """Plant canaries in some nodes' records, and keep the coins in a new private file.

    Half of the canaries, those whose coin says so, are then among the records that are trained on,
    and cost the model what as many wrong records cost. The others are as they were.

    Args:
        nodes: each node's `(inputs, targets)` or `Dataset`.
        file: a new one, for the coins and both forms of every canary; it never leaves the owner.
        loss: the task's, by which labels are made wrong.
        outputs: how many classes there are.
        own: the nodes whose records are changed; by default all that are given.
        count: canaries in all; at most half of a node's records.
        canary: what a canary is; `unlike` shows most, `mislabelled` leaves the inputs alone.
        input_bound: the experiment's `task.input_bound`.

    Returns:
        The nodes' records as they are to be trained on, those of other nodes as they were given.

    Raises:
        InputError: the file is there already or cannot be written, there is no such node, its
            records are no tensors or say whose they are, or there would be no canary.
    """
    chosen = tuple(range(len(nodes))) if own is None else tuple(own)
    if not chosen or not all(0 <= node < len(nodes) for node in chosen):
        raise InputError("own", own, f"needs numbers of nodes, 0 to {len(nodes) - 1}")
    held = [_tensors(nodes[node], f"nodes[{node}]") for node in chosen]
    sizes = torch.tensor([len(targets) for _, targets in held])
    data = StackedData(
        torch.cat([inputs for inputs, _ in held]),
        torch.cat([targets for _, targets in held]),
        sizes.cumsum(0) - sizes,
        sizes,
    )
    # Of the system's: a coin that can be told from a seed is no secret.
    rng = np.random.default_rng(secrets.randbits(128))
    rows, places = choose_rows(data, range(len(chosen)), count, rng)
    if not len(rows):
        raise InputError("count", count, "needs a canary: nodes of two records or more, and one")
    coins = np.frombuffer(secrets.token_bytes(len(rows)), np.uint8) % 2 == 1
    was, right = data.inputs[rows], data.targets[rows]
    canaries = Canaries(
        nodes=torch.tensor(chosen)[places],
        inputs=was.clone() if canary == "mislabelled" else unlike(was, rng, input_bound),
        targets=mislabel(right, loss, outputs),
        other_inputs=was,
        other_targets=right,
        included=torch.from_numpy(coins.copy()),
    )
    with_canaries = in_place(data, rows, canaries, ~canaries.included)
    changed: list[Any] = list(nodes)
    for place, node in enumerate(chosen):
        own_rows = slice(int(data.offsets[place]), int(data.offsets[place] + sizes[place]))
        changed[node] = (with_canaries.inputs[own_rows], with_canaries.targets[own_rows])
    together = {name: getattr(canaries, name).contiguous() for name in _FIELDS}
    path = Path(file)
    with plain_errors("file", path):
        try:
            descriptor = new_private_file(path)
        except FileExistsError:
            expected = "is there already: the coins of another run, perhaps; name a new file"
            raise InputError("file", str(path), expected) from None
        with open(descriptor, "wb") as stream:
            stream.write(save(together, {"format_version": FORMAT_VERSION}))
        sync_folder(path.parent)
    return changed


def read_planted(file: str | Path) -> Canaries:
    """The canaries of a file that `plant_canaries` wrote.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    try:
        check_plain(file)
        with safe_open(str(file), framework="pt") as opened:
            version = (opened.metadata() or {}).get("format_version")
        tensors = load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise InputError("--planted", str(file), f"cannot be read ({error})") from None
    if version is not None and version != FORMAT_VERSION:
        raise FormatError(str(file), version, FORMAT_VERSION)
    if version is None or set(tensors) != set(_FIELDS):
        raise InputError("--planted", str(file), "is no file of canaries that were planted")
    return Canaries(**tensors)


_FIELDS = tuple(field.name for field in fields(Canaries))


def audit_deployed(
    run: str | Path,
    planted: str | Path | Canaries,
    *,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    confidence: float = 0.95,
    delta: float | None = None,
    trust: bool = False,
) -> PlantedAuditDocument:
    """Guess the coins from the common model that a run released, and state what that refutes.

    Args:
        run: its folder, with `result.json` and the common model.
        planted: the canaries, or their file.
        model: where the run was given one: the same, with the weights that it started from.
        nodes: each node's records, as they were trained on; those of the canaries' nodes help to
            tell canaries from the other records. None: that is left out.
        confidence: of the bounds.
        delta: at which epsilon is stated; None takes the run's.
        trust: whether functions that the run's experiment names may be imported and called.

    Raises:
        InputError: the run is not finished, not accounted or not of these canaries, its unit is
            not a record, or it names functions that are not trusted.
    """
    folder = Path(run)
    unused: tuple[str, ...] = ("algorithm.name", "task.dataset", "task.metric", "nodes.source")
    if model is not None:
        unused = (*unused, "task.model")
    config = trusted_config(folder, trust, unused=unused)
    if config.privacy.unit_column is not None:
        expected = "must be 'record': canaries that are planted are rows"
        raise InputError("privacy.unit", config.privacy.unit, expected)
    try:
        result = read_result(folder / RESULT)
    except InputError:
        raise InputError("RUN", str(folder), f"has no result yet: {LET_IT_END}") from None
    if result.model_shape is None or not (folder / MODEL).is_file():
        raise InputError("RUN", str(folder), "has no common model")
    canaries = planted if isinstance(planted, Canaries) else read_planted(planted)
    own = tuple(sorted(set(canaries.nodes.tolist())))
    budgets = [
        (result.epsilon[node], result.delta[node]) for node in own if node < result.node_count
    ]
    known = [(e, d) for e, d in budgets if e is not None and d is not None]
    if len(known) != len(own) or result.relation is None:
        raise InputError("RUN", str(run), "has no certified epsilon for the nodes of the canaries")
    stated = max(d for _, d in known) if delta is None else delta
    times = 2 if result.relation == ADD_OR_REMOVE_ONE else 1
    scores = _scores((folder, config), result, canaries, model, nodes)
    guessed = guess(scores, canaries.included.numpy())
    mechanisms = _mechanisms(folder, own)
    family, factor = None, None
    scheduled = [one for one in mechanisms if isinstance(one, Scheduled)]
    if mechanisms and len(scheduled) == len(mechanisms):
        family, factor = epsilon_of_family(
            guessed,
            lambda factor: [
                one.with_schedule([z * factor for z in schedule(one)]) for one in scheduled
            ],
            delta=stated,
            confidence=confidence,
            times=times,
        )
    # The pair that the run states, and all that its mechanism keeps: each is a bound.
    certified = max(e for e, _ in known)
    stated_pair = TradeOff((certified,), (max(d for _, d in known),), times)
    chances = [p_value(guessed, stated_pair)]
    if mechanisms:
        chances.append(p_value(guessed, of_mechanisms(mechanisms, times=times)))
        certified = max(privacy.epsilon(one, delta=stated) for one in mechanisms)
    chance, refuted = min(chances), min(chances) <= 1 - confidence
    told = f"{guessed.correct} of {guessed.guesses} coins were guessed from the released model"
    return PlantedAuditDocument(
        format_version=1,
        audited_epsilon=epsilon_of_any(guessed, delta=stated, confidence=confidence, times=times),
        audited_epsilon_of_plan=family,
        noise_less_than=factor,
        certified_epsilon=certified,
        delta=stated,
        confidence=confidence,
        relation=result.relation,
        nodes=own,
        canaries=guessed.canaries,
        guessed=guessed.guesses,
        correct=guessed.correct,
        chance_if_certified=chance,
        refuted=refuted,
        defect=chance <= ALARM_RATE,
        verdict=(
            f"certificate REFUTED at {100 * confidence:g} % confidence: {told}; a run that "
            f"keeps its certificate shows as much with a chance of at most {chance:.2g}"
            if refuted
            else f"the certificate is not contradicted: {told}"
        ),
    )


def _mechanisms(folder: Path, own: Sequence[int]) -> list[privacy.Mechanism]:
    """What the run's ledger holds of some nodes; none where a step was released more than once.

    A run that ended early released less than its mechanism states.
    """
    report = ledger_document(folder)
    found = []
    for account in report.nodes:
        if account.node not in own:
            continue
        if len(account.releases) != 1 or any(t > 1 for _, _, t in account.releases[0].charged):
            return []
        found.append(privacy.from_statement(report.mechanisms[account.releases[0].mechanism]))
    return list(dict.fromkeys(found)) if len(found) == len(own) else []


def _scores(
    run: tuple[Path, Config],
    result: ResultDocument,
    canaries: Canaries,
    model: nn.Module | None,
    nodes: Sequence[Any] | None,
) -> NDArray[np.float64]:
    """How much of each canary there is in the way from the start to the released model, `[m]`.

    That way is one release, about a sum of clipped gradients, of records in unknown amounts:
    other records are told apart with the canaries, so that what these explain is not put down to a
    canary. Gradients are averaged along the way. No coin is looked at.
    """
    config = run[1]
    start, end = _engines(run, result, canaries, model)
    engine, at = start
    own = sorted(set(canaries.nodes.tolist()))
    form, other = canaries.both
    others = [other]
    if nodes is not None:
        others = [_without(nodes[node], node, canaries) for node in own]
    count = len(canaries.nodes)
    width = max(1, min(MOST_KNOWN, MOST_NUMBERS // engine.parameters_count - count))
    most, picked = -(-width // len(others)), []
    for inputs, targets in others:  # evenly spread
        rows = torch.linspace(0, len(targets) - 1, min(most, len(targets))).long()
        picked.append((inputs[rows], targets[rows]))

    def shown(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        seen = _seen(config, result, inputs)
        seen = seen.to(at.dtype) if seen.is_floating_point() else seen
        bound = config.input_bound
        return (
            seen if bound is None else bounded_inputs(seen, bound),
            targets.to(at.dtype) if targets.is_floating_point() else targets,
        )

    crowd = shown(torch.cat([inputs for inputs, _ in picked]), torch.cat([t for _, t in picked]))
    known = torch.tensor([len(crowd[1])])
    # The common model is of one node, whose records are those of all that hold canaries.
    alignment = Alignment(
        engine,
        StackedData(*crowd, torch.tensor([0]), known),
        known + torch.arange(count),
        Forms(
            torch.zeros(count, dtype=torch.int64),
            *shown(*form),
            *shown(*other),
        ),
        clip_norm="l2",
        joint=True,
        crowd=True,
        ridge=RIDGE,
        most_known=int(known),
    )
    alignment.add(
        [torch.lerp(at, end, share) for share in np.linspace(0.0, 1.0, POINTS).tolist()],
        at - end,
        torch.ones(1, dtype=torch.float64),
        getattr(config.algorithm.options, "clip", None) or 1.0,
    )
    return alignment.scores()


def _seen(config: Config, result: ResultDocument, inputs: Tensor) -> Tensor:
    """Inputs of records as the model sees them: their features, if there are any."""
    name, shape = config.task.feature_map, result.model_shape
    if name is None or shape is None:
        return inputs
    record, dtype = shape.record_shape or (), DTYPES[config.train.dtype]
    return known_features(name, record, shape.input_shape, dtype, torch.device("cpu"))(inputs)


def _engines(
    run: tuple[Path, Config], result: ResultDocument, canaries: Canaries, model: nn.Module | None
) -> tuple[tuple[StackedModel, Tensor], Tensor]:
    """The gradient engine with the start `[1, d]`, and the released model `[1, d]`."""
    folder, config = run
    assert result.model_shape is not None
    for key, value in (("task.loss", config.task.loss), ("task.output", config.task.output)):
        if value == GIVEN:
            raise InputError(key, value, "must be named in the experiment for this audit")
    if model is None and config.task.model == GIVEN:
        raise InputError("model", None, "the run was given one: give the same, as it started")
    dtype = DTYPES[config.train.dtype]
    module = model or models.build_model(
        config.task.model,
        input_shape=result.model_shape.input_shape,
        outputs=result.model_shape.outputs,
        seed=config.train.seed,
    )
    loss = find_loss(config.task.loss, class_weights=config.task.class_weights)
    inputs, targets = (values[:8] for values in canaries.both[-1])
    seen = _seen(config, result, inputs)
    few = seen.to(models.input_dtype(module, seen[:1], dtype))
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    engine = gradients.build(
        module,
        loss,
        few,
        targets,
        dtype=dtype,
        device=torch.device("cpu"),
        output=find_output(config.task.output),
        augmentation=find_augmentation(config, few),
    )
    start = engine.start(1, dtype, torch.device("cpu")).clone()
    try:
        check_plain(folder / MODEL)
        tensors = load_file(folder / MODEL)
        released = [tensors[slot.name].reshape(-1).to(dtype) for slot in engine.layout.slots]
        end = torch.cat(released)[None]
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError("RUN", str(folder / MODEL), f"cannot be loaded ({error})") from None
    if end.shape != start.shape:
        raise InputError("RUN", str(folder), "has another model than the one that is audited")
    return (engine, start), end


def _without(records: Any, node: int, canaries: Canaries) -> tuple[Tensor, Tensor]:
    """A node's records but for its canaries, whichever form of them is there."""
    inputs, targets = _tensors(records, f"nodes[{node}]")
    mine = canaries.nodes == node
    taken = {_bytes(row) for form, _ in canaries.both for row in form[mine].to(inputs.dtype)}
    kept = torch.tensor([_bytes(row) not in taken for row in inputs])
    return inputs[kept], targets[kept]


def _bytes(row: Tensor) -> bytes:
    return row.contiguous().numpy().tobytes()


def _tensors(records: Any, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(records, Dataset):
        if records.units is not None:
            expected = "must not say whose its records are: a canary is a row, and not a unit"
            raise InputError(where, "a Dataset with units", expected)
        if records.packed is not None:
            raise InputError(where, records.packed.words, "must be records of one input")
        return records.inputs, records.targets
    if not (isinstance(records, tuple | list) and len(records) == 2):
        raise InputError(where, type(records).__name__, "must be (inputs, targets) or a Dataset")
    if isinstance(records[0], dict | tuple):
        raise InputError(where, type(records[0]).__name__, "must be records of one input")
    return torch.as_tensor(records[0]), torch.as_tensor(records[1])
