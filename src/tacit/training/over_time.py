"""Planning noise that is correlated over steps, and records that take part in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tacit.algorithms import Activity, Algorithm
from tacit.config import Config
from tacit.config.schema import DEFAULT_BANDS
from tacit.errors import InputError
from tacit.privacy.mechanisms.matrix import Correlation, banded_correlation
from tacit.privacy.noise.matrix import MOST_SUM, MatrixNoise
from tacit.training.plan import NodePlan
from tacit.training.release import NodeRelease, Release


def with_noise(
    config: Config,
    definition: Algorithm[Any, Any],
    nodes: Sequence[NodeRelease],
    activity: Activity | None,
) -> Algorithm[Any, Any]:
    """The row with noise that is correlated over steps, or of records in turns, if that is asked.

    Raises:
        InputError: a node is not part of every step, or coins would be likelier than 1.
    """
    kind, cyclic = config.privacy.noise, config.train.sampling == "cyclic"
    if kind not in ("banded", "tree") and not cyclic:
        return definition
    if activity is not None:
        expected = "needs every node at every step, and here some are not active at some"
        raise InputError(
            *(("train.sampling", "cyclic") if cyclic else ("privacy.noise", kind)), expected
        )
    bands, correlations = config.privacy.bands or DEFAULT_BANDS, list[Correlation]()
    for node in nodes:
        turns = 1 if node.rate == 1 else node.epoch_steps if cyclic else bands
        if kind == "banded" and turns * node.rate > 1 + 1e-12:
            most = int(1 / node.rate)
            expected = f"must be at most J / batch = {most} at node {node.node}: records take turns"
            raise InputError("privacy.bands", bands, f"{expected}, and join by coins")
        coins = turns > 1 and not cyclic
        correlations.append(
            banded_correlation(bands, config.train.steps, turns, coins=coins)
            if kind == "banded"
            else ("tree" if kind == "tree" else (1.0,))
        )
    noise = MatrixNoise(tuple(correlations), config.train.steps)
    return replace(definition, releases=replace(definition.releases, noise=noise))


def check_sums(release: Release, nodes: Sequence[NodePlan]) -> None:
    """Refuse noise over time where sums are so long that rounding counts for more than is said."""
    for node in nodes if release.over_time is not None else ():
        longest = node.records / (node.noise_scale * min(release.noise_shape))
        if longest > MOST_SUM:
            expected = (
                f"needs J over the noise multiplier of at most {MOST_SUM:g}: use 'independent'"
            )
            raise InputError("privacy.noise", f"{longest:.3g} at node {node.node}", expected)
