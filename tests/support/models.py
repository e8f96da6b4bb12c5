"""Models that are quick to learn, what is compared of them, and what learning them read."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from sadih_dask import SADIH
from sadih_dask.compute.memory import ScanShape
from sadih_dask.model.model_file import write_model
from sadih_dask.stores import reader
from tests.support.datasets import Array
from tests.support.statistics import same_statistics

GIVEN: dict[str, Any] = {"ridge": 1e-3, "sharpness": 1.0, "openness": 0.0}
CHOSEN = dict.fromkeys(GIVEN, "auto")
"""What a fit chooses on rows left out unless it is given, in nine tenths of its time."""
QUICK: dict[str, Any] = {"n_init": 2, "max_iter": 3, **GIVEN}
"""Parameters with which a fit of small data takes a few hundredths of a second."""
FAST: dict[str, Any] = {"n_bits": 16, "n_init": 2, "max_iter": 2, "block_rows": 512, **GIVEN}


def same_model(found: SADIH, expected: SADIH, rows: Array) -> None:
    """Equal classes, label groups, their codes, and codes of some rows."""
    np.testing.assert_array_equal(found.classes_, expected.classes_)
    assert found.groups_ == expected.groups_
    np.testing.assert_array_equal(found.label_codes_, expected.label_codes_)
    np.testing.assert_array_equal(found.transform(rows), expected.transform(rows))


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
    """How often each chunk of each array is read in this process, by array and chunk.

    Chunks are counted over all segments, as in `Store.chunks`.
    """
    counts: Counter[tuple[str, int]] = Counter()
    real = reader.read_chunk

    def read_chunk(snapshot: Any, segment: Any, layout: Any, chunk: int, *rest: Any) -> None:
        segments = snapshot.root.segments
        before = sum(found.n_chunks for found in segments[: segments.index(segment)])
        counts[layout.name, before + chunk] += 1
        real(snapshot, segment, layout, chunk, *rest)

    with patch.object(reader, "read_chunk", read_chunk):
        yield counts


def of_features(counts: Counter[tuple[str, int]]) -> dict[int, int]:
    """Reads of the feature chunks alone."""
    return {chunk: count for (name, chunk), count in sorted(counts.items()) if name == "features"}


def shape(**changes: Any) -> ScanShape:
    """A scan as the memory plan sees it."""
    values: dict[str, Any] = {
        "n_rows": 10**6,
        "n_features": 512,
        "dtype": np.dtype("float32"),
        "n_anchors": None,
        "n_groups": 100,
        "chunk_rows": 8192,
        "n_sampled": 10_000,
    }
    return ScanShape(**{**values, **changes})


def few_steps(name: str) -> dict[str, int]:
    """What keeps methods short whose steps are long or many."""
    steps = {"ksh": 10, "och": 2, "fasth": 5}
    return {"max_iter": steps[name]} if name in steps else {}
