"""Averages of iterates against averages of models that are made one run a step; and what they cost.

A run of k steps with seeded noise gives the models after step k of a longer one, since noise and
batches are positioned by the step. So the oracle needs nothing of what is tested.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import tacit
from algorithms import recursion_oracle as oracle
from experiments import after, experiment
from tacit.algorithms import ALGORITHMS
from tacit.config import Config, load_config
from tacit.config.values import average_rule
from tacit.errors import DivergenceError, InputError
from tacit.training.averages import step_weight, with_models
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.run_folder import checkpoint

STEPS = 7
RULES = ["tail:1", "tail:0.5", "tail:0.01", "exponential:0.9", "exponential:0.2"]
ONE_WAY = [[(0, 1), (0, 2), (3, 4)], [(1, 3), (2, 0), (4, 0), (4, 1)], [(1, 0), (2, 3), (2, 4)]]
Sections = Mapping[str, Mapping[str, Any]]
WAYS = {
    "push-sum": {"algorithm": {"name": "dyn-d2p", "momentum": 0.9, "learning_rate": 0.5}},
    "gossip, partly active": {
        "algorithm": {"name": "do-adp", "activation": 0.6, "momentum": 0.5},
        "topology": {"graph": "ring"},
    },
    "noise of pairs": {
        "algorithm": {"name": "privsgp", "learning_rate": 0.5},
        "privacy": {"noise": "pairwise", "pair_noise": 3.0},
    },
    "server": {"algorithm": {"name": "dp-sgd", "clients_per_round": 3}},
    "server, secure sums": {
        "algorithm": {"name": "dp-sgd"},
        "privacy": {"aggregation": "secure-sum", "colluding": 1},
    },
    "server's model of its own": {"algorithm": {"name": "dp-admm"}},
    "private models": {"algorithm": {"name": "fedspd-dp", "penalty": 20.0}},
    "several rounds": {
        "algorithm": {"name": "dp2-sgd"},
        "topology": {"graph": "ring", "rounds": 2},
    },
}


def sections(way, **train):
    common = {"steps": STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 1, **train}
    return experiment(train=common, **WAYS[way])


def single_models(way):
    """Every node's models, and the common one, after each step."""
    job = prepare(load_config(sections(way)))
    found = []
    for stop in range(1, STEPS + 1):
        result = execute(job, should_stop=after(stop))
        found.append((result.parameters, result.consensus))
    return found


def weights_of(rule, made):
    """What each of the models so far counts for, from the definition; sums to 1 or is empty."""
    kind, share = average_rule(rule)
    if kind == "tail":
        first = STEPS - math.ceil(share * STEPS)
        own = [1.0 if k >= first else 0.0 for k in range(made)]
    else:
        own = [float(share) ** (made - 1 - k) for k in range(made)]
    total = sum(own)
    return [value / total for value in own] if total else []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_run_ends_with_the_average_of_its_models(way):
    singles = single_models(way)
    for rule in RULES:
        found = execute(prepare(load_config(sections(way, average=rule))))
        weights = weights_of(rule, STEPS)
        for place, own in enumerate((found.parameters, found.consensus)):
            wanted = sum(w * s[place] for w, s in zip(weights, singles, strict=True))
            torch.testing.assert_close(own, wanted, rtol=1e-11, atol=1e-13)
        last = torch.equal(found.parameters, singles[-1][0])
        assert last == (rule == "tail:0.01")


def test_averages_change_nothing_that_is_sent_and_nothing_that_is_charged():
    plain, averaged = (
        tacit.train(sections("push-sum", average=rule)) for rule in ("none", "tail:0.5")
    )
    assert plain.epsilon == averaged.epsilon
    assert plain.bytes_sent == averaged.bytes_sent
    assert plain.metrics["epsilon"] == averaged.metrics["epsilon"]
    # What is measured on a node's own records is of the gradients of the run, which go on.
    assert plain.metrics["gradient_norm"] == averaged.metrics["gradient_norm"]


@pytest.mark.parametrize("name", ["privsgp", "dyn-d2p", "privsgp-vr"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_final_rounds_mix_the_averages(name, dtype, tmp_path):
    """On directed graphs, where push-sum weights are not 1, from weights of 1."""
    path = tmp_path / "graphs.txt"
    path.write_text("\n\n".join("\n".join(f"{a} {b}" for a, b in edges) for edges in ONE_WAY))
    changes = {
        "nodes": {"count": 5},
        "topology": {"graph": f"file:{path}"},
        "algorithm": {"name": name, "learning_rate": 0.5},
        "train": {"steps": STEPS, "batch": 16, "dtype": dtype, "average": "tail:0.5"},
    }
    averages = tacit.train(experiment(**changes)).parameters.double().numpy()
    changes["algorithm"]["final_mixing"] = 3
    found = tacit.train(experiment(**changes)).parameters.double().numpy()
    x, w = averages.copy(), np.ones(5)
    for turn in range(STEPS, STEPS + 3):
        matrix = oracle.splitting(5, ONE_WAY[turn % 3])
        x, w = matrix @ x, matrix @ w
    assert abs(w - 1).max() > 0.1
    close = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found, x / w[:, None], rtol=close, atol=close)
    assert np.linalg.norm(found.std(0)) < 0.5 * np.linalg.norm(averages.std(0))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["push-sum", "server", "server's model of its own"])
@pytest.mark.parametrize("rule", ["tail:0.6", "exponential:0.9"])
def test_a_stopped_run_goes_on_with_the_same_averages(way, rule, tmp_path):
    experiment_file = sections(way, average=rule, dtype="float32")
    if way == "push-sum":
        experiment_file["algorithm"]["final_mixing"] = 2
    job = prepare(load_config(experiment_file))
    whole = execute(job, out=tmp_path / "whole")
    for stop in range(1, STEPS):
        run = tmp_path / f"stopped-{stop}"
        execute(job, out=run, should_stop=after(stop))
        resumed = execute(job, out=run, resume=True)
        assert torch.equal(resumed.parameters, whole.parameters)
        assert torch.equal(resumed.consensus, whole.consensus)
        for name in ("nodes.safetensors", "model.safetensors"):
            left, right = load_file(run / name), load_file(tmp_path / "whole" / name)
            assert all(torch.equal(left[key], right[key]) for key in right)


def test_a_run_that_was_over_may_be_resumed_and_is_mixed_once(tmp_path):
    given = sections("push-sum", average="tail:0.5")
    given["algorithm"]["final_mixing"] = 2
    job = prepare(load_config(given))
    first = execute(job, out=tmp_path / "run")
    again = execute(job, out=tmp_path / "run", resume=True)
    assert torch.equal(first.parameters, again.parameters)
    assert first.bytes_sent == again.bytes_sent


def test_the_curve_is_of_the_average_once_there_is_one():
    plain = tacit.train(sections("push-sum"))
    tail = tacit.train(sections("push-sum", average="tail:0.5"))
    first = STEPS - math.ceil(STEPS / 2) + 1
    for step, before, found in zip(
        plain.metrics["step"], plain.metrics["test_loss"], tail.metrics["test_loss"], strict=True
    ):
        assert (before == found) == (step <= first), step  # of one model the mean is that model
    (note,) = [note for note in tail.plan.notes if "averages" in note]
    assert note.endswith(f"scores before step {first} are of single models")
    assert not [note for note in plain.plan.notes if "average" in note]


def test_a_run_that_stops_before_its_tail_gives_its_last_models():
    stopped = execute(
        prepare(load_config(sections("push-sum", average="tail:0.2"))), should_stop=after(2)
    )
    plain = execute(prepare(load_config(sections("push-sum"))), should_stop=after(2))
    assert torch.equal(stopped.parameters, plain.parameters)


@pytest.mark.parametrize("rule", ["tail:1", "exponential:0.5"])
def test_a_run_whose_models_leave_the_numbers_is_stopped(rule):
    given = sections("push-sum", average=rule)
    given["algorithm"] |= {"learning_rate": 1e30}
    with pytest.raises(DivergenceError, match="after step"):
        execute(prepare(load_config(given)))


def test_an_average_that_is_no_number_is_not_saved(tmp_path):
    """Not even where the models of the last step are numbers again: that of a step was none."""
    given = sections("push-sum", average="tail:1", checkpoint_every=1)
    job = prepare(load_config(given))
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(3))
    path = run / "checkpoint-00000003.safetensors"
    saved = checkpoint.read(path, job.digest)
    tensors = dict(saved.tensors)
    assert tensors["average.models"].dtype == torch.float64
    tensors["average.models"][1, 5] = math.nan
    checkpoint.write(run, checkpoint.Checkpoint(3, tensors, saved.seconds, saved.digest, saved.run))
    with pytest.raises(DivergenceError, match="node 1 is no longer finite"):
        execute(job, out=run, resume=True)
    assert not (run / "checkpoint-00000004.safetensors").exists()


# The rule.

models = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3
).map(lambda row: torch.tensor([row]))
rules = st.sampled_from([*RULES, "tail:0.33", "exponential:0.999999", "exponential:1e-9"])


@given(models, rules, st.integers(1, 60))
def test_the_average_of_equal_models_is_that_model(model, rule, steps):
    averages = None
    for k in range(steps):
        weight = step_weight(rule, k, steps)
        if weight is not None:
            averages = with_models(averages, model, model.new_empty(0), weight)
    assert averages is not None
    assert torch.equal(averages.models.float(), model)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), rules)
def test_the_average_is_exact_but_for_a_few_units(values, rule):
    """Against exact fractions; the error of n steps is below 4 n units of the largest number."""
    averages = None
    steps = len(values)
    kind, share = average_rule(rule)
    first = steps - math.ceil(share * steps) if kind == "tail" else 0
    for k, value in enumerate(values):
        weight = step_weight(rule, k, steps)
        assert (weight is None) == (k < first)
        if weight is not None:
            assert 0 < weight <= 1
            one = torch.tensor([[value]], dtype=torch.float64)
            averages = with_models(averages, one, one.new_empty(0), weight)
    assert averages is not None
    ratio = Fraction(1) if kind == "tail" else Fraction(float(share))
    kept = values[first:]
    weights = [ratio ** (len(kept) - 1 - place) for place in range(len(kept))]
    exact = sum(w * Fraction(v) for w, v in zip(weights, kept, strict=True)) / sum(weights)
    error = abs(Fraction(float(averages.models)) - exact)
    assert error <= 8 * (len(kept) + 1) * Fraction(2) ** -52 * Fraction(max(map(abs, values)))


def test_what_is_given_is_not_changed():
    model = torch.ones(1, 3, dtype=torch.float64)
    averages = with_models(None, model, model[0], 1.0)
    averages = with_models(averages, model * 3, model[0], 0.5)
    assert torch.equal(model, torch.ones(1, 3, dtype=torch.float64))
    assert averages.models.tolist() == [[2.0] * 3]


# What is refused.


@pytest.mark.parametrize(
    "wrong",
    [
        "tail", "tail:", "tail:0", "tail:1.01", "tail:-0.5", "tail:nan", "tail:1e-99", "tail: 0.5",
        "tail:1_0", "tail:1/2", "exponential:0", "exponential:1", "exponential:inf",
        "exponential:1.0", "exponential:0.99999999999999999999", "exponential:0.5e999999999",
        "mean:0.5", "Tail:0.5", "", 0.5, None, True, ["tail:0.5"],
    ],
)  # fmt: skip
def test_other_averages_are_refused(wrong):
    if wrong == "tail:1e-99":  # a share like any other: the last step
        assert step_weight(wrong, 4, 5) == 1
        return
    with pytest.raises(InputError, match=r"^train\.average = .*must be 'none', 'tail:SHARE'"):
        Config(train={"average": wrong})


def test_a_tenth_of_thirty_steps_is_three():
    """In float64 it is more, and rounded up four."""
    assert [step_weight("tail:0.1", k, 30) for k in range(25, 30)] == [None, None, 1, 1 / 2, 1 / 3]


def test_final_rounds_need_to_know_how_to_begin(monkeypatch):
    row = replace(
        ALGORITHMS["privsgp"],
        name="another",
        graph=replace(ALGORITHMS["privsgp"].graph, restart=None),
    )
    monkeypatch.setitem(ALGORITHMS, "another", row)  # type: ignore[misc]
    options = {"name": "another", "final_mixing": 2}
    Config(algorithm=options)
    with pytest.raises(InputError, match=r"train\.average = 'tail:0.5': .*2 gossip rounds"):
        Config(algorithm=options, train={"average": "tail:0.5"})
    Config(algorithm={**options, "final_mixing": 0}, train={"average": "tail:0.5"})


def test_every_method_with_final_rounds_can_restart():
    for name, row in ALGORITHMS.items():
        if "final_mixing" in row.options.model_fields:
            assert row.restarts, name
