"""Exceptions a caller can catch.

Every message says what was wrong, where (array, row, column, chunk, file), what was expected and
what to do. Each class also inherits the built-in that fits, so that code which knows nothing of
this package still catches the right thing.

Where the way out is an argument, the error carries it as data (`Remedy`): in Python it reads
``overwrite=True``, the command line says ``--overwrite``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class Argument:
    """An argument that a caller may give, with a value or for a value of the caller's own.

    >>> str(Argument("overwrite", True)), str(Argument("class_names"))
    ('overwrite=True', 'class_names')
    """

    name: str
    value: Any = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class Remedy:
    """A sentence about what to do, with a ``{}`` for each argument that it names.

    >>> str(Remedy("Replace it with {}", Argument("overwrite", True)))
    'Replace it with overwrite=True'
    """

    def __init__(self, text: str, *arguments: Argument) -> None:
        self.text, self.arguments = text, arguments

    def worded(self, say: Callable[[Argument], str]) -> str:
        """The sentence, with arguments in the words of the one who asks."""
        if not self.arguments:
            return self.text
        first, *others = self.text.split("{}")  # not format(): a path may hold braces
        return first + "".join(
            say(argument) + rest for argument, rest in zip(self.arguments, others, strict=True)
        )

    def __str__(self) -> str:
        return self.worded(str)


class SadihError(Exception):
    """Base of every error that this package raises on purpose."""

    remedy: Remedy | None = None

    def __init__(self, *args: object, remedy: Remedy | None = None) -> None:
        super().__init__(*args)
        if remedy is not None:
            self.remedy = remedy

    def worded(self, say: Callable[[Argument], str]) -> str:
        """The message and the remedy, with arguments in the words of the one who asks."""
        message = super().__str__()
        return message if self.remedy is None else f"{message}. {self.remedy.worded(say)}"

    def __str__(self) -> str:
        return self.worded(str)


class InputError(SadihError, ValueError):
    """Data or a parameter that cannot be used, found before any work was done."""


class NoFilesError(InputError):
    """A pattern that no file matches."""


class DtypeError(SadihError, TypeError):
    """An array of a kind that has no numeric meaning here."""


class LabelError(InputError):
    """Labels that are missing, unknown, or do not fit the rows."""


class Advice(SadihError, UserWarning):
    """Input that can be used, and that probably does not mean what it says: no error, a remark."""


class NonFiniteError(InputError):
    """A NaN or an infinity where a number was expected."""


class FormatError(SadihError, ValueError):
    """A file that is not ours, or of a version that this release does not read."""


class IntegrityError(SadihError, OSError):
    """Stored bytes that are not the ones that were written: flipped, truncated or missing."""


class IncompleteError(SadihError, OSError):
    """A store whose writing was interrupted; the same call that wrote it completes it."""


class ConflictError(SadihError, RuntimeError):
    """Something is there already, or somebody else is writing it."""


class ConfigError(InputError):
    """A configuration that cannot be used; nothing was begun."""


class RunBusyError(ConflictError):
    """Another run holds the run directory; this one did nothing."""


class ClusterError(SadihError, ConnectionError):
    """A Dask cluster that cannot be reached, is lost, or cannot do its work; repeating resumes."""


class MemoryPlanError(SadihError, MemoryError):
    """A job whose predicted memory exceeds what is allowed; nothing was started."""


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in an error about reading or writing it, where the system says only what.

    >>> with naming("x.npy"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'x.npy'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


_EXTRAS = {
    "dask_jobqueue": "slurm",
    "dask_kubernetes": "kubernetes",
    "faiss": "faiss",
    "h5py": "ingest",
    "matplotlib": "report",
    "pyarrow": "ingest",
    "s3fs": "s3",
    "usearch": "usearch",
    "xarray": "xarray",
}
"""The extra of this package that brings an optional library."""


def require(module: str, purpose: str) -> Any:
    """Import an optional library; where it is missing, name the purpose and the command.

    >>> require("adlfs", "this")
    Traceback (most recent call last):
    sadih_dask.errors.InputError: this needs adlfs, which is not installed. Install it with: ...
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(_lacking(module, purpose)) from error


def lacking(module: str, purpose: str) -> str | None:
    """Say that an optional library is missing, as `require` does, if it is; nothing is imported."""
    return _lacking(module, purpose) if find_spec(module) is None else None


def _lacking(module: str, purpose: str) -> str:
    package = module.partition(".")[0]
    extra = _EXTRAS.get(package)
    wanted = package if extra is None else f"'sadih-dask[{extra}]'"
    return (
        f"{purpose} needs {package}, which is not installed. Install it with: pip install {wanted}"
    )
