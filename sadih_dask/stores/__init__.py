"""Zarr stores larger than memory: features, codes, and the integrity of both."""

from __future__ import annotations

from sadih_dask.stores.codes import CodeStore
from sadih_dask.stores.features import FeatureStore

__all__ = ["CodeStore", "FeatureStore"]
