"""A scan as the memory plan sees it."""

from typing import Any

import numpy as np

from sadih_dask.compute.memory import ScanShape


def shape(**changes: Any) -> ScanShape:
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
