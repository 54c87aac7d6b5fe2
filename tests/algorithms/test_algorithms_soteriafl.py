"""SoteriaFL-SAGA and -SVRG against a NumPy recursion, what they send, and what that costs."""

import math

import difference_oracle as differences
import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from recursion_runs import RATE, assert_same, least_squares, trained
from recursion_runs import on_batches as experiment

import tacit
from public_masks import public_mask

STEPS, CLIP, KEEP = 7, 0.4, 0.5
SEED = 3
METHODS = {
    "saga": {"name": "soteriafl-saga"},
    "saga-clipped": {"name": "soteriafl-saga", "clip": CLIP, "clip_difference": 0.1},
    "saga-groups": {"name": "soteriafl-saga", "clip": CLIP, "table_batch": 2},
    "svrg": {"name": "soteriafl-svrg", "anchor_every": 3},
    "svrg-clipped": {"name": "soteriafl-svrg", "clip": CLIP, "clip_difference": 0.1},
    "svrg-private": {
        "name": "soteriafl-svrg",
        "state": "private",
        "anchor_every": 3,
        "clip": CLIP,
        "clip_difference": 0.1,
    },
}


def compressed(row, k, client, compressor, keep):
    """One message, as its receiver reads it."""
    d = len(row)
    if compressor == "none":
        return row
    if compressor == "top-k":
        order = np.argsort(-np.abs(row), kind="stable")[: math.ceil(keep * d)]
        return np.where(np.isin(np.arange(d), order), row, 0.0)
    mask = public_mask(
        d, compressor=compressor, keep=keep, seed=SEED, step=k, nodes=[client], part=0
    )[0].numpy()
    scale = 1 / keep if compressor == "bernoulli" else d / math.ceil(keep * d)
    return np.where(mask, row * scale, 0.0)


def recursion(estimate, compressor, keep, shift_step):
    """The server's model at the end, `[d]`."""
    count, x = len(estimate.task.nodes), estimate.task.start
    shifts, server = np.zeros((count, len(x))), np.zeros(len(x))
    for k in range(STEPS):
        sent = [
            compressed(estimate(i, x, k) - shifts[i], k, i, compressor, keep) for i in range(count)
        ]
        direction = server + sum(sent) / count
        for i in range(count):
            shifts[i] = shifts[i] + shift_step * sent[i]
        server = server + shift_step * sum(sent) / count
        x = x - RATE * direction
    return np.asarray(x)


@pytest.mark.parametrize("name", METHODS)
def test_recursion(name):
    task, options = oracle.problem("logistic", 5), METHODS[name]
    more = {"compressor": "rand-k", "keep": KEEP, "shift_step": 0.4}
    result = trained(task, experiment({**options, **more}))
    right = recursion(differences.estimator(result, task, options), "rand-k", KEEP, 0.4)
    for found in (result.consensus, *result.parameters):
        assert_same(found, right)


@pytest.mark.parametrize(
    ("compressor", "omega"), [("none", 0.0), ("top-k", 1.0), ("bernoulli", 1.0), ("rand-k", 1.0)]
)
def test_compressors_and_the_shift_step_of_the_theory(compressor, omega):
    task, options = oracle.problem("logistic", 4), METHODS["svrg"]
    more = {"compressor": compressor, "keep": 1.0 if compressor == "none" else KEEP}
    result = trained(task, experiment({**options, **more}))
    gamma = math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))
    right = recursion(differences.estimator(result, task, options), compressor, KEEP, gamma)
    assert_same(result.consensus, right)
    values = {"none": 4, "top-k": 2, "rand-k": 2}.get(compressor)  # of d = 4
    if values is not None:
        places = 1 if compressor == "top-k" else 0
        assert result.bytes_sent == (STEPS * (8 * values + places),) * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soteriafl-saga", "soteriafl-svrg"])
def test_shifts_and_differences_converge_in_spite_of_compression(name):
    draw = np.random.default_rng(5)
    nodes = [(draw.normal(size=(4, 2)), draw.normal(size=(4, 1)) + 3 * i) for i in range(3)]
    optimum = least_squares(nodes)
    config = experiment(
        {"name": name, "learning_rate": 0.1, "compressor": "rand-k", "keep": 0.4},
        train={"steps": 250, "batch": 1, "evaluate_every": 250},
    )
    config["task"] = {"loss": "mse", "model": "linear"}
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in nodes]
    found = tacit.train(config, nodes=tensors).consensus.numpy()
    assert np.linalg.norm(found - optimum) < 1e-2 * np.linalg.norm(optimum)


@pytest.mark.parametrize("state", ["private", "public"])
def test_what_is_sent_costs_what_the_noised_gradients_cost(state):
    """As PrivSGP-VR with the same state, and whatever the compressor."""
    task = oracle.problem("logistic", 3)
    privacy = {"noise_std": 0.5, "noise_seed": 1, "delta": 1e-4}
    common = {"state": state, "clip": CLIP, "clip_difference": 0.1}
    methods = ["privsgp-vr", "soteriafl-svrg"] + ["soteriafl-saga"] * (state == "private")
    epsilons = [
        trained(task, experiment({"name": name, **common, **more}, privacy=privacy)).epsilon
        for name in methods
        for more in ({}, {"compressor": "top-k", "keep": 0.3})
        if "soteriafl" in name or not more
    ]
    assert all(one == epsilons[0] for one in epsilons)
    run = trained(task, experiment({"name": methods[-1], **common}, privacy=privacy))
    assert run.plan.release.mechanism(run.plan.nodes[0]).trust_model == "server"
