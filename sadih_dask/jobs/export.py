"""Codes as files that other programs search: FAISS, usearch, Parquet, NumPy, and text of bits.

Codes are copied block by block. Parquet and text have a column of ids; an index knows integers
only: the ids where these are integers, else row numbers, and ids that are text lie beside it in a
file (``INDEX.ids.npy``), row by row. Indexes are built in memory, as their libraries keep them.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from sadih_dask.errors import Argument, IncompleteError, InputError, Remedy, require
from sadih_dask.files.filesystem import write_atomically
from sadih_dask.retrieval.codes import check_bitorder, reorder, unpack
from sadih_dask.stores.codes import CodeStore
from sadih_dask.types import Array, BitOrder, Bytes, IndexKind

Form: TypeAlias = Literal["faiss", "usearch", "parquet", "npy", "csv"]
Progress: TypeAlias = Callable[[int, int], None]
ENDINGS: dict[str, Form] = {
    ".parquet": "parquet",
    ".npy": "npy",
    ".csv": "csv",
    ".usearch": "usearch",
}
"""Forms that the ending of a name says; any other name is an index of FAISS."""
BLOCK_ROWS = 1 << 18
SEED = 0
SAMPLE_PER_LIST = 64
"""Codes that each list of an inverted file is trained on; FAISS asks for 39 at least."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and the one beside it with the ids, if these are not inside."""

    path: Path
    form: Form
    ids: Path | None = None


@dataclass(frozen=True, eq=False)
class _Codes:
    """The codes of a store on their way into a file."""

    store: CodeStore
    bitorder: BitOrder
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_bitorder(self.bitorder)
        if self.store.n_rows == 0:
            raise InputError(f"{self.store.url} has no codes to export")

    @property
    def id_kind(self) -> str | None:
        """Return "i" for integers, "U" or "S" for text, None if rows have no ids."""
        return self.store.dtype("ids").kind if "ids" in self.store.arrays else None

    @property
    def n_bytes(self) -> int:
        """Return the bytes of a code."""
        return self.store.shape("codes")[1]

    def blocks(self, first: int = 0) -> Iterator[tuple[Bytes, Array]]:
        """Yield codes from a row on, in the bit order that is wanted, and ids, or row numbers."""
        store = self.store
        step = max(1, BLOCK_ROWS // store.chunk_rows) * store.chunk_rows
        for start in range(first, store.n_rows, step):
            stop = min(start + step, store.n_rows)
            codes = reorder(store.read("codes", start, stop), store.bitorder, self.bitorder)
            ids = store.read("ids", start, stop) if self.id_kind else np.arange(start, stop)
            yield codes, ids
            if self.progress is not None:
                self.progress(stop, store.n_rows)

    def write_ids(self, path: Path) -> Path:
        """Write the ids beside a file that has no place for them."""
        target, ids = path.with_name(f"{path.name}.ids.npy"), self.store.dtype("ids")
        blocks = (block.astype(ids) for _, block in self.store.blocks("ids"))
        _put(target, lambda scratch: _write_npy(scratch, (self.store.n_rows,), ids, blocks))
        return target


def export(
    store: CodeStore,
    path: str | os.PathLike[str],
    form: Form | None = None,
    *,
    bitorder: BitOrder = "little",
    progress: Progress | None = None,
    **index: Any,
) -> Exported:
    """Write the codes of a store in a form that other programs read.

    ``form`` follows from the ending of the name: .parquet (columns ``id`` and ``code``, a binary of
    fixed size; bit order and length in the metadata of the schema), .npy (packed codes, ids
    beside), .csv (``id`` and ``code`` as text of 0 and 1, as ``bit(n)`` of PostgreSQL takes it; bit
    0 comes first), .usearch, and otherwise an index of FAISS, whose further arguments are those of
    `export_faiss`. ``bitorder`` is how bits are packed into bytes: queries have to be, too.
    """
    target = Path(path)
    found = form or ENDINGS.get(target.suffix, "faiss")
    codes = _Codes(store, bitorder, progress)
    if found == "faiss":
        export_faiss(store, target, bitorder=bitorder, progress=progress, **index)
    elif index := {name: value for name, value in index.items() if value is not None}:
        raise InputError(f"{', '.join(index)}: of an index of FAISS, and {target} is none")
    elif found in _WRITERS:
        _put(target, lambda scratch: _WRITERS[found](codes, scratch))
    else:
        raise InputError(f"form must be one of faiss, {', '.join(_WRITERS)}; got {found!r}")
    inside = found in ("parquet", "csv") or (found != "npy" and codes.id_kind == "i")
    beside = None if inside or codes.id_kind is None else codes.write_ids(target)
    return Exported(target, found, beside)


def _parquet(codes: _Codes, scratch: Path) -> None:
    arrow = require("pyarrow", "writing Parquet")
    parquet = require("pyarrow.parquet", "writing Parquet")
    about = {"n_bits": codes.store.n_bits, "bitorder": codes.bitorder, "model": codes.store.model}
    named = {"U": arrow.string(), "S": arrow.binary()}.get(codes.id_kind or "", arrow.int64())
    packed = arrow.binary(codes.n_bytes)
    metadata = {"sadih": json.dumps(about)}
    schema = arrow.schema([("id", named), ("code", packed)], metadata=metadata)
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False}
    with parquet.ParquetWriter(scratch, schema, **options) as writer:
        for block, ids in codes.blocks():
            buffers = [None, arrow.py_buffer(np.ascontiguousarray(block))]
            column = arrow.FixedSizeBinaryArray.from_buffers(packed, len(block), buffers)
            names = arrow.array(ids.tolist() if ids.dtype.kind in "US" else ids, named)
            writer.write_table(arrow.table([names, column], schema=schema))


def _numpy(codes: _Codes, scratch: Path) -> None:
    shape = (codes.store.n_rows, codes.n_bytes)
    _write_npy(scratch, shape, np.dtype(np.uint8), (block for block, _ in codes.blocks()))


def _text(codes: _Codes, scratch: Path) -> None:
    n_bits = codes.store.n_bits
    with scratch.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "code"])
        for block, ids in codes.blocks():
            bits = unpack(reorder(block, codes.bitorder, "little"), n_bits) + np.uint8(ord("0"))
            texts = bits.view(f"S{n_bits}").ravel().tolist()
            names = np.strings.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids
            writer.writerows(zip(names.tolist(), map(bytes.decode, texts), strict=True))


def _usearch(codes: _Codes, scratch: Path) -> None:
    usearch = require("usearch.index", "writing an index of usearch")
    index = usearch.Index(ndim=8 * codes.n_bytes, metric="hamming", dtype="b1")
    for block, ids in codes.blocks():
        rows = np.arange(len(index), len(index) + len(block))
        index.add((ids if codes.id_kind == "i" else rows).astype(np.uint64), block)
    scratch.write_bytes(index.save())  # usearch would say little of a disk that is full


_WRITERS: dict[str, Callable[[_Codes, Path], None]] = {
    "parquet": _parquet,
    "npy": _numpy,
    "csv": _text,
    "usearch": _usearch,
}


def _write_npy(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], blocks: Iterable[Array]
) -> None:
    """Write an array whose rows come by and by."""
    header = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with path.open("xb") as file:
        npy_format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).tobytes())


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
    progress: Progress | None = None,
    former: bytes | None = None,
) -> Path:
    """Write the codes of a store as a FAISS index file, and return its path.

    "flat" is ``IndexBinaryFlat`` (exact), "ivf" ``IndexBinaryIVF`` with ``n_lists`` inverted lists
    (default: about the square root of the number of rows) of which a search looks into
    ``n_probe``, and "multihash" ``IndexBinaryMultiHash`` with ``n_hashes`` tables of ``hash_bits``
    bits. With ``ids`` and a store of integer ids, results of the index are those ids, through
    ``IndexBinaryIDMap``; with ids that are text results are row numbers (see `export`).

    ``bitorder`` is that of the index, whatever that of the store: queries have to be packed so, for
    example by ``model.transform(X, bitorder=...)``. FAISS counts in whole bytes: codes of 12 bits
    become an index of 16, the spare ones zero.
    ``progress(done, total)`` counts rows. ``former`` is such a file of the first rows of the store,
    to which the others are added, with the same result. Inverted lists are trained on all rows, so
    that index is always built anew (`grows`).
    """
    faiss = require("faiss", "exporting an index")
    all_codes = _Codes(store, bitorder, progress)
    dimension = 8 * all_codes.n_bytes
    if former is not None and grows(kind):
        index = faiss.deserialize_index_binary(np.frombuffer(former, np.uint8))
    elif kind == "flat":
        index = faiss.IndexBinaryFlat(dimension)
    elif kind == "ivf":
        index = _inverted_file(faiss, store, dimension, n_lists, n_probe)
        index.train(reorder(_sample(store, index.nlist), store.bitorder, bitorder))
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
    named = ids and all_codes.id_kind == "i"
    fresh = not index.ntotal
    target = faiss.IndexBinaryIDMap(index) if named and fresh else index
    for codes, names in all_codes.blocks(index.ntotal):
        if named:
            target.add_with_ids(codes, names)
        else:
            target.add(codes)

    def write(scratch: Path) -> None:
        # Not by name: FAISS passes over an error of closing a file, such as a disk that is full
        with scratch.open("xb") as file:
            faiss.write_index_binary(target, faiss.PyCallbackIOWriter(file.write))

    return _put(Path(path), write)


def grows(kind: str) -> bool:
    """Whether codes added to such an index give the index of all codes."""
    return kind != "ivf"


def _inverted_file(
    faiss: Any, store: CodeStore, dimension: int, n_lists: int | None, n_probe: int
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
    index.cp.seed = SEED
    index.cp.min_points_per_centroid = 1  # small stores get small lists, without a warning
    return index


def _sample(store: CodeStore, n_lists: int) -> Bytes:
    """Rows drawn evenly from the whole store, in order, for lists to be trained on."""
    size = SAMPLE_PER_LIST * n_lists
    rng = np.random.default_rng(SEED)
    rows = np.sort(rng.choice(store.n_rows, min(size, store.n_rows), replace=False))
    return store.take("codes", rows)


def _put(path: Path, write: Callable[[Path], None]) -> Path:
    """Write beside the place and move there: nobody reads half a file."""
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; create it first")
    try:
        write_atomically(path, write)
    except OSError as error:
        raise IncompleteError(
            f"{path} could not be written: {error.strerror or error}. What was there before is "
            "unchanged; remove the cause and repeat the same call"
        ) from error
    return path
