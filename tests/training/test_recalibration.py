"""Recalibration of log-odds: which record counts where, what is fitted, and where it is put."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from torch import nn

from few import few
from tacit import gradients
from tacit.data import Dataset
from tacit.errors import InputError
from tacit.gradients import LOSSES
from tacit.models.architectures import build_model
from tacit.models.probabilities import log_odds
from tacit.training.recalibration import edges_of, find_recalibration, fit, halves, histogram

ANY = st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30, 1e308, -0.0, 5e-324, 0.3, -2.0])
VALUES = st.lists(ANY, min_size=1, max_size=12)


def public(count=60, classes=2, shape=(5,)):
    inputs = torch.randn(count, *shape, generator=torch.Generator().manual_seed(3))
    return Dataset(inputs, torch.arange(count) % classes)


def engine(module, records, loss):
    few = records.inputs[:8], records.targets[:8]
    return gradients.build(module, LOSSES[loss], *few, dtype=torch.float32, device="cpu")


@given(odds=VALUES, place=st.integers(0, 11), other=ANY, label=st.floats(), edges=VALUES)
def test_a_record_adds_one_to_one_count_whatever_it_is(odds, place, other, label, edges):
    """The counts with a record, without it, and with another in its place."""
    known = np.unique([edge for edge in edges if math.isfinite(edge)])
    values, labels = np.array(odds), torch.arange(len(odds)).double() % 2
    place %= len(odds)
    whole = histogram(values, labels, known)
    without = histogram(np.delete(values, place), labels[torch.arange(len(labels)) != place], known)
    assert whole.shape == without.shape == (2 * len(known) + 2,)
    assert sorted(whole - without)[-2:] == [0.0, 1.0]
    assert float(np.abs(whole - without).sum()) == 1.0
    values[place], labels[place] = other, label
    moved = histogram(values, labels, known) - whole
    assert float(np.square(moved).sum()) in (0.0, 2.0)  # sqrt(2) in the l2 norm, accounted as 2


@given(seed=st.integers(0, 1000), count=st.integers(2, 40))
def test_halves_share_no_record_and_have_every_class_alike(seed, count):
    targets = torch.randint(0, 3, (count,), generator=torch.Generator().manual_seed(seed))
    records = Dataset(torch.arange(count)[:, None].float(), targets)
    scored, fitted = halves(records)
    together = torch.cat([scored.inputs, fitted.inputs]).flatten()
    assert together.sort().values.tolist() == list(range(count))
    for part in (scored, fitted):
        assert part.inputs.flatten().tolist() == sorted(part.inputs.flatten().tolist())
        assert torch.equal(part.targets, targets[part.inputs.flatten().long()])
    for label in range(3):
        sizes = [int((part.targets == label).sum()) for part in (scored, fitted)]
        assert abs(sizes[0] - sizes[1]) <= 1


MODELS = {
    "one output": lambda: (nn.Linear(5, 1), (5,), "logistic"),
    "two outputs": lambda: (nn.Linear(5, 2), (5,), "cross-entropy"),
    "mlp": lambda: (build_model("mlp", input_shape=(5,), outputs=2, seed=1), (5,), "cross-entropy"),
    "cnn": lambda: (
        build_model("cnn", input_shape=(1, 8, 8), outputs=2, seed=1),
        (1, 8, 8),
        "cross-entropy",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layer_takes_slope_and_intercept(name):
    module, shape, loss = MODELS[name]()
    records = public(shape=shape)
    model = engine(module, records, loss)
    found = find_recalibration("public", model, LOSSES[loss], records, torch.float32)
    models = torch.randn(3, model.parameters_count, generator=torch.Generator().manual_seed(1)) / 4
    before = model.outputs(models, records.inputs)
    after = model.outputs(found.applied(models, 0.3, -2.0), records.inputs)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(log_odds(other), 0.3 * log_odds(one) - 2, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.applied(models[0], 0.3, -2.0), found.applied(models, 0.3, -2.0)[0])


class Squashed(nn.Module):
    """Ends with a function that no slope and intercept of its layer can stretch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, inputs):
        return torch.tanh(self.layer(inputs))


@pytest.mark.parametrize(
    ("how", "module", "records", "words"),
    [
        ("public", nn.Linear(5, 2), None, "needs public test records"),
        ("private", nn.Linear(5, 3), public(classes=3), "is of two classes"),
        ("public", nn.Linear(5, 2), public(classes=1), "of both classes"),
        ("public", nn.Linear(5, 2, bias=False), public(), "linear layer with a bias"),
        ("private", Squashed(), public(), "linear layer with a bias"),
    ],
)
def test_what_cannot_be_recalibrated_is_refused(how, module, records, words):
    loss = "logistic" if isinstance(module, Squashed) else "cross-entropy"
    classes = 3 if "two classes" in words else 2
    model = engine(module, records or public(classes=classes), loss)
    with pytest.raises(InputError, match=words) as caught:
        find_recalibration(how, model, LOSSES[loss], records, torch.float32)
    assert caught.value.where == "task.calibrate"


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 3.0), (0.05, -2.5), (4.0, 30.0)])
@pytest.mark.parametrize("deviation", [0.0, 12.0])
def test_counts_give_back_the_law_that_they_are_of(slope, intercept, deviation):
    """Predicted over observed within a tenth, and the slope near that of a logistic regression."""
    draw = np.random.default_rng(5)
    odds, shown = draw.normal(-8, 2.5, 30_000), draw.normal(-8, 2.5, 3000)
    labels = (draw.random(len(odds)) < expit(slope * odds + intercept)).astype(int)
    edges = edges_of(shown)
    counts = histogram(odds, torch.from_numpy(labels), edges)
    found = fit(counts + deviation * draw.normal(size=counts.shape), shown, edges, deviation)
    predicted = expit(found[0] * odds + found[1])
    assert predicted.mean() / labels.mean() == pytest.approx(1, abs=0.1)
    right = LogisticRegression(C=np.inf, tol=1e-10).fit(odds[:, None], labels).coef_[0, 0]
    assert found[0] == pytest.approx(right, rel=0.35)
    assert np.square(predicted - labels).mean() <= labels.mean() * (1 - labels.mean())


@few(12)
@given(
    counts=st.lists(st.floats(-1e4, 1e4), min_size=20, max_size=20),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
    deviation=st.sampled_from([0.0, 1.0, 1e3]),
)
def test_any_counts_give_a_slope_above_zero(counts, scale, deviation):
    """So that no record changes its place: noise may leave nothing of the counts."""
    odds = scale * np.random.default_rng(0).normal(size=200)
    edges = edges_of(odds)
    slope, intercept = fit(np.array(counts[: 2 * len(edges) + 2]), odds, edges, deviation)
    assert 0 < slope < math.inf
    assert math.isfinite(intercept)
