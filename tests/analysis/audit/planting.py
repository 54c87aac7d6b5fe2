"""How a defect is planted: in the code that executes a step, or in a module of the product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from audit_cases import forget

from tacit.training.job import Job
from tacit.training.stacked_context import StackedContext

Make = Callable[[Any], Any]
"""From what stands in the product to what the slip puts in its place."""


@dataclass(frozen=True)
class Patch:
    """One attribute of the product, and what stands there instead.

    Args:
        owner: a module or a class.
        name: of its attribute.
        make: from the original.
    """

    owner: Any
    name: str
    make: Make


@dataclass(frozen=True)
class Bug:
    """A defect as somebody could have written it.

    Args:
        name: a few words.
        slip: what was done, one sentence.
        found_by: the test or attack that finds it, maybe with others, in the case that is tested.
        cases: the experiments that it is planted in.
        context: what executes a step.
        patches: of the product's modules.
        at_prepare: whether the experiment is made while the bug is there; if not, before.
        seconds: how long records are searched for in a test: the fewer, the quicker, but a busy
            machine must get as far as the record that shows the bug.
        sent: whether the messages of the run itself are other ones; if not, what is wrong is
            which numbers are shown, or how long messages are.
    """

    name: str
    slip: str
    found_by: str
    cases: Mapping[str, Callable[[], Job]]
    context: Callable[..., Any] = StackedContext
    patches: Sequence[Patch] = ()
    at_prepare: bool = False
    sent: bool = True
    seconds: float = 0.5


@contextmanager
def patched(patches):
    """The product with some patches as long as this lasts."""
    with ExitStack() as stack:
        for change in patches:
            original = change.owner.__dict__[change.name]
            stack.enter_context(patch.object(change.owner, change.name, change.make(original)))
        yield


@contextmanager
def planted(bug, case):
    """An experiment, and the product with a bug's patches as long as this lasts."""
    before = None if bug.at_prepare else bug.cases[case]()
    with ExitStack() as stack:
        if bug.at_prepare:  # it must not be that of another time, nor be kept for one
            forget()
            stack.callback(forget)
        stack.enter_context(patched(bug.patches))
        yield bug.cases[case]() if before is None else before
