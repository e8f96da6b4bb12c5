"""Index files that FAISS reads, made from code stores.

Packed codes are the bytes that FAISS binary indexes take, so exporting is adding them block by
block. The index itself is built in memory, as FAISS keeps it. Items are numbered by their rows;
where the store has integer ids the index has them too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from sadih_dask.errors import Argument, IncompleteError, InputError, Remedy, require
from sadih_dask.files.filesystem import write_atomically
from sadih_dask.retrieval.codes import check_bitorder, reorder
from sadih_dask.stores.codes import CodeStore
from sadih_dask.types import BitOrder, Bytes

IndexKind: TypeAlias = Literal["flat", "ivf", "multihash"]
BLOCK_ROWS = 1 << 18
SAMPLE_PER_LIST = 64
"""Codes that each list of an inverted file is trained on; FAISS asks for 39 at least."""


def export_faiss(
    store: CodeStore,
    path: str | os.PathLike[str],
    kind: IndexKind = "flat",
    *,
    n_lists: int | None = None,
    n_probe: int = 8,
    n_hashes: int = 4,
    hash_bits: int | None = None,
    ids: bool = True,
    bitorder: BitOrder = "little",
    random_state: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the codes of a store as a FAISS index file, and return its path.

    "flat" is ``IndexBinaryFlat`` (exact), "ivf" ``IndexBinaryIVF`` with ``n_lists`` inverted lists
    (default: about the square root of the number of rows) of which a search looks into
    ``n_probe``, and "multihash" ``IndexBinaryMultiHash`` with ``n_hashes`` tables of ``hash_bits``
    bits. With ``ids`` and a store of integer ids, results of the index are those ids, through
    ``IndexBinaryIDMap``; ids that are text stay behind, and results are row numbers.

    ``bitorder`` is that of the index, whatever that of the store: queries have to be packed so, for
    example by ``model.transform(X, bitorder=...)``. FAISS counts in whole bytes: codes of 12 bits
    become an index of 16, the spare ones zero.
    ``progress(done, total)`` counts rows.
    """
    faiss = require("faiss", "exporting an index")
    check_bitorder(bitorder)
    if store.n_rows == 0:
        raise InputError(f"{store.url} has no codes to export")
    dimension = 8 * store.shape("codes")[1]
    if kind == "flat":
        index = faiss.IndexBinaryFlat(dimension)
    elif kind == "ivf":
        index = _inverted_file(faiss, store, dimension, n_lists, n_probe, random_state)
        index.train(reorder(_sample(store, index.nlist, random_state), store.bitorder, bitorder))
    elif kind == "multihash":
        bits = hash_bits or max(1, min(24, dimension // n_hashes))
        if n_hashes < 1 or n_hashes * bits > dimension:
            raise InputError(
                f"{n_hashes} tables of {bits} bits take {n_hashes * bits} bits, and codes have "
                f"{dimension}",
                remedy=Remedy(
                    "Use fewer tables ({}) or shorter keys ({})",
                    Argument("n_hashes"),
                    Argument("hash_bits"),
                ),
            )
        index = faiss.IndexBinaryMultiHash(dimension, n_hashes, bits)
    else:
        raise InputError(f"kind must be 'flat', 'ivf' or 'multihash', got {kind!r}")
    named = ids and "ids" in store.arrays and store.dtype("ids").kind == "i"
    target = faiss.IndexBinaryIDMap(index) if named else index
    step = max(1, BLOCK_ROWS // store.chunk_rows) * store.chunk_rows
    for start in range(0, store.n_rows, step):
        stop = min(start + step, store.n_rows)
        codes = reorder(store.read("codes", start, stop), store.bitorder, bitorder)
        if named:
            target.add_with_ids(codes, store.read("ids", start, stop))
        else:
            target.add(codes)
        if progress is not None:
            progress(stop, store.n_rows)
    return _write(faiss, target, Path(path))


def _inverted_file(
    faiss: Any,
    store: CodeStore,
    dimension: int,
    n_lists: int | None,
    n_probe: int,
    random_state: int,
) -> Any:
    """An inverted file whose lists are to be trained."""
    lists = n_lists or max(1, min(int(store.n_rows**0.5), 1 << 16))
    if not 1 <= lists <= store.n_rows:
        raise InputError(
            f"{lists} inverted lists for {store.n_rows} codes",
            remedy=Remedy("Use fewer ({})", Argument("n_lists")),
        )
    quantizer = faiss.IndexBinaryFlat(dimension)
    index = faiss.IndexBinaryIVF(quantizer, dimension, lists)
    quantizer.this.disown()  # the index frees it
    index.own_fields = True
    index.nprobe = min(n_probe, lists)
    index.cp.seed = random_state
    index.cp.min_points_per_centroid = 1  # small stores get small lists, without a warning
    return index


def _sample(store: CodeStore, n_lists: int, random_state: int) -> Bytes:
    """Rows drawn evenly from the whole store, in order, for lists to be trained on."""
    size = SAMPLE_PER_LIST * n_lists
    rng = np.random.default_rng(random_state)
    rows = np.sort(rng.choice(store.n_rows, min(size, store.n_rows), replace=False))
    return store.take("codes", rows)


def _write(faiss: Any, index: Any, path: Path) -> Path:
    """Write beside the place and move there: nobody reads half an index."""
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; create it first")

    def write(scratch: Path) -> None:
        # Not by name: FAISS passes over an error of closing a file, such as a disk that is full
        with scratch.open("xb") as file:
            faiss.write_index_binary(index, faiss.PyCallbackIOWriter(file.write))

    try:
        write_atomically(path, write)
    except OSError as error:
        raise IncompleteError(
            f"{path} could not be written: {error.strerror or error}. What was there before is "
            "unchanged; remove the cause and repeat the same call"
        ) from error
    return path
