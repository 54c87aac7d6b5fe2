"""What one record moves, in the user's own model: clean programs pass, planted holes are found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from audit_bugs import ClippedAfterAveraging, RealisedBatch, Unclipped
from fidelity_jobs import FIXED, PRIVATE, UNDER_REPLACEMENT
from fidelity_jobs import job_of as small_job
from gradient_bugs import CLIP_BYPASS, ClippedInPairs, MomentumBeforeNoise
from planting import patched
from torch import Tensor, nn

from tacit.analysis.audit.fidelity import sensitivity
from tacit.analysis.audit.fidelity.sensitivity import sensitivity_findings
from tacit.analysis.audit.records import Candidate, candidates, marker
from tacit.config import load_config
from tacit.gradients import Recurrent
from tacit.report.wording import figure_up
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

NODES, RECORDS, CLASSES = 3, 9, 3


class Positions(nn.Module):
    """A layer over a sequence, whose positions are added up."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        outputs: Tensor = self.inner(inputs).sum(dim=1)
        return outputs[:, :CLASSES]


class Attention(nn.Module):
    """So wide that norms come from Gram matrices of its positions."""

    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(32, 32), nn.Linear(32, 20)

    def forward(self, inputs):
        weights = torch.softmax(self.query(inputs) @ inputs.transpose(1, 2) / 3, dim=2)
        return (weights @ self.value(inputs)).mean(dim=1)[:, :CLASSES]


class Texts(nn.Module):
    """Embedding, LSTM, and the mean over positions."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 5)
        self.memory = Recurrent(nn.LSTM(5, 4, batch_first=True))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, inputs):
        outputs: Tensor = self.head(self.memory(self.words(inputs))[0].mean(dim=1))
        return outputs


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, CLASSES), (6,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, CLASSES)), (6,)),
    "sequences": (lambda: Positions(nn.Linear(24, 20)), (4, 24)),
    "attention": (Attention, (4, 32)),
    "texts": (Texts, (7,)),
}


def job_of(
    model="linear",
    *,
    algorithm=None,
    relation="add-or-remove-one",
    nodes=NODES,
    **train,
):
    make, shape = MODELS[model]
    draws = torch.Generator().manual_seed(7)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = make()
    given = []
    for _ in range(nodes):
        inputs = torch.randn(RECORDS, *shape, generator=draws)
        if model == "texts":
            inputs = torch.randint(11, (RECORDS, *shape), generator=draws)
        given.append((inputs, torch.randint(CLASSES, (RECORDS,), generator=draws)))
    config = load_config(
        {
            "task": {"loss": "cross-entropy", "outputs": CLASSES},
            "algorithm": {
                "name": "privsgp",
                "learning_rate": 0.1,
                "clip": 0.3,
                **(algorithm or {}),
            },
            "privacy": {"epsilon": 8.0, "delta": 1e-3, "relation": relation},
            "train": {"steps": 6, "batch": 4, **train},
        },
        count=nodes,
        given_model=True,
    )
    return prepare(config, model=module, nodes=given)


def findings_of(job, context=StackedContext, runs=9):
    """What so many runs find, however long they take."""
    return sensitivity_findings(job, context=context, seed=1, seconds=0, steps=4, fewest=runs)


def failed(job, context=StackedContext, runs=9):
    """The names of the tests that fail."""
    findings = findings_of(job, context, runs)
    assert all(finding.p_value in (0.0, 1.0) for finding in findings)
    return {finding.name for finding in findings if not finding.passed}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MODELS)
def test_a_correct_program_passes(model, dtype):
    job = job_of(model, dtype=dtype)
    moved, still, sums, divisions = findings_of(job)
    assert moved.passed
    assert 0.9 < moved.statistic <= 1
    assert still.passed
    assert sums.passed
    assert 0 < sums.statistic < 0.2
    assert divisions.passed
    assert "proves nothing about records" in moved.power


class ClippedTooFar(StackedContext):
    """Clipped to a hundredth more than planned."""

    def clip(self, k):
        bound = super().clip(k)
        return None if bound is None else 1.01 * bound


class RealisedSum(StackedContext):
    """A sum over the realised size times the expected one."""

    def batch_gradient(self, at, k, **options):
        total = super().batch_gradient(at, k, **options)
        assert self.last_mask is not None
        return total * self.batch_size / self.last_mask.sum(dim=1, keepdim=True).clamp(min=1)


class DifferencesDoubled(StackedContext):
    def batch_difference(self, at, anchor, k, bound):
        return 2 * super().batch_difference(at, anchor, k, bound)


@pytest.mark.parametrize(
    ("bug", "names"),
    [
        (Unclipped, {"sensitivity", "clipped sums"}),
        (ClippedTooFar, {"sensitivity"}),
        (ClippedAfterAveraging, {"sensitivity", "clipped sums"}),
        (ClippedInPairs, {"sensitivity", "clipped sums"}),
        (MomentumBeforeNoise, {"records that are not drawn", "clipped sums"}),
        (RealisedSum, {"clipped sums"}),
        (RealisedBatch, {"division by the batch"}),
    ],
)
def test_a_planted_hole_is_found(bug, names):
    assert names <= failed(job_of("mlp"), bug)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["sequences", "attention"])
def test_the_clip_bypass_is_found(model, dtype):
    """Norms are those of exact sums over positions, and contributions rounded products."""
    job = job_of(model, dtype=dtype)
    assert job.model.positions > 1
    assert failed(job, runs=14) == set()
    with patched(CLIP_BYPASS):
        assert failed(job, runs=14) == {"sensitivity"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "sections"),
    [*((case, {}) for case in PRIVATE), *((case, FIXED) for case in UNDER_REPLACEMENT)],
    ids=[*PRIVATE, *(f"{case}, fixed" for case in UNDER_REPLACEMENT)],
)
def test_every_private_algorithm_passes(case, sections):
    """Where its mechanism is tight, some record moves a release by nearly all that is accounted."""
    findings = findings_of(small_job(case, **sections), runs=5)
    assert [finding.name for finding in findings if not finding.passed] == []
    assert findings[0].statistic > 0


@pytest.mark.parametrize("options", [{}, {"clip_difference": 0.1}])
def test_differences_are_computed_again_at_both_points(options):
    """Also of one node, which the engine's trial of its layers could be taken for."""
    far = {"name": "soteriafl-svrg", "anchor_every": 3, "learning_rate": 30.0}
    job = job_of(algorithm={**far, **options}, nodes=1)
    findings = findings_of(job, runs=5)
    assert all(finding.passed for finding in findings)
    assert findings[2].statistic > 0
    found = findings_of(job, DifferencesDoubled, runs=5)
    assert not found[2].passed


def test_the_users_records_are_left_as_they_are():
    job = job_of("mlp")
    inputs, targets = job.train.inputs.clone(), job.train.targets.clone()
    findings_of(job)
    assert torch.equal(job.train.inputs, inputs)
    assert torch.equal(job.train.targets, targets)


def test_the_same_seed_finds_the_same():
    first, second = (findings_of(job_of("mlp")) for _ in range(2))
    assert first == second


def test_a_convolution_passes():
    """Positions that are added up behind others that are not."""
    draws = torch.Generator().manual_seed(5)
    nodes = [
        (
            torch.rand(RECORDS, 1, 8, 8, generator=draws),
            torch.randint(CLASSES, (RECORDS,), generator=draws),
        )
        for _ in range(NODES)
    ]
    config = load_config(
        {
            "task": {"model": "cnn3", "outputs": CLASSES},
            "algorithm": {"name": "privsgp"},
            "privacy": {"epsilon": 8.0, "delta": 1e-3},
            "train": {"steps": 4, "batch": 3},
        },
        count=NODES,
    )
    job = prepare(config, nodes=nodes)
    assert job.model.positions > 1
    assert failed(job, runs=12) == set()


class LateClip(StackedContext):
    """Clipped to ten times too much in step 3 alone."""

    def clip(self, k):
        bound = super().clip(k)
        return None if bound is None else 10 * bound if k == 3 else bound


@pytest.mark.slow
def test_four_steps_and_every_kind_are_tried_however_little_time_there_is():
    job = job_of("mlp", batch="all")
    moved, *_ = sensitivity_findings(job, context=LateClip, seed=1, seconds=0)
    assert not moved.passed
    assert "in step 3" in moved.saw
    clean, *_ = sensitivity_findings(job, seed=1, seconds=0)
    records = torch.zeros(NODES, 6), torch.zeros(NODES, dtype=torch.int64)
    kinds = list(candidates(job, (*records, *records), job.model.start(1, job.dtype, "cpu")[0], 1))
    assert f"in {len(kinds) + 2} runs" in clean.saw  # the first one, and one without a record


def test_targets_of_zero_raise_no_alarm():
    """All ids are there, so that no record is marked as left out."""
    module = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(3, 1))
    ids = torch.arange(20).unsqueeze(1) % 4
    node = ids, torch.zeros(20, 1)
    config = load_config(
        {
            "task": {"loss": "mse"},
            "algorithm": {"name": "privsgp", "learning_rate": 0.1},
            "privacy": {"epsilon": 2.0, "delta": 1e-3},
            "train": {"steps": 4, "batch": "all"},
        },
        count=2,
        given_model=True,
    )
    job = prepare(config, model=module, nodes=[node] * 2)
    assert marker(job, job.train.inputs, job.train.targets, 1) is None
    assert failed(job) == set()


def test_a_record_in_its_own_place_hides_no_draw(monkeypatch):
    """The first candidate is the record itself at one node, and at all nodes."""

    def made(job, place, at, seed):
        inputs, targets, *_ = place
        yield Candidate("that is the same", inputs, targets)
        changed = inputs.clone()
        changed[1:] += 1
        yield Candidate("that is the same at node 0", changed, targets)
        yield Candidate("that is another one", inputs + 1, targets)

    monkeypatch.setattr(sensitivity, "marker", lambda *rest: None)
    monkeypatch.setattr(sensitivity, "candidates", made)
    assert failed(job_of("mlp"), runs=3) == set()
    assert "records that are not drawn" in failed(job_of("mlp"), MomentumBeforeNoise, runs=6)


def scaled(job, size):
    return replace(job, train=replace(job.train, stored=size * job.train.stored))


@pytest.mark.parametrize("size", [1e12, 1e19, 1e25])
def test_records_that_are_too_large_are_not_judged(size):
    """Of those whose squares overflow the program leaves out what plain autograd does not."""
    _, _, sums, _ = findings_of(scaled(job_of("mlp"), size), runs=2)
    assert sums.passed
    assert ("to be judged" in sums.saw) == (size > 1e15)
    assert "sums over" in sums.saw


class FirstNumberIsAnId(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds, self.last = nn.Embedding(8, 3), nn.Linear(6 + 2, CLASSES)

    def forward(self, inputs):
        kinds = self.kinds(inputs[:, 0].abs().long())
        outputs: Tensor = self.last(torch.cat([kinds, inputs[:, 1:]], dim=1))
        return outputs


@pytest.mark.slow
def test_numbers_that_are_ids_raise_no_alarm(monkeypatch):
    monkeypatch.setitem(MODELS, "ids", (FirstNumberIsAnId, (6,)))
    job = job_of("ids")
    findings = sensitivity_findings(job, seed=1, seconds=0)
    assert all(finding.passed for finding in findings)


def test_what_passes_is_told_in_two_digits():
    for finding in findings_of(job_of("mlp"), runs=4):
        assert finding.passed
        assert finding.statistic == figure_up(finding.statistic)


def test_what_moves_too_far_is_named():
    moved, *_ = findings_of(job_of("mlp"), Unclipped)
    assert not moved.passed
    assert moved.p_value == 0
    assert math.isinf(moved.statistic) or moved.statistic > 100
    assert "times what is accounted" in moved.saw
