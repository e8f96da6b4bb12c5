"""Synthetic labelled features of any size: Gaussian clouds about one centre for every class.

Rows are made in blocks of fixed length, each from random numbers of its own, seeded by the seed
of the whole and the number of the block. So a store has the same rows whatever its chunks are,
however many workers wrote it, and whether or not it was interrupted; and a longer store begins
with the rows of a shorter one. Queries have the centres of the database and random numbers of
their own.

Normal numbers are looked up in a table of 65,536 quantiles, which is several times faster than to
compute them: then the disk is what takes the time. The largest is 4.3.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import ndtri

from sadih_dask.compute.run import Progress, in_rows, reporting
from sadih_dask.compute.tree import fill
from sadih_dask.errors import FormatError, IncompleteError, InputError
from sadih_dask.stores import FeatureStore
from sadih_dask.stores.features import FeatureWriter
from sadih_dask.stores.segment import Digests
from sadih_dask.types import Array, FloatType

SEEDED_ROWS = 1024
"""Rows that come from the same random numbers."""
MOST_LABELS = 3
"""Labels of a row with several."""

Part: TypeAlias = Literal["database", "queries"]
_STREAMS = {"centres": 0, "database": 1, "queries": 2}
_QUANTILES = 1 << 16


@dataclass(frozen=True)
class Clouds:
    """The distribution that rows are drawn from.

    spread  distance of the class centres from the middle, in standard deviations of a cloud
    part    queries are other rows of the same clouds
    """

    n_features: int
    n_classes: int
    dtype: FloatType = "float32"
    seed: int = 0
    multi_label: bool = False
    spread: float = 1.0
    part: Part = "database"

    @cached_property
    def centres(self) -> Array:
        """Class centres, (classes, features)."""
        rng = self._random("centres")
        return self.spread * rng.standard_normal(
            (self.n_classes, self.n_features), dtype=np.float32
        )

    def rows(self, start: int, stop: int) -> tuple[Array, Array]:
        """Features and labels of rows ``start`` to ``stop``."""
        features = np.empty((stop - start, self.n_features), self.dtype)
        shape = (stop - start, self.n_classes) if self.multi_label else (stop - start,)
        labels = np.empty(shape, np.uint8 if self.multi_label else np.int64)
        for block in range(start // SEEDED_ROWS, -(-stop // SEEDED_ROWS)):
            first = block * SEEDED_ROWS
            here = slice(max(start, first), min(stop, first + SEEDED_ROWS))
            part, place = (slice(here.start - o, here.stop - o) for o in (first, start))
            x, y = self._block(block)
            features[place], labels[place] = x[part], y[part]
        return features, labels

    def _block(self, block: int) -> tuple[Array, Array]:
        """Features and labels of one block."""
        rng = self._random(self.part, block)
        features = np.empty((SEEDED_ROWS, self.n_features), np.float32)
        _fill_with_normal(features.reshape(-1), rng)
        if not self.multi_label:
            labels = rng.integers(self.n_classes, size=SEEDED_ROWS)
            features += self.centres[labels]
            return features, labels
        ranks = rng.random((SEEDED_ROWS, self.n_classes)).argsort(axis=1)
        size = rng.integers(1, min(MOST_LABELS, self.n_classes) + 1, size=(SEEDED_ROWS, 1))
        labels = (ranks < size).astype(np.uint8)
        features += (labels / np.sqrt(size)).astype(np.float32) @ self.centres
        return features, labels

    def _random(self, stream: str, block: int = 0) -> np.random.Generator:
        key = (_STREAMS[stream], block)
        return np.random.Generator(
            np.random.SFC64(np.random.SeedSequence(self.seed, spawn_key=key))
        )


@cache
def _table() -> Array:
    """Return the middles of 65,536 equally likely parts of a normal distribution."""
    return ndtri((np.arange(_QUANTILES) + 0.5) / _QUANTILES).astype(np.float32)


def _fill_with_normal(out: Array, rng: np.random.Generator) -> None:
    """Fill a flat float32 array with normal numbers; sixteen random bits choose each."""
    words = rng.integers(2**64 - 1, size=-(-len(out) // 4), dtype=np.uint64, endpoint=True)
    np.take(_table(), words.view(np.uint16)[: len(out)], out=out, mode="clip")


def generate(
    url: str | os.PathLike[str],
    n_rows: int,
    n_features: int,
    n_classes: int,
    *,
    dtype: FloatType = "float32",
    seed: int = 0,
    multi_label: bool = False,
    spread: float = 1.0,
    part: Part = "database",
    progress: Progress | None = None,
    **storage: Any,
) -> FeatureStore:
    """Write a store of random rows, in parallel; the same call completes one that was interrupted.

    One that is finished is opened. ``part="queries"`` draws other rows from the same clouds.
    ``progress`` hears of rows. ``storage`` are further options of `FeatureStore.allocate`:
    chunk_rows, compression, overwrite, storage_options; a store of other rows is only replaced
    with ``overwrite``.
    """
    for name, value in (("rows", n_rows), ("features", n_features), ("classes", n_classes)):
        if value < 1:
            raise InputError(f"the number of {name} is {value}; it must be at least 1")
    if part not in ("database", "queries"):
        raise InputError(f"part must be 'database' or 'queries', got {part!r}")
    clouds = Clouds(n_features, n_classes, dtype, seed, multi_label, spread, part)
    if (store := _finished(url, n_rows, clouds, storage)) is not None:
        return store
    writer = FeatureStore.allocate(
        url,
        n_rows,
        n_features,
        dtype=dtype,
        n_labels=n_classes if multi_label else None,
        source=_describe(clouds),
        **storage,
    )
    n_before = (writer.n_blocks - len(writer.missing())) * writer.block_rows
    with reporting(in_rows(min(n_before, n_rows), n_rows, progress)):
        fill(writer, _write_block, clouds)
    return writer.finalise()


def _finished(
    url: str | os.PathLike[str], n_rows: int, clouds: Clouds, storage: dict[str, Any]
) -> FeatureStore | None:
    """Return the store of just these rows, in chunks as they are wanted, if it is there."""
    try:
        found = FeatureStore.open(url, storage_options=storage.get("storage_options"))
    except (FormatError, IncompleteError):
        return None
    fits = storage.get("chunk_rows") in (None, found.new_chunk_rows)
    fits = fits and storage.get("compression") in (None, found.compression)
    same = (found.source, found.n_rows) == (_describe(clouds), n_rows)
    return found if same and fits else None


def _describe(clouds: Clouds) -> str:
    return f"synthetic: {clouds}"


def _write_block(writer: FeatureWriter, block: int, clouds: Clouds) -> Digests:
    start, stop = writer.rows_of(block)
    return writer.write(start, *clouds.rows(start, stop))
