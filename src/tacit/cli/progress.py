"""What a run says of itself on standard error while it goes on, and when it has ended."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.cli.logs import as_json_lines, say, tell
from tacit.report.measures import measure_of
from tacit.report.wording import epsilon_text, node_list, percent_text

if TYPE_CHECKING:
    from tacit.training.hooks import Progress as Moment
    from tacit.training.run_folder.result import Result

DONE_ALREADY = "this run was done already: nothing was trained, and nothing charged"


@contextmanager
def progress_line(
    *, hidden: bool, warnings: Sequence[str] = ()
) -> Iterator[Callable[[Moment], None]]:
    """One live line on a terminal; a plain line at every tenth of the run elsewhere.

    Warnings come first, hidden or not, but not before the first step: a run that is refused says
    one line only. Where log lines are JSON there is no progress line, and warnings are logged.
    Yields what shows where the run stands.
    """
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


def closing_line(result: Result, rank: int, nothing_made: bool) -> None:
    """Say what the table does not: that nothing was left to do, or how another rank ended.

    `nothing_made` says that a resumed run made no step.
    """
    if nothing_made and result.status == "done":
        tell(DONE_ALREADY)
    if rank:
        nodes = node_list(result.job.hosted)
        tell(
            f"rank {rank}: {result.status} after {result.steps} of {result.plan.steps} steps; its "
            f"nodes are {nodes}, and the results are in the run folder of rank 0"
        )
