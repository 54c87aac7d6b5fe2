"""Every private algorithm, with each sampler and relation that it takes: correct programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from audit_cases import ALLOCATION, FIXED, PAIRED, PERSONS, REPLACED, SAMPLERS, WHOLE, job

from tacit.algorithms import ALGORITHMS
from tacit.training.job import Job

PRIVATE = tuple(name for name, row in ALGORITHMS.items() if row.private)

SETTINGS = {**SAMPLERS, "whole": WHOLE}

COMPRESSED: Mapping[str, Any] = {"compressor": "top-k", "keep": 0.4}
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "privsgp": {"momentum": {"momentum": 0.9, "final_mixing": 2}},
    "privsgp-vr": {
        "anchors": {"anchor_every": 3},
        "table": {"state": "private"},
        "mini-batches": {"state": "private", "table_batch": 2},
    },
    "dyn-general": {
        "schedules": {
            "clip_schedule": [2.0 / (1 + k) for k in range(6)],
            "noise_schedule": [1.0 + k % 3 for k in range(6)],
        }
    },
    "adp2-sgd": {"stragglers": {"stragglers": 0.3}},
    "do-adp": {"compressed": {**COMPRESSED, "activation": 0.6, "momentum": 0.5}},
    "cpgt": {"compressed": COMPRESSED},
    "dp-dda": {"some": {"activation": 0.6, "regulariser": "l1"}},
    "ddp-admm-gradient": {"regularised": {"penalty": 3.0, "regulariser": "l2"}},
    "dp-madmm-gradient": {"steep": {"penalty_growth": 1.2, "noise_decay": 0.7, "dual_step": 0.4}},
    "dp-radmm-gradient": {"regularised": {"regulariser": "l1"}},
    "dp-sgd": {"some": {"clients_per_round": 2}},
    "dp-fedavg": {
        "local": {"local_steps": 2},
        "replaced": {"local_steps": 2, "sampling": "with-replacement"},
    },
    "dp-admm": {"some": {"clients_per_round": 2}},
    "fedspd-dp": {
        "local": {"local_steps": 2, "clients_per_round": 2},
        "private": {"state": "private"},
    },
    "soteriafl-saga": {"compressed": {"compressor": "rand-k", "keep": 0.5}},
    "soteriafl-svrg": {
        "compressed": {**COMPRESSED, "anchor_every": 3},
        "private": {"state": "private"},
    },
    "dp-srm": {"clipped": {"clip_difference": 0.3, "clients_per_round": 2}},
    "ldp-svrg": {"anchors": {"anchor_every": 2, "regulariser": "l1"}},
    "ldp-spider": {
        "refreshed": {"anchor_every": 2, "clip_difference": 0.3, "clients_per_round": 2}
    },
}
"""Options under which an algorithm does something else, beside those that it has by itself."""

SAMPLED_LAPLACE = ("replace-one", "fixed")
REFUSED: Mapping[str, tuple[str, ...]] = {
    "privsgp-vr, mini-batches": ("fixed",),
    "dpdo": SAMPLED_LAPLACE,
    "cpgt": SAMPLED_LAPLACE,
    "cpgt, compressed": SAMPLED_LAPLACE,
}
"""What is refused when it is planned, as `algorithm` or `algorithm, variant`, by setting."""


def _case(name, setting, options):
    return lambda: job(SETTINGS[setting], algorithm=name, options=options)


def _named():
    """By algorithm and variant, then by setting."""
    found = {}
    for name in PRIVATE:
        for variant, options in {"": {}, **VARIANTS.get(name, {})}.items():
            shown = f"{name}, {variant}" if variant else name
            found[shown] = {
                setting: _case(name, setting, options)
                for setting in SETTINGS
                if setting not in REFUSED.get(shown, ())
            }
    return found


_ALL = _named()

ONCE_AN_EPOCH: Mapping[str, Callable[[], Job]] = {
    f"{name}, allocation": lambda name=name, options=options: job(  # type: ignore[misc]
        ALLOCATION, algorithm=name, options=options
    )
    for name, options in {"privsgp": {}, "dp-dda": {"activation": 0.6}}.items()
}
"""Methods whose records take part in one random step of each epoch; also some nodes are away."""

WITH_PAIRS = {
    "privsgp": "momentum", "privsgp-vr": "anchors", "adp2-sgd": "stragglers", "dp-dda": "some"
}  # fmt: skip
PAIRWISE: Mapping[str, Callable[[], Job]] = {
    f"{name}, pairs": lambda name=name: job(  # type: ignore[misc]
        PAIRED, algorithm=name, options=VARIANTS.get(name, {}).get(WITH_PAIRS.get(name, ""), {})
    )
    for name in PRIVATE
    if ALGORITHMS[name].releases.no_pairwise is None and ALGORITHMS[name].graph.weights != "server"
}
"""Every algorithm that runs with noise of pairs, some of them in a variant."""

OF_PERSONS: Mapping[str, Callable[[], Job]] = {
    f"{name}, persons by {rows}, {setting}": lambda name=name, rows=rows, more=more: job(  # type: ignore[misc]
        privacy={**PERSONS, "unit_gradient": rows}, algorithm=name, **more
    )
    for name, rows, setting, more in (
        ("privsgp", "mean", "poisson", {}),
        ("privsgp", "sum", "fixed", {"settings": FIXED, "model": "layers"}),
        ("dp-sgd", "mean", "whole", {"settings": WHOLE, "model": "layers"}),
        ("privsgp-vr", "mean", "private", {"options": {"state": "private"}}),
        ("soteriafl-saga", "sum", "replace-one", {"settings": REPLACED, "model": "layers"}),
        ("dp-srm", "mean", "clipped", {"options": VARIANTS["dp-srm"]["clipped"]}),
    )
}
"""A record is all rows of a person: samplers, models, kept and subtracted gradients."""

CLEAN: Mapping[str, Callable[[], Job]] = {
    f"{shown}, {setting}": make for shown, cases in _ALL.items() for setting, make in cases.items()
} | {**ONCE_AN_EPOCH, **PAIRWISE, **OF_PERSONS}

BY_ALGORITHM: Mapping[str, Callable[[], Job]] = {
    f"{shown}, {setting}": cases[setting]
    for number, (shown, cases) in enumerate(_ALL.items())
    for setting in [list(cases)[number % len(cases)]]
} | {
    "privsgp, allocation": ONCE_AN_EPOCH["privsgp, allocation"],
    **{name: PAIRWISE[name] for name in ("adp2-sgd, pairs", "dp-dda, pairs")},
    **OF_PERSONS,
}
"""One of each algorithm and variant, with samplers and relations in turn."""
