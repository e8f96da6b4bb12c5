"""The stages of a run: what decides each, and what it does; `fit` has a module of its own."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sadih_dask.errors import ConflictError, FormatError, IncompleteError, SadihError, lacking
from sadih_dask.jobs import evaluate
from sadih_dask.jobs.encode import encode
from sadih_dask.jobs.evaluate import (
    COUNTS,
    FIGURES,
    METRICS,
    REPORT,
    Measured,
    lengths_of,
    measure,
    nothing_to_find,
    write_counts,
    write_metrics,
    write_page,
)
from sadih_dask.jobs.export import export, grows
from sadih_dask.jobs.methods import compare_methods
from sadih_dask.runs.artefact import Artefact
from sadih_dask.runs.fit import Fit
from sadih_dask.runs.record import MOST_CLASSES
from sadih_dask.runs.settings import Settings
from sadih_dask.runs.stage import CODES, INDEX, Context, Made, Outputs, Stage
from sadih_dask.stores.coverage import Coverage

logger = logging.getLogger(__name__)

COMPARISON = "comparison"


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


class Encode(Stage):
    """The database to codes."""

    name, title, needs, makes = "encode", "Encoding", ("ingest", "fit"), (CODES,)

    def decides(self, context: Context) -> Any:
        """The rows, the hash function, how bits are packed, and the names of the classes."""
        rows, model = context.outputs["ingest"]["database"], context.outputs["fit"]["fingerprint"]
        return [rows, model, context.settings.store.bitorder, list(context.database.class_names)]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Hash the blocks that have no codes yet; those of the latest run are taken over."""
        store, job = context.database, (context.model, context.database, artefact.url(CODES))
        order, former = context.settings.store.bitorder, context.former(self.name)
        earlier = [] if former is None else [former[0].url(CODES)]
        with context.display(self.title):
            try:
                done = encode(*job, bitorder=order, candidates=earlier)
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
        model, rows, former = context.model, context.collection, self._former(context)
        asked = context.settings.evaluation
        with context.display(self.title):
            found = measure(model, rows, asked.bits, asked.max_queries, asked.class_folds, former)
        lengths = found.lengths
        with artefact.local_folder() as folder:
            write_metrics(folder, model, rows, found)
            if context.settings.model.refresh != "always":
                write_counts(folder, model, rows, found)
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
        outputs |= {"asked": asked.model_dump(mode="json"), "measured_at": found.rows}
        facts = {"rows": n_queries, "measured_at": found.rows}
        return Made(outputs, facts, nothing_to_find(rows, lengths))

    def _former(self, context: Context) -> Measured | None:
        """The evaluation of the latest run, if this is its model, and nothing else was asked."""
        found = context.former(self.name)
        asked = context.settings.evaluation.model_dump(mode="json")
        if found is None or found[1].get("asked") != asked or not found[0].holds([COUNTS]):
            return None
        try:
            metrics, counts = json.loads(found[0].read(METRICS)), found[0].url(COUNTS)
            return evaluate.former(metrics, counts, context.model, context.collection)
        except (SadihError, OSError, ValueError, KeyError) as error:
            logger.warning("%s; everything is evaluated again", error)
            return None


def _known(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class Export(Stage):
    """Codes to an index."""

    name, title, needs, makes = "export", "Exporting", ("encode",), (INDEX,)
    beside = (f"{INDEX}.ids.npy",)

    def wanted(self, settings: Settings) -> bool:
        """Whether an index is asked for."""
        return settings.export.index != "none"

    def lacks(self) -> str | None:
        """FAISS, where it is not installed."""
        return lacking("faiss", "an index")

    def decides(self, context: Context) -> Any:
        """The codes and the kind of index."""
        form = context.settings.export.model_dump()
        return [context.outputs["encode"]["fingerprint"], form]

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Write the index, and beside it ids that are text."""
        said, former = context.settings.export, self._former(context)
        with artefact.local_folder() as folder, context.display(self.title) as bar:
            export(
                context.codes,
                folder / INDEX,
                "faiss",
                kind=said.index,
                n_lists=said.lists,
                n_probe=said.probe,
                n_hashes=said.hashes,
                hash_bits=said.hash_bits,
                bitorder=context.codes.bitorder,
                progress=bar,
                former=former and former[0],
            )
            size = (folder / INDEX).stat().st_size
        covers = Coverage.of(context.codes, self._arrays(context)).to_json()
        n_kept = 0 if former is None else former[1]
        rows = {"rows": context.codes.n_rows - n_kept, "rows_kept": n_kept}
        return Made({"form": said.model_dump(), "covers": covers}, {**rows, "bytes": size})

    @staticmethod
    def _arrays(context: Context) -> tuple[str, ...]:
        """What an index is made of."""
        return tuple(name for name in ("codes", "ids") if name in context.codes.arrays)

    def _former(self, context: Context) -> tuple[bytes, int] | None:
        """The index of the latest run and its rows, if codes were only added to them since."""
        found, said = context.former(self.name), context.settings.export
        if found is None or found[1].get("form") != said.model_dump() or not grows(said.index):
            return None
        covered = Coverage.from_json(found[1]["covers"])
        change = covered.difference(context.codes)
        if covered.arrays != self._arrays(context) or change is None or len(change.deleted):
            return None
        data = found[0].read_intact(INDEX)
        return None if data is None else (data, change.first_new)


class Report(Stage):
    """Metrics to a page."""

    name, title, needs, makes = "report", "Looking at codes", ("evaluate",), (REPORT, FIGURES)
    optional = True

    def wanted(self, settings: Settings) -> bool:
        """Whether it is asked for and there is something to show."""
        return settings.report.enabled and settings.has_queries

    def lacks(self) -> str | None:
        """Matplotlib, where it is not installed."""
        return lacking("matplotlib", "a report")

    def decides(self, context: Context) -> Any:
        """What was measured, of which model, the names of the classes, and the title."""
        outputs = context.outputs
        shown = [outputs["encode"]["fingerprint"], list(context.database.class_names)]
        report = context.settings.report.model_dump()
        return [context.artefacts["evaluate"].key, shown, report, outputs["fit"].get("refresh")]

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
                notes=_notes(context),
            )
        return Made({}, {"finished": datetime.now(UTC).isoformat(timespec="seconds")})


def _notes(context: Context) -> dict[str, object]:
    """What was decided about the model, and what was measured before today."""
    found, rows = context.outputs["evaluate"].get("measured_at"), context.database.n_rows
    decided = context.outputs["fit"].get("refresh")
    notes: dict[str, object] = {}
    if decided is not None:
        notes["the model is"] = f"{decided['decision']}: {decided['reason']}"
    if decided is not None and "codes_changed" in decided:
        share = f"{decided['codes_changed']:,} codes, {decided['bits_changed']:.1%} of all bits"
        notes["a new model changes"] = f"about {share}"
    if found != rows:
        notes["unseen, baselines, other lengths"] = f"as measured with {found:,} rows"
    return notes


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
        queries, asked = context.asked, self._asked(context)
        title = context.settings.report.title
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
