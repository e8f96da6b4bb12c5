"""A store's array as a Dask array of lazy block reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import dask.array as da

    from sadih_dask.storage.group import CommittedGroup


class LazyArray:
    """What Dask slices: shape and type, and the store to read from.

    It is pickled as the store is (URL and commit), so a task carries a few hundred bytes.
    """

    def __init__(self, store: CommittedGroup, name: str) -> None:
        self._store = store
        self._name = name
        self.shape = store.shape(name)
        self.dtype = store.dtype(name)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        if isinstance(rows, slice) and (rows.step or 1) > 0:
            start, stop, step = rows.indices(self.shape[0])
            block = self._store.read(self._name, start, max(start, stop))
            return block[(slice(None, None, step), *rest)]
        picked = np.arange(self.shape[0])[rows]
        block = self._store.take(self._name, np.atleast_1d(picked))
        return block[(slice(None) if np.ndim(picked) else 0, *rest)]

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self._store.uid, self._store.generation, self._name


def to_dask(store: CommittedGroup, name: str) -> da.Array:
    """Return a Dask array with one chunk for each storage chunk."""
    import dask.array as da

    source = LazyArray(store, name)
    chunks = (store.chunk_rows, *source.shape[1:])
    from_array: Callable[..., da.Array] = da.from_array
    return from_array(
        source,
        chunks=chunks,
        name=f"{name}-{store.uid[:12]}-{store.generation}",
        inline_array=True,
        asarray=False,
        meta=np.empty((0,) * source.ndim, source.dtype),
    )
