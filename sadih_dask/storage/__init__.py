"""Zarr stores larger than memory: features, codes, and the integrity of both."""

from __future__ import annotations

from sadih_dask.storage.codes import CodeStore
from sadih_dask.storage.features import FeatureStore

__all__ = ["CodeStore", "FeatureStore"]
