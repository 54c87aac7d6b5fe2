"""Each loss against torch's own, its accuracy, and what it refuses.

A user's own loss and class weights: what they are, and what is refused.
"""

from collections.abc import Callable

import pytest
import torch
from gradient_problems import FLOAT64, OwnNorm, generator
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.gradients import LOSSES, build, loss_from_mean, weighted
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
def test_mean_over_records_is_torchs(name, outputs, targets, reference):
    found = LOSSES[name].per_record(outputs, targets)
    assert found.shape == outputs.shape[:1]
    LOSSES[name].check(outputs, targets)
    if reference is None:
        right = nn.MSELoss()(outputs, targets.view_as(outputs))
    else:
        right = reference(outputs, targets)
    torch.testing.assert_close(found.mean(), right, rtol=1e-12, atol=1e-12)


@given(st.floats(-700, 700))
def test_logistic_is_exact_far_from_zero(margin):
    score = torch.tensor([[margin]], dtype=torch.float64, requires_grad=True)
    loss = LOSSES["logistic"].per_record(score, torch.ones(1, dtype=torch.float64))
    (slope,) = torch.autograd.grad(loss.sum(), score)
    exact = torch.logaddexp(torch.zeros(1, dtype=torch.float64), -score.detach()[0])
    torch.testing.assert_close(loss.detach(), exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, -torch.sigmoid(-score.detach()), rtol=1e-12, atol=0)


def test_accuracy():
    right = LOSSES["cross-entropy"].accuracy(torch.eye(3), torch.tensor([0, 1, 1]))
    assert right.tolist() == [1.0, 1.0, 0.0]
    scores = torch.tensor([[2.0], [-1.0], [-3.0], [0.0]])
    right = LOSSES["logistic"].accuracy(scores, torch.tensor([1.0, 1.0, -1.0, 1.0]))
    assert right.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert LOSSES["mse"].accuracy is None


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "where", "text"),
    [
        ("cross-entropy", torch.ones(2), CLASSES, "task.model", r"\[\].*\[classes\]"),
        ("cross-entropy", torch.ones(2, 3), CLASSES.float(), "task.dataset", "int64"),
        ("cross-entropy", torch.ones(2, 3), CLASSES[:, None], "task.dataset", "int64"),
        ("cross-entropy", torch.ones(2, 2), CLASSES, "task.dataset", "records.*0..1"),
        ("cross-entropy", torch.ones(2, 3), CLASSES - 1, "task.dataset", "records.*must lie"),
        ("mse", torch.ones(2, 3), SIGNS, "task.model", "1 outputs a record"),
        ("mse", torch.ones(2, 1), CLASSES, "task.dataset", "floating-point"),
        ("mse", torch.ones(2, 1), SIGNS / 0, "task.dataset", "finite"),
        ("logistic", torch.ones(2, 2), SIGNS, "task.model", r"\[2\].*one score"),
        ("logistic", torch.ones(2, 1), torch.ones(2, 2), "task.dataset", "one target"),
        ("logistic", torch.ones(2, 1), CLASSES, "task.dataset", "records.*-1 or 1, or 0 or 1"),
        ("logistic", torch.ones(2, 1), CLASSES - 1, "task.dataset", "records.*-1 or 1, or 0"),
        ("logistic", torch.ones(2, 1), SIGNS / 2, "task.dataset", "records.*-1 or 1"),
        ("logistic", torch.ones(2, 1), SIGNS / 0, "task.dataset", "records.*-1 or 1"),
    ],
)
def test_what_does_not_fit_is_refused(name, outputs, targets, where, text):
    with pytest.raises(InputError, match=text) as caught:
        LOSSES[name].check(outputs, targets)
    assert caught.value.where == where
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.float64])
@pytest.mark.parametrize("column", [False, True])
def test_logistic_takes_either_writing_of_two_classes(dtype, column):
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
def test_outputs_of_a_built_in_model(name, targets, classes, outputs):
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
def test_outputs_that_public_targets_suggest(targets, outputs):
    assert natural_outputs(targets, None) == outputs


def test_cross_entropy_needs_class_labels():
    with pytest.raises(InputError, match="integer class labels") as caught:
        LOSSES["cross-entropy"].outputs(torch.zeros(3), None)
    assert caught.value.where == "task.loss"


TARGETS = 3 * OUTPUTS
Function = Callable[[Tensor, Tensor], Tensor]


def test_it_is_evaluated_for_each_record_alone():
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
def test_usual_losses_are_means_of_records(function, outputs, targets, dtype):
    loss = loss_from_mean("torch:loss", function)
    if targets.is_floating_point():
        targets = targets.to(dtype)
    loss.check(outputs.to(dtype), targets)
    found = loss.per_record(outputs.to(dtype), targets)
    assert (found.dtype, found.shape) == (dtype, outputs.shape[:1])
    torch.testing.assert_close(found.mean(), function(outputs.to(dtype), targets))


def pairs(outputs, targets):
    """Mixes records, and is 0 where a model gives all of them the same."""
    return (outputs.unsqueeze(0) - outputs.unsqueeze(1)).square().mean()


def branching(outputs, targets):
    return outputs.mean() if outputs.sum() > 0 else 2 * outputs.mean()


def broken(outputs, targets):
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
def test_what_is_no_mean_of_losses_is_one_line_on_task_loss(function, targets, text, start):
    outputs = OUTPUTS.float() if start == "different" else torch.zeros(6, 3)
    targets = targets.float() if targets.is_floating_point() else targets
    with pytest.raises(InputError, match=text) as caught:
        loss_from_mean("mine:loss", function).check(outputs, targets)
    assert (caught.value.where, caught.value.value) == ("task.loss", "mine:loss")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(3), OwnNorm(3)])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_both_paths_train_it_as_they_train_the_built_in(norm, clip):
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
    torch.testing.assert_close(found.total, right.total, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found.norms, right.norms, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.losses, right.losses, rtol=1e-12, atol=1e-14)


WEIGHTED = torch.randn(40, 3, generator=torch.Generator().manual_seed(4), dtype=FLOAT64)
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(5))


@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=3))
def test_a_weighted_loss_multiplies_each_record_by_its_classes_share(weights):
    loss = weighted(LOSSES["cross-entropy"], weights)
    plain = nn.functional.cross_entropy(WEIGHTED, LABELS, reduction="none")
    shares = [3 * weight / sum(weights) for weight in weights]
    right = [value * shares[label] for value, label in zip(plain, LABELS.tolist(), strict=True)]
    torch.testing.assert_close(loss.per_record(WEIGHTED, LABELS), torch.stack(right))
    assert loss.formula is None  # no path may take it for the plain one
    loss.check(WEIGHTED, LABELS)
    loss.check_records(WEIGHTED, LABELS)


@pytest.mark.parametrize("weight", [1.0, 7.0])
@pytest.mark.parametrize("name", ["cross-entropy", "logistic"])
def test_equal_class_weights_change_nothing(name, weight):
    outputs = WEIGHTED[:, :2] if name == "cross-entropy" else WEIGHTED[:, :1]
    labels = LABELS % 2
    loss = weighted(LOSSES[name], [weight, weight])
    assert torch.equal(loss.per_record(outputs, labels), LOSSES[name].per_record(outputs, labels))


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_first_weight_of_a_logistic_loss_is_that_of_the_negative_class(low):
    targets = torch.where(SIGNS > 0, 1.0, low)
    loss = weighted(LOSSES["logistic"], [1.0, 3.0])
    factors = torch.where(SIGNS > 0, 1.5, 0.5)
    right = factors * LOSSES["logistic"].per_record(SCORES, SIGNS)
    torch.testing.assert_close(loss.per_record(SCORES, targets), right)


def test_class_weights_serve_a_users_loss_and_clipped_gradients():
    own = weighted(loss_from_mean("mine", nn.CrossEntropyLoss()), [1.0, 2.0, 9.0])
    right = weighted(LOSSES["cross-entropy"], [1.0, 2.0, 9.0])
    model = nn.Linear(4, 3)
    inputs = torch.randn(2, 5, 4, generator=generator(2), dtype=FLOAT64)
    targets = torch.tensor([[0, 1, 2, 2, 1], [2, 2, 2, 0, 0]])
    mask = torch.tensor([[True] * 5, [True, True, False, True, True]])
    totals = []
    for loss in (own, right):
        stacked = build(model, loss, inputs[0], targets[0], dtype=FLOAT64, device="cpu")
        start = stacked.start(2, FLOAT64, "cpu")
        totals.append(stacked.gradient(start, inputs, targets, mask, 0.3))
    torch.testing.assert_close(totals[0].total, totals[1].total, rtol=1e-11, atol=1e-13)

    weight, bias = (part.detach().double() for part in (model.weight, model.bias))
    expected = torch.zeros(3, 4, dtype=FLOAT64)
    for record, label in zip(inputs[0], targets[0].tolist(), strict=True):
        slope = (weight @ record + bias).softmax(0)
        slope[label] -= 1
        slope *= [0.25, 0.5, 2.25][label]
        norm = slope.norm() * (record.square().sum() + 1).sqrt()
        expected += min(1.0, 0.3 / norm.item()) * torch.outer(slope, record)
    found = totals[1].total[0, :12].view(3, 4)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_users_loss_may_weigh_each_record_by_its_own_target():
    def own(outputs, targets):
        weights = torch.tensor([1.0, 2.0, 6.0]).to(outputs.dtype)[targets] / 3
        return (weights * nn.functional.cross_entropy(outputs, targets, reduction="none")).mean()

    found, right = loss_from_mean("own", own), weighted(LOSSES["cross-entropy"], [1.0, 2.0, 6.0])
    found.check(WEIGHTED, LABELS)
    torch.testing.assert_close(
        found.per_record(WEIGHTED, LABELS), right.per_record(WEIGHTED, LABELS)
    )


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "text"),
    [
        ("cross-entropy", WEIGHTED, LABELS, "one weight a class: there are 3 classes"),
        ("logistic", SCORES, SIGNS / 2, "-1 or 1, or 0 or 1"),
        ("mine", WEIGHTED[:, :2], LABELS, "classes from 0 to 1"),
        ("mine", WEIGHTED[:, :2], WEIGHTED[:, 0], "one class a record"),
        ("mine", SCORES, SIGNS / 2, "-1 or 1, or 0 or 1"),
    ],
)
def test_class_weights_that_do_not_fit_are_refused(name, outputs, targets, text):
    def mine(outputs, targets):
        return outputs.square().mean()

    loss = weighted(LOSSES.get(name) or loss_from_mean("mine", mine), [1.0, 2.0])
    for check in (loss.check, loss.check_records):
        with pytest.raises(InputError, match=text):
            check(outputs, targets)


def test_numbers_have_no_class_weights():
    with pytest.raises(InputError, match=r"task\.class_weights = .*'mse' has none"):
        weighted(LOSSES["mse"], [1.0, 2.0])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(3)), "divides this loss by the weights"),
        (nn.NLLLoss(weight=torch.ones(3)), "divides this loss by the weights"),
        (lambda o, t: nn.functional.cross_entropy(o, t, torch.arange(1.0, 4.0)), "scalar type"),
        (
            lambda o, t: nn.functional.cross_entropy(o, t, torch.arange(1.0, 4.0, dtype=o.dtype)),
            "each alone is",
        ),
    ],
)
def test_a_loss_of_pytorch_with_weights_names_class_weights(function, text):
    with pytest.raises(InputError, match=f"{text}.*task.class_weights") as caught:
        loss_from_mean("mine", function).check(OUTPUTS, CLASSES)
    assert caught.value.where == "task.loss"
