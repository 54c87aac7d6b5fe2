"""What is attacked of every private algorithm, and what its row says of it."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from clean_cases import BY_ALGORITHM

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit.laboratory import (
    BARE,
    CANARY,
    NOBODY,
    in_small,
    problem_of,
    set_up,
    table_signs,
)
from tacit.training.stacked_context import StackedContext

AUDIT = Path(tacit.__file__).parent / "analysis" / "audit"


@cache
def lab(name):
    plan = in_small(BY_ALGORITHM[name]().plan)
    return set_up(plan, min(4, plan.steps), 120, StackedContext)


def on_neighbours(name):
    plan = lab(name).plan
    return lab(name).observe(problem_of(plan, plan.release.mechanism(plan.nodes[0])), 7)


def test_no_file_of_the_audit_names_an_algorithm():
    words = {word for row in ALGORITHMS.values() for word in (row.name, row.title)}
    words |= {word.replace("-", "_") for word in words}
    named = re.compile(rf"\b({'|'.join(map(re.escape, sorted(words)))})\b", re.IGNORECASE)
    files = {file: file.read_text(encoding="utf-8") for file in AUDIT.rglob("*.py")}
    assert len(files) > 20
    assert not {
        file.name: named.findall(text) for file, text in files.items() if named.search(text)
    }


@pytest.mark.parametrize("name", BY_ALGORITHM)
def test_without_a_gradient_nothing_is_left_but_noise(name):
    """What records alone move is zero; what a row says that moves by itself is taken off."""
    observed, row = lab(name).observe(NOBODY, 5), lab(name).plan.config.algorithm.definition
    sign = -1 if row.releases.falls else 1
    released = 0
    for release in observed.trace.releases:
        if row.releases.models and row.releases.clips == "gradients":
            assert not release.before.any()
        if row.releases.clips == "gradients":
            noise = (release.after.double() - release.before).numpy() / release.deviations[:, None]
            found = observed.y[release.step, list(release.nodes)]
            np.testing.assert_allclose(found, sign * noise, atol=1e-4)
        released += len(release.nodes)
    assert released * observed.y.shape[2] == np.isfinite(observed.y).sum() > 0


@pytest.mark.parametrize("name", BY_ALGORITHM)
def test_a_record_moves_what_is_attacked_upwards(name):
    """With the sign that the row gives, and that of gradients in the first step."""
    observed, plan = on_neighbours(name), lab(name).plan
    release, there = observed.trace.releases[0], observed.inserted
    before = np.full(observed.y.shape[1:], np.nan)
    before[list(release.nodes)] = release.before.numpy() / release.deviations[:, None]
    before *= -1 if plan.config.algorithm.definition.releases.falls else 1
    before *= -1 if observed.whole[0] else table_signs(plan, 1)[0]
    highest = (np.nanmax(before[side, CANARY]) for side in (there, ~there))
    assert next(highest) > next(highest)
    if plan.release.pairs is None:  # where nobody moves anything, noise of the planned size is left
        bare = observed.y[:, :, BARE]
        counted = bare[np.isfinite(bare)]
        variance = 2 if plan.release.algorithm.releases.noise.norm == "l1" else 1
        assert counted.var() == pytest.approx(variance, rel=9 * variance / len(counted) ** 0.5)


@pytest.mark.parametrize("name", BY_ALGORITHM)
def test_a_row_says_whether_messages_hold_back_a_part(name):
    plan, sent = lab(name).plan, lab(name).observe(NOBODY, 5).trace.sent
    hides = plan.config.algorithm.definition.releases.hides(plan.config.algorithm.options)
    assert hides == any(one.coding is not None and one.coding.keep < 1 for one in sent)
