"""How loops are compiled: to machine code with numba, once on a machine, without fast-math.

Loops keep IEEE 754 to the letter: nothing is reordered and no product is fused with a sum, so that
a loop has the same bits on every processor, and what a test finds for all inputs holds on all. The
one exception says so: a sum that is `reordered`.

What was compiled is kept on disk for the next process: in `NUMBA_CACHE_DIR` if that is set, else
beside the source, else, where tacit is installed read-only, in the user's cache folder. Where
nothing can be written, every process compiles anew, which takes some seconds.

Importing numba takes a third of a second: modules with loops are imported where the first loop
runs, never with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["compiled", "inlined", "reordered"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """A loop over NumPy arrays as machine code, which lets go of the interpreter lock."""
    options = {"nogil": True, "error_model": "numpy"}
    compiler: Callable[..., Any] = numba.njit
    try:
        return compiler(function, cache=True, **options)  # type: ignore[no-any-return]
    except RuntimeError:  # nowhere to write
        return compiler(function, **options)  # type: ignore[no-any-return]


def inlined(function: _Function) -> _Function:
    """A part of loops, which is compiled as part of each."""
    compiler: Callable[..., Any] = numba.njit
    return compiler(function, inline="always", error_model="numpy")  # type: ignore[no-any-return]


def reordered(function: _Function) -> _Function:
    """A sum that other loops ask for, and whose terms may be added up in any order.

    Some five times as fast as in the order that is written, and other low bits on other processors:
    for sums whose error bound holds in every order. Infinities and NaN are what they are elsewhere.
    """
    compiler: Callable[..., Any] = numba.njit
    return compiler(function, error_model="numpy", fastmath={"reassoc"})  # type: ignore[no-any-return]
