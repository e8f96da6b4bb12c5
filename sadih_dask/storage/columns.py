"""What may go into each array of a feature store, checked before it is written.

Values are stored as they are: no scaling, no lossy conversion. Whether features are finite is for
those who train on them to say; a store keeps what it was given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sadih_dask.errors import DtypeError, InputError, LabelError
from sadih_dask.storage.layout import ArrayLayout


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
            f"labels must be integers, or rows of 0 and 1, got {array.dtype}; number string "
            "classes first and give their names as class_names"
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


def check_lengths(arrays: dict[str, Any]) -> int:
    """Return the common row count of arrays, or InputError with all of them."""
    lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(f"arrays differ in their number of rows: {lengths}")
    return next(iter(lengths.values()))


def check_names(given: set[str], layouts: dict[str, ArrayLayout], url: str) -> None:
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
