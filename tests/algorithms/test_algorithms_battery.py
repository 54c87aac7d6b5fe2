"""What every algorithm of the table must do: a new row is tested by being in it."""

import ast
import functools
import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from battery_experiments import (
    DELTA,
    active,
    clipped_schedules,
    experiment,
    quadratic,
    schedule_options,
    single_step,
)
from battery_table import COSTS, NOISED, ROWS, SPECIAL, TRAINED
from sklearn.datasets import load_digits
from torch import nn

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.run_folder.result import bytes_per_step, message_bytes

SIZES = {"logistic": 64 * 10 + 10, "mlp": 64 * 128 + 128 + 128 * 10 + 10}
EXACT = {"epsilon": "none"}
CENTRAL = [case for case, row in ROWS.items() if row.central is not None]
MEAN = [case for case, row in ROWS.items() if row.mean is not None]
POOLED = [case for case, row in ROWS.items() if row.pooled]


@functools.cache
def all_digits():
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    return images, torch.from_numpy(bunch.target).long()


def digits(*records):
    """Images `[records, 1, 8, 8]` and labels; node 0 sees a nine, so that all classes are known."""
    images, labels = all_digits()
    first = int((labels == 9).nonzero()[0])
    starts = itertools.accumulate(records, initial=first)
    parts = [slice(start, start + count) for start, count in zip(starts, records, strict=False)]
    return [(images[part], labels[part]) for part in parts]


# The table.


def test_every_state_has_a_row():
    for name, row in ALGORITHMS.items():
        if "state" in row.options.model_fields:
            default = row.options.model_fields["state"].default
            run = {
                each.options.get("state", default) for each in ROWS.values() if each.name == name
            }
            allowed = row.options.model_json_schema()["properties"]["state"]
            assert run == set(allowed.get("enum", [allowed.get("const")])), name


@pytest.mark.parametrize("case", ROWS)
def test_a_recursion_is_compared_with_a_loop(case):
    file, _, function = ROWS[case].recursion.partition("::")
    folder = Path(__file__).parent
    source = (folder / file).read_text(encoding="utf-8")
    found = [node for node in ast.parse(source).body if getattr(node, "name", "") == function]
    assert len(found) == 1, ROWS[case].recursion
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    helpers = [path for path in folder.glob("*.py") if path.stem in imported]
    shared = [path.read_text(encoding="utf-8") for path in helpers]
    assert any(f'"{ROWS[case].name}"' in text for text in [source, *shared])


# Runs.


@pytest.mark.parametrize(
    ("case", "model", "dtype"),
    [
        (case, model, ("float32", "float64")[(row + column) % 2])
        for row, case in enumerate(TRAINED)
        for column, model in enumerate(("logistic", "mlp", "cnn"))
    ],
)
def test_trains_each_model_in_one_dtype_or_the_other(case, model, dtype):
    steps = ROWS[case].moved
    options = schedule_options(case, steps)
    config = experiment(case, model=model, dtype=dtype, steps=steps, options=options)
    job = prepare(load_config(config, count=4), nodes=digits(5, 5, 5, 5))
    result = execute(job)
    assert result.parameters.dtype == getattr(torch, dtype)
    assert bool(torch.isfinite(result.parameters).all())
    size = sum(weight.numel() for weight in result.model(0).parameters())
    assert result.parameters.shape == (4, size)
    assert result.consensus.shape == (size,)
    assert size == SIZES.get(model, size)
    assert result.steps == steps
    start = job.model.start(4, job.dtype, job.device)
    assert bool((result.parameters - start).norm(dim=1).gt(1e-3).all())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ROWS)
def test_a_step_keeps_shapes_and_types(case, dtype):
    options = {**clipped_schedules(case, 3, 1.0), **ROWS[case].resumed}
    config = experiment(case, dtype=dtype, batch=2, options=options, privacy=given_noise(5))
    job = prepare(load_config(config, count=3), nodes=digits(5, 4, 6))
    before, after, _ = single_step(job, 1)
    assert type(before) is type(after)
    for name, old, new in zip(before._fields, before, after, strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype), name
        shared = ALGORITHMS[ROWS[case].name].setting == "federated" and len(old) == 1
        assert shared or len(old) == 3
        # What no message holds as it is may be kept in more digits than the run has.
        assert old.dtype in (getattr(torch, dtype), torch.float64)
        if name in ("message", "server", "w", "z"):
            assert old.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("case", NOISED)
def test_single_and_double_precision_agree(case):
    single, double = (
        tacit.train(
            experiment(case, dtype=dtype, options=ROWS[case].smooth), nodes=digits(5, 5, 5, 5)
        ).parameters
        for dtype in ("float32", "float64")
    )
    # Sums that are clipped for another dtype's rounding may fall to the next lattice point.
    apart = (single.double() - double).abs()
    assert float((apart > 1e-5 + 1e-4 * double.abs()).double().mean()) < 2e-3
    assert float(apart.max()) < 1e-3


def given_noise(seed):
    return {"noise_std": 0.2, "accounting": "none", "noise_seed": seed}


@pytest.mark.parametrize("batch", ["all", 2], ids=["whole", "sampled"])
@pytest.mark.parametrize("case", ROWS)
def test_a_noise_seed_repeats_the_run(case, batch):
    config = experiment(case, batch=batch, privacy=given_noise(5))
    first, second = (tacit.train(config, nodes=digits(5, 5, 5, 5)) for _ in range(2))
    assert torch.equal(first.parameters, second.parameters)
    assert torch.equal(first.consensus, second.consensus)
    assert not first.private


@pytest.mark.parametrize("case", NOISED)
def test_seeds_and_secret_keys_give_different_noise(case):
    common = {"epsilon": 3.0, "delta": DELTA}
    settings = [{**common, "noise_seed": 1}, {**common, "noise_seed": 2}, common, common]
    steps = ROWS[case].moved
    runs = [
        tacit.train(experiment(case, steps=steps, privacy=each), nodes=digits(5, 5, 5))
        for each in settings
    ]
    for one, other in itertools.combinations(runs, 2):
        assert bool((one.parameters != other.parameters).any(1).all())
    assert [run.private for run in runs] == [False, False, True, True]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("records", [1, 4])
@pytest.mark.parametrize("case", ROWS)
def test_few_nodes_and_few_records(case, nodes, records):
    result = tacit.train(experiment(case, steps=4, batch=1), nodes=digits(*[records] * nodes))
    assert result.parameters.shape == (nodes, result.plan.parameters)
    assert (result.plan.parameters == SIZES["logistic"]) == ROWS[case].trains
    assert bool(torch.isfinite(result.parameters).all())
    assert all(node.rate == 1 / records for node in result.plan.nodes)
    alone = nodes == 1 and ALGORITHMS[ROWS[case].name].setting == "peer-to-peer"
    assert result.bytes_sent == (0,) if alone else min(result.bytes_sent) > 0


@pytest.mark.parametrize("case", ROWS)
def test_the_plan_says_what_a_step_sends(case):
    """Also where only some nodes take part: those of a graph may go on mixing without them."""
    options = {**schedule_options(case, 6), **ROWS[case].resumed}
    result = tacit.train(experiment(case, steps=6, options=options), nodes=digits(5, 5, 5, 5))
    plan, chosen = result.plan, result.plan.config.algorithm
    per_step = bytes_per_step(plan, message_bytes(plan, 8) / 8, 8)
    final = chosen.definition.graph.final_rounds(chosen.options) * plan.mixing.out_degrees(0)[0]
    last = final * chosen.definition.graph.message_numbers(chosen.options, plan.parameters) * 8
    assert result.bytes_sent == pytest.approx((6 * per_step + last).tolist())


@pytest.mark.parametrize("batch", ["all", 2], ids=["whole", "sampled"])
@pytest.mark.parametrize("case", ROWS)
def test_unequal_nodes(case, batch):
    """One with a single record, which a batch of two takes always."""
    privacy = None if batch == "all" else given_noise(3)
    config = experiment(case, steps=4, batch=batch, privacy=privacy)
    result = tacit.train(config, nodes=digits(6, 1, 3))
    assert bool(torch.isfinite(result.parameters).all())
    assert bool(torch.isfinite(result.consensus).all())
    sizes = [6, 1, 3] if batch == "all" else [2, 1, 2]
    assert [node.expected_batch for node in result.plan.nodes] == sizes
    assert [node.records for node in result.plan.nodes] == [6, 1, 3]
    if case in NOISED and batch == "all":
        assert all(epsilon is not None and 0 <= epsilon <= 3 for epsilon in result.epsilon)


@pytest.mark.parametrize("case", ROWS)
def test_one_step(case):
    job = prepare(load_config(experiment(case, steps=1), count=3), nodes=digits(4, 5, 2))
    result = execute(job)
    assert result.steps == 1
    assert bool(torch.isfinite(result.parameters).all())
    assert bool((result.consensus - job.model.start(1, job.dtype, job.device)[0]).norm() > 1e-4)
    if case in NOISED:
        for taking_part, epsilon in zip(active(job, 0), result.epsilon, strict=True):
            assert epsilon is not None
            assert 2.9 < epsilon <= 3 if taking_part else epsilon == 0


@pytest.mark.parametrize("case", TRAINED)
def test_one_step_of_one_node_is_one_gradient_step(case):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 3, generator=draw, dtype=torch.float64)
    targets = torch.randn(6, 1, generator=draw, dtype=torch.float64)
    module = nn.Linear(3, 1, dtype=torch.float64)
    loss = (module(inputs) - targets).square().mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    start = torch.cat([weight.detach().reshape(-1) for weight in module.parameters()])
    length = ROWS[case].length(0.1)
    right = start - length * torch.cat([gradient.reshape(-1) for gradient in gradients])
    options = ROWS[case].one_step
    config = experiment(case, loss="mse", steps=1, options=options, privacy=EXACT)
    found = tacit.train(config, model=module, nodes=[(inputs, targets)]).parameters
    torch.testing.assert_close(found, right[None], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("case", ROWS)
def test_sampled_batches_with_noise(case, sampling):
    config = experiment(
        case,
        batch=2,
        sampling=sampling,
        options=clipped_schedules(case, 3, 1.0),
        privacy={"noise_std": 0.1, "accounting": "none"},
    )
    result = tacit.train(config, nodes=digits(6, 6, 6, 6))
    assert bool(torch.isfinite(result.parameters).all())
    assert {node.rate for node in result.plan.nodes} == {2 / 6}
    assert result.epsilon == (None,) * 4


@pytest.mark.parametrize("case", NOISED)
def test_epsilon_falls_with_noise_and_rises_with_steps(case):
    few = ROWS[case].moved

    def epsilon(noise_std, steps):
        privacy = {"noise_std": noise_std, "delta": DELTA}
        config = load_config(experiment(case, steps=steps, privacy=privacy), count=2)
        plan = prepare(config, nodes=digits(4, 4)).plan
        found = [node.epsilon for node in plan.nodes if node.epsilon is not None]
        assert len(found) == 2
        assert plan.release.activity is not None or found[0] == found[1]
        return found

    rows = zip(epsilon(1.0, few), epsilon(2.0, few), epsilon(1.0, 2 * few), strict=True)
    for some, quieter, longer in rows:
        assert some > 1.5 * quieter > 0
        assert longer > 1.2 * some if ROWS[case].trains else longer == some


@pytest.mark.parametrize(
    ("case", "options", "batch", "sampling", "relation"),
    [
        (*row, relation)
        for row in COSTS
        for relation in ("add-or-remove-one", "replace-one")
        if row[-1] == "poisson" or relation == "replace-one"
    ],
)
def test_other_options_cost_by_noise_and_steps(case, options, batch, sampling, relation):
    """And meet a budget."""
    draw = torch.Generator().manual_seed(0)
    nodes = [
        (torch.randn(20, 3, generator=draw), torch.randn(20, generator=draw).sign()) for _ in "ab"
    ]
    settings = {"loss": "logistic", "batch": batch, "sampling": sampling, "options": options}

    def epsilons(steps, **asked):
        privacy = {"delta": DELTA, "relation": relation, **asked}
        config = experiment(case, steps=steps, privacy=privacy, **settings)
        plan = prepare(load_config(config, count=2), nodes=nodes).plan
        return [node.epsilon for node in plan.nodes]

    some, quieter = epsilons(4, noise_std=4.0), epsilons(4, noise_std=8.0)
    rows = zip(some, quieter, epsilons(8, noise_std=4.0), strict=True)
    assert all(math.inf > longer > one > less > 0 for one, less, longer in rows)
    assert all(1.95 < met <= 2.0 for met in epsilons(4, epsilon=2.0))


# Special cases


@pytest.mark.parametrize(
    "special", SPECIAL, ids=lambda each: f"{each.name}-{each.options}-{each.other}-{each.batch}"
)
def test_under_some_settings_it_is_another_one(special):
    privacy = EXACT
    if special.noise:
        privacy = {"noise_std": 0.3, "noise_seed": 8, "delta": DELTA}
        if special.batch != "all":
            privacy["accounting"] = "none"

    def run(name, options):
        case = next(each for each, row in ROWS.items() if row.name == name)
        clip = {"clip": 0.7} if special.noise else {}
        config = experiment(
            case,
            steps=special.steps,
            batch=special.batch,
            graph=special.graph,
            options={**clip, **options},
            privacy=privacy,
        )
        return tacit.train(config, nodes=digits(*[special.records] * special.nodes))

    found, right = run(special.name, special.options), run(special.other, special.others)
    torch.testing.assert_close(found.parameters, right.parameters, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found.consensus, right.consensus, rtol=1e-11, atol=1e-13)
    if special.noise and special.batch == "all":
        assert found.epsilon == pytest.approx(right.epsilon, rel=1e-9)


@pytest.mark.parametrize("name", ["const-d2p", "dyn-d2p"])
def test_a_budget_buys_the_same_noise_without_schedules(name):
    factors = {"clip_decay": 1.0, "budget_growth": 1.0} if name == "dyn-d2p" else {}
    found, right = (
        tacit.train(
            experiment(each, steps=4, options={"clip": 0.7, **options}), nodes=digits(4, 4, 4)
        ).parameters
        for each, options in ((name, factors), ("privsgp", {}))
    )
    assert torch.equal(found, right)


def gradient_descent(data, steps, learning_rate):
    """Weight and bias `[4]` after steps on the mean squared error of all records, from zero."""
    inputs = torch.cat([torch.column_stack([x, torch.ones(len(x))]) for x, _ in data])
    targets = torch.cat([y for _, y in data])[:, 0]
    point = torch.zeros(inputs.shape[1], dtype=torch.float64)
    for _ in range(steps):
        point = point - learning_rate * 2 * inputs.T @ (inputs @ point - targets) / len(inputs)
    return point


def regression(case, data, *, steps=9, **settings):
    config = experiment(
        case, loss="mse", model="linear", steps=steps, privacy=EXACT, **settings
    )  # fmt: skip
    return tacit.train(config, nodes=data)


@pytest.mark.parametrize("case", CENTRAL)
def test_on_a_complete_graph_it_is_central_gradient_descent(case):
    data = quadratic(4, shared=False)
    found = regression(case, data, graph="complete", options=ROWS[case].central)
    right = gradient_descent(data, 9, 0.1)
    torch.testing.assert_close(found.parameters, right.expand(4, -1), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.consensus, right, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", MEAN)
def test_under_equal_curvature_the_mean_model_is_central_gradient_descent(case):
    data = quadratic(4, shared=True)
    result = regression(case, data, graph="ring", options=ROWS[case].mean)
    right = gradient_descent(data, 9, 0.1)
    torch.testing.assert_close(result.consensus, right, rtol=1e-11, atol=1e-12)
    if ALGORITHMS[ROWS[case].name].setting == "peer-to-peer":
        assert bool((result.parameters - right).norm(dim=1).gt(1e-4).all())


@pytest.mark.parametrize("case", POOLED)
def test_under_equal_curvature_the_mean_model_is_that_of_one_node_with_all_data(case):
    data = quadratic(4, shared=True)
    together = [(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))]
    many, one = (regression(case, nodes, options=ROWS[case].smooth) for nodes in (data, together))
    torch.testing.assert_close(many.consensus, one.consensus, rtol=1e-11, atol=1e-12)
    assert bool((one.consensus - regression(case, data[:1]).consensus).norm() > 1e-3)


@pytest.mark.parametrize("case", TRAINED)
def test_converges_on_a_strongly_convex_quadratic(case):
    optimum = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64)
    data = [(x, x @ optimum[:3, None] + optimum[3]) for x, _ in quadratic(5, shared=False)]
    row = ROWS[case]
    found = regression(case, data, steps=row.descent, options=row.quadratic)
    models = torch.cat([found.parameters, found.consensus[None]])
    assert float((models - optimum).norm(dim=1).max()) < row.closeness * float(optimum.norm())
