"""Reading all of a store or a model file and naming what is not as it was written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sadih_dask.compute.run import listener
from sadih_dask.errors import SadihError
from sadih_dask.files.file import is_file
from sadih_dask.jobs.inspect import open_store
from sadih_dask.model.model_file import read_model
from sadih_dask.stores.verify import Verification


def verify(url: str | os.PathLike[str], *, workers: int | None = None) -> Verification | None:
    """Read everything; a store says what it found, a model file is intact or raises."""
    if is_file(url):
        read_model(url)
        return None
    return open_store(url).verify(workers=workers, progress=listener())


def problems(url: str | os.PathLike[str]) -> Iterator[str]:
    """Name everything that is damaged or missing, a line each."""
    try:
        found = verify(url)
    except (SadihError, OSError) as error:
        yield str(error)
        return
    if found is not None:
        yield from found.problems
