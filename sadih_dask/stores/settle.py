"""What is left to do where a writer was killed just after its commit.

The commit is one step, so the rows are there. But the arrays' own metadata, which other Zarr tools
read, may still have the row count of the commit before. The next append puts that right; so does
`settle`, for a store that is found finished.
"""

from __future__ import annotations

from sadih_dask.errors import ConflictError
from sadih_dask.files.lease import WriterLock
from sadih_dask.stores.root import stale_array_documents, write_array_documents
from sadih_dask.stores.store import CommittedGroup


def settle(store: CommittedGroup) -> None:
    """Bring the arrays' own metadata up to date; nothing if somebody is writing just now."""
    files, commit = store._snapshot.files, store._snapshot.commit
    if not stale_array_documents(files, commit):
        return
    try:
        lock = WriterLock(files).acquire()
    except ConflictError:
        return
    try:
        if store.refresh().generation == store.generation:
            write_array_documents(files, commit)
    finally:
        lock.release()
