"""From files to a feature store: streaming, resumable, and all checks before the first byte.

Read `inputs` first (files as rows with labels and ids), then `selection` (which rows,
in what type), `provenance` (the state of files), `changes` (what is new since), and `ingestion`.
`synthetic` makes rows up.

Tasks read the files and write a store block by block; a block that is written stays, so the same
call after a kill goes on where it stopped. The plan of the store holds a fingerprint of all
sources, so an ingestion never goes on with files that have changed. Rows are added to a finished
store in one commit, all or none, and an interrupted append goes on likewise; files that are in it
already are passed over. `compare` says beforehand, without reading the files, what is new, changed
or gone.
"""

from __future__ import annotations

from sadih_dask.ingest.changes import Changes, compare
from sadih_dask.ingest.ingestion import Ingested, Mode, ingest
from sadih_dask.ingest.inputs import DataFiles, HoldOut

__all__ = ["Changes", "DataFiles", "HoldOut", "Ingested", "Mode", "compare", "ingest"]
