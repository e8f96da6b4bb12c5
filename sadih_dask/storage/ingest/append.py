"""Further rows for a finished store, in one commit; files that it has already are passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sadih_dask.errors import InputError, LabelError
from sadih_dask.storage.features import FeatureStore
from sadih_dask.storage.files import Files
from sadih_dask.storage.ingest.feed import Feed, select
from sadih_dask.storage.ingest.inputs import DataFiles, Inputs, open_inputs, parts_of
from sadih_dask.storage.ingest.provenance import PROPERTY, Provenance
from sadih_dask.storage.ingest.space import check_space

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Appended:
    """What was added, and how many of the files were passed over."""

    n_new: int
    n_dropped: int
    n_files: int
    n_passed_over: int


def append_files(
    store: FeatureStore,
    place: Files,
    files: DataFiles,
    fixed: Mapping[str, str | int | None],
    progress: Progress | None,
) -> Appended:
    """Add the rows of files that the store does not have, all or none; `store` looks at them then.

    `fixed` is what the caller wants of things that cannot change any more: it is only compared.
    """
    known = Provenance.from_properties(store.properties, store.url) or Provenance("", ())
    _check_fixed(store, fixed)
    inputs = open_inputs(files, store.class_names if "labels" in store.arrays else None)
    _check_form(store, inputs)
    parts = parts_of(inputs.features)
    new = known.new_among(parts)
    ends = np.cumsum([part.n_rows for part in parts]).tolist()
    ranges = [
        (end - part.n_rows, end)
        for part, end, is_new in zip(parts, ends, new, strict=True)
        if is_new
    ]
    passed_over = len(new) - len(ranges)
    if not ranges:
        return Appended(0, 0, len(new), passed_over)
    selection = select(inputs, files.unlabelled, ranges)
    dtype = store.dtype("features").name
    added = Provenance.of(inputs, dtype, files.reading_options)
    marks = (mark for mark, is_new in zip(added.marks, new, strict=True) if is_new)
    record = known.followed_by(replace(added, marks=tuple(marks)))
    n_bytes = selection.n_rows * _row_bytes(store)
    check_space(place, n_bytes, store.compression, replaced=False)
    arrays = Feed(inputs, selection, dtype).arrays(progress)
    store.append(
        **arrays,
        at=store.n_rows,
        class_names=None if inputs.labels is None else inputs.labels.class_names,
        properties={PROPERTY: record.to_property()},
    )
    if progress is not None:
        progress(selection.n_rows, selection.n_rows)
    return Appended(selection.n_rows, selection.n_dropped, len(new), passed_over)


def _row_bytes(store: FeatureStore) -> int:
    return sum(
        store.dtype(name).itemsize * int(np.prod(store.shape(name)[1:])) for name in store.arrays
    )


def _check_fixed(store: FeatureStore, fixed: Mapping[str, str | int | None]) -> None:
    found = {
        "dtype": store.dtype("features").name,
        "chunk_rows": store.chunk_rows,
        "compression": store.compression,
    }
    for name, wanted in fixed.items():
        if wanted is not None and wanted != found[name]:
            raise InputError(
                f"{store.url} has {name}={found[name]!r}, and appending cannot change that; got "
                f"{name}={wanted!r}. Leave it out, or ingest all files anew"
            )


def _check_form(store: FeatureStore, inputs: Inputs) -> None:
    """Refuse rows that are of another form than those of the store."""
    if set(inputs.sources) != set(store.arrays):
        raise InputError(
            f"{store.url} has {', '.join(store.arrays)}; {', '.join(inputs.sources)} were given. "
            "New rows need the same"
        )
    features, labels, thumbnails = inputs.features, inputs.labels, inputs.thumbnails
    if features.width != store.n_features:
        raise InputError(
            f"{features.describe()}: rows have {features.width} features, those of {store.url} "
            f"have {store.n_features}"
        )
    if labels is not None and labels.multi_label != (len(store.shape("labels")) == 2):
        kinds = ("one label a row", "several labels a row")
        raise LabelError(
            f"{labels.describe()}: has {kinds[labels.multi_label]}, {store.url} has "
            f"{kinds[not labels.multi_label]}. Use one form throughout"
        )
    if thumbnails is not None and thumbnails.row_shape != store.shape("thumbnails")[1:]:
        raise InputError(
            f"{thumbnails.describe()}: {store.url} has thumbnails of shape "
            f"{store.shape('thumbnails')[1:]}. Resize them"
        )
