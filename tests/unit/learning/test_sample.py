"""The rows that are kept beside statistics: the same ones whatever happens to the rest."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from sadih_dask.errors import InputError
from sadih_dask.learning.sample import Sample, row_keys
from sadih_dask.learning.statistics import Statistics, merge_in_order

of_block = partial(Statistics.of_block, sample_rows=20)


def rows(n: int = 200, d: int = 4, c: int = 5, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.integers(0, c, n)


def kept(statistics: Statistics) -> set[tuple[int, tuple[float, ...], int]]:
    found = statistics.sample
    assert np.all(found.keys[1:] >= found.keys[:-1])
    labels = statistics.groups.indices[found.group]
    return {
        (int(key), tuple(row), int(label))
        for key, row, label in zip(found.keys, found.features.tolist(), labels, strict=True)
    }


def test_the_smallest_keys_are_kept() -> None:
    X, y = rows()
    found = of_block(X, y, 5).sample
    order = np.argsort(row_keys(X))
    np.testing.assert_array_equal(found.features, X[order[:20]])
    np.testing.assert_array_equal(found.group, y[order[:20]])
    assert found.limit == row_keys(X)[order[20]]


def test_neither_order_nor_blocks_decide_which() -> None:
    X, y = rows()
    whole = kept(of_block(X, y, 5))
    assert len(whole) == 20
    for seed, size in enumerate((1, 7, 64)):
        order = np.random.default_rng(seed).permutation(200)
        parts = (order[k : k + size] for k in range(0, 200, size))
        assert kept(merge_in_order(of_block(X[p], y[p], 5) for p in parts)) == whole


def test_rows_that_are_taken_out_are_not_kept() -> None:
    X, y = rows()
    order = np.argsort(row_keys(X))
    gone = order[:5]
    left = np.setdiff1d(np.arange(200), gone)
    found = of_block(X, y, 5).without(of_block(X[gone], y[gone], 5))
    expected = kept(of_block(X[left], y[left], 5))
    assert len(kept(found)) == 15
    assert kept(found) < expected  # those of the smallest keys
    # New rows beyond what is known of the old ones are not kept either.
    X2, y2 = rows(100, seed=1)
    again = found.merge(of_block(X2, y2, 5))
    everything = of_block(np.vstack([X[left], X2]), np.hstack([y[left], y2]), 5)
    assert kept(again) <= kept(everything)


def test_equal_rows_are_kept_together_and_taken_out_one_by_one() -> None:
    X, y = np.repeat(rows(4)[0], 3, axis=0), np.arange(12) % 2
    statistics = of_block(X, y)
    assert len(statistics.sample) == 12
    left = statistics.without(of_block(X[:1], y[:1], 2)).sample
    assert len(left) == 11
    many = np.vstack([np.zeros((30, 4)), rows(40)[0]])
    found = of_block(many, np.arange(70) % 2).sample
    assert np.all(found.features == 0.0, axis=1).sum() in (0, 30)


def test_groups_follow_their_names() -> None:
    X, y = rows()
    statistics = of_block(X, 2 * y, 10)
    names = statistics.groups.indices[statistics.sample.group]
    new = np.arange(10)[::-1].copy()
    renamed = statistics.relabel(new, 10)
    np.testing.assert_array_equal(new[names], renamed.groups.indices[renamed.sample.group])
    compacted, present = statistics.compact()
    np.testing.assert_array_equal(present[compacted.groups.indices[compacted.sample.group]], names)


def test_keys_depend_on_values_alone() -> None:
    X = rows(50)[0].astype(np.float32)
    expected = row_keys(X)
    assert len(np.unique(expected)) == 50
    for same in (X.astype(np.float64), np.asfortranarray(X), X[::-1][::-1]):
        np.testing.assert_array_equal(row_keys(same), expected)
    np.testing.assert_array_equal(row_keys(-np.zeros((2, 3))), row_keys(np.zeros((2, 3))))
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    assert len(np.unique(row_keys(bits))) == 256
    assert len(np.unique(row_keys(bits) >> np.uint64(48))) > 250  # and evenly spread


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keys", np.zeros(20, np.int64)),
        ("keys", np.arange(20, dtype=np.uint64)[::-1].copy()),
        ("features", np.full((20, 4), np.nan)),
        ("features", np.zeros((20, 3))),
        ("group", np.full(20, 5)),
        ("limit", np.zeros(2, np.uint64)),
        ("size", np.array(19)),
        ("size", np.array(20.0)),
    ],
)
def test_arrays_that_are_no_sample(name: str, value: Any) -> None:
    arrays = of_block(*rows(), 5).sample.to_arrays()
    again = Sample.from_arrays(arrays, 5, 4)
    np.testing.assert_array_equal(again.features, arrays["features"])
    assert again.size == 20
    with pytest.raises(ValueError, match="sampled rows"):
        Sample.from_arrays({**arrays, name: value}, 5, 4)


@pytest.mark.parametrize("n", [20, 200])
def test_rows_nearly_like_some_that_were_put_in_are_not_taken_out(n: int) -> None:
    X, y = rows(n)
    held = of_block(X.astype(np.float32), y, 5)
    some = np.arange(n // 4)
    same = of_block(X.astype(np.float32)[some].astype(np.float64), y[some], 5)
    assert held.without(same).n_samples == n - len(some)  # in another number type
    others = {
        "other values": (X[some] + 1e-6, y[some]),
        "labels of others": (X.astype(np.float32)[some], y[some][::-1]),
    }
    for features, labels in others.values():
        with pytest.raises(InputError, match=r"at least \d+ of the rows .* not among those"):
            held.without(of_block(features, labels, 5))
