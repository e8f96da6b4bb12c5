"""The memory plan: an upper bound that is not far off, and a refusal that helps."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from dask.utils import parse_bytes

from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import memory
from sadih_dask.compute.memory import INTERPRETER, SMALLEST_BLOCK, plan_scan
from sadih_dask.errors import MemoryPlanError, SadihError
from sadih_dask.ingest.synthetic import generate
from tests.support.datasets import rows
from tests.support.models import counted_reads, of_features, shape

# --- the prediction ----------------------------------------------------------------------------


def test_it_grows_with_what_costs_memory_and_hardly_with_rows() -> None:
    base = plan_scan(shape(), 8192, 2).total
    assert plan_scan(shape(n_features=1024), 8192, 2).total > base
    assert plan_scan(shape(dtype=np.dtype("float64")), 8192, 2).total > base
    assert plan_scan(shape(n_groups=20_000), 8192, 2).total > base
    assert plan_scan(shape(n_anchors=1000), 8192, 2).total > base
    assert plan_scan(shape(), 16384, 2).total > base
    assert plan_scan(shape(), 8192, 4).total > base
    assert base < plan_scan(shape(n_rows=10**9), 8192, 2).total < 1.15 * base
    assert (
        plan_scan(shape(n_rows=10, chunk_rows=10, n_sampled=10), 8192, 1).total < 1.1 * INTERPRETER
    )


def test_it_explains_itself() -> None:
    text = str(plan_scan(shape(), 4096, 3))
    assert re.match(r"predicted peak [\d.]+ \w+ a process: 3 threads x .* block of 4096 rows", text)


# --- the refusal -------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore.create(tmp_path / "s", *rows(20_000, 256), chunk_rows=1000)


@pytest.mark.parametrize(("anchors", "limit"), [(None, 303), (100, 328)])
def test_a_refusal_names_predicted_allowed_and_a_block_that_fits(
    store: FeatureStore, anchors: int | None, limit: int
) -> None:
    model = SADIH(n_bits=8, anchors=anchors, n_init=1, max_iter=1, block_rows=16384)
    with dask.config.set({"num_workers": 2, "sadih.memory-limit": f"{limit} MiB"}):
        with counted_reads() as counts, pytest.raises(MemoryPlanError) as refused:
            model.fit(store)
        assert not of_features(counts)
        message = str(refused.value)
        found = re.fullmatch(
            r"the scan was not started: predicted peak ([\d.]+ \w+) a process: .*, but "
            rf"{limit}.00 MiB are allowed: memory_limit, or sadih.memory-limit in Dask's "
            r"configuration, says so. block_rows=(\d+) would fit. Or raise that limit",
            message,
        )
        assert found, message
        assert parse_bytes(found[1]) > limit * 2**20
        assert SMALLEST_BLOCK <= int(found[2]) < 16384
        model.set_params(block_rows=int(found[2])).fit(store)
        with pytest.raises(MemoryPlanError, match="the scan was not started"):
            SADIH(anchors=anchors, block_rows=2 * int(found[2])).fit(store)
    assert isinstance(refused.value, SadihError | MemoryError)


def test_no_block_is_small_enough(store: FeatureStore) -> None:
    with (
        dask.config.set({"sadih.memory-limit": "100 MiB"}),
        pytest.raises(MemoryPlanError, match=r"No block size fits, because statistics of 256 feat"),
    ):
        SADIH(anchors=None).fit(store)


def test_a_refusal_says_where_the_limit_comes_from(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SADIH(anchors=None)
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 100 * 2**20)
    with pytest.raises(MemoryPlanError, match=r"100.00 MiB are allowed: the memory of this mach"):
        model.fit(store)
    monkeypatch.undo()
    free = SimpleNamespace(available=-psutil.Process().memory_info().rss + 200 * 2**20)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: free)
    expected = r"are allowed: what is free of the .* of this machine now.*end other programs"
    with pytest.raises(MemoryPlanError, match=expected):
        model.fit(store)


def test_a_refused_model_is_what_it_was(store: FeatureStore) -> None:
    model = SADIH(n_bits=8, anchors=None, n_init=1, max_iter=1, block_rows=1024)
    X, y = rows(500, 256)
    before = model.fit(X, y).fingerprint_
    with (
        dask.config.set({"sadih.memory-limit": "100 MiB"}),
        pytest.raises(MemoryPlanError, match="not started"),
    ):
        model.fit(store)
    assert model.fingerprint_ == before


# --- predicted and measured --------------------------------------------------------------------

SCRIPT = """
import json, re, sys
import dask
from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import memory
url, anchors = sys.argv[1], json.loads(sys.argv[2])
plans = []
real = memory.plan_scan
memory.plan_scan = lambda *shape: plans.append(real(*shape)) or plans[-1]
with dask.config.set(scheduler="threads", num_workers=2):
    SADIH(n_bits=16, anchors=anchors, n_init=1, max_iter=2).fit(FeatureStore.open(url))
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([plans[0].total, peak]))
"""


def fit_alone(url: str, anchors: int | None) -> tuple[int, int]:
    """Predicted and measured peak of a process that fits this store."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, json.dumps(anchors)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    predicted, measured = json.loads(done.stdout)
    return predicted, measured


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of a process")
@pytest.mark.parametrize(
    ("n_features", "anchors", "dtype"),
    [
        (64, None, "float32"),
        (512, 500, "float32"),
        (1024, None, "float32"),
        (1024, 500, "float16"),
        (512, None, "float64"),
    ],
)
def test_measured_peak_is_below_the_prediction_and_above_half_of_it(
    tmp_path: Path, n_features: int, anchors: int | None, dtype: Any
) -> None:
    store = generate(tmp_path / "s", 40_000, n_features, 20, dtype=dtype)
    predicted, measured = fit_alone(store.url, anchors)
    assert measured <= predicted <= 2 * measured


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of a process")
def test_four_times_the_rows_take_the_same_memory(tmp_path: Path) -> None:
    peaks = []
    for n_rows in (50_000, 200_000):
        store = generate(tmp_path / f"{n_rows}", n_rows, 512, 10)
        peaks.append(fit_alone(store.url, None)[1])
    assert peaks[1] <= 1.1 * peaks[0]
