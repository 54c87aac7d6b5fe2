"""A user's own loss and metric: what they are, and what is refused."""

from collections.abc import Callable

import pytest
import torch
from gradient_problems import FLOAT64, generator
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.gradients import LOSSES, build, loss_from_mean, with_metric

OUTPUTS = torch.randn(6, 3, generator=generator(0), dtype=FLOAT64)
TARGETS = 3 * OUTPUTS
CLASSES = torch.tensor([0, 1, 2, 2, 1, 0])
Function = Callable[[Tensor, Tensor], Tensor]


def test_it_is_evaluated_for_each_record_alone() -> None:
    loss = loss_from_mean("mine:huber", nn.HuberLoss())
    right = torch.stack([nn.HuberLoss()(o, t) for o, t in zip(OUTPUTS, TARGETS, strict=True)])
    torch.testing.assert_close(loss.per_record(OUTPUTS, TARGETS), right)
    loss.check(OUTPUTS, TARGETS)
    assert (loss.name, loss.accuracy) == ("mine:huber", None)


@pytest.mark.parametrize(
    ("function", "outputs", "targets"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.1), OUTPUTS, CLASSES),
        (nn.HuberLoss(), OUTPUTS, TARGETS),
        (nn.BCELoss(), OUTPUTS.sigmoid(), (OUTPUTS > 0).double()),
        (nn.BCEWithLogitsLoss(), 0 * OUTPUTS, (OUTPUTS > 0).double()),
        (nn.NLLLoss(), OUTPUTS.log_softmax(1), CLASSES),
        (nn.PoissonNLLLoss(), OUTPUTS[:, 0], CLASSES),
        (nn.CrossEntropyLoss(), OUTPUTS.view(3, 2, 3), torch.zeros(3, 3, dtype=torch.int64)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
def test_usual_losses_are_means_of_records(
    function: Function, outputs: Tensor, targets: Tensor, dtype: torch.dtype
) -> None:
    loss = loss_from_mean("torch:loss", function)
    if targets.is_floating_point():
        targets = targets.to(dtype)
    loss.check(outputs.to(dtype), targets)
    found = loss.per_record(outputs.to(dtype), targets)
    assert (found.dtype, found.shape) == (dtype, outputs.shape[:1])
    torch.testing.assert_close(found.mean(), function(outputs.to(dtype), targets))


def pairs(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mixes records, and is 0 where a model gives all of them the same."""
    return (outputs.unsqueeze(0) - outputs.unsqueeze(1)).square().mean()


def branching(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean() if outputs.sum() > 0 else 2 * outputs.mean()


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("first\nsecond")


@pytest.mark.parametrize(
    ("function", "targets", "text"),
    [
        (nn.MSELoss(reduction="sum"), TARGETS, "4 records it gives .*each alone is"),
        (lambda o, t: nn.CrossEntropyLoss(o.new_tensor([1, 2, 7]))(o, t), CLASSES, "each alone is"),
        (lambda o, t: (o @ torch.ones(3)).mean(), TARGETS, "of torch.float64 .*failed"),
        (pairs, TARGETS, "each alone is 0"),
        (nn.MSELoss(reduction="none"), TARGETS, r"returned a tensor of shape \[1, 3\]"),
        (lambda o, t: (o - t).square().mean(1), TARGETS, r"returned a tensor of shape \[1\]"),
        (lambda o, t: 3.0, TARGETS, "returned a float"),
        (lambda o, t: None, TARGETS, "returned a NoneType"),
        (lambda o, t: t.mean(), TARGETS, "nothing in it that depends"),
        (lambda o, t: (o - t).detach().mean(), TARGETS, "nothing in it that depends"),
        (lambda o, t: (o > t).sum(), TARGETS, "nothing in it that depends"),
        (lambda o, t: (o - o).log().sum(), TARGETS, "finite"),
        (lambda o: o.mean(), TARGETS, "failed: TypeError"),
        (broken, TARGETS, "failed: RuntimeError: first second"),
        (branching, TARGETS, "failed: RuntimeError"),
    ],
)
@pytest.mark.parametrize("start", ["different", "equal"])
def test_what_is_no_mean_of_losses_is_one_line_on_task_loss(
    function: Function, targets: Tensor, text: str, start: str
) -> None:
    outputs = OUTPUTS.float() if start == "different" else torch.zeros(6, 3)
    targets = targets.float() if targets.is_floating_point() else targets
    with pytest.raises(InputError, match=text) as caught:
        loss_from_mean("mine:loss", function).check(outputs, targets)
    assert (caught.value.where, caught.value.value) == ("task.loss", "mine:loss")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(3), nn.RMSNorm(3)])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_both_paths_train_it_as_they_train_the_built_in(norm: nn.Module, clip: float) -> None:
    own = loss_from_mean("mine:loss", lambda o, t: (o - t).square().mean())
    model = nn.Sequential(norm, nn.Linear(3, 3))
    inputs = torch.randn(2, 4, 3, generator=generator(1), dtype=FLOAT64)
    targets = torch.randn(2, 4, 3, generator=generator(2), dtype=FLOAT64)
    mask = torch.tensor([[True, True, True, False], [True, False, True, True]])
    found, right = (
        stacked.gradient(stacked.start(2, FLOAT64, "cpu"), inputs, targets, mask, clip)
        for stacked in (
            build(model, loss, inputs[0], targets[0], dtype=FLOAT64, device="cpu")
            for loss in (own, LOSSES["mse"])
        )
    )
    torch.testing.assert_close(found.total, right.total, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.norms, right.norms, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.losses, right.losses, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        (lambda o, t: o.argmax(1) == t, [1, 0, 1]),
        (lambda o, t: (o.topk(2).indices == t[:, None]).any(1).float(), [1, 1, 1]),
        (lambda o, t: t, [0, 1, 2]),
    ],
)
def test_a_metric_scores_records_in_place_of_accuracy(metric: Function, scores: list[int]) -> None:
    outputs = torch.tensor([[9.0, 1, 2], [6, 5, 4], [1, 2, 3]], dtype=FLOAT64)
    loss = with_metric(LOSSES["cross-entropy"], "mine:metric", metric)
    targets = torch.tensor([0, 1, 2])
    loss.check(outputs[:2], targets)
    found = loss.accuracy(outputs, targets)
    assert found.dtype == FLOAT64
    assert found.tolist() == scores
    assert loss.per_record is LOSSES["cross-entropy"].per_record
    with pytest.raises(InputError, match=r"task\.dataset"):
        loss.check(outputs, targets + 1)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (lambda o, t: (o.argmax(1) == t).float().mean(), r"returned .*0\.3"),
        (lambda o, t: o, r"for 6 records it returned a tensor of shape \[6, 3\]"),
        (lambda o, t: 0.5, "returned a float"),
        (broken, "RuntimeError: first second"),
        (lambda o: o, "TypeError"),
    ],
)
def test_a_metric_that_is_none_is_one_line_on_task_metric(metric: Function, text: str) -> None:
    loss = with_metric(LOSSES["cross-entropy"], "mine:metric", metric)
    with pytest.raises(InputError, match=text) as caught:
        loss.check(OUTPUTS, CLASSES)
    assert (caught.value.where, caught.value.value) == ("task.metric", "mine:metric")
    assert "\n" not in str(caught.value)
