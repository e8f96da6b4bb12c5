"""Search results as files: Parquet, Zarr or NumPy's npz, by the ending of the name.

Parquet has one row for each find, with columns query, rank, id, row and distance. Zarr and npz hold
the arrays of the result: ``rows``, ``distances`` and ``ids``, (queries, k), or in one dimension
with ``lims`` for a search within a radius. Text ids are stored by npz and Parquet. All three have
checksums; pyarrow looks at those of Parquet if told to (``page_checksum_verification=True``).

Search from stores and files: queries as codes, or as features that are hashed first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.compute.run import heard_in
from sadih_dask.compute.search import search
from sadih_dask.errors import Argument, ConflictError, FormatError, InputError, Remedy, require
from sadih_dask.files.file import is_file
from sadih_dask.files.filesystem import write_atomically
from sadih_dask.ingest.inputs import open_rows
from sadih_dask.jobs.inspect import open_store
from sadih_dask.model.collections import in_memory
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.inputs import check_columns
from sadih_dask.retrieval.codes import pack
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.types import Array, Bytes, Floats

ENDINGS = (".parquet", ".zarr", ".npz")


def write_results(
    result: Neighbours | WithinRadius,
    path: str | os.PathLike[str],
    *,
    query_ids: Array | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a search result, whole or not at all, and return its path.

    ``query_ids`` name the queries; by default they are their row numbers.
    """
    target = Path(path)
    check_target(target, overwrite=overwrite)
    if query_ids is not None and len(query_ids) != len(result):
        raise InputError(f"{len(query_ids)} query ids were given for {len(result)} queries")
    write = {".parquet": _write_parquet, ".zarr": _write_zarr, ".npz": _write_npz}[target.suffix]
    write_atomically(target, lambda scratch: write(result, scratch, query_ids))
    return target


def _arrays(result: Neighbours | WithinRadius, query_ids: Array | None) -> dict[str, Array]:
    arrays = {"rows": result.rows, "distances": result.distances, "ids": result.ids}
    if isinstance(result, WithinRadius):
        arrays |= {"lims": result.lims, "radius": np.asarray(result.radius)}
    return arrays if query_ids is None else arrays | {"query_ids": np.asarray(query_ids)}


def _write_npz(result: Neighbours | WithinRadius, path: Path, query_ids: Array | None) -> None:
    arrays: dict[str, Any] = {**_arrays(result, query_ids)}
    with path.open("xb") as file:
        np.savez(file, **arrays)


def _write_zarr(result: Neighbours | WithinRadius, path: Path, query_ids: Array | None) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    arrays = _arrays(result, query_ids)
    for name, array in arrays.items():
        if array.dtype.kind not in "iu":
            raise InputError(
                f"{name} are text, for which Zarr has no settled type; write .parquet or .npz"
            )
    group = zarr.create_group(path)
    for name, array in arrays.items():
        group.create_array(name, data=array, compressors=[ZstdCodec(), Crc32cCodec()])


def _write_parquet(result: Neighbours | WithinRadius, path: Path, query_ids: Array | None) -> None:
    arrow = require("pyarrow", "writing Parquet")
    parquet = require("pyarrow.parquet", "writing Parquet")
    columns = {name: _column(values) for name, values in result.columns(query_ids).items()}
    parquet.write_table(arrow.table(columns), path, compression="zstd", write_page_checksum=True)


def _column(values: Array) -> Any:
    """Values as Arrow takes them; fixed-width text becomes a list."""
    return values.tolist() if values.dtype.kind in "SU" else values


@dataclass(frozen=True, eq=False)
class Queries:
    """Packed codes, the names of the queries if they have any, and real-valued scores if wanted."""

    codes: Bytes | CodeStore
    ids: Array | None = None
    projections: Floats | None = None


def open_queries(
    url: str, codes: CodeStore, model: Hasher | None = None, *, symmetric: bool = False
) -> Queries:
    """Open what is to be looked up among ``codes``.

    Without a model it is a code store of the same model. With one it is a feature store, or a file
    of features (one vector in a .npy file is one query), which are hashed here; their scores weight
    the bits, unless ``symmetric``.
    """
    if model is None:
        return _from_codes(url)
    model.check_codes(codes)
    features, ids = _features(url, model)
    if not symmetric:
        scores = in_memory(model.project(features))
        return Queries(pack(scores), ids, scores)
    return Queries(in_memory(model.transform(features)), ids)


_GIVE_MODEL = Remedy("Give the model that hashes them ({})", Argument("model"))


def _from_codes(url: str) -> Queries:
    if is_file(url):
        raise InputError(f"{url} holds features", remedy=_GIVE_MODEL)
    store = open_store(url)
    if not isinstance(store, CodeStore):
        raise InputError(f"{url} is a feature store", remedy=_GIVE_MODEL)
    return Queries(store, store.read("ids") if "ids" in store.arrays else None)


def _features(url: str, model: Hasher) -> tuple[FeatureStore | Array, Array | None]:
    if url.endswith(".npy"):
        found = _load(Path(url))
        return found[None] if found.ndim == 1 else found, None
    if is_file(url):
        rows, ids = open_rows(url)
        check_columns(model, rows, url)
        return rows.read(0, rows.n_rows), ids
    store = open_store(url)
    if not isinstance(store, FeatureStore):
        raise InputError(f"{url} is a code store, which needs no hashing; leave out the model")
    return store, store.read("ids") if "ids" in store.arrays else None


def _load(path: Path) -> Array:
    try:
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{path} is no .npy file of numbers ({error})") from error
    return found


def look_up(
    codes: CodeStore,
    queries: Queries,
    k: int,
    radius: int | None,
    *,
    max_results: int,
    where: Sequence[str] = (),
) -> Neighbours | WithinRadius:
    """Find the ``k`` nearest, or all within a radius, where conditions are met if there are any.

    A condition is "column=value". Several of one column are met by any of its values, those of
    several columns by all of them.
    """
    values: dict[str, list[str]] = {}
    for condition in where:
        column, equals, value = condition.partition("=")
        if not equals:
            raise InputError(f"{condition!r} is no condition; write column=value, as label=cat")
        values.setdefault(column.strip(), []).append(value.strip())
    meant = {column: found if len(found) > 1 else found[0] for column, found in values.items()}
    given: dict[str, Any] = {"bitorder": "little", "progress": heard_in(codes.n_rows)}
    given["where"] = meant or None
    if radius is not None:
        return search(codes, queries.codes, radius=radius, max_results=max_results, **given)
    return search(codes, queries.codes, k, projections=queries.projections, **given)


def check_target(path: Path, *, overwrite: bool, endings: tuple[str, ...] = ENDINGS) -> None:
    """Refuse a place for results before they are computed, not after."""
    if endings and path.suffix not in endings:
        raise InputError(f"{path} must end in one of {', '.join(endings)}, which says the format")
    if path.suffix == ".parquet":
        require("pyarrow", "writing Parquet")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; create it first")
    if path.exists() and not overwrite:
        raise ConflictError(
            f"{path} is there already",
            remedy=Remedy(
                "Choose another name, or replace it with {}", Argument("overwrite", True)
            ),
        )


def first_finds(result: Neighbours | WithinRadius, query: int) -> tuple[Any, Any]:
    """Ids and distances of one query, nearest first."""
    if isinstance(result, WithinRadius):
        return result.of(query)
    return result.ids[query], result.distances[query]
