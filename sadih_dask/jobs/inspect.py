"""What a store or a model file is, as data: shape, size, classes, integrity, how far it has got.

Only labels are read, chunk by chunk; everything else comes from metadata. Reading a chunk checks
it, so afterwards the labels are known to be intact; of the rest only `verify` can say so.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sadih_dask.errors import FormatError, InputError, IntegrityError
from sadih_dask.files.file import is_file, locate
from sadih_dask.files.filesystem import Files, LocalFiles, connect
from sadih_dask.ingest.provenance import Provenance, provenance_of
from sadih_dask.model.model_file import Model, read_model
from sadih_dask.stores.codes import CodeStore
from sadih_dask.stores.features import FeatureStore
from sadih_dask.stores.root import ATTRIBUTE, ROOT, ROOT_LIMIT, Root, load_json, read_root
from sadih_dask.stores.store import Store

MAX_GROUPS = 1 << 20
"""Label groups that are told apart; of more than these it is only said that there are more."""
_NOT_SHOWN = ("class_names", "covers")
_KINDS: dict[str, type[FeatureStore] | type[CodeStore]] = {
    FeatureStore.kind: FeatureStore,
    CodeStore.kind: CodeStore,
}


@dataclass(frozen=True)
class ArrayDescription:
    """One array: shape, type and bytes before compression."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


@dataclass(frozen=True)
class LabelDescription:
    """Classes in order with their rows, and label groups: rows that have just the same labels.

    n_groups is a lower bound if `more_groups`; the largest group is then not known.
    """

    multi_label: bool
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    labels_per_row: float
    n_unlabelled: int
    n_groups: int
    largest_group: tuple[str, ...]
    largest_group_rows: int
    more_groups: bool = False


@dataclass(frozen=True)
class StoreDescription:
    """A feature or code store.

    segments      rows, deleted rows and path of each; the paths are for other Zarr tools
    unfinished    who has begun to write rows that are not committed
    kept          former generations that can still be read or restored
    stored_bytes  bytes of its chunks on disk, None where counting them would cost requests
    verified      arrays that were read, and so checked, for this description
    attributes    what else the store says about itself
    """

    kind: str
    url: str
    complete: bool
    n_rows: int
    arrays: tuple[ArrayDescription, ...]
    chunk_rows: int
    compression: str
    segments: tuple[tuple[int, int, str], ...]
    unfinished: tuple[str, ...]
    generation: int
    kept: tuple[int, ...]
    stored_bytes: int | None
    checksums: str
    verified: tuple[str, ...]
    labels: LabelDescription | None
    n_source_files: int | None
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class ModelDescription:
    """A model file."""

    kind: str
    url: str
    stored_bytes: int
    method: str
    n_bits: int
    n_features: int
    n_classes: int
    n_groups: int
    multi_label: bool
    fingerprint: str
    parameters: Mapping[str, Any]
    n_rows_learned: int | None
    learned_from: str | None
    n_forgotten: int


def inspect(url: str | os.PathLike[str]) -> StoreDescription | ModelDescription:
    """Describe whatever of ours lies at a path or URL."""
    if is_file(url):
        with locate(url).open() as file:
            if not file.read(4).startswith(b"PK"):
                raise IntegrityError(
                    f"{os.fspath(url)} is damaged or not a sadih-model. Files of rows have to be "
                    "ingested into a store first"
                )
            size = file.seek(0, os.SEEK_END)
        return _describe_model(os.fspath(url), size, read_model(url))
    files = connect(url, follow_links=False)
    if isinstance(files, LocalFiles) and not files.root.exists():
        raise InputError(f"{files.url} does not exist")
    kind = _kind_of(files)
    root, _ = read_root(files, kind.kind)
    if not root.segments:
        return _describe(files, root, None, None)
    store = kind.open(url)
    if not isinstance(store, FeatureStore):
        return _describe(files, root, None, None)
    return _describe(files, root, _describe_labels(store), provenance_of(store))


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open a store of either kind."""
    return _kind_of(connect(url, follow_links=False)).open(url)


def _kind_of(files: Files) -> type[FeatureStore] | type[CodeStore]:
    try:
        document = load_json(files.read(ROOT, ROOT_LIMIT), f"{files.url}: {ROOT}")
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{files.url} is neither a store (it has no {ROOT}) nor a model file. Check "
            "the path; files of rows have to be ingested into a store first"
        ) from None
    attributes = document.get("attributes")
    record = attributes.get(ATTRIBUTE) if isinstance(attributes, Mapping) else None
    kind = record.get("format") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FormatError(
            f"{files.url} is no store of this package, or its {ROOT} is damaged: its format is "
            f"{str(kind)[:40]!r}, expected {' or '.join(_KINDS)}. Ingest it into a store first"
        )
    return _KINDS[kind]


def _describe(
    files: Files, root: Root, labels: LabelDescription | None, record: Provenance | None
) -> StoreDescription:
    layouts = root.layouts(root.chunk_rows, root.compression)
    return StoreDescription(
        kind=root.kind,
        url=files.url,
        complete=bool(root.segments),
        n_rows=root.n_rows,
        arrays=tuple(
            ArrayDescription(
                name, (root.n_rows, *item.row_shape), item.dtype, root.n_rows * item.row_bytes
            )
            for name, item in layouts.items()
        ),
        chunk_rows=root.chunk_rows,
        compression=root.compression,
        segments=tuple((s.n_rows, s.n_rows - s.n_live, s.foreign or s.path) for s in root.segments),
        unfinished=tuple(entry.by for entry in root.pending),
        generation=root.generation,
        kept=tuple(generation for generation, _ in root.history),
        stored_bytes=_stored_bytes(files, root),
        checksums="crc32c of every chunk, and the same in a manifest",
        verified=() if labels is None else ("labels",),
        labels=labels,
        n_source_files=None if record is None else len(record.marks),
        attributes={k: v for k, v in root.properties.items() if k not in _NOT_SHOWN},
    )


def _stored_bytes(files: Files, root: Root) -> int | None:
    if not isinstance(files, LocalFiles):
        return None
    folders = [f"{segment.path}/{name}" for segment in root.segments for name in root.arrays]
    return sum(size for folder in folders for size in files.sizes(folder).values())


def _describe_labels(store: FeatureStore) -> LabelDescription | None:
    """Count classes and label groups, chunk by chunk."""
    if "labels" not in store.arrays:
        return None
    shape, names = store.shape("labels"), store.class_names
    multi_label = len(shape) == 2
    counts: Counter[int] = Counter()
    groups: Counter[bytes] = Counter()
    more = False
    for _, block in store.blocks("labels"):
        if not multi_label:
            counts.update(dict(zip(*_counted(block), strict=True)))
            continue
        counts.update(dict(enumerate(block.sum(axis=0, dtype=np.int64).tolist())))
        if not more:
            groups.update(_label_sets(block))
            more = len(groups) > MAX_GROUPS
    n_columns = shape[1] if multi_label else max([-1, *counts]) + 1
    names = names or tuple(map(str, range(n_columns)))
    if multi_label:
        largest, rows = b"", 0
        if groups and not more:
            largest, rows = max(groups.items(), key=lambda item: (item[1], item[0]))
        members = np.flatnonzero(np.unpackbits(np.frombuffer(largest, np.uint8))[: len(names)])
    else:
        first, rows = max(counts.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
        members = np.arange(first, min(first + 1, len(names)))
    return LabelDescription(
        multi_label=multi_label,
        class_names=names,
        class_counts=tuple(counts[k] for k in range(len(names))),
        labels_per_row=counts.total() / store.n_rows if store.n_rows else 0.0,
        n_unlabelled=sum(rows for labels, rows in groups.items() if not any(labels)),
        n_groups=len(groups) if multi_label else len(counts),
        largest_group=tuple(names[k] for k in members),
        largest_group_rows=rows,
        more_groups=more,
    )


def _counted(block: Any) -> tuple[list[int], list[int]]:
    values, counts = np.unique(block, return_counts=True)
    return values.tolist(), counts.tolist()


def _label_sets(block: Any) -> dict[bytes, int]:
    """Return the rows of each distinct label set, which is named by its packed bits."""
    packed = np.packbits(block, axis=1)
    keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    sets, counts = np.unique(keys, return_counts=True)
    return {key.tobytes(): count for key, count in zip(sets, counts.tolist(), strict=True)}


def _describe_model(url: str, stored_bytes: int, model: Model) -> ModelDescription:
    coverage = model.coverage
    statistics = model.statistics
    return ModelDescription(
        kind="sadih-model",
        url=url,
        stored_bytes=stored_bytes,
        method=model.method,
        n_bits=model.hash_function.n_bits,
        n_features=model.n_features_in,
        n_classes=len(model.classes),
        n_groups=model.groups.n_groups,
        multi_label=model.multi_label,
        fingerprint=model.fingerprint,
        parameters=model.parameters,
        n_rows_learned=None if statistics is None else int(statistics.counts.sum()),
        learned_from=None if coverage is None else coverage.url,
        n_forgotten=0 if coverage is None else len(coverage.forgotten),
    )
