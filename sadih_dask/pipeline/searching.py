"""Search from stores and files: queries as codes, or as features that are hashed first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sadih_dask.arrays import Array, Bytes, Floats
from sadih_dask.compute.encode import computed
from sadih_dask.compute.running import Progress, is_lazy
from sadih_dask.compute.search import search
from sadih_dask.errors import ConflictError, FormatError, InputError
from sadih_dask.estimator import SADIH
from sadih_dask.retrieval.nearest import Neighbours, WithinRadius
from sadih_dask.storage import CodeStore, FeatureStore
from sadih_dask.storage.inspect import open_store
from sadih_dask.storage.results import ENDINGS


@dataclass(frozen=True, eq=False)
class Queries:
    """Packed codes, the names of the queries if they have any, and real-valued scores if wanted."""

    codes: Bytes | CodeStore
    ids: Array | None = None
    projections: Floats | None = None


def open_queries(
    url: str, codes: CodeStore, model: SADIH | None = None, *, projections: bool = False
) -> Queries:
    """Open what is to be looked up among ``codes``.

    Without a model it is a code store of the same model. With one it is a feature store or a .npy
    file of features, which are hashed here.
    """
    if model is None:
        if projections:
            raise InputError("re-ranking needs the scores of features: give the model and features")
        return _from_codes(url)
    if codes.model != model.fingerprint_:
        raise InputError(
            f"{codes.url} holds codes of model {codes.model!r}, and this is model "
            f"{model.fingerprint_!r}; codes of two models cannot be compared"
        )
    features, ids = _features(url)
    scores = model.project(_in_memory(features)) if projections else None
    hashed = model.transform(features)
    return Queries(computed(hashed) if is_lazy(hashed) else hashed, ids, scores)


def _from_codes(url: str) -> Queries:
    if url.endswith(".npy"):
        raise InputError(f"{url} holds features; give the model that hashes them (--model)")
    store = open_store(url)
    if not isinstance(store, CodeStore):
        raise InputError(f"{url} is a feature store; give the model that hashes it (--model)")
    return Queries(store, store.read("ids") if "ids" in store.arrays else None)


def _features(url: str) -> tuple[FeatureStore | Array, Array | None]:
    if url.endswith(".npy"):
        return _load(Path(url)), None
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


def _in_memory(features: FeatureStore | Array) -> Array:
    return features.read("features") if isinstance(features, FeatureStore) else features


def look_up(
    codes: CodeStore,
    queries: Queries,
    k: int,
    radius: int | None,
    *,
    max_results: int,
    progress: Progress | None = None,
) -> Neighbours | WithinRadius:
    """Find the ``k`` nearest, or all within a radius."""
    if radius is not None:
        return search(
            codes, queries.codes, radius=radius, max_results=max_results, progress=progress
        )
    return search(codes, queries.codes, k, projections=queries.projections, progress=progress)


def check_target(path: Path, *, overwrite: bool, endings: tuple[str, ...] = ENDINGS) -> None:
    """Refuse a place for results before they are computed, not after."""
    if endings and path.suffix not in endings:
        raise InputError(f"{path} must end in one of {', '.join(endings)}, which says the format")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder; create it first")
    if path.exists() and not overwrite:
        raise ConflictError(f"{path} is there already; replace it with overwrite=True")


def first_finds(result: Neighbours | WithinRadius, query: int) -> tuple[Any, Any]:
    """Ids and distances of one query, nearest first."""
    if isinstance(result, WithinRadius):
        return result.of(query)
    return result.ids[query], result.distances[query]
