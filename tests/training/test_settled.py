"""Options that are rules: the numbers that they come to, from what they are made, and refusals."""

import math
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from experiments import tacit as command_line
from tacit.config import Config
from tacit.errors import InputError
from tacit.training.prepare import prepare

RECORDS, INPUTS, CLASSES = 30, 5, 3

DROPPING = nn.Sequential(tacit.Dropout(0.5), nn.Linear(INPUTS, CLASSES)).double()


def records(seed, count=RECORDS):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, INPUTS, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (count,), generator=draw)


def settings(name="dp-sgd", **algorithm):
    return {
        "task": {"outputs": CLASSES},
        "nodes": {"count": 4},
        "algorithm": {"name": name, **algorithm},
        "privacy": {"epsilon": 3.0, "noise_seed": 1},
        "train": {"steps": 8, "batch": 10, "dtype": "float64"},
    }


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()


def job_of(sections, first=0, **given):
    nodes = [records(first + node) for node in range(4)]
    data = {"model": network(), "nodes": nodes, "test": records(99, 41), **given}
    return prepare(Config.model_validate(sections), **data)


def median_by_hand(inputs, targets):
    """The lower median of the norms of one gradient after the other."""
    module, norms = network(), []
    for record, target in zip(inputs, targets, strict=True):
        module.zero_grad()
        nn.functional.cross_entropy(module(record[None]), target[None]).backward()
        norms.append(math.sqrt(sum(float((p.grad**2).sum()) for p in module.parameters())))
    return sorted(norms)[(len(norms) - 1) // 2]


@pytest.mark.parametrize("name", ["dp-sgd", "privsgp", "dp-dda"])
def test_the_step_of_theorem_1_is_its_number(name):
    nodes = [records(node) for node in range(4)]
    base = settings(name, learning_rate="sqrt(n/K)")
    ruled = tacit.train(base, nodes=nodes, model=network())
    base["algorithm"]["learning_rate"] = math.sqrt(4 / 8)
    given = tacit.train(base, nodes=nodes, model=network())
    assert torch.equal(ruled.parameters, given.parameters)
    assert ruled.plan.config.algorithm.options.learning_rate == math.sqrt(0.5)
    words = "algorithm.learning_rate = 0.707107, by the rule sqrt(n/K), for n = 4 nodes and K = 8"
    assert any(note.startswith(words) for note in ruled.plan.notes)


@pytest.mark.parametrize("steps", [1, 3, 575])
def test_the_rule_follows_nodes_and_steps(steps):
    base = settings(learning_rate="sqrt(n/K)")
    base["train"]["steps"] = steps
    found = job_of(base).plan.config.algorithm.options.settled_rate
    assert found == math.sqrt(4 / steps)


def test_the_median_clip_is_that_of_public_records_at_the_start():
    job = job_of(settings(clip="median"))
    right = median_by_hand(*records(99, 41))
    found = job.config.algorithm.options.settled_clip
    assert found == float(f"{right:.3g}")
    assert set(job.plan.release.clip.bounds or ()) == {found}
    assert any(f"algorithm.clip = {found:g}, the median" in note for note in job.plan.notes)
    plain = job_of(settings(clip=found))
    assert [node.epsilon for node in job.plan.nodes] == [node.epsilon for node in plain.plan.nodes]
    assert job.plan.digest() == plain.plan.digest()


def test_no_private_record_moves_the_median():
    """Adversarial records of all nodes: huge, zero, and others; the bound stays bit-equal."""
    right = job_of(settings(clip="median")).config.algorithm.options.clip
    huge = [(inputs * 1e6, targets) for inputs, targets in map(records, range(4))]
    none = [(inputs * 0.0, targets) for inputs, targets in map(records, range(4))]
    for nodes in (huge, none, [records(node) for node in range(50, 54)]):
        found = job_of(settings(clip="median"), nodes=nodes).config.algorithm.options.clip
        assert found == right
    other = job_of(settings(clip="median"), test=records(7)).config.algorithm.options.clip
    assert other != right


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("dp-sgd", {"test": None}, "there are none"),
        (
            "dp-sgd",
            {"model": nn.Sequential(tacit.Dropout(0.5), nn.Linear(5, 3)).double()},
            "dropout",
        ),
        ("privsgp", {}, "for dp-sgd alone"),
        ("dp-fedavg", {}, "for dp-sgd alone"),
        ("fedspd-dp", {}, "for dp-sgd alone"),
        ("dp-admm", {}, "for dp-sgd alone"),
    ],
)
def test_where_there_is_no_median_it_is_refused(name, given, words):
    with pytest.raises(InputError, match=words) as caught:
        job_of(settings(name, clip="median"), **given)
    assert caught.value.where == "algorithm.clip"


def test_public_records_without_gradients_bound_nothing():
    inputs = records(99)[0]
    inputs[9:] = 0.0
    model = nn.Linear(INPUTS, 1, bias=False).double()
    nodes = [(records(node)[0], torch.ones(RECORDS)) for node in range(4)]
    base = settings(clip="median") | {"task": {"loss": "logistic", "model": "given"}}
    with pytest.raises(InputError, match="bounds nothing"):
        job_of(base, nodes=nodes, model=model, test=(inputs, torch.ones(RECORDS)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("learning_rate", "sqrt(K/n)"), ("learning_rate", "median"), ("clip", "sqrt(n/K)")],
)
def test_other_words_are_refused(key, value):
    with pytest.raises(InputError) as caught:
        Config.model_validate(settings(**{key: value}))
    assert caught.value.where == f"algorithm.{key}"
    assert "must be a positive number" in caught.value.expected


def test_a_rule_of_the_rate_is_not_for_a_step_that_another_option_sets():
    with pytest.raises(InputError, match=r"algorithm\.learning_rate"):
        Config.model_validate(settings("fedspd-dp", learning_rate="sqrt(n/K)"))


@pytest.mark.parametrize(("key", "rule"), [("learning_rate", "sqrt(n/K)"), ("clip", "median")])
def test_what_is_recommended_is_not_asked_for_by_a_rule(key, rule, tmp_path):
    file = tmp_path / "open.toml"
    file.write_text(f"[task]\ndataset = 'digits'\n[algorithm]\nname = 'dp-sgd'\n{key} = '{rule}'\n")
    answer = command_line("plan", str(file), "--recommend", "--out", str(tmp_path / "made.toml"))
    assert answer.code == 2
    assert f"algorithm.{key} = '{rule}': must be a number here" in answer.err


@pytest.mark.slow
def test_the_best_steps_are_looked_for_at_the_settled_numbers(tmp_path):
    file = tmp_path / "ruled.toml"
    file.write_text(
        "[task]\ndataset = 'digits'\nmodel = 'logistic'\n[nodes]\ncount = 4\n"
        "[algorithm]\nname = 'dp-sgd'\nclip = 'median'\nlearning_rate = 'sqrt(n/K)'\n"
        "[privacy]\nepsilon = 2.0\n[train]\nsteps = 10\nbatch = 20\n"
    )
    answer = command_line("plan", str(file), "--optimise")
    assert answer.code == 0, answer.err
    assert "algorithm.learning_rate = 0.632456" in " ".join(answer.out.split())


def test_the_run_folder_has_the_numbers_and_goes_on(tmp_path):
    nodes = [records(node) for node in range(4)]
    base = settings(clip="median", learning_rate="sqrt(n/K)")
    out, data = tmp_path / "run", {"model": network(), "nodes": nodes, "test": records(99, 41)}
    result = tacit.train(base, out=out, **data)
    written = tomllib.loads((out / "config.toml").read_text())["algorithm"]
    assert written["learning_rate"] == math.sqrt(0.5)
    assert written["clip"] == result.plan.config.algorithm.options.clip
    again = tacit.train(base, out=out, resume=True, **data)
    assert torch.equal(again.parameters, result.parameters)
    np.testing.assert_array_equal(again.epsilon, result.epsilon)
