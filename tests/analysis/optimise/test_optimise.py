"""Optimised plans: against closed forms of full batches, exhaustive search, and PRIVACY's table."""

import io
import math

import numpy as np
import pytest
from optimise_cases import CONSTANTS, bound_of, config_of, numerator, words
from rich.console import Console

from experiments import strict_json
from planning_cases import gaussian_mu, plan_of
from tacit.analysis.optimise import OptimiseOptions, optimise
from tacit.analysis.optimise.bound import adapted, estimate, setting_of
from tacit.config import load_config
from tacit.errors import InputError
from tacit.report.documents.base import dump, plain_json
from tacit.report.optimise_page import optimise_blocks
from tacit.report.terminal import terminal
from tacit.training.prepare import prepare

pytestmark = pytest.mark.slow

GIVEN = OptimiseOptions(constants=CONSTANTS)
PARAMETERS = 650


def records_of(config):
    return tuple(node.records for node in prepare(config).plan.nodes)


def alike(run, setting):
    """Whether a row of the document is of this setting."""
    return (
        (run.steps, run.batch, run.clip, run.noise_multiplier, run.noise_std)
        == (setting.steps, setting.batch, setting.clip, setting.noise_multiplier, setting.noise_std)
        and (run.accumulated_noise, run.over_least_noise) == (setting.accumulated, setting.waste)
        and run.record_gradients == setting.record_gradients
    )


@pytest.fixture(scope="module")
def full():
    """Every record at every step: the noise has a closed form."""
    return optimise(config_of(), GIVEN)


@pytest.fixture(scope="module")
def sampled():
    """A batch of 4 of 360: few hits, much wasted."""
    return optimise(config_of(train={"batch": 4, "steps": 20}), GIVEN)


def squares_a_step(records, mus, clip=1.0):
    """Sum over nodes of sigma_i^2 / K = (n p_i C / (mu_i J_i))^2, with p_i = J_i / sum_j J_j."""
    mean = sum(records) / len(records)
    return sum((clip / (mu * mean)) ** 2 for mu in mus)


def closed_form(records, mus):
    """K* and the bound there, for full batches: A / s, and 2 A / sqrt(n K*)."""
    nodes = len(records)
    share = 24 * CONSTANTS["L"] * PARAMETERS / nodes * squares_a_step(records, mus)
    steps = numerator() / share
    return steps, 2 * numerator() / math.sqrt(nodes * steps)


def test_full_batches_reach_the_closed_form_optimum(full):
    records = records_of(config_of())
    assert full.records == tuple(sorted(set(records)))
    steps, bound = closed_form(records, [gaussian_mu(1.0, 1e-4)] * 4)
    assert full.certified.steps == pytest.approx(steps, rel=0.1)
    assert bound * (1 - 1e-6) <= full.certified.bound <= bound * 1.003
    # The bound at other lengths is that of the closed form too.
    mus = [gaussian_mu(1.0, 1e-4)] * 4
    for choice in full.curve:
        count = choice.steps
        mean = sum(records) / len(records)
        variances = tuple(count * (1 / (mu * mean)) ** 2 for mu in mus)
        assert choice.bound == pytest.approx(bound_of(variances, count, PARAMETERS), rel=1e-6)
        assert choice.over_least_noise == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("privacy", "factor"),
    [
        ({"epsilon": [0.5, 1.0, 2.0, 4.0], "delta": [1e-3, 1e-4, 1e-5, 1e-4]}, 1.0),
        ({"relation": "replace-one"}, 2.0),  # twice the sensitivity
    ],
)
def test_each_nodes_own_budget_counts(privacy, factor):
    config = config_of(privacy=privacy)
    optimised, nodes = optimise(config, GIVEN), prepare(config).plan.nodes
    budgets = [(node.budget or 0.0, node.delta or 0.0) for node in nodes]
    assert optimised.budgets == tuple(sorted(set(budgets)))
    mus = [gaussian_mu(*budget) / factor for budget in budgets]
    steps, bound = closed_form(tuple(node.records for node in nodes), mus)
    assert optimised.certified.steps == pytest.approx(steps, rel=0.1)
    assert optimised.certified.bound == pytest.approx(bound, rel=3e-3)


def test_sampled_batches_match_an_exhaustive_search(sampled):
    best, config = sampled.certified, config_of(train={"batch": 4, "steps": 20})
    tried = {
        steps: adapted(config, records_of(config), PARAMETERS, steps, 4)
        for steps in {round(best.steps * factor) for factor in np.geomspace(0.2, 5, 9)}
    }
    bounds = [bound_of(s.variances, steps, PARAMETERS) for steps, s in tried.items()]
    assert best.bound <= min(bounds) * 1.003
    assert best.bound == min(choice.bound for choice in sampled.curve)
    assert best.bound == pytest.approx(bound_of((best.noise_std**2,) * 4, best.steps, PARAMETERS))
    # Few hits need more noise than many, so that the least is never undercut.
    assert all(choice.over_least_noise >= 1 - 1e-6 for choice in sampled.curve)


def test_the_curve_holds_what_runs(sampled):
    """Every point is a plan within the budget, and its noise is the plan's."""
    for choice in sampled.curve[::4]:
        flags = (f"train.steps={choice.steps}",)
        job = prepare(config_of(train={"batch": 4, "steps": 20}, overrides=flags))
        setting = setting_of(job.plan)
        assert alike(choice, setting)
        for node, variance in zip(job.plan.nodes, setting.variances, strict=True):
            assert node.epsilon is not None
            assert node.epsilon <= 1.0
            std = job.plan.release.noise_std(node, 0) / node.divisor
            assert variance == pytest.approx(std**2, rel=1e-12)


def test_varying_noise_counts_with_its_mean_square():
    plan = plan_of(
        [50, 60],
        algorithm={"name": "dyn-d2p", "clip": 3.0, "clip_decay": 4.0, "budget_growth": 2.0},
        epsilon=1.0,
    )
    setting = setting_of(plan)
    for node, variance in zip(plan.nodes, setting.variances, strict=True):
        stds = [plan.release.noise_std(node, k) / node.divisor for k in range(plan.steps)]
        assert variance == pytest.approx(np.square(stds).mean())
    assert setting.clip == 3.0
    # With mean clip C the mean over steps can be released at n p C / (mu J) at best.
    assert plan.release.clip.bounds is not None
    mean = sum(plan.release.clip.bounds) / plan.steps
    least = math.sqrt(squares_a_step((50, 60), [gaussian_mu(1.0, 1e-4)] * 2, mean)) / 2
    assert setting.floor == pytest.approx(least, rel=1e-6)
    assert setting.waste > 1


# What a budget buys: n = 20, J = 3000, delta = 1e-4 (rows: batch, steps; z and waste at eps
# 0.3, 0.7, 1 and 3). The last z is 0.4048 to more digits.
TABLE = [
    (3000, 50, (65.6, 30.9, 22.5, 8.65), (1, 1, 1, 1)),
    (300, 300, (16.2, 7.67, 5.63, 2.29), (1.01, 1.01, 1.02, 1.08)),
    (150, 600, (11.4, 5.45, 4.02, 1.69), (1.01, 1.02, 1.03, 1.13)),
    (30, 1000, (3.06, 1.59, 1.25, 0.76), (1.04, 1.15, 1.25, 1.95)),
    (1, 1000, (0.58, 0.51, 0.49, 0.4048), (5.9, 11.2, 14.6, 31.4)),
]


@pytest.mark.parametrize(("batch", "steps", "noise", "waste"), TABLE)
def test_what_a_budget_buys(batch, steps, noise, waste):
    for epsilon, z, over in zip((0.3, 0.7, 1.0, 3.0), noise, waste, strict=True):
        plan = plan_of([3000] * 20, epsilon=epsilon, train={"batch": batch, "steps": steps})
        setting = setting_of(plan)
        assert setting.noise_multiplier == pytest.approx(z, abs=half_a_digit(z))
        assert setting.waste == pytest.approx(over, abs=half_a_digit(over))


def half_a_digit(printed):
    """How far a figure may be from what is printed: half its last digit, and the calibration's."""
    digits = len(str(printed).partition(".")[2])
    return 0.5 * 10.0**-digits + 1.5e-3 * printed


def test_purchases_change_one_thing(sampled):
    rows = {row.change: row for row in sampled.purchases}
    now = rows["as it stands"]
    assert now.bound == sampled.as_is.bound
    config = config_of(train={"batch": 4, "steps": 20})
    own = setting_of(prepare(config).plan)
    assert alike(now, own)
    assert alike(sampled.as_is, own)
    # A node like the others: the noise of the mean falls with the square root of their number.
    more = rows["one more node"]
    assert more.noise_std == pytest.approx(own.noise_std)
    assert more.accumulated_noise == pytest.approx(own.accumulated * math.sqrt(4 / 5))
    assert more.over_least_noise == pytest.approx(own.waste)
    # The others are plans of their own.
    doubled = [2 * count for count in records_of(config)]
    assert alike(rows["twice the records"], adapted(config, doubled, PARAMETERS, 20, 4))
    assert rows["twice the steps"].steps == 40
    assert rows["four times the batch"].batch == 16
    assert rows["half the epsilon"].noise_multiplier > own.noise_multiplier
    half = config_of(train={"batch": 4, "steps": 20}, privacy={"epsilon": 0.5})
    assert rows["half the epsilon"].noise_std == pytest.approx(
        setting_of(prepare(half).plan).noise_std, rel=1e-3
    )
    for row in sampled.purchases:
        nodes = 5 if row is more else 4
        bound = bound_of((row.noise_std**2,) * nodes, row.steps, PARAMETERS)
        assert row.bound == pytest.approx(bound)


def test_large_batches_are_the_first_advice(full, sampled):
    assert sampled.as_is.over_least_noise > 1.5
    assert sampled.advice[0].startswith("larger batches first")
    assert full.as_is.over_least_noise < 1.5
    assert "larger batches" not in words(full)


def test_the_published_optimum_beside_what_its_steps_need(sampled):
    claim = sampled.published
    total = sum(math.log(1e4) / records**2 for records in records_of(config_of()))
    exact = numerator() * 4 / (216 * CONSTANTS["L"] * PARAMETERS * total)
    assert claim.exact == pytest.approx(exact)
    assert abs(claim.steps - exact) < 1
    assert claim.certified is not None
    assert claim.one_record is not None
    assert (claim.certified.steps, claim.certified.batch) == (claim.steps, 4)
    assert (claim.one_record.steps, claim.one_record.batch) == (claim.steps, 1)
    assert claim.one_record.noise_std > claim.noise_std
    assert sampled.certified.bound <= claim.certified.bound * 1.003
    bounds = {point.steps: point.bound for point in sampled.claimed_curve}
    assert bounds[claim.steps] == pytest.approx(claim.bound)
    assert min(bounds.values()) >= claim.bound * (1 - 1e-9)
    constant = optimise(config_of(privacy={"published_constant": 2.0}), GIVEN).published
    assert constant.exact == pytest.approx(exact / 4, rel=1e-3)


def test_a_longest_run_is_respected():
    optimised = optimise(
        config_of(), OptimiseOptions(constants={**CONSTANTS, "F0": 1e6}, most_steps=40)
    )
    assert max(choice.steps for choice in optimised.curve) == 40
    assert optimised.certified.steps == 40
    assert "the longest run that was tried" in words(optimised)
    assert optimised.published.steps > 40
    assert optimised.published.certified is None


def test_the_range_follows_the_optimum():
    """Two records a step: the optimum lies far above that of full batches."""
    config = config_of(train={"batch": 2, "steps": 20}, privacy={"epsilon": 2.0})
    optimised = optimise(config, GIVEN)
    steps = [choice.steps for choice in optimised.curve]
    assert steps[0] < optimised.certified.steps < steps[-1]
    assert optimised.certified.bound == min(choice.bound for choice in optimised.curve)


def test_batch_and_clip_are_chosen_where_asked():
    config = config_of(train={"batch": 30, "steps": 20})
    optimised = optimise(config, OptimiseOptions(constants=CONSTANTS, batch=True, clip=True))
    batches = [choice.batch for choice in optimised.batches]
    assert batches == [30, 4, 18, 72, "all"]
    least = min(choice.bound for choice in optimised.batches)
    (chosen,) = {choice.batch for choice in optimised.clips}
    (row,) = (choice for choice in optimised.batches if choice.batch == chosen)
    assert row.bound <= 1.05 * least
    cheaper = [
        choice for choice in optimised.batches if choice.record_gradients < row.record_gradients
    ]
    assert all(choice.bound > 1.05 * least for choice in cheaper)
    # Clips: noise follows the clip, the bias is the squared mean excess of the norms.
    norms = np.asarray(estimate(prepare(config), CONSTANTS, norms=True).norms)
    assert len(norms) > 100
    for choice in optimised.clips:
        assert choice.batch == chosen
        excess = np.maximum(0, norms - choice.clip).mean()
        assert choice.clipping_bias == pytest.approx(excess**2)
        equal_setting = adapted(config, records_of(config), PARAMETERS, choice.steps, chosen)
        ratio = choice.clip / equal_setting.clip
        assert choice.noise_std == pytest.approx(equal_setting.noise_std * ratio, rel=2e-3)
    worth = {run.bound + (run.clipping_bias or 0.0): run for run in optimised.clips}
    assert optimised.certified == worth[min(worth)]
    # The flags give just that run.
    flags = [flag.removeprefix("--set ") for flag in optimised.flags]
    applied = prepare(load_config(config, overrides=flags)).plan
    assert setting_of(applied).noise_std == pytest.approx(optimised.certified.noise_std, rel=2e-3)
    assert applied.steps == optimised.certified.steps


def test_published_noise_in_the_file_is_not_what_is_optimised():
    optimised = optimise(config_of(privacy={"accounting": "published"}), GIVEN)
    assert optimised.certified == optimise(config_of(), GIVEN).certified


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"algorithm": {"name": "sgp"}, "privacy": {"epsilon": None}}, "no budget to plan for"),
        ({"privacy": {"epsilon": None, "noise_std": 0.1}}, "give the budget to plan for"),
        (
            {"algorithm": {"name": "dyn-general", "noise_schedule": [1.0] * 6}},
            "one number of steps",
        ),
    ],
)
def test_without_a_budget_there_is_nothing_to_plan(sections, message):
    with pytest.raises(InputError, match=message):
        optimise(config_of(**sections), GIVEN)


@pytest.mark.parametrize("key", ["records", "most_steps"])
def test_options_are_checked(key):
    with pytest.raises(InputError, match=key):
        optimise(config_of(), OptimiseOptions(**{key: 0}))


def test_private_constants_are_said_loudly(full):
    optimised = optimise(config_of(), OptimiseOptions(source="train"))
    text = printed(optimised, width=100)
    assert "NOT PRIVATE" in text
    assert "NO EPSILON COVERS THEM" in text
    assert text.count("PRIVATE RECORDS") == 3
    rows = {row.name: row.private for row in optimised.constants}
    assert rows == {"L": False, "b2": False, "F0": False, "x0": True, "G": True}
    assert full.warning is None
    assert "NOT PRIVATE" not in printed(full, width=100)


def printed(plan, width):
    out = io.StringIO()
    blocks = optimise_blocks(plain_json(plan))
    terminal(blocks, Console(file=out, width=width))
    return out.getvalue()


def test_a_narrow_terminal_folds_and_shortens_nothing(sampled):
    wide, narrow = printed(sampled, 140), printed(sampled, 60)
    assert "…" not in wide + narrow
    tables = narrow.split("advice:")[0].splitlines()
    assert max(map(len, tables)) <= 60
    for word in ("published", "certified", "optimum", "twice", "epsilon", "Hessian's", "given"):
        assert (word in wide) == (word in narrow)
    assert f"apply: --set train.steps={sampled.certified.steps}" in narrow


def test_the_document_is_json(full, sampled):
    for plan in (full, sampled):
        content = strict_json(dump(plan))
        assert content["certified"]["steps"] == plan.certified.steps
        assert content["theorem"]["excluded"] is True
        assert content["learning_rate"] == pytest.approx(math.sqrt(4 / plan.certified.steps))
        steps = [row["steps"] for row in content["curve"]]
        assert steps == sorted(set(steps))
        assert plan.as_is.steps in steps
