"""Folds in one pass: which row is where, what is kept of it, and that nothing else shows."""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from sadih_dask import FeatureStore
from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.compute.reduction import (
    FoldReduction,
    Folds,
    FoldStatistics,
    Reduction,
    training_statistics,
)
from sadih_dask.compute.rows import ArrayRows, LazyRows, Rows, StoreRows
from sadih_dask.compute.scan import scan
from sadih_dask.errors import InputError, LabelError, NonFiniteError
from sadih_dask.learning.features import AnchorMap
from tests.support.datasets import rows
from tests.support.models import counted_reads, of_features
from tests.support.statistics import assert_same, reference, same_statistics

KEY = 0xFEDC_BA98_7654_3210


def reduction(
    n_rows: int,
    n_folds: int = 5,
    n_queries: int = 30,
    block_rows: int = 512,
    n_classes: int | None = None,
    anchor_map: AnchorMap | None = None,
) -> FoldReduction:
    folds = Folds(n_rows, n_folds, KEY)
    sampled = folds.sample(n_queries, np.random.default_rng(1))
    return FoldReduction(Reduction(block_rows, n_classes, anchor_map), folds, sampled)


def scanned(source: Rows, threads: int = 2, **parameters: Any) -> FoldStatistics:
    with dask.config.set(scheduler="threads", num_workers=threads):
        return scan(source, reduction(source.n_rows, **parameters))[0]


def same(found: FoldStatistics, expected: FoldStatistics) -> None:
    """Equal to the last bit."""
    same_statistics(found.total, expected.total)
    for one, other in zip(found.folds, expected.folds, strict=True):
        assert one is not None
        assert other is not None
        same_statistics(one, other)
    np.testing.assert_array_equal(found.sample.rows, expected.sample.rows)
    np.testing.assert_array_equal(found.sample.features, expected.sample.features)
    assert found.sample.features.dtype == expected.sample.features.dtype
    labels = [
        s.labels if s.labels.ndim == 1 else s.labels.toarray() for s in _samples(found, expected)
    ]
    np.testing.assert_array_equal(*labels)


def _samples(*found: FoldStatistics) -> list[Any]:
    return [f.sample for f in found]


# --- which fold a row is in --------------------------------------------------------------------


@pytest.mark.parametrize(("n_rows", "n_folds"), [(5, 5), (23, 2), (1003, 5), (1000, 7)])
def test_folds_differ_by_a_row_at_most(n_rows: int, n_folds: int) -> None:
    sizes = np.bincount(Folds(n_rows, n_folds, KEY).of_range(0, n_rows), minlength=n_folds)
    assert sizes.sum() == n_rows
    assert sizes.max() - sizes.min() <= 1
    assert sizes.min() >= 1


def test_a_row_is_in_the_same_fold_however_it_is_asked_for() -> None:
    folds = Folds(1003, 5, KEY)
    whole = folds.of_range(0, 1003)
    pieces = [folds.of_range(a, b) for a, b in ((0, 1), (1, 499), (499, 500), (500, 1003))]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    asked = np.array([1002, 7, 7, 500])
    np.testing.assert_array_equal(folds.of_rows(asked), whole[asked])


def test_folds_are_random_and_follow_from_the_key() -> None:
    one = Folds(10_000, 5, KEY).of_range(0, 10_000)
    np.testing.assert_array_equal(one, Folds(10_000, 5, KEY).of_range(0, 10_000))
    assert 0.15 < np.mean(one == Folds(10_000, 5, KEY + 1).of_range(0, 10_000)) < 0.25
    # every order of a run is as likely, so neither place nor neighbour tells the fold
    by_place = np.bincount(one * 5 + np.arange(10_000) % 5, minlength=25)
    assert by_place.min() > 330
    assert by_place.max() < 470


def test_rows_sorted_by_class_come_in_equal_parts() -> None:
    labels = np.repeat(np.arange(10), 100)
    folds = Folds(1000, 5, KEY).of_range(0, 1000)
    assert (np.bincount(labels * 5 + folds, minlength=50) == 20).all()


@pytest.mark.parametrize("n_folds", [0, 1, 11])
def test_folds_that_cannot_be_made(n_folds: int) -> None:
    with pytest.raises(InputError, match=f"n_samples=10 rows cannot make n_folds={n_folds} folds"):
        Folds(10, n_folds, KEY)


@pytest.mark.parametrize("n_rows", [53, 1003])
def test_sampled_rows_are_so_many_of_every_fold(n_rows: int) -> None:
    folds = Folds(n_rows, 5, KEY)
    for size in (1, 8, 500):
        sample = folds.sample(size, np.random.default_rng(0))
        assert (np.diff(sample) > 0).all()
        assert 0 <= sample[0] <= sample[-1] < n_rows
        held = np.bincount(folds.of_range(0, n_rows), minlength=5)
        found = np.bincount(folds.of_rows(sample), minlength=5)
        np.testing.assert_array_equal(found, np.minimum(size, held))


def test_every_row_of_a_fold_is_sampled_as_often() -> None:
    folds, rng = Folds(22, 4, KEY), np.random.default_rng(0)
    drawn = np.concatenate([folds.sample(2, rng) for _ in range(2000)])
    held = np.bincount(folds.of_range(0, 22))[folds.of_range(0, 22)]
    share = np.bincount(drawn, minlength=22) / 2000
    np.testing.assert_allclose(share, 2 / held, rtol=0.15)


# --- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("n_folds", [2, 5])
def test_statistics_of_folds_are_those_of_their_rows(multi_label: bool, n_folds: int) -> None:
    X, y = rows(1503, 6, multi_label=multi_label, dtype="float64")
    found = scanned(ArrayRows(X, y), n_folds=n_folds, block_rows=100)
    fold = Folds(1503, n_folds, KEY).of_range(0, 1503)
    for k, statistics in enumerate(found.folds):
        assert statistics is not None
        assert_same(statistics, reference(X[fold == k], y[fold == k]))
        left = reference(X[fold != k], y[fold != k])
        training = training_statistics(found.folds, k)
        assert_same(training, left)
        assert_same(found.total.without(statistics), left, 1e-11)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("anchors", [False, True])
def test_the_total_has_the_bits_of_a_scan_without_folds(
    multi_label: bool, dtype: str, anchors: bool
) -> None:
    X, y = rows(1503, 6, multi_label=multi_label, dtype=dtype)
    known = AnchorMap.from_sample(X[:200], 20, np.random.default_rng(0)) if anchors else None
    found = scanned(ArrayRows(X, y), block_rows=100, anchor_map=known)
    same_statistics(found.total, scan(ArrayRows(X, y), Reduction(100, None, known))[0])
    if known is not None:
        assert found.folds[0] is not None
        assert found.folds[0].n_features == 20


@pytest.mark.parametrize("multi_label", [False, True])
def test_sampled_rows_are_as_they_were_read(multi_label: bool) -> None:
    X, y = rows(1503, 6, multi_label=multi_label, dtype="float16")
    sample = scanned(ArrayRows(X.copy(), y), block_rows=100).sample
    assert len(sample) == 150
    assert sample.features.dtype == np.float16
    np.testing.assert_array_equal(sample.features, X[sample.rows])
    held = sample.labels.toarray() if multi_label else sample.labels
    np.testing.assert_array_equal(held, y[sample.rows])


def test_merging_others_is_as_accurate_as_taking_out_or_more() -> None:
    """One fold dwarfs the others: what is left of it after a difference drowns them."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 4)), rng.integers(3, size=1000)
    fold = Folds(1000, 5, KEY).of_range(0, 1000)
    X[fold == 2] *= 1e6
    found = scanned(ArrayRows(X, y), block_rows=100)
    left = reference(X[fold != 2], y[fold != 2])
    merged = training_statistics(found.folds, 2)
    assert_same(merged, left)
    assert found.folds[2] is not None
    taken_out = found.total.without(found.folds[2])
    error = np.abs(taken_out.gram - left.gram).max() / np.abs(left.gram).max()
    assert error > 1e4 * np.abs(merged.gram - left.gram).max() / np.abs(left.gram).max()


# --- what does not show ------------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True])
def test_chunks_threads_and_layout_do_not_show(tmp_path: Path, multi_label: bool) -> None:
    X, y = rows(multi_label=multi_label)
    expected = scanned(ArrayRows(X, y), threads=1)
    same(scanned(ArrayRows(np.asfortranarray(X), y), threads=4), expected)
    for chunk_rows in (300, 977, len(X)):
        store = FeatureStore.create(tmp_path / f"{chunk_rows}", X, y, chunk_rows=chunk_rows)
        for threads in (1, 4):
            same(scanned(StoreRows.of(store), threads=threads), expected)
    lazy = da.from_array(X, chunks=((1, 1699, 3300), 5))
    found: Any = scanned(LazyRows.of(lazy, y, 512))
    same(found if multi_label else found.partial, expected)


def test_a_tree_of_several_levels(tmp_path: Path) -> None:
    X, y = rows(d=4)
    expected = scanned(ArrayRows(X, y), threads=1, block_rows=20)
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=1300)
    same(scanned(StoreRows.of(store), threads=4, block_rows=20), expected)


def test_blocks_smaller_than_a_run_leave_folds_without_rows() -> None:
    X, y = rows(101, 3, dtype="float64")
    found = scanned(ArrayRows(X, y), n_folds=7, block_rows=2)
    fold = Folds(101, 7, KEY).of_range(0, 101)
    for k, statistics in enumerate(found.folds):
        assert statistics is not None
        assert_same(statistics, reference(X[fold == k], y[fold == k]))


def test_the_caller_keeps_its_rows() -> None:
    X, y = rows(1000, 4)
    before = X.copy()
    scanned(ArrayRows(X, y))
    np.testing.assert_array_equal(X, before)


def test_features_are_read_once(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", *rows(6144, 3), chunk_rows=256)
    with counted_reads() as counts:
        scanned(StoreRows.of(store))
    assert of_features(counts) == dict.fromkeys(range(len(store.chunks)), 1)


# --- a pass that goes on -----------------------------------------------------------------------


@pytest.mark.parametrize("multi_label", [False, True])
def test_a_resumed_pass_has_the_same_bits(tmp_path: Path, multi_label: bool) -> None:
    X, y = rows(d=3, multi_label=multi_label)
    store = FeatureStore.create(tmp_path / "s", X, y, chunk_rows=100)
    wanted = reduction(len(X), n_folds=2, block_rows=100, n_classes=None)
    expected, _ = scan(StoreRows.of(store), wanted)
    checkpoint = Checkpoint(tmp_path / "scan")
    found, n_loaded = scan(StoreRows.of(store), wanted, checkpoint)
    same(found, expected)
    assert n_loaded == 0
    lost = sorted((tmp_path / "scan").iterdir())[1]
    lost.unlink()
    with counted_reads() as counts:
        found, n_loaded = scan(StoreRows.of(store), wanted, checkpoint)
    same(found, expected)
    assert 0 < n_loaded < len(X)
    assert sum(of_features(counts).values()) < len(store.chunks)
    others = reduction(len(X), n_folds=3, block_rows=100)
    assert scan(StoreRows.of(store), others, checkpoint)[1] == 0


def test_partial_results_of_other_rows_are_not_taken() -> None:
    X, y = rows(1000, 3)
    wanted = reduction(1000)
    found, _ = scan(ArrayRows(X, y), wanted)
    arrays = wanted.to_arrays(found)
    same(wanted.from_arrays(arrays, 1000), found)
    with pytest.raises(ValueError, match="not statistics of 999 rows"):
        wanted.from_arrays(arrays, 999)
    short = {**arrays, "sample.features": arrays["sample.features"][1:]}
    with pytest.raises(ValueError, match="differ in number"):
        wanted.from_arrays(short, 1000)
    del arrays["total.gram"]
    with pytest.raises(KeyError):
        wanted.from_arrays(arrays, 1000)


# --- bad rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("anchors", [False, True])
def test_a_bad_value_is_named_by_its_row(anchors: bool) -> None:
    X, y = rows(1000, 4)
    known = AnchorMap.from_sample(X[:200], 20, np.random.default_rng(0)) if anchors else None
    X[777, 2] = np.nan
    with pytest.raises(NonFiniteError, match="row 777"):
        scanned(ArrayRows(X, y), block_rows=100, anchor_map=known)


def test_a_bad_label_is_named_by_its_row() -> None:
    X, y = rows(1000, 4)
    y[777] = -3
    with pytest.raises(LabelError, match=r"label of row 777 is .*-3"):
        scanned(ArrayRows(X, y), block_rows=100)
