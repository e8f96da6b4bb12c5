"""What may go into each array of a store, checked before it is written.

Values are stored as they are: no scaling, no lossy conversion. Whether features are finite is for
those who train on them to say; a store keeps what it was given.

Row ids: integers, or strings of bounded length as rows of bytes.

Zarr v3 has no settled type for strings, and variable-length ones would need object arrays. So a
string id is stored as its bytes (UTF-8 for text) in a row of `uint8`, padded with zero bytes:
every Zarr library can read that, and nothing has to be unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import Argument, DtypeError, FormatError, InputError, LabelError, Remedy
from sadih_dask.stores.layout import ArrayLayout
from sadih_dask.stores.root import Root


def prepared(root: Root, given: Mapping[str, Any], first_row: int) -> dict[str, npt.NDArray[Any]]:
    """Return rows of some arrays as they are stored, after every check that can be made of them."""
    layouts = root.layouts(root.chunk_rows, root.compression)
    arrays = {name: np.asarray(rows) for name, rows in given.items()}
    check_lengths(arrays)

    def stored(name: str, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        layout = layouts[name]
        if name == "features":
            return prepare_features(rows, layout)
        if name == "labels":
            return prepare_labels(rows, layout, first_row)
        if name == "ids":
            return encode_ids(rows, root.properties["ids"], layout, first_row)
        if name == "label_bits":
            unpacked = replace(layout, name="labels", row_shape=(root.properties["n_labels"],))
            truth = prepare_labels(rows, unpacked, first_row)
            return np.packbits(truth, axis=1, bitorder="little")
        return prepare_bytes(rows, layout)

    return {name: stored(name, rows) for name, rows in arrays.items()}


def prepare_features(features: npt.ArrayLike, layout: ArrayLayout) -> npt.NDArray[Any]:
    """Return features in the stored type; a conversion that could lose digits is refused."""
    array = np.asarray(features)
    if array.dtype.kind not in "fiub" or not np.can_cast(array.dtype, layout.numpy_dtype, "safe"):
        raise DtypeError(
            f"features are {array.dtype}, the store keeps {layout.dtype}; convert them, for "
            f"example with .astype({layout.dtype!r})"
        )
    return _shaped(array, layout).astype(layout.numpy_dtype, copy=False)


def prepare_labels(labels: npt.ArrayLike, layout: ArrayLayout, first_row: int) -> npt.NDArray[Any]:
    """Return integer labels or 0/1 rows in the stored type; LabelError names the first bad row."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iub":
        raise DtypeError(
            f"labels must be integers, or rows of 0 and 1, got {array.dtype}",
            remedy=Remedy(
                "Number string classes first and give their names as {}", Argument("class_names")
            ),
        )
    array = _shaped(array, layout)
    if layout.row_shape:
        bad = (array != 0) & (array != 1)
    else:
        limits = np.iinfo(layout.numpy_dtype)
        bad = (array < limits.min) | (array > limits.max)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        column = f", column {where[1]}" if layout.row_shape else ""
        allowed = "0 or 1" if layout.row_shape else f"a number that fits {layout.dtype}"
        raise LabelError(
            f"label of row {first_row + where[0]}{column} is {array[where]}, expected {allowed}"
        )
    return array.astype(layout.numpy_dtype, copy=False)


def prepare_bytes(values: npt.ArrayLike, layout: ArrayLayout) -> npt.NDArray[Any]:
    """Return thumbnails or packed codes, which must be uint8 already."""
    array = np.asarray(values)
    if array.dtype != np.uint8:
        raise DtypeError(f"{layout.name} must be uint8, got {array.dtype}")
    return _shaped(array, layout)


def check_lengths(arrays: Mapping[str, Any]) -> int:
    """Return the common row count of arrays, or InputError with all of them."""
    lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(f"arrays differ in their number of rows: {lengths}")
    return next(iter(lengths.values()))


def check_names(given: set[str], layouts: Mapping[str, Any], url: str) -> None:
    """Raise if rows come without an array that the store has, or with one that it has not."""
    if missing := sorted(layouts.keys() - given):
        raise InputError(f"{url} has {', '.join(layouts)}; {', '.join(missing)} not given")
    if unknown := sorted(given - layouts.keys()):
        raise InputError(
            f"{url} was created without {', '.join(unknown)}; leave them out, or create it anew"
        )


def _shaped(array: npt.NDArray[Any], layout: ArrayLayout) -> npt.NDArray[Any]:
    if array.ndim == 0 or array.shape[1:] != layout.row_shape:
        raise InputError(
            f"{layout.name} have shape {array.shape}, expected (rows, "
            f"{', '.join(map(str, layout.row_shape))})"
        )
    return array


ENCODINGS = ("int64", "bytes", "utf8")
MAX_ID_BYTES = 1024
_KINDS = {"i": "int64", "u": "int64", "S": "bytes", "U": "utf8", "T": "utf8"}


def declared(dtype: str) -> tuple[str, str, tuple[int, ...]]:
    """Return encoding, stored type and row shape for "int64", "S<bytes>" or "U<UTF-8 bytes>".

    >>> declared("U24")
    ('utf8', 'uint8', (24,))
    """
    if dtype == "int64":
        return "int64", "int64", ()
    match = re.fullmatch(r"([SU])([1-9][0-9]{0,3})", dtype)
    if match is None or int(match[2]) > MAX_ID_BYTES:
        raise InputError(
            f"ids must be 'int64', or 'S' or 'U' with a length in bytes up to {MAX_ID_BYTES}, "
            f"got {dtype!r}"
        )
    return _KINDS[match[1]], "uint8", (int(match[2]),)


def fitting(ids: npt.NDArray[Any]) -> str:
    """Return the declaration that holds all of these ids."""
    encoding = _encoding(ids)
    if encoding == "int64":
        return "int64"
    return f"{'S' if encoding == 'bytes' else 'U'}{max(1, as_bytes(ids).dtype.itemsize)}"


def encode_ids(
    ids: npt.NDArray[Any], encoding: str, layout: ArrayLayout, first_row: int
) -> npt.NDArray[Any]:
    """Return ids as they are stored; InputError names the first that does not fit."""
    found = _encoding(ids)
    if found != encoding:
        raise DtypeError(f"the store has {encoding} ids, got {ids.dtype}")
    if encoding == "int64":
        if ids.dtype.kind == "u" and ids.size and ids.max() > np.iinfo(np.int64).max:
            row = first_row + int(np.argmax(ids > np.iinfo(np.int64).max))
            raise InputError(f"id of row {row} does not fit a signed 64-bit integer")
        return ids.astype("<i8")
    (width,) = layout.row_shape
    data = as_bytes(ids)
    lengths = np.strings.str_len(data)
    if lengths.size and lengths.max() > width:
        row = int(np.argmax(lengths > width))
        raise InputError(
            f"id of row {first_row + row} has {lengths[row]} bytes, the store keeps {width}; "
            f"create it with longer ids, for example 'U{lengths[row]}'"
        )
    return data.astype(f"S{width}").view(np.uint8).reshape(len(data), width)


def decode_ids(stored: npt.NDArray[Any], encoding: str) -> npt.NDArray[Any]:
    """Return stored ids as int64, bytes or text."""
    if encoding == "int64":
        return stored
    width = stored.shape[1]
    data = np.ascontiguousarray(stored).view(f"S{width}").reshape(len(stored))
    # A fixed width, so that blocks of one array have one type whatever ids they hold.
    return np.strings.decode(data, "utf-8").astype(f"U{width}") if encoding == "utf8" else data


def decoded_dtype(layout: ArrayLayout, encoding: str) -> np.dtype[Any]:
    """Return the type that `decode_ids` gives."""
    if encoding == "int64":
        return np.dtype(np.int64)
    return np.dtype(f"{'S' if encoding == 'bytes' else 'U'}{layout.row_shape[0]}")


def check_encoding(encoding: object, layout: ArrayLayout, url: str) -> None:
    """Raise FormatError if a store's attributes do not say how its ids are stored."""
    fits = (encoding == "int64") == (layout.dtype == "int64" and layout.row_shape == ())
    if encoding not in ENCODINGS or not fits or layout.row_shape > (MAX_ID_BYTES,):
        raise FormatError(
            f"{url}: array 'ids' has type {layout.dtype} and rows of shape {layout.row_shape}, "
            f"which is no encoding {str(encoding)[:40]!r}; known are {', '.join(ENCODINGS)}"
        )


def _encoding(ids: npt.NDArray[Any]) -> str:
    if ids.ndim != 1 or ids.dtype.kind not in _KINDS:
        raise DtypeError(
            f"ids must be one integer, bytes or text a row, got {ids.dtype} of shape {ids.shape}; "
            'convert them, for example with np.asarray(ids, dtype="U")'
        )
    return _KINDS[ids.dtype.kind]


def as_bytes(ids: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
    """Return text ids as bytes, of text in UTF-8."""
    if ids.dtype.kind == "S":
        return ids
    # NumPy does not find the width by itself when it casts text of variable length.
    text = np.array(ids.tolist(), "U") if ids.dtype.kind == "T" else ids
    encoded: npt.NDArray[np.bytes_] = np.strings.encode(text, "utf-8")
    return encoded
