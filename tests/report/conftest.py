"""Run folders as a run writes them, small enough to be made for every test."""

import json
import math

import pytest

CONFIG = """\
[task]
dataset = "digits"
model = "mlp"
loss = "cross-entropy"

[nodes]
count = 16
partition = "iid"

[topology]
graph = "exponential"

[algorithm]
name = "dyn-d2p"
learning_rate = 0.05

[privacy]
epsilon = 3.0
delta = 1e-5
"""


def exponential_edges(nodes):
    """One graph for each power of two below `nodes`: node i sends to i + 2^t."""
    period = max(1, math.ceil(math.log2(nodes)))
    return [[[node, (node + 2**turn) % nodes] for node in range(nodes)] for turn in range(period)]


def star_edges(nodes):
    return [[[0, node] for node in range(1, nodes)]]


def private_result(nodes=16, steps=500):
    """A finished private run of Dyn-D2P over the one-peer exponential graph."""
    spread = [node / max(1, nodes - 1) for node in range(nodes)]
    edges = exponential_edges(nodes)
    return {
        "format_version": 1,
        "tacit_version": "0.1.0",
        "status": "done",
        "message": None,
        "private": True,
        "not_private_reason": None,
        "algorithm": {
            "name": "dyn-d2p",
            "title": "Dyn-D2P",
            "paper": "Dyn-D2P: dynamic differentially private decentralized learning, 2025",
        },
        "task": {"dataset": "digits", "model": "mlp", "loss": "cross-entropy"},
        "nodes": nodes,
        "parameters": 9_610,
        "steps": steps,
        "planned_steps": steps,
        "relation": "add-or-remove-one",
        "trust_model": "all messages",
        "accounting": "certified",
        "mechanism": "Poisson-sampled Gaussian, rate 0.356, 500 steps, one release a step",
        "epsilon": [2.6012 + 0.39 * share for share in spread],
        "epsilon_budget": [3.0] * nodes,
        "epsilon_source": ["own ledger"] * nodes,
        "delta": [1e-5] * nodes,
        "claimed_epsilon": [1.1 + 0.0912 * share for share in spread],
        "claim": {
            "formula": "epsilon = sqrt(2 log(1/delta)) * p * sqrt(sum_k (exp(mu_k^2) - 1))",
            "reading": "applied to the mean over a batch, as printed",
            "conditions": [
                {"text": "p sqrt(K) tends to a constant", "holds": True},
                {"text": "one record is drawn at each step", "holds": False},
            ],
            "infinite": False,
        },
        "audited_epsilon": None,
        "audit": None,
        "test_accuracy": {"mean": 0.9312, "worst": 0.9123, "consensus": 0.9456},
        "test_loss": {"mean": 0.312, "worst": 0.377, "consensus": 0.281},
        "test_accuracy_by_node": [0.9123 + 0.03 * share for share in spread],
        "bytes_sent": 19_220_000.0,
        "bytes_sent_by_node": [19_220_000.0] * nodes,
        "seconds": 42.25,
        "steps_per_second": 11.83,
        "records": [90 + node % 3 for node in range(nodes)],
        "signal_share": [1 / nodes] * nodes,
        "noise_share": [1 / nodes] * nodes,
        "sampling_rate": [32 / (90 + node % 3) for node in range(nodes)],
        "expected_batch": [32.0] * nodes,
        "noise_multiplier": {"first": [4.21] * nodes, "last": [2.73] * nodes},
        "topology": {
            "graph": "exponential",
            "directed": True,
            "period": len(edges),
            "contraction": 0.0,
            "edges": edges,
        },
        "calibration": [
            {"predicted": 0.55, "observed": 0.7, "records": 179},
            {"predicted": 0.999, "observed": 0.98, "records": 180},
        ],
        "not_covered": ["training loss", "gradient norms and clip rates"],
        "a_key_of_the_future": {"ignored": True},
    }


def star_result(nodes=8):
    """A federated run without privacy and without a test set."""
    nothing = [None] * nodes
    return {
        **private_result(nodes),
        "private": False,
        "not_private_reason": "no noise was added",
        "algorithm": {"name": "fedavg", "title": "FedAvg", "paper": "McMahan and others, 2017"},
        "relation": None,
        "trust_model": None,
        "accounting": "none",
        "mechanism": None,
        "epsilon": nothing,
        "epsilon_budget": nothing,
        "epsilon_source": None,
        "delta": nothing,
        "claimed_epsilon": nothing,
        "claim": {"formula": None, "reading": None, "conditions": [], "infinite": False},
        "test_accuracy": None,
        "test_loss": None,
        "test_accuracy_by_node": None,
        "calibration": [],
        "noise_multiplier": {"first": nothing, "last": nothing},
        "topology": {
            "graph": "star",
            "directed": False,
            "period": 1,
            "contraction": 0.5,
            "edges": star_edges(nodes),
        },
        "not_covered": [],
    }


def private_metrics(steps=500, every=20):
    return [_private_line(step, steps) for step in range(every, steps + 1, every)]


def _private_line(step, steps):
    learned = 1 - math.exp(-5 * step / steps)
    wobble = 0.01 * math.sin(step)
    accuracy = 0.1 + 0.83 * learned + wobble
    loss = 0.31 + 2.0 * (1 - learned) + wobble
    spent = math.sqrt(step / steps)
    median = 1.8 * math.exp(-step / steps) + 0.3 + wobble
    return {
        "step": step,
        "test_accuracy": {
            "mean": accuracy,
            "worst": accuracy - 0.03,
            "consensus": accuracy + 0.015,
        },
        "test_loss": {"mean": loss, "worst": loss + 0.08, "consensus": loss - 0.03},
        "train_loss": loss - 0.05,
        "consensus_distance": 0.4 * math.exp(-2 * step / steps) + 0.02,
        "gradient_norm": {"median": median, "p90": 1.7 * median, "max": 3.1 * median},
        "clip": 1.0 - 0.3 * step / steps,
        "clip_rate": 0.6 - 0.3 * step / steps,
        "noise_std": 0.13 - 0.05 * step / steps,
        "epsilon": {"max": 2.9912 * spent, "min": 2.6012 * spent},
        "claimed_epsilon": {"max": 1.2 * spent, "min": 1.1 * spent},
        "bytes_sent": 38_440.0 * step,
        "seconds": 0.0845 * step,
    }


def bare_metrics(steps=500, every=20):
    """The lines of a run without privacy and without a test set."""
    absent = dict.fromkeys(
        ["test_accuracy", "test_loss", "noise_std", "epsilon", "claimed_epsilon"]
    )
    return [{**line, **absent} for line in private_metrics(steps, every)]


def write_run_folder(folder, result, metrics, config=CONFIG):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(config, encoding="utf-8")
    lines = "".join(json.dumps(line) + "\n" for line in metrics)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


@pytest.fixture
def write_run(tmp_path):
    """Write a private run folder whose result, metrics or config a test changes."""

    def write(changes=None, metrics=None, config=CONFIG, nodes=16, change=dict):
        result = change({**private_result(nodes), **(changes or {})})
        lines = private_metrics() if metrics is None else metrics
        return write_run_folder(tmp_path / "run", result, lines, config)

    return write


@pytest.fixture
def star_run(tmp_path):
    """A run folder of a federated run without privacy and without a test set."""
    return write_run_folder(tmp_path / "star", star_result(), bare_metrics())
