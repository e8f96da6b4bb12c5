"""The similarity of label groups, applied in blocks, against the matrix written out."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sadih_dask.learning.similarity as module
from sadih_dask.errors import InputError
from sadih_dask.learning.labels import LabelGroups, group_rows
from sadih_dask.learning.similarity import Cosine, Identity, SharedLabel, group_similarity
from sadih_dask.types import SimilarityKind
from tests.support.dense import similarity

KINDS: list[SimilarityKind] = ["shared-label", "cosine"]


def groups_of(seed: int, classes: int = 7, rows: int = 60, single: bool = False) -> LabelGroups:
    rng = np.random.default_rng(seed)
    if single:
        return group_rows(rng.integers(classes, size=rows), classes + 2)[0]
    labels = rng.random((rows, classes)) < 0.3
    labels[np.arange(rows), rng.integers(classes, size=rows)] = True
    labels[:, 2] = labels[:, 5] = False  # empty classes
    labels[~labels.any(axis=1), 0] = True
    return group_rows(labels)[0]


def dense(groups: LabelGroups, kind: SimilarityKind) -> Any:
    return similarity(groups.matrix.toarray().T, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_apply_and_energy_equal_the_matrix(kind: SimilarityKind, single: bool, seed: int) -> None:
    groups = groups_of(seed, single=single)
    S, operator = dense(groups, kind), group_similarity(groups, kind)
    rng = np.random.default_rng(seed)
    for k in (1, 5):
        M = rng.standard_normal((k, len(groups)))
        np.testing.assert_allclose(operator.apply(M), M @ S, atol=1e-12)
    np.testing.assert_allclose(operator.apply(np.eye(len(groups))), S, atol=1e-15)
    counts = rng.integers(1, 50, size=len(groups)).astype(float)
    np.testing.assert_allclose(operator.energy(counts), S**2 @ counts, rtol=1e-12)


@pytest.mark.parametrize("rows_per_block", [1, 3, 8, 1000])
def test_the_size_of_blocks_does_not_matter(
    rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = groups_of(4, classes=8, rows=200)
    g = len(groups)
    assert g % 8 != 0  # the last byte of a row of bits is not full
    monkeypatch.setattr(module, "BLOCK_BYTES", rows_per_block * 8 * g)
    monkeypatch.setattr(module, "COLUMNS", 16)
    M = np.random.default_rng(0).standard_normal((4, g))
    S = dense(groups, "shared-label")
    operator = group_similarity(groups, "shared-label")
    np.testing.assert_allclose(operator.apply(M), M @ S, atol=1e-12)
    # Of whole numbers the sums are exact, and no order of summation shows.
    np.testing.assert_array_equal(operator.apply(np.round(M * 100)), np.round(M * 100) @ S)


def test_blocks_too_small_for_a_row_still_hold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    groups = groups_of(5)
    found = group_similarity(groups, "shared-label").apply(np.eye(len(groups)))
    np.testing.assert_array_equal(found, dense(groups, "shared-label"))


def test_the_cheapest_form_is_chosen() -> None:
    assert isinstance(group_similarity(groups_of(0, single=True), "shared-label"), Identity)
    assert isinstance(group_similarity(groups_of(0), "shared-label"), SharedLabel)
    assert isinstance(group_similarity(groups_of(0, single=True), "cosine"), Cosine)
    # One label per row, given as a matrix, is single-label all the same.
    assert isinstance(group_similarity(group_rows(np.eye(4))[0], "shared-label"), Identity)


def test_single_label_cosine_is_the_shared_label_similarity() -> None:
    groups = groups_of(1, single=True)
    np.testing.assert_allclose(dense(groups, "cosine"), dense(groups, "shared-label"))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"similarity='euclid' is unknown.*shared-label.*cosine"):
        group_similarity(groups_of(0), "euclid")  # type: ignore[arg-type]


BIG = """
import resource
from itertools import combinations
import numpy as np
import scipy.sparse as sp
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.similarity import group_similarity

resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
rng = np.random.default_rng(0)
g, c = 30_000, 60
triples = np.array(list(combinations(range(c), 3)))[rng.permutation(34_220)[:g]]
labels = sp.csr_array((np.ones(3 * g, bool), triples.ravel(), np.arange(0, 3 * g + 1, 3)), (g, c))
groups, _ = group_rows(labels)
M = rng.standard_normal((2, g))
for kind in ("shared-label", "cosine"):
    found = group_similarity(groups, kind).apply(M)
    for k in rng.integers(g, size=20):
        common = groups.matrix @ groups.matrix[[k]].toarray().ravel()
        s = 2.0 * (common > 0) - 1 if kind == "shared-label" else 2 * common / 3 - 1
        assert np.allclose(found[:, k], M @ s, rtol=0, atol=1e-8)
# Not ru_maxrss: a process begins with that of the one that started it.
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
"""


def test_many_groups_fit_into_two_gigabytes() -> None:
    # The matrix would take 7 GB. The limit is on the address space, more than is ever resident.
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", BIG],
        capture_output=True,
        text=True,
        env=os.environ | one_thread,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**20  # kibibytes: half of what is allowed
