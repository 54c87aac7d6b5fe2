"""Making a plan: from an experiment and the sizes of the nodes' data, or a refusal."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tacit import privacy
from tacit.algorithms import Activity, Schedules, Setup
from tacit.config import Config, Privacy
from tacit.config.checks import CONVEX_MODELS, check_graph, check_messages
from tacit.config.schema import CALIBRATE_SHARE, MOST_EPSILON
from tacit.errors import BudgetError, InputError
from tacit.gradients.clipping import check_clip
from tacit.models.imports import call_function
from tacit.privacy.accounting.calibration import least_scale
from tacit.privacy.noise.matrix import MatrixNoise
from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
)
from tacit.topology.graphs import KEYS
from tacit.topology.mixing import Mixing, build_mixing, server_averaging
from tacit.topology.own import build_schedule
from tacit.training import weights
from tacit.training.averages import average_note
from tacit.training.consensus import (
    choose,
    consensus_forecast,
    consensus_warning,
)
from tacit.training.faults import FaultPlan, fault_plan, taking_part
from tacit.training.plan import Plan, unit_of
from tacit.training.release import Interval, NodePlan, Release, make_release
from tacit.training.rounds import contraction_of_rounds, planned_rounds
from tacit.training.settled import (
    automatic_batch,
    check_sums,
    epochs_note,
    with_noise_over_time,
    with_rate,
)
from tacit.training.shared_noise import (
    PairNoise,
    SecureSums,
    check_range,
    partners,
    root_mean_square,
)

# Attempts at a better shape of the nodes' own noise, how much less noise is worth one, and what a
# quotient may have lost to rounding.
_SHAPES = 20
_WORTHWHILE = 0.01
_UPWARDS = 1 + 1e-12
# That the largest pair noise is computed from other sums, which err in their last digits.
_ROUNDED = 1 + 1e-6

_log = logging.getLogger(__name__)

_CHECKS = {
    "column-stochastic": check_column_stochastic,
    "doubly-stochastic": check_doubly_stochastic,
}


def build_plan(
    config: Config,
    records: Sequence[int],
    parameters: int,
    notes: Sequence[str] = (),
    cautions: Sequence[str] = (),
    *,
    linear: bool = False,
    person: str | None = None,
) -> Plan:
    """Decide everything: what is released first, noise calibrated on it, then the plan, at once.

    `records` is J of each node, `parameters` is d; `notes` and `cautions` are further lines.
    `linear`: whether the model is one linear layer, with closed-form gradients. `person`: what
    those are called whose the records are; None: nobody said.

    Raises:
        InputError: the settings contradict each other or the data.
        BudgetError: a node's budget cannot be met.
    """
    check_messages(config.topology, config.algorithm, config.faults)
    weights.check_empty(config, records)
    unit = unit_of(config, person)
    if config.train.batch == "auto":
        batch, reason = automatic_batch(config, records, linear)
        config = config.with_keys(train={"batch": batch})
        notes = notes if reason is None else (*notes, unit.said(reason))
    config, rule = with_rate(config)
    notes = (*rule, *notes)
    mixing = _mixing(config)
    section = config.algorithm
    options, note = section.definition.settled(section.options, mixing, parameters)
    if note is not None:  # options that the graph decides in numbers
        config, notes = config.with_keys(algorithm={"options": options}), (*notes, note)
    schedules = _schedules(config, records)
    sampled = [_sampling(config, schedules, *pair) for pair in enumerate(records)]
    rounds = planned_rounds(config)
    faults = fault_plan(config, mixing, rounds)
    definition, setup = config.algorithm.definition, _setup(config, mixing, records, parameters)
    drawn = definition.participation.activity(setup)
    weighed = config.topology.mixing or (mixing.schedule.entries and "of the graph's own")
    if drawn is not None and drawn.partner is not None and weighed:
        raise InputError(
            "topology.mixing",
            weighed,
            f"weighs a node's neighbours, and {definition.name} averages pairs of nodes: leave it "
            "out",
        )
    activity = taking_part(drawn, faults, config.train.steps)
    sending = weights.sending(definition, activity, records, config.train.steps)
    if config.weights != "noise":
        sampled = weights.weighed(config, sampled, sending)
    definition = with_noise_over_time(config, definition, sampled, sending)
    release = make_release(definition, setup, schedules, sending, config.privacy.published_constant)
    if isinstance(noise := definition.releases.noise, MatrixNoise):
        release = replace(release, over_time=noise)
    if config.task.calibrate == "private":
        release = replace(release, calibrating=config.privacy.calibrate_share or CALIBRATE_SHARE)
    colluding = config.privacy.colluding or 0
    if config.privacy.noise == "pairwise":  # before any noise of pairs is known
        active = None if activity is None else activity.active
        shared, own = partners(config, mixing.schedule), (1.0,) * len(records)
        release = replace(release, pairs=PairNoise(shared, own, 0.0, colluding, active))
    if config.privacy.aggregation == "secure-sum":
        active = None if sending is None else sending.active
        release = replace(release, sums=SecureSums(len(records), colluding, active))
    cautions = (*cautions, *definition.check(setup))
    if definition.claims.convex and setup.model not in CONVEX_MODELS:
        cautions += (
            f"{definition.title} is proved to converge for convex losses: "
            f"task.model = '{setup.model}' is not convex",
        )
    if config.privacy.noisy:
        nodes = _noised(config, release, sampled)
        check_sums(release, nodes)
        if release.pairs is not None:
            pair_noise = config.privacy.pair_noise
            free = config.topology.rounds == "auto" and not config.algorithm.definition.no_rounds
            choice = choose(
                release,
                [node.noise_scale / node.divisor for node in nodes],
                mixing,
                pair_noise=None if pair_noise in (None, "auto") else float(pair_noise or 0.0),
                rounds=None if free else rounds,
            )
            rounds = choice.rounds
            if faults is not None:
                faults = replace(faults, rounds=rounds)
                activity = taking_part(drawn, faults, config.train.steps)
                # Whose pairs may lose other messages.
                active = None if activity is None else activity.active
                pairs = replace(release.pairs, active=active)
                release = replace(release, activity=activity, pairs=pairs)
            release, nodes = _with_pair_noise(config, release, nodes, choice.pair_noise)
            assert release.pairs is not None
            told = (release.pairs.note(config.topology.partners), choice.reason)
            notes = (*filter(None, told), *notes)
            cautions += _uncovered(release.pairs)
        if release.sums is not None:
            nodes = _with_common_noise(config, release, nodes)
            notes = (release.sums.note, *notes)
            taking_part_at_all = release.sums.gains[release.sums.participants > 0]
            if taking_part_at_all.min(initial=math.inf) <= 1.0:
                cautions += (
                    "in some rounds no more than privacy.colluding + 1 = "
                    f"{release.sums.colluding + 1} clients take part, and a secure sum hides none "
                    "behind the others there: lower privacy.colluding, or let more take part",
                )
        cautions += tuple(map(unit.said, _large_delta(nodes)))
    else:
        nodes = tuple(sampled)
    if config.weights == "noise":
        nodes = tuple(weights.weighed(config, nodes, sending))
    notes = (*weights.without_records(config), *notes)
    cautions += weights.cautions(config, nodes)
    plan = Plan(
        config=config,
        release=release,
        nodes=nodes,
        mixing=mixing,
        contraction=contraction_of_rounds(mixing, rounds),
        rounds=rounds,
        faults=faults,
        cautions=cautions,
        notes=(
            *_notes(config, activity, faults),
            *map(unit.said, epochs_note(config, sampled)),
            *notes,
        ),
        unit=unit,
    )
    averaged = average_note(plan)
    if averaged is not None:
        plan = replace(plan, notes=(*plan.notes, averaged))
    return plan if release.pairs is None else _with_forecast(plan)


def _with_forecast(plan: Plan) -> Plan:
    """The plan with what it says of how far models will stand apart."""
    forecast = consensus_forecast(plan)
    warning = consensus_warning(forecast, plan.rounds)
    single = "" if plan.config.train.average == "none" else ", of models before they are averaged"
    return replace(
        plan,
        notes=plan.notes if forecast is None else (*plan.notes, forecast.note() + single),
        cautions=plan.cautions if warning is None else (*plan.cautions, warning),
    )


def _mixing(config: Config) -> Mixing:
    topology, algorithm = config.topology, config.algorithm.definition
    schedule = build_schedule(
        str(topology.graph),  # of a whole experiment it is set
        config.nodes.count,
        names=config.nodes.names,
        call=call_function,
        seed=config.train.seed,
        **{key: getattr(topology, key) for key in KEYS},
    )
    check_graph(topology, config.algorithm, schedule.directed, schedule.period > 1)
    if algorithm.graph.weights == "server":
        return server_averaging(config.nodes.count)
    check_strongly_connected(schedule)
    mixing = build_mixing(schedule, topology.mixing)
    check = _CHECKS[algorithm.graph.weights]
    for matrix in mixing.weights:
        check(matrix, "topology.mixing")
    return mixing


def _sampling(config: Config, schedules: Schedules, node: int, records: int) -> NodePlan:
    batch = config.train.settled_batch
    if not records:
        return NodePlan(node=node, records=0, rate=1.0, expected_batch=0.0, weight=0.0)
    size = records if batch == "all" else min(batch, records)
    if batch != "all" and schedules.local_steps > 1 and schedules.disjoint:
        size = min(size, records // schedules.local_steps)
        if size == 0:
            raise InputError(
                "algorithm.local_steps",
                schedules.local_steps,
                f"mini-batches that share no record need as many records: node {node} has "
                f"{records}",
            )
    if config.train.sampling in ("allocation", "cyclic"):
        epoch = -(-records // size)
        return NodePlan(node=node, records=records, rate=1 / epoch, expected_batch=records / epoch)
    return NodePlan(node=node, records=records, rate=size / records, expected_batch=float(size))


def _setup(config: Config, mixing: Mixing, records: Sequence[int], parameters: int) -> Setup:
    first, task = mixing.schedule.at(0), config.task
    # Of another model or loss than it is named, nothing may be taken for proved; a clipped mean
    # over views is no clipped gradient of a linear model's one record.
    model = task.model + ("" if task.output is None else " with an output")
    model += "" if task.augmentation is None else " with views"
    neighbours: list[list[int]] = [[] for _ in range(first.nodes)]
    for source, target in zip(first.sources.tolist(), first.targets.tolist(), strict=True):
        neighbours[target].append(source)
    return Setup(
        options=config.algorithm.options,
        nodes=len(records),
        steps=config.train.steps,
        seed=config.train.seed,
        neighbours=tuple(map(tuple, neighbours)),
        records=records,
        parameters=parameters,
        model=model,
        loss=task.loss + (" with class weights" if task.class_weights else ""),
        accounted=config.accounted,
        relation=config.privacy.relation,
        sampling=config.train.sampling,
        input_bound=config.input_bound,
    )


def _notes(config: Config, activity: Activity | None, faults: FaultPlan | None) -> tuple[str, ...]:
    simulated: tuple[str, ...] = () if faults is None else (faults.note,)
    if config.privacy.noise == "pairwise" and (config.faults.drop or config.faults.drop_edges):
        simulated += (
            "what a lost message held of the noise of pairs is not cancelled where it should have "
            "arrived: models are noisier, and no epsilon changes",
        )
    if config.input_bound is not None:
        source = "task.input_bound" if config.task.input_bound is not None else "the algorithm"
        simulated = (
            f"inputs longer than {config.input_bound:.6g} in the l2 norm are scaled down to it: a "
            f"public bound, set by {source}",
            *simulated,
        )
    if activity is None:
        return simulated
    counts = activity.active.sum(axis=0)
    share = counts.mean() / len(activity.active)
    took = f"{counts.min()} to {counts.max()}" if len(set(counts)) > 1 else f"{counts[0]}"
    notes = [f"{name}: {value}" for name, value in activity.notes.items()]
    return (
        f"steps in which a node takes part: {took} of {len(activity.active)} ({share:.1%})",
        *notes,
        *simulated,
    )


def _schedules(config: Config, records: Sequence[int]) -> Schedules:
    batch, largest = config.train.settled_batch, max(records)
    if batch != "all" and batch > largest:
        raise InputError(
            "train.batch", batch, f"is above every node's records: at most {largest}, or 'all'"
        )
    chosen, settings = config.algorithm, config.privacy
    accounted = settings.noisy and settings.accounting != "none"
    clip = chosen.options.settled_clip
    if clip is None and accounted:
        clip = chosen.definition.default_clip
    try:
        made: Schedules = chosen.definition.schedules(chosen.options, clip, config.train.steps)
    except OverflowError:
        expected = "the noise grows beyond all numbers by then: fewer steps, or a slower schedule"
        raise InputError("train.steps", config.train.steps, expected) from None
    if made.clip is not None:  # of every step, before the first one
        for bound in (made.clip[0], min(made.clip), max(made.clip)):
            check_clip(bound)
    return made


@dataclass(frozen=True)
class _NoiseQuestion:
    """What decides a node's noise: nodes that agree in it share the work."""

    records: int
    budget: float | None
    guess: float | None
    delta: float
    released: tuple[tuple[float, int], ...]


def _released(release: Release, node: NodePlan) -> tuple[tuple[float, int], ...]:
    """What noise counts for in the steps in which a node takes part, and how many: order is free.

    Where what a step costs depends on its number, their numbers.
    """
    if release.activity is None:
        return ()
    steps = release.active_steps(node, release.planned[:1])
    by_epochs = release.setup.sampling == "allocation"
    if by_epochs or release.algorithm.releases.cost_depends_on_step(release.setup.options):
        return tuple((float(step), 1) for step in steps)
    counted = [release.noise_shape[step] for step in steps]
    if release.sums is not None:
        gains = [release.sums.gain(node.node, step) for step in steps]
        counted = [shape * gain for shape, gain in zip(counted, gains, strict=True)]
    return tuple(sorted(Counter(counted).items()))


def _noised(config: Config, release: Release, nodes: Sequence[NodePlan]) -> tuple[NodePlan, ...]:
    settings, per_node = config.privacy, config.per_node
    nothing: Sequence[None] = (None,) * len(nodes)
    budgets, guesses = (
        nothing if value is None else per_node(value) for value in (settings.budget, settings.guess)
    )
    wanted = [
        _NoiseQuestion(node.records, budget, guess, delta, _released(release, node))
        for node, budget, guess, delta in zip(
            nodes, budgets, guesses, per_node(settings.delta), strict=True
        )
    ]
    costs: dict[_NoiseQuestion, NodePlan] = {}
    failures: dict[str, list[int]] = {}
    kinds = len(set(wanted))
    initial_guess: NodePlan | None = None
    # In the order of rates, since each scale is a guess for the next. The last digits of a scale
    # depend on the guess: not on other nodes', where a run may begin before all are known.
    order = sorted(zip(nodes, wanted, strict=True), key=lambda row: (row[0].rate, row[1].released))
    for node, want in order:
        if want in costs:
            continue
        delta = want.delta if release.claims else None
        bounded = replace(node, budget=want.budget, guess=want.guess, delta=delta)
        _log.info("calibrating noise, %d of %d kinds of nodes", 1 + len(costs), kinds)
        try:
            costs[want] = _costed(config.privacy, release, bounded, initial_guess)
        except BudgetError as error:
            same = [index for index, other in enumerate(wanted) if other == want]
            failures.setdefault(_refused(want, error), []).extend(same)
            costs[want] = node
        if costs[want].noise_scale and not config.plans_each_node_alone:
            initial_guess = costs[want]
    if failures:
        more = f"; and {len(failures) - 3} more groups of nodes" if len(failures) > 3 else ""
        told = [f"{_listed(sorted(nodes))}: {why}" for why, nodes in list(failures.items())[:3]]
        raise BudgetError("; ".join(told) + more)
    return tuple(
        replace(costs[want], node=node.node, weight=node.weight)
        for node, want in zip(nodes, wanted, strict=True)
    )


def _refused(want: _NoiseQuestion, error: BudgetError) -> str:
    text = str(error)
    if text.startswith("privacy."):
        return text
    if want.guess is not None:
        return f"privacy.guess = {want.guess:g} cannot be kept: {text}"
    asked = f"privacy.epsilon = {want.budget:g} (delta {want.delta:g})"
    return text if want.budget is None else f"{asked} cannot be kept: {text}"


def _costed(
    settings: Privacy, release: Release, node: NodePlan, initial_guess: NodePlan | None
) -> NodePlan:
    """A node with its noise scale, certified epsilon and claim, from a node that has them."""
    if not node.records:
        return replace(
            node,
            epsilon=release.epsilon(node, release.planned),
            right_guess=release.right_guess(node, release.planned),
            claimed=release.claimed(node),
        )
    node = replace(node, noise_scale=_noise_scale(settings, release, node, initial_guess))
    if node.delta is None or release.pairs is not None:
        return node  # what it costs beside pairs is known once all nodes have their noise
    made = _certified(settings, release, node) if release.setup.accounted else node
    formula = release.algorithm.claims.formula
    if formula is None:
        return made
    conditions = formula.conditions(release.claimed_run(node))
    return replace(made, claimed=release.claimed(node), conditions=conditions)


def _certified(settings: Privacy, release: Release, node: NodePlan) -> NodePlan:
    """A node with what is certified of its noise; refused where that does not keep its budget."""
    steps = release.setup.steps
    certified = release.epsilon(node, release.planned) or 0.0
    guess = release.right_guess(node, release.planned)
    if guess is not None and certified > MOST_EPSILON:
        raise BudgetError(
            f"privacy.guess = {node.guess:g} holds almost without noise, since few records take "
            "part: lower it, ask for privacy.epsilon, or take more steps or larger batches"
        )
    spent = certified if guess is None else 2 * guess - 1
    if settings.noise_std is not None and node.limit is not None and spent > node.limit:
        enough = _calibrated(release, node, node.noise_scale, node.budget) / node.noise_scale
        costs, most = f"costs epsilon {_up(certified)}", node.budget
        if guess is not None:
            costs, most = f"allows a right guess in {_up(guess)} of cases", node.guess
        raise BudgetError(
            f"privacy.noise_std = {settings.noise_std:g} {costs} in "
            f"{steps} steps, above the budget of {most:g}: noise_std = "
            f"{_up(settings.noise_std * enough)} or fewer steps would keep it"
        )
    return replace(node, epsilon=certified, right_guess=guess)


def _with_pair_noise(
    config: Config, release: Release, nodes: Sequence[NodePlan], ratio: float
) -> tuple[Release, tuple[NodePlan, ...]]:
    """The release with noise of pairs, and the nodes with as much less of their own.

    Every node needs a noise that counts for what its budget asks of independent noise. The shape of
    the own noises begins with that, and is scaled until it is enough for all; then nodes that have
    more than enough are given less, and all are scaled again, as long as the mean gets less noise.
    A given noise (`privacy.noise_std`) stays as it is.

    `nodes` have the noise that they need if it is independent; `ratio` is the deviation of a pair's
    noise over the root mean square of the nodes' own.

    Raises:
        BudgetError: a given noise does not keep a node's budget.
        InputError: on `privacy.pair_noise`, too much of it.
    """
    settings = config.privacy
    given = settings.noise_std is not None
    needed = np.array([node.noise_scale / node.divisor for node in nodes])
    assert release.pairs is not None
    shape, least = needed, math.inf
    chosen = release.pairs
    for _ in range(1 if given else _SHAPES):
        own = tuple(shape.tolist())
        pairs = replace(chosen, own=own, deviation=ratio * root_mean_square(own))
        counted = shape * pairs.typical_gains
        factor = 1.0 if given else float((needed / counted).max()) * _UPWARDS
        if factor * root_mean_square(own) >= least or (least < math.inf and ratio > pairs.most):
            break
        chosen, least = pairs.scaled(factor), factor * root_mean_square(own) * (1 - _WORTHWHILE)
        shape = shape * np.sqrt(needed / counted)
    if ratio > chosen.most * _ROUNDED:
        raise InputError(
            "privacy.pair_noise",
            ratio,
            "is too large beside the own noise of some node: "
            f"at most {float(f'{chosen.most * 0.999:.3g}'):g} here",
        )
    release = replace(release, pairs=chosen)
    scaled = _own_noise(nodes, chosen)
    if not release.setup.accounted:
        return release, scaled
    if release.activity is not None and not given:
        chosen = chosen.scaled(_enough(settings, release, scaled, needed))
        release, scaled = replace(release, pairs=chosen), _own_noise(nodes, chosen)
    return release, _with_costs(settings, release, scaled)


def _with_costs(
    settings: Privacy, release: Release, nodes: Sequence[NodePlan]
) -> tuple[NodePlan, ...]:
    found = release.of_each(
        nodes,
        lambda node: _certified(settings, release, node),
        lambda node: node.limit,
    )
    return tuple(
        replace(node, epsilon=alike.epsilon, right_guess=alike.right_guess)
        for node, alike in zip(nodes, found, strict=True)
    )


def _with_common_noise(
    config: Config, release: Release, nodes: Sequence[NodePlan]
) -> tuple[NodePlan, ...]:
    """The nodes with the noise that secure sums ask for: that of the strictest budget, for all.

    A given noise is the same already.

    Raises:
        BudgetError: a given noise does not keep a node's budget.
        InputError: on `privacy.aggregation`, sums would not fit.
    """
    assert release.sums is not None
    common = max(node.noise_scale / node.divisor for node in nodes)
    if config.privacy.noise_std is None:
        common *= _UPWARDS
    scales = [common * node.divisor if node.records else 0.0 for node in nodes]
    levelled = [replace(n, noise_scale=scale) for n, scale in zip(nodes, scales, strict=True)]
    first = next(node for node in levelled if node.records)
    steps = range(release.setup.steps)
    check_range(
        release.sums,
        release.clip,
        [release.noise_std(first, k) / first.divisor for k in steps],
        max(node.weight / node.rate for node in levelled),
        [node.records for node in levelled],
    )
    if not release.setup.accounted:
        return tuple(levelled)
    return _with_costs(config.privacy, release, levelled)


def _uncovered(pairs: PairNoise) -> tuple[str, ...]:
    """The nodes that may be left with their own noise alone."""
    degrees = np.bincount(np.array(pairs.pairs).ravel(), minlength=len(pairs.own))
    bare = np.flatnonzero(degrees <= pairs.colluding).tolist()
    if not bare:
        return ()
    return (
        f"{_listed(bare)}: no more partners than privacy.colluding = {pairs.colluding}, so that "
        "noise of pairs is worth nothing there: choose a graph of higher degree, or "
        "topology.partners = 'complete'",
    )


def _enough(
    settings: Privacy,
    release: Release,
    nodes: Sequence[NodePlan],
    needed: NDArray[np.float64],
) -> float:
    """What all noise is to be multiplied by, so that every node keeps its budget.

    Gains differ from step to step here. The node that is likely to need most is calibrated first,
    so that most others need only be looked at.
    """
    pairs = release.pairs
    assert pairs is not None
    kinds = list({(release.kind(node), node.limit): node for node in nodes}.values())
    counted = pairs.typical_gains * np.array(pairs.own) / needed
    factor = 0.0
    for node in sorted(kinds, key=lambda node: float(counted[node.node])):
        if factor and settings.epsilon_per_round is None and node.limit is not None:
            louder = replace(node, noise_scale=factor * node.noise_scale)
            spent = release.spent(louder, [(0, release.setup.steps)])
            if spent is not None and spent <= node.limit:
                continue
        # What one step costs is no guess for another here.
        guess = node if settings.epsilon_per_round is None else None
        factor = max(factor, _noise_scale(settings, release, node, guess) / node.noise_scale)
    return factor


def _own_noise(nodes: Sequence[NodePlan], pairs: PairNoise) -> tuple[NodePlan, ...]:
    return tuple(
        replace(node, noise_scale=own * node.divisor)
        for node, own in zip(nodes, pairs.own, strict=True)
    )


def _noise_scale(
    settings: Privacy, release: Release, node: NodePlan, initial_guess: NodePlan | None
) -> float:
    """What the noise shape is multiplied by: given, calibrated, or as the paper prints it."""
    if settings.noise_std is not None:
        # The standard deviation in the batch mean at the first step.
        unit = release.noise_std(replace(node, noise_scale=1.0), 0)
        return settings.noise_std * node.expected_batch / unit
    per_round, algorithm = settings.epsilon_per_round, release.algorithm
    budget, formula = node.budget, algorithm.claims.formula
    claim = None if formula is None else formula.epsilon
    if per_round is not None:
        budget, claim = per_round, algorithm.claims.round_epsilon
    if settings.accounting == "published" and claim is not None and budget is not None:
        printed = claim
        return least_scale(
            lambda scale: printed(release.claimed_run(replace(node, noise_scale=scale))),
            target=budget,
            tolerance=1e-9,
        )
    if per_round is not None:
        return _calibrated_rounds(release, node, initial_guess, per_round)
    start = 1.0 if initial_guess is None else initial_guess.noise_scale
    return _calibrated(release, node, start, node.budget)


def _calibrated_rounds(
    release: Release, node: NodePlan, initial_guess: NodePlan | None, target: float
) -> float:
    """The least noise scale for which no step of a node alone costs more than `target`.

    The step of the least noise is the dearest of its kind; the first two steps are of different
    kinds where a method has several (anchors and what lies between them). Where these are the very
    mechanisms that they are for `initial_guess`, with its scale, that is this node's: nodes that
    only differ in how often they take part share one search (100 clients of Adult: 2, not 34).
    """
    start = 1.0 if initial_guess is None else initial_guess.noise_scale
    if initial_guess is not None and initial_guess.delta == node.delta:
        alike = replace(node, noise_scale=start)
        if _dearest(release, initial_guess) == _dearest(release, alike):
            return start
    return max(
        _calibrated(release, node, start, target, [(step, step + 1)])
        for step in _costliest_steps(release, node)
    )


def _costliest_steps(release: Release, node: NodePlan) -> list[int]:
    """The steps of a node among which is the dearest, each once."""
    own = release.active_steps(node) or [0]
    unit = replace(node, noise_scale=1.0)
    least = min(own, key=lambda step: release.noise_multiplier(unit, step))
    return list(dict.fromkeys([least, *own[:2]]))


def _dearest(release: Release, node: NodePlan) -> list[privacy.Mechanism]:
    """What these steps release, each alone; without repeats."""
    found: list[privacy.Mechanism] = []
    for step in _costliest_steps(release, node):
        alone = release.mechanism(node, [(step, step + 1)])
        found += [alone] if alone not in found else []
    return found


def _calibrated(
    release: Release,
    node: NodePlan,
    start: float,
    target: float | None,
    intervals: Sequence[Interval] | None = None,
) -> float:
    """The least noise scale whose epsilon (`target`) or right guess keeps a node's budget.

    It is that of the steps in `intervals`, by default all; `start` is a guess.
    """
    if node.guess is None and (target is None or node.delta is None):
        raise InputError("privacy.epsilon", target, "is needed to calibrate the noise")
    return privacy.calibrate(
        lambda scale: release.mechanism(replace(node, noise_scale=scale), intervals),
        epsilon=target,
        delta=None if node.guess is not None else node.delta,
        guess=node.guess,
        start=start,
    )


def _large_delta(nodes: Sequence[NodePlan]) -> tuple[str, ...]:
    """That a delta is allowed, but seldom meant."""
    loose = [node for node in nodes if node.delta is not None and node.delta * node.records >= 1]
    if not loose:
        return ()
    return (
        f"privacy.delta = {loose[0].delta:g} is at least 1 / J at "
        f"{_listed([node.node for node in loose])}: publishing one record at random, noise or "
        "no noise, would satisfy it",
    )


def _listed(nodes: Sequence[int]) -> str:
    """Name a few nodes: `node 3`, `nodes 0, 1, 2 and 13 more`."""
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    shown = ", ".join(str(node) for node in nodes[:3])
    return f"nodes {shown}" + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def _up(value: float) -> str:
    """Three significant digits, never rounded down."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.6g}"
