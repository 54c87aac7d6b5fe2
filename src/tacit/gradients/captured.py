"""Functions of tensors as CUDA graphs: the host starts one in place of a thousand kernels.

A function is recorded once for the shapes that it is called with, and replayed from then on: its
arguments are copied into the tensors that the record reads, and what it returns is copied out. On
the CPU a function is called as it is.

A record repeats what the device did, and no more. So

- whatever may change is an argument, or part of the key: a number of the host would stay what it
  was when the function was recorded;
- a function is first tried on tensors without numbers (`hindrance`). What reads a number, has a
  shape that depends on one, copies between host and device, or draws from the generators of
  PyTorch, NumPy or Python, is not recorded, and called as it is from then on. What else a module
  may read on the host, such as a counter of its own calls, no trial can see: it stays as it was.

Recording and replaying have not run on a device: tests record on the CPU by calling once more.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Arguments: TypeAlias = Sequence[Tensor | None]
Function: TypeAlias = Callable[..., tuple[Tensor, ...]]
Record: TypeAlias = Callable[[Function, Arguments], tuple[tuple[Tensor, ...], Callable[[], None]]]
"""Of (function, static arguments): its static results, and what fills these anew."""

_LOG = logging.getLogger(__name__)
_MOST_RECORDS = 16  # each keeps its arguments and results; batches of further shapes go without
_HOST = torch.device("cpu")
_ONE_AT_A_TIME = threading.Lock()
_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class WaitError(Exception):
    """An operation of which a record would be wrong, or for which the host would wait."""


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, what draws random numbers or copies between host and device raises `WaitError`.

    But for copies that are told not to wait (`tacit.base.sending`), where `sends` is true. Tensors
    without numbers themselves refuse to be read, and shapes that depend on numbers.
    """

    def __init__(self, sends: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sends = sends

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise WaitError(f"{name} draws random numbers")
        if name == "copy_":
            self._copied(args[1].device, args[0].device, len(args) > 2 and args[2])
        elif name == "_to_copy" and kwargs.get("device") is not None:
            target = torch.device(kwargs["device"])
            self._copied(args[0].device, target, kwargs.get("non_blocking", False))
        elif name in _INDEXED and any(
            one is not None and one.device != args[0].device for one in args[1]
        ):
            raise WaitError(f"{name} by numbers that lie elsewhere")
        return func(*args, **kwargs)

    def _copied(self, source: torch.device, target: torch.device, goes_on: bool) -> None:
        sent = self._sends and source == _HOST and goes_on
        if source.type != target.type and not sent:
            raise WaitError(f"a copy from {source} to {target}")


def hindrance(function: Function, arguments: Arguments) -> str:
    """Why a function cannot be recorded, found without running it; empty if it can."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes long

    before = python, numpy = random.getstate(), _numpy_state()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            empty = [None if one is None else mode.from_tensor(one) for one in arguments]
            with Watched():
                function(*empty)
        drawn = before != (random.getstate(), _numpy_state())
        return "it draws random numbers on the host" if drawn else ""
    except Exception as error:  # whatever it is, the function is called as it is
        return f"{type(error).__name__}: {error}"
    finally:
        random.setstate(python)
        kind, key, *rest = numpy
        np.random.set_state((kind, np.frombuffer(key, np.uint32), *rest))  # noqa: NPY002


def _numpy_state() -> tuple[Any, ...]:
    """The state of NumPy's generator, with what is left of a pair of normals; to be compared."""
    state: Any = np.random.get_state()  # noqa: NPY002 (a user's model may draw from it)
    kind, key, *rest = state
    return kind, key.tobytes(), *rest


def record(
    function: Function, arguments: Arguments
) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
    """`Record` by a CUDA graph, after a warm-up on another stream."""
    device = next(one.device for one in arguments if one is not None)
    with torch.cuda.device(device):
        aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        here = torch.cuda.current_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(2):
                function(*arguments)
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process, such as a heartbeat's, go on meanwhile. All records share
        # memory, so that no two may run at once: see `_Recorded`.
        with torch.cuda.graph(graph, pool=_pool(), capture_error_mode="thread_local"):
            results = function(*arguments)
    return results, graph.replay


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


@dataclass(frozen=True)
class _Recorded:
    """A record, the tensors that it reads, and those that it writes."""

    arguments: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    replay: Callable[[], None]

    def __call__(self, arguments: Arguments) -> tuple[Tensor, ...]:
        with _ONE_AT_A_TIME:  # of all threads, whose default stream is one
            for own, given in zip(self.arguments, arguments, strict=True):
                if own is not None and given is not None:
                    own.copy_(given)
            self.replay()
            return tuple(result.clone() for result in self.results)


@dataclass
class Captured:
    """Calls functions by their records, and keeps these.

    Attributes:
        devices: kinds of devices where functions are recorded.
        record: how.
        reasons: why a function is called as it is, of each key that is.
    """

    devices: tuple[str, ...] = ("cuda",)
    record: Record = record
    reasons: dict[Hashable, str] = field(default_factory=dict)
    _records: dict[Hashable, _Recorded] = field(default_factory=dict)

    def call(self, function: Function, constants: Hashable, arguments: Arguments) -> Any:
        """What the function returns of the arguments; of a record, in new tensors.

        `constants` are all that it reads beside its arguments and what never changes.
        """
        first = next(one for one in arguments if one is not None)
        if first.device.type not in self.devices:
            return function(*arguments)
        shapes = (None if one is None else (one.shape, one.dtype) for one in arguments)
        key = constants, first.device, *shapes
        if key not in self._records and key not in self.reasons:
            self._add(key, function, arguments)
        found = self._records.get(key)
        return function(*arguments) if found is None else found(arguments)

    def _add(self, key: Hashable, function: Function, arguments: Arguments) -> None:
        full = len(self._records) >= _MOST_RECORDS
        reason = "there are records enough" if full else hindrance(function, arguments)
        if not reason:
            own = tuple(None if one is None else one.detach().clone() for one in arguments)
            try:
                self._records[key] = _Recorded(own, *self.record(function, own))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # of CUDA: what it cannot record
                reason = str(error)
        if reason:
            self.reasons[key] = reason
            _LOG.info("not recorded as a CUDA graph: %s", reason)
