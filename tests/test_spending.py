"""What a run may spend and has spent: keys, books, and the end that a budget allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from experiments import experiment
from tacit.config import load_config
from tacit.errors import BudgetError, InputError
from tacit.folder import create
from tacit.plan import Plan
from tacit.planning import build_plan
from tacit.privacy import from_statement, to_statement
from tacit.spending import affordable, epsilon_spent, extremes, node_keys, open_ledger


def plan_of(**changes: dict[str, Any]) -> Plan:
    """A plan for nodes of 50, 60, 70 and 80 records and 5 parameters."""
    return build_plan(load_config(experiment(**changes)), [50, 60, 70, 80], 5)


def budgeted(epsilon: float | list[float] = 2.0) -> Plan:
    return plan_of(privacy={"noise_std": None, "epsilon": epsilon}, train={"steps": 12})


def test_the_books_state_each_nodes_mechanism_and_budget(tmp_path: Path) -> None:
    plan = budgeted([1.0, 2.0, 3.0, 4.0])
    folder = create(tmp_path / "run", plan.config)
    with open_ledger(plan, folder, resume=False) as ledger:
        assert ledger is not None
        assert ledger.digest == plan.digest()
        assert [one.epsilon_budget for one in ledger.statements] == [1.0, 2.0, 3.0, 4.0]
        for node, one in zip(plan.nodes, ledger.statements, strict=True):
            assert from_statement(one.statement) == plan.mechanism(node)
            assert one.statement == to_statement(plan.mechanism(node))
        ledger.reserve(0, 3)
    with open_ledger(plan, folder, resume=True) as again:
        assert again is not None
        assert again.charged() == dict.fromkeys(range(4), ((0, 3),))
    with pytest.raises(InputError, match="ledger of this plan"):
        open_ledger(plan_of(), folder, resume=True)


def test_without_accounting_there_are_no_books() -> None:
    assert open_ledger(plan_of(privacy={"accounting": "none"}), None, resume=False) is None


def test_keys_are_secret_unless_asked_for_or_needless() -> None:
    secret = plan_of(privacy={"noise_seed": None})
    assert not node_keys(secret).seeded
    one, other = (node_keys(secret).secret for _ in range(2))
    assert all(one[node] != other[node] for node in range(4))
    for changes in (
        {"privacy": {"noise_seed": 3}},
        {"algorithm": {"name": "sgp"}, "privacy": {"noise_std": None, "noise_seed": None}},
    ):
        plan = plan_of(**changes)
        assert node_keys(plan).seeded
        assert node_keys(plan).secret == node_keys(plan).secret
    assert len(set(node_keys(secret).secret.values())) == 4


def test_a_run_that_spent_nothing_may_take_every_step() -> None:
    plan = budgeted()
    assert affordable(plan, {}, 0) == (12, None)
    assert affordable(plan, dict.fromkeys(range(4), ()), 0) == (12, None)


@pytest.mark.parametrize("first", [0, 3, 11, 12])
def test_steps_that_were_settled_leave_the_rest(first: int) -> None:
    plan = budgeted()
    assert affordable(plan, dict.fromkeys(range(4), ((0, first),)), first) == (12, None)


@pytest.mark.parametrize(("first", "booked"), [(0, 5), (3, 7), (3, 11), (6, 11), (0, 11)])
def test_each_repeated_step_costs_one_at_the_end(first: int, booked: int) -> None:
    plan = budgeted()
    before = dict.fromkeys(range(4), ((0, first), (first, booked)))
    until, reason = affordable(plan, before, first)
    assert until == 12 - (booked - first)
    assert reason is not None
    assert f"covers steps up to {until} of 12" in reason
    spent = epsilon_spent(plan, dict.fromkeys(range(4), ((0, booked), (first, until))))
    assert all(epsilon is not None and epsilon <= 2.0 for epsilon in spent)
    over = epsilon_spent(plan, dict.fromkeys(range(4), ((0, booked), (first, until + 1))))
    assert max(epsilon or 0.0 for epsilon in over) > 2.0


@pytest.mark.parametrize(("first", "booked"), [(0, 12), (4, 12), (11, 12)])
def test_nothing_left_is_refused(first: int, booked: int) -> None:
    before = dict.fromkeys(range(4), ((0, first), (first, booked)))
    with pytest.raises(BudgetError, match=r"nothing is left .* raise privacy\.epsilon"):
        affordable(budgeted(), before, first)


@pytest.mark.parametrize("accounting", ["published", "none"])
def test_only_a_certified_budget_ends_a_run(accounting: str) -> None:
    privacy = {"noise_std": None, "epsilon": 2.0, "accounting": accounting}
    if accounting == "none":
        privacy = {"accounting": accounting}
    plan = plan_of(privacy=privacy)
    assert affordable(plan, dict.fromkeys(range(4), ((0, 6),)), 3) == (6, None)


def test_the_shortest_budget_decides() -> None:
    given = plan_of(privacy={"epsilon": 9.0}, train={"steps": 12})
    costs = [node.epsilon or 0.0 for node in given.nodes]
    for tight in range(4):
        budgets = [cost * (1.0001 if node == tight else 9) for node, cost in enumerate(costs)]
        plan = plan_of(privacy={"epsilon": budgets}, train={"steps": 12})
        until, reason = affordable(plan, dict.fromkeys(range(4), ((0, 6),)), 3)
        assert until == 9
        assert reason is not None
        assert f"node {tight} " in reason


def test_spent_epsilon_is_what_another_accountant_finds() -> None:
    plan = plan_of(train={"steps": 12, "batch": 5}, privacy={"noise_std": 0.3})
    charged = {0: ((0, 12),), 1: ((0, 4), (2, 12)), 2: (), 3: ((0, 1),)}
    spent = epsilon_spent(plan, charged)
    assert spent[2] == 0.0
    for node, count in ((0, 12), (1, 14), (3, 1)):
        one = plan.nodes[node]
        event = PoissonSampledDpEvent(one.rate, GaussianDpEvent(one.noise_scale))
        accountant = PLDAccountant(value_discretization_interval=1e-3)
        accountant.compose(SelfComposedDpEvent(event, count))
        epsilon = spent[node]
        assert epsilon is not None
        assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3)


def test_the_extremes_are_the_costliest_and_the_cheapest_node() -> None:
    plan = plan_of()
    costs = [node.epsilon or math.nan for node in plan.nodes]
    found = extremes(plan)
    assert found["most"].epsilon == max(costs)
    assert found["least"].epsilon == min(costs)
