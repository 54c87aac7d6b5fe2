"""What a process pays that was left out of a run and is taken back."""

import json
from types import MappingProxyType
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import experiment
from few import few
from tacit.algorithms import ALGORITHMS
from tacit.algorithms.federated import server_start
from tacit.communication.peers import SessionMemory
from tacit.config import load_config
from tacit.errors import BudgetError, InputError
from tacit.training.budget import affordable, open_ledger
from tacit.training.planner import build_plan
from tacit.training.run_folder.folder import created
from tacit.training.state import _pay

STEPS = 12
T = TypeVar("T")


class Back(SessionMemory):
    """The memory of a process that waited to be taken back.

    Args:
        rejoins: the first step of which it has sent nothing in the session before.
        first: at which that session began.
        paid: up to which step it had been paid then.
        own: what was charged then.
    """

    def __init__(self, rejoins, first=0, paid=0, own=MappingProxyType({})):
        self.rejoins = rejoins
        said = {"first": first, "until": STEPS, "paid": 0, "own_paid": paid, "own": dict(own)}
        self._terms = said

    def earlier(self, name, schema):
        more = {"charged": {}, "message": None, "lacking": None, "rejoining": False, "notes": []}
        more["absences"] = []
        return schema.read(json.dumps({**self._terms, **more}), 0, name)


def plan_of(epsilon=2.0, guess=None, **changes):
    privacy = {"noise_std": None, "epsilon": epsilon, "guess": guess}
    changed = experiment(privacy=privacy, train={"steps": STEPS}, **changes)
    return build_plan(load_config(changed), [50, 60, 70, 80], 5)


def killed(plan, folder, blocks):
    """The ledger of a process that reserved these blocks and was killed, opened again."""
    with created(folder, plan.config) as made:
        pass
    for number, block in enumerate(blocks):
        with open_ledger(plan, made, resume=number > 0) as ledger:
            assert ledger is not None
            ledger.reserve(*block)
    again = open_ledger(plan, made, resume=bool(blocks))
    assert again is not None
    return again


def times_charged(ledger, node=0):
    intervals = ledger.charged()[node]
    return [sum(first <= step < until for first, until in intervals) for step in range(STEPS)]


@pytest.mark.slow
@given(
    others=st.tuples(*[st.lists(st.integers(64, 5000), min_size=2, max_size=2)] * 2),
    epsilon=st.sampled_from([0.5, 3.0]),
)
@few(2, 5)
def test_what_a_node_runs_depends_on_no_other_where_the_run_may_begin_without_it(others, epsilon):
    changed = experiment(
        nodes={"count": 3},
        algorithm={"name": "dp-fedavg", "clients_per_round": 3},
        privacy={"noise_std": None, "epsilon": epsilon},
        train={"steps": STEPS, "batch": 16},
        faults={"tolerate": True},
    )
    config = load_config(changed)
    assert config.begins_without
    plans = [build_plan(config, [1000, *counts], 5) for counts in others]
    assert plans[0].digest([0]) == plans[1].digest([0])
    first, second = (plan.nodes[0] for plan in plans)
    assert (first.noise_scale, first.epsilon) == (second.noise_scale, second.epsilon)
    assert (plans[0].digest() == plans[1].digest()) == (others[0] == others[1])


def test_a_run_begins_without_a_site_only_where_nothing_is_shared_or_chosen_by_all():
    federated = {"name": "dp-sgd", "clients_per_round": 3}
    base = {
        "nodes": {"count": 3},
        "algorithm": federated,
        "train": {"batch": 16},
        "faults": {"tolerate": True},
    }

    def of(**changes):
        config = load_config(experiment(**{**base, **changes}))
        return config.goes_on_without, config.takes_back, config.begins_without

    assert of() == (True, True, True)
    assert of(faults={"tolerate": False}) == (False, False, False)
    assert of(train={"batch": "auto"}) == (True, True, False)
    assert of(algorithm={"name": "privsgp"}) == (True, False, False)


def test_it_pays_once_for_every_step_sent_or_not(tmp_path):
    plan = plan_of()
    with killed(plan, tmp_path / "run", [(0, 5)]) as ledger:
        for _ in range(2):  # killed in between, it pays no more
            _pay(plan, Back(5), ledger, 8)
            assert times_charged(ledger) == [1] * STEPS
            assert ledger.paid_until(8) == STEPS
            assert ledger.paid_until(9) == 9  # from another step nothing is left


def test_it_is_taken_back_twice_and_pays_for_no_step_again(tmp_path):
    plan = plan_of()
    with killed(plan, tmp_path / "run", [(0, 5)]) as ledger:
        _pay(plan, Back(5), ledger, 6)
        own = ledger.charged()
        ledger.use()  # steps 6 and 7 are sent, and it is left out once more
        assert ledger.paid_until(8) == 8
        with pytest.raises(InputError, match="messages of steps before 8 in an earlier session"):
            _pay(plan, Back(8, 6, STEPS, own), ledger, 7)
        _pay(plan, Back(8, 6, STEPS, own), ledger, 9)
        assert times_charged(ledger) == [1] * STEPS
        assert ledger.paid_until(9) == STEPS


def test_steps_that_were_sent_in_a_session_before_that_are_paid_for_again(tmp_path):
    """A kill lost the steps from 3 on, all went on from there, and it was left out at once."""
    plan = plan_of(epsilon=8.0)
    with killed(plan, tmp_path / "run", [(0, 6)]) as ledger:
        own = ledger.charged()
        with pytest.raises(InputError, match="steps before 4"):
            _pay(plan, Back(4, 3, 3, own), ledger, 3)
        _pay(plan, Back(4, 3, 3, own), ledger, 4)
        until = ledger.paid_until(4)
        # Of steps 4 and 5, which left before the kill, there is a charge that nothing was sent for.
        expected = [1, 1, 1, 2, 2, 2] + [1] * (STEPS - 6)
        assert times_charged(ledger) == expected[:until] + [0] * (STEPS - until)
        assert until > 6


BEGINS = {
    "algorithm": {"name": "dp-fedavg", "clients_per_round": 4},
    "faults": {"tolerate": True},
}


@few(12, 40)
@given(
    blocks=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=3),
    first=st.integers(1, STEPS - 1),
    begins=st.booleans(),
    asked=st.sampled_from([{"epsilon": 1.0}, {"epsilon": None, "guess": 0.6}]),
)
def test_it_never_pays_more_than_its_budget_and_says_so(
    tmp_path_factory, blocks, first, begins, asked
):
    """Where the others can begin without it, it has to reach as far as they do."""
    plan = plan_of(**asked, **BEGINS) if begins else plan_of(**asked)
    assert plan.config.begins_without is begins
    spans = []
    for begin, length in blocks:  # steps are made again, and none is passed over
        begin = min(begin, spans[-1][1]) if spans else 0
        spans.append((begin, begin + length))
    folder = tmp_path_factory.mktemp("run") / "run"
    with killed(plan, folder, spans) as ledger:
        before = times_charged(ledger)
        covered, _ = affordable(plan, ledger.charged(), max(until for _, until in spans))
        if covered <= first or (begins and covered < STEPS):
            with pytest.raises(BudgetError, match=f"cannot come back at step {first}"):
                _pay(plan, Back(0), ledger, first)
            assert times_charged(ledger) == before
            return
        _pay(plan, Back(0), ledger, first)
        after, paid = times_charged(ledger), ledger.paid_until(first)
        assert paid > first
        assert all(after[step] for step in range(max(until for _, until in spans), paid))
        for node in plan.nodes:
            spent = plan.release.spent(node, ledger.charged()[node.node])
            assert spent <= node.limit or sum(after) == sum(before)


def test_it_does_not_come_back_to_a_step_of_which_it_may_have_sent_something(tmp_path):
    plan = plan_of()
    with killed(plan, tmp_path / "run", [(0, 5)]) as ledger:
        with pytest.raises(InputError, match="messages of steps before 9 in an earlier session"):
            _pay(plan, Back(9), ledger, 8)
        assert times_charged(ledger) == [1] * 5 + [0] * (STEPS - 5)
        _pay(plan, Back(8), ledger, 8)


def test_without_a_ledger_nothing_is_paid_and_the_step_counts_all_the_same():
    _pay(plan_of(), Back(3), None, 3)
    with pytest.raises(InputError, match="start a new run"):
        _pay(plan_of(), Back(4), None, 3)


def test_clients_without_a_state_have_the_model_of_the_server_and_nothing_else():
    stateless = {name for name, one in ALGORITHMS.items() if one.participation.stateless_clients}
    assert stateless == {"dp-sgd", "dp-fedavg", "fedavg"}
    for name in stateless:
        one = ALGORITHMS[name]
        assert (one.start, one.graph.weights) == (server_start, "server")
        assert one.table(one.options()) is None


def test_a_ledger_that_lacks_what_was_charged_before_pays_for_nothing(tmp_path):
    """The folder was lost, and steps had been sent twice: once each would be too little."""
    plan = plan_of(epsilon=8.0)
    with killed(plan, tmp_path / "kept", [(0, 5)]) as ledger:
        own = ledger.charged()
    with killed(plan, tmp_path / "new", []) as ledger:
        with pytest.raises(InputError, match="lacks steps of the session before"):
            _pay(plan, Back(5, 0, 0, own), ledger, 8)
        assert times_charged(ledger) == [0] * STEPS
