"""Files that stay open between reads: opened on first use, once a process, never pickled.

A file position is shared after a fork and cannot be pickled, so everything here forgets its handle
in a new process and opens it again. A lock keeps threads from moving each other's position.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, Generic, TypeVar

T = TypeVar("T")

_PIECE = 2**20
_TAIL = 2**12


class Lazy(Generic[T]):
    """A value made by ``make()`` when it is first needed in a process."""

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

    def __reduce__(self) -> tuple[type[Lazy[T]], tuple[Callable[[], T]]]:
        return type(self), (self._make,)


class ByteCursor:
    """Random access to a stream that only runs forwards, such as a compressed file.

    Reading on from the last position costs nothing extra; going back decompresses from the
    start again. The last few bytes are kept, because neighbouring reads of a sparse matrix
    overlap by one number.
    """

    def __init__(self, open_stream: Callable[[], IO[bytes]]) -> None:
        self._open = open_stream
        self._lock = threading.RLock()
        self._stream: IO[bytes] | None = None
        self._pid = 0
        self._position = 0
        self._tail = b""

    def __reduce__(self) -> tuple[type[ByteCursor], tuple[Callable[[], IO[bytes]]]]:
        return type(self), (self._open,)

    def read(self, offset: int, size: int) -> bytearray:
        """Read ``size`` bytes at ``offset``; EOFError if the stream ends before."""
        with self._lock:
            try:
                return self._read(offset, size)
            except BaseException:
                self.close()
                raise

    def expect_end(self, offset: int) -> None:
        """Check that the stream ends at ``offset``; this also makes it check its checksum."""
        with self._lock:
            self.read(offset, 0)
            stream = self._stream
            extra = stream.read(1) if stream is not None else b""
            self.close()
        if extra:
            raise EOFError("it holds more data than its header says")

    def _read(self, offset: int, size: int) -> bytearray:
        gone = self._stream is None or self._pid != os.getpid()
        if gone or offset < self._position - len(self._tail):
            self._restart()
        while self._position < offset:
            self._advance(min(_PIECE, offset - self._position))
        back = self._position - offset
        out = bytearray(self._tail[len(self._tail) - back :][:size]) if back else bytearray()
        while len(out) < size:
            out += self._advance(min(_PIECE, size - len(out)))
        return out

    def _advance(self, size: int) -> bytes:
        assert self._stream is not None  # noqa: S101 (only called after _restart)
        piece = self._stream.read(size)
        if not piece:
            raise EOFError(f"it ends after {self._position:,} bytes of data")
        self._position += len(piece)
        self._tail = (self._tail + piece)[-_TAIL:] if len(piece) < _TAIL else piece[-_TAIL:]
        return piece

    def _restart(self) -> None:
        self.close()
        self._stream, self._pid = self._open(), os.getpid()

    def close(self) -> None:
        """Close the stream; the next read opens it again."""
        stream, self._stream = self._stream, None
        self._position, self._tail = 0, b""
        if stream is not None:
            stream.close()

    def __del__(self) -> None:
        if getattr(self, "_stream", None) is not None:
            self.close()


class BatchCursor(Generic[T]):
    """Random access by row to an iterator of batches that only runs forwards.

    ``open_batches(row)`` starts at or before ``row`` and yields (first row, batch) in order.
    At most one batch is held.
    """

    def __init__(self, open_batches: Callable[[int], Iterator[tuple[int, T]]]) -> None:
        self._open = open_batches
        self._lock = threading.RLock()
        self._pid = 0
        self._batches: Iterator[tuple[int, T]] | None = None
        self._held: tuple[int, T] | None = None

    def __reduce__(self) -> tuple[type[BatchCursor[T]], tuple[Any]]:
        return type(self), (self._open,)

    def read(self, start: int, stop: int, cut: Callable[[T, int, int], T]) -> list[T]:
        """Return the pieces of rows ``start`` to ``stop``; ``cut(batch, i, j)`` slices a batch."""
        with self._lock:
            try:
                return list(self._pieces(start, stop, cut))
            except BaseException:
                self._forget()
                raise

    def _pieces(self, start: int, stop: int, cut: Callable[[T, int, int], T]) -> Iterator[T]:
        if self._pid != os.getpid() or self._held is None or start < self._held[0]:
            self._forget()
            self._pid, self._batches = os.getpid(), self._open(start)
        position = start
        while position < stop:
            if self._held is None:
                self._held = self._next(position)
            first, batch = self._held
            length = len(batch)  # type: ignore[arg-type]
            if first + length <= position:
                self._held = None
                continue
            piece_end = min(stop, first + length)
            yield cut(batch, position - first, piece_end - first)
            position = piece_end

    def _next(self, position: int) -> tuple[int, T]:
        assert self._batches is not None  # noqa: S101 (set by _pieces)
        following = next(self._batches, None)
        if following is None:
            raise EOFError(f"it ends before row {position}")
        return following

    def _forget(self) -> None:
        self._batches, self._held = None, None
