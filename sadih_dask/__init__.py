"""Learning to hash from one-pass, mergeable statistics.

Names are imported when they are first asked for: a worker that reads blocks of a store should not
wait for what it does not use. Notebooks show cards of models, stores and results in the same way:
IPython is told the names of the types, and the cards are imported when the first one is shown.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from sadih_dask.compute.evaluate import evaluate
    from sadih_dask.compute.search import search
    from sadih_dask.model.cross_validation import SADIHCV
    from sadih_dask.model.evaluation import evaluate_model
    from sadih_dask.model.methods import load_model
    from sadih_dask.model.methods.sadih import SADIH
    from sadih_dask.stores import CodeStore, FeatureStore

__all__ = [
    "SADIH",
    "SADIHCV",
    "CodeStore",
    "FeatureStore",
    "evaluate",
    "evaluate_model",
    "load_model",
    "search",
]
__version__ = "0.1.0"

_HOMES = {
    "SADIH": "sadih_dask.model.methods.sadih",
    "SADIHCV": "sadih_dask.model.cross_validation",
    "CodeStore": "sadih_dask.stores",
    "FeatureStore": "sadih_dask.stores",
    "evaluate": "sadih_dask.compute.evaluate",
    "evaluate_model": "sadih_dask.model.evaluation",
    "load_model": "sadih_dask.model.methods",
    "search": "sadih_dask.compute.search",
}
_CARDS = {
    "sadih_dask.model.estimator": ["Hasher"],
    "sadih_dask.learning.statistics": ["Statistics"],
    "sadih_dask.learning.objective": ["Trace"],
    "sadih_dask.retrieval.evaluation": ["Evaluation", "Protocols"],
    "sadih_dask.retrieval.nearest": ["Neighbours", "WithinRadius"],
    "sadih_dask.stores.codes": ["CodeStore"],
    "sadih_dask.stores.features": ["FeatureStore"],
    "sadih_dask.ingest.ingestion": ["Ingested"],
}
"""Types that `sadih_dask.report.notebook.html` has cards for, by the module that defines them."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _card(thing: object) -> str:
    """Return the card of a thing; report is above this module, and it is found by name."""
    html: Callable[[object], str] = import_module("sadih_dask.report.notebook").html
    return html(thing)


def _show_cards() -> None:
    """Have IPython show cards, if this is IPython.

    A formatter that is registered for a type comes before the type's own methods, also before the
    ``_repr_mimebundle_`` that `SADIH` has from scikit-learn.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    formatters = getattr(getattr(shell, "display_formatter", None), "formatters", {})
    if (html := formatters.get("text/html")) is not None:
        for home, names in _CARDS.items():
            for name in names:
                html.for_type_by_name(home, name, _card)


_show_cards()
