"""How loops are compiled: to machine code with numba, once on a machine, without fast-math.

Loops keep IEEE 754 to the letter: nothing is reordered, and products are fused with sums where a
loop says so and nowhere else. So a loop has the same bits on every processor, and what a test finds
for all inputs holds on all of them; on one without fused arithmetic `fused` is slower, never wrong.
The one exception says so: a sum that is `reordered`.

What was compiled is kept on disk for the next process: in `NUMBA_CACHE_DIR` if that is set, else
beside the source, else, where tacit is installed read-only, in the user's cache folder. Where
nothing can be written, every process compiles anew, which takes some seconds. numba compiles anew
when the file of a loop changes, and knows of no other: whoever changes a constant or a part that a
loop takes from another file touches the loop's file too.

Importing numba takes a third of a second: modules with loops are imported where the first loop
runs, never with the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import types
from numba.extending import intrinsic

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


def _fused(context: Any, one: Any, other: Any, added: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


_fused.__doc__ = "The product of the first two, plus the third, rounded once, in single precision."
fused: Any = intrinsic(_fused)


def reordered(function: _Function) -> _Function:
    """A sum that other loops ask for, and whose terms may be added up in any order.

    Some five times as fast as in the order that is written, and other low bits on other processors:
    for sums whose error bound holds in every order. Infinities and NaN are what they are elsewhere.
    """
    compiler: Callable[..., Any] = numba.njit
    return compiler(function, error_model="numpy", fastmath={"reassoc"})  # type: ignore[no-any-return]
