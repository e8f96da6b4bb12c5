"""Where rows come from: files, scikit-learn's digits, or random clouds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sadih_dask.config.settings import (
    DigitsSource,
    FileSource,
    Files,
    Settings,
    SyntheticSource,
)
from sadih_dask.storage import FeatureStore

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Places:
    """Where the database and the queries are stored; None: there are no queries."""

    database: str
    queries: str | None


@dataclass(frozen=True)
class Look:
    """What a source has, found without reading it.

    identity    changes when the rows do
    n_new       rows that the store does not have yet, if that is known
    n_bytes     of them
    remarks     what a user should know: files that are gone, changed or too young
    rebuild     whether the store has to be made anew
    """

    identity: Any
    n_new: int | None = None
    n_bytes: int | None = None
    remarks: tuple[str, ...] = ()
    rebuild: bool = False


@dataclass(frozen=True)
class Poured:
    """Rows that were written now, that were there, and that were left out."""

    n_new: int
    n_kept: int
    facts: dict[str, Any] = field(default_factory=dict)


class Rows(Protocol):
    """A source of rows."""

    def look(self, places: Places) -> Look:
        """See what there is."""

    def pour(self, places: Places, look: Look, progress: Progress | None) -> Poured:
        """Bring the stores up to date; the same call completes one that was interrupted."""


def rows_of(settings: Settings) -> Rows:
    """The source that a configuration names."""
    source, form = settings.source, settings.store.model_dump(
        include={"dtype", "chunk_rows", "compression"}, exclude_none=True
    )
    if isinstance(source, DigitsSource):
        return _Digits(form)
    if isinstance(source, SyntheticSource):
        return _Synthetic(source, form)
    return _FromFiles(source, form)


def has_queries(settings: Settings) -> bool:
    """Whether there are queries to judge a model by."""
    source = settings.source
    return not isinstance(source, FileSource) or bool(source.queries or source.hold_out)


@dataclass(frozen=True)
class _Digits:
    form: dict[str, Any]

    def look(self, places: Places) -> Look:
        del places
        import sklearn

        return Look(["digits", sklearn.__version__, self.form])

    def pour(self, places: Places, look: Look, progress: Progress | None) -> Poured:
        del look
        import numpy as np
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        numbers = np.arange(len(digits.target))
        database, queries = train_test_split(
            numbers, test_size=0.2, stratify=digits.target, random_state=0
        )
        for url, rows in ((places.database, database), (places.queries, queries)):
            if url is None:
                continue
            FeatureStore.create(
                url,
                digits.data[rows].astype(self.form.get("dtype", "float32")),
                digits.target[rows],
                ids=rows,
                thumbnails=(digits.images[rows] * (255 / 16)).astype(np.uint8),
                class_names=[str(name) for name in digits.target_names],
                source="scikit-learn, load_digits",
                chunk_rows=self.form.get("chunk_rows"),
                compression=self.form.get("compression"),
                overwrite=True,
            )
        if progress is not None:
            progress(len(database), len(database))
        return Poured(len(database), 0)


@dataclass(frozen=True)
class _Synthetic:
    source: SyntheticSource
    form: dict[str, Any]

    def look(self, places: Places) -> Look:
        del places
        said = self.source
        n_bytes = said.rows * said.features * 4
        return Look(["synthetic", said.model_dump(), self.form], said.rows, n_bytes)

    def pour(self, places: Places, look: Look, progress: Progress | None) -> Poured:
        del look
        from sadih_dask.pipeline.synthetic import generate

        said = self.source
        sizes = {places.database: (said.rows, 0), places.queries: (said.queries, 1)}
        for url, (n_rows, stream) in sizes.items():
            if url is not None:
                generate(
                    url,
                    n_rows,
                    said.features,
                    said.classes,
                    seed=said.seed,
                    stream=stream,
                    spread=said.spread,
                    progress=progress if url == places.database else None,
                    **self.form,
                )
        return Poured(said.rows, 0)


@dataclass(frozen=True)
class _FromFiles:
    source: FileSource
    form: dict[str, Any]

    def look(self, places: Places) -> Look:
        raise NotImplementedError

    def pour(self, places: Places, look: Look, progress: Progress | None) -> Poured:
        raise NotImplementedError
