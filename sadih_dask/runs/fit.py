"""The stage that learns, and decides whether what it has learned is used."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sadih_dask.errors import SadihError
from sadih_dask.jobs.fit import Fitted, compare_models, fit, reusable
from sadih_dask.jobs.rates import Rates
from sadih_dask.jobs.tune import tune
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods import load_model, method_named
from sadih_dask.runs.artefact import SCAN, Artefact, key_of
from sadih_dask.runs.settings import Model, Search, Settings
from sadih_dask.runs.stage import MODEL, TUNING, Context, Made, Outputs, Stage
from sadih_dask.stores import FeatureStore

logger = logging.getLogger(__name__)

CANDIDATE = "candidate.sadih"
"""The model of all rows, beside one that is kept."""


class Fit(Stage):
    """Rows to a model.

    Statistics are brought up to date on every run, exactly; `[model] refresh` says whether what is
    solved from them takes the place of the model in use, which is that of the latest run. One that
    is kept stands in the artefact as it is, and the new one beside it as a candidate: its
    statistics are what the next run goes on from.
    """

    name, title, needs = "fit", "Scanning", ("ingest",)

    def links(self, settings: Settings) -> tuple[str, ...]:
        """The model, and how its parameters were chosen."""
        return (MODEL,) if settings.model.search is None else (MODEL, TUNING)

    def decides(self, context: Context) -> Any:
        """The rows, all parameters of the model, and whether and by what it is kept."""
        said, rows = context.settings.model, context.outputs["ingest"]
        judged = () if said.refresh == "always" else (said.refresh, said.min_gain, rows["queries"])
        return [rows["learned_from"], *self._asked(said), *judged]

    @staticmethod
    def _asked(said: Model) -> list[Any]:
        """Everything that decides a model beside the rows."""
        search = None if said.search is None else said.search.model_dump()
        return [said.method, said.parameters, search]

    def key(self, context: Context) -> str:
        """As of every stage; where a model may be kept, the one in use decides, too.

        Once it was decided for these rows the decision stands.
        """
        basis, used = super().key(context), self._in_use(context)
        if used is None:
            return basis
        artefact, outputs = used
        return artefact.key if outputs["basis"] == basis else key_of(basis, outputs["fingerprint"])

    def _in_use(self, context: Context) -> tuple[Artefact, Outputs] | None:
        """The model of the latest run, if it may be kept: it has to be of the same parameters."""
        said = context.settings.model
        used = None if said.refresh == "always" else context.former(self.name)
        if used is None or used[1].get("asked") != key_of(self._asked(said)):
            return None
        return used if used[0].holds([MODEL]) else None

    def work(self, context: Context, artefact: Artefact) -> Made:
        """Learn from rows that no earlier model has learned from, solve, and decide."""
        said, used = context.settings.model, self._load_used(context)
        if used is not None and said.refresh == "never":
            n_known = 0 if used.coverage_ is None else used.coverage_.n_rows
            return self._keep(context, artefact, used, Fitted(used, n_known, 0), {})
        target = MODEL if used is None else CANDIDATE
        with context.display(self.title, goes_on=True):
            if said.search is not None:
                fitted = self._search(context, said.search, artefact, target)
            else:
                fitted = fit(
                    context.database,
                    artefact.url(target),
                    said.parameters,
                    method=said.method,
                    candidates=self._earlier(context),
                    overwrite=True,  # a run that was killed has left it
                    checkpoint=artefact.url(SCAN),
                )
        if used is None:
            return self._made(context, fitted.model, fitted)
        stores = context.database, context.asked
        decision = decide(used, fitted.model, *stores, context.settings)
        if decision["decision"] == "kept":
            return self._keep(context, artefact, used, fitted, decision)
        fitted.model.save(artefact.url(MODEL))
        artefact.remove(CANDIDATE)
        return self._made(context, fitted.model, fitted, decision)

    def _load_used(self, context: Context) -> Hasher | None:
        if (used := self._in_use(context)) is None:
            return None
        try:
            return load_model(used[0].url(MODEL))
        except (SadihError, OSError) as error:
            logger.warning("%s; it is not kept", error)
            return None

    def _keep(
        self, context: Context, artefact: Artefact, used: Hasher, fitted: Fitted, decision: Outputs
    ) -> Made:
        used.save(artefact.url(MODEL))
        kept = {"decision": "kept", "reason": "refresh is never"} | decision
        return self._made(context, used, fitted, kept)

    def _made(
        self, context: Context, model: Hasher, fitted: Fitted, decision: Outputs | None = None
    ) -> Made:
        n_read, said = fitted.n_rows_read, context.settings.model
        outputs: Outputs = {
            "fingerprint": model.fingerprint_,
            "n_bits": model.hash_function_.n_bits,
            "n_rows": fitted.n_rows,
            "asked": key_of(self._asked(said)),
            "basis": super().key(context),
        }
        facts = {
            "rows": n_read,
            "rows_known": fitted.n_rows_known,
            "rows_resumed": fitted.n_rows_loaded,
            "bytes": n_read * context.database.row_bytes,
            "label_groups": model.groups_.n_groups,
            "parameters": model.get_params(deep=False),
            "iterations": model.n_iter_,
        }
        if said.refresh != "always":
            first = {"decision": "refreshed", "reason": "there is no model of these parameters yet"}
            outputs["refresh"] = decision or first
        left = (
            f"fit: {fitted.n_anchors_left:,} of the model's anchors are deleted rows, and stay; "
            "another model.random_state draws others, and reads all rows again"
        )
        return Made(outputs, facts, (left,) if fitted.n_anchors_left else ())

    def _search(self, context: Context, said: Search, artefact: Artefact, target: str) -> Fitted:
        """Choose parameters by cross-validation; all results stay beside the model."""
        with artefact.local_folder() as folder:
            return tune(
                context.database,
                artefact.url(target),
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
        if said.refresh == "never" and self._in_use(context) is not None:
            return {"rows": 0, "reason": "the model stays: refresh is never"}
        wanted = method_named(said.method, said.parameters)
        earlier = () if said.search is not None else self._earlier(context)
        change = reusable(store, wanted, earlier)[1]
        n_left = store.n_rows if change is None else change.n_new
        found: dict[str, Any] = {"rows": n_left, "bytes": n_left * store.row_bytes}
        # Of many label sets no rate was measured; of a search, none of its solves
        if said.method == "sadih" and said.search is None and len(store.shape("labels")) == 1:
            columns = wanted.anchors if isinstance(wanted.anchors, int) else store.n_features
            found["solving"] = Rates.load().of_solving(columns, len(store.class_names))
        if n_left:
            return found | {"memory": wanted.plan(store).total}
        return found | {"reason": "solved from the statistics of an earlier run"}

    def _earlier(self, context: Context) -> list[str]:
        """Model files of this and of earlier runs, those of most rows first."""
        named = (
            (one, name)
            for one in context.directory.artefacts(self.name)
            for name in (CANDIDATE, MODEL)
            if one.holds([name])
        )
        found = {one.key: (one, name) for one, name in reversed([*named])}  # candidates know more
        rows = {key: d["outputs"]["n_rows"] for key, (o, _) in found.items() if (d := o.done())}
        # One that is not done was left by a run that was killed after all its rows were read.
        ordered = sorted(found, key=lambda key: -rows.get(key, context.database.n_rows))
        return [found[key][0].url(found[key][1]) for key in ordered]


def decide(
    used: Hasher, new: Hasher, database: FeatureStore, queries: FeatureStore, said: Settings
) -> Outputs:
    """Whether a new model takes the place of the one in use, why, and what that would change."""
    least = said.model.min_gain
    change = used.change_in(database)
    if change is None or len(change.deleted):
        why = "rows that the model in use has learned from are not there any more"
        return {"decision": "refreshed", "reason": why}
    found = compare_models(used, new, queries, said.evaluation.max_queries)
    gains = {"held-out rows": found.all_rows, "held-out rows of new classes": found.new_classes}
    known = {name: gain for name, gain in gains.items() if gain is not None and gain.n_queries}
    if not known:
        return {"decision": "refreshed", "reason": "no held-out row has another of its class"}
    words = [
        f"{gain.gain:+.4f} ± {gain.standard_error:.4f} for {gain.n_queries:,} {name}"
        for name, gain in known.items()
    ]
    return {
        "decision": "refreshed" if found.is_better(least) else "kept",
        "reason": f"mean average precision {', '.join(words)}; min_gain is {least}",
        "gain": {name: vars(gain) for name, gain in known.items()},
        "codes_changed": round(found.codes_changed * database.n_rows),
        "bits_changed": round(found.bits_changed, 4),
    }
