"""Which format a file is: by its first bytes, then by its name; and which variable holds what.

A new format is a module beside this one, with a function that lists variables and one that opens
one of them, an entry among the formats here, and its magic in ``_by_magic``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from sadih_dask.errors import Argument, FormatError, InputError, Remedy
from sadih_dask.files.filesystem import head, local_path
from sadih_dask.sources import arrow, chunked, matlab, numpy_files, text
from sadih_dask.sources.arrays import GZIP_MAGIC, open_gzip
from sadih_dask.sources.contract import OpenOptions, RowSource, Variable, reading

Purpose = Literal["features", "labels", "ids", "thumbnails"]
_KNOWN = (
    ".npy, .npz, .mat, HDF5, IDX, .fbin/.u8bin/.i8bin, Parquet, Arrow/Feather, CSV/TSV/TXT, a Zarr "
    "directory"
)
_MOST_LISTED = 40
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
        raise InputError(f"{path}: is a directory without Zarr metadata. Name one of its files.")
    if numpy_files.is_bin(path):
        return ARRAY
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
    if found is TEXT and purpose == "thumbnails":
        raise FormatError(f"{path}: text holds no pictures. Save them as a uint8 array: np.save.")
    variables = found.list_variables(path, options)
    # A file of one array knows no name for it, so any name is right
    wanted = None if found is ARRAY else variable
    if purpose == "features" and found in (COLUMNS, TEXT):
        joined = _column_each(path, variables, wanted, options.taken, text=found is TEXT)
        if joined is not None:
            return found, joined
    return found, choose(path, variables, wanted, purpose)


def _column_each(
    path: str,
    variables: Sequence[Variable],
    wanted: str | None,
    taken: Sequence[str],
    *,
    text: bool,
) -> Variable | None:
    """Return the features of a table that has a column for each, or None if one column has all.

    They are those that ``wanted``, a pattern, matches; without one, all columns that are neither
    taken nor named like labels or ids, if every one of these is a number. In text any column may
    be numbers, which shows when it is read.
    """

    def single(variable: Variable) -> bool:
        kinds = ("numbers", "text") if text else ("numbers",)
        return len(variable.shape) == 1 and variable.kind in kinds

    if wanted is not None:
        if any(v.name == wanted for v in variables):
            return None if not text else _joined(wanted, [v for v in variables if v.name == wanted])
        chosen = [v for v in variables if fnmatchcase(v.name, wanted)]
        if wrong := [v for v in chosen if not single(v)]:
            raise InputError(
                f"{path}: {wanted!r} takes the column {wrong[0]}, which is not a number in each "
                "row. Name the columns of the features more closely."
            )
        return _joined(wanted, chosen) if chosen else None
    others = [v for v in variables if v.name not in taken]
    if any(_fits(v, "features") for v in others):
        return None
    others = [v for v in others if not (is_named_for(v, "labels") or is_found_as_ids(v))]
    if len(others) < 2 and not (text and others):
        return None
    if wrong := [v for v in others if not single(v)]:
        raise InputError(
            f"{path}: no column holds vectors, and with a column for each feature it is not clear "
            f"what {listed(wrong)} {'is' if len(wrong) == 1 else 'are'}, beside "
            f"{len(others) - len(wrong)} columns of numbers",
            remedy=Remedy(
                "Name the columns of the features with {}, such as 'e*', or the other ones with {} "
                "and {}",
                Argument("features_variable"),
                Argument("labels_variable"),
                Argument("ids_variable"),
            ),
        )
    return _joined("*", others)


def _joined(name: str, columns: Sequence[Variable]) -> Variable:
    names = tuple(column.name for column in columns)
    notes = {column.note for column in columns}
    note = notes.pop() if len(notes) == 1 else "numbers"
    return replace(
        columns[0],
        name=name,
        shape=(columns[0].shape[0], len(names)),
        kind="numbers",
        note=note,
        columns=names,
    )


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
        | {"embeddings", "embedding", "vectors", "vector", "emb"}
    ),
    "labels": frozenset(
        {"labels", "label", "targets", "target", "tags", "tag", "y"}
        | {"classes", "class", "category", "gnd", "genres"}
    ),
    "ids": frozenset(
        {"ids", "id", "_id", "key", "keys", "uuid", "guid", "name", "filename", "path"}
    ),
    "thumbnails": frozenset({"thumbnails", "thumbnail", "images", "image", "x", "data"}),
}


PANDAS_INDEX = "__index_level_0__"
"""What pandas calls an index without a name: ids, where no other column has them."""
_FOUND_AS_IDS = frozenset({"ids", "id", "_id", "uuid", "guid", PANDAS_INDEX})
"""Names that hold ids even if nobody says so."""


def is_found_as_ids(variable: Variable) -> bool:
    """Tell whether a variable holds ids, by its name alone; a number with a fraction is none."""
    name = variable.name.rpartition("/")[2].lower()
    return name in _FOUND_AS_IDS and _fits(variable, "ids") and "float" not in variable.note


def listed(variables: Sequence[Variable]) -> str:
    """Name variables for a message, and say how many more there are."""
    more = len(variables) - _MOST_LISTED
    named = ", ".join(map(str, variables[:_MOST_LISTED])) or "none"
    return f"{named} and {more:,} more" if more > 0 else named


def choose(
    path: str, variables: Sequence[Variable], wanted: str | None, purpose: Purpose
) -> Variable:
    """Return the wanted variable, or the only sensible one; otherwise list them all."""
    listing = listed(variables)
    if wanted is not None:
        for variable in variables:
            if variable.name == wanted:
                return variable
        raise InputError(f"{path}: has no variable {wanted!r}. It has: {listing}.")
    if len(variables) == 1:
        return variables[0]
    if not variables:
        raise FormatError(f"{path}: is empty, there are no {purpose} in it.")
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


_ANN_BENCHMARKS = frozenset({"train", "test", "neighbors", "distances"})
"""What the HDF5 files of ann-benchmarks.com hold: rows, queries, and what is to be found."""


def is_named_for(variable: Variable, purpose: Purpose) -> bool:
    """Tell whether a variable can serve a purpose and has one of the usual names for it."""
    return _fits(variable, purpose) and _has_usual_name(variable, purpose)


def _has_usual_name(variable: Variable, purpose: Purpose) -> bool:
    return variable.name.rpartition("/")[2].lower() in _NAMES[purpose]


def _narrowings(fitting: list[Variable], purpose: Purpose) -> list[list[Variable]]:
    named = [v for v in fitting if _has_usual_name(v, purpose)]
    if purpose == "features" and {v.name for v in fitting} >= _ANN_BENCHMARKS:
        return [[v for v in fitting if v.name == "train"]]
    vectors = [v for v in fitting if len(v.shape) == 1 or 1 in v.shape]
    if purpose in ("labels", "ids"):
        # Ids and labels are both vectors, so a name says more than a shape
        index = [v for v in fitting if v.name == PANDAS_INDEX]
        return [named, index, fitting] if purpose == "ids" else [named, vectors, fitting]
    return [fitting, named]
