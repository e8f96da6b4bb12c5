"""Worst classes and what they are taken for, against loops over all pairs."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import scipy.sparse as sp

from sadih_dask.learning.labels import group_rows
from sadih_dask.retrieval import metrics
from sadih_dask.retrieval.codes import distances, pack
from sadih_dask.retrieval.failures import ClassQuality, confusion, worst_classes
from sadih_dask.retrieval.histograms import histograms_within


def naive_confusion(codes, labels, asked, most):
    """Chance of each wrong item to be among the first, query by query and item by item."""
    apart, n_classes = distances(codes, codes), labels.shape[1]
    found, counts = np.zeros((n_classes, n_classes)), np.zeros(n_classes)
    for q in asked:
        others = [i for i in range(len(codes)) if i != q]
        relevant = [i for i in others if (labels[i] & labels[q]).any()]
        k = min(max(len(relevant), 1), most)
        counts += labels[q]
        for i in set(others) - set(relevant):
            nearer = sum(apart[q, j] < apart[q, i] for j in others)
            tied = sum(apart[q, j] == apart[q, i] for j in others)
            chance = min(max((k - nearer) / tied, 0.0), 1.0)
            found += chance / k * np.outer(labels[q], labels[i])
    return found / np.maximum(counts, 1)[:, None]


@pytest.mark.parametrize(("multi_label", "most"), [(False, 100), (True, 100), (False, 3)])
def test_confusion_is_what_all_pairs_say(multi_label: bool, most: int, monkeypatch) -> None:
    rng = np.random.default_rng(3)
    labels = np.eye(5, dtype=int)[rng.integers(0, 5, 40)]
    if multi_label:
        labels |= rng.random(labels.shape) < 0.15
    codes = pack(labels @ rng.standard_normal((5, 6)) + 0.8 * rng.standard_normal((40, 6)))
    asked = np.sort(rng.permutation(40)[:25])
    monkeypatch.setattr("sadih_dask.retrieval.failures.BLOCK_PAIRS", 7 * 40)
    classes = np.array([4, 1, 2])
    found = confusion(codes, sp.csr_array(labels.astype(float)), asked, classes, most)
    assert np.allclose(found, naive_confusion(codes, labels, asked, most)[classes])
    assert found.max() > 0.01


def test_the_worst_come_first_with_what_they_are_taken_for() -> None:
    """Twelve classes of well-separated codes, but those of c and d are nearly the same."""
    names = [chr(ord("a") + k) for k in range(12)]
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(12), 20)
    centres = np.where(rng.random((12, 32)) < 0.5, 1.0, -1.0)
    centres[3] = centres[2]
    noise = np.where(truth == 11, 0.3, 1.2)[:, None]  # the last class finds all of its own
    codes = pack(centres[truth] + noise * rng.standard_normal((240, 32)))
    groups, asked = group_rows(truth), np.arange(240)
    precision = metrics.average_precision(histograms_within(codes, groups, asked, 32))
    found = worst_classes(codes, groups, asked, precision, names)
    assert len(found) == 10
    assert "l" not in {one.name for one in found}
    assert {found[0].name, found[1].name} == {"c", "d"}
    assert {found[0].confused[0][0], found[1].confused[0][0]} == {"c", "d"}
    assert [one.map for one in found] == sorted(one.map for one in found)
    assert found[0].map == pytest.approx(precision[truth == names.index(found[0].name)].mean())
    assert found[0].n_queries == 20
    assert found[0].confusions.startswith(f"{found[0].confused[0][0]} ")
    restored = [ClassQuality.from_dict(json.loads(json.dumps(asdict(one)))) for one in found]
    assert tuple(restored) == found


def test_classes_that_find_all_of_their_own_are_not_the_worst() -> None:
    truth = np.repeat(np.arange(3), 5)
    codes = np.array([0, 255, 15], np.uint8)[truth][:, None]
    given = codes, group_rows(truth), np.arange(15)
    assert worst_classes(*given, np.ones(15), "abc") == ()
    lacking = worst_classes(*given, np.where(truth == 1, 0.9, 1.0), "abc")
    assert [(one.name, one.confusions) for one in lacking] == [("b", "none other")]
    assert len(worst_classes(*given, np.where(truth == 1, 1.0 - 1e-6, 1.0), "abc")) == 0
