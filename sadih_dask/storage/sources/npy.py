"""NumPy ``.npy`` files, plain or inside gzip; the header also serves ``.npz`` members."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from sadih_dask.storage.sources.contract import OpenOptions, RowSource, reading
from sadih_dask.storage.sources.gzipped import array_source, open_bytes
from sadih_dask.storage.sources.layout import Layout
from sadih_dask.storage.sources.variables import Variable, kind_of


@dataclass(frozen=True)
class NpyHeader:
    """What a ``.npy`` header claims, and where the numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        """Count the bytes of numbers that must follow; exact for any claimed shape."""
        return math.prod(self.shape) * self.dtype.itemsize

    def variable(self, name: str) -> Variable:
        """List it."""
        return Variable(name, self.shape, kind_of(self.dtype.kind), str(self.dtype))

    def layout(self, options: OpenOptions) -> Layout:
        """Return how the rows lie."""
        return Layout(self.shape, self.fortran, options.rows_last)


def read_header(stream: IO[bytes]) -> NpyHeader:
    """Parse the header; NumPy bounds its length and evaluates literals only."""
    version = npy_format.read_magic(stream)
    with warnings.catch_warnings():
        # Files of Python 2 are read like any other; NumPy would warn about their spelling
        warnings.simplefilter("ignore", UserWarning)
        if version == (1, 0):
            parsed = npy_format.read_array_header_1_0(stream)
        elif version == (2, 0):
            parsed = npy_format.read_array_header_2_0(stream)
        else:
            # Version 3 is only for records with names outside Latin-1
            raise ValueError(f"a header of version {version} is not read here")
    shape, fortran, dtype = parsed
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape {shape} has a negative length")
    return NpyHeader(tuple(map(int, shape)), bool(fortran), dtype, stream.tell())


def list_variables(path: str, options: OpenOptions) -> tuple[Variable, ...]:  # noqa: ARG001
    """List the one array of the file under the file's name."""
    with reading(path), open_bytes(path) as stream:
        return (read_header(stream).variable(Path(path).name.partition(".")[0]),)


def open_variable(path: str, variable: Variable, options: OpenOptions) -> RowSource:  # noqa: ARG001
    """Open the array of the file."""
    with reading(path), open_bytes(path) as stream:
        header = read_header(stream)
    return array_source(path, header.layout(options), header.dtype, header.offset, options)
