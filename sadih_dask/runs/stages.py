"""The stages of a run: what decides each, and what it does.

A stage's key is a hash of `decides` and of its revision, which is raised whenever the same inputs
would give another result. `work` may be killed at any moment and is called again with the same
artefact: what it finds there it goes on with.
"""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sadih_dask.compute.checkpoint import Checkpoint
from sadih_dask.errors import ConflictError, FormatError, IncompleteError, SadihError
from sadih_dask.model.parameters import DECIDED_BY_THE_SCAN
from sadih_dask.runs.directory import Artefact, Workspace, key_of
from sadih_dask.runs.settings import Search, Settings
from sadih_dask.runs.sources import Look, Places, Rows, rows_of
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.features import LEARNED_FROM
from sadih_dask.stores.settle import settle

if TYPE_CHECKING:
    from sadih_dask.jobs.evaluate import Collection
    from sadih_dask.model.estimator import SADIH
    from sadih_dask.report.retrieval import Length


logger = logging.getLogger(__name__)

MODEL, CODES, METRICS, INDEX = "model.sadih", "codes.zarr", "metrics.json", "index.faiss"
TUNING, SCAN, FIGURES, REPORT = "tuning", "scan", "figures", "report.html"

Progress = Callable[[int, int], None]
Outputs = dict[str, Any]


class Bar(Protocol):
    """Something to report progress to."""

    def __call__(self, done: int, total: int) -> None:
        """Show progress."""

    def over(self, n_units: int) -> Progress:
        """Say how many rows the total stands for."""


class Display(Protocol):
    """What a run shows while it goes on."""

    def bar(
        self, title: str, *, unit: str = "rows", goes_on: bool = False
    ) -> AbstractContextManager[Bar]:
        """Return a progress display."""


@dataclass(eq=False)
class Context:
    """What the stages of one run share.

    outputs     of the stages that are done, by name
    display     where progress is shown
    """

    settings: Settings
    workspace: Workspace
    display: Display
    outputs: dict[str, Outputs] = field(default_factory=dict)
    artefacts: dict[str, Artefact] = field(default_factory=dict)
    began: float = field(default_factory=time.time)

    @cached_property
    def places(self) -> Places:
        """Where the stores are."""
        form, place = self.settings.store, self.workspace.store_url
        queries = form.queries_url or place("queries.zarr")
        return Places(
            form.url or place("database.zarr"), queries if self.settings.has_queries else None
        )

    @cached_property
    def rows(self) -> Rows:
        """The source."""
        return rows_of(self.settings)

    @cached_property
    def look(self) -> Look:
        """What the source has now."""
        return self.rows.look(self.places)

    def look_again(self) -> None:
        """Forget what the source and the stores were before they were changed."""
        for name in ("look", "database", "queries"):
            self.__dict__.pop(name, None)

    @cached_property
    def database(self) -> FeatureStore:
        """The rows that are learned from and looked among."""
        return FeatureStore.open(self.places.database)

    @cached_property
    def queries(self) -> FeatureStore:
        """The rows that are looked up."""
        if self.places.queries is None:
            raise FormatError("this configuration has no queries")
        return FeatureStore.open(self.places.queries)

    @cached_property
    def model(self) -> SADIH:
        """The model of this run."""
        from sadih_dask.model.estimator import SADIH

        return SADIH.load(self.artefacts["fit"].url(MODEL))

    @cached_property
    def codes(self) -> CodeStore:
        """The hashed database."""
        return CodeStore.open(self.artefacts["encode"].url(CODES))

    @property
    def collection(self) -> Collection:
        """What the model is judged on."""
        from sadih_dask.jobs.evaluate import Collection

        return Collection(self.queries, self.database, self.codes)


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
        return [context.look.identity, context.places.queries is not None]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Bring the stores up to date."""
        del artefact
        with context.display.bar(self.title, goes_on=True) as bar:
            poured = context.rows.pour(context.places, context.look, bar)
        facts = {"rows": poured.n_new, "rows_kept": poured.n_kept, **poured.facts}
        facts["bytes"] = context.look.n_bytes
        context.look_again()
        for store in (context.database, context.queries if context.places.queries else None):
            if store is not None:
                settle(store)  # a run that was killed just after its commit may have left that
        return Made(_stores(context), facts)

    def is_there(self, context: Context, outputs: Outputs) -> bool:
        """The stores belong to the user as well: somebody may have changed or removed them."""
        if context.look.pending:  # a file came while others were read
            return False
        try:
            return _stores(context) == outputs
        except (FormatError, IncompleteError):
            return False

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """Rows and bytes that the stores do not have yet."""
        look = context.look
        anew = any(mode == "overwrite" for _, mode in look.actions.values())
        reason = {"reason": "all files are read anew"} if anew else {}
        return {"rows": look.n_new, "bytes": look.n_bytes, **reason}


def _stores(context: Context) -> Outputs:
    database, queries = context.database, None
    if context.places.queries is not None:
        queries = context.queries.fingerprint()
    return {
        "database": database.fingerprint(),
        "learned_from": database.fingerprint(arrays=LEARNED_FROM),
        "n_rows": database.n_rows,
        "queries": queries,
        "n_queries": 0 if queries is None else context.queries.n_rows,
    }


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
        return [context.outputs["ingest"]["learned_from"], said.parameters, search]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Learn from rows that no earlier model has learned from, and solve."""
        from sadih_dask.model.estimator import SADIH

        settings, store = context.settings.model, context.database
        checkpoint = Checkpoint(artefact.url(SCAN))
        if artefact.holds(self.links(context.settings)):
            # Written last, so a run was killed just after it.
            with suppress(SadihError, OSError):
                model = SADIH.load(artefact.url(MODEL))
                checkpoint.discard()
                return self._made(context, model, 0, store.n_rows)
        if settings.search is not None:
            model, n_known = self._search(context, settings.search, artefact, checkpoint), 0
        else:
            model, n_known = self._earlier(context, SADIH(**settings.parameters))
            with context.display.bar(self.title, goes_on=True) as bar:
                report = bar.over(store.n_rows - n_known)
                model.fit(store, progress=report, checkpoint=checkpoint)
        model.save(artefact.url(MODEL))
        checkpoint.discard()
        return self._made(context, model, n_known, checkpoint.n_rows_loaded)

    def _search(
        self, context: Context, said: Search, artefact: Artefact, checkpoint: Checkpoint
    ) -> SADIH:
        """Choose parameters by cross-validation; all results stay beside the model."""
        from sadih_dask.jobs import tune as tuning

        def bars(title: str, unit: str, n_units: int) -> AbstractContextManager[Progress]:
            return _over(context.display.bar(title, unit=unit, goes_on=unit == "rows"), n_units)

        found = tuning.tune(
            context.database,
            context.settings.model.parameters,
            said.grid,
            said.n_bits,
            said.folds,
            said.queries,
            progress=bars,
            checkpoint=checkpoint,
        )
        with artefact.local_folder() as folder:
            tuning.write(folder / TUNING, found)
        return found.model

    def _made(self, context: Context, model: SADIH, n_known: int, n_loaded: int) -> Made:
        store, coverage = context.database, model.coverage_
        outputs = {
            "fingerprint": model.fingerprint_,
            "n_bits": model.hash_function_.n_bits,
            "scan": _scan_parameters(model),
            "n_rows": store.n_rows,
            "learned_from": None if coverage is None else coverage.fingerprint,
        }
        n_read = store.n_rows - n_known - n_loaded
        facts = {
            "rows": n_read,
            "rows_known": n_known,
            "rows_resumed": n_loaded,
            "bytes": n_read * _row_bytes(store),
            "label_groups": model.groups_.n_groups,
            "parameters": model.get_params(deep=False),
            "iterations": model.n_iter_,
        }
        return Made(outputs, facts)

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """Rows that no earlier model has learned from, and the predicted memory of reading them."""
        from sadih_dask.model.estimator import SADIH

        store, said = context.database, context.settings.model
        wanted = SADIH(**said.parameters)
        n_known = 0 if said.search is not None else self._earlier(context, wanted)[1]
        n_left = store.n_rows - n_known
        found: dict[str, Any] = {"rows": n_left, "bytes": n_left * _row_bytes(store)}
        if n_left:
            return found | {"memory": wanted.plan(store).total}
        return found | {"reason": "solved from the statistics of an earlier run"}

    def _earlier(self, context: Context, wanted: SADIH) -> tuple[SADIH, int]:
        """An earlier model whose statistics cover the first rows of the store, most of them."""
        from sadih_dask.model.estimator import SADIH

        store, found = context.database, []
        for artefact in context.workspace.artefacts(self.name):
            done = artefact.done()
            known = {} if done is None else done["outputs"]
            if known.get("scan") != _scan_parameters(wanted) or known["n_rows"] > store.n_rows:
                continue
            if store.fingerprint(known["n_rows"], LEARNED_FROM) == known["learned_from"]:
                found.append((known["n_rows"], artefact))
        for n_rows, artefact in sorted(found, key=lambda one: -one[0]):
            try:
                model = SADIH.load(artefact.url(MODEL))
            except (SadihError, FileNotFoundError) as error:
                logger.warning("%s; its rows are read again", error)
            else:
                return model.set_params(**wanted.get_params()), n_rows
        return wanted, 0


@contextmanager
def _over(display: AbstractContextManager[Bar], n_units: int) -> Iterator[Progress]:
    with display as bar:
        yield bar.over(n_units)


def _scan_parameters(model: SADIH) -> dict[str, Any]:
    return {name: getattr(model, name) for name in DECIDED_BY_THE_SCAN}


def _row_bytes(store: FeatureStore) -> int:
    return store.n_features * store.dtype("features").itemsize


class Encode(Stage):
    """The database to codes."""

    name, title, needs, makes = "encode", "Encoding", ("ingest", "fit"), (CODES,)

    def decides(self, context: Context) -> Any:
        """The rows and the hash function."""
        return [context.outputs["ingest"]["database"], context.outputs["fit"]["fingerprint"]]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Hash the blocks that have no codes yet."""
        from sadih_dask.jobs.encode import encode

        store, job = context.database, (context.model, context.database, artefact.url(CODES))
        with context.display.bar(self.title) as bar:
            try:
                done = encode(*job, progress=bar.over)
            except ConflictError:  # begun under another plan: the directory was moved since
                done = encode(*job, overwrite=True, progress=bar.over)
        outputs = {"fingerprint": done.codes.fingerprint(), "n_rows": done.codes.n_rows}
        n_bytes = done.n_rows_encoded * _row_bytes(store)
        kept = store.n_rows - done.n_rows_encoded
        return Made(outputs, {"rows": done.n_rows_encoded, "rows_kept": kept, "bytes": n_bytes})

    def forecast(self, context: Context) -> Mapping[str, Any]:
        """All rows, unless some of them are hashed already."""
        store = context.database
        return {"rows": store.n_rows, "bytes": store.n_rows * _row_bytes(store)}


class Evaluate(Stage):
    """Queries to metrics."""

    name, title, makes = "evaluate", "Comparing", (METRICS,)
    needs = ("ingest", "fit", "encode")

    def wanted(self, settings: Settings) -> bool:
        """Whether there are queries."""
        return settings.has_queries

    def decides(self, context: Context) -> Any:
        """The model, the rows on both sides, and the code lengths."""
        outputs, bits = context.outputs, context.settings.evaluation.bits
        rows = [outputs["ingest"]["database"], outputs["ingest"]["queries"]]
        # Codes of further lengths follow from all parameters, not from this model's own codes.
        return [rows, context.artefacts["fit"].key, outputs["fit"]["fingerprint"], list(bits)]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Look the queries up under both protocols."""
        from sadih_dask.jobs.evaluate import document, measure

        bits = context.settings.evaluation.bits
        with context.display.bar(self.title) as bar:
            lengths = measure(context.model, context.collection, bits, bar.over)
        text = json.dumps(document(context.model, context.collection, lengths), indent=1)
        artefact.write(METRICS, text.encode())
        metrics = {
            str(length.n_bits): {
                name: _known(found.numbers) for name, found in length.known.items()
            }
            for length in lengths
        }
        return Made(
            {"metrics": metrics}, {"rows": context.queries.n_rows}, self._odd(context, lengths)
        )

    @staticmethod
    def _odd(context: Context, lengths: Sequence[Length]) -> tuple[str, ...]:
        """Queries that have nothing to find are probably labelled in another way."""
        found = lengths[0].protocols.learned
        if not found.n_without_relevant:
            return ()
        names = [", ".join(store.class_names[:5]) for store in (context.queries, context.database)]
        return (
            f"{found.n_without_relevant} of {found.n_queries} queries have no relevant row in the "
            f"database; classes of the queries begin with {names[0]}, of the database {names[1]}",
        )


def _known(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _lacks(package: str, what: str, extra: str) -> str | None:
    if find_spec(package) is not None:
        return None
    return f"{what} needs {package}; install it with: pip install 'sadih-dask[{extra}]'"


class Export(Stage):
    """Codes to an index."""

    name, title, needs, makes = "export", "Exporting", ("encode",), (INDEX,)

    def wanted(self, settings: Settings) -> bool:
        """Whether an index is asked for."""
        return settings.export.index != "none"

    def lacks(self) -> str | None:
        """FAISS, where it is not installed."""
        return _lacks("faiss", "an index", "faiss")

    def decides(self, context: Context) -> Any:
        """The codes and the kind of index."""
        form = context.settings.export.model_dump()
        return [context.outputs["encode"]["fingerprint"], form]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Write the index."""
        from sadih_dask.jobs.export import export_faiss

        said = context.settings.export
        with artefact.local_folder() as folder, context.display.bar(self.title) as bar:
            export_faiss(
                context.codes,
                folder / INDEX,
                said.index,  # type: ignore[arg-type]  # "none" is not wanted
                n_lists=said.lists,
                n_probe=said.probe,
                n_hashes=said.hashes,
                hash_bits=said.hash_bits,
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
        return _lacks("matplotlib", "a report", "report")

    def decides(self, context: Context) -> Any:
        """What was measured, of which model, the names of the classes, and the title."""
        outputs = context.outputs
        shown = [outputs["encode"]["fingerprint"], list(context.database.class_names)]
        return [context.artefacts["evaluate"].key, shown, context.settings.report.model_dump()]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Draw, and write the page."""
        from sadih_dask.jobs.evaluate import lengths_of, write_page

        lengths = lengths_of(json.loads(context.artefacts["evaluate"].read(METRICS)))
        title = context.settings.report.title or "Retrieval quality"
        with artefact.local_folder() as folder, context.display.bar(self.title) as bar:
            write_page(
                folder,
                context.model,
                context.collection,
                lengths,
                title=title,
                began=context.began,
                progress=bar.over,
            )
        return Made({}, {"finished": datetime.now(UTC).isoformat(timespec="seconds")})


STAGES: tuple[Stage, ...] = (Ingest(), Fit(), Encode(), Evaluate(), Export(), Report())
