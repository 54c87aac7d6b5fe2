"""What in an experiment contradicts itself: noise, budgets, ledgers and faults, key by key.

Each check refuses with an `InputError` that names the key, its value and what would be right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from tacit.algorithms import ALGORITHMS, plain_method
from tacit.algorithms.accounting import noised_sums
from tacit.config.schema import (
    GIVEN,
    LEDGER_KEYS,
    PER_NODE,
    AlgorithmSection,
    Faults,
    Nodes,
    Privacy,
    Promise,
    Task,
    Topology,
    Train,
)
from tacit.data.partitions import partition_kind
from tacit.errors import InputError, nearest
from tacit.gradients.losses import OF_NUMBERS
from tacit.models.architectures import check_name
from tacit.privacy.mechanisms.clipping import ASSUMED
from tacit.topology.graphs import KEYS, graph_kind

_MOST_RATIO = 1_000_000  # of two weights: noise of both is then an ordinary number beside each


def check(
    nodes: Nodes,
    topology: Topology,
    algorithm: AlgorithmSection,
    privacy: Privacy,
    train: Train,
    faults: Faults,
) -> None:
    """Refuse an experiment whose settings contradict each other."""
    _check_nodes(nodes)
    _check_options(algorithm, privacy, train)
    _check_average(algorithm, train)
    _check_precision(algorithm, train)
    _check_warm_up(algorithm, train)
    _check_privacy(algorithm, privacy, train)
    _check_pairwise(nodes.count, topology, algorithm, privacy)
    _check_over_time(nodes, algorithm, privacy, train, faults)
    _check_secure_sum(nodes.count, algorithm, privacy, faults)
    _check_budgets(privacy, nodes)
    _check_weights(nodes, algorithm, privacy)
    _check_without_records(nodes, algorithm, privacy, train, faults)
    _check_ledger(privacy, assumed=algorithm.options.clip_norm == ASSUMED)
    _check_faults(faults, nodes.count)


def check_declared(task: Task) -> None:
    """Refuse what is declared of a file that is none, and labels that do not go with the rest."""
    if task.target_bound is not None and task.loss not in OF_NUMBERS:
        expected = (
            "is of numbers that are predicted, with task.loss = 'mse' or 'huber': leave it out"
        )
        raise InputError("task.target_bound", task.target_bound, expected)
    declared = task.declared
    of_file = {
        "features": declared.features,
        "labels": declared.labels,
        "index_base": declared.index_base,
    }
    for key, value in of_file.items():
        if value is not None and not task.dataset.startswith("svmlight:"):
            expected = (
                "is declared of a file svmlight:PATH, and this data set is none: leave it out"
            )
            raise InputError(f"task.{key}", value, expected)
    labels = declared.labels
    if labels is None:
        return
    wanted = {"logistic": 2, "cross-entropy": task.outputs}.get(task.loss)
    if task.loss in OF_NUMBERS or wanted not in (None, len(labels)):
        expected = (
            f"are classes, and task.loss = '{task.loss}' is of numbers: leave them out"
            if task.loss in OF_NUMBERS
            else f"must be {wanted} labels, as many as the other keys of [task] say"
        )
        raise InputError("task.labels", list(labels), expected)


def check_names(task: Task, nodes: Nodes) -> None:
    """Refuse models and partitions that there are not, and keys that these do not take."""
    if task.features_cache is not None and task.feature_map is None:
        expected = "goes with task.features: name these, or leave it out"
        raise InputError("task.features_cache", task.features_cache, expected)
    if task.model != GIVEN:
        check_name(task.model)
    partition_kind(nodes.partition, {"alpha": nodes.alpha, "per_node": nodes.per_node})


def check_named(
    topology: Topology, algorithm: AlgorithmSection, faults: Faults, nodes: int
) -> None:
    """Refuse what contradicts itself in an experiment whose algorithm is named.

    A plan refuses the same of one that was open; of a graph in a file, when that has been read.
    """
    kind = graph_kind(str(topology.graph), {key: getattr(topology, key) for key in KEYS})
    if kind is not None:
        several = nodes > 2
        check_graph(topology, algorithm, kind.directed and several, kind.periodic and several)
    check_messages(topology, algorithm, faults)


def check_graph(
    topology: Topology, algorithm: AlgorithmSection, directed: bool, changes: bool
) -> None:
    """Refuse a graph on which the algorithm is not what it is, and weights that it cannot have.

    `directed` and `changes` say whether a link goes one way only, and whether there are others at
    another step.
    """
    graph, mixing = topology.graph, topology.mixing
    name, needs = algorithm.name, algorithm.definition.graph
    server = needs.weights == "server"
    averages = f"{name} has a server, which averages: leave it out (graph = 'star')"
    reasons = {
        f"is directed, and {name} needs symmetric weights: choose an undirected graph (ring, "
        "complete, k-regular, star) or a push-sum method, such as "
        f"{plain_method('column-stochastic')}": directed and needs.weights == "doubly-stochastic",
        averages: server and graph != "star",
        f"changes from step to step, and {name} needs the same neighbours at every step: choose a "
        "fixed graph (ring, complete, k-regular, torus)": changes and needs.fixed,
    }
    _refuse("topology.graph", graph, reasons)
    if mixing is not None:
        split = f"is for undirected graphs; {graph} is directed and splits equally: leave it out"
        _refuse("topology.mixing", mixing, {averages: server, split: directed})


def check_messages(topology: Topology, algorithm: AlgorithmSection, faults: Faults) -> None:
    """Refuse gossip rounds and faults after which an algorithm would no longer be what it is."""
    row, rounds = algorithm.definition, topology.rounds
    if rounds not in (None, "auto", 1) and row.no_rounds:
        raise InputError("topology.rounds", rounds, f"{row.name} {row.no_rounds}; leave it out")
    for key, reason in row.graph.no_faults.items():
        if given := getattr(faults, key):
            raise InputError(f"faults.{key}", given, f"{row.name} {reason}: leave it out")
    momentum: float = getattr(algorithm.options, "momentum", 0.0)
    if faults.down and momentum:
        expected = "a node that is away would go on along its momentum: set algorithm.momentum = 0"
        raise InputError("faults.down", faults.down, expected)


CONVEX_MODELS, CONVEX_LOSSES = ("logistic", "linear"), ("cross-entropy", "logistic", "mse")


def check_suboptimality(task: Task, nodes: Nodes, algorithm: AlgorithmSection) -> None:
    """Refuse f(x) - f* of an objective whose least value is not known how to find."""
    regulariser = getattr(algorithm.options, "regulariser", "none")
    reasons = {
        f"task.model = '{task.model}' is no linear model": task.model not in CONVEX_MODELS,
        f"task.loss = '{task.loss}' is none of {', '.join(CONVEX_LOSSES)}": task.loss
        not in CONVEX_LOSSES,
        "task.class_weights make another objective": task.class_weights is not None,
        "task.output makes another model": task.output is not None,
        "task.augmentation makes new records at every step": task.augmentation is not None,
        f"{algorithm.name} trains another function of the records": algorithm.definition.moments
        is not None,
        f"the minimum with regulariser = '{regulariser}' is not solved for": regulariser
        not in ("none", "l2"),
        "nodes.data = 'by-rank' keeps records apart": nodes.data == "by-rank",
        "nodes.part leaves records out": nodes.part is not None,
    }
    expected = "compares with the least value of a convex objective, and {}: leave it out"
    _refuse("train.suboptimality", True, reasons, expected)


def check_views(task: Task, train: Train, algorithm: AlgorithmSection) -> None:
    """Refuse views of records that are none, or that would be made of what is computed once."""
    if task.augmentation is None:
        if train.views is not None and train.views > 1:
            expected = (
                "are views of a record, and without augmentation all would be the same: set "
                "task.augmentation, such as 'flip-shift', or leave it out"
            )
            raise InputError("train.views", train.views, expected)
        return
    moments = algorithm.definition.moments is not None
    reasons = {
        f"makes views of a record over which its gradient is averaged, and {algorithm.name} takes "
        "moments of the records as they are: leave it out": moments,
        "makes new views of a record at every step, and task.features are computed once: leave out "
        "one of them": task.feature_map is not None,
    }
    _refuse("task.augmentation", task.augmentation, reasons)


def check_calibration(
    task: Task, algorithm: AlgorithmSection, privacy: Privacy, faults: Faults
) -> None:
    """Refuse to recalibrate by private counts where nothing is proved of them."""
    if task.calibrate != "private":
        if privacy.calibrate_share is not None:
            expected = "is for task.calibrate = 'private': set that, or leave it out"
            raise InputError("privacy.calibrate_share", privacy.calibrate_share, expected)
        return
    steps_alone = privacy.noisy and privacy.accounting != "certified"
    several = algorithm.definition.releases.mechanism is not noised_sums
    reasons = {
        f"{algorithm.name}, which releases no single Gaussian sum a step": several,
        f"privacy.noise = '{privacy.noise}', which hides no counts": privacy.noise != "independent",
        "privacy.aggregation = 'secure-sum', which hides no counts": privacy.aggregation != "clear",
        f"privacy.accounting = '{privacy.accounting}', which is of steps alone": steps_alone,
        "privacy.epsilon_per_round, which leaves no share": privacy.epsilon_per_round is not None,
        "faults.tolerate, since counts of a site that is away would be missing": faults.tolerate,
    }
    expected = "does not go with {}; use 'public', or change it"
    _refuse("task.calibrate", "private", reasons, expected)


def check_unit(task: Task, algorithm: AlgorithmSection, privacy: Privacy, train: Train) -> None:
    """Refuse what is worked out of each record alone, where epsilon is to protect a person."""
    if privacy.unit_column is None:
        return
    smooth = getattr(algorithm.options, "smoothness", None) is not None
    reasons = {
        "task.calibrate = 'private', which counts records": task.calibrate == "private",
        "train.suboptimality, whose objective is the mean over records": train.suboptimality,
        "algorithm.smoothness, which rests on the gradient of one record": smooth,
        "privacy.unit_nodes above 1 where nodes share noise": privacy.unit_nodes > 1
        and (privacy.noise == "pairwise" or privacy.aggregation == "secure-sum"),
    }
    _refuse("privacy.unit", privacy.unit, reasons, "does not go with {}: leave that out")


def check_organisations(
    organisations: Mapping[str, str] | None, names: Sequence[str] | None, count: int
) -> None:
    """Refuse an organisation of a node that there is not.

    Of nodes without names numbers alone are refused: sites bring names of their own.
    """
    for name in organisations or ():
        known = name in names if names else not name.isdecimal() or int(name) < count
        if not known:
            nodes = ", ".join(names) if names else f"0 to {count - 1}, or the names of sites"
            raise InputError("statement.organisations", name, f"must be by nodes: {nodes}")


def check_promise(algorithm: AlgorithmSection, promise: Promise) -> None:
    """Refuse constants that the paper of the algorithm does not read."""
    given = {key: value for key, value in dict(promise).items() if value is not None}
    for key, value in given.items():
        if key not in algorithm.definition.claims.promise_constants:
            readers = [
                row.name for row in ALGORITHMS.values() if key in row.claims.promise_constants
            ]
            expected = (
                f"is a constant of what the paper of {', '.join(readers)} promises, and "
                f"{algorithm.name} does not read it: leave it out"
            )
            raise InputError(f"promise.{key}", value, expected)
    pair = [key for key in given if key.startswith("push_sum_")]
    if len(pair) == 1:
        expected = "needs the other one: give promise.push_sum_constant and promise.push_sum_rate"
        raise InputError(f"promise.{pair[0]}", given[pair[0]], expected)


def _refuse(where: str, value: object, reasons: Mapping[str, bool], expected: str = "{}") -> None:
    """Refuse the value of a key for the first of the reasons that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise InputError(where, value, expected.format(reason))


def _check_nodes(nodes: Nodes) -> None:
    if nodes.part is not None and (nodes.count != 1 or nodes.part[0] >= nodes.divided[0]):
        expected = (
            "is of a run with nodes.count = 1, whose node has part i of n: [i, n] with i from 0 to "
            "n - 1, or [i, NAMES]"
        )
        raise InputError("nodes.part", list(nodes.part), expected)
    if nodes.data == "by-rank" and nodes.source is None:
        expected = (
            "must say where a node's own records are: a path with {node} in it, or module:function"
        )
        raise InputError("nodes.source", None, expected)
    if nodes.data == "split" and nodes.source is not None:
        raise InputError(
            "nodes.source", nodes.source, "goes with nodes.data = 'by-rank': set that, or drop it"
        )
    if nodes.data == "by-rank":
        for key in ("partition", "alpha", "per_node", "part"):
            if getattr(nodes, key) != Nodes.model_fields[key].default:
                expected = (
                    "divides one data set, and with nodes.data = 'by-rank' each node has its own: "
                    "leave it out"
                )
                raise InputError(f"nodes.{key}", getattr(nodes, key), expected)


def _check_options(chosen: AlgorithmSection, privacy: Privacy, train: Train) -> None:
    """Refuse options that would do nothing in this experiment; see also `refuse_idle`."""
    options = chosen.options
    accounted = privacy.noisy and privacy.accounting != "none"  # else there is no default clip
    bounded = accounted or options.clip or getattr(options, "clip_schedule", None)
    if not bounded and options.clip_norm != type(options).model_fields["clip_norm"].default:
        expected = "is of a clipping bound, and here is none: give algorithm.clip, or leave it out"
        raise InputError("algorithm.clip_norm", options.clip_norm, expected)
    if options.clip_norm == ASSUMED and (privacy.accounting != "published" or not privacy.noisy):
        expected = (
            "takes algorithm.clip for a bound of gradients that nothing enforces, which only a "
            "paper's formula can be told: set privacy.accounting = 'published' and "
            "privacy.epsilon, or clip ('l2')"
        )
        raise InputError("algorithm.clip_norm", options.clip_norm, expected)
    drawn = getattr(options, "sampling", "disjoint")
    if train.batch == "all" and drawn != "disjoint":
        expected = (
            "is about which records a mini-batch draws, and with train.batch = 'all' each holds "
            "all of them: give train.batch as a number, or leave it out"
        )
        raise InputError("algorithm.sampling", drawn, expected)


def _check_average(chosen: AlgorithmSection, train: Train) -> None:
    """Refuse averages of one model, and those that rounds after the last step cannot go on from."""
    definition = chosen.definition
    if (
        train.average != "none"
        and definition.participation.one_pass
        and definition.graph.weights == "server"
    ):
        expected = (
            f"is of the models after several steps, and the one of {definition.name} stays as its "
            "first step made it: leave it out"
        )
        raise InputError("train.average", train.average, expected)
    final: int = definition.graph.final_rounds(chosen.options)
    if train.average != "none" and final and not definition.restarts:
        expected = (
            f"does not go with the {final} gossip rounds that follow the last step: "
            f"{definition.name} does not say how they begin with given models (`restart`); leave "
            "one of them out"
        )
        raise InputError("train.average", train.average, expected)


def _check_precision(chosen: AlgorithmSection, train: Train) -> None:
    if train.precision != "float32":
        reasons = {
            "must be 'float32' where train.dtype is 'float64'": train.dtype == "float64",
            f"is of forward and backward passes, and {chosen.name} makes none: leave it out": (
                chosen.definition.moments is not None
            ),
            f"is of passes in float32, and those of {chosen.name} are in float64: leave it out": (
                chosen.definition.passes_in_float64
            ),
        }
        _refuse("train.precision", train.precision, reasons)


def _check_warm_up(chosen: AlgorithmSection, train: Train) -> None:
    if chosen.options.warm_up >= train.steps:
        expected = f"must be below train.steps = {train.steps}: the rate would never be reached"
        raise InputError("algorithm.warm_up", chosen.options.warm_up, expected)


def _check_budgets(privacy: Privacy, nodes: Nodes) -> None:
    """Refuse what is of single nodes and not said to be anybody's, or is nobody's.

    In a list it would follow the order of the nodes, which of a column's values is that of the
    alphabet, or of what occurs: nobody meant either.
    """
    names = nodes.names
    if names is not None and len(names) != nodes.count:
        expected = f"must be one for each node: nodes.names has {len(names)}"
        raise InputError("nodes.count", nodes.count, expected)
    of_privacy = {f"privacy.{key}": getattr(privacy, key) for key in (*PER_NODE, "ledger_source")}
    for where, value in {**of_privacy, "nodes.weights": nodes.weights}.items():
        word = "source" if where.endswith("source") else "number"
        if isinstance(value, tuple):
            if names is not None or nodes.partition.startswith("by:"):
                expected = (
                    f"goes to nodes by name: write {where} = {{ {_by_name(names, word)} }}, each "
                    f"with its own {word}"
                )
                raise InputError(where, f"a list of {len(value)}", expected)
            if len(value) != nodes.count:
                expected = f"needs one {word} for each of the {nodes.count} nodes"
                raise InputError(where, f"a list of {len(value)}", expected)
        if isinstance(value, Mapping) and names is not None:
            for name in value:
                if name not in names:
                    raise InputError(where, name, f"is no node's name: {nearest(name, names)}")
            missing = [name for name in dict.fromkeys(names) if name not in value]
            if missing:
                more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
                expected = f"lacks {', '.join(missing[:3])}{more}: give each node's name a {word}"
                raise InputError(where, f"a table of {len(value)}", expected)


def _check_weights(nodes: Nodes, chosen: AlgorithmSection, privacy: Privacy) -> None:
    """Refuse weights where a method has none, or where they would follow from themselves."""
    weights, definition = nodes.weights, chosen.definition
    shown = weights if isinstance(weights, str) else "numbers"
    reason = definition.participation.no_weights
    if weights not in (None, "equal") and reason is not None:
        expected = f"does not go with {definition.name}, which {reason}: use 'equal'"
        raise InputError("nodes.weights", shown, expected)
    numbers = tuple(weights.values()) if isinstance(weights, Mapping) else weights
    if isinstance(numbers, tuple) and max(numbers) > _MOST_RATIO * min(numbers):
        expected = f"must be numbers of which none is above {_MOST_RATIO:,} times another"
        raise InputError("nodes.weights", f"{min(numbers):g} to {max(numbers):g}", expected)
    shared = privacy.noise == "pairwise" or privacy.aggregation == "secure-sum"
    if weights == "noise" and shared:
        expected = "does not go with noise that nodes share, which follows from their weights: use "
        raise InputError("nodes.weights", weights, expected + "'records'")


def _check_without_records(
    nodes: Nodes, chosen: AlgorithmSection, privacy: Privacy, train: Train, faults: Faults
) -> None:
    """Refuse nodes without records that there are not, or where a method counts on all."""
    given, names, definition = nodes.without_records or (), nodes.names, chosen.definition
    known = (*range(nodes.count), *(names or ()))
    for node in given:
        unknown = names is None and isinstance(node, str)  # by what else names them
        if node not in known and not unknown:
            expected = f"is none of the {nodes.count} nodes, by number from 0 or by name"
            raise InputError("nodes.without_records", node, expected)
    keeps = "keeps a gradient of each record" if definition.table(chosen.options) else None
    own = definition.participation.no_empty or definition.participation.no_weights or keeps
    numbers = not (nodes.weights is None or isinstance(nodes.weights, str))
    reasons = {
        f"{definition.name}, which {own}": own is not None,
        "weights that are numbers, since it counts nothing: use 'records'": numbers,
        "privacy.noise = 'pairwise', of which both ends of a pair add": privacy.noise == "pairwise",
        "faults.tolerate, where numbers of records may be unknown": faults.tolerate,
        "train.suboptimality, of an objective in which it has no part": train.suboptimality,
        "no others: some node must have records": nodes.count <= len(set(given)),
    }
    if given:
        expected = "a node without records does not go with {}"
        _refuse("nodes.without_records", list(given), reasons, expected)


def _by_name(names: Sequence[str] | None, word: str) -> str:
    """How a table by names is written, without what only the user knows: whose is whose."""
    known = [json.dumps(name, ensure_ascii=False) for name in dict.fromkeys(names or ())]
    more = [] if names is not None and len(known) <= 6 else ["..."]
    return ", ".join([*(f"{name} = {word.upper()}" for name in known[:6] or ["NAME"]), *more])


def _check_ledger(privacy: Privacy, *, assumed: bool) -> None:
    """Refuse a ledger that would say less than was leaked."""
    if privacy.ledger is None:
        for key in LEDGER_KEYS[1:]:
            if getattr(privacy, key) is not None:
                expected = "is for a ledger of the data: name its folder in privacy.ledger"
                raise InputError(f"privacy.{key}", getattr(privacy, key), expected)
        return
    reasons = {
        "without noise nothing bounds what leaves a node": not privacy.noisy,
        "privacy.accounting = 'none' leaves nothing to reserve": privacy.accounting == "none",
        "algorithm.clip_norm = 'assumed' keeps no gradient to its bound": assumed,
        "privacy.noise_seed lets anyone subtract the noise": privacy.noise_seed is not None,
    }
    expected = "keeps a budget that such a run would betray: {}; change one of them"
    _refuse("privacy.ledger", privacy.ledger, reasons, expected)


def _check_privacy(chosen: AlgorithmSection, privacy: Privacy, train: Train) -> None:
    """Refuse settings of noise, sampling and accounting that contradict each other."""
    algorithm = chosen.definition
    if privacy.noisy and not algorithm.private:
        keys = ("guess", "epsilon_per_round", "epsilon", "noise_std")
        key = next(key for key in keys if getattr(privacy, key) not in (None, "none"))
        expected = f"{algorithm.name} adds no noise: leave it out, or choose a private algorithm"
        raise InputError(f"privacy.{key}", getattr(privacy, key), expected)
    if privacy.guess is not None:
        given = {
            "privacy.epsilon": privacy.epsilon is not None,
            "privacy.epsilon_per_round": privacy.epsilon_per_round is not None,
            f"privacy.accounting = '{privacy.accounting}'": privacy.accounting != "certified",
        }
        _refuse("privacy.guess", privacy.guess, given, "does not go with {}: leave out one of both")
    per_round = privacy.epsilon_per_round
    if per_round is not None:
        given = {"noise_std": privacy.noise_std is not None, "epsilon": privacy.budget is not None}
        expected = "sets the noise, and so does {}: give one"
        _refuse("privacy.epsilon_per_round", per_round, given, expected)
    none, published = (privacy.accounting == name for name in ("none", "published"))
    calibrated = privacy.budget is not None or per_round is not None
    twice = published and privacy.noise_std is not None
    unprinted = published and algorithm.claims.formula is None and algorithm.private
    note = "keeps a given noise: give noise_std, not epsilon (epsilon = 'none' for no noise)"
    reasons = {
        note: none and calibrated,
        "takes the noise from the paper's formula and epsilon: leave noise_std out": twice,
        f"the papers print no formula for {algorithm.name}: use 'certified'": unprinted,
    }
    _refuse("privacy.accounting", privacy.accounting, reasons)
    accounted = privacy.noisy and not none
    one_sum = (
        algorithm.releases.mechanism is noised_sums and algorithm.table(chosen.options) is None
    )
    allocated, fixed = (train.sampling == name for name in ("allocation", "fixed"))
    misallocated = allocated and accounted and privacy.relation != "add-or-remove-one"
    misfixed = fixed and accounted and privacy.relation != "replace-one"
    reasons = {
        "is proved for methods whose messages are functions of one Gaussian noised sum a step, and "
        f"{algorithm.name} is none of them: it keeps gradients, has anchors, makes local steps or "
        "adds Laplace noise; use 'poisson'": allocated and not one_sum,
        "is accounted under privacy.relation = 'add-or-remove-one' only: nothing is proved of it "
        "for a record that is replaced; use 'poisson', or that relation": misallocated,
        "a batch of fixed size is accounted under privacy.relation = 'replace-one' only, since "
        "another record moves in for the one left out; use 'poisson', or that relation": misfixed,
    }
    if train.batch != "all":
        _refuse("train.sampling", train.sampling, reasons)


def _check_over_time(
    nodes: Nodes, chosen: AlgorithmSection, privacy: Privacy, train: Train, faults: Faults
) -> None:
    """Refuse noise that is correlated over steps, and records in turns, where nothing is proved."""
    definition, kind = chosen.definition, privacy.noise
    matrix, cyclic = kind in ("banded", "tree"), train.sampling == "cyclic"
    if privacy.bands is not None and kind != "banded":
        expected = "is of noise that is correlated over steps: set privacy.noise = 'banded'"
        raise InputError("privacy.bands", privacy.bands, f"{expected}, or leave it out")
    if not matrix and not cyclic:
        return
    several = definition.releases.mechanism is not noised_sums or definition.table(chosen.options)
    drawn = train.batch != "all" and not cyclic
    reasons = {
        f"{definition.name}, whose messages are not functions of one Gaussian noised sum a "
        "step alone": bool(several),
        "an experiment without noise": matrix and not privacy.noisy,
        "privacy.noise = 'pairwise'": kind == "pairwise",
        "privacy.accounting = 'published', whose formulas are of other noise": privacy.accounting
        == "published",
        "privacy.epsilon_per_round: a step alone has no cost of its own": privacy.epsilon_per_round
        is not None,
        "privacy.aggregation = 'secure-sum'": privacy.aggregation != "clear",
        "faults.tolerate, after which steps are missing": faults.tolerate,
        "nodes.without_records": bool(nodes.without_records),
        f"train.sampling = '{train.sampling}', by which a record may join any step: use 'cyclic'": (
            drawn and (kind == "tree" or train.sampling != "poisson")
        ),
    }
    where, value = ("privacy.noise", kind) if matrix else ("train.sampling", "cyclic")
    _refuse(where, value, reasons, "does not go with {}")


def _check_pairwise(
    count: int, topology: Topology, chosen: AlgorithmSection, privacy: Privacy
) -> None:
    """Refuse noise of pairs where it would not cancel, and its keys where there is none."""
    if privacy.noise != "pairwise":
        colluding = None if privacy.aggregation == "secure-sum" else privacy.colluding
        for where, value in (
            ("privacy.colluding", colluding),
            ("privacy.pair_noise", privacy.pair_noise),
            ("topology.partners", topology.partners),
        ):
            if value is not None:
                expected = "is of noise that pairs of nodes share: set privacy.noise = 'pairwise'"
                raise InputError(where, value, f"{expected}, or leave it out")
        return
    definition = chosen.definition
    reason = definition.releases.no_pairwise
    if not definition.private:
        reason = "adds no noise"
    elif definition.graph.weights == "server":
        reason = "has a server, which would see single messages in any case"
    elif reason is None and definition.releases.noise.name != "gaussian":
        reason = f"adds {definition.releases.noise.name} noise"
    if reason is not None:
        expected = f"does not go with {definition.name}, which {reason}: use 'independent'"
        raise InputError("privacy.noise", "pairwise", expected)
    if privacy.accounting == "published":
        expected = (
            "does not go with privacy.accounting = 'published', whose formulas are of independent "
            "noise: use 'certified'"
        )
        raise InputError("privacy.noise", "pairwise", expected)
    if not privacy.noisy:
        expected = "needs noise: give privacy.epsilon or privacy.noise_std, or leave it out"
        raise InputError("privacy.noise", "pairwise", expected)
    if privacy.colluding is not None and privacy.colluding >= count:
        expected = f"must be below the number of nodes, {count}"
        raise InputError("privacy.colluding", privacy.colluding, expected)
    kind, _, degree = (topology.partners or "").partition(":")
    if kind == "circulant" and int(degree) >= count:
        expected = f"needs more nodes than partners of each, and there are {count}"
        raise InputError("topology.partners", topology.partners, expected)


def _check_secure_sum(
    count: int, chosen: AlgorithmSection, privacy: Privacy, faults: Faults
) -> None:
    """Refuse secure sums where there is no sum to be seen alone, or where one could be lost."""
    if privacy.aggregation != "secure-sum":
        return
    definition = chosen.definition
    reason = definition.releases.no_secure_sum
    if chosen.options.clip_norm == ASSUMED:
        reason = "keeps no client's part of a sum to a bound with algorithm.clip_norm = 'assumed'"
    if definition.graph.weights != "server":
        reason = "has no server: each neighbour sees messages; see privacy.noise = 'pairwise'"
    elif not definition.private:
        reason = "adds no noise"
    if reason is not None:
        expected = f"does not go with {definition.name}, which {reason}"
        raise InputError("privacy.aggregation", "secure-sum", expected)
    if not privacy.noisy:
        expected = (
            "needs noise, without which a sum shows what it is made of: give privacy.epsilon or "
            "privacy.noise_std, or leave it out"
        )
        raise InputError("privacy.aggregation", "secure-sum", expected)
    if privacy.colluding is not None and privacy.colluding >= count:
        expected = f"must be below the number of clients, {count}"
        raise InputError("privacy.colluding", privacy.colluding, expected)
    for key in ("drop", "drop_edges", "tolerate"):
        if value := getattr(faults, key):
            expected = (
                "does not go with privacy.aggregation = 'secure-sum': without one of its messages "
                "a sum stays masked, and the round must be run again"
            )
            raise InputError(f"faults.{key}", value, expected)


def _check_faults(faults: Faults, count: int) -> None:
    """Refuse faults of nodes that there are not, that never happen, or that are given twice."""
    ends = [(source, target) for source, target, _ in faults.drop_edges]
    named: Mapping[str, Sequence[tuple[int, ...]]] = {
        "drop_edges": ends,
        "down": [(node,) for node, _, _ in faults.down],
        "slow": [(node,) for node, _ in faults.slow],
    }
    for key, entries in named.items():
        highest = max((max(nodes) for nodes in entries), default=0)
        if highest >= count:
            expected = f"is none of the {count} nodes: they are 0 to {count - 1}"
            raise InputError(f"faults.{key}", f"node {highest}", expected)
    for source, target in ends:
        if source == target:
            expected = "is no edge: what a node keeps of its own is never lost"
            raise InputError("faults.drop_edges", (source, target), expected)
    for node, first, until in faults.down:
        if first >= until:
            expected = "must be [node, first step, step after the last], the first one lower"
            raise InputError("faults.down", (node, first, until), expected)
    for key in ("drop_edges", "slow"):
        for nodes, times in Counter(named[key]).items():
            if times > 1:
                raise InputError(f"faults.{key}", nodes, f"is given {times} times: give it once")
