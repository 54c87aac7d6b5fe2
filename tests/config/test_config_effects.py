"""Every key of an experiment file and every option of an algorithm does something, or is refused.

Keys and options are listed from the schema itself, so that a new one fails here until it has an
entry: two values that give different results, or the test that shows what it does. An option that
says itself where it would do nothing (`Idle`) must be refused there.
"""

import functools
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.algorithms.options import Idle
from tacit.config import Config, Promise, StatementSection
from tacit.errors import InputError, TacitError

ROOT = Path(__file__).resolve().parents[2]
Sections = Mapping[str, Mapping[str, Any]]

STEPS = 6
BASE = {
    "task": {"model": "logistic", "loss": "logistic"},
    "privacy": {"noise_std": 0.1, "noise_seed": 1, "accounting": "none"},
    "train": {"steps": STEPS, "batch": 2, "evaluate_every": 3, "dtype": "float64"},
}
"""Quick, since nothing is accounted; four nodes of six records each are handed to it."""


def combined(*changes):
    """Sections with the keys of all, the last one first."""
    merged = {}
    for sections in changes:
        for section, values in sections.items():
            merged[section] = {**merged.get(section, {}), **values}
    return merged


@functools.cache
def records():
    draw = torch.Generator().manual_seed(1)
    made = []
    for _ in range(4):
        inputs = torch.randn(6, 3, generator=draw, dtype=torch.float64)
        signs = torch.randint(0, 2, (6, 1), generator=draw).double() * 2 - 1
        made.append((inputs, signs))
    return tuple(made)


def outcome(sections, folder=None, *, given=True):
    """All that a run gives back, as text: without the experiment itself, and without times.

    A key that is None is left out.
    """
    written = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    data = {"nodes": list(records()), "test": records()[0]} if given else {}
    out = None if folder is None else folder / "run"
    before = set() if folder is None else {*folder.rglob("*")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = tacit.train(written, out=out, **data)
    faults = result.plan.faults
    values = {
        "dtype": str(result.parameters.dtype),
        "models": result.parameters.tolist(),
        "consensus": result.consensus.tolist(),
        "metrics": {key: result.metrics[key] for key in result.metrics if key != "seconds"},
        "epsilon": [node.epsilon for node in result.plan.nodes],
        "claims": [str(claim) for claim in result.claims],
        "noise": [node.noise_scale for node in result.plan.nodes],
        "relation": relations(result.plan),
        "bytes": result.bytes_sent,
        "steps": result.steps,
        "seconds": [] if faults is None else faults.seconds.tolist(),
    }
    if folder is not None:
        values["files"] = sorted(
            str(path.relative_to(folder)) for path in {*folder.rglob("*")} - before
        )
    return json.dumps(values, sort_keys=True, default=str)


def relations(plan):
    """The neighbouring relation of what each node's statement is about."""
    noised = [node for node in plan.nodes if plan.accounted and node.noise_scale]
    return [plan.release.mechanism(node).relation for node in noised]


# Options of algorithms.


@dataclass(frozen=True)
class Option:
    """How an option is shown to do something.

    Args:
        values: two of them; None leaves it out.
        others: further options, where the algorithm has them.
        idle: those beside which it does nothing, if it says so.
    """

    values: tuple[Any, Any]
    others: Mapping[str, Any] = field(default_factory=dict)
    idle: Mapping[str, Any] = field(default_factory=dict)


_LIST = [1.0 / (1 + k) for k in range(STEPS)]
_CLIPPED = {"clip": 0.05}
_MASKED = {"compressor": "rand-k", "keep": 0.5}
_PAPER = {"inverse_step": "paper"}

OPTIONS = {
    "learning_rate": Option((0.1, 0.4), idle={"inverse_step": 2.0}),
    "learning_rate_schedule": Option(("constant", "cosine"), idle={"inverse_step": 2.0}),
    "warm_up": Option((0, 3)),
    "clip": Option((None, 0.05), idle={"clip_schedule": _LIST}),
    "clip_norm": Option(("l2", "coordinate"), _CLIPPED),
    "momentum": Option((0.0, 0.5)),
    "final_mixing": Option((0, 2)),
    "clip_decay": Option((2.0, 8.0), _CLIPPED),
    "budget_growth": Option((2.0, 8.0)),
    "clip_schedule": Option((None, _LIST)),
    "noise_schedule": Option((None, _LIST)),
    "state": Option(("public", "private"), {"anchor_every": None}),
    "clip_difference": Option((None, 0.01), {"anchor_every": 2}),
    "anchor_every": Option((2, 3), idle={"state": "private"}),
    "anchor_share": Option((0.2, 0.7), {"anchor_every": 2}, idle={"state": "private"}),
    "gradient_share": Option((0.1, 0.5)),
    "table_batch": Option((None, 2), {"state": "private"}, idle={"state": "public"}),
    "table_directory": Option((None, "FOLDER"), {"state": "private"}, idle={"state": "public"}),
    "similarity": Option((0.0, 2.0)),
    "speed_spread": Option((0.2, 2.0)),
    "stragglers": Option((0.0, 0.5)),
    "straggler_factor": Option((2.0, 50.0), {"stragglers": 0.5}),
    "consensus_step": Option((0.3, 0.6)),
    "tracking_step": Option((0.3, 0.6)),
    "compressor": Option(("rand-k", "top-k"), {"keep": 0.5}),
    "keep": Option((0.3, 0.6), {"compressor": "rand-k"}),
    "shift_step": Option((None, 0.1), _MASKED),
    "activation": Option((1.0, 0.5)),
    "weight_decay": Option((0.0, 0.5)),
    "rate_decay": Option((0.99, 0.5)),
    "noise_decay": Option((0.995, 0.999)),
    "regulariser": Option(("l1", "l2")),
    "regularisation": Option((0.1, 0.5), {"regulariser": "l2"}),
    "clients_per_round": Option((None, 2)),
    "participation": Option(
        ("drawn", "same"), {"clients_per_round": 2}, idle={"clients_per_round": None}
    ),
    "local_steps": Option((1, 2)),
    "sampling": Option(("disjoint", "with-replacement"), {"local_steps": 3}),
    "penalty": Option((20.0, 5.0)),
    "penalty_growth": Option((1.0, 1.1)),
    "dual_step": Option((None, 3.0)),
    "inverse_step": Option((None, 3.0)),
    "smoothness": Option((None, 0.3)),
    "diameter": Option((1.0, 2.0), _PAPER),
    "dual_diameter": Option((1.0, 2.0), _PAPER),
    "deviation": Option((1.0, 2.0), _PAPER),
    "ridge": Option(("auto", 0.3)),
    "target_bound": Option((1.0, 0.5)),
}
_EVERY_OTHER = {"anchor_every": 2}
_ONLY_ANCHORS = {"anchor_every": 1}
# Where an algorithm takes other values than most.
OWN = {
    ("dpdo", "clip_norm"): Option(("l1", "l2")),
    ("cpgt", "clip_norm"): Option(("l1", "l2")),
    ("dpdo", "regulariser"): Option(("none", "box"), {"learning_rate": 20.0}),
    ("noised-moments", "learning_rate"): Option((1.0, 0.5)),
    ("noised-moments-server", "learning_rate"): Option((1.0, 0.5)),
    **{
        (name, key): replace(OPTIONS[key], others=_EVERY_OTHER, idle=_ONLY_ANCHORS)
        for name in ("ldp-svrg", "ldp-spider")
        for key in ("clip_difference", "anchor_share")
    },
    ("dp-srm", "clip_difference"): Option((None, 0.01), idle={"gradient_share": 1.0}),
    ("dpdo", "regularisation"): Option((0.01, 0.02), {"regulariser": "box"}),
}


# What idles elsewhere: `soteriafl-saga` always has a table, and `soteriafl-svrg` never.
NEVER_IDLE = {
    ("soteriafl-saga", "table_batch"),
    ("soteriafl-saga", "table_directory"),
    ("soteriafl-svrg", "anchor_every"),
}


def options_of_algorithms():
    """(algorithm, option) for each option of each."""
    rows = ALGORITHMS.items()
    return [(name, key) for name, row in rows for key in row.options.model_fields]


def entry(name, key):
    """What is known of an option."""
    found = OWN.get((name, key), OPTIONS.get(key))
    if found is None:
        pytest.fail(
            f"algorithm.{key} of {name} has no entry: add to OPTIONS two values of it that give "
            "different results, and mark it `Idle` where it would do nothing",
            pytrace=False,
        )
    return found


def chosen(name, **options):
    """The base experiment with an algorithm and those of these options that it has."""
    row = ALGORITHMS[name]
    known = {key: value for key, value in options.items() if key in row.options.model_fields}
    quiet = {} if row.private else {"noise_std": None}
    return combined(BASE, {"algorithm": {"name": name, **known}, "privacy": quiet})


def only_value(about):
    """Whether an option is there to be read, and has one value."""
    return get_origin(about.annotation) is Literal and len(get_args(about.annotation)) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`outcome` of an experiment, made once; `FOLDER` in it is one for its own files."""
    known = {}

    def run_once(sections):
        key = json.dumps(sections, sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("effects")
            written = json.loads(key.replace("FOLDER", str(folder / "table")))
            text = outcome(written)
            known[key] = text + str(sorted(path.name for path in folder.rglob("*")))
        return known[key]

    return run_once


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), options_of_algorithms())
def test_an_option_does_something_or_is_refused(name, key, run):
    about = ALGORITHMS[name].options.model_fields[key]
    if only_value(about):
        with pytest.raises(InputError, match=rf"algorithm\.{key} = 'another'"):
            run(chosen(name, **{key: "another"}))
        return
    option = entry(name, key)
    first, second = (chosen(name, **{**option.others, key: value}) for value in option.values)
    before = run(first)
    try:
        after = run(second)
    except InputError as error:
        after = str(error)
    assert before != after
    if "bytes" not in after:  # refused, as another norm than l2 where gradients are subtracted
        assert after.startswith(f"algorithm.{key} = ")


_NOISE_ALONE = "says how noise is divided, and there is none"
_CLAIM = (
    "is of the claim's conditions as well, and nothing is claimed of noise that is not accounted"
)
SETTINGS = {
    "without noise": {
        "privacy": {"noise_std": None, "epsilon": "none", "accounting": None, "noise_seed": None}
    },
    "published noise": {
        "privacy": {"noise_std": None, "epsilon": 2.0, "delta": 1e-3, "accounting": "published"}
    },
    "certified noise": {
        "privacy": {"noise_std": None, "epsilon": 2.0, "delta": 1e-3, "accounting": None},
        "train": {"batch": "all"},
    },
    "an average": {"train": {"average": "tail:0.5"}},
}
# (algorithm or "", option, setting or other option): where two values give one result, and why.
WITHOUT_EFFECT = {
    ("", "budget_growth", "without noise"): _NOISE_ALONE,
    ("", "noise_schedule", "without noise"): _NOISE_ALONE,
    ("", "noise_decay", "without noise"): _NOISE_ALONE,
    ("", "anchor_share", "without noise"): _NOISE_ALONE,
    ("soteriafl-svrg", "state", "without noise"): "says which gradients are released with noise",
    ("dpdo", "regulariser", "learning_rate"): "so small a rate does not reach the box",
    ("fedspd-dp", "diameter", "inverse_step"): _CLAIM,
    ("fedspd-dp", "dual_diameter", "inverse_step"): _CLAIM,
    ("fedspd-dp", "deviation", "inverse_step"): _CLAIM,
    ("soteriafl-saga", "clip_difference", "clip"): "so short gradients differ by less",
}


def beside(name, key):
    """What an option may meet: other settings, and each other option at a value of its own."""
    row = ALGORITHMS[name]
    if row.private:
        yield from ((label, sections, {}) for label, sections in SETTINGS.items())
    for other, about in row.options.model_fields.items():
        if other != key and not only_value(about):
            option = entry(name, other)
            value = next(value for value in reversed(option.values) if value != about.default)
            yield other, {}, {**option.others, other: value}


TIMES = 2
"""In how many algorithms one option is tried beside another, where so many have both."""


@functools.cache
def turns():
    """(option, setting or other option) with the algorithms in which it is tried, in turn."""
    having = {}
    for name, key in options_of_algorithms():
        if not only_value(ALGORITHMS[name].options.model_fields[key]):
            for label, _, _ in beside(name, key):
                having.setdefault((key, label), []).append(name)
    tried = {}
    for number, ((key, label), names) in enumerate(having.items()):
        special = {row for row, *pair in WITHOUT_EFFECT if pair == [key, label]}
        apart = max(1, len(names) // TIMES)
        chosen = {names[(number + apart * each) % len(names)] for each in range(TIMES)}
        tried[key, label] = chosen | (special & set(names))
    return tried


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), options_of_algorithms())
def test_an_option_does_something_beside_others_or_is_refused(name, key, run):
    if only_value(ALGORITHMS[name].options.model_fields[key]):
        return
    option, without = entry(name, key), set()
    mine = [each for each in beside(name, key) if name in turns()[key, each[0]]]
    for label, sections, more in mine:
        answers = []
        for value in option.values:
            options = {**option.others, **more, key: value}
            try:
                answers.append(run(combined(chosen(name, **options), sections)))
            except TacitError as error:
                answers.append(f"refused: {error}")
        if answers[0] == answers[1] and not answers[0].startswith("refused"):
            without.add(label)
    known = {
        label
        for row, option_key, label in WITHOUT_EFFECT
        if option_key == key and row in ("", name)
    }
    assert without == known & {label for label, _, _ in mine}


def idle_options():
    """(algorithm, option, where it says that it does nothing), for each such option."""
    for name, row in ALGORITHMS.items():
        for key, about in row.options.model_fields.items():
            yield from ((name, key, mark) for mark in about.metadata if isinstance(mark, Idle))


@pytest.mark.parametrize(("name", "key", "mark"), [*idle_options()])
def test_an_option_that_would_do_nothing_is_refused(name, key, mark):
    option, kind = entry(name, key), ALGORITHMS[name].options
    default = kind.model_fields[key].default
    value = next(value for value in option.values if value not in (None, default))
    given = {**option.idle, key: value}
    given = {other: given[other] for other in given if other in kind.model_fields}
    if kind.model_fields.get("state") and only_value(kind.model_fields["state"]):
        given.pop("state", None)
    if not mark.when(kind(**given)):
        assert (name, key) in NEVER_IDLE
        return
    sections = {"algorithm": {"name": name, **given}}
    with pytest.raises(InputError, match=rf"^algorithm\.{key} = .*{mark.remedy[:20]}"):
        Config(**sections)
    # Its default is not refused, nor what a run folder writes down.
    Config(algorithm={**sections["algorithm"], key: default})


@pytest.mark.parametrize("name", ["fedavg", "dp-fedavg", "fedspd-dp"])
def test_how_mini_batches_are_drawn_needs_some(name):
    drawn = {"name": name, "local_steps": 2, "sampling": "with-replacement"}
    with pytest.raises(InputError, match=r"^algorithm\.sampling = .*all of them"):
        Config(algorithm=drawn, train={"batch": "all"})
    Config(algorithm=drawn, train={"batch": 2})
    Config(algorithm={**drawn, "sampling": "disjoint"}, train={"batch": "all"})


def test_a_norm_of_clipping_needs_a_bound():
    options = {"name": "privsgp", "clip_norm": "coordinate"}
    for quiet in ({"epsilon": "none"}, {"noise_std": 0.1, "accounting": "none"}):
        with pytest.raises(InputError, match=r"algorithm\.clip_norm = .* give algorithm\.clip"):
            Config(algorithm=options, privacy=quiet)
        Config(algorithm={**options, "clip": 1.0}, privacy=quiet)
    Config(algorithm=options)  # an accounted run has a default bound


# Keys of the sections.


@dataclass(frozen=True)
class Key:
    """How a key of a section is shown to do something.

    Args:
        values: two of them; None leaves it out.
        rest: sections that go with it.
        given: whether records are handed to the run; otherwise they are read.
        elsewhere: `file::test` that shows it, where one quick run cannot.
    """

    values: tuple[Any, Any] = (None, None)
    rest: Sections = field(default_factory=dict)
    given: bool = True
    elsewhere: str = ""


READ = {
    "task": {"dataset": "effects_data:load", "loss": "cross-entropy"},
    "nodes": {"count": 3},
}
PEOPLE = combined(READ, {"task": {"dataset": "effects_data:people"}})
BY_PERSON = {"privacy": {"unit": "column:person"}}
FILES = {
    "task": {"dataset": "svmlight:some.svm", "data_dir": "one", "features": 4},
    "nodes": {"count": 3},
}
TABLE = {
    "task": {"dataset": "csv:some.csv", "loss": "cross-entropy"},
    "nodes": {"count": 3, "partition": "iid"},
}
CERTIFIED = {
    "privacy": {"accounting": None, "noise_std": None, "epsilon": 2.0, "delta": 1e-3},
    "algorithm": {"name": "privsgp"},
    "train": {"batch": "all"},
}
SIX = {"task": READ["task"], "nodes": {"count": 6}, "algorithm": {"name": "dp2-sgd"}}
REGULAR = {"topology": {"graph": "k-regular"}}
TORUS = {"topology": {"graph": "torus"}}
DRAWN = {"topology": {"graph": "erdos-renyi"}}
PAIRWISE = combined(SIX, {"topology": {"graph": "ring"}, "privacy": {"noise": "pairwise"}})
ELSEWHERE_LEDGER = "tests/training/test_shared_budgets.py::"
RANKS = "tests/communication/cluster/"
SITES = "tests/communication/secure/test_secure_absence.py::"
PROMISE = "tests/analysis/test_promise.py::"
STATED = "tests/analysis/test_statement_declared.py::"

KEYS = {
    "task.dataset": Key(("effects_data:load", "effects_data:others"), READ, given=False),
    "task.model": Key(("logistic", "mlp")),
    "task.outputs": Key((3, 4), combined(READ, {"task": {"model": "mlp"}}), given=False),
    "task.output": Key(
        ("scores", "others"),
        combined(READ, {"task": {"model": "effects_data:network"}}),
        given=False,
    ),
    "task.input_bound": Key((None, 0.1)),
    "task.target_bound": Key(elsewhere="tests/training/test_prepare.py::test_targets_far_outside"),
    "task.features": Key((None, "effects_data:squares")),
    "task.labels": Key(([-1, 1], [1, -1]), FILES, given=False),
    "task.index_base": Key((0, 1), FILES, given=False),
    "task.features_cache": Key(
        elsewhere="tests/training/test_feature_runs.py::test_features_are_kept_where_the_file_says"
    ),
    "task.loss": Key(("logistic", "mse")),
    "task.class_weights": Key((None, [1.0, 3.0])),
    "task.augmentation": Key((None, "effects_data:views")),
    "task.metric": Key((None, ["effects_data:score", "auc"])),
    "task.calibrate": Key(("public", "private"), CERTIFIED),
    "task.data_dir": Key(("one", "two"), FILES, given=False),
    "task.schema": Key((None, "wide.toml"), TABLE, given=False),
    "task.test": Key((None, "csv:other.csv"), TABLE, given=False),
    "task.test_share": Key((None, 0.4), TABLE, given=False),
    "nodes.count": Key((3, 4), READ, given=False),
    "nodes.partition": Key(("iid", "by:label"), READ, given=False),
    "nodes.alpha": Key(
        (0.3, 30.0), combined(READ, {"nodes": {"partition": "dirichlet"}}), given=False
    ),
    "nodes.per_node": Key((1, 3), combined(READ, {"nodes": {"partition": "shards"}}), given=False),
    "nodes.data": Key(
        ("by-rank", "split"), combined(READ, {"nodes": {"source": "one-{node}.npz"}}), given=False
    ),
    "nodes.source": Key(
        ("one-{node}.npz", "two-{node}.npz"),
        combined(READ, {"nodes": {"data": "by-rank"}}),
        given=False,
    ),
    "nodes.names": Key(elsewhere="tests/config/test_config_names.py::test_names_stand_in"),
    "nodes.weights": Key(("equal", [1.0, 2.0, 3.0])),
    "nodes.without_records": Key(
        elsewhere="tests/training/test_weights.py::test_who_has_no_records_is_declared"
    ),
    "nodes.part": Key(
        ([0, 2], [1, 2]), combined(READ, {"nodes": {"count": 1, "partition": "iid"}}), given=False
    ),
    "nodes.placement": Key(elsewhere=RANKS + "test_cluster_runs.py::test_processes_give"),
    "topology.graph": Key(("ring", "complete")),
    "topology.undirected": Key(
        elsewhere="tests/topology/test_topology_own.py::test_objects_and_files_are_the_graph"
    ),
    "topology.mixing": Key(
        ("metropolis", "laplacian"),
        combined(SIX, DRAWN, {"topology": {"probability": 0.4}}),
        given=False,
    ),
    "topology.degree": Key((2, 4), combined(SIX, REGULAR), given=False),
    "topology.shape": Key(([2, 3], [3, 2]), combined(SIX, TORUS), given=False),
    "topology.probability": Key((0.4, 0.9), combined(SIX, DRAWN), given=False),
    "topology.rounds": Key((1, 2)),
    "topology.partners": Key(("graph", "complete"), PAIRWISE, given=False),
    "algorithm.name": Key(("privsgp", "dp2-sgd")),
    "privacy.epsilon": Key((1.0, 3.0), CERTIFIED),
    "privacy.guess": Key((0.6, 0.7), combined(CERTIFIED, {"privacy": {"epsilon": None}})),
    "privacy.delta": Key((1e-3, 1e-4), CERTIFIED),
    "privacy.noise_std": Key((0.1, 0.2)),
    "privacy.epsilon_per_round": Key(
        (0.5, 1.0), combined(CERTIFIED, {"privacy": {"epsilon": None}})
    ),
    "privacy.published_constant": Key(
        (1.0, 2.0), combined(CERTIFIED, {"privacy": {"accounting": "published"}})
    ),
    "privacy.accounting": Key(("certified", "published"), CERTIFIED),
    "privacy.relation": Key(("add-or-remove-one", "replace-one"), CERTIFIED),
    "privacy.noise": Key(("independent", "pairwise"), CERTIFIED),
    "privacy.colluding": Key((0, 1), combined(CERTIFIED, {"privacy": {"noise": "pairwise"}})),
    "privacy.bands": Key(
        (2, 3),
        combined(
            CERTIFIED, {"privacy": {"noise": "banded"}, "train": {"sampling": "cyclic", "batch": 2}}
        ),
    ),
    "privacy.pair_noise": Key((1.0, 4.0), combined(CERTIFIED, {"privacy": {"noise": "pairwise"}})),
    "privacy.aggregation": Key(
        ("clear", "secure-sum"), combined(CERTIFIED, {"algorithm": {"name": "dp-sgd"}})
    ),
    "privacy.noise_seed": Key((1, 2)),
    "privacy.keystream": Key(("aes", "chacha20")),
    "privacy.calibrate_share": Key(
        (0.1, 0.5), combined(CERTIFIED, {"task": {"calibrate": "private"}})
    ),
    "privacy.unit": Key(("record", "column:person"), PEOPLE, given=False),
    "privacy.unit_rows": Key((1, 2), combined(PEOPLE, BY_PERSON), given=False),
    "privacy.unit_gradient": Key(("mean", "sum"), combined(PEOPLE, BY_PERSON), given=False),
    "privacy.unit_nodes": Key(
        elsewhere="tests/training/test_units.py::test_a_person_at_more_nodes_is_refused"
    ),
    "privacy.ledger": Key(
        (None, "ledgers"), combined(CERTIFIED, {"privacy": {"noise_seed": None}})
    ),
    "privacy.ledger_source": Key(
        elsewhere=ELSEWHERE_LEDGER + "test_the_same_records_under_another_name_are_caught"
    ),
    "privacy.ledger_epsilon": Key(
        elsewhere=ELSEWHERE_LEDGER + "test_another_seed_with_swapped_budgets_is_refused"
    ),
    "privacy.ledger_delta": Key(
        elsewhere=ELSEWHERE_LEDGER + "test_another_seed_with_swapped_budgets_is_refused"
    ),
    "train.steps": Key((2, 3)),
    "train.batch": Key((2, 3)),
    "train.sampling": Key(("poisson", "fixed")),
    "train.views": Key((1, 2), {"task": {"augmentation": "effects_data:views"}}),
    "train.average": Key(("none", "tail:0.5")),
    "train.seed": Key((0, 1), {"task": {"model": "mlp"}}),
    "train.dtype": Key(("float32", "float64")),
    "train.precision": Key(("float32", "bf16"), {"train": {"dtype": "float32"}}),
    "train.device": Key(("cpu", "cuda:63")),
    "train.evaluate_every": Key((1, 3)),
    "train.evaluate_records": Key((1, 6)),
    "train.suboptimality": Key((False, True)),
    "train.checkpoint_every": Key((2, 3)),
    "train.patience": Key(elsewhere=SITES + "test_a_site_that_is_away_for_too_long_is_named"),
    "train.timeout": Key(elsewhere=RANKS + "test_cluster_losses.py::test_a_rank_that_hangs"),
    "faults.drop": Key((0.0, 0.5)),
    "faults.drop_edges": Key(([], [[0, 1, 0.9]]), {"topology": {"graph": "ring"}}),
    "faults.down": Key(([], [[1, 2, 4]])),
    "faults.slow": Key(([], [[1, 0.001]])),
    "faults.tolerate": Key(
        elsewhere=RANKS + "test_cluster_losses.py::test_bad_messages_may_be_tolerated"
    ),
    **{
        f"promise.{key}": Key(elsewhere=PROMISE + "test_every_constant_moves_the_promise")
        for key in Promise.model_fields
    },
    **{
        f"statement.{key}": Key(elsewhere=STATED + "test_every_declared_key_is_taken_over")
        for key in StatementSection.model_fields
    },
}

_DATA = """
import tacit
import torch


def made(seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(24, 3, generator=draw), torch.arange(24) % 3


def load():
    return made(1), made(2)


def others():
    return made(3), made(2)


def people():
    train = tacit.data.Dataset(*made(1), torch.arange(24) // 3)
    return tacit.data.TaskData("people", train, tacit.data.Dataset(*made(2)))


def views(records, coins):
    return records * (1 + (coins % 7).double().view(-1, 1))


def score(outputs, targets):
    return outputs.mean()


def squares(inputs):
    return inputs**2


class Network(torch.nn.Linear):
    def forward(self, inputs):
        scores = super().forward(inputs)
        return {"scores": scores, "others": 2 * scores}


def network(outputs):
    return Network(3, outputs)
"""

_SCHEMA = """
confirmed_public = true
target = {column = "ill", kind = "class", labels = ["no", "yes"]}
columns.size = {kind = "number", low = 0, high = HIGH}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the records of `READ`, `FILES` and `TABLE` are."""
    place = tmp_path_factory.mktemp("keys")
    (place / "effects_data.py").write_text(_DATA, encoding="utf-8")
    for name, high in (("some.schema", 20), ("wide", 40)):
        text = _SCHEMA.replace("HIGH", str(high))
        (place / f"{name}.toml").write_text(text, encoding="utf-8")
    for name, shift in (("some", 0), ("other", 3)):
        lines = [f"{k + shift},{'no' if k % 3 else 'yes'}" for k in range(15)]
        text = "\n".join(["size,ill", *lines, ""])
        (place / f"{name}.csv").write_text(text, encoding="utf-8")
    draw = np.random.default_rng(3)
    for name in ("one", "two"):
        (place / name).mkdir()
        numbers = draw.normal(size=(12, 3))
        lines = [
            f"{'+1' if k % 2 else '-1'} 1:{a:.3f} 2:{b:.3f} 3:{c:.3f}"
            for k, (a, b, c) in enumerate(numbers)
        ]
        (place / name / "some.svm").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for node in range(3):
            inputs = draw.normal(size=(6, 3)).astype(np.float32)
            np.savez(place / f"{name}-{node}.npz", inputs=inputs, targets=np.arange(6) % 3)
    return place


def keys_of_sections():
    """`section.key` for each key of each section; options of algorithms are listed above."""
    return [
        f"{section}.{key}"
        for section, about in Config.model_fields.items()
        for key in about.annotation.model_fields
        if (section, key) != ("algorithm", "options")
    ]


def shown(name):
    """What is known of a key."""
    if name not in KEYS:
        pytest.fail(
            f"{name} has no entry: add to KEYS two values of it that give different results, or "
            "the test that shows what it does",
            pytrace=False,
        )
    return KEYS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", keys_of_sections())
def test_a_key_does_something_or_is_refused(name, folder, tmp_path, monkeypatch):
    about = shown(name)
    if about.elsewhere:
        file, _, test = about.elsewhere.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")
        return
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    section, _, key = name.partition(".")

    def found(number, place, out):
        value = about.values[number]
        value = str(place / value) if name == "privacy.ledger" and value else value
        sections = combined(BASE, about.rest, {section: {key: value}})
        try:
            return outcome(sections, place if out else None, given=about.given)
        except TacitError as error:
            if number == 0:
                raise
            return str(error)

    places = tmp_path / "0", tmp_path / "1"
    for place in places:
        place.mkdir()
    first, second = (found(number, place, False) for number, place in enumerate(places))
    if first == second:  # it shows in files alone
        first, second = (found(number, place, True) for number, place in enumerate(places))
    assert first != second
    assert "bytes" in second or name in second


# (key, method): where two values give one result, and why.
_C2 = "is read for any method by `tacit plan --optimise`, and by the claims of two"
METHODS_WITHOUT = {
    **{
        ("privacy.published_constant", name): _C2
        for name in ("dyn-d2p", "dyn-c", "dyn-mu", "const-d2p", "dyn-general", "do-adp")
    },
    ("train.average", "noised-moments"): "four nodes of this graph agree before the average begins",
}


def methods(key):
    """Algorithms in which a key is tried: every third of those that differ in step or formula.

    The others have other keys in their turn; and those of which something is known.
    """
    kinds = {(row.step, row.claims.formula): name for name, row in reversed(ALGORITHMS.items())}
    differing = [name for name in ALGORITHMS if name in kinds.values()]
    in_turn = differing[OF_METHODS.index(key) % 3 :: 3]
    return [name for name in differing if name in in_turn or (key, name) in METHODS_WITHOUT]


OF_METHODS = [name for name, about in KEYS.items() if not (about.elsewhere or "algorithm" in name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_METHODS)
def test_a_key_does_something_or_is_refused_for_methods_in_turn(
    name, folder, tmp_path, monkeypatch
):
    about = shown(name)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    section, _, key = name.partition(".")
    without = set()
    for method in methods(name):
        row, answers = ALGORITHMS[method], []
        for number, value in enumerate(about.values):
            place = tmp_path / f"{method} {number}"
            place.mkdir()
            value = str(place / value) if name == "privacy.ledger" and value else value
            quiet = {} if row.private else {"privacy": {"noise_std": None}}
            sections = combined(
                BASE, about.rest, {"algorithm": {"name": method}}, quiet, {section: {key: value}}
            )
            try:
                answers.append(outcome(sections, place, given=about.given))
            except TacitError as error:
                answers.append(f"refused: {error}")
        if answers[0] == answers[1] and not answers[0].startswith("refused"):
            without.add((name, method))
    known = {pair for pair in METHODS_WITHOUT if pair[0] == name and pair[1] in methods(name)}
    assert without == known


def test_every_key_and_every_option_has_an_entry():
    for name, row in ALGORITHMS.items():
        for key, about in row.options.model_fields.items():
            assert only_value(about) or entry(name, key)
    for name in keys_of_sections():
        shown(name)


def test_entries_are_of_keys_that_exist():
    assert set(KEYS) <= set(keys_of_sections())
    known = {key for row in ALGORITHMS.values() for key in row.options.model_fields}
    assert set(OPTIONS) <= known
    assert all(key in ALGORITHMS[name].options.model_fields for name, key in OWN)


def test_a_key_or_an_option_without_an_entry_is_told_what_to_add():
    with pytest.raises(pytest.fail.Exception, match=r"algorithm\.new of privsgp has no entry: add"):
        entry("privsgp", "new")
    with pytest.raises(pytest.fail.Exception, match=r"train\.new has no entry: add"):
        shown("train.new")


def test_outcomes_of_what_does_nothing_are_equal():
    """The comparisons above can fail: one process has no bad messages to tolerate."""
    base = combined(BASE, {"algorithm": {"name": "privsgp"}})
    assert outcome(base) == outcome(combined(base, {"faults": {"tolerate": True}}))
