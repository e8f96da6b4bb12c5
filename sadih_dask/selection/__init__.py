"""Parameters by cross-validation, from one scan of the data."""

from sadih_dask.selection.search import SADIHCV

__all__ = ["SADIHCV"]
