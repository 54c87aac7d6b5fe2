"""Each loss against torch's own, its accuracy, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.gradients import LOSSES, loss_from_mean

OUTPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SCORES = OUTPUTS[:, :1]
CLASSES = torch.tensor([0, 1, 2, 2, 1, 0])
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "reference"),
    [
        ("cross-entropy", OUTPUTS, CLASSES, nn.CrossEntropyLoss()),
        ("mse", OUTPUTS, OUTPUTS.flip(0), nn.MSELoss()),
        ("mse", SCORES, SIGNS, lambda o, t: nn.MSELoss()(o[:, 0], t)),
        ("mse", SCORES[:, 0], SIGNS[:, None], lambda o, t: nn.MSELoss()(o, t[:, 0])),
        ("mse", OUTPUTS.view(3, 2, 3), OUTPUTS.flip(0).view(3, 6), None),
        ("logistic", SCORES, SIGNS, lambda o, t: nn.SoftMarginLoss()(o[:, 0], t)),
        ("logistic", SCORES[:, 0], SIGNS, nn.SoftMarginLoss()),
        ("logistic", SCORES, SIGNS[:, None], nn.SoftMarginLoss()),
    ],
)
def test_mean_over_records_is_torchs(
    name: str, outputs: Tensor, targets: Tensor, reference: nn.Module | None
) -> None:
    found = LOSSES[name].per_record(outputs, targets)
    assert found.shape == outputs.shape[:1]
    LOSSES[name].check(outputs, targets)
    if reference is None:
        right = nn.MSELoss()(outputs, targets.view_as(outputs))
    else:
        right = reference(outputs, targets)
    torch.testing.assert_close(found.mean(), right, rtol=1e-12, atol=1e-12)


@given(st.floats(-700, 700))
def test_logistic_is_exact_far_from_zero(margin: float) -> None:
    score = torch.tensor([[margin]], dtype=torch.float64, requires_grad=True)
    loss = LOSSES["logistic"].per_record(score, torch.ones(1, dtype=torch.float64))
    (slope,) = torch.autograd.grad(loss.sum(), score)
    exact = torch.logaddexp(torch.zeros(1, dtype=torch.float64), -score.detach()[0])
    torch.testing.assert_close(loss.detach(), exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, -torch.sigmoid(-score.detach()), rtol=1e-12, atol=0)


def test_accuracy() -> None:
    right = LOSSES["cross-entropy"].accuracy(torch.eye(3), torch.tensor([0, 1, 1]))
    assert right.tolist() == [1.0, 1.0, 0.0]
    scores = torch.tensor([[2.0], [-1.0], [-3.0], [0.0]])
    right = LOSSES["logistic"].accuracy(scores, torch.tensor([1.0, 1.0, -1.0, 1.0]))
    assert right.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert LOSSES["mse"].accuracy is None


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "where", "text"),
    [
        ("cross-entropy", torch.ones(2), CLASSES, "task.model", r"\[2\].*\[records, classes\]"),
        ("cross-entropy", torch.ones(2, 3), CLASSES.float(), "task.dataset", "int64"),
        ("cross-entropy", torch.ones(2, 3), CLASSES[:, None], "task.dataset", "int64"),
        ("cross-entropy", torch.ones(2, 2), CLASSES, "task.dataset", "target of 2.*0..1"),
        ("cross-entropy", torch.ones(2, 3), CLASSES - 1, "task.dataset", "target of -1"),
        ("mse", torch.ones(2, 3), SIGNS, "task.model", "1 outputs a record"),
        ("mse", torch.ones(2, 1), CLASSES, "task.dataset", "floating-point"),
        ("mse", torch.ones(2, 1), SIGNS / 0, "task.dataset", "finite"),
        ("logistic", torch.ones(2, 2), SIGNS, "task.model", r"\[2, 2\].*one score"),
        ("logistic", torch.ones(2, 1), torch.ones(2, 2), "task.dataset", "one target"),
        ("logistic", torch.ones(2, 1), CLASSES, "task.dataset", "-1 or 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, outputs: Tensor, targets: Tensor, where: str, text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        LOSSES[name].check(outputs, targets)
    assert caught.value.where == where
    assert "\n" not in str(caught.value)


def test_a_users_mean_loss_is_evaluated_for_each_record_alone() -> None:
    loss = loss_from_mean("mine:huber", nn.HuberLoss())
    right = torch.stack([nn.HuberLoss()(o, t) for o, t in zip(OUTPUTS, 3 * OUTPUTS, strict=True)])
    torch.testing.assert_close(loss.per_record(OUTPUTS, 3 * OUTPUTS), right)
    loss.check(OUTPUTS, 3 * OUTPUTS)


def test_a_users_loss_that_fails_is_refused_in_one_line() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("first\nsecond")

    with pytest.raises(InputError, match=r"task\.loss.*RuntimeError: first") as caught:
        loss_from_mean("mine:broken", broken).check(OUTPUTS, OUTPUTS)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="finite"):
        loss_from_mean("mine:log", lambda o, t: (o - o).log().sum()).check(OUTPUTS, OUTPUTS)
