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

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from operator import ne

from torch import Tensor

from tacit.analysis.audit.fidelity.finding import Finding, exact_finding
from tacit.analysis.audit.recorder import ContextFactory, Noised, Sent, run_traced, seeded
from tacit.analysis.audit.records import CHANGES, Change, other_records
from tacit.communication.compression import Coding
from tacit.data import StackedData
from tacit.training.job import Job
from tacit.training.processes.communication import local_exchange

# Runs that must agree to the last bit: what each showed, by channel, and what differs.

Items = tuple[tuple[str, str], ...]
"""What each thing is, for people, and a digest of it, in the order in which they came."""


@dataclass(frozen=True)
class Shown:
    """What one run, or one preparation, showed: digests of what went over channels, by their names.

    `error` is the kind of error that ended it, as its text may quote private values; None: nothing
    did.
    """

    channels: Mapping[str, Items]
    error: str | None = None

    def of(self, *channels: str) -> Items:
        """What went over some channels; nothing over one that an error came before."""
        there = {**dict.fromkeys(channels, ()), **self.channels} if self.error else self.channels
        return tuple(chain.from_iterable(there[name] for name in channels))


def fingerprint(value: Tensor, *more: str) -> str:
    """A digest of a tensor's type, shape and bits, and of texts that go with it."""
    plain = value.detach().contiguous().cpu()
    return digest(repr((str(plain.dtype), tuple(plain.shape), more)), plain.numpy().tobytes())


def digest(text: str, content: bytes = b"") -> str:
    """A digest of a text and of bytes that follow it."""
    whole = hashlib.blake2b(text.encode(), digest_size=16)
    whole.update(content)
    return whole.hexdigest()


def on_others(
    job: Job,
    show: Callable[[str, StackedData], Shown],
    names: Iterable[str] = CHANGES,
    records: Callable[[Job, Change], StackedData | None] = other_records,
) -> dict[str, Shown]:
    """What is shown after each change of the records that the job's model takes, by its name."""
    made = ((name, records(job, CHANGES[name])) for name in names)
    return {name: show(name, data) for name, data in made if data is not None}


def changed(first: Items, other: Items) -> list[str]:
    """What is not the same in two runs, in words; what only one of them has counts too."""
    pairs = zip_longest(first, other, fillvalue=("", ""))
    return [own[0] or theirs[0] for own, theirs in pairs if own != theirs]


def compared(
    first: Shown,
    name: str,
    question: str,
    runs: Mapping[str, Shown],
    channels: Sequence[str],
    things: str,
    power: str,
    ended: str = "it ended with an error,",
) -> Finding:
    """Whether runs showed `things` over some channels as the first one did.

    That all ended with an error of one kind is no difference. Where the first one did, the finding
    says so. The kind of any other error stands after `ended`.
    """
    found = []
    for run, shown in runs.items():
        records = f"with other records ({run})," if run in CHANGES else f"with {run},"
        if shown.error != first.error:
            how = "nothing was wrong" if shown.error is None else f"{ended} {shown.error}"
            found.append(f"{records} {how}")
            continue
        found += [f"{records} {what}" for what in changed(first.of(*channels), shown.of(*channels))]
    finding = agreement(name, question, found, things, len(first.of(*channels)), power)
    if first.error is None:
        return finding
    reason = f"Only what came before an error was compared, {first.error}. "
    return finding.model_copy(update={"saw": reason + finding.saw})


def agreement(
    name: str,
    question: str,
    differences: Sequence[str],
    things: str,
    count: int,
    power: str,
    meaning: str = "how many of them differ between runs that must agree to the last bit",
) -> Finding:
    """The finding of what differs, each in words, of `count` things that one run has."""
    saw = f"None of the {count} {things} differed." if count else f"There were no {things}."
    if differences:
        saw = (
            f"Of the {count} {things} that were compared in each run, {len(differences)} differed "
            f"in all; the first: {differences[0]}."
        )
    return exact_finding(name, question, len(differences), meaning, saw, power)


# A run, and the same on other records.


def interference_findings(
    job: Job, *, context: ContextFactory, seed: int, steps: int
) -> list[Finding]:
    """Run a job's own model and records, and again on others with the releases pinned.

    It adds noise, and runs `steps` of its plan, with noise and secret coins of `seed` and of those
    that follow it.
    """
    run = partial(_show, job, context=context, steps=steps)
    seeds = {name: seed + number for number, name in enumerate(CHANGES, start=1)}
    first, kept = run(job.train, seed=seed)
    again, _ = run(job.train, seed=seed, before=kept)

    def on(name: str, data: StackedData) -> Shown:
        try:
            return run(data, seed=seeds[name], before=kept)[0]
        except Exception as error:  # whatever the code under audit raises
            return Shown({}, type(error).__name__)

    others = on_others(job, on)
    free, _ = run(job.train, seed=seed + len(CHANGES) + 1)
    everything = {**others, "the same, under other noise": free}
    # With which records the runs were made, and whether they could have shown anything.
    sums = first.of("sums")
    moved = [sum(map(ne, own, sums)) for shown in others.values() if (own := shown.of("sums"))]
    tried = "none: the model fails on all that were made"
    if moved:
        names = ", ".join(others)
        tried = f"{names}; with each, {min(moved)} or more of {len(sums)} sums were other ones"
    reach = f"in the first {steps} steps for other records ({tried})"
    compare = partial(compared, first, ended="the run ended with an error of the kind")
    return [
        compare(
            "the same run twice",
            "Does a run on the same records, with the same coins and noise, send the same?",
            {"the same": again},
            ("messages", "releases", "models"),
            "values that were sent, released or computed",
            "It finds every such value that another source of randomness changes. All other "
            "comparisons of runs rest on this one.",
        ),
        compare(
            "what is sent",
            "Do messages depend on the records in any other way than through what was noised?",
            others,
            ("messages",),
            "values of messages",
            f"It finds every value, size or number of messages that changes {reach}.",
        ),
        compare(
            "what is released",
            "Is the noise asked for at the same places and in the same amount whatever the records "
            "are, and is what comes out noised?",
            others,
            ("releases",),
            "calls for noise and releases",
            "It finds every step that leaves out the noise, adds to what was noised, or asks for "
            f"noise by private values, where that changes anything {reach}.",
        ),
        agreement(
            "noise as planned",
            "Is the noise asked for in the amount that the plan says, for every node and step?",
            [
                f"{what} is not as planned"
                for what in changed(first.of("planned"), first.of("asked"))
            ],
            "noised rows",
            len(first.of("planned")),
            f"It finds every row of the first {steps} steps for which another amount is asked for, "
            "by a last bit, and every row that is noised twice or not at all. What is then drawn "
            "has tests of its own.",
            "how many rows get another amount of noise than the plan says, or another number of it",
        ),
        compare(
            "models that count as released",
            "Are the models that others may see functions of what was noised?",
            others,
            ("models",),
            "models",
            f"It finds every such model that changes {reach}.",
        ),
        compare(
            "what counts as public",
            "Is what is sent as known to everyone the same, whatever the records and the noise?",
            everything,
            ("public",),
            "values that count as public",
            "It finds every such value that also changes where only the noise is another one, or "
            f"{reach}.",
        ),
    ]


def _show(
    job: Job,
    data: StackedData,
    *,
    context: ContextFactory,
    seed: int,
    steps: int,
    before: Sequence[Noised] = (),
) -> tuple[Shown, Sequence[Noised]]:
    """Run a job once on some records: what it showed, and what was asked of its noise.

    The noise releases what it did `before`, if anything. Channels: `messages` are all values,
    each with its type, shape, coding and colour, and `public` those alone that are marked as known
    to everyone beforehand; `releases` what was asked of the noise, and what the step got; `models`
    those that the algorithm calls released, and the common one; `planned` and `asked` how much
    noise each row of each release was to get and got; `sums` what was handed to the noise, which
    is private and for a node's own eyes.
    """
    plan = seeded(job.plan, seed)
    trace = run_traced(
        plan,
        job.model,
        data,
        local_exchange(replace(job, plan=plan)),
        context=context,
        steps=steps,
        replay=before,
        draws=True,
        models=plan.config.algorithm.definition.releases.models,
    )
    assert trace.common is not None
    asked = trace.noise.asked
    values = [
        (_words(sent, place), value, sent.colours[place], _coded(sent.coding))
        for sent in trace.sent
        for place, value in enumerate(sent.values)
    ]
    released = (
        (
            f"part {release.part} of what step {release.step} released",
            fingerprint(release.after, repr(release.nodes), release.deviations.tobytes().hex()),
        )
        for release in trace.releases
    )
    channels: dict[str, Iterable[tuple[str, str]]] = {
        "messages": (
            (words, fingerprint(value, colour, *coded)) for words, value, colour, coded in values
        ),
        "public": (
            (words, fingerprint(value)) for words, value, colour, _ in values if colour == "Public"
        ),
        "releases": chain(
            ((f"the noise asked for in step {call.step}", repr(call)) for call in asked),
            released,
        ),
        "models": (
            *(
                (f"the nodes' models after {step} steps", fingerprint(value))
                for step, value in enumerate(trace.models)
            ),
            ("the common model", fingerprint(trace.common)),
        ),
        "planned": _rows(
            (release.step, release.part, node, deviation)
            for release in trace.releases
            for node, deviation in zip(release.nodes, release.deviations.tolist(), strict=True)
        ),
        "asked": _rows(
            (call.step, call.part, node, deviation)
            for call in asked
            for node, deviation in zip(call.nodes, call.deviations, strict=True)
        ),
        "sums": (
            (f"a sum of step {release.step}", fingerprint(release.before))
            for release in trace.releases
        ),
    }
    return Shown({name: tuple(items) for name, items in channels.items()}), asked


def _rows(rows: Iterable[tuple[int, int, int, float]]) -> Items:
    """How much noise each row gets, in an order of their own: calls may take rows together."""
    return tuple(
        (f"the noise of node {node} in part {part} of step {step}", repr(float(deviation)))
        for step, part, node, deviation in sorted(rows)
    )


def _words(sent: Sent, place: int) -> str:
    which = f", round {sent.extra + 1}" if sent.extra else ""
    return f"value {place} of the message of step {sent.step}{which} ({sent.verb})"


def _coded(coding: Coding | None) -> Sequence[str]:
    if coding is None:
        return ()
    settings = (coding.compressor, coding.keep, coding.seed, coding.step, coding.part)
    return (repr(settings), coding.bytes.tobytes().hex())
