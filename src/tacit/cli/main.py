"""The command line: parses, calls, prints; decides nothing.

Exit codes: 0 done (or stopped cleanly), 1 a defect of ours, 2 the user's input is wrong or a file
cannot be written, 3 the privacy budget forbids it, 4 a peer or process was lost, 130 interrupted
before the first step.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from tacit.base.plain_files import own_part
from tacit.base.version import __version__
from tacit.cli.compare import compare, tune
from tacit.cli.identities import consortium_app, site_app
from tacit.cli.init import check, init
from tacit.cli.logs import log_error, log_lines
from tacit.cli.options import (
    PREPARING,
    Ended,
    File,
    Insecure,
    Json,
    Page,
    Set,
    Trust,
    Workers,
    check_files,
    check_new,
    print_written,
    show_document,
    waiting,
)
from tacit.cli.predict import export, predict
from tacit.cli.privacy import privacy_app
from tacit.cli.signals import ANEW, EXIT_CODE, INTERRUPTED, interrupted, kept
from tacit.cli.train import launch, train
from tacit.cli.watch import relay, watch
from tacit.errors import InputError, TacitError, is_meant, public_line

app = typer.Typer(
    name="tacit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(privacy_app)
app.add_typer(site_app)
app.add_typer(consortium_app)
for command in (init, export, check, compare, launch, predict, relay, tune, watch, train):
    app.command()(command)

_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def common_options(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Private decentralized learning that says truthfully what was leaked."""


@app.command()
def plan(
    file: File,
    set_: Set = None,
    optimise: Annotated[
        bool, Option("--optimise", help="Choose the steps by a paper's theorem, to check it.")
    ] = False,
    batch: Annotated[
        bool, Option("--batch", help="With --optimise: choose the batch as well.")
    ] = False,
    clip: Annotated[
        bool, Option("--clip", help="With --optimise: choose the clipping bound as well.")
    ] = False,
    constant: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Of L, b2, F0, x0, G; repeatable.")
    ] = None,
    private_constants: Annotated[
        bool, Option("--private-constants", help="Estimate them from private records: NOT COVERED.")
    ] = False,
    page: Page = None,
    recommend: Annotated[
        bool, Option("--recommend", help="To train: propose what FILE leaves open, and write it.")
    ] = False,
    out: Annotated[
        Path | None,
        Option(metavar="TOML", help="With --recommend: the file; by default beside FILE."),
    ] = None,
    trust: Annotated[
        str | None, Option(help="With --recommend: all-messages, pairwise or secure-sum.")
    ] = None,
    allow_insecure_network: Insecure = False,
    as_json: Json = False,
) -> None:
    """Print what would happen and what it would cost, without training."""
    check_files(file, set_ or ())
    from tacit.cli.tables import plan_document, plan_names
    from tacit.communication.peers import ALONE, Peers
    from tacit.config import load_config
    from tacit.report.plan_page import plan_blocks
    from tacit.training.prepare import prepare
    from tacit.training.processes.agreement import process_group

    for name, value in {"--out": out, "--trust": trust}.items():
        if value is not None and not recommend:
            raise InputError(name, str(value), "goes with --recommend")
    if recommend:
        if optimise:
            raise InputError("--optimise", True, "is another question than --recommend: ask one")
        _recommend(file, set_ or (), out, trust, as_json)
        return
    config = load_config(file, overrides=set_ or ())
    asked = {
        "--batch": batch,
        "--clip": clip,
        "--constant": constant,
        "--private-constants": private_constants,
        "--page": page,
    }
    extra = [name for name, value in asked.items() if value]
    if extra and not optimise:
        raise InputError(extra[0], asked[extra[0]], "goes with --optimise")
    if optimise:
        from tacit.analysis.optimise import OptimiseOptions
        from tacit.analysis.optimise import optimise as optimised
        from tacit.report.documents.base import plain_json
        from tacit.report.optimise_page import optimise_blocks

        options = OptimiseOptions(
            batch=batch,
            clip=clip,
            constants=dict(map(_constant, constant or ())),
            source="train" if private_constants else "test",
        )
        with kept(ANEW), waiting(PREPARING, hidden=as_json):
            found = optimised(config, options)
        show_document(found, optimise_blocks(plain_json(found)), page, as_json=as_json)
        return
    group = process_group(config, allow_insecure_network=allow_insecure_network)
    with kept(ANEW), group as cluster:
        peers: Peers = ALONE if cluster is None else cluster
        with waiting(PREPARING, hidden=as_json or peers.rank > 0):
            job = prepare(config, peers=peers)
    if peers.rank > 0:
        return
    document = plan_document(job)
    show_document(document, plan_blocks(document, plan_names(job)), as_json=as_json)


def _recommend(
    file: Path, overrides: Sequence[str], out: Path | None, trust: str | None, as_json: bool
) -> None:
    from tacit.analysis.recommend import default_path, recommend, write_recommended
    from tacit.report.plan_page import recommend_blocks

    path = default_path(file) if out is None else out
    check_new("--out", path)
    with kept(ANEW), waiting(PREPARING, hidden=as_json):
        found = recommend(file, overrides=overrides, trust=trust)
    write_recommended(found, path)
    document = found.document.model_copy(update={"file": str(path)})
    show_document(document, recommend_blocks(document), as_json=as_json)
    if as_json:
        return
    typer.echo(f"wrote {path}")
    typer.echo(f"next: tacit plan {path}, then tacit train {path}")


def _constant(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        expected = "must read NAME=NUMBER" if equals else "must read NAME=VALUE"
        raise InputError("--constant", text, expected) from None


@app.command()
def audit(
    file: Annotated[
        Path, Argument(metavar="FILE", help="An experiment file, or the folder of a run.")
    ],
    set_: Set = None,
    repetitions: Annotated[
        int | None,
        Option(
            help="Nodes run on each pair of worst-case data; default: 2000, or fewer of long runs."
        ),
    ] = None,
    steps: Annotated[int | None, Option(help="Audit only the first so many steps.")] = None,
    delta: Annotated[
        float | None, Option(help="At which epsilon is stated; default: 1e-3, or the plan's.")
    ] = None,
    confidence: Annotated[float, Option(help="Of all bounds together.")] = 0.95,
    canaries: Annotated[int, Option(help="Canaries planted in one training; 0: none.")] = 1000,
    signals: Annotated[int, Option(help="Gaussian signals in one run; 0: none.")] = 0,
    seed: Annotated[int, Option(help="Of coins, noise and sampling.")] = 0,
    seconds: Annotated[
        float | None, Option(help="For the search for worst-case records; default: 20.")
    ] = None,
    colluding: Annotated[
        int | None,
        Option(
            help="Nodes who pool what they know, where pairs' noise cancels; default: the plan's."
        ),
    ] = None,
    verbose: Annotated[
        bool, Option("--verbose", help="Print every test and every attack, too.")
    ] = False,
    planted: Annotated[
        Path | None, Option(help="Canaries that were planted in the run, and their coins.")
    ] = None,
    trust: Trust = False,
    executor: Workers = None,
    as_json: Json = False,
) -> None:
    """Test and attack the code that trains, and say what it leaks.

    The exit code is 1 where a test or an attack accuses the code. Of a run folder, the result is
    put beside the run: into result.json, the report and audit.json.

    With --planted, the audit is of the run itself: canaries that were planted in it are guessed
    from the model that it released. Nothing is put beside the run.
    """
    from tacit.analysis import audit as auditing
    from tacit.analysis.settings.processes import opened_executor
    from tacit.config import load_config
    from tacit.report.audit_words import audit_blocks
    from tacit.report.view import Text

    if planted is not None:
        found = auditing.audit_deployed(
            file, planted, confidence=confidence, delta=delta, trust=trust
        )
        lines = (Text(line, unbroken=True) for line in auditing.deployed_lines(found))
        show_document(found, list(lines), as_json=as_json)
        if found.defect:
            raise typer.Exit(1)
        return
    options = auditing.AuditOptions(
        repetitions, steps, confidence, delta, canaries, seed, seconds, colluding, signals
    )
    run = file if file.is_dir() else None
    for name, value in {"--set": set_, "--steps": steps, "--colluding": colluding}.items():
        if run is not None and value is not None and value != []:
            raise InputError(name, value, "a run is audited as it is")
    experiment = file if run is None else auditing.run_experiment(run, trust)
    with (
        kept(ANEW),
        opened_executor(executor) as workers,
        auditing.audit_progress() as progress,
    ):
        config = load_config(experiment, overrides=set_ or ())
        report = auditing.audit(config, options=options, progress=progress, executor=workers)
    if run is not None:
        auditing.record_audit(run, report)
    show_document(report, audit_blocks(report, details=verbose), as_json=as_json)
    if report.defect:
        raise typer.Exit(1)


@app.command()
def algorithms(as_json: Json = False) -> None:
    """List the algorithms with their papers and properties."""
    from tacit.cli.tables import algorithms_blocks, algorithms_document

    show_document(algorithms_document(), algorithms_blocks(), as_json=as_json)


@app.command()
def evaluate(
    run: Ended,
    data: Annotated[
        str | None, Option(help="A data set as [task].dataset names it; default: the run's.")
    ] = None,
    data_dir: Annotated[
        str | None, Option(help="Where to look for it; default: the run's.")
    ] = None,
    private: Annotated[
        bool,
        Option("--private", help="Score private records, for your own eyes: by default your own."),
    ] = False,
    by: Annotated[
        str | None, Option(metavar="COLUMN", help="With --private: score its groups as well.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Score the consensus model of a run on test records, or on private ones at home."""
    from tacit.analysis.score import evaluate_privately, evaluate_run
    from tacit.report.view import Text

    if private:
        found, path = evaluate_privately(run, data, data_dir, by=by, trust=trust)
        lines = [Text(f"written to {path}", unbroken=True)]
        show_document(asdict(found), [*found.blocks, *lines], as_json=as_json)
        return
    if by is not None:
        raise InputError("--by", by, "is for private records: add --private")
    score = evaluate_run(run, data, data_dir, trust=trust)
    show_document(asdict(score), [Text(score.describe(), unbroken=True)], as_json=as_json)


@app.command()
def report(
    runs: Annotated[list[Path], Argument(metavar="DIR...", help="Run folders.")],
    as_json: Json = False,
) -> None:
    """Write report.html of run folders anew."""
    from tacit.report import write_report

    print_written([write_report(own_part(folder)) for folder in runs], as_json)


def main() -> None:
    """Run the command line; every error is one plain line on standard error."""
    # Before torch is loaded. Threads that spin while they wait made a small run on a busy machine
    # six times slower (5.1 s against 0.8 s); on an idle one it makes no difference.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    with log_lines(sys.argv[1:]):
        _run(typer.main.get_command(app))


def _run(command: Any) -> None:
    """Run a command; every error that it raises ends the process with one line."""
    try:
        # Not app(): it would print usage errors in several lines, and swallow an interrupt.
        with (
            _seldom_collected(),
            command.make_context("tacit", sys.argv[1:] or ["--help"]) as context,
        ):
            command.invoke(context)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except TacitError as error:
        if error.__cause__ is not None and os.environ.get("TACIT_TRACEBACK"):
            raise
        _fail(str(error), error.exit_code, public_line(error))
    except KeyboardInterrupt as error:
        line = "; ".join([INTERRUPTED, *map(str, error.args)])
        _fail(line, EXIT_CODE, line)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # which rich makes of a pipe that is gone
            sys.exit(0)
        _fail(  # nothing of ours raises it within
            f"the code of your model or data ended the program (SystemExit: {left.code}): nothing "
            "was finished; let it raise another exception",
            InputError.exit_code,
            "the code of your model or data ended the program",
        )
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if interrupted():  # what an interrupt makes of an import that is under way
            _fail(INTERRUPTED, EXIT_CODE, INTERRUPTED)
        if isinstance(error, OSError):
            _no_room(error)
        if hasattr(error, "format_message"):  # of typer: a wrong command or option
            line = _usage(error)
            _fail(line, InputError.exit_code, line)
        if os.environ.get("TACIT_TRACEBACK"):
            raise
        _fail(
            f"a defect of ours: {type(error).__name__}: {error} "
            "(run again with TACIT_TRACEBACK=1 to see where, and report it)",
            1,
            f"a defect of ours: {type(error).__name__}",
        )


def _usage(error: Any) -> str:
    """What is wrong with a command line: an option that is a key of experiments is named as one."""
    option, context = getattr(error, "option_name", ""), error.ctx
    parameters = [] if context is None else context.command.params
    known = [name for parameter in parameters for name in parameter.opts]
    if option and option not in known and "--set" in known:
        from tacit.config.load import key_meant

        near = is_meant(option, known)
        key = None if near and option.startswith(near) else key_meant(option.lstrip("-"))
        if key is None and near is None:
            return (
                f"{option} is no option: a key of the experiment is written --set SECTION.KEY=VALUE"
            )
        if key is not None:
            after = (after for given, after in pairwise(sys.argv) if given == option)
            return f"{option} is a key of the experiment: write --set {key}={next(after, 'VALUE')}"
    return f"{error.format_message()} ('tacit --help' lists commands and options)"


def _no_room(error: OSError) -> None:
    """End with one line if the disk is full, and what did not fit is no part of a run."""
    from tacit.base.private_files import lacks_room

    if not lacks_room(error):
        return
    what = error.filename or "standard output, or a file that has no name here"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else what is left in its buffer fails at exit
    _fail(
        f"{what} cannot be written ({error.strerror}): make room and run it again; a run that has "
        "a folder goes on with --resume",
        InputError.exit_code,
    )


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for cyclic garbage seldom within, and not at all at exit.

    Loading PyTorch makes a million objects, of which none is garbage. Python would look through
    them again and again while there are more and more, and once more at its end: 0.6 s of a plan
    of 2.5, or of a run of 4. Steps of training leave no cycles, so that little waits to be freed.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *usual[1:])
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _fail(message: str, code: int, public: str | None = None) -> NoReturn:
    """End with one line, of which `public` may be told to anybody."""
    line = " ".join(message.split())
    if not log_error(line, code, public):
        sys.stderr.write(f"tacit: {line}\n")
    sys.exit(code)
