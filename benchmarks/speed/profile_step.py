"""Where the time of a step goes, beside the floor: `python benchmarks/speed/profile_step.py`.

A run as users have it, whose functions are wrapped from outside: nothing in tacit knows of it. A
clock of a part stops while another part runs inside it, so that parts add up to the step:

| part | what is clocked |
|---|---|
| sample | `sampling.draw` and its kin |
| gather | `StackedData.gather`, and what fills masked slots (`StackedModel.gradient`) |
| forward | the module's call inside `TapsPath` |
| backward | `torch.autograd.grad` |
| norms and clipped sum | the rest of `accumulate`, or the loop of a linear model |
| noise | `StackedContext.add_noise` |
| mix | what the exchange does |
| update | the rest of a step: the algorithm's own arithmetic, and the loop around it |

A model on the functional path has no forward and backward of its own to clock: both are in the
engine's rest. Figures are medians over steps.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from comparisons import comparisons
from floor import PARTS, floor_of
from torch import nn
from workloads import Workload

from tacit.communication.exchange import InProcessExchange
from tacit.data import StackedData
from tacit.gradients import StackedModel, stacked
from tacit.training import sampling
from tacit.training.job import Job
from tacit.training.loop import Progress, execute
from tacit.training.sampling import DisjointBatches
from tacit.training.stacked_context import StackedContext

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 5


class Clocks:
    """Seconds of every part since the last `reset`; the innermost running part gets the time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = time.perf_counter()

    def reset(self) -> dict[str, float]:
        """What was found, and start anew."""
        self._settle()
        found, self.seconds = self.seconds, {}
        return found

    def enter(self, part: str) -> None:
        """A part begins, maybe inside another."""
        self._settle()
        self._running.append(part)

    def leave(self) -> None:
        """The innermost part ends."""
        self._settle()
        self._running.pop()

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Clock what is done within."""
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def _settle(self) -> None:
        now = time.perf_counter()
        part = self._running[-1] if self._running else "update"
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now


@contextmanager
def clocked(job: Job, clocks: Clocks) -> Iterator[None]:
    """Within, the parts of the job's steps are clocked."""
    places: list[tuple[Any, str, str]] = [
        (sampling, "disjoint_batches", "sample"),
        (DisjointBatches, "batch", "sample"),
        (sampling, "draw_units", "sample"),
        (StackedData, "gather", "gather"),
        (StackedModel, "gradient", "gather"),
        (stacked, "accumulate", "norms and clipped sum"),
        (stacked, "add_clipped_records", "norms and clipped sum"),
        (torch.autograd, "grad", "backward"),
        (StackedContext, "add_noise", "noise"),
        (InProcessExchange, "mix", "mix"),
        (InProcessExchange, "swap", "mix"),
        (InProcessExchange, "average", "mix"),
    ]
    with ExitStack() as stack:
        for owner, name, part in places:
            stack.enter_context(patch.object(owner, name, _wrapped(owner, name, part, clocks)))
        module = getattr(job.model.engine, "module", None)
        if isinstance(module, nn.Module):
            hooks = [
                module.register_forward_pre_hook(lambda *_: clocks.enter("forward")),
                module.register_forward_hook(lambda *_: clocks.leave()),
            ]
            for hook in hooks:
                stack.callback(hook.remove)
        yield


def _wrapped(owner: Any, name: str, part: str, clocks: Clocks) -> Callable[..., Any]:
    plain = getattr(owner, name)

    @wraps(plain)
    def timed(*arguments: Any, **options: Any) -> Any:
        with clocks.during(part):
            return plain(*arguments, **options)

    return timed


def profile(workload: Workload, steps: int, **algorithm: Any) -> dict[str, Any]:
    """Median seconds of a step and of each of its parts, and the floor of both.

    Args:
        workload: a row of the table.
        steps: that are clocked, after a few that are not.
        algorithm: further options of `[algorithm]`.
    """
    module = "tacit_federated" if workload.active else "tacit_stacked"
    job: Job = importlib.import_module(module).job_of(workload, **algorithm)
    clocks, found = Clocks(), []

    def after(progress: Progress) -> None:
        found.append(clocks.reset())

    with clocked(job, clocks):
        execute(job, on_step=after, should_stop=lambda: len(found) > WARM_UP + steps)
    # The last steps end with an evaluation or a stop; the first ones warm up.
    taken = found[WARM_UP : WARM_UP + steps]
    floor = floor_of(workload)
    total = statistics.median(sum(step.values()) for step in taken)
    parts = {
        part: {
            "seconds": (seconds := statistics.median(step.get(part, 0.0) for step in taken)),
            "share": seconds / total,
            "floor": max(
                floor["parts"][part][f"seconds by {kind}"] for kind in ("bytes", "operations")
            ),
        }
        for part in PARTS
    }
    return {
        "workload": workload.name,
        "path": job.model.path,
        "steps": len(taken),
        "seconds": total,
        "floor": floor["seconds"],
        "parts": parts,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile every row of the table, or one."""
    parser = argparse.ArgumentParser("python benchmarks/speed/profile_step.py", description=__doc__)
    parser.add_argument("--workload", metavar="NAME", help="a row; by default all")
    parser.add_argument("--plain", action="store_true", help="without clipping and noise")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--data-dir", default=str(ROOT.parent / "shared" / "data"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    workloads = {one.workload.name: one.workload for one in comparisons(asked.data_dir, "none")}
    if asked.workload not in (None, *workloads):
        parser.error(f"no workload {asked.workload!r}; there are {', '.join(workloads)}")
    chosen = [workloads[asked.workload]] if asked.workload else list(workloads.values())
    if asked.quick:
        chosen = [workload.quick() for workload in chosen]
    if asked.plain:
        chosen = [workload.plain() for workload in chosen]
    found = [profile(workload, asked.steps) for workload in chosen]
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for one in found:
        print(
            f"{one['workload']} ({one['path']}): {one['seconds'] * 1e3:.2f} ms a step, "
            f"floor {one['floor'] * 1e3:.2f}, {one['seconds'] / one['floor']:.1f} times it"
        )
        for part, row in one["parts"].items():
            print(
                f"  {part:22} {row['seconds'] * 1e3:9.3f} ms {row['share']:6.1%}   "
                f"floor {row['floor'] * 1e3:9.3f}"
            )


if __name__ == "__main__":
    main()
