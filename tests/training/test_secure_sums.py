"""Secure sums in a run: what is planned, what is refused, and that runs do what is planned."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from algorithms.battery_table import rate
from experiments import tacit as command
from planning_cases import DELTA, STEPS, epsilons, gaussian_delta, plan_of
from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit.procedure import audit_job
from tacit.config import load_config
from tacit.errors import BudgetError, InputError, LeakError
from tacit.privacy.noise.gaussian import spacing
from tacit.training.budget import epsilon_by_colluders, node_keys
from tacit.training.prepare import prepare
from tacit.training.processes.communication import local_exchange
from tacit.training.run_folder.result import bytes_per_step
from tacit.training.shared_noise import SecureSums
from tacit.training.stacked_context import StackedContext

METHODS = ["dp-sgd", "dp-fedavg"]


def planned(records, *, name="dp-sgd", **settings):
    """A plan with secure sums, unless said otherwise."""
    algorithm = {"name": name, **settings.pop("algorithm", {})}
    chosen = {"epsilon": 2.0, "aggregation": "secure-sum", **settings}
    if chosen.get("noise_std") is not None:
        del chosen["epsilon"]
    return plan_of(records, algorithm=algorithm, topology={"graph": "star"}, **chosen)


# What is planned.


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("colluding", [0, 1, 3])
def test_the_noise_in_the_mean_falls_by_the_root_of_the_honest(name, colluding):
    plan = planned([50] * 9, name=name, colluding=colluding)
    alone = planned([50] * 9, name=name, aggregation="clear")
    for node, other in zip(plan.nodes, alone.nodes, strict=True):
        less = alone.release.own_multiplier(other, 0) / plan.release.own_multiplier(node, 0)
        assert less == pytest.approx(math.sqrt(9 - colluding), rel=1e-4)
        counted = plan.release.noise_multiplier(node, 0)
        assert counted == pytest.approx(alone.release.noise_multiplier(other, 0), rel=1e-4)
        most = plan.release.own_multiplier(node, 0) * math.sqrt(9 - colluding)
        assert counted < most  # a millionth of it pays for rounding
    assert max(epsilons(plan)) <= 2.0
    assert (plan.release.trust_model, alone.release.trust_model) == ("secure-sum", "server")
    statement = plan.release.mechanism(plan.nodes[0])
    assert statement.trust_model == f"secure-sum, {colluding} colluding"
    assert statement.released_values() == STEPS * 10 * 9  # draws of all: any may be imperfect


def test_epsilon_is_that_of_one_gaussian_with_the_noise_of_the_honest():
    """Closed form: batches of everything, sensitivity C, sqrt(STEPS) over the joint multiplier."""
    records, budgets = [30, 80, 50, 120, 64], (2.0, 3.0, 1.0, 8.0, 2.0)
    plan = planned(records, epsilon=budgets, colluding=2)
    in_means = {plan.release.noise_std(n, 0) / n.divisor for n in plan.nodes}
    assert max(in_means) / min(in_means) - 1 < 1e-14
    mean = max(in_means)
    for node, budget in zip(plan.nodes, budgets, strict=True):
        moved = 1 / node.divisor  # C = 1
        mu = moved * math.sqrt(STEPS) / (mean * math.sqrt(5 - 2))
        assert node.epsilon is not None
        assert gaussian_delta(mu, node.epsilon) == pytest.approx(DELTA, rel=1e-3)
        assert node.epsilon <= budget * (1 + 1e-9)
    tight = [n.epsilon / b for n, b in zip(plan.nodes, budgets, strict=True) if n.epsilon]
    assert max(tight) > 0.999  # the strictest budget decides, and no more noise than that


def test_rounds_in_which_few_take_part_count_for_less():
    down = [(node, 0, 2) for node in range(4)]
    plan = planned([40] * 6, colluding=1, faults={"down": down})
    sums = plan.release.sums
    assert sums is not None
    assert sums.participants.tolist() == [2, 2, 6, 6, 6, 6]
    gains = [sums.gain(5, k) for k in range(STEPS)]
    assert gains == pytest.approx([1, 1] + [math.sqrt(5)] * 4, rel=1e-5)
    # Node 5 takes part in two rounds that hide less; all have the noise that it needs.
    own = plan.release.own_multiplier(plan.nodes[5], 0)
    mu = math.sqrt(2 / own**2 + 4 / (5 * own**2))
    assert plan.nodes[5].epsilon is not None
    assert gaussian_delta(mu, plan.nodes[5].epsilon) == pytest.approx(DELTA, rel=1e-3)
    assert plan.nodes[0].epsilon is not None
    assert plan.nodes[0].epsilon < plan.nodes[5].epsilon <= 2.0


def test_clients_per_round_are_those_of_a_sum():
    plan = planned([40] * 10, colluding=1, algorithm={"clients_per_round": 4})
    sums = plan.release.sums
    assert sums is not None
    assert sums.most == 4
    assert sums.gain(0, 0) == pytest.approx(math.sqrt(3), rel=1e-5)


def test_epsilon_is_told_for_every_number_of_colluders():
    plan = planned([40] * 6, colluding=1)
    table = epsilon_by_colluders(plan)
    assert len(table) == 3
    assert table[1] == tuple(epsilons(plan))
    own = plan.release.own_multiplier(plan.nodes[0], 0)
    for colluding, row in enumerate(table):
        mu = math.sqrt(STEPS / (own**2 * (6 - colluding)))
        assert row[0] is not None
        assert gaussian_delta(mu, row[0]) == pytest.approx(DELTA, rel=1e-3)
    nobody = plan.release.against(6)
    assert nobody.noise_multiplier(plan.nodes[0], 0) == pytest.approx(own, rel=1e-5)


def test_a_given_noise_is_the_least_of_all_and_keeps_every_budget_or_is_refused():
    plan = planned([30, 60], noise_std=0.7, colluding=0)
    stds = [plan.release.noise_std(node, 3) / node.divisor for node in plan.nodes]
    # By records, node 1 counts 60 / 45 times, and with it its noise: that of the sum for all.
    assert stds == pytest.approx([0.7 * 60 / 45] * 2, rel=1e-14)
    with pytest.raises(BudgetError, match=r"privacy.noise_std = 0.001 costs epsilon"):
        plan_of(
            [30, 60],
            algorithm={"name": "dp-sgd"},
            topology={"graph": "star"},
            aggregation="secure-sum",
            noise_std=0.001,
            epsilon=1.0,
        )


def test_no_round_alone_costs_more_than_is_given_for_one():
    plan = planned([40, 70, 40], epsilon=None, epsilon_per_round=0.5, faults={"down": [(0, 0, 2)]})
    for node in plan.nodes:
        active = plan.release.active_steps(node)
        alone = [plan.release.epsilon(node, [(step, step + 1)]) for step in active]
        assert max(one for one in alone if one is not None) <= 0.5
    costs = [plan.release.epsilon(node, [(0, 1)]) or 0.0 for node in plan.nodes]
    assert max(costs) > 0.49  # of the first rounds, in which but two take part


@given(
    batch=st.sampled_from([3, 7, 60, 999]),
    records=st.integers(1, 2**20),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=50, deadline=None)
def test_dividing_by_the_batch_moves_a_record_by_less_than_is_paid_for(batch, records, seed):
    """Sums of up to J clipped gradients, C = 1, one of them with another record; exact norms."""
    draw = np.random.default_rng(seed)
    sums = draw.normal(size=64)
    sums *= records / np.linalg.norm(sums)
    step = draw.normal(size=64)
    other = sums + step / np.linalg.norm(step)
    pairs = list(zip(sums.tolist(), other.tolist(), strict=True))
    exact = math.fsum(float((Fraction(a) - Fraction(b)) ** 2) for a, b in pairs)
    quotients = [(Fraction(a / batch), Fraction(b / batch)) for a, b in pairs]
    moved = math.fsum(float((a - b) ** 2) for a, b in quotients)
    gained = math.sqrt(moved) * batch / math.sqrt(exact)
    assert gained <= 1 + records * 2.0**-50
    assert gained * SecureSums(4, 0).gain(0, 0) < math.sqrt(4)


def test_default_note_and_bytes():
    plan = planned([40] * 5)
    assert plan.config.privacy.colluding == 1
    assert bytes_per_step(plan, 10, 4).tolist() == [80.0] * 5
    assert bytes_per_step(planned([40] * 5, aggregation="clear"), 10, 4).tolist() == [40.0] * 5
    told = "it and 1 colluding client, whichever they are, a client's own noise counts 2 times"
    (note,) = (note for note in plan.notes if told in note)
    assert "the server is that of rank 0, whose own clients are among those that collude" in note
    # The server between processes is one of the five, so that with one other node it is two.
    first, second = plan.release.sums.gain(0, 0), plan.release.sums.against(2).gain(0, 0)
    assert (first, second) == (pytest.approx(2.0, rel=1e-5), pytest.approx(3**0.5, rel=1e-5))


# What is refused.


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("privsgp", "has no server: each neighbour sees messages"),
        ("fedavg", "adds no noise"),
        ("dp-admm", "goes on at each client from what that client alone has sent"),
        ("fedspd-dp", "goes on at each client from what that client alone has sent"),
        ("soteriafl-svrg", "compresses each client's message by itself"),
        ("soteriafl-saga", "compresses each client's message by itself"),
    ],
)
def test_methods_that_need_more_than_sums_are_refused(name, reason):
    with pytest.raises(InputError, match=f"does not go with {name}, which {reason}") as caught:
        load_config(
            {"algorithm": {"name": name}, "privacy": {"aggregation": "secure-sum"}}, count=4
        )
    assert caught.value.where == "privacy.aggregation"


def test_every_method_with_a_server_says_whether_sums_are_enough():
    enough = {name for name, row in ALGORITHMS.items() if row.releases.no_secure_sum is None}
    assert enough == {
        "dp-sgd",
        "dp-fedavg",
        "fedavg",
        "noised-moments-server",
        "dp-srm",
        "ldp-svrg",
        "ldp-spider",
    }
    assert all(ALGORITHMS[name].graph.weights == "server" for name in enough)


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"privacy": {"epsilon": "none", "aggregation": "secure-sum"}}, "privacy.aggregation"),
        ({"privacy": {"aggregation": "secure-sum", "colluding": 4}}, "privacy.colluding"),
        ({"privacy": {"aggregation": "clear", "colluding": 1}}, "privacy.colluding"),
        ({"privacy": {"aggregation": "secure-sum", "noise": "pairwise"}}, "privacy.noise"),
        ({"faults": {"tolerate": True}}, "faults.tolerate"),
        ({"faults": {"drop": 0.1}}, "faults.drop"),
        ({"faults": {"drop_edges": [(1, 0, 0.5)]}}, "faults.drop_edges"),
    ],
)
def test_what_contradicts_secure_sums_is_refused(sections, where):
    given = {"privacy": {"aggregation": "secure-sum"}, "algorithm": {"name": "dp-sgd"}, **sections}
    with pytest.raises(InputError) as caught:
        load_config(given, count=4)
    assert caught.value.where == where


def test_sums_that_might_not_fit_are_refused_before_anything_runs():
    # A value may be 2 C / q, with q = 1 / 400, and is counted in steps of about a / 100.
    clipped = {"algorithm": {"clip": 1.0}, "accounting": "none", "train": {"batch": 1}}
    with pytest.raises(InputError, match="counts values in steps of about 1/100 of their noise"):
        planned([400] * 3, noise_std=1e-12, **clipped)
    with pytest.raises(InputError, match=r"algorithm\.clip = None"):
        planned([400] * 3, noise_std=1.0, accounting="none")


# What runs.


def job_of(name, *, dtype="float32", records=(6, 9, 5, 12), **more):
    draw = torch.Generator().manual_seed(11)
    kind = getattr(torch, dtype)
    nodes = [
        (torch.randn(n, 3, generator=draw).to(kind), torch.randn(n, 1, generator=draw).to(kind))
        for n in records
    ]
    algorithm = {"name": name, **rate(name, 0.3), "clip": 0.8, **more.pop("algorithm", {})}
    privacy = {"epsilon": 4.0, "delta": 1e-2, "noise_seed": 5, "aggregation": "secure-sum"}
    train = {"steps": 4, "batch": 4, "dtype": dtype, **more.pop("train", {})}
    config = {
        "task": {"loss": "mse", "model": "linear"},
        "algorithm": algorithm,
        "privacy": {**privacy, **more.pop("privacy", {})},
        "train": train,
        **more,
    }
    return prepare(load_config(config, count=len(records)), nodes=nodes)


def models(job):
    """The server's model after every step."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    context = StackedContext(
        job.plan, job.model, job.train, node_keys(job.plan), local_exchange(job)
    )
    state = algorithm.start(job.model.start(4, job.dtype, job.device), options, context)
    after = []
    for k in range(job.plan.steps):
        state = algorithm.step(state, k, options, context)
        after.append(state.x.clone())
    return after


@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("name", METHODS)
def test_with_the_same_own_noise_a_sum_is_the_mean_of_messages_up_to_the_lattice(name, batch):
    """The draws are the same, and the lattice too where no batch of three divides a message."""
    found = []
    for aggregation in ("secure-sum", "clear"):
        given = {"epsilon": None, "noise_std": 0.4, "accounting": "none"}
        privacy = {**given, "aggregation": aggregation}
        train = {"steps": 1, "batch": batch}
        weights = {"weights": "equal"}  # others would have more noise than is given
        job = job_of(name, dtype="float64", privacy=privacy, train=train, nodes=weights)
        found.append(models(job)[0])
    difference = float((found[0] - found[1]).abs().max())
    if name == "dp-sgd" and batch == 3:
        assert 0 < difference <= 0.3 * 1.5 * spacing(0.4)  # half a point each, of two lattices
    else:
        assert difference < 1e-15
    assert float(found[0].abs().max()) > 5 * spacing(0.4)


@pytest.mark.parametrize("name", METHODS)
def test_what_colluders_cannot_subtract_is_the_noise_that_is_certified(name):
    """From the plan to the integers: two of six pool their noise, and look at the sum."""
    job = job_of(name, records=(6, 9, 5, 12, 8, 7), privacy={"colluding": 2})
    plan = job.plan
    keys, exchange = node_keys(plan), local_exchange(job)
    context = StackedContext(plan, job.model, job.train, keys, exchange)
    summand = context.summand(torch.zeros(6, 30_000, dtype=torch.float64), 1)
    seen = exchange.secure_sum(1, summand).double()
    left = seen - summand.value[[1, 4]].sum(0)  # what two clients know of it
    unit = spacing(plan.release.noise_std(plan.nodes[0], 1) / plan.nodes[0].divisor)
    for node in plan.nodes:
        bound = plan.release.clip.bound(1)
        assert bound is not None
        certified = plan.release.noise_multiplier(node, 1) * bound / node.divisor
        # 1 standard error of the deviation is 0.4 %; rounding to the lattice is not counted on.
        assert float(left.std()) * unit == pytest.approx(certified, rel=0.02)
        assert float((left - summand.value[0]).std()) * unit < 0.9 * certified  # one more of them
    mean = context.mean_of_sum(exchange.secure_sum(1, summand), 1)
    torch.testing.assert_close(mean, (seen * unit / 6).float())


def test_noise_of_one_client_is_released_in_no_other_way():
    job = job_of("dp-sgd")
    context = StackedContext(
        job.plan, job.model, job.train, node_keys(job.plan), local_exchange(job)
    )
    assert context.only_sums
    with pytest.raises(LeakError, match="too little for a single message"):
        context.add_noise(torch.zeros(4, 4), 0)
    with pytest.raises(LeakError, match="not within the bound of the plan"):
        context.summand(torch.full((4, 4), 1e9, dtype=torch.float64), 0)
    with pytest.raises(LeakError, match="not within the bound of the plan"):
        context.summand(torch.full((4, 4), math.nan, dtype=torch.float64), 0)
    values = torch.full((4, 4), 0.01, dtype=torch.float64)
    assert context.summand(values, 0).value.dtype == torch.int64


def test_audits_say_that_they_attack_noised_values():
    with pytest.raises(InputError, match="no noised value of one client to an observer") as caught:
        audit_job(job_of("dp-sgd"))
    assert caught.value.where == "privacy.aggregation"


def test_processes_whose_lattices_differ_are_told_apart():
    from tacit.training.processes.agreement import planned as agreed

    plan = planned([40] * 4)
    more = [replace(node, noise_scale=2 * node.noise_scale) for node in plan.nodes]
    assert agreed(plan)["plan noise"] != agreed(replace(plan, nodes=tuple(more)))["plan noise"]


def test_a_client_without_records_is_no_participant_and_its_statement_says_so(tmp_path):
    """What is stated of a run is recomputed from its ledger alone, that client's too."""
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
    parts = [
        (inputs[a:b], (inputs[a:b, 0] > 0).long()) for a, b in ((0, 0), (0, 4), (4, 9), (9, 12))
    ]
    raw = {
        "task": {"model": "logistic", "outputs": 2},
        "nodes": {"without_records": [0]},
        "algorithm": {"name": "dp-sgd"},
        "privacy": {"epsilon": 2.0, "delta": DELTA, "aggregation": "secure-sum"},
        "train": {"steps": 3, "batch": "all"},
    }
    result = tacit.train(raw, nodes=parts, out=tmp_path / "run")
    assert result.epsilon is not None
    assert result.epsilon[0] == 0.0
    sums = result.plan.release.sums
    assert sums is not None
    assert sums.participants.tolist() == [3, 3, 3]
    assert command("privacy", "statement", tmp_path / "run").code == 0
    checked = command("privacy", "check", tmp_path / "run" / "statement.json")
    assert "every epsilon in it is confirmed" in checked.out
