"""Rows that other libraries hold: taken as Dask arrays, and results given back as rows came.

Nothing is imported that its user has not imported: who passes an `xarray.DataArray` has done so.
"""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
import sklearn

from sadih_dask.compute.run import computed, is_lazy
from sadih_dask.errors import InputError
from sadih_dask.files.filesystem import refuse_path


def as_arrays(X: Any, *, lengths: bool | None = None) -> Any:
    """What holds the rows: a Dask array of a data frame, a `zarr.Array` or an `xarray.DataArray`.

    Everything else, and an `xarray.DataArray` in memory, as an array in memory or as it came.
    ``lengths`` has the rows of a data frame's partitions counted, for which they are computed.
    """
    refuse_path(X, "FeatureStore.open(path), or np.load(path) of an array")
    if _is_a(X, "zarr", "Array"):
        return da.from_zarr(X)
    if _is_a(X, "xarray", "DataArray"):
        # What is on disk, and was opened without chunks, would be read here and now.
        return X.data if X.chunks is not None or X.variable._in_memory else X.chunk().data
    if hasattr(X, "to_dask_array"):
        if X.ndim == 1 and X.dtype.kind not in "biuf":
            X = X.astype(object)  # text of pandas and Arrow has types of its own
        return X.to_dask_array(lengths=lengths)
    return X


def column_names(X: Any) -> Any | None:
    """A data frame without rows that has the columns of one whose rows are not in memory."""
    return X._meta if hasattr(X, "to_dask_array") and X.ndim == 2 else None


def like(X: Any, found: Any, column: str) -> Any:
    """A result of the rows, with their dimension and its coordinates if they had any."""
    if not _is_a(X, "xarray", "DataArray"):
        return found
    rows = X.dims[0]
    coordinates = {name: values for name, values in X.coords.items() if values.dims == (rows,)}
    name = "codes" if column == "byte" else "scores"
    return type(X)(found, coordinates, (rows, column), name=name)


def in_memory(values: Any) -> Any:
    """Lazy values, computed; a data frame keeps the names of its columns."""
    if hasattr(values, "to_dask_array"):
        return values.compute()
    values = as_arrays(values)
    return computed(values) if is_lazy(values) else values


def refuse_frames(model: Any) -> None:
    """Refuse to make data frames of results that are lazy: they would be computed here."""
    own = getattr(model, "_sklearn_output_config", {}).get("transform")
    wanted = own or sklearn.get_config()["transform_output"]
    if wanted != "default":
        raise InputError(
            f"set_output(transform={wanted!r}) makes data frames in memory, and these rows are "
            "lazy: compute the codes of some rows at a time, or call "
            "set_output(transform='default') and get a lazy array"
        )


def _is_a(value: Any, library: str, name: str) -> bool:
    known = getattr(sys.modules.get(library), name, None)
    return known is not None and isinstance(value, known)
