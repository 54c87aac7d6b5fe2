"""What a run may spend and has spent: keys, ledgers, and the end that a budget allows."""

import math
import re
import secrets

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from experiments import experiment
from planning_cases import gaussian_delta
from tacit import privacy
from tacit.communication.peers import SessionMemory
from tacit.config import load_config
from tacit.data import StackedData
from tacit.errors import BudgetError, InputError
from tacit.privacy import from_statement, to_statement
from tacit.privacy.ledger.ledger import DataAccount, read_ledger
from tacit.privacy.ledger.shared import account_files
from tacit.training.budget import (
    affordable,
    costs,
    epsilon_spent,
    extremes,
    node_keys,
    open_ledger,
    unit_spent,
)
from tacit.training.planner import build_plan
from tacit.training.run_folder.folder import RunFolder, created
from tacit.training.shared_budgets import check_shared, open_shared


def plan_of(**changes):
    """A plan for nodes of 50, 60, 70 and 80 records and 5 parameters."""
    return build_plan(load_config(experiment(**changes)), [50, 60, 70, 80], 5)


def budgeted(epsilon=2.0):
    return plan_of(privacy={"noise_std": None, "epsilon": epsilon}, train={"steps": 12})


def test_the_books_state_each_nodes_mechanism_and_budget(tmp_path):
    plan = budgeted([1.0, 2.0, 3.0, 4.0])
    with created(tmp_path / "run", plan.config) as folder:
        pass
    with open_ledger(plan, folder, resume=False) as ledger:
        assert ledger is not None
        assert ledger.own.digest == plan.digest()
        assert [one.epsilon_budget for one in ledger.own.statements] == [1.0, 2.0, 3.0, 4.0]
        for node, one in zip(plan.nodes, ledger.own.statements, strict=True):
            assert from_statement(one.statement) == plan.release.mechanism(node)
            assert one.statement == to_statement(plan.release.mechanism(node))
        ledger.reserve(0, 3)
    with open_ledger(plan, folder, resume=True) as again:
        assert again is not None
        assert again.charged() == dict.fromkeys(range(4), ((0, 3),))
    with pytest.raises(InputError, match="ledger of this plan"):
        open_ledger(plan_of(), folder, resume=True)


def test_without_accounting_there_are_no_books():
    assert open_ledger(plan_of(privacy={"accounting": "none"}), None, resume=False) is None


def test_keys_are_secret_unless_asked_for_or_needless():
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


def test_the_cipher_is_the_one_asked_for_or_suits_the_device():
    for device, asked, cipher in (
        ("cpu", None, "aes"),
        ("cuda:1", None, "chacha20"),
        ("cpu", "chacha20", "chacha20"),
        ("cuda", "aes", "aes"),
    ):
        for seed in (None, 3):
            privacy = {"keystream": asked, "noise_seed": seed}
            keys = node_keys(plan_of(train={"device": device}, privacy=privacy))
            wanted = asked or "aes" if seed else cipher
            assert keys.cipher == keys.subset([1]).cipher == wanted


def test_a_session_keeps_its_cipher_where_the_device_changes():
    """Else an epoch that is dealt out once would be dealt anew in its middle."""

    class Remembering(SessionMemory):
        made = None

        def remember(self, name, make, schema):
            self.made = self.made or schema.write(make())
            return schema.read(self.made, 0, name)

    session = Remembering()
    for device in ("cuda", "cpu"):
        plan = plan_of(train={"device": device}, privacy={"noise_seed": None})
        assert node_keys(plan, None, session).cipher == "chacha20"


def test_a_run_that_spent_nothing_may_take_every_step():
    plan = budgeted()
    assert affordable(plan, {}, 0) == (12, None)
    assert affordable(plan, dict.fromkeys(range(4), ()), 0) == (12, None)


@pytest.mark.parametrize("first", [0, 3, 11, 12])
def test_steps_that_were_settled_leave_the_rest(first):
    plan = budgeted()
    assert affordable(plan, dict.fromkeys(range(4), ((0, first),)), first) == (12, None)


@pytest.mark.parametrize(("first", "reserved"), [(0, 5), (3, 7), (3, 11), (6, 11), (0, 11)])
def test_each_repeated_step_costs_one_at_the_end(first, reserved):
    plan = budgeted()
    before = dict.fromkeys(range(4), ((0, first), (first, reserved)))
    until, reason = affordable(plan, before, first)
    assert until == 12 - (reserved - first)
    assert reason is not None
    assert f"covers steps up to {until} of 12" in reason
    spent = epsilon_spent(plan, dict.fromkeys(range(4), ((0, reserved), (first, until))))
    assert all(epsilon is not None and epsilon <= 2.0 for epsilon in spent)
    over = epsilon_spent(plan, dict.fromkeys(range(4), ((0, reserved), (first, until + 1))))
    assert max(epsilon or 0.0 for epsilon in over) > 2.0


def test_nothing_left_and_nothing_kept_is_refused():
    with pytest.raises(BudgetError, match=r"nothing is left .* raise privacy\.epsilon"):
        affordable(budgeted(), dict.fromkeys(range(4), ((0, 12),)), 0)


@pytest.mark.parametrize("first", [1, 4, 11])
def test_where_nothing_is_left_the_last_checkpoint_is_the_end(first):
    before = dict.fromkeys(range(4), ((0, first), (first, 12)))
    until, reason = affordable(budgeted(), before, first)
    assert until == first
    assert reason is not None
    assert f"covers steps up to {first} of 12: nothing is left" in reason


@pytest.mark.parametrize("accounting", ["published", "none"])
def test_only_a_certified_budget_ends_a_run(accounting):
    privacy = {"noise_std": None, "epsilon": 2.0, "accounting": accounting}
    if accounting == "none":
        privacy = {"accounting": accounting}
    plan = plan_of(privacy=privacy)
    assert affordable(plan, dict.fromkeys(range(4), ((0, 6),)), 3) == (6, None)


def test_the_shortest_budget_decides():
    given = plan_of(privacy={"epsilon": 9.0}, train={"steps": 12})
    costs = [node.epsilon or 0.0 for node in given.nodes]
    for tight in range(4):
        budgets = [cost * (1.0001 if node == tight else 9) for node, cost in enumerate(costs)]
        plan = plan_of(privacy={"epsilon": budgets}, train={"steps": 12})
        until, reason = affordable(plan, dict.fromkeys(range(4), ((0, 6),)), 3)
        assert until == 9
        assert reason is not None
        assert f"node {tight} " in reason


def test_spent_epsilon_is_what_another_accountant_finds():
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


def test_the_extremes_are_the_costliest_and_the_cheapest_node():
    plan = plan_of()
    costs = [node.epsilon or math.nan for node in plan.nodes]
    found = extremes(plan)
    assert found["most"].epsilon == max(costs)
    assert found["least"].epsilon == min(costs)


# The budget of a node's data, which runs share.


def on_data(folder, epsilon=1.0, *, steps=12, **changes):
    """A plan whose nodes' data have a ledger in a folder, with a budget of 2."""
    privacy = {
        "noise_std": None,
        "noise_seed": None,
        "epsilon": epsilon,
        "ledger": str(folder / "ledgers"),
        "ledger_epsilon": 2.0,
        **changes,
    }
    return plan_of(privacy=privacy, train={"steps": steps})


def records_of(plan):
    """The records of a plan's nodes, all different, the same for every plan."""
    sizes = torch.tensor([node.records for node in plan.nodes])
    inputs = torch.arange(int(sizes.sum()) * 5, dtype=torch.float32).reshape(-1, 5)
    return StackedData(inputs, torch.zeros(len(inputs)), sizes.cumsum(0) - sizes, sizes)


def books_in(folder):
    """What the ledgers of the data say, by number of records."""
    found = [read_ledger(file) for file in account_files(folder / "ledgers")]
    return sorted(found, key=lambda one: len(one.digests))


def begin(plan, folder=None, *, resume=False):
    """The ledger of a new or a resumed run, once the budgets admit it."""
    shared = open_shared(plan, records_of(plan), None, secrets.token_hex(16))
    try:
        if not resume:
            check_shared(plan, shared)
        home = None
        if folder is not None:
            home = RunFolder(folder)
            if not resume:
                with created(folder, plan.config):
                    pass
        found = open_ledger(plan, home, resume, shared)
    except BaseException:
        shared.close()
        raise
    assert found is not None
    return found


def run_all(plan):
    with begin(plan) as ledger:
        ledger.reserve(0, plan.steps)
        ledger.settle(plan.steps)


def mu_of(plan, node, steps=None):
    """Of the Gaussian that steps on every record compose to."""
    return math.sqrt(plan.steps if steps is None else steps) / plan.nodes[node].noise_scale


def test_runs_draw_on_one_budget_until_it_is_used_up(tmp_path):
    first, second = on_data(tmp_path), on_data(tmp_path, 1.5)
    run_all(first)
    run_all(second)
    # The oracle: both together are a Gaussian of this mu, and within the budget.
    assert gaussian_delta(math.hypot(mu_of(first, 0), mu_of(second, 0)), 2.0) < 1e-5
    third = on_data(tmp_path)
    total = math.hypot(mu_of(first, 0), mu_of(second, 0), mu_of(third, 0))
    assert gaussian_delta(total, 2.0) > 1e-5
    with pytest.raises(
        BudgetError, match=r"the budget of its data \('digits'\) is epsilon 2"
    ) as no:
        begin(third)
    assert no.value.reported() is None  # for its owner's eyes
    assert [len(one.runs) for one in books_in(tmp_path)] == [2]


def test_what_is_said_to_fit_does_and_little_more_would_not(tmp_path):
    run_all(on_data(tmp_path, 1.5))
    with pytest.raises(BudgetError) as refused:
        begin(on_data(tmp_path, 2.0))
    said = re.search(r"privacy\.epsilon = ([\d.]+) would still fit", str(refused.value))
    assert said is not None
    fits = float(said[1])
    assert 0.1 < fits < 2.0
    with pytest.raises(BudgetError):
        begin(on_data(tmp_path, 1.02 * fits))
    run_all(on_data(tmp_path, fits))


def test_a_given_noise_is_told_what_would_fit(tmp_path):
    run_all(on_data(tmp_path, 1.5))
    given = {"epsilon": None, "noise_std": 0.05}
    with pytest.raises(BudgetError) as refused:
        begin(on_data(tmp_path, **given))
    said = re.search(r"privacy\.noise_std = ([\d.]+) would still fit", str(refused.value))
    assert said is not None
    run_all(on_data(tmp_path, **{**given, "noise_std": float(said[1])}))


def test_a_budget_that_is_gone_is_said_to_be(tmp_path):
    run_all(on_data(tmp_path, 2.0))
    with pytest.raises(BudgetError, match="nothing is left for a run of this many steps"):
        begin(on_data(tmp_path, 0.5))


def test_the_first_run_may_spend_all_and_no_more(tmp_path):
    with pytest.raises(BudgetError, match=r"0 is spent, and this run would bring it to 2\.5"):
        begin(on_data(tmp_path, 2.5))
    assert books_in(tmp_path) == []
    run_all(on_data(tmp_path, 2.0))


def test_the_budget_of_new_books_is_the_runs_own(tmp_path):
    run_all(on_data(tmp_path, 3.0, ledger_epsilon=None, delta=1e-4))
    assert [one.data for one in books_in(tmp_path)] == [DataAccount("digits", 0, 3.0, 1e-4)]
    own = {"ledger_epsilon": None, "epsilon": [1.0, 2.0, 3.0, 4.0]}
    with pytest.raises(InputError, match=r"ledger_epsilon = .*: one budget for nodes 0, 1, 2, 3"):
        begin(on_data(tmp_path / "other", **own))
    names = ["north", "south", "east", "west"]
    run_all(on_data(tmp_path / "other", **own, ledger_source=names))
    found = {one.data for one in books_in(tmp_path / "other")}
    assert found == {DataAccount(name, n, n + 1.0, 1e-5) for n, name in enumerate(names)}


@pytest.mark.parametrize("changes", [{"ledger_epsilon": 2.5}, {"ledger_delta": 1e-4}])
def test_books_keep_their_budget(tmp_path, changes):
    run_all(on_data(tmp_path))
    with pytest.raises(InputError, match="when it was made: leave this out"):
        begin(on_data(tmp_path, 0.1, **changes))
    run_all(on_data(tmp_path, 0.1, ledger_epsilon=None))


def test_another_relation_is_refused(tmp_path):
    run_all(on_data(tmp_path, 0.1))
    with pytest.raises(InputError, match="the two do not add up"):
        begin(on_data(tmp_path, 0.1, relation="replace-one"))


def test_a_published_noise_is_charged_what_is_certified(tmp_path):
    """The paper's formula promises 1; the ledger goes by what is proved."""
    plan = on_data(tmp_path, accounting="published")
    proved = max(node.epsilon or 0.0 for node in plan.nodes)
    assert (proved > 2.0) == (gaussian_delta(mu_of(plan, 0), 2.0) > 1e-5)
    if proved > 2.0:
        with pytest.raises(BudgetError, match="times the noise would still fit"):
            begin(plan)
    else:
        run_all(plan)


def test_a_cut_off_run_goes_on_with_what_is_left_of_its_data(tmp_path):
    plan, run = on_data(tmp_path, 1.0), tmp_path / "run"
    with begin(plan, run) as ledger:
        ledger.reserve(0, 4)
    run_all(on_data(tmp_path, 1.8))
    with begin(plan, run, resume=True) as ledger:
        before = ledger.charged()
        assert before == dict.fromkeys(range(4), ((0, 4),))
        own, _ = affordable(plan, before, 0)
        assert own == 8
        until, reason = affordable(plan, before, 0, ledger)
        assert 0 < until < own
        assert reason is not None
        assert "are charged as well; the budget of the data of node 0 (privacy.ledger) " in reason
        assert str(tmp_path) not in reason
    other = mu_of(on_data(tmp_path, 1.8), 0)
    assert gaussian_delta(math.hypot(other, mu_of(plan, 0, 4 + until)), 2.0) <= 1e-5
    assert gaussian_delta(math.hypot(other, mu_of(plan, 0, 5 + until)), 2.0) > 1e-5


def test_a_run_that_others_left_nothing_is_not_resumed(tmp_path):
    plan, run = on_data(tmp_path, 1.0), tmp_path / "run"
    with begin(plan, run):
        pass
    run_all(on_data(tmp_path, 2.0))
    with (
        begin(plan, run, resume=True) as ledger,
        pytest.raises(BudgetError, match="nothing is left") as refused,
    ):
        affordable(plan, ledger.charged(), 0, ledger)
    assert refused.value.reported() is None  # what its data have left is for the own screen


def test_a_run_without_a_shared_ledger_books_in_its_own(tmp_path):
    plan = budgeted()
    with begin(plan, tmp_path / "run") as ledger:
        ledger.reserve(0, 5)
        ledger.settle(4)
        assert ledger.charged() == dict.fromkeys(range(4), ((0, 4),))
        assert ledger.shared.accounts == {}


@pytest.mark.parametrize("evaluations", [4, 300])
def test_costs_are_found_when_they_are_asked_for_and_never_too_small(evaluations, monkeypatch):
    plan = plan_of(train={"steps": 1200, "batch": 10})
    steps = [1200 * (number + 1) // evaluations for number in range(evaluations)]
    release, asked = plan.release, 0
    exact = type(release).epsilon

    def counted(*arguments):
        nonlocal asked
        asked += 1
        return exact(*arguments)

    monkeypatch.setattr(type(release), "epsilon", counted)
    cost = costs(plan, [1, 2], {3: [(0, 5)]}, 5, steps)
    assert asked == 0
    own = extremes(plan, [1, 2])["most"]
    for step in (300, 301, 600, 1200):
        found, bound = cost("own", step), exact(release, own, [(5, step)])
        assert found is not None
        assert bound is not None
        assert found >= bound * (1 - 1e-3)
        assert found <= bound * 1.02 if step in steps else found <= bound * 2
        assert cost("own", step) == found
    assert asked <= 5  # the last one bounds the others
    most, least = cost("most", 1200), cost("least", 1200)
    assert least is not None
    assert most is not None
    assert least <= cost("own", 1200) <= most  # type: ignore[operator]


def test_without_accounting_nothing_is_spent():
    plan = plan_of(privacy={"noise_std": None, "epsilon": "none"})
    assert costs(plan, [0], {}, 0, [1, 6])("most", 1) is None


UNITS = {"noise_std": None, "epsilon": [1.0, 1.5, 1.5, 2.0], "unit": "column:patient"}


def of_persons(**changes):
    return plan_of(privacy={**UNITS, **changes}, train={"steps": 12})


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_person_at_several_nodes_has_the_composition_of_the_worst(nodes):
    plan = of_persons(unit_nodes=nodes)
    unit = unit_spent(plan)
    assert (unit.name, unit.person, unit.nodes, unit.rows) == ("patient", "patient", nodes, 16)
    if nodes == 1:  # a node's, which stands beside it
        assert unit.epsilon is None
        return
    worst = sorted(plan.nodes, key=lambda node: node.epsilon or 0.0)[-nodes:]
    together = privacy.Composed([plan.release.mechanism(node) for node in worst])
    expected = privacy.epsilon(together, delta=1e-5)
    assert unit.epsilon == pytest.approx(expected, rel=1e-6)
    assert unit.delta == 1e-5
    assert unit.epsilon > max(node.epsilon or 0.0 for node in plan.nodes)


def test_a_person_of_a_run_by_row_has_that_of_group_privacy():
    plan = plan_of(privacy={**UNITS, "unit": "record", "unit_rows": 4}, train={"steps": 12})
    assert unit_spent(plan).epsilon is None  # nobody said whose the rows are
    known = build_plan(plan.config, [50, 60, 70, 80], 5, person="customer")
    unit = unit_spent(known)
    assert (unit.name, unit.person, unit.gradient) == ("record", "customer", None)
    groups = (privacy.for_a_unit(known.release.mechanism(node), 4) for node in known.nodes)
    expected = max(privacy.epsilon(group, delta=1e-5) for group in groups)
    assert unit.epsilon == pytest.approx(expected, rel=1e-6)


def test_a_person_has_what_was_charged_and_nothing_is_known_of_other_nodes():
    plan = of_persons(unit_nodes=2)
    charged = {node: [(0, 3)] for node in range(4)}
    spent = [unit_spent(plan, charges).epsilon for charges in (charged, charged | {3: [(0, 6)]})]
    assert 0 < spent[0] < spent[1] < unit_spent(plan).epsilon
    nothing = dict.fromkeys(charged, ())
    assert unit_spent(plan, nothing).epsilon == 0
    assert unit_spent(plan, {0: [(0, 3)], 1: [(0, 3)]}).epsilon is None


@pytest.mark.slow
def test_of_more_nodes_than_can_be_chosen_among_a_bound_holds_for_all():
    changes = {"nodes": {"count": 30}, "train": {"steps": 4, "batch": 10}}
    private = {**UNITS, "epsilon": 1.0, "unit_nodes": 2}
    config = load_config(experiment(**changes, privacy=private))
    plan = build_plan(config, range(100, 400, 10), 5)
    unit = unit_spent(plan)
    twice = [privacy.Composed([plan.release.mechanism(node)] * 2) for node in plan.nodes[::29]]
    assert unit.epsilon > max(privacy.epsilon(both, delta=1e-5) for both in twice)
    assert unit.epsilon < 10


def test_where_nodes_share_noise_nothing_is_certified_at_several():
    shared = {"noise": "pairwise", "colluding": 1, "pair_noise": 1.0, "epsilon": 1.0}
    with pytest.raises(InputError, match=r"privacy\.unit.*unit_nodes above 1 where nodes share"):
        of_persons(**shared, unit_nodes=2)
    plan = of_persons(**shared, unit="record", unit_nodes=2)
    known = build_plan(plan.config, [50, 60, 70, 80], 5, person="customer")
    assert unit_spent(known).apart
    assert unit_spent(known).epsilon is None
