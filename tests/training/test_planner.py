"""Plans: rates, noise, what it costs, and what is refused before anything runs."""

import math
import re
import tracemalloc

import pytest
from scipy.optimize import brentq

from experiments import experiment
from planning_cases import DELTA, STEPS, epsilons, gaussian_delta, gaussian_mu, plan_of
from tacit import privacy
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.errors import BudgetError, InputError
from tacit.report.documents.metrics import PrivateMeasurement
from tacit.report.documents.unit import RECORD
from tacit.training import planner as planning
from tacit.training.plan import not_covered
from tacit.training.planner import build_plan

# Sampling


@pytest.mark.parametrize(
    ("batch", "rates", "expected"),
    [
        ("all", [1.0, 1.0, 1.0], [50.0, 8.0, 20.0]),
        (10, [0.2, 1.0, 0.5], [10.0, 8.0, 10.0]),
        (50, [1.0, 1.0, 1.0], [50.0, 8.0, 20.0]),
        (1, [0.02, 0.125, 0.05], [1.0, 1.0, 1.0]),
    ],
)
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_rates_and_expected_batches(batch, rates, expected, sampling):
    plan = plan_of([50, 8, 20], epsilon="none", train={"batch": batch, "sampling": sampling})
    assert [node.rate for node in plan.nodes] == rates
    assert [node.expected_batch for node in plan.nodes] == expected
    assert [node.records for node in plan.nodes] == [50, 8, 20]
    assert [node.node for node in plan.nodes] == [0, 1, 2]
    assert (plan.steps, plan.parameters) == (STEPS, 10)


def test_a_batch_above_every_nodes_records_is_refused():
    with pytest.raises(InputError, match=r"at most 50") as caught:
        plan_of([50, 8], train={"batch": 51})
    assert caught.value.where == "train.batch"


# Without noise


def test_a_plan_without_noise_accounts_for_nothing():
    plan = plan_of([5, 6], epsilon="none")
    assert not plan.noisy
    assert not plan.accounted
    assert plan.release.clip.bounds is None
    for node in plan.nodes:
        assert (node.noise_scale, node.epsilon, node.budget, node.delta) == (0, None, None, None)
    assert plan.release.epsilon(plan.nodes[0], [(0, STEPS)]) is None


def test_without_noise_it_clips_only_if_asked():
    algorithm = {"name": "dyn-d2p", "clip": 2.0, "clip_decay": 3.0}
    plan = plan_of([5, 6], epsilon="none", algorithm=algorithm)
    assert plan.release.clip.bounds == pytest.approx(
        [2.0 * 3.0 ** (-k / STEPS) for k in range(STEPS)]
    )


@pytest.mark.parametrize("algorithm", [{"clip": 1e-30}, {"clip": 1e-17, "clip_decay": 1e3}])
def test_a_bound_that_arithmetic_cannot_keep_is_refused_before_the_first_step(algorithm):
    with pytest.raises(InputError, match=r"algorithm\.clip = .* between 1e-18 and 1e18"):
        plan_of([5, 6], epsilon=1.0, algorithm={"name": "dyn-d2p", **algorithm})


@pytest.mark.parametrize(
    ("name", "clip"), [("privsgp", 1.0), ("const-d2p", 2.0), ("dyn-mu", 2.0), ("dp2-sgd", 1.0)]
)
def test_a_private_run_clips_at_its_algorithms_default(name, clip):
    plan = plan_of([5, 6], algorithm={"name": name}, topology={"graph": "ring"})
    assert plan.release.clip.bounds == (clip,) * STEPS


# A budget


BUDGETS = [0.3, 1.0, 3.0, 8.0]


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_each_node_gets_the_least_noise_for_its_budget(relation):
    plan = plan_of([20, 30, 20, 50], epsilon=BUDGETS, relation=relation)
    sensitivity = 2 if relation == "replace-one" else 1
    for node, budget in zip(plan.nodes, BUDGETS, strict=True):
        assert node.budget == budget
        assert node.epsilon is not None
        assert 0.99 * budget < node.epsilon <= budget
        least = sensitivity * math.sqrt(STEPS) / gaussian_mu(budget, DELTA)
        assert least * (1 - 1e-9) <= node.noise_scale <= least * 1.002
        # Clipping bound 1: multiplier and standard deviation of the sum are one.
        assert (
            plan.release.noise_std(node, 0)
            == node.noise_scale
            == plan.release.noise_multiplier(node, 5)
        )


def test_deltas_may_differ_from_node_to_node():
    deltas = [1e-3, 1e-5, 1e-7]
    plan = plan_of([20, 20, 20], epsilon=1.0, delta=deltas)
    assert [node.delta for node in plan.nodes] == deltas
    scales = [node.noise_scale for node in plan.nodes]
    assert scales == pytest.approx(
        [math.sqrt(STEPS) / gaussian_mu(1.0, delta) for delta in deltas], rel=2e-3
    )
    for node, delta in zip(plan.nodes, deltas, strict=True):
        assert node.epsilon == privacy.epsilon(plan.release.mechanism(node), delta=delta)
        assert 0.99 < node.epsilon <= 1.0


def test_sampled_nodes_meet_their_budgets():
    budgets = [0.5, 2.0, 2.0, 1.0]
    plan = plan_of([50, 50, 8, 40], epsilon=budgets, train={"batch": 10})
    for node, budget in zip(plan.nodes, budgets, strict=True):
        multipliers = [node.noise_scale] * STEPS
        rate = min(10, node.records) / node.records
        mechanism = (
            privacy.Gaussian(multipliers, coordinates=10)
            if rate == 1
            else privacy.SampledGaussian(rate, multipliers, coordinates=10)
        )
        assert plan.release.mechanism(node) == mechanism
        assert node.epsilon == privacy.epsilon(mechanism, delta=DELTA)
        assert 0.99 * budget < node.epsilon <= budget
        less = privacy.epsilon(
            plan.release.mechanism(node).__class__(**_with_less_noise(mechanism, 0.995)),
            delta=DELTA,
        )
        assert less > budget


def _with_less_noise(mechanism, factor):
    fields = dict(vars(mechanism))
    fields["noise_multiplier"] = [factor * value for value in fields["noise_multiplier"]]
    return fields


def test_nodes_with_equal_demands_get_equal_plans():
    plan = plan_of([50, 40, 50, 40, 50], epsilon=[1.0, 1.0, 1.0, 1.0, 2.0], train={"batch": 10})
    shared = [(n.noise_scale, n.epsilon, n.claimed, n.conditions) for n in plan.nodes]
    assert shared[0] == shared[2]
    assert shared[1] == shared[3]
    assert len({scale for scale, *_ in shared}) == 3
    assert [node.node for node in plan.nodes] == list(range(5))


def test_fixed_batches_are_accounted_under_replace_one():
    train = {"batch": 10, "sampling": "fixed"}
    plan = plan_of([50, 50, 8], epsilon=2.0, relation="replace-one", train=train)
    sampled, _, whole = plan.nodes
    assert plan.release.mechanism(sampled) == privacy.FixedBatchGaussian(
        10, 50, [sampled.noise_scale] * STEPS, coordinates=10
    )
    assert plan.release.mechanism(whole) == privacy.Gaussian(
        [whole.noise_scale] * STEPS, relation="replace-one", coordinates=10
    )
    assert all(0.99 * 2.0 < epsilon <= 2.0 for epsilon in epsilons(plan))


def test_fixed_batches_under_add_or_remove_one_are_refused():
    with pytest.raises(InputError, match="replace-one") as caught:
        plan_of([50, 50], epsilon=2.0, train={"batch": 10, "sampling": "fixed"})
    assert caught.value.where == "train.sampling"


# A given noise


@pytest.mark.parametrize("batch", ["all", 10])
def test_a_given_noise_is_that_of_every_nodes_first_batch_mean(batch):
    plan = plan_of([50, 40, 12], noise_std=0.4, algorithm={"clip": 2.0}, train={"batch": batch})
    for node in plan.nodes:
        assert plan.release.noise_std(node, 0) / node.expected_batch == pytest.approx(0.4)
        multiplier = 0.4 * node.expected_batch / 2.0
        assert node.noise_scale == pytest.approx(multiplier)
        right = (
            privacy.Gaussian(multiplier, STEPS, coordinates=10)
            if node.rate == 1
            else privacy.SampledGaussian(10 / node.records, multiplier, STEPS, coordinates=10)
        )
        assert node.epsilon == pytest.approx(privacy.epsilon(right, delta=DELTA), rel=1e-6)
        assert node.budget is None


def test_noise_follows_its_schedule():
    algorithm = {"name": "dyn-d2p", "clip": 2.0, "clip_decay": 3.0, "budget_growth": 5.0}
    plan = plan_of([50, 40], noise_std=0.4, algorithm=algorithm)
    for node in plan.nodes:
        for k in range(STEPS):
            std = 0.4 * node.records * 15.0 ** (-k / STEPS)
            assert plan.release.noise_std(node, k) == pytest.approx(std)
            multiplier = 0.4 * node.records / 2.0 * 5.0 ** (-k / STEPS)
            assert plan.release.noise_multiplier(node, k) == pytest.approx(multiplier)
        mu = math.sqrt(sum(plan.release.noise_multiplier(node, k) ** -2 for k in range(STEPS)))
        assert node.epsilon is not None
        assert gaussian_delta(mu, node.epsilon) == pytest.approx(DELTA, rel=1e-5)


def test_accounting_none_keeps_the_noise_and_reports_no_epsilon():
    plan = plan_of([50, 40], noise_std=0.4, accounting="none")
    assert plan.noisy
    assert not plan.accounted
    assert plan.release.clip.bounds is None
    for node in plan.nodes:
        assert plan.release.noise_std(node, 0) == pytest.approx(0.4 * node.records)
        assert (node.epsilon, node.delta, node.claimed) == (None, None, None)


def sufficient(error):
    """The largest noise_std that a refusal names."""
    return max(float(value) for value in re.findall(r"noise_std = ([\d.e+-]+) or", str(error)))


@pytest.mark.parametrize("batch", ["all", 10])
def test_too_little_noise_for_a_budget_names_nodes_and_a_noise_that_does(batch):
    records = [50, 50, 50, 50, 20, 500]
    train = {"batch": batch}
    with pytest.raises(BudgetError) as caught:
        plan_of(records, noise_std=0.02, epsilon=1.5, train=train)
    error = caught.value
    assert error.exit_code == 3
    assert "nodes 0, 1, 2 and 1 more: privacy.noise_std = 0.02 costs epsilon" in str(error)
    assert "node 4: " in str(error)
    assert ("node 5: " in str(error)) == (batch == 10)
    assert "above the budget of 1.5" in str(error)
    enough = sufficient(error)
    plan = plan_of(records, noise_std=enough, epsilon=1.5, train=train)
    assert max(epsilons(plan)) <= 1.5
    with pytest.raises(BudgetError):
        plan_of(records, noise_std=0.98 * enough, epsilon=1.5, train=train)


def test_a_refusal_states_the_cost_without_rounding_it_down():
    cost = epsilons(plan_of([50, 50], noise_std=0.1))[0]
    with pytest.raises(BudgetError) as caught:
        plan_of([50, 50], noise_std=0.1, epsilon=0.5)
    stated = re.search(r"costs epsilon ([\d.]+) in 6 steps", str(caught.value))
    assert stated is not None
    assert cost <= float(stated[1]) <= 1.01 * cost


def test_enough_noise_for_a_budget_keeps_both():
    plan = plan_of([50, 50], noise_std=1.0, epsilon=[1.0, 2.0])
    assert [node.budget for node in plan.nodes] == [1.0, 2.0]
    assert len(set(epsilons(plan))) == 1
    assert max(epsilons(plan)) < 1.0


# The papers' formulas


def privsgp_claim(std, records):
    return 3 * math.sqrt(STEPS * math.log(1 / DELTA)) / (records * std)


def dyn_claim(std, records, growth):
    """p sqrt(sum_k (e^{mu_k^2} - 1)), mu_k = mu_0 rho_mu^{k/K}, clip 1 at the first step."""
    squares = [(growth ** (k / STEPS) / std) ** 2 for k in range(STEPS)]
    mu = math.sqrt(sum(math.expm1(square) for square in squares)) / records
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - DELTA, 1e-9, 100.0))


def general_claim(std, records):
    mu = math.sqrt(2 * STEPS) / std / records
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - DELTA, 1e-9, 100.0))


CLAIMS = {
    "privsgp": privsgp_claim,
    "const-d2p": lambda std, records: dyn_claim(std, records, 1.0),
    "dyn-c": lambda std, records: dyn_claim(std, records, 1.0),
    "dyn-mu": lambda std, records: dyn_claim(std, records, 3.0),
    "dyn-d2p": lambda std, records: dyn_claim(std, records, 3.0),
    "dyn-general": general_claim,
}


@pytest.mark.parametrize("batch", [1, 10, "all"])
@pytest.mark.parametrize("name", CLAIMS)
def test_published_accounting_takes_the_noise_the_paper_prints(name, batch):
    options = {"budget_growth": 3.0} if name in ("dyn-mu", "dyn-d2p") else {}
    budgets = [1.0, 2.0, 1.0]
    plan = plan_of(
        [50, 50, 10],
        epsilon=budgets,
        accounting="published",
        algorithm={"name": name, "clip": 1.0, **options},
        train={"batch": batch},
    )
    for node, budget in zip(plan.nodes, budgets, strict=True):
        assert node.claimed == pytest.approx(budget, abs=1e-6)
        assert node.claimed <= budget
        std = plan.release.noise_std(node, 0) / node.expected_batch
        assert CLAIMS[name](std, node.records) == pytest.approx(budget, rel=1e-5)
        assert node.epsilon == privacy.epsilon(plan.release.mechanism(node), delta=DELTA)
        assert abs(node.epsilon - budget) > 0.01
        assert len(node.conditions) >= 2


def test_the_papers_constant_scales_its_claim():
    plan = plan_of([50, 50], epsilon=1.0, accounting="published", published_constant=2.0)
    for node in plan.nodes:
        std = plan.release.noise_std(node, 0) / node.expected_batch
        assert 2 * privsgp_claim(std, node.records) == pytest.approx(1.0, abs=1e-6)


def test_certified_accounting_reports_the_claim_for_the_same_noise():
    plan = plan_of([50, 20], epsilon=1.0, algorithm={"clip": 1.0})
    for node in plan.nodes:
        std = plan.release.noise_std(node, 0) / node.expected_batch
        assert node.claimed == pytest.approx(privsgp_claim(std, node.records))
    unclaimed = plan_of(
        [50, 20], epsilon=1.0, algorithm={"name": "dp2-sgd"}, topology={"graph": "ring"}
    )
    assert [node.claimed for node in unclaimed.nodes] == [None, None]


# Schedules


@pytest.mark.parametrize("batch", ["all", 10])
def test_every_step_runs_with_the_noise_of_its_schedule(batch):
    plan = plan_of(
        [50, 8], algorithm={"name": "dyn-d2p", "clip": 1.0}, train={"steps": 60, "batch": batch}
    )
    assert plan.release.noise_shape == pytest.approx([2.0 ** (-k / 60) for k in range(60)])
    assert len(set(plan.release.noise_shape)) == 60


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dyn-d2p", {"budget_growth": 4.0}),
        ("privsgp-vr", {"anchor_every": 3, "anchor_share": 0.9}),
        ("privsgp-vr", {"anchor_every": 3, "anchor_share": 0.1}),
        ("dp-sgd", {"clients_per_round": 2}),
    ],
)
def test_a_budget_a_round_holds_in_every_round(name, options):
    graph = "star" if name == "dp-sgd" else "exponential"
    plan = plan_of(
        [50, 50, 50],
        algorithm={"name": name, **options},
        topology={"graph": graph},
        epsilon_per_round=0.5,
        train={"batch": 5},
    )
    for node in plan.nodes:
        each = [plan.release.epsilon(node, [(k, k + 1)]) or 0.0 for k in range(plan.steps)]
        assert max(each) <= 0.5
        assert max(each) > 0.499
        assert node.epsilon is not None
        assert node.epsilon > max(each)


# Refusals and warnings


@pytest.mark.parametrize("name", ["d-psgd", "dp2-sgd"])
@pytest.mark.parametrize("graph", ["exponential", "directed-ring"])
def test_a_directed_graph_is_refused_where_weights_must_be_symmetric(name, graph):
    with pytest.raises(InputError, match="push-sum method") as caught:
        plan_of([5, 5, 5, 5], algorithm={"name": name}, topology={"graph": graph}, epsilon="none")
    assert caught.value.where == "topology.graph"


def test_a_graph_that_is_not_connected_is_refused_naming_the_node(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("0 1\n1 2\n2 0\n3 0\n")
    with pytest.raises(InputError, match=r"2 parts, 0, 1, 2 \| 3") as caught:
        plan_of([5, 5, 5, 5], topology={"graph": f"file:{path}"}, epsilon="none")
    assert caught.value.where == "topology.graph"
    path.write_text("0 1\n1 2\n2 0\n3 0\n\n2 3\n")
    plan = plan_of([5, 5, 5, 5], topology={"graph": f"file:{path}"}, epsilon="none")
    assert 0 < plan.contraction < 1


def test_contraction_is_the_second_eigenvalue():
    ring = plan_of([5] * 6, topology={"graph": "ring"}, epsilon="none")
    assert ring.contraction == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / 6))
    assert plan_of([5] * 6, topology={"graph": "complete"}, epsilon="none").contraction == 0.0
    assert plan_of([5], epsilon="none").contraction == 0.0


def test_a_delta_of_one_over_j_is_called_out():
    def warned(records, delta):
        plan = plan_of(records, epsilon=1.0, delta=delta)
        return [warning for warning in plan.warnings if "privacy.delta" in warning]

    assert warned([999, 500], 1e-3) == []
    (found,) = warned([500, 1000, 1001], 1e-3)
    assert "nodes 1, 2" in found
    assert "0.001 is at least 1 / J" in found
    (found,) = warned([500, 500], [1e-3, 0.01])
    assert "node 1" in found
    assert "0.01" in found


def test_seeded_noise_is_called_not_private():
    assert any("NOT PRIVATE" in text for text in plan_of([5, 5], noise_seed=0).warnings)
    assert plan_of([5, 5]).warnings == ()
    (large,) = plan_of([5, 5], epsilon=100.0).warnings
    assert large.startswith("epsilon = 100 is next to no protection: ")
    assert "with probability 100.0\u202f% at most" in large


def test_a_list_of_budgets_needs_one_a_node():
    with pytest.raises(InputError) as caught:
        plan_of([5, 5, 5], epsilon=[1.0, 2.0])
    assert caught.value.where == "privacy.epsilon"


@pytest.mark.parametrize("key", ["clip_schedule", "noise_schedule"])
def test_a_given_schedule_needs_one_number_a_step(key):
    algorithm = {"name": "dyn-general", key: [1.0] * (STEPS - 1)}
    with pytest.raises(InputError, match="each of 6 steps") as caught:
        plan_of([5, 5], algorithm=algorithm)
    assert caught.value.where == f"algorithm.{key}"


@pytest.mark.slow
def test_10000_nodes_share_one_search_for_their_noise_and_need_no_matrix(monkeypatch):
    searched = []
    search = planning._costed

    def counted(settings, release, node, start):
        searched.append(node.records)
        return search(settings, release, node, start)

    monkeypatch.setattr(planning, "_costed", counted)
    nodes = 10_000
    tracemalloc.start()
    try:
        plan = plan_of([5, 8] * (nodes // 2), epsilon=1.0, train={"batch": 2})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sorted(searched) == [5, 8]
    assert {node.noise_scale for node in plan.nodes[::2]} == {plan.nodes[0].noise_scale}
    assert plan.contraction is not None
    assert peak < nodes**2  # not a byte for each pair of nodes


# What a plan says of its steps, and by which digest it is known.


# What a part of the steps costs


@pytest.mark.parametrize("batch", ["all", 10])
def test_epsilon_of_intervals(batch):
    plan = plan_of([50, 50], epsilon=1.0, train={"batch": batch})
    node = plan.nodes[0]
    assert plan.release.epsilon(node, []) == 0.0
    assert plan.release.epsilon(node, [(2, 2)]) == 0.0
    assert plan.release.epsilon(node, [(0, STEPS)]) == node.epsilon
    part = plan.release.epsilon(node, [(0, 3)])
    again = plan.release.epsilon(node, [(0, STEPS), (2, 4)])
    assert part is not None
    assert again is not None
    assert 0 < part < 1.0 < again


def test_a_mechanism_holds_the_multipliers_of_the_steps_it_is_asked_for():
    algorithm = {"name": "dyn-mu", "budget_growth": 4.0}
    plan = plan_of([50, 50], epsilon=1.0, algorithm=algorithm)
    node = plan.nodes[0]
    each = [node.noise_scale * 4.0 ** (-k / STEPS) for k in range(STEPS)]
    found = plan.release.mechanism(node, [(0, 2), (1, 4)])
    assert found.noise_multiplier == pytest.approx([each[k] for k in (0, 1, 1, 2, 3)])
    assert plan.release.mechanism(node).noise_multiplier == pytest.approx(each)


# Identity


def digest(tmp_path, **changes):
    records = changes.pop("records", [20, 30, 40])
    parameters = changes.pop("parameters", 10)
    edges = changes.pop("edges", "0 1\n1 2\n2 0\n")
    path = tmp_path / "graph.txt"
    path.write_text(edges)
    settings = {"epsilon": 2.0, "topology": {"graph": f"file:{path}"}, **changes}
    return plan_of(records, parameters=parameters, **settings).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 2.1},
        {"epsilon": [2.0, 2.0, 2.1]},
        {"delta": 2e-4},
        {"noise_std": 5.0},
        {"relation": "replace-one"},
        {"accounting": "published"},
        {"noise_seed": 1},
        {"records": [20, 30, 41]},
        {"records": [30, 20, 40]},
        {"parameters": 11},
        {"train": {"steps": STEPS + 1}},
        {"train": {"batch": 40}},
        {"train": {"seed": 1}},
        {"train": {"dtype": "float64"}},
        {"algorithm": {"name": "const-d2p", "clip": 1.0}},
        {"algorithm": {"clip": 0.9}},
        {"algorithm": {"momentum": 0.5}},
        {"algorithm": {"learning_rate": 0.06}},
        {"topology": {"graph": "ring"}},
        {"edges": "0 1\n1 2\n2 0\n0 2\n"},
        {"edges": "0 1\n1 2\n2 0\n\n0 2\n"},
    ],
    ids=str,
)
def test_the_digest_changes_with_what_matters(changes, tmp_path):
    assert digest(tmp_path, **changes) != digest(tmp_path)


@pytest.mark.parametrize(
    "train", [{"evaluate_every": 2}, {"evaluate_records": 7}, {"checkpoint_every": 3}], ids=str
)
def test_the_digest_does_not_change_with_what_is_measured(train, tmp_path):
    assert digest(tmp_path, train=train) == digest(tmp_path)
    assert digest(tmp_path) == digest(tmp_path)


def test_a_plan_speaks_of_the_person_by_name():
    private = {"noise_std": None, "noise_seed": None, "epsilon": 60.0, "delta": 0.03}
    private |= {"unit": "column:customer"}
    changes = {"privacy": private, "train": {"sampling": "allocation", "batch": 10}}
    config = load_config(experiment(**changes))
    for person, name in ((None, "customer"), ("patient", "patient")):
        plan = build_plan(config, [50] * 4, 5, person=person)
        said = " ".join((*plan.notes, *plan.warnings))
        assert f"whether a {name} was there" in said
        assert f"each {name} takes part in one random step" in said
        assert f"publishing one {name} at random" in said
        assert "record" not in said
    by_row = load_config(experiment(**{**changes, "privacy": {**private, "unit": "record"}}))
    plan = build_plan(by_row, [50] * 4, 5, person="patient")
    assert (plan.unit.name, plan.unit.person) == ("record", "patient")
    assert "each record takes part" in " ".join(plan.notes)


# What epsilon does not cover follows from the settings of the experiment.


CONVEX = {"nodes": {"count": 2}, "task": {"dataset": "digits", "model": "logistic"}}
DRAWING = {"noise_std": None, "noise_seed": None, "epsilon": 1.0}
ALWAYS = ("training loss", "checkpoints", "how many records", "refuses its own input")
# What a line says, and the settings with which it stands there, beside others without.
TABLE = [
    ("train.suboptimality", {**CONVEX, "train": {"suboptimality": True}}, CONVEX),
    (
        "a node does not take part",
        {"privacy": {**DRAWING, "ledger": "ledgers"}},
        {"privacy": DRAWING},
    ),
    (
        "un-noised gradients of state = 'private'",
        {"algorithm": {"name": "privsgp-vr", "state": "private"}},
        {"algorithm": {"name": "privsgp-vr", "state": "public"}},
    ),
    (
        "un-noised gradients of state = 'private'",
        {"algorithm": {"name": "soteriafl-svrg", "state": "private"}},
        {"algorithm": {"name": "soteriafl-svrg"}},
    ),
    (
        "un-noised gradients of state = 'private'",
        {"algorithm": {"name": "soteriafl-saga"}},
        {"algorithm": {"name": "dp-sgd"}},
    ),
    (
        "each client's own model",
        {"algorithm": {"name": "fedspd-dp"}},
        {"algorithm": {"name": "dp-fedavg"}},
    ),
    (
        "augmented Lagrangian",
        {"algorithm": {"name": "fedspd-dp"}},
        {"algorithm": {"name": "dp-fedavg"}},
    ),
]


# What a line calls each key that is measured on private records.
MEASURED = {
    "train_loss": "training loss",
    "gradient_norm": "gradient norms",
    "clip_rate": "share of clipped records",
    "records_left_out": "number of records left out",
    "augmented_lagrangian": "augmented Lagrangian",
    "suboptimality": "train.suboptimality",
}


def test_every_key_that_is_measured_on_private_records_is_named():
    sections = {"algorithm": {"name": "fedspd-dp"}}
    config = load_config(experiment(**sections))
    train = config.train.model_copy(update={"suboptimality": True})
    (line, *_) = not_covered(config.model_copy(update={"train": train}), RECORD)
    assert "measured on private records" in line
    assert set(MEASURED) == set(PrivateMeasurement.model_fields) - {"step"}
    assert all(words in line for words in MEASURED.values())


def lines(sections):
    return not_covered(load_config(experiment(**sections)), RECORD)


@pytest.mark.parametrize(("words", "having", "lacking"), TABLE)
def test_a_line_stands_there_where_the_settings_ask_for_it(words, having, lacking):
    assert sum(words in line for line in lines(having)) == 1
    assert not any(words in line for line in lines(lacking))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_never_is_covered_stands_there_for_every_method(name):
    config = load_config({"task": {"dataset": "digits"}, "algorithm": {"name": name}})
    said = " | ".join(not_covered(config, RECORD))
    assert all(words in said for words in ALWAYS)


def test_records_that_were_held_out_and_declared_public_stand_there():
    config = load_config(experiment())
    task = config.task.model_copy(update={"test_share": 0.2})
    with_share = config.model_copy(update={"task": task})
    added = set(not_covered(with_share, RECORD)) - set(not_covered(config, RECORD))
    assert len(added) == 1
    assert "share of 0.2" in added.pop()
