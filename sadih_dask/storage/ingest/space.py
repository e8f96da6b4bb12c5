"""Whether the disk can take what is about to be written."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import numpy as np
from dask.utils import format_bytes

from sadih_dask.errors import InputError
from sadih_dask.storage.files import Files, LocalFiles
from sadih_dask.storage.ids import declared
from sadih_dask.storage.ingest.inputs import Inputs

_SMALL_FILES = 1 << 20
"""Metadata and manifests."""


def row_bytes(inputs: Inputs, dtype: str, label_dtype: str, id_dtype: str | None) -> int:
    """Return the stored bytes of one row of all arrays."""
    size = inputs.features.width * np.dtype(dtype).itemsize
    if (labels := inputs.labels) is not None:
        size += len(labels.class_names) if labels.multi_label else np.dtype(label_dtype).itemsize
    if id_dtype is not None:
        _, stored, row_shape = declared(id_dtype)
        size += np.dtype(stored).itemsize * math.prod(row_shape)
    if inputs.thumbnails is not None:
        size += inputs.thumbnails.width
    return size


def check_space(place: Files, n_bytes: int, compression: str | None, replaced: bool) -> None:
    """Refuse rows that a local disk has no room for; what is going to be replaced counts as room.

    Nobody knows beforehand how far rows compress, so nothing is refused with zstd.
    """
    if not isinstance(place, LocalFiles) or compression == "zstd":
        return
    needed = n_bytes + _SMALL_FILES
    free = shutil.disk_usage(_nearest_folder(place.root)).free
    if replaced:
        free += _bytes_below(place.root)
    if needed > free:
        raise InputError(
            f"{place.url}: the rows need {needed} bytes ({format_bytes(needed)}), but its disk has "
            f"{free} free ({format_bytes(free)}). Make room, choose another disk, or try "
            "compression='zstd'"
        )


def _nearest_folder(path: Path) -> Path:
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _bytes_below(folder: Path) -> int:
    total = 0
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_dir(follow_symlinks=False):
            total += _bytes_below(Path(entry.path))
        else:
            total += entry.stat(follow_symlinks=False).st_size
    return total
