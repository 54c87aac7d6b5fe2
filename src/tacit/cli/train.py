"""The commands `tacit train` and `tacit launch`, and what a service has to know of its run.

A service gives one command line, the first time and every time after. Standard error has what a run
says of itself while it goes on, and when it has ended.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tacit.cli.logs import LogFormat, as_json_lines, describe_process, say, tell
from tacit.cli.options import (
    PREPARING,
    File,
    Insecure,
    Json,
    LogLines,
    Out,
    Quiet,
    Resume,
    ResumeIfThere,
    Set,
    check_files,
    waiting,
)
from tacit.cli.signals import stop_signals
from tacit.errors import AbsentError, InputError
from tacit.report.measures import measure_of
from tacit.report.wording import epsilon_text, node_list, percent_text

if TYPE_CHECKING:
    from tacit.communication.crew import Crew
    from tacit.config import Config
    from tacit.training.hooks import Progress as Moment
    from tacit.training.run_folder.result import Result

# Beside [train].timeout, within which the processes notice by themselves: to say so and to end.
_TO_END = 15.0
_DONE_ALREADY = "this run was done already: nothing was trained, and nothing charged"


def train(
    file: File,
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    resume_if_there: ResumeIfThere = False,
    quiet: Quiet = False,
    site: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Take part as this site of a consortium; the name of --out is that of the run.",
        ),
    ] = None,
    allow_insecure_network: Insecure = False,
    as_json: Json = False,
    log_format: LogLines = LogFormat.PLAIN,
) -> None:
    """Train, and write a run folder with models, metrics, ledger and report."""
    check_files(file, set_ or ())
    from tacit.communication.peers import ALONE, Peers
    from tacit.config import load_config
    from tacit.training import loop as run
    from tacit.training.prepare import prepare
    from tacit.training.processes.agreement import agreed_folder, with_processes
    from tacit.training.run_folder import folder

    if resume and out is None:
        raise InputError("--resume", True, "name the run folder to continue with --out")
    config = load_config(file, overrides=set_ or ())

    def done_already(destination: Path) -> None:
        tell(_DONE_ALREADY)
        if not own_rank(site):
            _print_result(destination, quiet, as_json)

    if resume_if_there:
        resume = is_there(out, resume=resume)
        describe_process(rank=own_rank(site), run=None if out is None else out.name)
        if out is not None and was_done(out, config, site):
            done_already(out)
            return
    destination, rank, goes_on = out or Path(), 0, resume
    made: list[int] = []

    def take_part(cluster: Crew | None, resume: bool) -> Result:
        nonlocal destination, rank, goes_on
        peers: Peers = ALONE if cluster is None else cluster
        destination, goes_on = agreed_folder(cluster, out, resume, lambda: _new_run(file))
        rank = peers.rank
        describe_process(rank=rank, run=destination.name)
        if not goes_on and rank == 0:
            folder.check_new(destination)
        hidden = quiet or as_json or rank > 0
        with waiting(PREPARING, hidden=hidden):
            job = prepare(config, peers=peers)
        hidden = hidden and not as_json_lines()
        warned: tuple[str, ...] = () if hidden else job.plan.warnings
        if hidden and rank == 0 and job.plan.not_private_warning is not None:
            warned = (job.plan.not_private_warning,)  # however quiet it is to be
        progress = _progress_line(hidden=hidden, warnings=warned)

        def on_step(moment: Moment) -> None:
            made.append(moment.step)
            describe_process(step=moment.step)
            show(moment)

        signals = stop_signals(hidden=rank > 0, leaves=site is not None, say=say)
        with progress as show, signals as asked_to_stop:
            return run.execute(
                job,
                out=destination,
                resume=goes_on,
                on_step=on_step,
                should_stop=asked_to_stop,
                cluster=cluster,
            )

    try:
        result = with_processes(
            config,
            take_part,
            resume=resume,
            allow_insecure_network=allow_insecure_network,
            site=site,
            out=out,
        )
    except AbsentError:
        if not (resume_if_there and out is not None and ends_alone(out)):
            raise
        done_already(out)  # nobody is left who would wait for this process
        return
    if result.status == "stopped" and rank == 0:
        more = "" if resume_if_there else f" with --out {destination} --resume"
        made_of = f"{result.steps} of {result.plan.steps}"
        tell(f"stopped cleanly after step {made_of}: the same command{more} goes on")
    if not (quiet or as_json):
        _closing_line(result, rank, rank == 0 and goes_on and not made)
    if rank == 0:
        _print_result(destination, quiet, as_json, result.notes)


@contextmanager
def _progress_line(
    *, hidden: bool, warnings: Sequence[str] = ()
) -> Iterator[Callable[[Moment], None]]:
    """One live line on a terminal; a plain line at every tenth of the run elsewhere.

    Warnings come first, hidden or not, but not before the first step: a run that is refused says
    one line only. Where log lines are JSON there is no progress line, and warnings are logged.
    Yields what shows where the run stands.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    coming = list(warnings)
    hidden = hidden or as_json_lines()
    bar = Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=hidden or not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=None, state="", visible=False)
    noted, shown = hidden and not as_json_lines(), -1

    def update(moment: Moment) -> None:
        nonlocal noted, shown
        step, steps = moment.step, moment.steps
        with suppress(OSError):  # whoever read this is gone; the run is not
            if not noted:
                coming.extend(moment.notes)
                noted = True
            while coming:
                line = coming.pop(0)
                if not say(line, logging.WARNING):
                    console.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)
            if not bar.disable:
                state = _state(moment)
                bar.update(task, completed=step, total=steps, state=state, visible=True)
            elif not hidden and (tenth := 10 * step // steps) != shown:
                shown = tenth
                left = (steps - step) / max(moment.steps_per_second, 1e-9)
                sys.stderr.write(f"step {step}/{steps}  {_state(moment)}  {left:.0f} s left\n")

    with bar:
        yield update


def _state(moment: Moment) -> str:
    metric = None if moment.metric is None else measure_of(moment.metric)
    parts = [
        None if metric is None else f"{metric.title} {metric.text(moment.score)}",
        None if moment.loss is None else f"loss {moment.loss:.4f}",
        None if moment.accuracy is None else f"accuracy {percent_text(moment.accuracy)}",
        None if moment.epsilon is None else f"epsilon {epsilon_text(moment.epsilon)}",
        f"{moment.steps_per_second:.1f} steps/s",
    ]
    return "  ".join(part for part in parts if part)


def _closing_line(result: Result, rank: int, nothing_made: bool) -> None:
    """Say what the table does not: that nothing was left to do, or how another rank ended.

    `nothing_made` says that a resumed run made no step.
    """
    if nothing_made and result.status == "done":
        tell(_DONE_ALREADY)
    if rank:
        nodes = node_list(result.job.hosted)
        tell(
            f"rank {rank}: {result.status} after {result.steps} of {result.plan.steps} steps; its "
            f"nodes are {nodes}, and the results are in the run folder of rank 0"
        )


def launch(
    file: File,
    processes: Annotated[int, Option(help="How many to start; each hosts some of the nodes.")],
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    as_json: Json = False,
    restarts: Annotated[
        int, Option(help="Start all again so often if a process is lost (--out).")
    ] = 0,
    log_format: LogLines = LogFormat.PLAIN,
) -> None:
    """Train in several processes on this machine; the same run as of `tacit train`."""
    check_files(file, set_ or ())
    from tacit.communication.cluster.launch import launch as launch_processes
    from tacit.config import load_config

    config = load_config(file, overrides=set_ or ())
    if not 1 <= processes <= config.nodes.count:
        raise InputError(
            "--processes",
            processes,
            f"must be a whole number from 1 to {config.nodes.count}, the number of nodes",
        )
    flags = {"--resume": resume, "--quiet": quiet, "--json": as_json}
    overrides = [word for value in set_ or () for word in ("--set", value)]
    logs = ["--log-format", log_format.value] if as_json_lines() else []
    code = launch_processes(
        [*(name for name, given in flags.items() if given), *logs, *overrides, "--", str(file)],
        processes,
        out=out,
        restarts=restarts,
        patience=config.train.timeout + _TO_END,
        say=_log if as_json_lines() else None,
    )
    if code:
        raise typer.Exit(code)


def _log(line: str) -> None:
    say(line.removeprefix("tacit: "), logging.ERROR)


def _print_result(
    out: Path, quiet: bool, as_json: bool, notes: Sequence[str] | None = None
) -> None:
    """What is read of a run that has ended: its result, or where it is, or a table with `notes`."""
    from tacit.report.documents.base import dump
    from tacit.report.documents.run import read_result
    from tacit.report.plan_page import result_blocks
    from tacit.report.terminal import terminal

    if as_json:
        typer.echo(dump(read_result(out / "result.json"), {"out": str(out)}))
    elif quiet:
        typer.echo(str(out))
    elif notes is not None:
        terminal(result_blocks(read_result(out / "result.json"), out, notes))


def _new_run(file: Path) -> Path:
    """A folder under runs/ that does not exist yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{file.stem}-{stamp}"
    names = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))]
    return next(name for name in names if not name.exists())


def is_there(out: Path | None, *, resume: bool) -> bool:
    """Whether there is anything where the run is to be: then it is continued, or refused.

    What a process left half made, which was killed while it made the folder, is nothing yet.

    Raises:
        InputError: no folder is named, or `--resume` is given as well.
    """
    if out is None:
        raise InputError("--resume-if-there", True, "name the run folder with --out")
    if resume:
        raise InputError("--resume", True, "goes without --resume-if-there")
    return os.path.lexists(out)


def own_rank(site: Path | None) -> int | None:
    """The rank of this site, or the one that a launcher gave; None: there is no other process.

    Raises:
        InputError: the site folder is not as it must be.
    """
    if site is not None:
        from tacit.identities.site import load_site

        return load_site(site).own.rank
    rank, processes = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "1")
    several = processes.isascii() and processes.isdigit() and int(processes) > 1
    return int(rank) if several and rank.isascii() and rank.isdigit() else None


def was_done(out: Path, config: Config, site: Path | None) -> bool:
    """Whether this process has ended the run as planned, and owes nobody anything.

    The other processes are not asked: they may have ended long ago. One that was killed when all
    was written, and before it could say so, has ended the run too.

    Raises:
        InputError: it has, and the run is of another experiment; or the site folder is not as it
            must be.
    """
    from tacit.report import write_report
    from tacit.report.documents.status import read_status
    from tacit.training.run_folder.folder import reopened
    from tacit.training.run_folder.status import say_done

    rank = own_rank(site)
    folder = out if rank is None else out / f"rank-{rank:04d}"
    try:
        said = read_status(folder).state == "done"
    except InputError:  # a run that was killed, or none: what is there decides
        said = False
    if not said and not (rank is not None and site is None and _lie_all(out)):
        return False
    if site is not None and rank is not None:
        from tacit.communication.secure.sites import session_folder, session_lasts

        if session_lasts(session_folder(out, rank)):
            return False  # other sites may lack messages of this one, which was ended before
    with reopened(folder, config, planned=False):
        if not said:
            say_done(folder)
            if rank == 0:
                write_report(out)  # it may have been killed while it wrote
        return True


def ends_alone(out: Path) -> bool:
    """Whether this one of several processes, to which no other comes, has ended the run.

    It has its models, and has heard that rank 0 has the rest: it needs nobody any more.
    """
    from tacit.training.run_folder.folder import KNOWN
    from tacit.training.run_folder.status import say_done

    folder = out / f"rank-{own_rank(None) or 0:04d}"
    ended = os.path.isfile(folder / KNOWN)
    if ended:
        say_done(folder)
    return ended


def _lie_all(out: Path) -> bool:
    """Whether all models and results lie in this folder, as they do on one machine."""
    from tacit.report.documents.run import read_result
    from tacit.training.run_folder.folder import NODES, RESULT

    try:
        status = read_result(out / RESULT).status
    except InputError:
        return False
    folders = (out / f"rank-{rank:04d}" for rank in range(int(os.environ["WORLD_SIZE"])))
    return status in ("done", "budget-exhausted") and all(
        os.path.isfile(folder / name) for folder in folders for name in (NODES, RESULT)
    )
