"""What a stage of a run is, and what the stages of one run share.

A stage's key is a hash of `decides` and of its revision, which is raised whenever the same inputs
would give another result. `work` may be killed at any moment and is called again with the same
artefact: what it finds there it goes on with.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from sadih_dask.errors import FormatError
from sadih_dask.ingest import DataFiles, HoldOut
from sadih_dask.jobs.evaluate import Collection
from sadih_dask.jobs.ingest import Clouds, Digits, Plan, Source, SourceFiles, Stores
from sadih_dask.model.estimator import Hasher
from sadih_dask.model.methods import load_model
from sadih_dask.runs.artefact import Artefact, key_of
from sadih_dask.runs.directory import RunDirectory
from sadih_dask.runs.settings import DigitsSource, Files, Settings, SyntheticSource
from sadih_dask.sources import read_class_names
from sadih_dask.stores import CodeStore, FeatureStore

MODEL, CODES, TUNING, INDEX = "model.sadih", "codes.zarr", "tuning", "index.faiss"
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

    @property
    def asked(self) -> FeatureStore:
        """The queries, where the configuration is sure to have some."""
        if self.queries is None:
            raise FormatError("this configuration has no queries")
        return self.queries

    @cached_property
    def model(self) -> Hasher:
        """The model of this run."""
        return load_model(self.artefacts["fit"].url(MODEL))

    @cached_property
    def codes(self) -> CodeStore:
        """The hashed database."""
        return CodeStore.open(self.artefacts["encode"].url(CODES))

    @cached_property
    def _latest_keys(self) -> Mapping[str, str]:
        run = self.directory.latest()
        found = {} if run is None else self.directory.manifest_or_nothing(run)
        return dict(found.get("stages", {}))

    def former(self, stage: str) -> tuple[Artefact, Outputs] | None:
        """What the latest run has of a stage, if it is there, and what it goes by."""
        if (key := self._latest_keys.get(stage)) is None:
            return None
        artefact = self.directory.artefact(stage, key)
        done = artefact.done()
        return None if done is None else (artefact, done["outputs"])

    @property
    def collection(self) -> Collection:
        """What the model is judged on."""
        return Collection(self.asked, self.database, self.codes)


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
    beside: ClassVar[tuple[str, ...]] = ()
    """What it makes of some rows only, and is shown where it is there."""
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
