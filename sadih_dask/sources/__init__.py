"""One reader for each format that people have their features and labels in.

``open_features`` and ``open_labels`` return sources that read any row range with bounded memory,
whatever the format: ``source.read(start, stop)``. Read `contract` first (what a source is) and
`formats` (which reader a file has), then a reader: `numpy_files`, `matlab`, `chunked` (HDF5,
Zarr), `arrow`, `text`; they share `arrays`. `features` makes many files one source, `labels` and
`classes` make numbers of what labels say.
"""

from sadih_dask.sources.contract import RowSource, Variable
from sadih_dask.sources.features import open_features, open_ids, open_thumbnails
from sadih_dask.sources.formats import list_variables
from sadih_dask.sources.labels import LabelSource, open_labels, read_class_names

__all__ = [
    "LabelSource",
    "RowSource",
    "Variable",
    "list_variables",
    "open_features",
    "open_ids",
    "open_labels",
    "open_thumbnails",
    "read_class_names",
]
