"""Each loss against torch's own, its accuracy, and what it refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.gradients import LOSSES
from tacit.gradients.losses import natural_outputs

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
        ("cross-entropy", torch.ones(2, 2), CLASSES, "task.dataset", "records.*0..1"),
        ("cross-entropy", torch.ones(2, 3), CLASSES - 1, "task.dataset", "records.*must lie"),
        ("mse", torch.ones(2, 3), SIGNS, "task.model", "1 outputs a record"),
        ("mse", torch.ones(2, 1), CLASSES, "task.dataset", "floating-point"),
        ("mse", torch.ones(2, 1), SIGNS / 0, "task.dataset", "finite"),
        ("logistic", torch.ones(2, 2), SIGNS, "task.model", r"\[2, 2\].*one score"),
        ("logistic", torch.ones(2, 1), torch.ones(2, 2), "task.dataset", "one target"),
        (
            "logistic",
            torch.ones(2, 1),
            CLASSES,
            "task.dataset",
            "records.*-1 or 1, or 0 or 1",
        ),
        (
            "logistic",
            torch.ones(2, 1),
            CLASSES - 1,
            "task.dataset",
            "records.*-1 or 1, or 0",
        ),
        ("logistic", torch.ones(2, 1), SIGNS / 2, "task.dataset", "records.*-1 or 1"),
        ("logistic", torch.ones(2, 1), SIGNS / 0, "task.dataset", "records.*-1 or 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, outputs: Tensor, targets: Tensor, where: str, text: str
) -> None:
    with pytest.raises(InputError, match=text) as caught:
        LOSSES[name].check(outputs, targets)
    assert caught.value.where == where
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.float64])
@pytest.mark.parametrize("column", [False, True])
def test_logistic_takes_either_writing_of_two_classes(dtype: torch.dtype, column: bool) -> None:
    loss = LOSSES["logistic"]
    signs = SIGNS.view(6, 1) if column else SIGNS
    right = loss.per_record(SCORES, SIGNS)
    for targets in (signs.to(dtype), ((signs + 1) / 2).to(dtype)):
        loss.check(SCORES, targets)
        found = loss.per_record(SCORES, targets)
        assert found.dtype == torch.float64
        assert torch.equal(found, right)
        assert torch.equal(loss.accuracy(SCORES, targets), loss.accuracy(SCORES, SIGNS))
        assert loss.outputs(targets, None) == 1


@pytest.mark.parametrize(
    ("name", "targets", "classes", "outputs"),
    [
        ("cross-entropy", torch.tensor([0, 4, 6]), None, 7),
        ("cross-entropy", torch.tensor([0, 0]), None, 2),
        ("cross-entropy", torch.tensor([0, 4, 6]), 10, 10),
        ("cross-entropy", torch.tensor([0, 4, 6])[:0], 10, 10),
        ("cross-entropy", torch.tensor([0, 4, 6])[:0], None, None),
        ("mse", torch.zeros(4), 10, 1),
        ("mse", torch.zeros(4, 2, 3)[:0], None, 6),
        ("logistic", torch.tensor([0, 1])[:0], None, 1),
    ],
)
def test_outputs_of_a_built_in_model(
    name: str, targets: Tensor, classes: int | None, outputs: int | None
) -> None:
    assert LOSSES[name].outputs(targets, classes) == outputs


@pytest.mark.parametrize(
    ("targets", "outputs"),
    [
        (torch.tensor([0, 4]), 5),
        (torch.tensor([[0], [2]]), 3),
        (torch.tensor([0]), 2),
        (torch.tensor([-1, 1]), 1),
        (torch.tensor([[0, 1, 1], [2, 0, 0]]), 3),
        (torch.zeros(5), 1),
        (torch.zeros(5, 2, 2), 4),
        (torch.zeros(0, dtype=torch.int64), None),
        (torch.zeros(0, 1, dtype=torch.int64), None),
    ],
)
def test_outputs_that_public_targets_suggest(targets: Tensor, outputs: int | None) -> None:
    assert natural_outputs(targets, None) == outputs


def test_cross_entropy_needs_class_labels() -> None:
    with pytest.raises(InputError, match="integer class labels") as caught:
        LOSSES["cross-entropy"].outputs(torch.zeros(3), None)
    assert caught.value.where == "task.loss"
