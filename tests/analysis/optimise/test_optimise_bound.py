"""The published optimum against brute force, and the bound's constants against closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optimise_cases import CONSTANTS, config_of
from torch import nn

from tacit.analysis.optimise import published_optimum
from tacit.analysis.optimise.bound import clipping_excess, estimate, largest_curvature
from tacit.errors import InputError
from tacit.gradients import LOSSES
from tacit.privacy.published import BoundConstants, Budget, claimed_variances, convergence_bound
from tacit.training.prepare import prepare

positive = st.floats(1e-3, 1e3)


@given(
    st.builds(
        BoundConstants,
        smoothness=positive,
        heterogeneity=positive,
        start_gap=positive,
        start_norm=positive,
        parameters=st.integers(1, 10**6),
    ),
    st.lists(
        st.builds(
            Budget,
            records=st.integers(10, 10**5),
            epsilon=st.floats(0.1, 10),
            delta=st.floats(1e-8, 1e-2),
        ),
        min_size=1,
        max_size=5,
    ),
    positive,
)
def test_no_number_of_steps_beats_the_published_one(constants, nodes, gradient_bound):
    claim = published_optimum(constants, nodes, gradient_bound=gradient_bound, c2=1.0)

    def bound(steps):
        noise = claimed_variances(nodes, steps, gradient_bound=gradient_bound)
        return convergence_bound(constants, noise, steps)

    around = claim.exact * np.geomspace(0.01, 100, 201)
    assert min(map(bound, around)) >= bound(claim.exact) * (1 - 1e-12)
    assert claim.steps >= 1
    assert claim.bound == pytest.approx(bound(claim.steps))
    whole = {max(1, claim.steps - 1), claim.steps + 1}
    assert all(bound(steps) >= claim.bound * (1 - 1e-12) for steps in whole)


FLOAT64 = {"steps": 6, "batch": "all", "dtype": "float64"}


@pytest.fixture(scope="module")
def job():
    return prepare(config_of(train=FLOAT64, nodes={"count": 4}))


def named(constants):
    return {constant.name: constant for constant in constants}


def second_moment(inputs):
    """Largest eigenvalue of the mean of x x^T, with 1 appended to x for the bias."""
    flat = inputs.flatten(1).double()
    with_one = torch.cat([flat, torch.ones(len(flat), 1, dtype=torch.float64)], dim=1)
    return float(torch.linalg.eigvalsh(with_one.T @ with_one / len(flat)).max())


def softmax_gradients(inputs, targets):
    """Gradients of softmax regression at zero, one a record: (1/10 - onehot) (x, 1)^T."""
    flat = inputs.flatten(1).double().numpy()
    with_one = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
    slopes = 0.1 - np.eye(10)[targets.numpy()]
    return np.einsum("rc,rx->rcx", slopes, with_one).reshape(len(flat), -1)


def test_curvature_of_softmax_regression(job):
    """At zero the Hessian is (I - 1 1^T / 10) / 10, times E x x^T."""
    assert job.test is not None
    start = job.model.start(1, job.dtype, job.device)[0]
    curvature = largest_curvature(
        job.model.module(start), job.loss, job.test.inputs, job.test.targets, at_once=100
    )
    expected = second_moment(job.test.inputs) / 10
    assert curvature <= expected * (1 + 1e-9)
    assert curvature == pytest.approx(expected, rel=3e-3)


def test_curvature_of_a_network_is_the_norm_of_its_hessian():
    torch.manual_seed(3)
    inputs = torch.randn(40, 3, dtype=torch.float64)
    targets = torch.randn(40, 1, dtype=torch.float64)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    names = [name for name, _ in module.named_parameters()]
    shapes = [weight.shape for weight in module.parameters()]
    sizes = [weight.numel() for weight in module.parameters()]
    vector = torch.cat([weight.detach().flatten() for weight in module.parameters()])

    def loss(flat):
        pieces = torch.split(flat, sizes)
        weights = {n: p.view(s) for n, p, s in zip(names, pieces, shapes, strict=True)}
        outputs = torch.func.functional_call(module, weights, (inputs,))
        return (outputs - targets).square().mean()

    hessian = torch.func.jacrev(torch.func.grad(loss))(vector)
    expected = float(torch.linalg.matrix_norm(hessian, ord=2))
    curvature = largest_curvature(module, LOSSES["mse"], inputs, targets, at_once=7)
    assert curvature <= expected * (1 + 1e-6)
    assert curvature == pytest.approx(expected, rel=3e-3)


class Kinked(torch.autograd.Function):
    """Twice the input, with a derivative that has none itself."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        return grads[0] * 2


@pytest.mark.parametrize("output", [Kinked.apply, lambda outputs: outputs * math.nan])
def test_without_curvature_L_is_asked_for(output):
    class Model(nn.Linear):
        def forward(self, inputs):
            return output(super().forward(inputs))

    with pytest.raises(InputError, match=r"constants\.L.*by hand"):
        largest_curvature(Model(2, 1), LOSSES["mse"], torch.ones(3, 2), torch.ones(3, 1))


def test_private_records_give_the_heterogeneity_itself(job):
    """Every record read: b^2 is the spread of the nodes' own gradients, no more and no less."""
    estimates = named(estimate(job, {}, source="train", records=10**6).constants)
    gradients = softmax_gradients(job.train.inputs, job.train.targets)
    parts = np.split(gradients, job.train.offsets.tolist()[1:])
    means = np.stack([part.mean(axis=0) for part in parts])
    spread = np.square(means - means.mean(axis=0)).sum(axis=1).mean()
    assert estimates["b2"].value == pytest.approx(spread, rel=1e-9)
    assert estimates["F0"].value == pytest.approx(math.log(10), rel=1e-9)
    assert estimates["x0"].value == 0.0
    assert estimates["G"].value == 1.0
    kinds = {name: constant.kind for name, constant in estimates.items()}
    assert kinds == {"L": "private", "b2": "private", "F0": "private", "x0": "exact", "G": "exact"}


@pytest.mark.parametrize("source", ["test", "train"])
def test_few_records_do_not_inflate_the_heterogeneity(source):
    """What sampling adds is taken off: uncorrected, 10 records a node would give ten times b^2."""
    job = prepare(config_of(train=FLOAT64, nodes={"count": 4, "partition": "iid"}))
    gradients = softmax_gradients(job.train.inputs, job.train.targets)
    within = np.square(gradients - gradients.mean(axis=0)).sum(axis=1).mean()
    heterogeneity = estimate(job, {}, source=source, records=40).value("b2")
    assert 0 <= heterogeneity < 0.5 * (1 - 1 / 4) * within / 10


@pytest.mark.parametrize("source", ["test", "train"])
def test_nodes_that_differ_are_seen_on_public_records_too(source):
    shards = {"count": 4, "partition": "shards", "per_node": 2}
    job = prepare(config_of(train=FLOAT64, nodes=shards))
    gradients = softmax_gradients(job.train.inputs, job.train.targets)
    parts = np.split(gradients, job.train.offsets.tolist()[1:])
    means = np.stack([part.mean(axis=0) for part in parts])
    spread = np.square(means - means.mean(axis=0)).sum(axis=1).mean()
    assert estimate(job, {}, source=source).value("b2") == pytest.approx(spread, rel=0.3)


def test_an_unknown_division_is_bounded_by_the_spread_of_single_records():
    """The law of total variance: nodes cannot differ more than their records do."""
    generator = torch.Generator().manual_seed(1)
    nodes = [
        (torch.randn(30, 2, generator=generator) + shift, torch.full((30,), shift % 2))
        for shift in range(3)
    ]
    everything = tuple(torch.cat(parts) for parts in zip(*nodes, strict=True))
    config = config_of(task={"dataset": None}, count=3)
    given = prepare(config, nodes=nodes, test=everything)
    public = estimate(given, {}, source="test", records=90).value("b2")
    private = estimate(given, {}, source="train", records=90).value("b2")
    assert public > private > 0


def test_constants_by_hand_need_no_records():
    nodes = [(torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1]))] * 2
    config = config_of(task={"dataset": None, "outputs": 2}, count=2)
    job = prepare(config, nodes=nodes)
    estimates = estimate(job, CONSTANTS)
    assert {name: estimates.value(name) for name in CONSTANTS} == CONSTANTS
    assert estimates.norms == ()
    assert not estimates.private
    with pytest.raises(InputError, match="no public test records"):
        estimate(job, {"L": 1.0})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"l": 1.0}, "constants"),
        ({"L": 0.0}, r"constants\.L.*positive"),
        ({"L": math.inf}, r"constants\.L"),
        ({"b2": -1.0}, r"constants\.b2.*zero or more"),
        ({"F0": math.nan}, r"constants\.F0"),
    ],
)
def test_impossible_constants_are_refused(job, given, message):
    with pytest.raises(InputError, match=message):
        estimate(job, given)


def test_the_clipping_excess_bounds_what_clipping_moves():
    generator = np.random.default_rng(2)
    gradients = generator.normal(size=(200, 5)) * generator.exponential(size=(200, 1))
    norms = np.linalg.norm(gradients, axis=1)
    for clip in (0.1, 0.5, 1.0, 2.0):
        clipped = gradients * np.minimum(1, clip / norms)[:, None]
        moved = np.linalg.norm((gradients - clipped).mean(axis=0))
        excess = clipping_excess(norms.tolist(), clip)
        assert moved <= excess
        assert excess == pytest.approx(np.maximum(0, norms - clip).mean())
    assert clipping_excess(norms.tolist(), float(norms.max())) == 0.0
