"""What `tacit plan` tells of a paper's promise: evaluated as printed, and never guessed."""

import json
import math

import numpy as np
import pytest
import torch

from experiments import strict_json, tacit, write_experiment
from tacit.algorithms import ALGORITHMS
from tacit.analysis.promise import planned_promise
from tacit.config import Config, Promise, load_config, to_toml
from tacit.errors import InputError
from tacit.privacy.published import (
    BoundConstants,
    Budget,
    published_bound,
    published_steps,
    total_mu,
)
from tacit.report.plan_page import missing_constants, promise_facts
from tacit.training.prepare import prepare

CONSTANTS = {"smoothness": 2.0, "initial_gap": 0.7, "heterogeneity": 0.3}
SIZES = (6, 5, 8, 6)


def job(algorithm, **sections):
    draw = torch.Generator().manual_seed(1)
    nodes = [
        (
            torch.randn(size, 3, generator=draw, dtype=torch.float64),
            torch.randint(0, 2, (size, 1), generator=draw).double() * 2 - 1,
        )
        for size in SIZES
    ]
    whole = {
        "task": {"model": "logistic", "loss": "logistic"},
        "algorithm": algorithm,
        "privacy": {"epsilon": 3.0, "delta": 1e-3, "accounting": "published"},
        "train": {"steps": 9, "batch": 1, "dtype": "float64"},
        "nodes": {"weights": "equal"},
        **sections,
    }
    return prepare(load_config(whole, count=len(nodes)), nodes=nodes)


TABLE = {"name": "privsgp-vr", "state": "private", "clip": 0.5}


def promise_of(algorithm, **sections):
    promise = planned_promise(job(algorithm, **sections))
    assert promise is not None
    return promise


def broken(promise):
    return "; ".join(condition.text for condition in promise.conditions if not condition.holds)


def test_theorems_are_of_nodes_that_count_alike():
    by_records = promise_of(TABLE, promise=CONSTANTS, nodes={})
    assert "nodes that count alike" in broken(by_records)
    assert "nodes that count alike" not in broken(promise_of(TABLE, promise=CONSTANTS))


def test_theorem_1_is_evaluated_at_the_noise_that_runs():
    prepared = job(TABLE, promise=CONSTANTS)
    promise = planned_promise(prepared)
    assert promise is not None
    plan, d, n = prepared.plan, 4, 4
    squares = [
        math.fsum((plan.release.noise_std(node, k) / 1) ** 2 for k in range(9)) / 9
        for node in plan.nodes
    ]
    start = 13 * 0.7 + 18 * 2.0 * 0.3  # the linear model starts at zero
    by_hand = (start + 24 * 2.0 * d / n * sum(squares)) / math.sqrt(n * 9)
    assert promise.bound == pytest.approx(by_hand, rel=1e-9)
    constants = BoundConstants(2.0, 0.3, 0.7, 0.0, d)
    budgets = [Budget(size, 3.0, 1e-3) for size in SIZES]
    assert promise.best_steps == pytest.approx(
        published_steps(constants, budgets, gradient_bound=0.5)
    )
    assert promise.best_bound == pytest.approx(
        published_bound(constants, budgets, gradient_bound=0.5)
    )
    assert promise.needs == ()
    assert promise.trivial_bound == 0.5**2


def test_a_start_that_is_not_zero_counts():
    prepared = job(TABLE, promise=CONSTANTS, task={"model": "mlp", "loss": "logistic"})
    promise = planned_promise(prepared)
    assert promise is not None
    size = float(prepared.model.start(1, torch.float64, "cpu").square().sum())
    assert size > 1
    plan, n, d = prepared.plan, 4, prepared.plan.parameters
    noise = sum(plan.release.noise_std(node, 0) ** 2 for node in plan.nodes)
    start = 13 * 0.7 + 6 * 2.0 * size + 18 * 2.0 * 0.3
    assert promise.bound == pytest.approx((start + 24 * 2.0 * d / n * noise) / 6, rel=1e-9)


def test_with_the_papers_own_noise_its_bound_is_least_at_its_own_steps():
    """Published noise at K near K*: the bound at this noise is Corollary 1's."""
    first = promise_of(TABLE, promise=CONSTANTS)
    assert first.best_steps is not None
    steps = math.ceil(first.best_steps)
    same = promise_of(
        TABLE, promise=CONSTANTS, train={"steps": steps, "batch": 1, "dtype": "float64"}
    )
    assert same.bound is not None
    assert same.best_bound is not None
    assert same.best_bound <= same.bound
    away = promise_of(
        TABLE, promise=CONSTANTS, train={"steps": 50 * steps, "batch": 1, "dtype": "float64"}
    )
    assert away.bound is not None
    assert away.bound > same.bound


@pytest.mark.parametrize("left_out", list(CONSTANTS))
def test_what_is_missing_is_named_and_nothing_is_guessed(left_out):
    given = {key: value for key, value in CONSTANTS.items() if key != left_out}
    promise = promise_of(TABLE, promise=given)
    assert promise.needs == (left_out,)
    assert (promise.bound, promise.best_steps, promise.best_bound) == (None, None, None)
    line = missing_constants(promise)
    assert line.endswith(f"promise.{left_out}")
    assert "\n" not in line


def test_a_run_as_the_theorem_has_it_breaks_only_what_nobody_can_meet():
    rate = math.sqrt(4 / 9)
    promise = promise_of({**TABLE, "learning_rate": rate}, promise=CONSTANTS)
    assert "at least" in broken(promise)  # K^(C, q)
    assert "clipped" in broken(promise)
    assert broken(promise).count(";") == 1


@pytest.mark.parametrize(
    ("options", "sections", "told"),
    [
        ({"learning_rate": 0.1}, {}, "learning rate of sqrt(n / K) = 0.6667"),
        ({"learning_rate_schedule": "linear"}, {}, "learning rate"),
        ({"warm_up": 3}, {}, "learning rate"),
        ({"momentum": 0.5}, {}, "no momentum (here 0.5)"),
        ({"state": "public"}, {}, "'private' (here 'public')"),
        ({}, {"train": {"steps": 9, "batch": 3}}, "one record a step (expected here 3)"),
        ({}, {"faults": {"drop": 0.2}}, "no lost messages"),
    ],
)
def test_broken_conditions_are_told(options, sections, told):
    settings = {**TABLE, "learning_rate": math.sqrt(4 / 9), **options}
    assert told in broken(promise_of(settings, **sections))


@pytest.mark.parametrize("key", list(Promise.model_fields))
def test_every_constant_moves_the_promise(key):
    given = {**CONSTANTS, "push_sum_constant": 50.0, "push_sum_rate": 0.9}
    assert promise_of(TABLE, promise=given) != promise_of(
        TABLE, promise={**given, key: given[key] / 2}
    )


def test_push_sum_raises_the_least_steps():
    def least(**more):
        promise = promise_of(TABLE, promise={**CONSTANTS, **more})
        (text,) = [c.text for c in promise.conditions if c.text.startswith("at least")]
        return float(text.split()[2])

    assert least(push_sum_constant=50.0, push_sum_rate=0.9) > least()


def test_unequal_nodes_have_no_order_and_equal_ones_do():
    assert promise_of(TABLE).order is None
    draw = torch.randn(4, 5, 3, dtype=torch.float64)
    nodes = [(inputs, torch.ones(5, 1).double()) for inputs in draw]
    sections = {
        "task": {"model": "logistic", "loss": "logistic"},
        "algorithm": TABLE,
        "privacy": {"epsilon": 3.0, "delta": 1e-3, "accounting": "published"},
        "train": {"steps": 9, "batch": 1},
    }
    promise = planned_promise(prepare(load_config(sections, count=4), nodes=nodes))
    assert promise is not None
    assert promise.order == pytest.approx(math.sqrt(4 * math.log(1e3)) / (2 * 5 * 3))


def test_a_given_noise_has_a_bound_and_no_best_steps():
    promise = promise_of(TABLE, promise=CONSTANTS, privacy={"noise_std": 0.1, "accounting": "none"})
    assert promise.bound is not None
    assert promise.best_steps is None


@pytest.mark.parametrize("size", [1e-100, 1e100])
def test_extreme_constants_are_no_error(size):
    push_sum = {"push_sum_constant": size, "push_sum_rate": 1 - 1e-15}
    for gap in (0.0, size):
        given = {"smoothness": size, "initial_gap": gap, "heterogeneity": gap, **push_sum}
        found = promise_of(TABLE, promise=given)
        assert found.bound is not None
        assert found.bound >= 0
        assert promise_facts(found) is not None


def test_more_noise_promises_less():
    bounds = [
        promise_of(TABLE, promise=CONSTANTS, privacy={"noise_std": std, "accounting": "none"}).bound
        for std in (0.1, 0.2, 0.4)
    ]
    assert bounds == sorted(bounds, key=lambda bound: bound or 0.0)
    assert len(set(bounds)) == 3


def test_do_adp_and_fedspd_dp_tell_their_conditions():
    adp = promise_of({"name": "do-adp", "clip": 1.0})
    assert "T >= q^2 eps^2 / (4 p^2) = 81 (here 9)" in broken(adp)  # q = 6 of node 0, eps = 3
    assert adp.needs == ("smoothness", "initial_gap")
    assert [term.value for term in adp.terms] == [None] * 3
    spd = promise_of({"name": "fedspd-dp", "clip": 1.0, "local_steps": 2, "clients_per_round": 2})
    assert spd.order == pytest.approx(1 / math.sqrt(0.5 * 9 * 2))
    assert "inverse_step = 'paper'" in broken(spd)
    small = {"name": "fedspd-dp", "clip": 1.0, "inverse_step": "paper", "penalty": 0.1}
    assert "rho >= sqrt(gamma_t): 0.1" in broken(promise_of(small))
    assert "gamma_t as" not in broken(promise_of(small))


@pytest.mark.slow
def test_methods_without_a_promise_have_none_and_the_rest_say_what_is_missing():
    for name, row in ALGORITHMS.items():
        promised = name in {"privsgp-vr", "do-adp", "fedspd-dp"} or name.startswith(
            ("dyn", "const")
        )
        moments = name.startswith("noised-moments")
        if moments or not row.private:
            assert not promised
            continue
        options = {"state": "private"} if name == "privsgp-vr" else {}
        found = planned_promise(
            job(
                {"name": name, **options},
                privacy={"noise_std": 0.1, "accounting": "none"},
                train={"steps": 2, "batch": 2},
            )
        )
        assert (found is not None) == promised, name
        if found is not None:
            assert found.bound is None
            assert all(term.reason for term in found.terms if term.value is None)


DYN = {"name": "dyn-d2p", "clip": 4.0, "clip_decay": 3.0, "budget_growth": 1.5}
DYN_CONSTANTS = {
    "smoothness": 2.0,
    "initial_gap": 0.7,
    "push_sum_constant": 1.5,
    "push_sum_rate": 0.4,
}


def alike(algorithm, **sections):
    """Four nodes of five records: what the papers' corollaries are about."""
    draw = torch.randn(4, 5, 3, dtype=torch.float64)
    nodes = [(inputs, torch.ones(5, 1).double()) for inputs in draw]
    whole = {
        "task": {"model": "logistic", "loss": "logistic"},
        "algorithm": algorithm,
        "privacy": {"epsilon": 3.0, "delta": 1e-3, "accounting": "published"},
        "train": {"steps": 9, "batch": 1},
        **sections,
    }
    promise = planned_promise(prepare(load_config(whole, count=4), nodes=nodes))
    assert promise is not None
    return promise


def test_dyn_d2p_theorem_1_is_evaluated_at_the_noise_that_runs():
    prepared = job({**DYN, "learning_rate": 0.1}, promise=DYN_CONSTANTS)
    promise = planned_promise(prepared)
    assert promise is not None
    plan, d, n, steps = prepared.plan, 4, 4, 9
    clips = [4.0 * 3.0 ** (-k / steps) for k in range(steps)]
    variance = 0.0
    for node in plan.nodes:
        for k in range(steps):
            variance += (plan.release.noise_std(node, k) / 1) ** 2 / (n * steps)
    network, energy = (2.0 * 1.5 / 0.6) ** 2, sum(c * c for c in clips) / steps
    by_hand = [
        2 * 0.7 / (0.1 * steps),
        0.0,  # the linear model starts at zero
        3 * 0.1**2 * network * energy,
        0.1 * 2.0 * energy,
        (3 * 0.1**2 * network + 0.1 * 2.0 / n) * d * variance,
    ]
    *evaluated, bias = promise.terms
    assert [term.value for term in evaluated] == pytest.approx(by_hand)
    assert promise.evaluated == pytest.approx(sum(by_hand))
    assert bias.value is None
    assert "no public fact bounds it" in bias.reason
    assert promise.bound is None  # less T2 it is none
    assert promise.needs == ()
    assert promise.best_steps is None  # nodes that differ in J


def test_corollary_1_of_dyn_d2p_stands_beside_the_steps():
    promise = alike(DYN)
    scale = 5 * total_mu(3.0, 1e-3)
    assert promise.best_steps == pytest.approx(4 * scale**2)
    assert promise.order == pytest.approx(1 / (2 * scale))
    assert f"1 / (sqrt(n) J mu_tot) = {1 / (2 * scale):.4g}" in broken(promise)
    here, least = promise.figures.values()
    assert here is not None
    assert least is not None
    assert here > least
    assert promise.needs == tuple(DYN_CONSTANTS)
    assert "1 / (sqrt(n) J mu_tot)" not in broken(alike({**DYN, "learning_rate": 1 / (2 * scale)}))


def test_the_general_form_can_have_the_least_t1():
    """Noise as the root of the bound, as the plan proposes it."""
    clips = [4.0 * 0.8**k for k in range(9)]
    name = {"name": "dyn-general", "clip_schedule": clips}
    proposed = alike({**name, "noise_schedule": [math.sqrt(c) for c in clips]}).figures
    here, least = proposed.values()
    assert here == pytest.approx(least)
    assert here == pytest.approx((sum(clips) / 9) ** 2)
    other = alike({**name, "noise_schedule": clips}).figures
    assert next(iter(other.values())) > 1.1 * here


def test_do_adps_theorem_2_is_evaluated_at_the_noise_that_runs():
    options = {"name": "do-adp", "clip": 1.5, "momentum": 0.2, "learning_rate": 0.02}
    given = {"smoothness": 2.0, "initial_gap": 0.7}
    prepared = job(
        {**options, "activation": 0.8, "consensus_step": "paper"},
        topology={"graph": "ring"},
        promise=given,
    )
    promise = planned_promise(prepared)
    assert promise is not None
    plan, d, n, p = prepared.plan, 4, 4, 0.8
    assert "consensus_step" not in broken(promise)
    weights = plan.mixing.weights[0].matrix()
    gap = 1 - sorted(abs(value) for value in np.linalg.eigvalsh(weights))[-2]
    c = gap**2 * p / 82
    variance = sum(plan.release.noise_std(node, 0) ** 2 for node in plan.nodes) / n
    energy = 1.5**2 + variance * d
    by_hand = [
        2 * 0.8 * 0.7 / (0.02 * p * 9),
        0.02 * 2.0 * (0.2 + 2 + 4 * 0.04 * p) * (energy + 1.5**2) / (n * 0.8**3),
        8 * 0.02**2 * p * energy * 4 / (0.64 * c**2),
    ]
    assert [term.value for term in promise.terms] == pytest.approx(by_hand)
    assert promise.bound == pytest.approx(sum(by_hand))
    away = promise_of({**options, "consensus_step": 0.3}, promise=given)
    assert "gamma of Theorem 1" in broken(away)
    assert "alpha below" in broken(promise_of({**options, "learning_rate": 0.2}, promise=given))


def test_fedspd_dps_theorem_2_is_evaluated_but_for_its_first_term():
    options = {"name": "fedspd-dp", "clip": 1.0, "local_steps": 2, "clients_per_round": 2}
    first, *rest = promise_of(options).terms
    assert first.value is None
    assert "no public fact bounds it" in first.reason
    assert all(term.value is not None for term in rest)
    assert rest[1].value == 0  # there is no regulariser
    l1 = promise_of({**options, "regulariser": "l1", "regularisation": 0.3}).terms[2]
    # (1 / (2 T Q)) sum_i 4 lambda sqrt(d) / p, p = 1/2, d = 4
    assert l1.value == pytest.approx(4 * 4 * 0.3 * 2 / 0.5 / (2 * 9 * 2))
    box = promise_of({**options, "regulariser": "box", "regularisation": 0.3})
    assert [term.value is None for term in box.terms] == [True, False, True, False]
    quiet = promise_of(options, privacy={"epsilon": "none"})
    assert [term.value for term in quiet.terms] == [None] * 4
    assert not quiet.figures


def test_the_plan_says_what_it_does_not_evaluate(tmp_path):
    train = {"steps": 3, "batch": 2}
    file = write_experiment(tmp_path, algorithm={"name": "dyn-d2p"}, train=train)
    told = tacit("plan", file)
    assert "T2, the bias of clipping" in told.out
    assert "no public fact" in told.out
    assert "can be told with promise.smoothness, promise.initial_gap" in told.out
    promise = tacit("plan", file, "--set", "promise.initial_gap=0.7", "--json").json["promise"]
    values = {term["name"]: term["value"] for term in promise["terms"]}
    assert values.pop("2 (f(x-bar_0) - f*) / (gamma K)") == promise["evaluated"] > 0
    assert set(values.values()) == {None}
    assert promise["bound"] is None


# The section of the file.


READERS = {name for name, row in ALGORITHMS.items() if row.claims.promise_constants}


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - READERS))
def test_constants_that_no_paper_reads_are_refused(name):
    with pytest.raises(InputError, match=r"^promise\.smoothness = 1.*privsgp-vr.*leave it out"):
        Config(algorithm={"name": name}, promise={"smoothness": 1.0})


@pytest.mark.parametrize("name", sorted(READERS - {"privsgp-vr"}))
def test_only_privsgp_vr_reads_the_heterogeneity(name):
    Config(algorithm={"name": name}, promise={"smoothness": 1.0, "initial_gap": 0.5})
    with pytest.raises(InputError, match=r"^promise\.heterogeneity = 1.*leave it out"):
        Config(algorithm={"name": name}, promise={"heterogeneity": 1.0})


@pytest.mark.parametrize("key", ["push_sum_constant", "push_sum_rate"])
def test_the_constants_of_push_sum_go_together(key):
    with pytest.raises(InputError, match=rf"^promise\.{key} = 0.5: needs the other one"):
        Config(algorithm={"name": "privsgp-vr"}, promise={key: 0.5})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("smoothness", 0),
        ("smoothness", math.inf),
        ("smoothness", math.nan),
        ("smoothness", "large"),
        ("initial_gap", -1),
        ("heterogeneity", -0.1),
        ("push_sum_constant", -1),
        ("push_sum_rate", 1.0),
        ("push_sum_rate", -0.1),
    ],
)
def test_constants_out_of_range_are_refused(key, value):
    with pytest.raises(InputError, match=rf"^promise\.{key} = "):
        Promise(**{key: value})


def test_a_promise_changes_nothing_that_runs():
    plain, promised = job(TABLE), job(TABLE, promise=CONSTANTS)
    assert plain.plan.digest() == promised.plan.digest()
    assert "promise" not in to_toml(plain.config)
    again = load_config(_sections(to_toml(promised.config)), saved=True)
    assert again.promise == Promise(**CONSTANTS)


def _sections(text):
    import tomllib

    return tomllib.loads(text)


# On the command line.


def test_plan_shows_the_promise(tmp_path):
    options = {"name": "privsgp-vr", "state": "private", "clip": 1.0}
    quiet = {"noise_std": 0.5, "accounting": "none", "noise_seed": None}
    train = {"steps": 3, "batch": 2}
    file = write_experiment(tmp_path, algorithm=options, privacy=quiet, train=train)
    told = tacit("plan", file)
    assert "can be told with promise.smoothness, promise.initial_gap" in told.out
    sets = [
        part for key, value in CONSTANTS.items() for part in ("--set", f"promise.{key}={value}")
    ]
    told = tacit("plan", file, *sets)
    assert "what the paper promises under its conditions: not certified" in told.out
    assert "mean squared gradient norm" in told.out
    assert "can be told with" not in told.out
    document = tacit("plan", file, *sets, "--json").json
    assert document["promise"]["bound"] > 0
    assert strict_json(json.dumps(document["promise"]))["needs"] == []
    refused = tacit("plan", file, "--set", "promise.smooth=2")
    assert "promise.smooth = 2: unknown key; did you mean 'smoothness'" in refused.refusal


def test_a_run_may_go_on_with_other_constants(tmp_path):
    options = {"name": "privsgp-vr", "state": "private", "clip": 1.0, "learning_rate": 0.1}
    quiet = {"noise_std": 0.5, "accounting": "none", "noise_seed": None}
    file = write_experiment(
        tmp_path, algorithm=options, privacy=quiet, train={"steps": 3, "batch": 2}
    )
    out = tmp_path / "run"
    assert tacit("train", file, "--out", out, "--set", "promise.smoothness=2").code == 0
    again = tacit("train", file, "--out", out, "--resume", "--set", "promise.smoothness=3")
    assert "promise" not in again.err
