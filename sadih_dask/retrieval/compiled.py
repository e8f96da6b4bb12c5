"""Compilation of the loops over codes.

Loops are compiled by Numba when they are first called, for the processor at hand, without the
interpreter lock. What was compiled is kept on disk for the next process: beside the module, or in
the user's cache folder, or where ``NUMBA_CACHE_DIR`` says. Where none of them can be written the
loops are compiled anew in every process, which takes a few seconds and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function of arrays and numbers."""
    fast: Any
    try:
        fast = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to keep the result in
        fast = njit(nogil=True)(function)
    called_the_same: Function = fast
    return called_the_same


def _popcount(_: Any, __: Any) -> tuple[Any, Any]:
    """Ask for the processor's own instruction, which compilers also use on vectors."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


popcount: Any = intrinsic(_popcount)
"""Bits that are set in a 64-bit word; only inside compiled functions."""
