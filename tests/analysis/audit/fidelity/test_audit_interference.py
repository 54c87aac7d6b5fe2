"""All that is sent is a function of what was noised: no correct program fails, and defects do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fidelity_jobs import FIXED, PRIVATE, STEPS, UNDER_REPLACEMENT, job_of
from torch import nn

from tacit.algorithms import do_adp, privsgp
from tacit.analysis.audit.fidelity.interference import interference_findings
from tacit.communication.colours import Public, Released
from tacit.config import AlgorithmSection, load_config
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

TWICE, SENT, NOISED = "the same run twice", "what is sent", "what is released"
MODELS, PUBLIC = "models that count as released", "what counts as public"
PLANNED = "noise as planned"


def found(job, context=StackedContext, steps=STEPS):
    findings = interference_findings(job, context=context, seed=5, steps=steps)
    assert {finding.p_value for finding in findings} <= {0.0, 1.0}
    assert all((finding.statistic == 0) == finding.passed for finding in findings)
    return {finding.name: finding for finding in findings}


def failed(job, context=StackedContext, steps=STEPS):
    return {name for name, finding in found(job, context, steps).items() if not finding.passed}


@pytest.mark.slow
@pytest.mark.parametrize("case", PRIVATE)
def test_no_algorithm_is_accused(case):
    findings = found(job_of(case))
    assert [finding.saw for finding in findings.values() if not finding.passed] == []
    assert "None of the " in findings[SENT].saw
    # The comparison can fail: what went into the noise was another sum.
    assert "with each, 0 " not in findings[SENT].power


@pytest.mark.slow
@pytest.mark.parametrize("case", UNDER_REPLACEMENT)
def test_no_algorithm_is_accused_with_fixed_batches(case):
    assert failed(job_of(case, **FIXED)) == set()


class _Quoting(StackedContext):
    """An error whose text quotes records, where they are large."""

    def batch_gradient(self, at, k, **options):
        inputs = self._batch(k, 0, False, None, self._members)[0]
        if float(inputs.abs().max()) > 500:
            raise ValueError(f"what is secret: {inputs.tolist()}")
        return super().batch_gradient(at, k, **options)


def test_no_finding_quotes_the_text_of_an_error():
    findings = found(job_of("privsgp"), _Quoting)
    assert not findings[SENT].passed
    for finding in findings.values():
        assert "secret" not in repr(finding)
    assert "an error of the kind ValueError" in findings[SENT].saw


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ids_positions_and_a_loss_of_a_users_own(dtype):
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(9, (6, 5), generator=draw) for _ in range(3)]
    rows = [torch.rand(6, 2, generator=draw) for _ in ids]
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2), nn.Sigmoid())
    config = load_config(
        {
            "task": {"loss": "given"},
            "algorithm": {"name": "dp2-sgd"},
            "privacy": {"noise_std": 5.0, "delta": 1e-3},
            "train": {"steps": STEPS, "batch": 2, "dtype": dtype},
        },
        count=3,
        given_model=True,
    )
    given = list(zip(ids, rows, strict=True))
    job = prepare(config, model=model, nodes=given, given_loss=nn.BCELoss())
    findings = found(job)
    assert all(finding.passed for finding in findings.values())
    assert "all others, all zeros, all large, one extreme" in findings[SENT].power


class AddsAfterNoise(StackedContext):
    """A tenth of the last sum is added to what was noised."""

    def add_noise(self, total, k, **options):
        before, self._all.__dict__["kept"] = self._all.__dict__.get("kept"), total.clone()
        released = super().add_noise(total, k, **options)
        return released if before is None else released.add_(before, alpha=0.1)


class LastStepBare(StackedContext):
    """The last step adds no noise."""

    def add_noise(self, total, k, **options):
        return total if k == STEPS - 1 else super().add_noise(total, k, **options)


class ByTheBatch(StackedContext):
    """Noise grows with the batch that was drawn."""

    def add_noise(self, total, k, **options):
        assert self.last_mask is not None
        return super().add_noise(total, k, **{**options, "scale": 1.0 + int(self.last_mask.sum())})


class HalfAsked(StackedContext):
    """Half of the planned noise is asked for."""

    def add_noise(self, total, k, **options):
        return super().add_noise(total, k, **{**options, "scale": 0.5})


class TwiceNoised(StackedContext):
    """A sum is noised, and what comes out is noised once more."""

    def add_noise(self, total, k, **options):
        return super().add_noise(super().add_noise(total, k, **options), k, **options)


class OverTheBatch(StackedContext):
    """Sums are divided by how many records were drawn."""

    def divide(self, total):
        assert self.last_mask is not None
        return total.div_(self.last_mask.sum(1, keepdim=True).clamp(min=1))


class LossAlongside(StackedContext):
    """The loss of the batch is sent with the message."""

    def add_noise(self, total, k, **options):
        assert self.last is not None
        self.exchange.mix(k, Released(self.last.losses.mean(1, keepdim=True)))
        return super().add_noise(total, k, **options)


class CountAsPublic(StackedContext):
    """What was noised is sent as if everybody knew it beforehand."""

    def add_noise(self, total, k, **options):
        released = super().add_noise(total, k, **options)
        self.exchange.mix(k, Public(released))
        return released


class OtherRandomness(StackedContext):
    """Something random is added to a message, which nobody seeds."""

    def divide(self, total):
        return super().divide(total).add_(float(int.from_bytes(os.urandom(4))))


class EndsOnLargeSums(StackedContext):
    """A run ends where a record is far out."""

    def add_noise(self, total, k, **options):
        assert self.last is not None
        if bool((self.last.norms > 1e2).any()):
            raise ValueError("a gradient is too large")
        return super().add_noise(total, k, **options)


@pytest.mark.parametrize(
    ("context", "names"),
    [
        (AddsAfterNoise, {NOISED, SENT, MODELS}),
        (LastStepBare, {NOISED, SENT, MODELS, PLANNED}),
        (ByTheBatch, {NOISED, PLANNED}),
        (HalfAsked, {PLANNED}),
        (TwiceNoised, {PLANNED}),
        (OverTheBatch, {SENT, MODELS}),
        (LossAlongside, {SENT}),
        (CountAsPublic, {PUBLIC}),
        (OtherRandomness, {TWICE, SENT, MODELS}),
        (EndsOnLargeSums, {SENT, NOISED, MODELS, PUBLIC}),
    ],
)
def test_a_defect_of_a_step_is_found(context, names):
    job = job_of("privsgp", algorithm={"momentum": 0.0, "final_mixing": 0})
    assert failed(job, context) == names


def test_a_defect_is_named_with_its_place():
    finding = found(job_of("privsgp"), LastStepBare)[SENT]
    # Of the last step and of the round that sends its result, with four other data sets.
    assert finding.saw == (
        "Of the 8 values of messages that were compared in each run, 8 differed in all; the first: "
        "with other records (all others), value 0 of the message of step 2 (mix)."
    )


def test_an_anchor_whose_scale_is_forgotten_is_found():
    class ScaleForgotten(StackedContext):
        def add_noise(self, total, k, **options):
            return super().add_noise(total, k, part=options.get("part", 0))

    assert failed(job_of("privsgp-vr"), ScaleForgotten) == {PLANNED}


def test_momentum_of_bare_gradients_is_found(monkeypatch):
    def noised(at, k, context):
        total = context.batch_gradient(at, k)
        bare = context.divide(total.clone())
        return context.divide(context.add_noise(total, k)).add_(bare, alpha=0.5)

    monkeypatch.setattr(privsgp, "noised_gradient", noised)
    assert failed(job_of("privsgp")) == {SENT, MODELS}


def test_a_compressor_that_selects_by_bare_values_is_found(monkeypatch):
    original = do_adp.compressed

    class Remembering(StackedContext):
        def add_noise(self, total, k, **options):
            self._all.__dict__["bare"] = total.clone()
            return super().add_noise(total, k, **options)

    def by_bare_values(values, k, options, context):
        chosen = original(context.bare, k, options, context)
        return replace(chosen, values=values * (chosen.values != 0))

    settings = {"compressor": "top-k", "keep": 0.3, "activation": 1.0}
    assert failed(job_of("do-adp", algorithm=settings), Remembering) == set()
    monkeypatch.setattr(do_adp, "compressed", by_bare_values)
    assert failed(job_of("do-adp", algorithm=settings), Remembering) == {SENT, MODELS}


def test_models_of_a_nodes_own_that_count_as_released_are_found(monkeypatch):
    original: Callable[[Any], Any] = AlgorithmSection.definition.fget  # type: ignore[attr-defined]
    spoilt = property(
        lambda section: replace(
            original(section), releases=replace(original(section).releases, models=True)
        )
    )
    monkeypatch.setattr(AlgorithmSection, "definition", spoilt)
    assert failed(job_of("fedspd-dp")) == {MODELS}


class Still(StackedContext):
    """Gradients are never asked for."""

    def batch_gradient(self, at, k, **options):
        return torch.zeros_like(at)


def test_what_could_not_have_been_seen_is_said():
    assert "with each, 0 or more of 3 sums" in found(job_of("privsgp"), Still)[SENT].power
