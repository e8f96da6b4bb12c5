"""Readers for the files that people have their features and labels in.

``open_features`` and ``open_labels`` return sources that read any row range with bounded memory,
whatever the format: ``source.read(start, stop)``.
"""

from sadih_dask.sources.contract import RowSource, Source, Variable
from sadih_dask.sources.features import open_features, open_ids, open_thumbnails
from sadih_dask.sources.formats import list_variables
from sadih_dask.sources.labels import LabelSource, open_labels, read_class_names

__all__ = [
    "LabelSource",
    "RowSource",
    "Source",
    "Variable",
    "list_variables",
    "open_features",
    "open_ids",
    "open_labels",
    "open_thumbnails",
    "read_class_names",
]
