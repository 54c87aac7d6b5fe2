"""One training with mislabelled canaries: who is in, what is trained, what is guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.analysis.audit.one_run import OneRun, mislabel, run_once
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy import Relation
from tacit.training.prepare import Job, prepare
from tacit.training.stacked_context import StackedContext

ZERO_OUT: Relation = "add-or-remove-one"
NODES, RECORDS = 3, 60


def job_of(loss: str = "logistic", **changes: Any) -> Job:
    """Separable records of two classes, or a linear target."""
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(NODES, RECORDS, 12, generator=draw, dtype=torch.float64)
    truth = inputs @ torch.linspace(-1, 1, 12, dtype=torch.float64)
    targets = {
        "logistic": torch.where(truth > 0, 1.0, -1.0).double(),
        "cross-entropy": (truth > 0).long(),
        "mse": truth[..., None],
    }[loss]
    model = nn.Linear(12, 2 if loss == "cross-entropy" else 1)
    config = load_config(
        {
            "task": {"loss": loss},
            "algorithm": {"name": "privsgp", "learning_rate": 0.05, "clip": 1.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-4, **changes.pop("privacy", {})},
            "train": {"steps": 12, "batch": "all", "dtype": "float64", **changes},
        },
        count=NODES,
        given_model=True,
    )
    return prepare(config, model=model, nodes=list(zip(inputs, targets, strict=True)))


def run(job: Job, *, relation: Relation = ZERO_OUT, **more: Any) -> OneRun:
    chosen = {"nodes": (0, 1, 2), "steps": job.plan.steps, "canaries": 24, "seed": 4, **more}
    return run_once(job, relation=relation, context=more.pop("context", StackedContext), **chosen)


class Quiet(StackedContext):
    """A thousandth of the noise."""

    def add_noise(self, total: torch.Tensor, k: int) -> torch.Tensor:
        noise = super().add_noise(torch.zeros_like(total), k)
        return total.add_(noise, alpha=1e-3)


@pytest.mark.parametrize("loss", ["logistic", "cross-entropy", "mse"])
def test_without_noise_most_coins_are_guessed(loss: str) -> None:
    job = job_of(loss)
    one_run = run_once(
        job, nodes=(0, 1, 2), steps=12, relation=ZERO_OUT, canaries=12, seed=4, context=Quiet
    )
    right = (one_run.scores > np.median(one_run.scores)) == one_run.included
    assert right.mean() >= 0.75
    assert one_run.correct == one_run.guesses == 2


def test_under_replace_one_the_right_label_is_the_alternative() -> None:
    job = job_of(privacy={"relation": "replace-one"})
    one_run = run_once(
        job, nodes=(0, 1, 2), steps=12, relation="replace-one", canaries=12, seed=4, context=Quiet
    )
    assert ((one_run.scores > 0) == one_run.included).mean() >= 0.9


def test_a_certified_training_is_not_refuted() -> None:
    for seed in range(5):
        one_run = run(job_of(), seed=seed)
        assert one_run.epsilon(delta=1e-4, confidence=0.99) <= 1.0


def test_canaries_that_are_out_are_not_there_and_public_numbers_stay() -> None:
    seen: list[Any] = []

    def context(plan: Any, model: Any, data: Any, keys: Any, exchange: Any) -> StackedContext:
        seen.append((plan, data))
        return StackedContext(plan, model, data, keys, exchange)

    job = job_of(batch=10)
    one_run = run_once(
        job, nodes=(0, 2), steps=1, relation=ZERO_OUT, canaries=20, seed=1, context=context
    )
    plan, data = seen[0]
    gone = NODES * RECORDS - len(data.targets)
    assert gone == (~one_run.included).sum()
    assert [node.records for node in plan.nodes] == data.sizes.tolist()
    assert plan.nodes[1].records == RECORDS
    assert [(node.rate, node.expected_batch) for node in plan.nodes] == [(1 / 6, 10.0)] * NODES
    changed = (data.targets == -1).sum() + (data.targets == 1).sum()
    assert changed == len(data.targets)
    # No record is a stranger: the inputs that are left are the nodes' own.
    assert {tuple(row) for row in data.inputs.tolist()} <= {
        tuple(row) for row in job.train.inputs.tolist()
    }


def test_canaries_are_at_most_half_of_a_nodes_records() -> None:
    one_run = run(job_of(steps=1), canaries=10_000, steps=1)
    assert one_run.canaries == NODES * RECORDS // 2
    assert one_run.guesses == one_run.canaries // 5
    assert 0.3 < one_run.included.mean() < 0.7


def test_a_training_that_would_not_fit_the_memory_is_refused() -> None:
    with pytest.raises(InputError, match="fewer steps, or 0 canaries"):
        run(job_of(), steps=10_000_000)


def test_wrong_labels_are_wrong() -> None:
    classes = torch.tensor([0, 1, 2])
    assert mislabel(classes, "cross-entropy", 3).tolist() == [1, 2, 0]
    assert mislabel(torch.tensor([-1.0, 1.0]), "logistic", 1).tolist() == [1.0, -1.0]
    assert mislabel(torch.tensor([[2.0]]), "mse", 1).tolist() == [[-2.0]]


def test_sampled_and_fixed_batches_run() -> None:
    fixed = job_of(batch=10, sampling="fixed", privacy={"relation": "replace-one"})
    assert run(fixed, relation="replace-one").canaries == 24
    assert run(job_of(batch=10)).canaries == 24
