"""Defects of what is certified: the noise is as planned, and the plan promises too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from planting import Patch

from tacit.privacy import REPLACE_ONE
from tacit.training.release import NodeRelease, Release


def _moved_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def node_run(self: Release, node: NodeRelease, steps: Any) -> Any:
        run = original(self, node, steps)
        if run.relation != REPLACE_ONE:
            return run
        return replace(run, noise_multiplier=[2 * noise for noise in run.noise_multiplier])

    return node_run


MOVED_ONCE = (Patch(Release, "node_run", _moved_once),)


def _first_of_each(original: Callable[..., Any]) -> Callable[..., Any]:
    def mechanism(self: Release, node: NodeRelease, intervals: Iterable[Any] | None = None) -> Any:
        pairs = [(0, self.setup.steps)] if intervals is None else list(intervals)
        return original(self, node, [(first, first + 1) for first, _ in pairs])

    return mechanism


# Half of the steps would be too small a defect: 2,000 repetitions do not find it.
ONE_STEP = (Patch(Release, "mechanism", _first_of_each),)
