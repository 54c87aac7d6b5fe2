"""Whether what leaves a process is what was noised, and what was public before.

The real `tacit.training.loop.execute` runs the job's first steps with a run folder, and runs again
on other records while the noise releases what it did before. All that others may see must then be
the same: metrics, result, report, statement, the common model, the names and forms of files, and
what other processes would be told. Left out is what is marked as measured on private records, and
clocks. Then the experiment is prepared again with other records: what is public of it (parameters,
outputs, plan, and what other processes would be told) must be the same, and none may be refused.

Keys are from the operating system, as in a run, so that the same statement is made; ledgers of data
are left alone. The argument is in `docs/proofs/audits.md`, "What leaves a node".
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import safe_open

from tacit.analysis.audit.fidelity.finding import Finding
from tacit.analysis.audit.fidelity.interference import Shown, compared, digest, on_others
from tacit.analysis.audit.fidelity.interference import fingerprint as bits
from tacit.analysis.audit.recorder import ContextFactory, Noised, Pinned, with_noise
from tacit.analysis.audit.records import other_inputs
from tacit.analysis.statement import statement_document
from tacit.communication.peers import Peers
from tacit.communication.received import SESSION_ID, Form
from tacit.config.schema import LEDGER_KEYS
from tacit.data import StackedData
from tacit.errors import DivergenceError, TacitError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.report.documents.base import as_dict, plain_json
from tacit.report.documents.metrics import PrivateMeasurement, PublicMeasurement
from tacit.report.documents.run import read_run_folder
from tacit.report.run_page import run_page
from tacit.training.hooks import Callback, Progress
from tacit.training.job import Job
from tacit.training.loop import execute
from tacit.training.run_folder.folder import MODEL, NODES, REPORT, RESULT
from tacit.training.run_folder.result import Result
from tacit.training.stacked_context import StackedContext

T = TypeVar("T")

STEPS = 3
SCORED = 64  # public test records that are scored
RERUN = ("all others", "one extreme")  # data sets on which the run is made again
CLOCKS = ("seconds", "steps_per_second")
PRIVATE = tuple(key for key in PrivateMeasurement.model_fields if key != "step")
OF_THIS_RUN = ("date", "run", "ledger")  # a statement's: when, and the random names of its ledger


def leaving_findings(
    job: Job, *, context: ContextFactory = StackedContext, steps: int = STEPS
) -> list[Finding]:
    """Run and prepare a job again on other records, and compare all that others may see.

    It runs in one process, adds noise, and is stopped after so many steps.
    """
    steps = min(steps, job.plan.steps)
    run = partial(_run, job, context=context, steps=steps, kept=[])
    first = run(job.train)
    others = on_others(job, lambda _, data: run(data), RERUN)
    again = {**others, "the same records": run(job.train)}
    own = _prepared(job, job.train if job.raw is None else job.raw)
    facts = on_others(job, lambda _, data: _prepared(job, data), records=other_inputs)
    return [
        compared(
            first,
            "what a run shows",
            "Does anything that others may see of a run depend on the records in any other way "
            "than through what was noised?",
            again,
            ("shown",),
            "metrics, files and documents",
            f"It finds everything that differs after {steps} steps between runs on the job's "
            f"records and on others ({_names(others)}): names and forms of files, rows of metrics, "
            "the result, the report, the statement and the common model. It does not look at what "
            "is marked as measured on private records, nor at clocks.",
        ),
        compared(
            first,
            "what other processes are told",
            "Is what a run shares with other processes the same, whatever the records are?",
            again,
            ("told",),
            "things told",
            f"It finds everything that differs in {steps} steps on other records "
            f"({_names(others)}) as one process would tell it to others beside its messages, which "
            "have tests of their own.",
        ),
        compared(
            own,
            "what is public beforehand",
            "Is what is said of an experiment before it starts the same, whatever the records are?",
            facts,
            ("shown", "told"),
            "facts",
            "It finds every number of parameters or outputs, every shape, noise, plan, and refusal "
            f"that is another one with other records ({_names(facts)}). It does not see what files "
            "that hold such records would make public when they are read.",
        ),
    ]


def _names(others: Mapping[str, Shown]) -> str:
    return ", ".join(others) or "none that the model takes"


# A run.


def _run(
    job: Job,
    data: StackedData,
    *,
    context: ContextFactory,
    steps: int,
    kept: list[Noised],
) -> Shown:
    """Run the first steps in a folder that is deleted, and keep digests of what others may see.

    The noise releases what is `kept`; if that is empty, what it released is put there.

    Raises:
        Exception: on the job's own records, what ended the run and is no error of ours: nothing
            is left to compare then, and runs that all end alike would pass for equal.
    """
    own, test = data is job.train, job.test
    noise = Pinned(job.plan.release.algorithm.releases.noise.begin(), kept)
    # With keys from the operating system, and without ledgers of the data.
    free = dict.fromkeys((*LEDGER_KEYS, "noise_seed"))
    plan = replace(job.plan, config=job.plan.config.with_keys(privacy=free))
    if test is not None and len(test) > SCORED:  # public ones, from all over
        rows = torch.linspace(0, len(test) - 1, SCORED).long().to(test.targets.device)
        test = replace(test, inputs=test.inputs[rows], targets=test.targets[rows])
    job = replace(job, plan=with_noise(plan, noise), train=data, loaded=data, test=test)
    heard, seen = _Heard(), _CallbackWatch()

    def make_context(*arguments: Any) -> StackedContext:
        # Without the list of the nodes of this process, which are all.
        *given, _, shared = arguments
        made = context if shared is None else partial(context, pair_keys=shared)
        return cast(StackedContext, made(*given))

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        shown: list[tuple[str, str]] = []
        ended: str | None = None
        try:
            result = execute(
                job,
                out=out,
                callbacks=[seen],
                should_stop=lambda: len(seen.steps) >= steps,
                alone=heard,
                make_context=make_context,
            )
            shown += [*_results(job, result), *_files(out, job), *_documents(out, result)]
        except DivergenceError as error:  # of what was released: everyone sees its text
            shown.append(("the end of a run that diverged", digest(str(error).replace(folder, ""))))
            ended = type(error).__name__
        except Exception as error:  # whatever the code under audit raises
            if own and not isinstance(error, TacitError):
                raise
            ended = type(error).__name__
    if not kept:
        kept += noise.asked
    return Shown({"shown": (*seen.rows, *seen.steps, *shown), "told": tuple(heard.told)}, ended)


@dataclass
class _Heard(Peers):
    """Nobody, who keeps what other processes would be told but for names of runs drawn anew."""

    told: list[tuple[str, str]] = field(default_factory=list)

    def share(self, what: str, value: T, schema: Form[T]) -> list[T]:
        written = "" if schema is SESSION_ID else schema.write(value)
        self.told.append((f"the {what} that other processes are told", digest(written)))
        return super().share(what, value, schema)


@dataclass
class _CallbackWatch(Callback):
    """A callback that keeps what callbacks are told, without clocks."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)

    def on_metrics(self, metrics: PublicMeasurement) -> None:
        what = f"what callbacks get of the metrics of step {metrics.step}"
        self.rows.append((what, _row(metrics)))

    def on_step(self, progress: Progress) -> None:
        what = f"what callbacks get of the progress of step {progress.step}"
        self.steps.append((what, digest(repr(replace(progress, steps_per_second=0.0)))))


def _row(row: PublicMeasurement) -> str:
    return _json(as_dict(row), CLOCKS, PRIVATE)


def _json(document: Mapping[str, Any], *left_out: Sequence[str]) -> str:
    """A digest of a document without some of its keys."""
    without = {key for keys in left_out for key in keys}
    kept = {key: value for key, value in document.items() if key not in without}
    return digest(json.dumps(plain_json(kept), sort_keys=True, default=repr))


def _results(job: Job, result: Result) -> Iterator[tuple[str, str]]:
    """What a program that trains gets, but for what is its site's own."""
    yield "the common model", bits(result.consensus)
    if job.config.algorithm.definition.releases.models:
        yield "the nodes' models", bits(result.parameters)
    for name in ("epsilon", "claims", "bytes_sent", "steps", "status", "message", "notes"):
        yield f"the result's {name}", digest(repr(getattr(result, name)))
    yield "whether the result is private", digest(repr(result.private))


def _files(out: Path, job: Job) -> Iterator[tuple[str, str]]:
    """Names of all files; the content of those that are public, and the form of the others."""
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        public = name == MODEL or (
            name == NODES and job.config.algorithm.definition.releases.models
        )
        if path.suffix == ".safetensors":
            with safe_open(str(path), framework="pt") as file:
                slices = {key: file.get_slice(key) for key in sorted(file.keys())}
                form = [(key, one.get_dtype(), one.get_shape()) for key, one in slices.items()]
            content = path.read_bytes() if public else b""
            yield f"the form of {name}", digest(repr(form), content)
        elif path.suffix == ".toml":
            yield f"the settings in {name}", digest("", path.read_bytes())
        else:
            yield f"the file {name}", digest(name)


def _documents(out: Path, result: Result) -> Iterator[tuple[str, str]]:
    """What files say, without clocks and what is marked as private."""
    run = read_run_folder(out)
    yield RESULT, _json(as_dict(run.result), CLOCKS)
    for row in run.measurements:
        yield f"the metrics of step {row.step}", _row(row)
    # The page as other parties have it.
    hidden = {**dict.fromkeys(PRIVATE), "seconds": 1.0}
    rows = tuple(row.model_copy(update=hidden) for row in run.measurements)
    plain = run.result.model_copy(update=dict.fromkeys(CLOCKS, 1.0))
    page = run_page(replace(run, measurements=rows, result=plain))
    yield f"what {REPORT} shows to others", digest(page.replace(str(out), ""))
    if (out / "ledger.sqlite").exists():
        ledger = read_ledger(out / "ledger.sqlite")
        (entered,) = ledger.runs
        said = (entered.digest, entered.statements, entered.charged, entered.unsent)
        yield "what the ledger says", digest(repr((*said, ledger.accounts)))
    if result.private:
        statement = as_dict(statement_document(out))
        yield "the statement", _json(statement, OF_THIS_RUN)


# What is said before a run.


def _prepared(job: Job, data: StackedData) -> Shown:
    """What is said of the job once it is prepared with some records.

    Lines of a plan that say what was timed differ between two preparations of the same records,
    and are left out.

    Raises:
        Exception: on the job's own records, what was raised and is no error of ours.
    """
    heard = _Heard()
    try:
        other = job.again(data, heard)
    except Exception as error:  # whatever the code under audit raises
        if data in (job.train, job.raw) and not isinstance(error, TacitError):
            raise
        return Shown({"told": tuple(heard.told)}, type(error).__name__)
    plan, slots = other.plan, other.model.layout.slots
    shown = {
        "the number of parameters": plan.parameters,
        "the number of outputs": other.outputs,
        "the shapes of the parameters": [(slot.name, slot.shape) for slot in slots],
        "the path to the gradients": other.model.path,
        "the epsilon of the nodes": [node.epsilon for node in plan.nodes],
        "the plan": plan.digest(),
        "the mechanisms": [repr(plan.release.assumed_mechanism(node)) for node in plan.nodes],
        "the warnings": [line for line in plan.warnings if line in job.plan.warnings],
        "the notes": [line for line in plan.notes if line in job.plan.notes],
    }
    said = tuple((what, digest(repr(value))) for what, value in shown.items())
    return Shown({"shown": said, "told": tuple(heard.told)})
