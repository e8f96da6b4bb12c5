"""Files that nobody is writing any more, as far as their age can tell."""

from __future__ import annotations

import time

from sadih_dask.storage.ingest.inputs import BESIDE, DataFiles
from sadih_dask.storage.sources.contract import reading
from sadih_dask.storage.sources.places import look_again, status


def pass_over_young(files: DataFiles, min_age: float) -> tuple[DataFiles | None, tuple[str, ...]]:
    """Return the files without those younger than `min_age` seconds, and the names of these.

    Where labels (ids, thumbnails) come in as many files as the features, the first belongs to the
    first, and so on: a pair waits until both are old enough. Where one file serves several, all
    wait; then there are no files, but None.
    """
    files = files.expanded()
    if min_age <= 0:
        return files, ()
    features = files.names("features")
    beside = {name: files.names(name) for name in BESIDE if files.names(name)}
    paired = {name: found for name, found in beside.items() if len(found) == len(features)}
    everything = [*features, *(file for found in beside.values() for file in found)]
    look_again(everything)
    young = {file for file in everything if _is_young(file, min_age)}
    waiting = [
        not young.isdisjoint(group) for group in zip(features, *paired.values(), strict=True)
    ]
    too_young = tuple(file for file in everything if file in young)
    if all(waiting) or (young and len(paired) < len(beside)):
        return None, too_young
    kept = {
        name: tuple(file for file, waits in zip(found, waiting, strict=True) if not waits)
        for name, found in {"features": features, **paired}.items()
    }
    return files.of(kept), too_young


def _is_young(file: str, min_age: float) -> bool:
    """Say whether a file changed just now; a clock that runs ahead must not hold it up for ever."""
    with reading(file):
        return abs(time.time() - status(file).modified) < min_age
