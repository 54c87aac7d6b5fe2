"""Probabilities against scikit-learn and exact arithmetic, saturated ones and ties among them."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.calibration import calibration_curve

from few import few
from tacit.models.probabilities import (
    brier,
    calibration,
    calibration_bins,
    calibration_slope,
    log_loss,
    log_shares,
)

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
