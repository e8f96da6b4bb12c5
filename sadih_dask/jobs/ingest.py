"""Stores brought up to date with a source: files, scikit-learn's digits, or random clouds.

A source is looked at first, without reading it (`plan`), and then read as the plan says (`ingest`);
the same call completes one that was interrupted.
The database comes first, and the queries follow the numbers that it gives to classes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

from sadih_dask.compute.run import listener, nobody, reporting
from sadih_dask.compute.tree import run_each
from sadih_dask.errors import (
    Argument,
    ConflictError,
    DtypeError,
    FormatError,
    IncompleteError,
    InputError,
    NoFilesError,
    Remedy,
    SadihError,
)
from sadih_dask.ingest import Changes, DataFiles, Ingested, Mode, compare
from sadih_dask.ingest import ingest as ingest_files
from sadih_dask.ingest.changes import expected
from sadih_dask.ingest.ingestion import other_form, read_through
from sadih_dask.ingest.provenance import NOTHING, look, provenance_of
from sadih_dask.ingest.synthetic import Part, generate
from sadih_dask.stores import FeatureStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stores:
    """Where the database and the queries are stored; None: there are no queries."""

    database: str
    queries: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a source has, found without reading it.

    identity    changes when the rows do
    n_new       rows that the stores do not have yet, if that is known
    n_bytes     of them
    remarks     what a user should know: files that are gone, changed or too young
    reads       of a source of files: what is to be read into each store, and how; None: nothing
    """

    identity: Any
    n_new: int | None = None
    n_bytes: int | None = None
    remarks: tuple[str, ...] = ()
    reads: Mapping[str, tuple[DataFiles, Mode] | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Rows of the database that were written now and that were there, and what else to say."""

    n_new: int
    n_kept: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Digits:
    """The handwritten digits that ship inside scikit-learn; a fifth of them are queries."""

    form: Mapping[str, Any]

    def plan(self, stores: Stores) -> Plan:
        """All of them, always."""
        del stores
        return Plan(["digits", version("scikit-learn"), self.form])

    def ingest(self, stores: Stores, plan: Plan) -> Rows:
        """Write both stores anew."""
        del plan
        import numpy as np
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        database, queries = train_test_split(
            np.arange(len(digits.target)), test_size=0.2, stratify=digits.target, random_state=0
        )
        for url, rows in ((stores.database, database), (stores.queries, queries)):
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
        if (heard := listener()) is not None:
            heard(len(database), len(database))
        return Rows(len(database))


@dataclass(frozen=True)
class Clouds:
    """Gaussian clouds, one a class; ``options`` are those of `ingest.synthetic.generate`."""

    n_rows: int
    n_queries: int
    n_features: int
    n_classes: int
    options: Mapping[str, Any]
    form: Mapping[str, Any]

    def plan(self, stores: Stores) -> Plan:
        """All rows; those that are there are found when they are made."""
        del stores
        return Plan(["synthetic", vars(self)], self.n_rows, self.n_rows * self.n_features * 4)

    def ingest(self, stores: Stores, plan: Plan) -> Rows:
        """Make what is not there."""
        del plan
        parts: tuple[tuple[str | None, int, Part], ...] = (
            (stores.database, self.n_rows, "database"),
            (stores.queries, self.n_queries, "queries"),
        )
        for url, n_rows, part in parts:
            if url is not None:
                generate(
                    url,
                    n_rows,
                    self.n_features,
                    self.n_classes,
                    part=part,
                    progress=None if part == "database" else nobody,
                    overwrite=True,
                    **self.options,
                    **self.form,
                )
        return Rows(self.n_rows)


def ingest(
    reads: Mapping[str, tuple[DataFiles, Mode] | None],
    stores: Stores,
    form: Mapping[str, Any],
) -> dict[str, Ingested]:
    """Read files into stores, the database first; return what was done to each.

    Queries get the classes of the database, under the same numbers, also those they have no row of.
    """
    done = {}
    for url in (stores.database, stores.queries):
        if url is None or (read := reads.get(url)) is None:
            continue
        files, mode = read
        if url == stores.queries:
            database = FeatureStore.open(stores.database)
            numbers = (provenance_of(database) or NOTHING).row_numbers
            known = database.class_names or None
            files = replace(files, known_classes=known, numbered_as=numbers)
        done[url] = ingest_files(files, url, mode=mode, **form)
    return done


@dataclass(frozen=True)
class SourceFiles:
    """Files that may have changed since they were read.

    on_change    what to do if a file that was read is another now, or the form of a store
    on_removal   what to do if a file that was read is gone
    on_error     what to do about a file that cannot be read: stop, or take the others
    skipped      files that could not be read, and why
    """

    database: DataFiles
    queries: DataFiles | None
    form: Mapping[str, Any]
    on_change: Literal["refuse", "rebuild"] = "refuse"
    on_removal: Literal["keep", "refuse", "rebuild"] = "keep"
    min_age: float = 0.0
    on_error: Literal["stop", "skip"] = "stop"
    skipped: dict[str, str] = field(default_factory=dict, compare=False)

    def plan(self, stores: Stores) -> Plan:
        """Compare the files with the stores; ConflictError if that is to be refused."""
        while True:
            try:
                return self._plan(stores)
            except _UNREADABLE as error:
                self._skip(stores, error)

    def _plan(self, stores: Stores) -> Plan:
        found = {url: self._compared(files, url) for url, files in self._sets(stores)}
        modes = {url: self._mode(changes) for url, changes in found.items()}
        if stores.queries in found and _number_otherwise(stores):
            modes[stores.queries] = "overwrite"
        pending = any(modes.values())
        states = [
            changes.fingerprint if pending else FeatureStore.open(url).fingerprint()
            for url, changes in found.items()
        ]
        sizes = [_to_read(changes, modes[url]) for url, changes in found.items()]
        remarks = [f"source: {words}" for one in found.values() if (words := one.in_words())]
        remarks += (f"source: skipped: {reason}" for reason in self.skipped.values())
        reads = {
            url: None if mode is None or (files := found[url].files) is None else (files, mode)
            for url, mode in modes.items()
        }
        return Plan(
            ["files", pending, states, self.form],
            sum(n_rows for n_rows, _ in sizes),
            sum(n_bytes for _, n_bytes in sizes),
            tuple(dict.fromkeys(remarks)),
            reads,
        )

    def ingest(self, stores: Stores, plan: Plan) -> Rows:
        """Append new files, or make a store anew where that was chosen."""
        while True:
            try:
                return replace(self._ingest(stores, plan), skipped=self.skipped)
            except _UNREADABLE as error:
                self._skip(stores, error)
                plan = self._plan(stores)

    def _skip(self, stores: Stores, error: SadihError) -> None:
        """Find files that cannot be read by themselves and pass them over, or raise the error."""
        if self.on_error != "skip" or isinstance(error, NoFilesError):
            raise error
        n_before = len(self.skipped)
        for url, files in self._sets(stores):
            store = FeatureStore.open(url) if _exists(url) else None
            files = self._readable(files).expanded()
            known = NOTHING if store is None else provenance_of(store) or NOTHING
            states = zip(files.groups() or [], look(files, known).marks, strict=True)
            new = [files.of(group) for group, mark in states if not known.has(mark)]
            with reporting(nobody):
                reasons = run_each(_unreadable, store, new, "check")
            for one, reason in zip(new, reasons, strict=True):
                if reason is not None:
                    self.skipped[one.names("features")[0]] = reason
                    logger.warning("skipped: %s", reason)
        if len(self.skipped) == n_before:
            raise error

    def _readable(self, files: DataFiles) -> DataFiles:
        """The files without those that are skipped."""
        if not self.skipped:
            return files
        files = files.expanded()
        kept = [g for g in files.groups() or [] if g["features"][0] not in self.skipped]
        if not kept:
            first, *others = self.skipped.values()
            more = f" ({len(others)} more files likewise)" * bool(others)
            raise NoFilesError(f"no file can be read: {first}{more}")
        names = {name: tuple(group[name][0] for group in kept) for name in kept[0]}
        return files.of(names)

    def _ingest(self, stores: Stores, plan: Plan) -> Rows:
        done: dict[str, Ingested] = {}
        for url, files in self._sets(stores):
            read = plan.reads[url]
            if url == stores.queries and _number_otherwise(stores):
                read = self._renumbering(url, files)  # the database was made anew just now
            # A store that is appended to has its form already.
            form = {} if read and read[1] == "append" and _exists(url) else self.form
            done |= ingest({url: read}, stores, form)
        if (database := done.get(stores.database)) is None:
            return Rows(0)
        facts = {"files": database.n_files, "rows_dropped": database.n_dropped}
        advice = tuple(map(str, database.advice))
        return Rows(database.n_new, database.n_kept, facts, advice)

    def _sets(self, stores: Stores) -> Iterator[tuple[str, DataFiles]]:
        yield stores.database, self.database
        if self.queries is not None and stores.queries is not None:
            yield stores.queries, self.queries

    def _compared(self, files: DataFiles, url: str) -> Changes:
        return compare(self._readable(files), url, min_age=self.min_age)

    def _renumbering(self, url: str, files: DataFiles) -> tuple[DataFiles, Mode]:
        """Queries are read again under the numbers that the database gives their classes now."""
        changes = self._compared(files, url)
        if changes.files is None or changes.gone:
            raise ConflictError(
                f"{url} numbers its classes in another way than the database, and not all of its "
                "files are there to be read again. Put them back, or remove it"
            )
        return changes.files, "overwrite"

    def _mode(self, changes: Changes) -> Mode | None:
        """What is to be done to a store, if anything."""
        if changes.files is None:
            kept = not changes.gone or self.on_removal == "keep"
            if changes.store == "finished" and kept:
                return None
            raise InputError(f"there is no file to read yet: {changes.in_words()}")
        if changes.store == "begun" and not changes.goes_on:
            return "overwrite"  # only half-done work is lost
        other_form = self._other_form(changes)
        policies = (
            (changes.altered or bool(other_form), self.on_change),
            (bool(changes.gone), self.on_removal),
        )
        asked = {policy for found, policy in policies if found}
        # What is made anew cannot keep rows whose files are gone.
        if "refuse" in asked or asked >= {"rebuild", "keep"}:
            words = "; ".join(part for part in (changes.in_words(), other_form) if part)
            raise ConflictError(
                f"{changes.url}: {words}",
                remedy=Remedy(
                    "Put it back as it was, or make the store anew with {} (and {}, without the "
                    "rows of files that are gone)",
                    Argument("on_change", "rebuild"),
                    Argument("on_removal", "rebuild"),
                ),
            )
        if "rebuild" in asked:
            return "overwrite"
        return "append" if changes.new or changes.store != "finished" else None

    def _other_form(self, changes: Changes) -> str:
        """Say in which way a finished store is not of the form that is asked for, if it is not."""
        if changes.store != "finished":
            return ""
        found = other_form(FeatureStore.open(changes.url), self.form)
        return ", ".join(f"{name} is {has}, not {self.form[name]}" for name, has in found.items())


_UNREADABLE = (InputError, FormatError, DtypeError)


def _unreadable(store: FeatureStore | None, files: DataFiles) -> str | None:
    """Read files through, as a task, and return what is wrong with them."""
    try:
        read_through(files, store)
    except _UNREADABLE as reason:
        return str(reason)
    return None


Source: TypeAlias = SourceFiles | Digits | Clouds


def _to_read(changes: Changes, mode: Mode | None) -> tuple[int, int]:
    """Rows and bytes that have to be read."""
    if mode != "overwrite" or changes.files is None:
        return changes.n_new_rows, changes.n_new_bytes
    return expected(changes.files, changes.files.names("features"))


def _number_otherwise(stores: Stores) -> bool:
    """Whether the same label means another class among the queries than in the database."""
    if stores.queries is None or not (_exists(stores.database) and _exists(stores.queries)):
        return False  # one is not there yet: it will follow the other
    urls = (stores.database, stores.queries)
    database, queries = (FeatureStore.open(url).class_names for url in urls)
    shorter = min(len(database), len(queries))
    return database[:shorter] != queries[:shorter]


def _exists(url: str) -> bool:
    """Whether a finished store is there."""
    try:
        FeatureStore.open(url)
    except (FormatError, IncompleteError):
        return False
    return True
