"""What the battery must know of each algorithm: one row for each way that one is run.

The battery of `test_algorithms_battery`, `test_algorithms_noise` and `test_resume` runs every row.
An algorithm whose `state` may be public or private has a row for either.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.mechanisms.clipping import CLIP_NORMS

Array = NDArray[np.float64]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """One step that starts from zero and has no gradient, at learning rate 1.

    Args:
        k: the step.
        state: after it.
        messages: what was handed to the exchange, in that order, `[nodes, d]` each.
    """

    k: int
    state: Any
    messages: Sequence[Array]


def _batch_mean(records, k):
    return 1 / records


def _as_planned(k, steps):
    return 1.0


@dataclass(frozen=True)
class Release:
    """Where the noise of a step is seen, and what it hides.

    Args:
        noise: it, in units of the mean gradient of a batch, `[nodes, d]`.
        relative: its standard deviation at step k of K, over the planned one of a batch mean.
        shift: how far a record that is left out moves the release that the noise is in, over the
            clipping bound, from the number of records and k; None: no closed form is known.
        models: every node's model `[nodes, d]` after one step on a complete graph (or of a
            server), of the noise `[nodes, d]`.
        consensus: the common model `[d]` then, if it is not their mean.
    """

    noise: Callable[[Seen], Array]
    relative: Callable[[int, int], float] = _as_planned
    shift: Callable[[int, int], float] | None = _batch_mean
    models: Callable[[Array], Array] = lambda noise: -noise
    consensus: Callable[[Array], Array] | None = None


@dataclass(frozen=True)
class Row:
    """One way to run an algorithm.

    Args:
        name: of the algorithm.
        recursion: `file::test` where its recursion is compared with an independent loop.
        release: of its noise; None for a method without noise.
        options: that every run of the row has.
        smooth: further ones with which what is sent depends continuously on the gradients.
        resumed: further ones with which all of its state matters.
        moved: steps after which every node has taken part.
        one_step: options with which a single step of one node is a gradient step, and
        length: how long that is, from the learning rate.
        mean: options with which the mean of models under equal curvature is that of central
            gradient descent; None where that does not hold.
        central: likewise of every model on a complete graph, whatever the curvatures.
        pooled: whether under equal curvature the common model is that of one node with all data.
        quadratic: options with which it converges on a quadratic,
        descent: in how many steps, and
        closeness: to which share of the way there.
        network: the model of tests that take a network where they may.
        trains: whether it makes steps along gradients of the task's model, of any kind, which
            tests of such steps and models are about.
    """

    name: str
    recursion: str
    release: Release | None = None
    options: Options = field(default_factory=dict)
    smooth: Options = field(default_factory=dict)
    resumed: Options = field(default_factory=dict)
    moved: int = 3
    one_step: Options = field(default_factory=dict)
    length: Callable[[float], float] = lambda rate: rate
    mean: Options | None = None
    central: Options | None = None
    pooled: bool = True
    quadratic: Options = field(default_factory=dict)
    descent: int = 150
    closeness: float = 0.01
    network: str = "mlp"
    trains: bool = True


# Where the noise is seen.


def _averaged(noise):
    return np.tile(noise.mean(axis=0), (len(noise), 1))


_ANCHORS = {"state": "public", "anchor_every": 10, "anchor_share": 0.5}


def _other_steps(k, steps):
    """For these anchors in up to ten steps, and differences of up to twice the clipping bound."""
    return 1.0 if k or steps == 1 else math.sqrt(1 / (steps - 1)) / 2


PUSHED = Release(lambda seen: -seen.messages[0], models=lambda noise: -_averaged(noise))
KEPT = Release(lambda seen: -seen.state.x.numpy())
SENT = Release(lambda seen: seen.messages[0], models=lambda noise: -_averaged(noise))


def _anchored(release):
    return Release(
        release.noise,
        relative=_other_steps,
        shift=lambda records, k: (2 if k else 1) / records,
        models=release.models,
    )


_FEDSPD = 21.0  # gamma + rho at learning rate 1, of which the message holds twice the model's noise


def _fedspd(shift):
    return Release(
        lambda seen: seen.messages[0] * _FEDSPD / 2,
        shift=shift,
        models=np.zeros_like,  # clients' own models are not noised
        consensus=lambda noise: noise.mean(axis=0) * 2 / _FEDSPD,
    )


# Rows.

PLAIN = "test_algorithms_recursion.py::"
VARIANCE = "test_algorithms_privsgp_vr.py::"
SOTERIA = "test_algorithms_soteriafl.py::"
FEDERATED = "test_algorithms_federated.py::"
SERVER_MEANS = "test_algorithms_server_means.py::"
LAPLACE = "test_algorithms_laplace_methods.py::"
COMPRESSED = "test_algorithms_do_adp.py::"
PRIMAL_DUAL = "test_algorithms_fedspd_dp.py::"


def _push_sum(name, **rest):
    settings = {
        "recursion": PLAIN + "test_push_sum_recursion",
        "release": PUSHED,
        "resumed": {"momentum": 0.9, "final_mixing": 3},
        "mean": {},
        "central": {},
    }
    return Row(name, **{**settings, **rest})


def _gossip(name, release):
    return Row(name, recursion=PLAIN + "test_gossip_recursion", release=release, mean={})


def _compressed(name, release, **more):
    return Row(
        name,
        recursion=COMPRESSED + "test_recursion",
        release=release,
        smooth={"compressor": "rand-k", "keep": 1.0},
        resumed=more,
        mean={"momentum": 0.0},
    )


def _local_steps(name, release):
    return Row(
        name,
        recursion=FEDERATED + "test_fedavg_recursion",
        release=release,
        resumed={"clients_per_round": 2, "local_steps": 2},
        one_step={"local_steps": 1},
        mean={"local_steps": 1},
        central={"local_steps": 1},
        quadratic={"local_steps": 2},
    )


def _primal_dual(state, release):
    return Row(
        "fedspd-dp",
        recursion=PRIMAL_DUAL + "test_recursion",
        release=release,
        options={"state": state, "penalty": 20.0},
        resumed={"clients_per_round": 2, "local_steps": 2},
        length=lambda rate: 1 / (1 / rate + 20),
        quadratic={"penalty": 1.0},
    )


def _graph_admm(name, mean, growth=1.0, quadratic=0.3):
    """At learning rate 1 and penalty eta a model moves by the gradient over 1 + 2 eta."""
    return Row(
        name,
        recursion="test_algorithms_graph_admm.py::test_recursion",
        options={"penalty": 1.0},
        release=Release(
            lambda seen: -seen.messages[0] * (1 + 2 * growth**seen.k),
            models=lambda noise: -noise / 3,
        ),
        resumed={"regulariser": "l1", "regularisation": 0.01},
        length=lambda rate: 1 / (1 / rate + 2),
        mean=mean,
        quadratic={"learning_rate": quadratic},
    )


_SIGMOID = 1 / (1 + math.e)  # of a cosine of 1, what DPDL weighs a gradient with that is its own
_TENTH = {"learning_rate": 0.125}  # at penalty 1, a step of 1 / 10


def _sent_once(seen):
    """Zero, as one row for all, where nobody sends."""
    return seen.messages[0] if seen.messages else np.zeros(seen.state.x.shape)


def _moments(name, release, **rest):
    """One release, from which a linear model is solved."""
    return Row(
        name,
        recursion="test_algorithms_noised_moments.py::test_recursion",
        release=release,
        options={"learning_rate": 1.0},
        moved=1,
        network="logistic",
        trains=False,
        **rest,
    )


def _soteria(name, options, release):
    return Row(
        name,
        recursion=SOTERIA + "test_recursion",
        release=release,
        options=options,
        resumed={"compressor": "rand-k", "keep": 0.5},
        mean={},
        central={},
    )


_NEVER = 10**9  # after the first step


def _refreshed(name, moved, every=_NEVER, **rest):
    """A refreshed direction of the server; `moved`: by a record in other rounds, over the clip."""
    return Row(
        name,
        recursion=SERVER_MEANS + "test_recursion",
        release=Release(
            SENT.noise,
            shift=lambda records, k: (moved if k % every else 1) / records,
            models=SENT.models,
        ),
        options={} if every == _NEVER else {"anchor_every": every},
        resumed={"clients_per_round": 2, "regulariser": "l1", **rest},
        mean={},
        central={},
    )


ROWS = {
    "sgp": _push_sum("sgp", release=None),
    "privsgp": _push_sum("privsgp"),
    "privsgp-vr": _push_sum(
        "privsgp-vr",
        recursion=VARIANCE + "test_recursion_over_changing_graphs",
        release=_anchored(PUSHED),
        options=_ANCHORS,
        resumed={"anchor_every": 3, "momentum": 0.9},
    ),
    "privsgp-vr, private": _push_sum(
        "privsgp-vr",
        recursion=VARIANCE + "test_recursion_over_changing_graphs",
        options={"state": "private"},
    ),
    "dyn-d2p": _push_sum("dyn-d2p"),
    "dyn-c": _push_sum("dyn-c"),
    "dyn-mu": _push_sum("dyn-mu"),
    "const-d2p": _push_sum("const-d2p"),
    "dyn-general": _push_sum("dyn-general"),
    "private-gradient-tracking": _push_sum(
        "private-gradient-tracking",
        recursion="test_algorithms_gradient_tracking.py::test_recursion",
    ),
    "d-psgd": _gossip("d-psgd", None),
    "dp2-sgd": _gossip("dp2-sgd", KEPT),
    "adp2-sgd": Row(
        "adp2-sgd",
        recursion="test_algorithms_adp2_sgd.py::test_waves_are_one_event_after_the_other",
        release=KEPT,
        resumed={"stragglers": 0.3},
        moved=12,
        pooled=False,
        quadratic={"learning_rate": 0.2},
    ),
    "choco-sgd": _compressed("choco-sgd", None),
    "do-adp": _compressed("do-adp", KEPT, activation=0.6),
    "dpdo": Row(
        "dpdo",
        recursion=LAPLACE + "test_dpdo_recursion",
        release=Release(lambda seen: seen.messages[0] / 0.7**seen.k, models=_averaged),
        options={"rate_decay": 0.7, "noise_decay": 0.8},
        quadratic={"rate_decay": 0.99, "noise_decay": 0.995},
        mean={"rate_decay": 1.0, "noise_decay": 1.0},
        central={"rate_decay": 1.0, "noise_decay": 1.0},
    ),
    "dp-dda": Row(
        "dp-dda",
        recursion="test_algorithms_dp_dda.py::test_recursion",
        release=Release(lambda seen: seen.state.z.numpy()),
        resumed={"activation": 0.6, "regulariser": "l1", "regularisation": 0.01},
        quadratic={"learning_rate": 1.0},
        descent=300,
        closeness=0.03,  # it falls as one over the square root of the steps
    ),
    "cpgt": Row(
        "cpgt",
        recursion=LAPLACE + "test_cpgt_recursion",
        release=Release(lambda seen: seen.messages[1]),
        resumed={"compressor": "top-k", "keep": 0.3},
        mean={},
    ),
    "dpdl": Row(
        "dpdl",
        recursion="test_algorithms_dpdl.py::test_recursion",
        # In the first step of a round it is a node's own gradient, then it goes to a neighbour.
        release=Release(
            lambda seen: seen.messages[2] if seen.k else seen.state.own.numpy(),
            models=lambda noise: -_averaged(noise) * (1 / len(noise) + _SIGMOID),
        ),
        resumed={"momentum": 0.9, "similarity": 0.5},
        one_step={"similarity": 0.0},
        pooled=False,
        quadratic={"learning_rate": 0.2},
        descent=600,
    ),
    "ddp-admm-gradient": _graph_admm("ddp-admm-gradient", _TENTH),
    "dp-madmm-gradient": _graph_admm(
        "dp-madmm-gradient", {**_TENTH, "penalty_growth": 1.0}, growth=1.01
    ),
    "dp-radmm-gradient": _graph_admm("dp-radmm-gradient", None, quadratic=0.1),
    "fedavg": _local_steps("fedavg", None),
    "dp-sgd": Row(
        "dp-sgd",
        recursion=FEDERATED + "test_dp_sgd_recursion",
        release=SENT,
        resumed={"clients_per_round": 2, "regulariser": "l1"},
        mean={},
        central={},
    ),
    "dp-fedavg": _local_steps(
        "dp-fedavg",
        # Two changes of norm up to the bound may be opposite.
        Release(lambda seen: seen.messages[0], shift=lambda records, k: 2.0, models=_averaged),
    ),
    "dp-admm": Row(
        "dp-admm",
        recursion="test_algorithms_dp_admm.py::test_recursion",
        options={"penalty": 1.0, "learning_rate_schedule": "inverse-sqrt"},
        # The message is twice the model, whose gradient is divided by rho + sqrt(k + 1).
        release=Release(
            lambda seen: -seen.messages[0] / 2 * (1 + math.sqrt(seen.k + 1)),
            models=lambda noise: -noise / 2,
            consensus=lambda noise: -noise.mean(axis=0),
        ),
        resumed={"clients_per_round": 2},
        length=lambda rate: 1 / (1 / rate + 1),
        quadratic={"learning_rate_schedule": "constant", "learning_rate": 0.3},
    ),
    "fedspd-dp": _primal_dual("public", _fedspd(_batch_mean)),
    "fedspd-dp, private": _primal_dual("private", _fedspd(None)),
    "soteriafl-saga": _soteria("soteriafl-saga", {"state": "private"}, SENT),
    "soteriafl-svrg": _soteria("soteriafl-svrg", _ANCHORS, _anchored(SENT)),
    "soteriafl-svrg, private": _soteria("soteriafl-svrg", {"state": "private"}, SENT),
    "dp-srm": _refreshed("dp-srm", 0.1 + 0.9 * 2, clip_difference=0.3),
    "ldp-svrg": _refreshed("ldp-svrg", 2, 2, anchor_every=3),
    "ldp-spider": _refreshed("ldp-spider", 2, 2, anchor_every=3),
    "noised-moments": _moments("noised-moments", PUSHED, resumed={"final_mixing": 3}),
    "noised-moments-server": _moments(
        "noised-moments-server", Release(_sent_once, models=lambda noise: -_averaged(noise))
    ),
}
TRAINED = [case for case, row in ROWS.items() if row.trains]


def rate(name, learning_rate):
    """The learning rate as options of an algorithm; nothing for one that has none to choose."""
    steps = any(row.trains for row in ROWS.values() if row.name == name)
    return {"learning_rate": learning_rate} if steps else {}


NOISED = {case: row.release for case, row in ROWS.items() if row.release is not None}


# Special cases.


@dataclass(frozen=True)
class Special:
    """Two algorithms that are the same one under some settings.

    Args:
        name: of the one.
        options: with which it is the other.
        other: the other's name.
        others: its options.
        nodes, records, batch, steps: of both runs.
        graph: of both; None: each has its own.
        noise: whether they have the same noise as well; without, neither has any.
    """

    name: str
    options: Options
    other: str
    others: Options = field(default_factory=dict)
    nodes: int = 5
    records: int = 4
    batch: int | str = "all"
    steps: int = 4
    graph: str | None = None
    noise: bool = True


_NO_SCHEDULES = {"clip_decay": 1.0, "budget_growth": 1.0}
_STILL = {"rate_decay": 1.0, "noise_decay": 1.0}
_MOMENTUM_GOSSIP = {"consensus_step": 1.0, "momentum": 0.0}
_SHARED = {"anchor_every": 2, "anchor_share": 0.5}
_FEW = {"clients_per_round": 2}
_TABLE = {"state": "private", "anchor_share": None}
_ONE = {"nodes": 1, "noise": False}
_PLAIN = {"noise": False}

SPECIAL = (
    Special("privsgp", {}, "sgp", **_PLAIN),
    Special("dp2-sgd", {}, "d-psgd", **_PLAIN),
    # Without schedules all are PrivSGP.
    Special("const-d2p", {}, "privsgp"),
    Special("const-d2p", {}, "privsgp", batch=2),
    Special("dyn-c", {"clip_decay": 1.0}, "privsgp"),
    Special("dyn-c", {"clip_decay": 1.0}, "privsgp", batch=2),
    Special("dyn-mu", {"budget_growth": 1.0}, "privsgp"),
    Special("dyn-mu", {"budget_growth": 1.0}, "privsgp", batch=2),
    Special("dyn-d2p", _NO_SCHEDULES, "privsgp"),
    Special("dyn-d2p", _NO_SCHEDULES, "privsgp", batch=2),
    Special("dyn-general", {}, "privsgp"),
    Special("dyn-general", {}, "privsgp", batch=2),
    Special("dyn-general", {"noise_schedule": [2.5] * 4}, "privsgp", batch=2),
    # With one record a node, every record at every step, or anchors only: full gradients.
    Special("privsgp-vr", _TABLE, "privsgp", records=1, batch=1),
    Special("privsgp-vr", _TABLE, "privsgp"),
    Special("privsgp-vr", {"anchor_every": 1}, "privsgp"),
    Special("privsgp-vr", {"anchor_every": 3}, "sgp", **_PLAIN),
    Special("soteriafl-saga", {}, "dp-sgd"),
    Special("soteriafl-saga", {}, "dp-sgd", records=1, batch=1),
    Special("soteriafl-svrg", {"anchor_every": 1}, "dp-sgd"),
    Special("soteriafl-svrg", _TABLE, "dp-sgd"),
    # Servers whose direction is refreshed in every round, or is made of gradients alone.
    Special("ldp-svrg", {"anchor_every": 1}, "dp-sgd"),
    Special("ldp-svrg", {"anchor_every": 1, "clients_per_round": 2}, "dp-sgd", _FEW),
    Special("ldp-svrg", _SHARED, "soteriafl-svrg", _SHARED, batch=2, **_PLAIN),
    Special("ldp-spider", {"anchor_every": 1}, "dp-sgd"),
    Special("ldp-spider", {"anchor_every": 2}, "ldp-svrg", {"anchor_every": 2}, batch=2),
    Special("ldp-spider", {"anchor_every": 3}, "dp-sgd", **_PLAIN),
    Special("dp-srm", {"gradient_share": 1.0}, "dp-sgd"),
    Special("dp-srm", {}, "dp-sgd", **_PLAIN),
    # Everything kept, everyone active: gossip, with or without momentum.
    Special("do-adp", {"keep": 1.0}, "do-adp", {"compressor": "none"}),
    Special("do-adp", {}, "choco-sgd", **_PLAIN),
    Special("do-adp", {"compressor": "none", **_MOMENTUM_GOSSIP}, "dp2-sgd"),
    Special("choco-sgd", {"keep": 1.0, **_MOMENTUM_GOSSIP}, "d-psgd", **_PLAIN),
    # Adapt, then mix, with symmetric weights.
    Special("dpdo", _STILL, "sgp", graph="ring", **_PLAIN),
    # Iterations that differ in nothing else.
    Special(
        "dp-madmm-gradient", {"penalty_growth": 1.0, "dual_step": 1.0}, "ddp-admm-gradient", batch=2
    ),
    Special("dp-radmm-gradient", {}, "ddp-admm-gradient", steps=1),
    # A node alone.
    Special("adp2-sgd", {}, "d-psgd", **_ONE),
    Special("cpgt", {}, "d-psgd", **_ONE),
    Special("dp-dda", {}, "d-psgd", steps=1, **_ONE),
    Special("dpdl", {"similarity": 0.0}, "d-psgd", **_ONE),
    Special("private-gradient-tracking", {}, "d-psgd", **_ONE),
    # A first step, in which there is nothing to track yet.
    Special("private-gradient-tracking", {}, "privsgp", batch=2, steps=1),
    # Servers.
    Special("dp-fedavg", {}, "fedavg", **_PLAIN),
    Special("dp-fedavg", _FEW, "fedavg", _FEW, batch=2, **_PLAIN),
    Special("fedavg", {"local_steps": 1}, "dp-sgd", **_PLAIN),
    Special("dp-sgd", {}, "d-psgd", **_ONE),
    # On a complete graph, push-sum gives everybody what a server would.
    Special("noised-moments", {}, "noised-moments-server", graph="complete"),
    Special(
        "fedspd-dp",
        {"state": "private", "penalty": 2.0},
        "dp-admm",
        {"penalty": 2.0, "learning_rate_schedule": "constant"},
        **_PLAIN,
    ),
)


# Options with which a row costs otherwise than by default, the size of batches, and their kind.
_SMOOTH = {"smoothness": 9.0, "local_steps": 2, "penalty": 1.0}
COSTS = (
    ("dp-fedavg", {"local_steps": 3}, "all", "poisson"),
    ("dp-admm", {"penalty": 2.0}, "all", "poisson"),
    ("fedspd-dp", _SMOOTH, 2, "fixed"),
    ("fedspd-dp, private", _SMOOTH, 2, "fixed"),
    ("privsgp-vr", {"anchor_every": 3}, 2, "poisson"),
    ("privsgp-vr, private", {}, 2, "poisson"),
    ("privsgp-vr, private", {"table_batch": 5}, 2, "poisson"),
)


# For which clip each mechanism is proved: any where a step takes nothing but noised sums of clipped
# gradients, l1 under Laplace noise; of those that are not named, l2 alone.
ANY_CLIP = [
    "sgp",
    "privsgp",
    "dyn-d2p",
    "dyn-c",
    "dyn-mu",
    "const-d2p",
    "dyn-general",
    "private-gradient-tracking",
    "d-psgd",
    "dp2-sgd",
    "adp2-sgd",
    "dpdl",
    "choco-sgd",
    "do-adp",
    "dp-dda",
    "ddp-admm-gradient",
    "dp-madmm-gradient",
    "dp-radmm-gradient",
    "fedspd-dp",
    "noised-moments",
    "noised-moments-server",
]
CLIP = {
    **dict.fromkeys(ANY_CLIP, CLIP_NORMS),
    **dict.fromkeys(("dpdo", "cpgt"), ("l1",)),
    **dict.fromkeys(("dp-sgd", "dp-admm"), ("l2", "automatic")),
}
