"""Metrics of whole test sets against scikit-learn, their baselines, and what is refused."""

import logging
import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve

from few import few
from tacit.errors import InputError
from tacit.gradients import LOSSES, loss_from_mean, weighted
from tacit.models.metrics import (
    METRICS,
    baselines,
    check_metrics,
    find_metrics,
    majority,
    named_metrics,
    score,
    score_on_the_way,
)
from tacit.models.probabilities import (
    brier,
    calibration,
    calibration_bins,
    calibration_slope,
    log_loss,
    log_shares,
)

LABELS = [name for name in METRICS if name not in ("mae", "rmse", "r2", "calibration-slope")]
NUMBERS = ["mae", "rmse", "r2"]


def scored(name, outputs, targets):
    (metric,) = find_metrics([name])
    return score(metric, outputs, targets)


def of_two_classes(name, scores, labels):
    """By scikit-learn, of the scores of class 1."""
    predicted = (scores > 0).astype(int)
    return {
        "accuracy": lambda: sklearn_metrics.accuracy_score(labels, predicted),
        "balanced-accuracy": lambda: sklearn_metrics.balanced_accuracy_score(labels, predicted),
        "auc": lambda: sklearn_metrics.roc_auc_score(labels, scores),
        "average-precision": lambda: sklearn_metrics.average_precision_score(labels, scores),
        "f1": lambda: sklearn_metrics.f1_score(labels, predicted),
        "brier": lambda: sklearn_metrics.brier_score_loss(labels, expit(scores)),
        "log-loss": lambda: sklearn_metrics.log_loss(labels, expit(scores)),
        "calibration": lambda: expit(scores).mean() / labels.mean(),
    }[name]()


def of_many_classes(name, outputs, labels):
    """By scikit-learn, of softmax probabilities."""
    shares = np.exp(outputs - outputs.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    predicted = outputs.argmax(1)
    hot = labels[:, None] == np.arange(outputs.shape[1])
    return {
        "accuracy": lambda: sklearn_metrics.accuracy_score(labels, predicted),
        "balanced-accuracy": lambda: sklearn_metrics.balanced_accuracy_score(labels, predicted),
        "auc": lambda: sklearn_metrics.roc_auc_score(labels, shares, multi_class="ovr"),
        "average-precision": lambda: sklearn_metrics.average_precision_score(hot, shares),
        "f1": lambda: sklearn_metrics.f1_score(labels, predicted, average="macro"),
        "brier": lambda: sklearn_metrics.brier_score_loss(labels, shares),
        "log-loss": lambda: sklearn_metrics.log_loss(labels, shares),
        "calibration": lambda: shares.max(1).mean() / (predicted == labels).mean(),
    }[name]()


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("writing", ["two outputs", "one output", "column", "signs"])
@few(6, 20)
@given(
    values=st.lists(st.sampled_from([-3.0, -0.5, 0.25, 0.5, 2.0, 9.0]), min_size=6, max_size=30),
    seed=st.integers(0, 1000),
)
def test_scores_of_two_classes_are_scikit_learns(name, writing, values, seed):
    labels = np.random.default_rng(seed).integers(0, 2, len(values))
    labels[:2] = 0, 1
    scores, targets = torch.tensor(values, dtype=torch.float64), torch.from_numpy(labels)
    outputs = {
        "two outputs": torch.stack([scores / 3, scores * 4 / 3], 1),
        "one output": scores,
        "column": scores[:, None],
        "signs": scores[:, None],
    }[writing]
    if writing == "signs":
        targets = (2 * targets - 1).float()[:, None]
    right = of_two_classes(name, scores.numpy(), labels)
    assert scored(name, outputs, targets) == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize("name", LABELS)
@few(6, 20)
@given(seed=st.integers(0, 1000), classes=st.integers(3, 6))
def test_scores_of_many_classes_are_scikit_learns(name, seed, classes):
    draw = np.random.default_rng(seed)
    outputs = draw.normal(size=(40, classes))
    labels = np.concatenate([np.arange(classes), draw.integers(0, classes, 40 - classes)])
    found = scored(name, torch.from_numpy(outputs), torch.from_numpy(labels))
    assert found == pytest.approx(of_many_classes(name, outputs, labels), abs=1e-12)


@pytest.mark.parametrize("columns", [1, 3])
@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_scores_of_numbers_are_scikit_learns(columns, seed):
    draw = np.random.default_rng(seed)
    wanted, found = draw.normal(size=(2, 17, columns))
    pair = torch.from_numpy(found).squeeze(), torch.from_numpy(wanted)
    mean_squares = ((wanted - found) ** 2).mean(0)
    assert scored("mae", *pair) == pytest.approx(np.abs(wanted - found).mean())
    assert scored("rmse", *pair) == pytest.approx(np.sqrt(mean_squares).mean())
    assert scored("r2", *pair) == pytest.approx((1 - mean_squares / wanted.var(0)).mean())


def test_classes_without_a_test_record_are_left_out_of_the_mean():
    outputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = torch.arange(30) % 3
    shares = outputs.softmax(1).numpy()
    for name, function in (
        ("auc", sklearn_metrics.roc_auc_score),
        ("average-precision", sklearn_metrics.average_precision_score),
    ):
        right = np.mean([function(targets.numpy() == k, shares[:, k]) for k in range(3)])
        assert scored(name, outputs, targets) == pytest.approx(right)


def test_records_that_a_probability_cannot_tell_apart_are_still_ranked():
    far = torch.tensor([[0.0, 900.0], [0.0, 800.0], [0.0, 700.0], [0.0, 600.0]])
    assert scored("auc", far, torch.tensor([1, 1, 0, 0])) == 1.0


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_not_finite_have_no_score(name, bad):
    outputs = torch.tensor([[1.0], [bad], [0.5]])
    assert math.isnan(scored(name, outputs, torch.tensor([[0.0], [1.0], [1.0]])))


def checked(name, loss, outputs, targets, records=1000):
    check_metrics(find_metrics([name]), loss, outputs[:8], targets, records)


OUTPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
CLASSES = torch.arange(40) % 3
LINEAR = torch.linspace(0, 1, 40)[:, None]


@pytest.mark.parametrize(
    ("name", "loss", "outputs", "targets", "records", "where", "text"),
    [
        ("auc", "cross-entropy", OUTPUTS, CLASSES * 0, 9, "task.metric", "all 40 .* same class"),
        ("r2", "mse", LINEAR, LINEAR * 0, 9, "task.metric", "all 40 .* same target"),
        (
            "average-precision",
            "cross-entropy",
            OUTPUTS,
            CLASSES.sort().values,
            9,
            "train.evaluate_records",
            "first 9 .* give 15 or more",
        ),
        ("auc", "mse", LINEAR, LINEAR.round(), 9, "task.metric", "needs classes"),
        ("f1", "mse", LINEAR, LINEAR, 9, "task.metric", "needs classes"),
        ("mae", "cross-entropy", OUTPUTS, CLASSES, 9, "task.metric", "needs targets that are num"),
        ("r2", "logistic", LINEAR, LINEAR.round(), 9, "task.metric", "needs targets that are num"),
    ],
)
def test_a_metric_that_is_not_defined_is_refused(
    name, loss, outputs, targets, records, where, text
):
    with pytest.raises(InputError, match=text) as caught:
        checked(name, LOSSES[loss], outputs, targets, records)
    assert caught.value.where == where
    assert "\n" not in str(caught.value)


def binary(outputs, targets):
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets)


def test_a_users_loss_of_one_output_has_classes_where_targets_are_0_and_1():
    own = loss_from_mean("mine", binary)
    checked("auc", own, LINEAR, LINEAR.round())
    with pytest.raises(InputError, match="needs classes"):
        checked("auc", own, LINEAR, LINEAR)


def mean_output(outputs, targets):
    return outputs.mean()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda o, t: o, r"returned a Tensor of shape \[40, 3\]"),
        (lambda o, t: "much", "returned a str"),
        (lambda o, t: None, "returned a NoneType"),
        (lambda o: 1.0, "TypeError"),
        (lambda o, t: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_function_that_gives_no_number_is_one_line(function, text):
    (metric,) = find_metrics(["given:mine"], {"given:mine": function})
    with pytest.raises(InputError, match=text) as caught:
        check_metrics([metric], LOSSES["cross-entropy"], OUTPUTS, CLASSES, 1000)
    assert (caught.value.where, caught.value.value) == ("task.metric", "mine")
    assert "\n" not in str(caught.value)


def test_a_function_that_fails_on_the_way_costs_its_score_alone(caplog):
    (metric,) = find_metrics(["given:mine"], {"given:mine": lambda o, t: 1 / 0})
    with caplog.at_level(logging.WARNING, "tacit"):
        assert math.isnan(score_on_the_way(metric, OUTPUTS, CLASSES))
    assert "ZeroDivisionError" in caplog.text


def test_names_and_functions_keep_their_order():
    found = named_metrics(["f1", mean_output, "auc"])
    assert list(found) == ["f1", "given:mean_output", "auc"]
    metrics = find_metrics(list(found), {k: f for k, f in found.items() if f is not None})
    assert [metric.name for metric in metrics] == ["f1", "mean_output", "auc"]
    assert named_metrics(None) == {}
    assert list(named_metrics(mean_output)) == ["given:mean_output"]
    assert list(named_metrics("auc")) == ["auc"]


def auc(outputs, targets):
    return 0.0


@pytest.mark.parametrize("wrong", [[], 3, ["auc", 3], ["auc", "auc"], [mean_output] * 2, auc])
def test_what_is_no_metric_is_refused(wrong):
    with pytest.raises(InputError, match=r"^metric = "):
        named_metrics(wrong)


def test_a_metric_that_was_an_object_is_asked_for_again():
    with pytest.raises(InputError, match="pass it as metric= again"):
        find_metrics(["given:mine"])


# Baselines.


@settings(max_examples=20)
@given(counts=st.lists(st.integers(1, 40), min_size=2, max_size=5), weight=st.floats(0.1, 10))
def test_baselines_of_classes(counts, weight):
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    shares = np.array(counts) / sum(counts)
    example = torch.zeros(3, len(counts))
    names = find_metrics(["auc", "balanced-accuracy", "accuracy"])
    plain = baselines(names, LOSSES["cross-entropy"], example, targets)
    assert plain.accuracy == pytest.approx(shares.max())
    assert plain.loss == pytest.approx(-(shares * np.log(shares)).sum())
    assert plain.metrics == pytest.approx((0.5, 1 / len(counts), shares.max()))

    weights = np.array([weight] + [1.0] * (len(counts) - 1))
    found = baselines(names, weighted(LOSSES["cross-entropy"], weights), example, targets)
    masses = shares * weights / weights.mean()  # no constant has a lower weighted loss
    assert found.loss == pytest.approx(-(masses * np.log(masses / masses.sum())).sum())
    assert (found.accuracy, found.metrics) == (plain.accuracy, plain.metrics)


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_baselines_of_one_output(low):
    targets = torch.tensor([1.0] * 3 + [low] * 9)
    found = baselines(
        find_metrics(["average-precision", "f1"]), LOSSES["logistic"], LINEAR[:, 0], targets
    )
    assert found.accuracy == 0.75
    assert found.loss == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert found.metrics == (0.25, 0.0)


def test_baselines_of_numbers_are_those_of_the_mean():
    draw = torch.Generator().manual_seed(3)
    targets = torch.randn(50, 2, generator=draw)
    found = baselines(find_metrics(NUMBERS), LOSSES["mse"], OUTPUTS[:, :2], targets)
    spread = (targets - targets.mean(0)).double().numpy()
    assert found.accuracy is None
    assert found.loss == pytest.approx((spread**2).mean(), rel=1e-6)
    right = (np.abs(spread).mean(), np.sqrt((spread**2).mean(0)).mean(), 0.0)
    assert found.metrics == pytest.approx(right, rel=1e-6)
    assert found.metrics[2] == 0.0


def test_what_is_not_known_has_no_baseline():
    own = loss_from_mean("mine", binary)
    given_metrics = {"given:mine": lambda o, t: 1 / 0, "given:nan": lambda o, t: math.nan}
    metrics = find_metrics(list(given_metrics), given_metrics)
    found = baselines(metrics, own, LINEAR, LINEAR.round())
    assert (found.accuracy, found.loss, found.metrics) == (None, None, (None, None))
    unfit = baselines(find_metrics(["given:mine"], given_metrics), own, OUTPUTS, LINEAR)
    assert (unfit.loss, unfit.metrics) == (None, (None,))
    assert majority(replace(own, formula="mse"), LINEAR, LINEAR.round()) is None


# Probabilities against scikit-learn and exact arithmetic, saturated ones and ties among them.


LOGITS = st.sampled_from([-100.0, -88.75, -20.0, -0.5, 0.0, 0.5, 3.0, 37.0, 100.0])
RECORDS = st.lists(st.tuples(LOGITS, st.integers(0, 1)), min_size=2, max_size=30)


@given(records=RECORDS, two=st.booleans())
def test_saturated_probabilities_are_scored_as_exact_arithmetic_scores_them(records, two):
    logits = torch.tensor([logit for logit, _ in records], dtype=torch.float32)
    labels = torch.tensor([label for _, label in records])
    outputs = torch.stack([logits * 0, logits], 1) if two else logits[:, None]
    with mpmath.workdps(120):
        shares = [1 / (1 + mpmath.exp(-mpmath.mpf(logit))) for logit, _ in records]
        pairs = list(zip(shares, labels.tolist(), strict=True))
        loss = -sum(mpmath.log(p if y else 1 - p) for p, y in pairs) / len(pairs)
        square = sum((p - y) ** 2 for p, y in pairs) / len(pairs)
        ratio = sum(shares) / max(1, int(labels.sum()))
    assert log_loss(outputs, labels) == pytest.approx(float(loss), rel=1e-12)
    assert brier(outputs, labels) == pytest.approx(float(square), rel=1e-12, abs=1e-16)
    if labels.any():
        assert calibration(outputs, labels) == pytest.approx(float(ratio), rel=1e-12)
    else:
        assert math.isnan(calibration(outputs, labels))


def newton(odds, labels):
    """Intercept and slope of a logistic regression, by Newton's method with halved steps."""
    features, fit = np.stack([np.ones_like(odds), odds], 1), np.zeros(2)

    def loss(at):
        return float((np.logaddexp(0, features @ at) - labels * (features @ at)).mean())

    for _ in range(200):
        shares = expit(features @ fit)
        curvature = (features * (shares * (1 - shares))[:, None]).T @ features
        step = np.linalg.solve(curvature, features.T @ (shares - labels))
        while loss(fit - step) > loss(fit) and np.abs(step).max() > 1e-12:
            step = step / 2
        fit = fit - step
    return fit


@few(12)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-6, 0.1, 1.0, 30.0, 1e30]))
def test_the_slope_is_that_of_a_logistic_regression_without_penalty(seed, scale):
    draw = np.random.default_rng(seed)
    odds = np.round(draw.normal(size=80), 1)  # with ties
    labels = (draw.random(80) < expit(draw.normal() + draw.choice([-1, 0.3, 2]) * odds)).astype(int)
    assume(0 < labels.sum() < 80)
    ends = [(odds[labels == k].min(), odds[labels == k].max()) for k in (0, 1)]
    assume(ends[0][1] > ends[1][0] and ends[1][1] > ends[0][0])
    right = newton(odds, labels)[1]
    found = calibration_slope(torch.from_numpy(odds * scale), torch.from_numpy(labels))
    assert found * scale == pytest.approx(right, rel=1e-5, abs=1e-7)


def test_a_slope_of_what_is_told_apart_without_a_mistake_is_infinite():
    odds, labels = torch.tensor([-9.0, -2.0, 1.0, 100.0]), torch.tensor([0, 0, 1, 1])
    assert calibration_slope(odds, labels) == math.inf
    assert calibration_slope(odds, 1 - labels) == -math.inf
    assert math.isnan(calibration_slope(torch.ones(4), labels))
    assert math.isnan(calibration_slope(odds, torch.ones(4)))


@given(records=RECORDS)
def test_the_curve_is_scikit_learns_and_holds_every_record_once(records):
    logits = torch.tensor([logit for logit, _ in records], dtype=torch.float64)
    labels = torch.tensor([label for _, label in records])
    bins = calibration_bins(logits, labels)
    shares = log_shares(logits).exp()[:, 1].numpy()
    observed, predicted = calibration_curve(labels.numpy(), shares, n_bins=10, strategy="quantile")
    assert [row[0] for row in bins] == pytest.approx(list(predicted))
    assert [row[1] for row in bins] == pytest.approx(list(observed))
    assert sum(count for *_, count in bins) == len(records)
    told = sum(Fraction(share).limit_denominator(100) * count for _, share, count in bins)
    assert told == int(labels.sum())


def test_the_curve_of_several_classes_is_of_the_predicted_one():
    outputs = torch.randn(400, 5, generator=torch.Generator().manual_seed(4)) * 3
    targets = torch.arange(400) % 5
    sure, chosen = outputs.double().softmax(1).max(1)
    right = (chosen == targets).double()
    bins = calibration_bins(outputs, targets)
    assert len(bins) == 10
    assert sum(p * n for p, _, n in bins) == pytest.approx(float(sure.sum()))
    assert sum(o * n for _, o, n in bins) == pytest.approx(float(right.sum()))
