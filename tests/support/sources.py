"""The same rows in every format that is read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

FORMS = (
    *("npz", "stored.npz", "sparse.npz", "coo.npz", "parquet", "arrow", "arrows", "h5", "mat"),
    *("npy.gz", "fortran.npy", "csv", "zarr"),
)


def npy(array: Any) -> bytes:
    """Return the bytes of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def numbered(first: int, last: int) -> np.ndarray:
    """Return rows that say their numbers."""
    numbers = np.arange(first, last)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32)


def written(form: str, folder: Path) -> Path:
    """Write 300 rows, in most forms with labels, and return the file."""
    rows, labels = numbered(0, 300), np.arange(300) % 3
    path = folder / f"x.{form}"
    if form == "npz":
        np.savez_compressed(path, features=rows, labels=labels)
    elif form == "stored.npz":
        np.savez(path, features=rows, labels=labels)
    elif form == "sparse.npz":
        from scipy import sparse

        sparse.save_npz(path, sparse.csr_array(rows))
    elif form == "coo.npz":
        from scipy import sparse

        sparse.save_npz(path, sparse.coo_array(rows))
    elif form in ("parquet", "arrow", "arrows"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 2)
        table = pa.table({"features": vectors, "labels": labels})
        if form == "parquet":
            pq.write_table(table, path, row_group_size=64)
        else:
            begin = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
            with begin(path, table.schema) as sink:
                sink.write_table(table, max_chunksize=64)
    elif form == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file["features"], file["labels"] = rows, labels
    elif form == "mat":
        from scipy.io import savemat

        savemat(path, {"features": rows, "labels": labels}, do_compression=True)
    elif form == "fortran.npy":
        np.save(path, np.asfortranarray(rows))
    elif form == "csv":
        lines = (f"{a:g},{b:g},{label}" for (a, b), label in zip(rows, labels, strict=True))
        path.write_text("\n".join(["e1,e2,label", *lines]))
    elif form == "npy.gz":
        import gzip

        path.write_bytes(gzip.compress(npy(rows)))
    else:
        import zarr

        zarr.save_group(path, features=rows, labels=labels)
    return path
