"""The features are read once; what comes on top is bounded and small."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute.reduction import Reduction
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.learning import features
from sadih_dask.learning.statistics import MERGE_FAN_IN
from sadih_dask.model import scanning
from tests.support.datasets import rows
from tests.support.models import FAST, counted_reads, of_features

pytestmark = pytest.mark.usefixtures("two_threads")


def store(path: Path, chunk_rows: int, n: int = 6144) -> FeatureStore:
    return FeatureStore.create(path / "s", *rows(n, 3), chunk_rows=chunk_rows)


@pytest.mark.parametrize("chunk_rows", [64, 256, 512])
@pytest.mark.parametrize("parameters", [{}, {"encoder": "lemma"}, {"n_bits": 32, "n_init": 5}])
def test_every_chunk_is_read_once(
    tmp_path: Path, chunk_rows: int, parameters: dict[str, Any]
) -> None:
    found = store(tmp_path, chunk_rows)
    with counted_reads() as counts:
        SADIH(**{**FAST, "anchors": None, **parameters}).fit(found)
    assert of_features(counts) == dict.fromkeys(range(len(found.chunks)), 1)


@pytest.mark.parametrize("chunk_rows", [100, 977, 511, 1024, 4096, 6144])
def test_only_a_chunk_on_the_border_of_two_tasks_is_read_twice(
    tmp_path: Path, chunk_rows: int
) -> None:
    found = store(tmp_path, chunk_rows)
    with counted_reads() as counts:
        SADIH(**FAST, anchors=None).fit(found)
    times = of_features(counts)
    assert list(times) == list(range(len(found.chunks)))
    tasks = 12 if chunk_rows <= 512 else 2  # of a block each, or of a node of eight
    assert max(list(times.values())[:-1], default=1) <= 2
    # One more for the fingerprint of a store whose last chunk is short.
    assert sum(times.values()) <= len(found.chunks) + tasks


def test_chunks_much_longer_than_blocks(tmp_path: Path) -> None:
    """A task then takes as many blocks as it needs to use a whole chunk up."""
    found = store(tmp_path, 3072)
    block_rows = 10
    assert found.chunk_rows > MERGE_FAN_IN**2 * block_rows
    with counted_reads() as counts:
        scan(StoreRows.of(found), Reduction(block_rows, 5, None))
    assert sum(of_features(counts).values()) <= 2 + 1


def test_labels_are_read_once_more_for_the_plan(tmp_path: Path) -> None:
    found = store(tmp_path, 512)
    with counted_reads() as counts:
        SADIH(**FAST, anchors=None).fit(found)
    times = [count for (name, _), count in counts.items() if name == "labels"]
    assert max(times) <= 2


def test_a_small_read_for_the_anchors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "SAMPLE_ROWS", 100)
    monkeypatch.setattr(features, "SAMPLE_BLOCKS", 4)
    found = store(tmp_path, 128)
    with counted_reads() as counts:
        SADIH(**FAST, anchors=50).fit(found)
    extra = sum(of_features(counts).values()) - len(found.chunks)
    assert 4 <= extra <= 4 * FAST["block_rows"] // 128  # of four blocks


def test_a_second_fit_of_other_length_reads_nothing(tmp_path: Path) -> None:
    found = store(tmp_path, 512)
    model = SADIH(**FAST, anchors=None).fit(found)
    with counted_reads() as counts:
        model.set_params(n_bits=24).fit(found)
    assert not of_features(counts)
    expected = SADIH(**{**FAST, "n_bits": 24}, anchors=None).fit(found)
    np.testing.assert_array_equal(model.label_codes_, expected.label_codes_)
    assert model.fingerprint_ == expected.fingerprint_
