"""Defects of what is certified: the noise is as planned, and the plan promises too much."""

from dataclasses import replace

from planting import Patch

from tacit.privacy import REPLACE_ONE
from tacit.training.release import Release


def _moved_once(original):
    def node_run(self, node, steps):
        run = original(self, node, steps)
        if run.relation != REPLACE_ONE:
            return run
        return replace(run, noise_multiplier=[2 * noise for noise in run.noise_multiplier])

    return node_run


MOVED_ONCE = (Patch(Release, "node_run", _moved_once),)


def _first_of_each(original):
    def mechanism(self, node, intervals=None):
        pairs = [(0, self.setup.steps)] if intervals is None else list(intervals)
        return original(self, node, [(first, first + 1) for first, _ in pairs])

    return mechanism


# Half of the steps would be too small a defect: 2,000 repetitions do not find it.
ONE_STEP = (Patch(Release, "mechanism", _first_of_each),)
