"""What is measured, against plain loops and NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tacit.communication.colours import Private, Public, Released
from tacit.data import Dataset
from tacit.errors import LeakError
from tacit.gradients import LOSSES, BatchGradient, build
from tacit.models.metrics import Baselines
from tacit.report.documents.base import as_dict, read
from tacit.report.documents.metrics import GradientNorms, Measurement, Scores
from tacit.training.run_folder import metrics
from tacit.training.run_folder.metrics import (
    Evaluation,
    consensus_distance,
    evaluate,
    private_metrics,
    series,
    summaries,
)

NODES, RECORDS, FEATURES, CLASSES = 4, 11, 3, 5


def problem(loss):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, FEATURES, generator=generator, dtype=torch.float64)
    targets = {
        "cross-entropy": torch.arange(RECORDS) % CLASSES,
        "mse": torch.randn(RECORDS, CLASSES, generator=generator, dtype=torch.float64),
        "logistic": (inputs[:, 0] > 0).double() * 2 - 1,
    }[loss]
    return nn.Linear(FEATURES, 1 if loss == "logistic" else CLASSES), Dataset(inputs, targets)


def plain(loss, outputs, targets):
    """Mean loss and accuracy by NumPy."""
    scores, wanted = outputs.detach().numpy(), targets.numpy()
    if loss == "mse":
        return float(((scores - wanted) ** 2).mean()), None
    if loss == "logistic":
        margins = scores[:, 0] * wanted
        return float(np.log1p(np.exp(-margins)).mean()), float((margins > 0).mean())
    rows = np.arange(len(wanted))
    losses = np.log(np.exp(scores).sum(1)) - scores[rows, wanted]
    return float(losses.mean()), float((scores.argmax(1) == wanted).mean())


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "logistic"])
@pytest.mark.parametrize("records", [None, 4, 100])
def test_evaluation_is_that_of_a_loop_over_nodes(loss, records):
    module, test = problem(loss)
    engine = build(
        module, LOSSES[loss], test.inputs, test.targets, dtype=torch.float64, device="cpu"
    )
    generator = torch.Generator().manual_seed(2)
    size = engine.parameters_count
    models = torch.randn(NODES, size, generator=generator, dtype=torch.float64)
    common = torch.randn(size, generator=generator, dtype=torch.float64)
    found = evaluate(engine, LOSSES[loss], Released(models), Public(common), test, records).value

    inputs, targets = test.inputs[:records], test.targets[:records]
    expected = []
    for vector in [*models, common]:
        outputs = vector[: -module.out_features].view(-1, FEATURES)
        expected.append(plain(loss, inputs @ outputs.T + vector[-module.out_features :], targets))
    losses, accuracies = zip(*expected, strict=True)
    assert found.rows[0] == pytest.approx(losses)
    told = summaries(found, (), Baselines(0.5, None, ()))
    summary = told["test_loss"]
    assert summary.mean == pytest.approx(np.mean(losses[:-1]))
    assert summary.worst == pytest.approx(max(losses[:-1]))
    assert summary.consensus == pytest.approx(losses[-1])
    if loss == "mse":
        assert (found.accuracy, told["test_accuracy"]) == (None, None)
        return
    assert found.accuracy == pytest.approx(accuracies)
    summary = told["test_accuracy"]
    assert summary is not None
    assert as_dict(summary) == pytest.approx(
        {
            "mean": np.mean(accuracies[:-1]),
            "worst": min(accuracies[:-1]),
            "consensus": accuracies[-1],
            "baseline": 0.5,
        }
    )


@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_consensus_distance_is_the_root_mean_square_over_nodes(nodes):
    models = torch.randn(nodes, 13, generator=torch.Generator().manual_seed(nodes)).double()
    array = models.numpy()
    distances = np.linalg.norm(array - array.mean(0), axis=1)
    assert consensus_distance(models) == pytest.approx(np.sqrt((distances**2).mean()), abs=1e-12)


def test_equal_models_have_no_distance():
    assert consensus_distance(torch.full((3, 4), 2.5)) == 0.0


def batch(norms, losses):
    return BatchGradient(torch.zeros(len(norms), 2), torch.tensor(norms), torch.tensor(losses))


def measured(*arguments, **rest):
    found = private_metrics(3, *arguments, **rest)
    assert type(found) is Private
    return found.value


def test_private_metrics_are_over_the_records_of_the_batch_alone():
    padding = 1e9
    found = measured(
        batch([[1.0, 3.0, padding], [2.0, padding, padding]], [[0.1, 0.2, 99], [0.6, 99, 99]]),
        torch.tensor([[True, True, False], [True, False, False]]),
        clip=2.0,
    )
    assert found.train_loss == pytest.approx(0.3)
    assert found.clip_rate == pytest.approx(1 / 3)  # a norm at the bound is not clipped
    assert found.gradient_norm is not None
    assert as_dict(found.gradient_norm) == pytest.approx(
        {"median": 2.0, "p90": np.quantile([1, 2, 3], 0.9), "max": 3.0}
    )
    assert found.records_left_out == 0
    assert as_dict(found).keys() == {
        "step",
        "train_loss",
        "gradient_norm",
        "clip_rate",
        "records_left_out",
        "augmented_lagrangian",
    }


@given(norms=st.lists(st.floats(0, 100, width=32), min_size=1, max_size=30))
def test_quantiles_and_clip_rate_are_numpys(norms):
    found = measured(batch([norms], [norms]), torch.ones(1, len(norms), dtype=torch.bool), clip=1.5)
    assert found.gradient_norm is not None
    assert found.gradient_norm.median == pytest.approx(np.quantile(norms, 0.5))
    assert found.gradient_norm.p90 == pytest.approx(np.quantile(norms, 0.9))
    assert found.gradient_norm.largest == max(norms)
    assert found.clip_rate == pytest.approx(np.mean(np.array(norms) > 1.5))


def test_norms_that_are_not_finite_are_left_out():
    everyone = torch.ones(1, 3, dtype=torch.bool)
    found = measured(batch([[1.0, math.nan, math.inf]], [[1.0] * 3]), everyone, clip=0.5)
    assert found.gradient_norm == GradientNorms(median=1.0, p90=1.0, max=1.0)
    assert found.records_left_out == 2
    none = measured(batch([[math.nan] * 3], [[1.0] * 3]), everyone, clip=0.5)
    assert none.records_left_out == 3
    assert (none.train_loss, none.gradient_norm, none.clip_rate) == (1.0, None, None)


def test_without_a_batch_or_a_bound_there_is_nothing_to_tell():
    some = batch([[1.0]], [[0.5]])
    empty = measured(some, torch.tensor([[False]]), 1.0)
    assert empty == measured(None, None, 1.0)
    assert (empty.train_loss, empty.gradient_norm, empty.clip_rate) == (None, None, None)
    unclipped = measured(some, torch.tensor([[True]]), None)
    assert (unclipped.train_loss, unclipped.gradient_norm) == (0.5, None)


def test_series_are_columns_with_gaps():
    nothing = dict.fromkeys(Measurement.model_fields) | {
        "step": 0,
        "clip": math.inf,
        "test_metrics": {},
    }
    scores = {"mean": 1.0, "worst": 0.5, "consensus": 0.7}
    rows = [
        read(Measurement, {**nothing, "a": 1}, "a test"),
        Measurement(**{**nothing, "step": 2, "clip": math.inf, "test_loss": Scores(**scores)}),
    ]
    columns = series(rows)
    assert list(columns) == [*Measurement.model_fields, "a"]
    assert (columns["step"], columns["a"]) == ([0, 2], [1, None])
    assert columns["clip"] == [None, math.inf]  # as it was read, and as it was measured
    assert columns["test_loss"] == [None, scores]
    assert series([]) == {}


def test_a_model_that_all_nodes_share_is_evaluated_once_and_told_of_each():
    module, test = problem("cross-entropy")
    loss = LOSSES["cross-entropy"]
    engine = build(module, loss, test.inputs, test.targets, dtype=torch.float64, device="cpu")
    shared = torch.ones(1, engine.parameters_count, dtype=torch.float64)
    common = Released(shared[0])
    found = evaluate(engine, loss, Released(shared), common, test, nodes=NODES).value
    repeated = Released(shared.repeat(NODES, 1))
    assert found == evaluate(engine, loss, repeated, common, test).value
    assert found == evaluate(engine, loss, repeated, common, test, nodes=NODES).value
    assert len(found.rows[0]) == NODES + 1


def test_private_models_are_not_scored():
    module, test = problem("cross-entropy")
    loss = LOSSES["cross-entropy"]
    engine = build(module, loss, test.inputs, test.targets, dtype=torch.float64, device="cpu")
    models = Private(torch.ones(1, engine.parameters_count, dtype=torch.float64))
    with pytest.raises(LeakError, match="a node's model is a Private"):
        evaluate(engine, loss, models, Released(models.value[0]), test)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ((1.7e308, 1.7e308), 1.7e308),
        ((-1.7e308, 1.7e308, -1.7e308, -1.7e308), -0.85e308),
        ((math.inf, -math.inf), math.nan),
        ((math.inf, 1.7e308), math.inf),
        ((0.1, 0.2, 0.3), 0.2),
    ],
)
def test_means_over_nodes_are_of_any_numbers(values, mean):
    found = summaries(Evaluation(((*values, 1.0),) * 2), (), Baselines(None, None, ()))
    for summary in (found["test_loss"], found["test_accuracy"]):
        assert summary is not None
        assert summary.mean == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "huber"])
def test_losses_of_all_models_at_once_have_the_bits_of_each_alone(loss):
    generator, kind = torch.Generator().manual_seed(0), LOSSES[loss]
    for models, records, width in [
        (5, 1, 3),
        (3, 17, 10),
        (33, 100, 17),
        (2, 5000, 10),
        (3, 2**15 - 1, 3),
    ]:
        width = width if loss == "cross-entropy" else 1
        outputs = 5 * torch.randn(models, records, width, generator=generator)
        targets = torch.randint(width, (records,), generator=generator)
        targets = targets if kind.labels else targets.float() - 0.3
        at_once = metrics._means(True, kind.per_record, None, outputs, targets)
        assert at_once == [float(kind.per_record(own, targets).mean()) for own in outputs]
