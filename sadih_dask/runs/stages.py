"""The stages of a run: what decides each, and what it does.

A stage's key is a hash of `decides` and of its revision, which is raised whenever the same inputs
would give another result. `work` may be killed at any moment and is called again with the same
artefact: what it finds there it goes on with.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from sadih_dask.errors import ConflictError, FormatError, IncompleteError
from sadih_dask.ingest import DataFiles, HoldOut
from sadih_dask.jobs.encode import encode
from sadih_dask.jobs.evaluate import (
    FIGURES,
    METRICS,
    REPORT,
    Collection,
    lengths_of,
    measure,
    missing_matplotlib,
    write_metrics,
    write_page,
)
from sadih_dask.jobs.export import export_faiss
from sadih_dask.jobs.fit import Fitted, fit, reusable
from sadih_dask.jobs.ingest import Clouds, Digits, Plan, Source, SourceFiles, Stores
from sadih_dask.jobs.methods import compare_methods
from sadih_dask.jobs.tune import tune
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods import load_model, method_named
from sadih_dask.report.page import Length
from sadih_dask.runs.directory import SCAN, Artefact, RunDirectory, key_of
from sadih_dask.runs.record import MOST_CLASSES
from sadih_dask.runs.settings import DigitsSource, Files, Search, Settings, SyntheticSource
from sadih_dask.sources import read_class_names
from sadih_dask.stores import CodeStore, FeatureStore

MODEL, CODES, TUNING, INDEX = "model.sadih", "codes.zarr", "tuning", "index.faiss"
COMPARISON = "comparison"
DATABASE, QUERIES = "database.zarr", "queries.zarr"
"""Stores in the run directory, where the configuration gives them no other place."""

Outputs = dict[str, Any]
Display = Callable[..., Any]
"""Asked for a display of progress, such as `cli.output.Bar`, by a title, and `goes_on`."""


@dataclass(eq=False)
class Context:
    """What the stages of one run share.

    outputs     of the stages that are done, by name
    display     where progress is shown
    """

    settings: Settings
    directory: RunDirectory
    display: Display
    outputs: dict[str, Outputs] = field(default_factory=dict)
    artefacts: dict[str, Artefact] = field(default_factory=dict)
    began: float = field(default_factory=time.time)

    @cached_property
    def stores(self) -> Stores:
        """Where the stores are."""
        said, own = self.settings.store, self.directory.files
        database = said.url or own.address(DATABASE)
        if not self.settings.has_queries:
            return Stores(database, None)
        return Stores(database, said.queries_url or own.address(QUERIES))

    @property
    def own_stores(self) -> list[str]:
        """Names of the stores that lie in the run directory."""
        urls = {DATABASE: self.stores.database, QUERIES: self.stores.queries}
        return [name for name, url in urls.items() if url == f"{self.directory.url}/{name}"]

    @cached_property
    def source(self) -> Source:
        """Where the rows come from."""
        return source_of(self.settings)

    @cached_property
    def plan(self) -> Plan:
        """What the source has now."""
        return self.source.plan(self.stores)

    def look_again(self) -> None:
        """Forget what the source and the stores were before they were changed."""
        for name in ("plan", "database", "queries"):
            self.__dict__.pop(name, None)

    @cached_property
    def database(self) -> FeatureStore:
        """The rows that are learned from and looked among."""
        return FeatureStore.open(self.stores.database)

    @cached_property
    def queries(self) -> FeatureStore | None:
        """The rows that are looked up, if there are any."""
        url = self.stores.queries
        return None if url is None else FeatureStore.open(url)

    @cached_property
    def model(self) -> Hasher:
        """The model of this run."""
        return load_model(self.artefacts["fit"].url(MODEL))

    @cached_property
    def codes(self) -> CodeStore:
        """The hashed database."""
        return CodeStore.open(self.artefacts["encode"].url(CODES))

    @property
    def collection(self) -> Collection:
        """What the model is judged on."""
        if self.queries is None:
            raise FormatError("this configuration has no queries")
        return Collection(self.queries, self.database, self.codes)


def source_of(settings: Settings) -> Source:
    """The source that a configuration names."""
    said = settings.source
    form = settings.store.model_dump(
        include={"dtype", "chunk_rows", "compression"}, exclude_none=True
    )
    if isinstance(said, DigitsSource):
        return Digits(form)
    if isinstance(said, SyntheticSource):
        drawn = {"seed": said.seed, "spread": said.spread}
        return Clouds(said.rows, said.queries, said.features, said.classes, drawn, form)
    reading = {"features_variable", "labels_variable", "ids_variable", "transpose", "scale"}
    options = said.model_dump(include={*reading, "separator", "unlabelled"})
    if said.class_names is not None:
        options["class_names"] = read_class_names(Path(said.class_names))

    def named(files: Files) -> DataFiles:
        beside = {name: getattr(files, name) for name in ("labels", "ids", "thumbnails")}
        return DataFiles(files.features, **beside, **options, labelled=True)

    database, queries = named(said), None if said.queries is None else named(said.queries)
    if said.hold_out is not None:
        part = HoldOut(said.hold_out, said.seed)
        queries = replace(database, hold_out=replace(part, part="queries"))
        database = replace(database, hold_out=part)
    policy = said.model_dump(include={"on_change", "on_removal", "min_age", "on_error"})
    return SourceFiles(database, queries, form, **policy)


@dataclass(frozen=True)
class Made:
    """What a stage made: what later stages go by, what a record says, what a user should know."""

    outputs: Outputs
    facts: Mapping[str, Any]
    remarks: tuple[str, ...] = ()


class Stage(ABC):
    """One step of a run."""

    name: ClassVar[str]
    title: ClassVar[str]
    revision: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]]
    makes: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = False

    def wanted(self, settings: Settings) -> bool:
        """Whether the configuration asks for it."""
        del settings
        return True

    def links(self, settings: Settings) -> tuple[str, ...]:
        """What of it a run's folder shows."""
        del settings
        return self.makes

    def lacks(self) -> str | None:
        """What is not installed here and would be needed, with the remedy."""
        return None

    def key(self, context: Context) -> str:
        """A hash of everything that decides what the stage makes."""
        return key_of(self.name, self.revision, self.decides(context))

    def current(self, context: Context, artefact: Artefact) -> Outputs | None:
        """What the stage made before, if all of it is there as it was left."""
        done = artefact.done()
        if done is None or not artefact.holds(self.links(context.settings)):
            return None
        outputs: Outputs = done["outputs"]
        return outputs if self.is_there(context, outputs) else None

    @abstractmethod
    def decides(self, context: Context) -> Any:
        """Inputs and parameters, as JSON takes them."""

    @abstractmethod
    def work(self, context: Context, artefact: Artefact) -> Made:
        """Do it, or the rest of it."""

    def is_there(self, context: Context, outputs: Outputs) -> bool:
        """Whether what was made is still as it was; only what lies elsewhere needs a look."""
        del context, outputs
        return True

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """What doing it would take, as far as that is known beforehand."""
        del context
        return {}


class Ingest(Stage):
    """Files to stores."""

    name, title, needs = "ingest", "Ingesting", ()

    def decides(self, context: Context) -> Any:
        """The sources as they are now; wherever their rows go, `is_there` looks at them."""
        return [context.plan.identity, context.stores.queries is not None]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Bring the stores up to date."""
        del artefact
        plan = context.plan
        with context.display(self.title, goes_on=True):
            rows = context.source.ingest(context.stores, plan)
        context.look_again()
        facts = {"rows": rows.n_new, "rows_kept": rows.n_kept, **rows.facts, "bytes": plan.n_bytes}
        skipped = tuple(f"source: skipped: {reason}" for reason in rows.skipped.values())
        return Made(self._found(context), facts, (*rows.remarks, *skipped))

    def is_there(self, context: Context, outputs: Outputs) -> bool:
        """The stores belong to the user as well: somebody may have changed or removed them."""
        if any(context.plan.reads.values()):  # a file came while others were read
            return False
        try:
            return self._found(context) == outputs
        except (FormatError, IncompleteError):
            return False

    @staticmethod
    def _found(context: Context) -> Outputs:
        database, queries = context.database, context.queries
        return {
            "database": database.fingerprint(),
            "learned_from": database.fingerprint(arrays=database.learned_from),
            "n_rows": database.n_rows,
            "queries": None if queries is None else queries.fingerprint(),
            "n_queries": 0 if queries is None else queries.n_rows,
            "classes": list(database.class_names[:MOST_CLASSES]),
        }

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """Rows and bytes that the stores do not have yet."""
        plan = context.plan
        anew = any(read is not None and read[1] == "overwrite" for read in plan.reads.values())
        reason = {"reason": "all files are read anew"} if anew else {}
        return {"rows": plan.n_new, "bytes": plan.n_bytes, **reason}


class Fit(Stage):
    """Rows to a model."""

    name, title, needs = "fit", "Scanning", ("ingest",)

    def links(self, settings: Settings) -> tuple[str, ...]:
        """The model, and how its parameters were chosen."""
        return (MODEL,) if settings.model.search is None else (MODEL, TUNING)

    def decides(self, context: Context) -> Any:
        """The rows, and all parameters of the model."""
        said = context.settings.model
        search = None if said.search is None else said.search.model_dump()
        method = () if said.method == "sadih" else (said.method,)
        return [context.outputs["ingest"]["learned_from"], said.parameters, search, *method]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Learn from rows that no earlier model has learned from, and solve."""
        said, store = context.settings.model, context.database
        target, scan = artefact.url(MODEL), artefact.url(SCAN)
        with context.display(self.title, goes_on=True):
            if said.search is not None:
                fitted = self._search(context, said.search, artefact)
            else:
                fitted = fit(
                    store,
                    target,
                    said.parameters,
                    method=said.method,
                    candidates=self._earlier(context),
                    overwrite=True,  # a run that was killed has left it
                    checkpoint=scan,
                )
        model, n_read = fitted.model, fitted.n_rows_read
        outputs = {
            "fingerprint": model.fingerprint_,
            "n_bits": model.hash_function_.n_bits,
            "n_rows": store.n_rows,
        }
        facts = {
            "rows": n_read,
            "rows_known": fitted.n_rows_known,
            "rows_resumed": fitted.n_rows_loaded,
            "bytes": n_read * store.row_bytes,
            "label_groups": model.groups_.n_groups,
            "parameters": model.get_params(deep=False),
            "iterations": model.n_iter_,
        }
        return Made(outputs, facts)

    def _search(self, context: Context, said: Search, artefact: Artefact) -> Fitted:
        """Choose parameters by cross-validation; all results stay beside the model."""
        with artefact.local_folder() as folder:
            return tune(
                context.database,
                artefact.url(MODEL),
                context.settings.model.parameters,
                said.grid,
                said.n_bits,
                said.folds,
                said.queries,
                results=folder / TUNING,
                overwrite=True,
                checkpoint=artefact.url(SCAN),
            ).fitted

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """Rows that no earlier model has learned from, and the predicted memory of reading them."""
        store, said = context.database, context.settings.model
        wanted = method_named(said.method, said.parameters)
        earlier = () if said.search is not None else self._earlier(context)
        change = reusable(store, wanted, earlier)[1]
        n_left = store.n_rows if change is None else change.n_new
        found: dict[str, Any] = {"rows": n_left, "bytes": n_left * store.row_bytes}
        if n_left:
            return found | {"memory": wanted.plan(store).total}
        return found | {"reason": "solved from the statistics of an earlier run"}

    def _earlier(self, context: Context) -> list[str]:
        """Model files of this and of earlier runs, those of most rows first."""
        found = [one for one in context.directory.artefacts(self.name) if one.holds([MODEL])]
        rows = {one.key: done["outputs"]["n_rows"] for one in found if (done := one.done())}
        # One that is not done was left by a run that was killed after all its rows were read.
        ordered = sorted(found, key=lambda one: -rows.get(one.key, context.database.n_rows))
        return [one.url(MODEL) for one in ordered]


class Encode(Stage):
    """The database to codes."""

    name, title, needs, makes = "encode", "Encoding", ("ingest", "fit"), (CODES,)

    def decides(self, context: Context) -> Any:
        """The rows, the hash function and how bits are packed."""
        rows, model = context.outputs["ingest"]["database"], context.outputs["fit"]["fingerprint"]
        order = context.settings.store.bitorder
        return [rows, model] if order == "little" else [rows, model, order]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Hash the blocks that have no codes yet."""
        store, job = context.database, (context.model, context.database, artefact.url(CODES))
        order = context.settings.store.bitorder
        with context.display(self.title):
            try:
                done = encode(*job, bitorder=order)
            except ConflictError:  # begun under another plan: the directory was moved since
                done = encode(*job, bitorder=order, overwrite=True)
        outputs = {"fingerprint": done.codes.fingerprint(), "n_rows": done.codes.n_rows}
        n_bytes = done.n_rows_encoded * store.row_bytes
        kept = store.n_rows - done.n_rows_encoded
        return Made(outputs, {"rows": done.n_rows_encoded, "rows_kept": kept, "bytes": n_bytes})

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """All rows, unless some of them are hashed already."""
        store = context.database
        return {"rows": store.n_rows, "bytes": store.n_rows * store.row_bytes}


class Evaluate(Stage):
    """Queries to metrics."""

    name, title, makes = "evaluate", "Evaluating", (METRICS,)
    needs = ("ingest", "fit", "encode")

    def wanted(self, settings: Settings) -> bool:
        """Whether there are queries."""
        return settings.has_queries

    def decides(self, context: Context) -> Any:
        """The model, the rows on both sides, the code lengths and how many are looked up."""
        outputs, asked = context.outputs, context.settings.evaluation
        rows = [outputs["ingest"]["database"], outputs["ingest"]["queries"]]
        # Codes of further lengths follow from all parameters, not from this model's own codes.
        model = [context.artefacts["fit"].key, outputs["fit"]["fingerprint"]]
        return [rows, *model, list(asked.bits), asked.max_queries, asked.class_folds]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Look the queries up under every protocol."""
        model, rows = context.model, context.collection
        asked = context.settings.evaluation
        with context.display(self.title):
            lengths = measure(model, rows, asked.bits, asked.max_queries, asked.class_folds)
        with artefact.local_folder() as folder:
            write_metrics(folder, model, rows, lengths)
        metrics, errors = (
            {
                str(length.n_bits): {
                    name: _known(getattr(found, numbers)) for name, found in length.known.items()
                }
                for length in lengths
            }
            for numbers in ("numbers", "standard_errors")
        )
        n_queries = lengths[0].protocols.widest.n_queries
        outputs = {"metrics": metrics, "standard_errors": errors, "n_queries": n_queries}
        return Made(outputs, {"rows": n_queries}, self._odd(rows, lengths))

    @staticmethod
    def _odd(rows: Collection, lengths: Sequence[Length]) -> tuple[str, ...]:
        """Queries that have nothing to find are probably labelled in another way."""
        found = lengths[0].protocols.widest
        if not found.n_without_relevant or rows.database is None:
            return ()
        names = [", ".join(store.class_names[:5]) for store in (rows.queries, rows.database)]
        return (
            f"{found.n_without_relevant} of {found.n_queries} queries have no relevant row in the "
            f"database; classes of the queries begin with {names[0]}, of the database {names[1]}",
        )


def _known(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class Export(Stage):
    """Codes to an index."""

    name, title, needs, makes = "export", "Exporting", ("encode",), (INDEX,)

    def wanted(self, settings: Settings) -> bool:
        """Whether an index is asked for."""
        return settings.export.index != "none"

    def lacks(self) -> str | None:
        """FAISS, where it is not installed."""
        if find_spec("faiss") is not None:
            return None
        return "an index needs faiss; install it with: pip install 'sadih-dask[faiss]'"

    def decides(self, context: Context) -> Any:
        """The codes and the kind of index."""
        form = context.settings.export.model_dump()
        return [context.outputs["encode"]["fingerprint"], form]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Write the index."""
        said = context.settings.export
        with artefact.local_folder() as folder, context.display(self.title) as bar:
            export_faiss(
                context.codes,
                folder / INDEX,
                said.index,  # type: ignore[arg-type]  # "none" is not wanted
                n_lists=said.lists,
                n_probe=said.probe,
                n_hashes=said.hashes,
                hash_bits=said.hash_bits,
                bitorder=context.codes.bitorder,
                progress=bar,
            )
            size = (folder / INDEX).stat().st_size
        return Made({}, {"rows": context.codes.n_rows, "bytes": size})


class Report(Stage):
    """Metrics to a page."""

    name, title, needs, makes = "report", "Looking at codes", ("evaluate",), (REPORT, FIGURES)
    optional = True

    def wanted(self, settings: Settings) -> bool:
        """Whether it is asked for and there is something to show."""
        return settings.report.enabled and settings.has_queries

    def lacks(self) -> str | None:
        """Matplotlib, where it is not installed."""
        return missing_matplotlib()

    def decides(self, context: Context) -> Any:
        """What was measured, of which model, the names of the classes, and the title."""
        outputs = context.outputs
        shown = [outputs["encode"]["fingerprint"], list(context.database.class_names)]
        return [context.artefacts["evaluate"].key, shown, context.settings.report.model_dump()]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Draw, and write the page."""
        lengths = lengths_of(json.loads(context.artefacts["evaluate"].read(METRICS)))
        title = context.settings.report.title or "Retrieval quality"
        with artefact.local_folder() as folder, context.display(self.title):
            write_page(
                folder,
                context.model,
                context.collection,
                lengths,
                title=title,
                began=context.began,
            )
        return Made({}, {"finished": datetime.now(UTC).isoformat(timespec="seconds")})


class Compare(Stage):
    """Other methods beside the model's."""

    name, title, needs, makes = "compare", "Comparing methods", ("ingest",), (COMPARISON,)

    def wanted(self, settings: Settings) -> bool:
        """Whether it is asked for."""
        return settings.compare is not None

    def decides(self, context: Context) -> Any:
        """The rows on both sides, the methods and lengths, and the parameters that they share."""
        rows = [context.outputs["ingest"][name] for name in ("database", "queries")]
        return [rows, self._asked(context), context.settings.report.title]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Learn by every method, and look the queries up."""
        if (queries := context.queries) is None:
            raise FormatError("this configuration has no queries")
        asked, title = self._asked(context), context.settings.report.title
        with artefact.local_folder() as folder, context.display(self.title, goes_on=True):
            found = compare_methods(
                context.database,
                queries,
                **asked,
                results=folder / COMPARISON,
                title=title or "Methods side by side",
            )
        failed = [f"{one.method}, {one.n_bits} bits: {one.failure}" for one in found if one.failure]
        return Made({"n_measured": len(found) - len(failed)}, {"rows": queries.n_rows}, (*failed,))

    @staticmethod
    def _asked(context: Context) -> dict[str, Any]:
        settings = context.settings
        shared = {n: v for n, v in settings.model.parameters.items() if n != "n_bits"}
        said = settings.compare.model_dump() if settings.compare is not None else {}
        asked = settings.evaluation.model_dump(include={"max_queries", "class_folds"})
        return {**said, **asked, "parameters": shared}


STAGES: tuple[Stage, ...] = (
    Ingest(),
    Fit(),
    Encode(),
    Evaluate(),
    Export(),
    Report(),
    Compare(),
)
