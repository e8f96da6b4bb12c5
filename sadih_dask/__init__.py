"""Learning to hash from one-pass, mergeable statistics.

Names are imported when they are first asked for: a worker that reads blocks of a store should not
wait for what it does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sadih_dask.compute.evaluate import evaluate
    from sadih_dask.compute.search import search
    from sadih_dask.estimator import SADIH
    from sadih_dask.evaluation import evaluate_model
    from sadih_dask.storage import CodeStore, FeatureStore

__all__ = ["SADIH", "CodeStore", "FeatureStore", "evaluate", "evaluate_model", "search"]
__version__ = "0.1.0"

_HOMES = {
    "SADIH": "sadih_dask.estimator",
    "CodeStore": "sadih_dask.storage",
    "FeatureStore": "sadih_dask.storage",
    "evaluate": "sadih_dask.compute.evaluate",
    "evaluate_model": "sadih_dask.evaluation",
    "search": "sadih_dask.compute.search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
