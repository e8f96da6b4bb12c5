"""Which format a file is: by its first bytes, then by its name; and which variable holds what.

A new format is a module beside this one, with a function that lists variables and one that opens
one of them, an entry among the formats here, and its magic in ``_by_magic``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sadih_dask.errors import Argument, FormatError, InputError, Remedy
from sadih_dask.files.filesystem import head, local_path
from sadih_dask.sources import arrow, chunked, matlab, numpy_files, text
from sadih_dask.sources.arrays import GZIP_MAGIC, open_gzip
from sadih_dask.sources.contract import OpenOptions, RowSource, Variable, reading

Purpose = Literal["features", "labels", "ids", "thumbnails"]
_KNOWN = ".npy, .npz, .mat, HDF5, IDX, Parquet, Arrow/Feather, CSV/TSV/TXT, a Zarr directory"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Format:
    """A file format: how its variables are listed, and how one of them is opened."""

    list_variables: Callable[[str, OpenOptions], tuple[Variable, ...]]
    open_variable: Callable[[str, Variable, OpenOptions], RowSource]


ARRAY = Format(numpy_files.list_array, numpy_files.open_array)
NPZ = Format(numpy_files.list_npz, numpy_files.open_npz)
MATLAB = Format(matlab.list_variables, matlab.open_variable)
HDF5 = Format(chunked.list_hdf5, chunked.open_hdf5)
COLUMNS = Format(arrow.list_variables, arrow.open_variable)
TEXT = Format(text.list_variables, text.open_variable)
ZARR = Format(chunked.list_zarr, chunked.open_zarr)


def detect(path: str) -> Format:
    """Recognise the format of a file, a Zarr directory or a URL."""
    if chunked.is_zarr(path):
        return ZARR
    if Path(path).is_dir():
        raise InputError(
            f"{path}: is a directory without Zarr metadata. "
            f"Name its files, for example '{path}/*.npy'."
        )
    with reading(path):
        outer = head(path)
        inner = _inner_head(path) if outer.startswith(GZIP_MAGIC) else outer
    found = _by_magic(inner) or _by_suffix(path, inner)
    if found is None or (found not in (ARRAY, TEXT) and inner is not outer):
        raise FormatError(
            f"{path}: is not in a format that can be read; it starts with {outer[:8]!r}. "
            f"Expected one of: {_KNOWN}."
        )
    return found


def list_variables(path: str) -> tuple[Variable, ...]:
    """List what a file holds, with shapes; nothing but headers is read."""
    path = str(local_path(path) or path)
    return detect(path).list_variables(path, OpenOptions())


def find(
    path: str, variable: str | None, purpose: Purpose, options: OpenOptions
) -> tuple[Format, Variable]:
    """Recognise a file and choose the variable that serves a purpose."""
    found = detect(path)
    if found is TEXT and purpose in ("features", "thumbnails"):
        raise FormatError(
            f"{path}: text holds labels or ids, not {purpose}. "
            "Save the numbers as .npy: np.save(path, np.loadtxt(...))."
        )
    variables = found.list_variables(path, options)
    # A file of one array knows no name for it, so any name is right
    wanted = None if found is ARRAY else variable
    return found, choose(path, variables, wanted, purpose)


def open_file(path: str, variable: str | None, purpose: Purpose, options: OpenOptions) -> RowSource:
    """Open the variable of a file that serves a purpose."""
    found, chosen = find(path, variable, purpose, options)
    return found.open_variable(path, chosen, options)


def _inner_head(path: str) -> bytes:
    with open_gzip(path) as stream:
        return stream.read(1024)


def _by_magic(head: bytes) -> Format | None:
    prefixes = {
        b"\x93NUMPY": ARRAY,
        b"PK\x03\x04": NPZ,
        b"PK\x05\x06": NPZ,
        b"PAR1": COLUMNS,
        b"ARROW1": COLUMNS,
        b"\xff\xff\xff\xff": COLUMNS,
        _HDF5_MAGIC: HDF5,
    }
    for prefix, found in prefixes.items():
        if head.startswith(prefix):
            return found
    if head[512:520] == _HDF5_MAGIC:
        return HDF5
    if matlab.is_matlab5(head):
        return MATLAB
    return ARRAY if numpy_files.is_idx(head) else None


def _by_suffix(path: str, head: bytes) -> Format | None:
    is_text = b"\0" not in head and any(s in text.SUFFIXES for s in Path(path).suffixes)
    return TEXT if is_text else None


# Lower case. A name only decides between variables whose shapes would all do.
_NAMES: dict[Purpose, frozenset[str]] = {
    "features": frozenset(
        {"features", "feature", "feats", "feat", "fea", "data", "x"}
        | {"embeddings", "embedding", "vectors", "vector"}
    ),
    "labels": frozenset(
        {"labels", "label", "targets", "target", "tags", "tag", "y"}
        | {"classes", "class", "category", "gnd", "genres"}
    ),
    "ids": frozenset({"ids", "id", "key", "keys", "uuid", "name", "filename", "path"}),
    "thumbnails": frozenset({"thumbnails", "thumbnail", "images", "image", "x", "data"}),
}


def choose(
    path: str, variables: Sequence[Variable], wanted: str | None, purpose: Purpose
) -> Variable:
    """Return the wanted variable, or the only sensible one; otherwise list them all."""
    listing = ", ".join(map(str, variables[:40])) or "none"
    if wanted is not None:
        for variable in variables:
            if variable.name == wanted:
                return variable
        raise InputError(f"{path}: has no variable {wanted!r}. It has: {listing}.")
    if len(variables) == 1:
        return variables[0]
    fitting = [v for v in variables if _fits(v, purpose)]
    if not fitting:
        raise FormatError(f"{path}: no variable can hold {purpose}. It has: {listing}.")
    for narrowed in _narrowings(fitting, purpose):
        if len(narrowed) == 1:
            return narrowed[0]
    raise InputError(
        f"{path}: several variables could be the {purpose}; it has: {listing}",
        remedy=Remedy("Name one with {}", Argument(f"{purpose}_variable")),
    )


def _fits(variable: Variable, purpose: Purpose) -> bool:
    ndim = len(variable.shape)
    if purpose == "features":
        return variable.kind == "numbers" and ndim >= 2
    if purpose == "thumbnails":
        return variable.kind == "numbers" and ndim in (3, 4)
    if purpose == "ids":
        return variable.kind in ("numbers", "text") and ndim == 1
    return variable.kind != "other" and ndim in (1, 2)


def is_named_for(variable: Variable, purpose: Purpose) -> bool:
    """Tell whether a variable can serve a purpose and has one of the usual names for it."""
    return _fits(variable, purpose) and _has_usual_name(variable, purpose)


def _has_usual_name(variable: Variable, purpose: Purpose) -> bool:
    return variable.name.rpartition("/")[2].lower() in _NAMES[purpose]


def _narrowings(fitting: list[Variable], purpose: Purpose) -> list[list[Variable]]:
    named = [v for v in fitting if _has_usual_name(v, purpose)]
    vectors = [v for v in fitting if len(v.shape) == 1 or 1 in v.shape]
    if purpose in ("labels", "ids"):
        # Ids and labels are both vectors, so a name says more than a shape
        return [named, fitting] if purpose == "ids" else [named, vectors, fitting]
    return [fitting, named]
