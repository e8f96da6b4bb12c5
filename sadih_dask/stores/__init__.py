"""Zarr stores larger than memory: immutable segments of rows, and the root that names them.

Read `store` first (what a store is; `features` and `codes` are the two kinds), then `root` (what
stands in `zarr.json`), `commit` (what may be done, and who wins when two do it), `segment`
(writing), `reader` with `ahead` (chunks behind a network, fetched early), `deletions`, `coverage`
(what has changed since), `verify`; `layout` and `chunks` are the bytes, `columns` what may go into
them, and `foreign` reads arrays that a segment has adopted.
"""

from __future__ import annotations

from sadih_dask.stores.codes import CodeStore
from sadih_dask.stores.features import FeatureStore

__all__ = ["CodeStore", "FeatureStore"]
