"""Rows, stores and what is compared about models that were trained out of core."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from sadih_dask import SADIH
from sadih_dask.learning.statistics import Statistics
from sadih_dask.model.model_file import write_model
from sadih_dask.stores import reader

Array = NDArray[Any]
FAST: dict[str, Any] = {"n_bits": 16, "n_init": 2, "max_iter": 2, "block_rows": 512}


def rows(
    n: int = 5000, d: int = 12, *, multi_label: bool = False, dtype: str = "float32", seed: int = 0
) -> tuple[Array, Array]:
    """Overlapping clouds about a mean that is not zero."""
    rng = np.random.default_rng(seed)
    noise = 2.0 + rng.normal(size=(n, d))
    if not multi_label:
        labels = rng.integers(5, size=n)
        labels[:10] = np.arange(10) % 5
        return (noise + rng.normal(size=(5, d))[labels]).astype(dtype), labels
    tags = (rng.random((n, 4)) < 0.3).astype(np.uint8)
    tags[np.arange(n), rng.integers(4, size=n)] = 1
    return (noise + tags @ rng.normal(size=(4, d))).astype(dtype), tags


def same_statistics(found: Statistics, expected: Statistics) -> None:
    """Equal to the last bit."""
    assert found.groups == expected.groups
    for name in ("counts", "mean", "sums", "gram"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def file_bytes(model: SADIH, folder: Path) -> bytes:
    """The model file, without the name of the store that was learned from."""
    path = folder / "model.sadih"
    write_model(path, replace(model._model, coverage=None))
    return path.read_bytes()


def same_bits(found: SADIH, expected: SADIH, folder: Path) -> None:
    """The same model in every bit."""
    same_statistics(found.statistics_, expected.statistics_)
    np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    assert found.fingerprint_ == expected.fingerprint_
    assert file_bytes(found, folder) == file_bytes(expected, folder)


@contextmanager
def counted_reads() -> Iterator[Counter[tuple[str, int]]]:
    """How often each chunk of each array is read in this process, by array and chunk."""
    counts: Counter[tuple[str, int]] = Counter()
    real = reader.read_chunk

    def read_chunk(snapshot: Any, layout: Any, chunk: int, *rest: Any) -> None:
        counts[layout.name, chunk] += 1
        real(snapshot, layout, chunk, *rest)

    with patch.object(reader, "read_chunk", read_chunk):
        yield counts


def of_features(counts: Counter[tuple[str, int]]) -> dict[int, int]:
    """Reads of the feature chunks alone."""
    return {chunk: count for (name, chunk), count in sorted(counts.items()) if name == "features"}
