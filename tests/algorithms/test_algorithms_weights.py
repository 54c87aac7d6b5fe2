"""What `nodes.weights` does to every algorithm: whose records count, and what that costs.

How much a node counts is seen against a run of one node that has all records, where those of node
i occur c_i times: p_i is then proportional to c_i J_i.
"""

import math

import numpy as np
import pytest
import torch
from battery_experiments import DELTA, active, clipped_schedules, experiment, single_step
from battery_table import NOISED, ROWS, Seen

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.noise.gaussian import spacing
from tacit.training.prepare import prepare

Nodes = list[tuple[torch.Tensor, torch.Tensor]]

SIZES = (6, 2, 9, 3)
COPIES = (1, 6, 1, 2)
WEIGHTS = [float(copies * size) for copies, size in zip(COPIES, SIZES, strict=True)]
EXACT = {"epsilon": "none"}
UNWEIGHED = {"dpdo", "dp-admm", "ddp-admm-gradient", "dp-madmm-gradient", "dp-radmm-gradient"}
UNWEIGHED |= {"dpdl"}  # which weighs gradients by how alike they are
UNWEIGHED |= {"fedspd-dp"}  # whose proved sensitivity is of losses as they are
WEIGHED = [case for case, row in ROWS.items() if row.name not in UNWEIGHED]
PAIRWISE = [
    case
    for case in WEIGHED
    if case in NOISED
    and ROWS[case].pooled  # in a first step of adp2-sgd one node is active, without a partner
    and ALGORITHMS[ROWS[case].name].releases.no_pairwise is None
    and ALGORITHMS[ROWS[case].name].graph.weights != "server"
]
SUMS = [
    case
    for case in WEIGHED
    if case in NOISED and ALGORITHMS[ROWS[case].name].releases.no_secure_sum is None
]


def in_turn(cases):
    """The weights of the default, and others, each for every other case."""
    return [
        pytest.param(
            case, (None, WEIGHTS)[number % 2], id=f"{case}-{('records', 'numbers')[number % 2]}"
        )
        for number, case in enumerate(cases)
    ]


def regression(sizes):
    """Records of nodes that disagree, with two inputs each."""
    draw = torch.Generator().manual_seed(4)
    made = []
    for node, count in enumerate(sizes):
        inputs = torch.randn(count, 2, generator=draw, dtype=torch.float64)
        away = (1.0, -1.0, -1.0, 1.0)[node % 4]
        made.append((inputs, torch.randn(count, 1, generator=draw, dtype=torch.float64) + away))
    return made


def together(data, copies):
    """All records as one node's, those of each node so many times."""
    inputs, targets = (
        torch.cat([part.repeat(count, 1) for part, count in zip(parts, copies, strict=True)])
        for parts in zip(*data, strict=True)
    )
    return inputs, targets


def optimum(data, weights):
    """The weighted normal equations of the nodes' mean squared errors."""
    square, right = torch.zeros(3, 3).double(), torch.zeros(3).double()
    for (inputs, targets), weight in zip(data, weights, strict=True):
        rows = torch.column_stack([inputs, torch.ones(len(inputs))])
        square += weight * rows.T @ rows / len(rows)
        right += weight * rows.T @ targets[:, 0] / len(rows)
    return torch.linalg.solve(square, right)


def train(case, data, weights=None, **settings):
    """A linear regression; without noise if nothing else is said."""
    chosen = {"privacy": EXACT, **settings}
    config = experiment(case, loss="mse", model="linear", **chosen)
    empty = [node for node, (inputs, _) in enumerate(data) if not len(inputs)]
    config["nodes"] = {"without_records": empty or None}
    if weights is not None:
        config["nodes"]["weights"] = weights
    return tacit.train(config, nodes=data)


def noise(**more):
    return {"noise_std": 0.2, "accounting": "none", "noise_seed": 5, **more}


def test_all_methods_have_weights_but_those_of_one_penalty_and_of_falling_steps():
    assert {
        name for name, row in ALGORITHMS.items() if row.participation.no_weights is not None
    } == UNWEIGHED


@pytest.mark.parametrize("case", ROWS)
def test_nodes_of_one_size_count_alike_to_the_last_bit(case):
    row, data = ROWS[case], regression((5, 5, 5, 5))
    settings = {"steps": row.moved, "options": row.resumed, "privacy": noise()}
    equal, default = (train(case, data, weights, **settings) for weights in ("equal", None))
    assert torch.equal(default.parameters, equal.parameters)
    assert torch.equal(default.consensus, equal.consensus)
    why = ALGORITHMS[row.name].participation.no_weights
    if case not in WEIGHED:
        for weights in ("records", "noise", [1.0, 1.0, 1.0, 1.0]):
            with pytest.raises(
                InputError, match=f"{row.name}, which {why}: use 'equal'"
            ) as refused:
                train(case, data, weights, **settings)
            assert refused.value.where == "nodes.weights"
        return
    records, other = (train(case, data, weights, **settings) for weights in ("records", WEIGHTS))
    assert torch.equal(records.parameters, equal.parameters)
    assert torch.equal(records.consensus, equal.consensus)
    assert float((other.consensus - equal.consensus).norm()) > 1e-3


@pytest.mark.parametrize("case", WEIGHED)
def test_numbers_of_records_are_the_weights_of_the_default(case):
    row, data = ROWS[case], regression(SIZES)
    settings = {"steps": row.moved, "options": row.resumed, "privacy": noise()}
    default, named, given, equal = (
        train(case, data, weights, **settings)
        for weights in (None, "records", [size / 7 for size in SIZES], "equal")
    )
    assert torch.equal(default.parameters, named.parameters)
    torch.testing.assert_close(given.parameters, named.parameters, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(given.consensus, named.consensus, rtol=1e-11, atol=1e-12)
    assert float((equal.consensus - named.consensus).norm()) > 1e-3


@pytest.mark.parametrize("case", [case for case in NOISED if case in WEIGHED])
def test_weights_change_what_is_trained_and_not_what_it_costs(case):
    """A public factor of what is noised already."""
    row, data = ROWS[case], regression(SIZES)
    privacy = {"epsilon": [0.5, 1.0, 2.0, 3.0], "delta": DELTA, "noise_seed": 1}
    options = clipped_schedules(case, row.moved, 1.0)
    runs = [
        train(case, data, weights, steps=row.moved, options=options, privacy=privacy)
        for weights in ("records", "equal", [0.1, 1.0, 100.0, 7.0])
    ]
    epsilons, scales = (
        {tuple(getattr(node, of) for node in run.plan.nodes) for run in runs}
        for of in ("epsilon", "noise_scale")
    )
    assert len(epsilons) == len(scales) == 1
    assert {run.epsilon for run in runs} == epsilons
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert float((runs[one].consensus - runs[other].consensus).norm()) > 1e-3


@pytest.mark.parametrize(("case", "weights"), in_turn(case for case in NOISED if case in WEIGHED))
def test_what_a_node_adds_is_n_p_i_times_its_noised_mean(case, weights):
    """The deviation that is planned for its own mean is that before the weight."""
    options = {"learning_rate": 1.0, **clipped_schedules(case, 3, 0.5)}
    config = experiment(case, loss="mse", model="linear", options=options, privacy=noise())
    jobs = []
    for given in (weights, "equal"):
        config["nodes"] = {} if given is None else {"weights": given}
        jobs.append(prepare(load_config(config, count=4), nodes=regression(SIZES)))
    shares = np.array(weights or SIZES) * np.any([active(jobs[0], k) for k in range(3)], axis=0)
    counted = np.count_nonzero(shares) * shares / shares.sum()
    stds = [[job.plan.release.noise_std(node, 0) for node in job.plan.nodes] for job in jobs]
    assert stds[0] == stds[1]
    for k in range(3):
        weighed, alone = (
            NOISED[case].noise(Seen(k, state, messages)) * active(job, k)[:, None]
            for job in jobs
            for _, state, messages in [single_step(job, k)]
        )
        assert k or np.abs(alone).max() > 0.1
        np.testing.assert_allclose(weighed, counted[:, None] * alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("case", "weights"), in_turn(case for case in WEIGHED if ROWS[case].pooled)
)
def test_a_step_is_that_of_one_node_with_all_records(case, weights):
    copies = (1, 1, 1, 1) if weights is None else COPIES
    data, options = regression(SIZES), {**ROWS[case].smooth, **ROWS[case].one_step}
    many, one, equal = (
        train(case, nodes, given, steps=1, options=options).consensus
        for nodes, given in ((data, weights), ([together(data, copies)], None), (data, "equal"))
    )
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-12)
    assert float((equal - one).norm()) > 1e-3


DIRECTED = "0 1\n0 2\n1 2\n2 0\n2 3\n3 0\n"
DESCENTS = {
    "dp-dda": {"learning_rate": 1.0},  # it falls by a schedule of its own
    "adp2-sgd": {"learning_rate": 0.1, "speed_spread": 0.0},  # those who are fast count for more
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "directed"),
    [
        (case, directed)
        for directed in (False, True)
        for case in WEIGHED
        if ROWS[case].trains
        and (not directed or ALGORITHMS[ROWS[case].name].graph.weights == "column-stochastic")
    ],
)
def test_what_is_trained_is_the_minimiser_of_the_weighted_losses(case, directed, tmp_path):
    """By default of all records, wherever they are; and far nearer to it than if all were alike.

    Rows and graphs have the weights of the default and others in turn: a step with either is
    compared above. In the limit of small steps: a rate falls while models of different nodes are
    still apart.
    """
    data, graph, falling = regression(SIZES), "ring", {"learning_rate_schedule": "cosine"}
    if directed:
        (tmp_path / "graph.txt").write_text(DIRECTED)
        graph = f"file:{tmp_path / 'graph.txt'}"
    options = {**({} if case == "dp-dda" else falling), **ROWS[case].quadratic}
    options |= DESCENTS.get(case, {})
    unweighed = optimum(data, [1.0] * 4)
    if (WEIGHED.index(case) + directed) % 2:
        weights, best = WEIGHTS, optimum(data, WEIGHTS)
    else:
        inputs, targets = together(data, (1, 1, 1, 1))
        columns = torch.column_stack([inputs, torch.ones(20)])
        weights, best = None, torch.linalg.lstsq(columns, targets)[0][:, 0]
    found = train(case, data, weights, steps=300, graph=graph, options=options).consensus
    assert float((found - best).norm()) < 0.4 * float((unweighed - best).norm())


# Noise that nodes share.


@pytest.mark.parametrize(("case", "weights"), in_turn(PAIRWISE))
def test_noise_of_pairs_cancels_in_what_is_weighed(case, weights):
    """After a step on a ring models differ by it, and their mean does by less than the lattice."""
    data = regression(SIZES)
    own, pairs = (
        train(case, data, weights, steps=1, graph="ring", privacy=noise(**more))
        for more in ({}, {"noise": "pairwise", "pair_noise": 3.0})
    )
    assert pairs.plan.release.pairs is not None
    assert float((own.parameters - pairs.parameters).norm()) > 1e-2
    length = 0.1 if ROWS[case].trains else 1.0
    point = length * max(node.weight for node in pairs.plan.nodes) * spacing(0.2)
    apart = (own.parameters.mean(dim=0) - pairs.parameters.mean(dim=0)).abs()
    assert float(apart.max()) <= point


@pytest.mark.parametrize(("case", "weights"), in_turn(SUMS))
def test_a_secure_sum_is_weighed(case, weights):
    """With next to no noise, it is the step of one node with all records."""
    copies = (1, 1, 1, 1) if weights is None else COPIES
    data, settings = regression(SIZES), {"steps": 1}
    options = {**ROWS[case].one_step, "clip": 50.0 if ROWS[case].trains else 1.0}
    tiny = noise(noise_std=1e-7, aggregation="secure-sum", colluding=1)
    found = train(case, data, weights, options=options, privacy=tiny, **settings)
    right = train(case, [together(data, copies)], options=options, **settings)
    torch.testing.assert_close(found.consensus, right.consensus, rtol=0, atol=2e-5)
    equal = train(case, data, "equal", options=options, **settings)
    assert float((equal.consensus - right.consensus).norm()) > 1e-3
    plan = found.plan
    in_sum = [plan.release.noise_std(node, 0) / node.divisor for node in plan.nodes]
    assert in_sum == pytest.approx(in_sum[:1] * 4, rel=1e-12)


# Nodes without records.

KEEPS_TABLES = {case for case, row in ROWS.items() if row.options.get("state") == "private"}
NEEDS_ALL = {*UNWEIGHED, "soteriafl-saga", "soteriafl-svrg"}
MAY_BE_EMPTY = [
    case for case in ROWS if ROWS[case].name not in NEEDS_ALL and case not in KEEPS_TABLES
]
EMPTY_AT = [(0,), (1, 3)]


@pytest.mark.parametrize("case", ROWS)
def test_which_methods_take_nodes_without_records(case):
    if case in MAY_BE_EMPTY:
        assert train(case, regression((5, 0, 5)), steps=1).plan.nodes[1].records == 0
        return
    with pytest.raises(InputError, match=f"does not go with {ROWS[case].name}, which ") as refused:
        train(case, regression((5, 0, 5)), steps=1)
    assert refused.value.where == "nodes.without_records"


@pytest.mark.parametrize(
    ("case", "weights", "empty"),
    [
        (case, weights, EMPTY_AT[(row + column) % 2])
        for row, case in enumerate(MAY_BE_EMPTY)
        for column, weights in enumerate(("records", "equal", "noise"))
        if ROWS[case].pooled
    ],
)
def test_nodes_without_records_change_nothing_of_the_step_of_all(case, weights, empty):
    """Where all that have records are of one size, each kind of weight is that of the records."""
    data = regression([0 if node in empty else 4 for node in range(4)])
    options = {**ROWS[case].smooth, **ROWS[case].one_step}
    run = train(case, data, weights, steps=1, options=options)
    one = train(case, [together(data, (1, 1, 1, 1))], steps=1, options=options)
    torch.testing.assert_close(run.consensus, one.consensus, rtol=1e-11, atol=1e-12)
    assert [node.weight for node in run.plan.nodes if node.records == 0] == [0.0] * len(empty)


@pytest.mark.parametrize("empty", EMPTY_AT, ids=str)
@pytest.mark.parametrize("case", [case for case in NOISED if case in MAY_BE_EMPTY])
def test_a_node_without_records_adds_no_noise_and_costs_the_others_nothing(case, empty):
    data = regression([0 if node in empty else size for node, size in enumerate(SIZES)])
    options = {"learning_rate": 1.0, **clipped_schedules(case, 3, 0.5)}
    privacy = {"epsilon": 3.0, "delta": DELTA, "noise_seed": 1}
    config = experiment(case, loss="mse", model="linear", options=options, privacy=privacy)
    config["nodes"] = {"without_records": list(empty)}
    job = prepare(load_config(config, count=4), nodes=data)
    steps = [NOISED[case].noise(Seen(k, *single_step(job, k)[1:])) for k in range(3)]
    seen = [rows for rows in steps if len(rows) == 4]  # a server that has all adds nothing more
    assert all(not rows[list(empty)].any() for rows in seen)
    for node in empty:
        assert (job.plan.nodes[node].epsilon, job.plan.nodes[node].noise_scale) == (0.0, 0.0)
    others = [node for node in range(4) if node not in empty]
    assert any(rows[others].any() for rows in seen)
    if ROWS[case].name == "adp2-sgd":  # who meets whom depends on how many nodes there are
        return
    config["nodes"] = {}
    alone = prepare(load_config(config, count=len(others)), nodes=[data[node] for node in others])
    for node, other in zip(others, alone.plan.nodes, strict=True):
        mine = job.plan.nodes[node]
        assert (mine.epsilon, mine.noise_scale) == (other.epsilon, other.noise_scale)


@pytest.mark.parametrize("case", SUMS)
def test_a_secure_sum_hides_nobody_behind_a_client_without_records(case):
    data, tiny = regression((0, 2, 9, 3)), noise(noise_std=1e-7, aggregation="secure-sum")
    options = {**ROWS[case].one_step, "clip": 50.0 if ROWS[case].trains else 1.0}
    found = train(case, data, steps=1, options=options, privacy=tiny)
    right = train(case, [together(data, (1, 1, 1, 1))], steps=1, options=options)
    torch.testing.assert_close(found.consensus, right.consensus, rtol=0, atol=2e-5)
    sums = found.plan.release.sums
    assert sums is not None
    assert sums.participants[0] == 3


# Mistakes.

NAMED = {"names": ["north", "south", "west"]}


@pytest.mark.parametrize(
    ("nodes", "sections", "told"),
    [
        ({"weights": [1.0, 2.0]}, {}, "needs one number for each of the 3 nodes"),
        ({"weights": [1.0, 2.0, 3.0, 4.0]}, {}, "needs one number for each of the 3 nodes"),
        ({"weights": []}, {}, "positive numbers"),
        ({"weights": [1.0, 0.0, 2.0]}, {}, "positive numbers"),
        ({"weights": [1.0, -1.0, 2.0]}, {}, "positive numbers"),
        ({"weights": [1.0, math.nan, 2.0]}, {}, "positive numbers"),
        ({"weights": [1.0, math.inf, 2.0]}, {}, "positive numbers"),
        ({"weights": [True, 1.0, 2.0]}, {}, "positive numbers"),
        ({"weights": ["1", 1.0, 2.0]}, {}, "positive numbers"),
        ({"weights": [1.0, 1e300, 2.0]}, {}, "positive numbers"),
        ({"weights": [1.0, 1e-7, 2.0]}, {}, "above 1,000,000 times another"),
        ({"weights": 2.0}, {}, "positive numbers"),
        ({"weights": True}, {}, "positive numbers"),
        ({"weights": "size"}, {}, "'records', 'equal', 'noise'"),
        ({**NAMED, "weights": [1.0, 2.0, 3.0]}, {}, "goes to nodes by name"),
        ({**NAMED, "weights": {"north": 1.0, "west": 2.0}}, {}, "lacks south"),
        (
            {**NAMED, "weights": {"north": 1.0, "south": 2.0, "west": 3.0, "east": 4.0}},
            {},
            "is no node's name",
        ),
        (
            {"weights": "noise"},
            {"algorithm": {"name": "privsgp"}, "privacy": {"noise": "pairwise"}},
            "does not go with noise that nodes share",
        ),
        (
            {"weights": "noise"},
            {"algorithm": {"name": "dp-sgd"}, "privacy": {"aggregation": "secure-sum"}},
            "does not go with noise that nodes share",
        ),
    ],
)
def test_mistakes_are_told_by_one_error(nodes, sections, told):
    with pytest.raises(InputError, match=told) as refused:
        load_config({"nodes": {"count": 3, **nodes}, **sections}, count=3)
    assert refused.value.where == "nodes.weights"


@pytest.mark.parametrize(
    ("nodes", "sections", "told"),
    [
        ({"without_records": [3]}, {}, "is none of the 3 nodes"),
        ({"without_records": [-1]}, {}, "0 or more|greater than or equal to 0"),
        ({"without_records": [True]}, {}, "must be"),
        ({"without_records": 1}, {}, "must be"),
        ({"without_records": []}, {}, "must have 1"),
        ({**NAMED, "without_records": ["east"]}, {}, "is none of the 3 nodes"),
        ({"without_records": [0, 1, 2]}, {}, "some node must have records"),
        ({"without_records": [1], "weights": [1.0, 1.0, 1.0]}, {}, "weights that are numbers"),
        (
            {"without_records": [1]},
            {"algorithm": {"name": "privsgp"}, "privacy": {"noise": "pairwise"}},
            "of which both ends of a pair add",
        ),
        (
            {"without_records": [1]},
            {"algorithm": {"name": "privsgp-vr", "state": "private"}},
            "keeps a gradient of each record",
        ),
        (
            {"without_records": [1]},
            {"algorithm": {"name": "dp-sgd"}, "faults": {"tolerate": True}},
            "may be unknown",
        ),
        (
            {"without_records": [1]},
            {"task": {"model": "logistic"}, "train": {"suboptimality": True}},
            "in which it has no part",
        ),
    ],
)
def test_nodes_without_records_that_cannot_be_are_refused(nodes, sections, told):
    with pytest.raises(InputError, match=told) as refused:
        load_config({"nodes": {"count": 3, **nodes}, **sections}, count=3)
    assert refused.value.where == "nodes.without_records"
