"""The ledgers of nodes' data: budgets on file, many runs, one at a time, and what they compose to.

Oracles: Gaussian steps of noise multiplier z compose to one Gaussian with mu^2 = the sum of 1/z^2,
and Balle and Wang's delta of it; dp_accounting where batches are sampled.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tacit.errors import InputError
from tacit.privacy import (
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    to_statement,
)
from tacit.privacy.ledger import Account, Interval, Ledger, StepRun, read_ledger, step_runs
from tacit.privacy.ledger_shared import SharedLedgers, WantedAccount, account_file
from tacit.privacy.ledger_spent import check_agreement, combined, cost, released, spent

STEPS = 10
MECHANISM = Gaussian(5.0, STEPS)
OTHER = Gaussian(8.0, STEPS)


def delta_of(epsilon: float, mu: float) -> float:
    low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high))


def wanted(count: int, epsilon: float | None = None, **more: Any) -> list[WantedAccount]:
    rest = {"delta": None, "new_epsilon": 2.0, "new_delta": 1e-5, **more}
    return [WantedAccount(node, epsilon, **rest) for node in range(count)]


def enter(
    shared: SharedLedgers,
    run: str,
    mechanism: Mechanism = MECHANISM,
    sent: Mapping[int, Sequence[Interval]] | None = None,
) -> None:
    statements = {node: to_statement(mechanism) for node in shared.accounts}
    shared.enter(run, digest=f"plan of {run}", statements=statements, sent=sent or {})


def ran(folder: Path, run: str, *, steps: int = STEPS, mechanism: Mechanism = MECHANISM) -> None:
    """A whole run on two nodes, stopped cleanly."""
    with SharedLedgers.open(folder, wanted(2)) as shared:
        enter(shared, run, mechanism)
        shared.reserve(0, STEPS)
        shared.settle(steps)


# One run after the other.


def test_runs_share_the_books_of_a_node(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "books"
    ran(folder, "one")
    ran(folder, "two", steps=4, mechanism=OTHER)
    for node in range(2):
        found = read_ledger(account_file(folder, node))
        assert found.accounts == (Account(node, 2.0, 1e-5),)
        assert [(run.run_id, run.digest) for run in found.runs] == [
            ("one", "plan of one"),
            ("two", "plan of two"),
        ]
        assert [run.charged[node] for run in found.runs] == [((0, 10),), ((0, 4),)]
        total = cost(spent(found, node), 1e-5)
        mu = math.sqrt(STEPS / 5.0**2 + 4 / 8.0**2)
        assert delta_of(total, mu) == pytest.approx(1e-5, rel=1e-6)
        alone = cost(spent(found, node, without="one"), 1e-5)
        assert delta_of(alone, math.sqrt(4) / 8) == pytest.approx(1e-5, rel=1e-6)
    assert sorted(path.name for path in folder.iterdir()) == ["node-0.sqlite", "node-1.sqlite"]


def test_a_killed_run_counts_in_full_and_goes_on_under_its_name(tmp_path: Path) -> None:
    with SharedLedgers.open(tmp_path, wanted(2)) as shared:
        enter(shared, "one")
        shared.reserve(0, 6)
    with SharedLedgers.open(tmp_path, wanted(2)) as shared:
        (run,) = shared.snapshot(1).runs
        assert run.charged[1] == ((0, 6),)
        enter(shared, "one", sent={0: (Interval(0, 6),), 1: (Interval(0, 5),)})
        shared.reserve(3, 8)
        shared.settle(7)
        (run,) = shared.snapshot(1).runs
        assert run.charged[1] == ((0, 6), (3, 7))
        mu = math.sqrt(10) / 5
        assert delta_of(cost(spent(shared.snapshot(1), 1), 1e-5), mu) == pytest.approx(
            1e-5, rel=1e-6
        )


def test_nothing_is_made_before_a_run_is_entered(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    with SharedLedgers.open(folder, wanted(2)) as shared:
        assert shared.accounts == {0: Account(0, 2.0, 1e-5), 1: Account(1, 2.0, 1e-5)}
        assert shared.snapshot(0).runs == ()
    assert not folder.exists()


def test_without_nodes_it_does_nothing(tmp_path: Path) -> None:
    with SharedLedgers(tmp_path / "none", ()) as shared:
        shared.enter("run", digest="d", statements={}, sent={})
        shared.reserve(0, 3)
        shared.settle(3)
    assert list(tmp_path.iterdir()) == []


def test_a_node_may_join_later(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    with SharedLedgers.open(tmp_path, wanted(3)) as shared:
        enter(shared, "two")
        assert [len(shared.snapshot(node).runs) for node in range(3)] == [2, 2, 1]


# Budgets.


def test_the_budget_is_that_of_the_file(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    with SharedLedgers.open(tmp_path, wanted(2, new_epsilon=7.0, new_delta=0.1)) as shared:
        assert shared.accounts[1] == Account(1, 2.0, 1e-5)
    with SharedLedgers.open(tmp_path, wanted(2, 2.0, delta=1e-5)) as shared:
        assert shared.accounts[1] == Account(1, 2.0, 1e-5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"epsilon": 2.5}, r"privacy\.ledger_epsilon = 2\.5: the budget in .* was set to 2\.0"),
        ({"epsilon": 2.0, "delta": 1e-6}, r"privacy\.ledger_delta = 1e-06: .* set to 1e-05"),
    ],
)
def test_another_budget_is_refused(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    ran(tmp_path, "one")
    with pytest.raises(InputError, match=said):
        SharedLedgers.open(tmp_path, wanted(2, **asked))
    SharedLedgers.open(tmp_path, wanted(2)).close()  # and left unlocked


def test_a_new_file_needs_a_budget(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"privacy\.ledger_epsilon = None: is needed to make"):
        SharedLedgers.open(tmp_path, wanted(1, new_epsilon=None))
    with SharedLedgers.open(tmp_path, wanted(1, 4.0, new_epsilon=None)) as shared:
        assert shared.accounts[0].epsilon_budget == 4.0


# One at a time, and only on the books where it began.


def test_two_runs_cannot_draw_on_one_budget(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    with (
        SharedLedgers.open(tmp_path, wanted(1)),
        pytest.raises(InputError, match="one is running it now"),
    ):
        SharedLedgers.open(tmp_path, wanted(2))
    SharedLedgers.open(tmp_path, wanted(2)).close()


def test_of_two_runs_that_would_make_the_file_one_is_refused(tmp_path: Path) -> None:
    with (
        SharedLedgers.open(tmp_path, wanted(2)) as first,
        SharedLedgers.open(tmp_path, wanted(2)) as second,
    ):
        enter(first, "one")
        with pytest.raises(InputError, match="does not exist yet"):
            enter(second, "two")
        assert len(first.snapshot(0).runs) == 1


def test_a_reader_does_not_disturb_a_run(tmp_path: Path) -> None:
    with SharedLedgers.open(tmp_path, wanted(1)) as shared:
        enter(shared, "one")
        shared.reserve(0, 3)
        with pytest.raises(InputError, match="one is running it now"):
            read_ledger(shared.file(0))
        with pytest.raises(InputError, match="one is running it now"):
            Ledger.open_account(shared.file(0))
        shared.reserve(3, 6)
        shared.settle(5)
    assert read_ledger(account_file(tmp_path, 0)).runs[0].charged[0] == ((0, 3), (3, 5))


def test_a_run_goes_on_only_where_it_is_booked(tmp_path: Path) -> None:
    ran(tmp_path / "books", "one")
    sent = {node: (Interval(0, STEPS),) for node in range(2)}
    with (
        SharedLedgers.open(tmp_path / "elsewhere", wanted(2)) as shared,
        pytest.raises(InputError, match="they have 0 of the 10 steps"),
    ):
        enter(shared, "one", sent=sent)
    assert not (tmp_path / "elsewhere").exists()
    # A copy that was made before the last steps were booked.
    ran(tmp_path / "older", "one", steps=9)
    with (
        SharedLedgers.open(tmp_path / "older", wanted(2)) as shared,
        pytest.raises(InputError, match="they have 9 of the 10 steps"),
    ):
        enter(shared, "one", sent=sent)


def test_a_run_keeps_its_plan_and_mechanism(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    with (
        SharedLedgers.open(tmp_path, wanted(2)) as shared,
        pytest.raises(InputError, match="its plan has changed"),
    ):
        enter(shared, "one", OTHER)


def test_books_are_those_of_their_node(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    account_file(tmp_path, 1).rename(account_file(tmp_path, 2))
    with pytest.raises(InputError, match=r"that of node 2; it is that of \[1\]"):
        SharedLedgers.open(tmp_path, wanted(3))


def test_an_edited_budget_is_refused(tmp_path: Path) -> None:
    ran(tmp_path, "one")
    with sqlite3.connect(account_file(tmp_path, 0)) as connection:
        connection.execute("UPDATE account SET epsilon_budget = 20")
        connection.execute("UPDATE image SET digest = zeroblob(32)")
    connection.close()
    with pytest.raises(InputError, match="an unedited ledger: block 1, or what stands before"):
        SharedLedgers.open(tmp_path, wanted(2))


def test_a_ledger_books_for_no_run_before_it_is_entered(tmp_path: Path) -> None:
    path = tmp_path / "node-0.sqlite"
    Ledger.create_account(path, Account(0, 1.0, 1e-5))
    with Ledger.open_account(path) as ledger, pytest.raises(InputError, match="enter it"):
        ledger.reserve(0, 1)
    with pytest.raises(InputError, match="the ledger of one run; it has 0"):
        Ledger.open(path, digest=None)
    with Ledger.open_account(path) as ledger, pytest.raises(InputError, match="a mechanism for"):
        ledger.enter("run", digest="d", statements={})
    with pytest.raises(InputError, match="does not exist yet"):
        Ledger.create_account(path, Account(0, 1.0, 1e-5))
    with pytest.raises(InputError, match="can be written"):
        Ledger.create_account(tmp_path / "no folder" / "x", Account(0, 1.0, 1e-5))
    assert [one.name for one in tmp_path.iterdir()] == ["node-0.sqlite"]


# What steps on the books release.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 5)).map(
            lambda pair: Interval(pair[0], min(pair[0] + pair[1], 10))
        ),
        max_size=6,
    )
)
def test_what_is_released_is_every_charged_step(intervals: list[Interval]) -> None:
    multipliers = [1.0 + step / 8 for step in range(STEPS)]
    found = released(SampledGaussian(0.1, multipliers), step_runs(intervals))
    expected = sorted(multipliers[step] for one in intervals for step in range(*one))
    if not expected:
        assert found is None
    else:
        assert isinstance(found, SampledGaussian)
        assert sorted(found.noise_multiplier) == expected  # type: ignore[arg-type]
        assert found.sample_rate == 0.1


def test_all_steps_once_are_the_mechanism_itself() -> None:
    whole = [StepRun(0, STEPS, 1)]
    for mechanism in (
        MECHANISM,
        SampledGaussian(0.1, [1.0 + step / 8 for step in range(STEPS)]),
        FixedBatchGaussian(3, 30, 2.0, STEPS),
    ):
        assert released(mechanism, whole) == mechanism


@pytest.mark.parametrize(
    "mechanism",
    [
        ClientSampling(Gaussian(4.0, 2), rate=0.5, rounds=5),
        Composed([Gaussian([10.0, 20.0]), SampledGaussian(0.25, [2.0, 2.5, 3.0])]),
    ],
)
def test_what_cannot_be_told_apart_is_charged_in_full(mechanism: Mechanism) -> None:
    assert released(mechanism, [StepRun(3, 4, 1)]) == mechanism
    twice = [StepRun(0, 2, 1), StepRun(2, 3, 2)]
    assert released(mechanism, twice) == combined([mechanism, mechanism])
    assert released(mechanism, []) is None


def test_steps_beyond_the_plan_are_refused() -> None:
    with pytest.raises(InputError, match="must lie below 10"):
        released(MECHANISM, [StepRun(9, 11, 1)])
    assert released(MECHANISM, []) is None


def test_schedules_are_joined_where_nothing_else_differs() -> None:
    poisson, faster = SampledGaussian(0.1, 1.0, 2), SampledGaussian(0.2, 1.0, 3)
    assert combined([]) is None
    assert combined([None, None]) is None
    assert combined([None, poisson]) == poisson
    assert combined([poisson, SampledGaussian(0.1, 2.0, 1)]) == SampledGaussian(
        0.1, [1.0, 1.0, 2.0]
    )
    assert combined([poisson, faster, poisson]) == Composed([SampledGaussian(0.1, 1.0, 4), faster])
    assert combined([Composed([poisson, faster]), faster]) == Composed(
        [poisson, SampledGaussian(0.2, 1.0, 6)]
    )


def test_runs_with_sampled_batches_cost_what_another_accountant_finds(tmp_path: Path) -> None:
    ran(tmp_path, "one", mechanism=SampledGaussian(0.2, 1.0, STEPS))
    ran(tmp_path, "two", steps=7, mechanism=SampledGaussian(0.2, 1.5, STEPS))
    found = cost(spent(read_ledger(account_file(tmp_path, 0)), 0), 1e-5)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for z, steps in ((1.0, STEPS), (1.5, 7)):
        event = PoissonSampledDpEvent(0.2, GaussianDpEvent(z))
        accountant.compose(SelfComposedDpEvent(event, steps))
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_runs_of_different_kinds_are_composed(tmp_path: Path) -> None:
    ran(tmp_path, "one", mechanism=SampledGaussian(0.2, 1.0, STEPS))
    ran(tmp_path, "two", steps=4, mechanism=SampledGaussian(0.05, 0.8, STEPS))
    ran(tmp_path, "three", steps=8, mechanism=MECHANISM)
    found = cost(spent(read_ledger(account_file(tmp_path, 0)), 0), 1e-5)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for rate, z, steps in ((0.2, 1.0, STEPS), (0.05, 0.8, 4), (1.0, 5.0, 8)):
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(z))
        accountant.compose(SelfComposedDpEvent(event, steps))
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_what_does_not_add_up_is_refused(tmp_path: Path) -> None:
    ran(tmp_path, "1" * 32)
    path = account_file(tmp_path, 0)
    check_agreement(read_ledger(path), 0, OTHER, str(path))
    with pytest.raises(InputError, match=r"relation of node 0 .* run 11111111 .*'add-or-remove"):
        check_agreement(read_ledger(path), 0, Gaussian(5.0, 1, "replace-one"), str(path))
    with pytest.raises(InputError, match=r"unit of node 0 = 'client'"):
        check_agreement(read_ledger(path), 0, Gaussian(5.0, 1, unit="client"), str(path))


def test_a_run_that_was_charged_nothing_binds_nobody(tmp_path: Path) -> None:
    ran(tmp_path, "one", steps=0)
    path = account_file(tmp_path, 0)
    check_agreement(read_ledger(path), 0, Gaussian(5.0, 1, "replace-one"), str(path))
    assert cost(spent(read_ledger(path), 0), 1e-5) == 0.0
