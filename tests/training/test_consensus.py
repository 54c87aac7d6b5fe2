"""What plans forecast of models that stand apart, beside what runs measure; and what is chosen."""

import math

import numpy as np
import pytest
import torch

import tacit
from tacit.config import load_config
from tacit.privacy import pairwise_multipliers
from tacit.topology.consensus import spread
from tacit.training import consensus
from tacit.training.consensus import (
    MEMORY,
    ConsensusForecast,
    choose,
    consensus_distances,
    consensus_forecast,
    consensus_warning,
    noise_flow,
)
from tacit.training.planner import build_plan

NODES, INPUTS, OUTPUTS, STEPS = 6, 150, 20, 12


def records():
    draw = torch.Generator().manual_seed(2)
    return [
        (torch.randn(3 + n, INPUTS, generator=draw), torch.randn(3 + n, OUTPUTS, generator=draw))
        for n in range(NODES)
    ]


def experiment(name, noise, rounds, **algorithm):
    """Gradients are clipped to next to nothing, so that all that moves models is noise."""
    ratio = {"pair_noise": 4.0} if noise == "pairwise" else {}
    chosen = "exponential" if name.startswith(("privsgp", "dyn")) else "ring"
    return {
        "task": {"model": "linear", "loss": "mse"},
        "topology": {"graph": chosen, "rounds": rounds},
        "algorithm": {"name": name, "learning_rate": 0.5, "clip": 1e-6, **algorithm},
        "privacy": {
            "noise_std": 0.1,
            "noise_seed": 4,
            "noise": noise,
            "accounting": "none",
            **ratio,
        },
        "train": {"steps": STEPS, "batch": "all", "evaluate_every": 3},
    }


CASES = [
    ("privsgp", "pairwise", 1, {}),
    ("privsgp", "pairwise", 2, {"momentum": 0.6, "learning_rate_schedule": "cosine"}),
    ("privsgp", "independent", 1, {"momentum": 0.6, "warm_up": 5}),
    ("dyn-d2p", "pairwise", 1, {"clip_decay": 4.0, "budget_growth": 3.0}),
    ("privsgp-vr", "pairwise", 1, {"anchor_every": 4}),
    ("privsgp-vr", "independent", 1, {"state": "private", "momentum": 0.5}),
    ("dp2-sgd", "pairwise", 1, {"learning_rate_schedule": "linear"}),
    ("dp2-sgd", "pairwise", 3, {}),
    ("adp2-sgd", "independent", 1, {}),
    ("adp2-sgd", "pairwise", 2, {}),
    ("dp-dda", "pairwise", 2, {"activation": 0.7}),
]


@pytest.mark.parametrize(("name", "noise", "rounds", "options"), CASES)
def test_a_run_measures_the_distances_that_are_forecast(name, noise, rounds, options):
    """Of 3,020 coordinates of 6 nodes: a distance is off by a few percent."""
    result = tacit.train(experiment(name, noise, rounds, **options), nodes=records())
    found = result.metrics
    steps = [int(step) for step in found["step"]]
    assert steps == [0, 3, 6, 9, 12]
    measured = np.array(found["consensus_distance"], float)
    forecast = consensus_distances(result.plan, steps)
    assert measured[0] == forecast[0] == 0
    np.testing.assert_allclose(measured[1:], np.array(forecast[1:], float), rtol=0.08)
    mean = result.parameters.double() - result.parameters.double().mean(0)
    assert float(mean.square().sum(1).mean().sqrt()) == pytest.approx(measured[-1], rel=1e-4)


def test_nothing_is_forecast_of_averages():
    """But of the single models before them, and of the first of a tail."""
    config = experiment("privsgp", "pairwise", 1)
    config["train"]["average"] = "tail:0.5"
    plan = tacit.train(config, nodes=records()).plan
    whole = consensus_distances(plan, range(STEPS + 1))
    assert [value is None for value in whole] == [step > STEPS / 2 for step in range(STEPS + 1)]
    (note,) = [note for note in plan.notes if note.startswith("forecast:")]
    assert note.endswith("of models before they are averaged")


def test_a_runs_models_carry_the_figure_that_is_forecast():
    """Against the start, which is zero where a model's start is subtracted."""
    config = experiment("privsgp", "pairwise", 1)
    whole = tacit.train(config, nodes=records())
    forecast = consensus_forecast(whole.plan)
    assert forecast is not None
    start = whole.job.model.start(NODES, whole.job.dtype, whole.job.device).double()
    moved = whole.parameters.double() - start
    figures = moved.square().mean(1).sqrt() / moved.mean(0).square().mean().sqrt()
    assert float(figures.max()) == pytest.approx(forecast.worst, rel=0.1)
    assert float(figures.square().mean().sqrt()) == pytest.approx(forecast.typical, rel=0.06)
    assert forecast.worst > 2


def plan_of(nodes=20, *, steps=40, topology=None, noise="pairwise", ratio=None, **more):
    given = {} if ratio is None else {"pair_noise": ratio}
    settings = load_config(
        {
            "task": {"model": "linear", "loss": "mse"},
            "topology": topology or {"graph": "exponential", "rounds": 1},
            "algorithm": {"name": "privsgp", **more},
            "privacy": {
                "noise_std": 0.1,
                "noise_seed": 1,
                "noise": noise,
                "accounting": "none",
                **given,
            },
            "train": {"steps": steps, "batch": "all"},
        },
        count=nodes,
    )
    return build_plan(settings, [4] * nodes, 3)


def products(plan, ratios, most):
    """Rounds and ratio to the noise in the mean times the figure, for nodes that are alike."""
    pairs = plan.release.pairs
    assert pairs is not None
    nodes = len(plan.nodes)
    found = {}
    for rounds in range(1, most + 1):
        flow = noise_flow(plan.release, [1.0] * nodes, plan.mixing, rounds, pairs.pairs)
        assert flow is not None
        variances = spread(flow, range(1, plan.steps + 1))
        for ratio in ratios:
            gains = pairwise_multipliers(
                [1.0] * nodes, dict.fromkeys(pairs.pairs, ratio), pairs.colluding
            )
            squares = variances.figures(ratio).max(1) ** 2
            figure = math.sqrt(
                max(squares[-1], float(squares @ variances.mean / variances.mean.sum()))
            )
            found[rounds, ratio] = figure / min(gains)
    return found


def test_the_choice_leaves_about_the_least_noise_at_a_node():
    """Beside every step of the run and every colluder: within the 5 % and what points leave out."""
    plan = plan_of()
    chosen = choose(plan.release, [1.0] * 20, plan.mixing)
    every = products(plan, (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0), 5)
    assert every[chosen.rounds, chosen.pair_noise] < 1.1 * min(every.values())
    assert (chosen.rounds, chosen.pair_noise) == (5, 3.0)
    # One round would ruin what noise of pairs has gained.
    assert min(value for (rounds, _), value in every.items() if rounds == 1) > 2 * min(
        every.values()
    )
    assert chosen.reason == (
        "pair_noise = 3 and rounds = 5: the mean gets 0.26 of the noise that independent noise "
        "would need, and a node's own model 1.12 times the noise of the mean (7.16 times with one "
        "round)"
    )


def test_what_is_given_stays_as_it_is():
    plan, own = plan_of(), [1.0] * 20
    assert choose(plan.release, own, plan.mixing, rounds=2).rounds == 2
    assert choose(plan.release, own, plan.mixing, pair_noise=7.0).pair_noise == 7.0
    both = choose(plan.release, own, plan.mixing, pair_noise=7.0, rounds=3)
    assert (both.pair_noise, both.rounds, both.reason) == (7.0, 3, None)
    # With fewer rounds to mix it away, less noise of pairs is worth having.
    few = choose(plan.release, own, plan.mixing, rounds=1).pair_noise
    assert few < choose(plan.release, own, plan.mixing, rounds=5).pair_noise
    # Among choices that are as good, fewer rounds come first.
    complete = plan_of(topology={"graph": "complete", "rounds": 1})
    assert choose(complete.release, own, complete.mixing).rounds == 1


def test_a_plan_with_noise_of_pairs_chooses_both_and_says_why():
    plan = plan_of(topology={"graph": "exponential"})
    assert plan.config.topology.rounds == "auto"
    assert plan.rounds == 5
    assert plan.release.pairs is not None
    assert plan.release.pairs.ratio == pytest.approx(3.0)
    chosen = choose(plan.release, [1.0] * 20, plan.mixing)
    assert chosen.reason in plan.notes
    forecast = consensus_forecast(plan)
    assert forecast is not None
    assert plan.notes[-1] == forecast.note()
    assert forecast.figure < 1.2
    assert not any("gossip round" in caution for caution in plan.cautions)
    one = plan_of(topology={"graph": "exponential", "rounds": 1}, ratio=4.0)
    assert one.rounds == 1
    warning = consensus_warning(consensus_forecast(one), 1)
    assert warning in one.cautions
    # Independent noise has one round, and says nothing of it.
    alone = plan_of(topology={"graph": "exponential", "rounds": "auto"}, noise="independent")
    assert alone.rounds == 1
    assert not any("forecast" in note for note in alone.notes)


def test_lost_messages_are_those_of_the_rounds_that_are_chosen():
    """Who is paired follows from the losses of the first round of every step."""
    job = experiment("adp2-sgd", "pairwise", 1)
    del job["topology"]["rounds"]
    job["faults"] = {"drop": 0.5}
    plan = build_plan(load_config(job, count=NODES), [4] * NODES, 3)
    faults, activity = plan.faults, plan.release.activity
    assert plan.rounds > 1
    assert faults is not None
    assert activity is not None
    assert activity.partner is not None
    assert faults.rounds == plan.rounds
    for k, row in enumerate(activity.partner):
        lost = set(
            zip(*(ends.tolist() for ends in faults.lost_edges(k * plan.rounds)), strict=True)
        )
        assert not lost & {(i, int(j)) for i, j in enumerate(row)}
    assert (activity.partner != np.arange(NODES)).any()


def test_figures_count_the_last_steps_and_distances_all():
    short, long = plan_of(steps=MEMORY, ratio=4.0), plan_of(steps=1000, ratio=4.0)
    first, second = consensus_forecast(short), consensus_forecast(long)
    assert first is not None
    assert second is not None
    assert first.worst == pytest.approx(second.worst, rel=1e-6)
    lone, *_ = consensus_distances(long, [1000])
    assert lone == pytest.approx(consensus_distances(long, [500])[0], rel=1e-3)


def test_a_plan_is_warned_of_models_that_stand_far_apart():
    plan = plan_of(ratio=4.0)
    forecast = consensus_forecast(plan)
    assert forecast is not None
    assert forecast.worst == pytest.approx(7.06, abs=0.01)  # of the table of the analysis
    assert forecast.note() == (
        "forecast: the noise in a node's own model is 7.06 times that of the mean at the end of "
        "the run, and 9.47 times where gradients are taken (1: nodes agree)"
    )
    said = consensus_warning(forecast, plan.rounds)
    assert said is not None
    assert said.startswith("with 1 gossip round a step, a node's own model will carry 9.47 times")
    assert said.endswith("mixes faster, or lower privacy.pair_noise")
    alone = consensus_warning(ConsensusForecast(1.6, 1.5, 1.5), 3)
    assert alone is not None
    assert alone.startswith("with 3 gossip rounds a step, a node's own model will carry 1.60 times")
    assert alone.endswith("or choose a graph that mixes faster")
    calm = ConsensusForecast(1.2, 1.1, 1.5)
    assert calm.figure == 1.5
    assert consensus_warning(calm, 2) is None
    assert consensus_warning(None, 2) is None


def test_what_cannot_be_said_is_not_said(monkeypatch):
    server = plan_of(4, topology={"rounds": 1}, noise="independent", name="dp-sgd")
    copies = plan_of(4, topology={"graph": "ring"}, noise="independent", name="do-adp")
    many = plan_of(201, noise="independent")
    for plan in (server, copies, many):
        assert consensus_forecast(plan) is None
        assert consensus_distances(plan, [0, 3]) == [None, None]
    quiet = load_config(
        {
            "task": {"model": "linear", "loss": "mse"},
            "privacy": {"epsilon": "none"},
            "train": {"batch": "all"},
        },
        count=4,
    )
    assert consensus_forecast(build_plan(quiet, [4] * 4, 3)) is None
    monkeypatch.setattr(consensus, "MOST_NODES", 19)
    large = plan_of(20)
    chosen = choose(large.release, [1.0] * 20, large.mixing)
    assert (chosen.pair_noise, chosen.rounds) == (4.0, 5)
    assert chosen.reason.startswith("nothing can be forecast")
