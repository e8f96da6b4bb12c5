"""Where rows come from: files, scikit-learn's digits, or random clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from sadih_dask.errors import (
    Argument,
    ConflictError,
    FormatError,
    IncompleteError,
    InputError,
    Remedy,
)
from sadih_dask.ingest import Changes, DataFiles, HoldOut, Mode, compare, ingest
from sadih_dask.ingest.changes import expected
from sadih_dask.runs.settings import DigitsSource, Files, FileSource, Settings, SyntheticSource
from sadih_dask.sources import read_class_names
from sadih_dask.stores import FeatureStore

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
    actions     of a source of files: what is to be read into each store, and how
    """

    identity: Any
    n_new: int | None = None
    n_bytes: int | None = None
    remarks: tuple[str, ...] = ()
    actions: Mapping[str, tuple[DataFiles | None, Mode | None]] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether a store lacks rows of its files."""
        return any(mode is not None for _, mode in self.actions.values())


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
    source, form = (
        settings.source,
        settings.store.model_dump(
            include={"dtype", "chunk_rows", "compression"}, exclude_none=True
        ),
    )
    if isinstance(source, DigitsSource):
        return _Digits(form)
    if isinstance(source, SyntheticSource):
        return _Synthetic(source, form)
    return _FromFiles(source, form)


@dataclass(frozen=True)
class _Digits:
    form: dict[str, Any]

    def look(self, places: Places) -> Look:
        del places
        return Look(["digits", version("scikit-learn"), self.form])

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
        from sadih_dask.ingest.synthetic import Part, generate

        said = self.source
        parts: tuple[tuple[str | None, int, Part], ...] = (
            (places.database, said.rows, "database"),
            (places.queries, said.queries, "queries"),
        )
        for url, n_rows, part in parts:
            if url is not None:
                generate(
                    url,
                    n_rows,
                    said.features,
                    said.classes,
                    seed=said.seed,
                    part=part,
                    spread=said.spread,
                    progress=progress if part == "database" else None,
                    overwrite=True,
                    **self.form,
                )
        return Poured(said.rows, 0)


@dataclass(frozen=True)
class _FromFiles:
    source: FileSource
    form: dict[str, Any]

    def look(self, places: Places) -> Look:
        """Compare the files with the stores; ConflictError if that is to be refused."""
        found = [_Store(url, self._compared(files, url)) for url, files in self._sets(places)]
        actions = {store.url: self._action(store) for store in found}
        if places.queries in actions and _number_otherwise(places):
            actions[places.queries] = "overwrite"
        pending = any(action is not None for action in actions.values())
        state = [s.changes.fingerprint if pending else s.fingerprint() for s in found]
        return Look(
            ["files", pending, state, self.form],
            sum(s.to_read(actions[s.url])[0] for s in found),
            sum(s.to_read(actions[s.url])[1] for s in found),
            tuple(
                dict.fromkeys(f"source: {words}" for s in found if (words := s.changes.in_words()))
            ),
            {store.url: (store.changes.files, actions[store.url]) for store in found},
        )

    def pour(self, places: Places, look: Look, progress: Progress | None) -> Poured:
        """Append new files, or make a store anew where the configuration says so."""
        new = kept = 0
        facts: dict[str, Any] = {}
        for url, (files, mode) in look.actions.items():
            if url == places.queries and _number_otherwise(places):
                mode = self._renumbering(url, files)  # the database was made anew just now
            if mode is None or files is None:
                continue
            if url == places.queries:
                classes = FeatureStore.open(places.database).class_names
                files = replace(files, known_classes=classes or None)
            done = ingest(files, url, mode=mode, progress=progress, **self._form_for(mode, url))
            if url == places.database:
                new, kept = done.n_new, done.n_kept
                facts = {"files": done.n_files, "rows_dropped": done.n_dropped}
        return Poured(new, kept, facts)

    def _renumbering(self, url: str, files: DataFiles | None) -> Mode:
        """Queries are read again under the numbers that the database gives their classes now."""
        if files is None or self._compared(files, url).n_gone:
            raise ConflictError(
                f"{url} numbers its classes in another way than the database, and not all of its "
                "files are there to be read again. Put them back, or remove it"
            )
        return "overwrite"

    def _form_for(self, mode: Mode, url: str) -> dict[str, Any]:
        """A store that is there has its form already."""
        return {} if mode == "append" and store_exists(url) else self.form

    def _sets(self, places: Places) -> Iterator[tuple[str, DataFiles]]:
        said = self.source
        options: dict[str, Any] = {"labelled": True, **said.model_dump(include=set(_READING))}
        if said.class_names is not None:
            options["class_names"] = read_class_names(Path(said.class_names))
        if said.hold_out is not None and places.queries is not None:
            part = HoldOut(said.hold_out, said.seed)
            files = DataFiles(**_named(said), **options, hold_out=part)
            yield places.database, files
            yield places.queries, replace(files, hold_out=replace(part, part="queries"))
            return
        yield places.database, DataFiles(**_named(said), **options)
        if said.queries is not None and places.queries is not None:
            yield places.queries, DataFiles(**_named(said.queries), **options)

    def _compared(self, files: DataFiles, url: str) -> Changes:
        return compare(files, url, min_age=self.source.min_age)

    def _action(self, store: _Store) -> Mode | None:
        """What is to be done to a store, if anything."""
        changes = store.changes
        if changes.files is None:
            if changes.store == "finished" and (
                not changes.n_gone or self.source.on_removal == "keep"
            ):
                return None
            raise InputError(f"there is no file to read yet: {changes.in_words()}")
        if changes.store == "begun" and not changes.goes_on:
            return "overwrite"  # only half-done work is lost
        form = store.other_form(self.form)
        policies = (
            (changes.altered or bool(form), self.source.on_change),
            (changes.n_gone > 0, self.source.on_removal),
        )
        asked = {policy for found, policy in policies if found}
        # What is made anew cannot keep rows whose files are gone.
        if "refuse" in asked or asked >= {"rebuild", "keep"}:
            words = "; ".join(part for part in (changes.in_words(), form) if part)
            raise ConflictError(
                f"{changes.url}: {words}",
                remedy=Remedy(
                    "Put it back as it was, or make the store anew with {} (and {}, without the "
                    "rows of files that are gone)",
                    Argument("source.on_change", "rebuild"),
                    Argument("source.on_removal", "rebuild"),
                ),
            )
        if "rebuild" in asked:
            return "overwrite"
        return "append" if changes.new or changes.store != "finished" else None


_READING = (
    "features_variable",
    "labels_variable",
    "transpose",
    "scale",
    "separator",
    "unlabelled",
)


def _named(files: Files) -> dict[str, Any]:
    """The files of one data set."""
    return {name: getattr(files, name) for name in ("features", "labels", "ids", "thumbnails")}


@dataclass(frozen=True)
class _Store:
    url: str
    changes: Changes

    def other_form(self, form: Mapping[str, Any]) -> str:
        """Say in which way a finished store is not of the form that is asked for, if it is not."""
        if self.changes.store != "finished":
            return ""
        store = FeatureStore.open(self.url)
        found = {
            "dtype": store.dtype("features").name,
            "chunk_rows": store.chunk_rows,
            "compression": store.compression,
        }
        other = (f"store.{n} is {found[n]}, not {form[n]}" for n in form if form[n] != found[n])
        return ", ".join(other)

    def to_read(self, mode: Mode | None) -> tuple[int, int]:
        """Rows and bytes that have to be read."""
        files = self.changes.files
        if mode != "overwrite" or files is None:
            return self.changes.n_new_rows, self.changes.n_new_bytes
        return expected(files, files.names("features"))

    def fingerprint(self) -> str:
        """Of the rows that are stored."""
        return FeatureStore.open(self.url).fingerprint()


def _number_otherwise(places: Places) -> bool:
    """Whether the same label means another class among the queries than in the database."""
    if places.queries is None:
        return False
    try:
        stores = [FeatureStore.open(url) for url in (places.database, places.queries)]
    except (FormatError, IncompleteError):  # one is not there yet: it will follow the other
        return False
    database, queries = (store.class_names for store in stores)
    shorter = min(len(database), len(queries))
    return database[:shorter] != queries[:shorter]


def store_exists(url: str) -> bool:
    """Whether a finished store is there."""
    try:
        FeatureStore.open(url)
    except (FormatError, IncompleteError):
        return False
    return True
