"""Whether all that a node sends is a function of what was noised, and of nothing else.

A step is noised in one place: the `noise` of its algorithm's row. So the user's own model is
trained for some steps and what the noise releases is kept. Then the same code runs again on other
records and with other secret coins, while the noise releases what was kept. By induction over the
steps, a program whose messages are functions of public values and of earlier releases then sends
the same messages, to the last bit: the argument is in `docs/proofs/audits.md`, "What leaves a
node". No correct program fails, whatever the algorithm, the relation and the sampler.

What is seen is what reaches a message by another way than through the noise: momentum of gradients
that is added after it, a step that is sent bare, a compressor that selects by un-noised values, a
division by how many records were drawn. What is not seen is what depends on private values for
records that were not tried, and what is wrong with the noise itself or with the sum that it is
added to: other tests look at these. Noise of pairs is a part of the release that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ne

from torch import Tensor

from tacit.analysis.audit.fidelity.compared import Items, changed, compared_finding, fingerprint
from tacit.analysis.audit.fidelity.finding import Finding
from tacit.analysis.audit.fidelity.other_records import CHANGES, other_records
from tacit.analysis.audit.fidelity.pinned import Place, pinned
from tacit.analysis.audit.harness import seeded
from tacit.analysis.audit.trace import ContextFactory, Sent, Trace, run_traced, with_noise
from tacit.communication.compression import Coding
from tacit.data import StackedData
from tacit.training.prepare import Job
from tacit.training.processes.communication import local_exchange


@dataclass(frozen=True)
class Shown:
    """What one run showed, as digests.

    Args:
        messages: every value of every message, with its type, shape, coding and colour.
        public: those of them alone that are marked as known to everyone beforehand.
        releases: what was asked of the noise, and what the step got.
        models: that the algorithm calls released, and the common one.
        planned: how much noise the plan says, of each row of each release.
        asked: how much the noise was asked for.
        sums: that were handed to the noise: private, for a node's own eyes.
        error: the kind of error that ended the run; None: nothing did.
    """

    messages: Items = ()
    public: Items = ()
    releases: Items = ()
    models: Items = ()
    planned: Items = ()
    asked: Items = ()
    sums: Items = ()
    error: str | None = None


def interference_findings(
    job: Job, *, context: ContextFactory, seed: int, steps: int
) -> list[Finding]:
    """Run a job's own model and records, and again on others with the releases pinned.

    Args:
        job: what to run; it adds noise.
        context: what executes a step.
        seed: of noise and secret coins.
        steps: how many steps are run, at most those of the plan.
    """
    first, kept = show(job, job.train, context=context, seed=seed, steps=steps)
    again, _ = show(job, job.train, context=context, seed=seed, steps=steps, before=kept)
    others: dict[str, Shown] = {}
    for number, (name, change) in enumerate(CHANGES.items(), start=1):
        data = other_records(job, change)
        if data is None:
            continue
        try:
            others[name], _ = show(
                job, data, context=context, seed=seed + number, steps=steps, before=kept
            )
        except Exception as error:  # whatever the code under audit raises
            # Its kind alone: its text may quote private values.
            others[name] = Shown(error=type(error).__name__)
    free, _ = show(job, job.train, context=context, seed=seed + len(CHANGES) + 1, steps=steps)
    everything = {**others, "the same, under other noise": free}
    reach = f"in the first {steps} steps for other records ({_tried(others, first)})"
    return [
        compared_finding(
            "the same run twice",
            "Does a run on the same records, with the same coins and noise, send the same?",
            _differences({"the same": again}, first, _all),
            "values that were sent, released or computed",
            len(_all(first)),
            "It finds every such value that another source of randomness changes. All other "
            "comparisons of runs rest on this one.",
        ),
        compared_finding(
            "what is sent",
            "Do messages depend on the records in any other way than through what was noised?",
            _differences(others, first, lambda shown: shown.messages),
            "values of messages",
            len(first.messages),
            f"It finds every value, size or number of messages that changes {reach}.",
        ),
        compared_finding(
            "what is released",
            "Is the noise asked for at the same places and in the same amount whatever the records "
            "are, and is what comes out noised?",
            _differences(others, first, lambda shown: shown.releases),
            "calls for noise and releases",
            len(first.releases),
            "It finds every step that leaves out the noise, adds to what was noised, or asks for "
            f"noise by private values, where that changes anything {reach}.",
        ),
        compared_finding(
            "noise as planned",
            "Is the noise asked for in the amount that the plan says, for every node and step?",
            [f"{what} is not as planned" for what in changed(first.planned, first.asked)],
            "noised rows",
            len(first.planned),
            f"It finds every row of the first {steps} steps for which another amount is asked for, "
            "by a last bit, and every row that is noised twice or not at all. What is then drawn "
            "has tests of its own.",
            "how many rows get another amount of noise than the plan says, or another number of it",
        ),
        compared_finding(
            "models that count as released",
            "Are the models that others may see functions of what was noised?",
            _differences(others, first, lambda shown: shown.models),
            "models",
            len(first.models),
            f"It finds every such model that changes {reach}.",
        ),
        compared_finding(
            "what counts as public",
            "Is what is sent as known to everyone the same, whatever the records and the noise?",
            _differences(everything, first, lambda shown: shown.public),
            "values that count as public",
            len(first.public),
            "It finds every such value that also changes where only the noise is another one, or "
            f"{reach}.",
        ),
    ]


def show(
    job: Job,
    data: StackedData,
    *,
    context: ContextFactory,
    seed: int,
    steps: int,
    before: Mapping[Place, Tensor] | None = None,
) -> tuple[Shown, Mapping[Place, Tensor]]:
    """Run a job once, and keep digests of what it showed, and what the noise released.

    Args:
        job: what to run.
        data: the nodes' records.
        context: what executes a step.
        seed: of noise and secret coins.
        steps: how many steps are run.
        before: what the noise is to release; None: it is drawn.
    """
    noise = pinned(job.plan.release.algorithm.noise, before)
    plan = with_noise(seeded(job.plan, seed), noise)
    job = replace(job, plan=plan)
    released = plan.config.algorithm.definition.released_models
    trace = run_traced(
        plan,
        job.model,
        data,
        local_exchange(job),
        context=context,
        steps=steps,
        models=released,
    )
    asked = tuple((f"the noise asked for in step {call.step}", repr(call)) for call in noise.asked)
    messages = [
        (_words(sent, place), fingerprint(value, sent.colours[place], *_coded(sent.coding)))
        for sent in trace.sent
        for place, value in enumerate(sent.values)
    ]
    public = [
        (_words(sent, place), fingerprint(value))
        for sent in trace.sent
        for place, value in enumerate(sent.values)
        if sent.colours[place] == "Public"
    ]
    shown = Shown(
        messages=tuple(messages),
        public=tuple(public),
        releases=asked + _released(trace),
        models=_models(trace),
        planned=_rows(
            (release.step, release.part, node, deviation)
            for release in trace.releases
            for node, deviation in zip(release.nodes, release.deviations.tolist(), strict=True)
        ),
        asked=_rows(
            (call.step, call.part, node, deviation)
            for call in noise.asked
            for node, deviation in zip(call.nodes, call.deviations, strict=True)
        ),
        sums=tuple(
            (f"a sum of step {release.step}", fingerprint(release.before))
            for release in trace.releases
        ),
    )
    return shown, noise.kept


def _rows(rows: Iterable[tuple[int, int, int, float]]) -> Items:
    """How much noise each row gets, in an order of their own: calls may take rows together."""
    return tuple(
        (f"the noise of node {node} in part {part} of step {step}", repr(float(deviation)))
        for step, part, node, deviation in sorted(rows)
    )


def _released(trace: Trace) -> Items:
    return tuple(
        (
            f"part {release.part} of what step {release.step} released",
            fingerprint(release.after, repr(release.nodes), release.deviations.tobytes().hex()),
        )
        for release in trace.releases
    )


def _models(trace: Trace) -> Items:
    models = [
        (f"the nodes' models after {step} steps", fingerprint(value))
        for step, value in enumerate(trace.models)
    ]
    common = [] if trace.common is None else [("the common model", fingerprint(trace.common))]
    return (*models, *common)


def _words(sent: Sent, place: int) -> str:
    which = f", round {sent.extra + 1}" if sent.extra else ""
    return f"value {place} of the message of step {sent.step}{which} ({sent.verb})"


def _coded(coding: Coding | None) -> Sequence[str]:
    if coding is None:
        return ()
    settings = (coding.compressor, coding.keep, coding.seed, coding.step, coding.part)
    return (repr(settings), coding.bytes.tobytes().hex())


def _all(shown: Shown) -> Items:
    return shown.messages + shown.releases + shown.models


def _tried(others: Mapping[str, Shown], first: Shown) -> str:
    """With which records the runs were made, and whether they could have shown anything."""
    moved = [sum(map(ne, shown.sums, first.sums)) for shown in others.values() if shown.sums]
    if not moved:
        return "none: the model fails on all that were made"
    names = ", ".join(others)
    return f"{names}; with each, {min(moved)} or more of {len(first.sums)} sums were other ones"


def _differences(
    runs: Mapping[str, Shown], first: Shown, pick: Callable[[Shown], Items]
) -> list[str]:
    """What differs from the first run, in words: how a run differs from it, and what does."""
    found = []
    for name, shown in runs.items():
        records = f"with other records ({name})," if name in CHANGES else f"with {name},"
        if shown.error is not None:
            found.append(f"{records} the run ended with an error of the kind {shown.error}")
            continue
        found += [f"{records} {what}" for what in changed(pick(first), pick(shown))]
    return found
