"""The memory plan of a search: an upper bound that is not far off."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sadih_dask.ingest.synthetic import generate

SCRIPT = """
import json, re, sys
import dask
from sadih_dask import SADIH, FeatureStore
from sadih_dask.compute import memory
from sadih_dask.model.cross_validation import SADIHCV
url, anchors = sys.argv[1], json.loads(sys.argv[2])
plans = []
real = memory.plan_scan
memory.plan_scan = lambda *shape: plans.append(real(*shape)) or plans[-1]
model = SADIH(anchors=anchors, n_init=1, max_iter=1, start="random")
with dask.config.set(scheduler="threads", num_workers=2):
    search = SADIHCV(model, {"alpha": [0.1, 1.0]}, n_bits=32)
    search.fit(FeatureStore.open(url))
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([plans[0].total, peak]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of a process")
@pytest.mark.parametrize(
    ("n_features", "n_classes", "anchors"),
    [(64, 20, None), (512, 20, 500), (256, 600, None)],
)
def test_measured_peak_is_below_the_prediction_and_above_half_of_it(
    tmp_path: Path, n_features: int, n_classes: int, anchors: int | None
) -> None:
    store = generate(tmp_path / "s", 40_000, n_features, n_classes)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, store.url, json.dumps(anchors)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    predicted, measured = json.loads(done.stdout)
    assert measured <= predicted <= 2 * measured
