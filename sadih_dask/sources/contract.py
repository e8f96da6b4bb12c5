"""What every source of rows promises, whatever the file format behind it.

A source is a frozen description of where rows lie (file, variable, shape, dtype). Nothing is held
open in it that could not be opened again, so it can be pickled to a worker or used after a fork.
Rows are counted from 0, in error messages too.

File headers are claims. What is checked here is checked on the claims, before any data is read, so
that a forged header costs a message and not the memory of the machine.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from sadih_dask.errors import (
    Argument,
    DtypeError,
    FormatError,
    InputError,
    MemoryPlanError,
    Remedy,
    SadihError,
    require,
)
from sadih_dask.files.filesystem import reaching

T = TypeVar("T")

MAX_ROW_BYTES = 64 * 2**20
"""No feature vector or thumbnail is this large: a larger row is a damaged or transposed file."""

MAX_DEFLATE_RATIO = 1040
"""Deflate cannot shrink data more than 1032 times; a header that claims more is forged."""


def check_memory(origin: Origin, nbytes: int, limit: int, remedy: str) -> None:
    """Refuse to load what is larger than the limit, before anything is read."""
    if nbytes > limit:
        raise MemoryPlanError(
            f"{origin}: reading it takes about {nbytes / 2**20:,.0f} MiB of memory, because this "
            f"form cannot be streamed; {limit / 2**20:,.0f} MiB is allowed. {remedy}"
        )


def check_rows(origin: Origin, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse an array without rows, without columns, or with absurdly large rows.

    ``shape`` has the rows first.
    """
    if not shape or min(shape) <= 0:
        raise InputError(
            f"{origin}: shape {shape} holds no rows of data. Choose a variable that has rows."
        )
    nbytes = math.prod(shape[1:]) * dtype.itemsize
    if nbytes > MAX_ROW_BYTES:
        raise FormatError(
            f"{origin}: a row of shape {shape[1:]} {dtype} is {nbytes / 2**20:,.0f} MiB, more than "
            f"{MAX_ROW_BYTES // 2**20} MiB. The file is damaged, or it is transposed",
            remedy=Remedy("Pass {} if its last axis holds the rows", Argument("transpose", True)),
        )


def check_size(origin: Origin, needed: int, available: int) -> None:
    """Refuse an array whose header claims more bytes than the file holds."""
    if needed > available:
        raise FormatError(
            f"{origin}: its header claims {needed:,} bytes of data, but the file can hold only "
            f"{available:,}. It is truncated or damaged: copy it again."
        )


def native_dtype(origin: Origin, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in native byte order if it can hold features or labels; refuse the others."""
    if dtype.hasobject and dtype.kind != "T":
        raise DtypeError(
            f"{origin}: holds Python objects, which could run code when they are read, so they "
            "are refused. Save it as numbers or as fixed-width text: "
            "np.save(path, np.array(x.tolist()))."
        )
    oversized = dtype.kind == "f" and dtype.itemsize > 8
    if dtype.kind not in "biufUST" or dtype.itemsize == 0 or oversized:
        raise DtypeError(
            f"{origin}: elements of type {dtype} have no meaning here. Expected integers, "
            "floats up to 64 bits, booleans or text: convert the array and save it again."
        )
    return dtype.newbyteorder("=")


def format_library(module: str, path: str) -> Any:
    """Import the library that reads the format of a file."""
    return require(module, f"{path}: reading this format")


Block: TypeAlias = NDArray[Any]
TEXT = np.dtypes.StringDType()
LISTS = np.dtype(object)
"""Of label lists, one a row, whatever their lengths."""

DEFAULT_MEMORY_LIMIT = 2**30
"""What a format that cannot be streamed may load, in bytes, unless the caller says otherwise."""

# What the format libraries raise on damaged input. Anything else is a bug and should look like one.
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Origin:
    """Where rows come from: a file, a directory or a URL, and the variable inside it."""

    path: str
    variable: str | None = None

    def __str__(self) -> str:
        return self.path if self.variable is None else f"{self.path}:{self.variable}"


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what a format library raises on a bad file into an error that names the file."""
    try:
        with reaching(path):
            yield
    except (SadihError, ConnectionError):
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise InputError(
            f"{path}: cannot be opened ({error.strerror or error}). "
            "Check the name and that it may be read."
        ) from error
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise FormatError(
            f"{path}: damaged, truncated or not what it seems ({reason}). "
            "Copy or export the file again."
        ) from error


@dataclass(frozen=True)
class RowSource(ABC):
    """Rows of one shape and dtype, read by row range; of dtype LISTS, a list of labels a row."""

    origin: Origin
    n_rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Count the numbers in a row."""
        return math.prod(self.row_shape)

    @property
    def holds_text(self) -> bool:
        """Tell whether rows are text."""
        return self.dtype.kind in "UST"

    @property
    def holds_lists(self) -> bool:
        """Tell whether rows are lists of different lengths."""
        return self.dtype.kind == "O"

    def locate(self, row: int) -> str:
        """Name a row for an error message: file, variable and row number in that file."""
        return f"{self.origin} row {row}"

    def files(self) -> tuple[str, ...]:
        """Return the paths that the rows are read from."""
        return (self.origin.path,)

    def describe(self) -> str:
        """Say in one line what is read from where."""
        return f"{self.origin} ({self.shape_note()})"

    def shape_note(self) -> str:
        """Say shape and element type, as in ``60000 x 512 float16``."""
        shape = " x ".join(map(str, (self.n_rows, *self.row_shape)))
        return f"{shape} {'lists' if self.holds_lists else self.element}"

    def entry(self, row: int) -> int:
        """Return the row from which on the file has to be read for this one, such as its chunk's.

        Tasks begin where reading can; this class reads from any row on.
        """
        return row

    def in_order_of(self, other: RowSource) -> RowSource:  # noqa: ARG002
        """Return the same source with the columns in the order of another shard, by their names."""
        return self

    def reopened(self, start: int, stop: int) -> RowSource:  # noqa: ARG002
        """Return the same source for a task that reads these rows, in ascending order.

        Reading positions, and what is loaded, belong to that task alone and go with it.
        """
        return self

    @property
    def working_bytes(self) -> int:
        """Return the bytes that a read takes beside its block, about."""
        return 0

    @property
    def named_classes(self) -> tuple[str, ...]:
        """Return the classes that the file itself names, in order, if these rows are labels."""
        return ()

    @property
    def element(self) -> str:
        """Name the type of the numbers; all text is of one type."""
        return "text" if self.holds_text else str(self.dtype)

    def read(self, start: int, stop: int) -> Block:
        """Read rows ``start`` to ``stop`` as (stop - start, *row_shape), native byte order.

        Memory is that of the block (and of one compressed chunk) unless the class says otherwise.
        """
        if not 0 <= start <= stop <= self.n_rows:
            raise InputError(
                f"{self.origin}: rows {start} to {stop} were asked for, "
                f"but it has rows 0 to {self.n_rows}."
            )
        with reading(self.origin.path):
            block = self._read(start, stop)
        expected = (stop - start, *self.row_shape)
        if block.shape != expected:
            raise FormatError(
                f"{self.origin}: rows {start} to {stop} came as shape {block.shape}, "
                f"expected {expected}. The file changed after it was opened: open it again."
            )
        return block.astype(self.dtype, copy=False)

    @abstractmethod
    def _read(self, start: int, stop: int) -> Block: ...


class Lazy(Generic[T]):
    """A value made by ``make()`` when it is first needed in a process, such as an open file.

    A file position is shared after a fork and cannot be pickled, so it is made anew then.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._made: tuple[int, T] | None = None

    def get(self) -> T:
        """Return the value of this process."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), self._make())
            return self._made[1]

    @contextmanager
    def held(self) -> Iterator[T]:
        """Give the value to one thread at a time; after an error it is made anew."""
        with self._lock:
            try:
                yield self.get()
            except BaseException:
                self.forget()
                raise

    def forget(self) -> None:
        """Make it anew when it is needed again."""
        self._made = None

    def __reduce__(self) -> tuple[type[Lazy[T]], tuple[Callable[[], T]]]:
        return type(self), (self._make,)


class Batches:
    """Random access by row to batches that can only be read forwards; going back starts again.

    ``open_batches(row)`` starts at or before ``row`` and yields (first row, batch) in order.
    At most one batch is held.
    """

    def __init__(self, open_batches: Callable[[int], Iterator[tuple[int, Any]]]) -> None:
        self._open = open_batches
        self._lock = threading.RLock()
        self._pid = 0
        self._batches: Iterator[tuple[int, Any]] = iter(())
        self._held: tuple[int, Any] = (0, ())

    def __reduce__(self) -> tuple[type[Batches], tuple[Any]]:
        return type(self), (self._open,)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return rows ``start`` to ``stop`` as slices of batches."""
        with self._lock:
            try:
                return list(self._slices(start, stop))
            except BaseException:
                self._pid = 0
                raise

    def _slices(self, start: int, stop: int) -> Iterator[Any]:
        if self._pid != os.getpid() or start < self._held[0]:
            self._pid, self._batches, self._held = os.getpid(), self._open(start), (0, ())
        while start < stop:
            first, batch = self._held
            end = min(stop, first + len(batch))
            if start < end:
                yield batch[start - first : end - first]
                start = end
                continue
            following = next(self._batches, None)
            if following is None:
                raise EOFError(f"it ends before row {start}")
            self._held = following


def pieces(starts: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part, first row in it, end row in it) for rows of parts one after the other.

    Part i has the rows from ``starts[i]`` to ``starts[i + 1]``.

    >>> list(pieces((0, 3, 3, 10), 2, 5))
    [(0, 2, 3), (2, 0, 2)]
    """
    part = max(bisect_right(starts, start) - 1, 0)
    while start < stop:
        end = min(stop, starts[part + 1])
        if end > start:
            yield part, start - starts[part], end - starts[part]
        start, part = end, part + 1


Kind = Literal["numbers", "text", "lists", "other"]


@dataclass(frozen=True)
class Variable:
    """A variable as a file lists it. An unknown length is -1; ``note`` is the file's own type.

    ``columns`` are those that make it up, where a table has one for each feature.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    note: str
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape = " x ".join("?" if length < 0 else str(length) for length in self.shape)
        return f"{self.name!r} ({shape or 'scalar'} {self.note})"


def kind_of(dtype_kind: str) -> Kind:
    """Classify a NumPy dtype kind."""
    if dtype_kind in "biuf":
        return "numbers"
    return "text" if dtype_kind in "UST" else "other"


@dataclass(frozen=True)
class OpenOptions:
    """How the caller wants a variable to be read.

    ``rows_last`` takes the last axis as rows (the c x n of papers and of MATLAB users);
    ``n_rows`` is the row count that labels must have, where it is known; ``as_lists`` reads a
    column of integer lists as label lists, not as vectors; ``taken`` are variables that hold
    something else, and so no features.
    """

    rows_last: bool = False
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    n_rows: int | None = None
    as_lists: bool = False
    taken: tuple[str, ...] = ()
