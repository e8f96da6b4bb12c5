"""One run of a pipeline: what is current stays, the rest is done, and then `latest` is moved.

Stages are looked at in order. One whose artefact is there and finished is reused; any other is
done, into an artefact that the next run finds, should this one be killed. So a run may be repeated
at any time, and does what is left. A quality gate decides whether its model becomes the latest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from sadih_dask.errors import ConfigError, SadihError
from sadih_dask.files.redaction import redact_values
from sadih_dask.runs.artefact import Artefact, key_of
from sadih_dask.runs.directory import RunDirectory
from sadih_dask.runs.record import (
    Record,
    RunLog,
    StageRecord,
    class_changes,
    mean_average_precision,
)
from sadih_dask.runs.settings import Gate, Settings
from sadih_dask.runs.stage import Context, Display, Stage
from sadih_dask.runs.stages import STAGES

logger = logging.getLogger(__name__)


def judge(gate: Gate, record: Mapping[str, Any], latest: Mapping[str, Any] | None) -> list[str]:
    """Compare the mean average precision of a run with what is asked, and with the latest run's.

    Return the reasons why its model may not become the latest.
    """
    if not gate.is_set:
        return []
    found = mean_average_precision(record, gate.protocol)
    if found is None:
        return [
            f"there is no mean average precision ({gate.protocol}) to judge by: no query has a "
            "relevant row, or it was not measured (see report or metrics)"
        ]
    reasons = []
    if gate.map_min is not None and not found >= gate.map_min:
        reasons.append(
            f"mean average precision ({gate.protocol}) is {found:.4f}, and gate.map_min asks for "
            f"{gate.map_min}"
        )
    before = None if latest is None else mean_average_precision(latest, gate.protocol)
    allowed = gate.map_drop_max
    if allowed is not None and before is not None and not before - found <= allowed:
        reasons.append(
            f"mean average precision ({gate.protocol}) fell by {before - found:.4f}, from "
            f"{before:.4f} to {found:.4f}{_lengths(latest, record)}, and gate.map_drop_max allows "
            f"{allowed}"
        )
    return reasons


def _lengths(first: Mapping[str, Any] | None, second: Mapping[str, Any]) -> str:
    """Say which code lengths are compared, if they are not the same."""
    one, other = ((run or {}).get("metrics", {}).get("n_bits") for run in (first, second))
    return "" if one == other else f" ({one} and {other} bits)"


Place = Callable[[], AbstractContextManager[Mapping[str, Any] | None]]
"""Sets up where tasks run, when the first is about to; gives what the record says about it."""


@dataclass(eq=False)
class Pipeline:
    """A configuration, and where it runs.

    configuration   what it is called in records: the path of its file
    place           sets up threads or a cluster, once there is something to do
    told            called with a line for people, whenever there is something to say
    record          of the last run, also of one that failed
    """

    settings: Settings
    configuration: str
    display: Display
    place: Place = nullcontext
    told: Callable[[str], None] = logger.info
    record: Record | None = field(default=None, init=False)

    def run(self) -> Record:
        """Bring everything up to date; the record says what was done."""
        directory = RunDirectory(self.settings.run.directory)
        with directory.locked(), RunLog() as log, ExitStack() as stack:
            record = Record(self.configuration, self.settings.model_dump(mode="json"))
            self.record = record
            work = _Work(self, directory, record, log, stack)
            try:
                work.through_all_stages()
                work.conclude()
            except BaseException as error:
                work.give_up(error)
                raise
            return record


@dataclass(eq=False)
class _Work:
    """The course of one run."""

    pipeline: Pipeline
    directory: RunDirectory
    record: Record
    log: RunLog
    stack: ExitStack

    def __post_init__(self) -> None:
        self.context = Context(self.pipeline.settings, self.directory, self.pipeline.display)
        self.seen = self.directory.seen()
        self.record.previous = self.seen.run
        self.keys: dict[str, str] = {}
        self.begun: list[str] = []
        self.concluded = False

    def through_all_stages(self) -> None:
        told = self.pipeline.told
        wanted = list(self._able())
        for number, stage in enumerate(wanted, 1):
            artefact = self._artefact(stage)
            key = artefact.key
            self.context.artefacts[stage.name], self.keys[stage.name] = artefact, key
            if stage.name == "ingest":
                self._remark(self.context.plan.remarks)
            if (outputs := stage.current(self.context, artefact)) is not None:
                self.context.outputs[stage.name] = outputs
                self._note(StageRecord(stage.name, "reused", "nothing has changed", key))
                continue
            self._begin()
            began = time.perf_counter(), time.process_time()  # without starting a cluster
            told(f"[{number}/{len(wanted)}] {stage.name}")
            made = stage.work(self.context, self._begin_artefact(artefact))
            self.context.outputs[stage.name] = made.outputs
            self._remark(made.remarks)
            key = self._renew_key(stage, artefact)
            self.directory.check_unmoved(self.seen)  # or else some of it may be gone
            self.context.artefacts[stage.name].finish(made.outputs, made.facts)
            times = time.perf_counter() - began[0], time.process_time() - began[1]
            self._note(StageRecord(stage.name, "done", "", key, *times, made.facts))

    def _able(self) -> Iterator[Stage]:
        """Stages that are asked for; one that lacks a package is refused, or left out aloud."""
        for stage in STAGES:
            if not stage.wanted(self.pipeline.settings):
                continue
            lacking = stage.lacks()
            if lacking and not stage.optional:
                raise ConfigError(f"{self.pipeline.configuration}: {lacking}")
            if lacking:
                self._remark((lacking,))
                self.record.stages.append(StageRecord(stage.name, "skipped", lacking))
            else:
                yield stage

    def _artefact(self, stage: Stage) -> Artefact:
        """Of this stage and what decides it, under a name that nobody is about to remove."""
        artefact = self.directory.artefact(stage.name, stage.key(self.context))
        while artefact.folder in self.seen.removing:
            artefact = replace(artefact, key=key_of(artefact.key), digests={})
        return artefact

    def _begin_artefact(self, artefact: Artefact) -> Artefact:
        """Make its folder, which the manifest names before it is there."""
        self.begun.append(artefact.name)
        self._write_manifest()
        return artefact.begin()

    def _renew_key(self, stage: Stage, artefact: Artefact) -> str:
        """The key of a stage once it is done: that of ingestion is known only then."""
        if (now := self._artefact(stage)) != artefact:
            artefact = self._begin_artefact(now)
        self.context.artefacts[stage.name], self.keys[stage.name] = artefact, artefact.key
        return artefact.key

    def _remark(self, remarks: tuple[str, ...]) -> None:
        for remark in (one for one in remarks if one not in self.record.remarks):
            logger.warning(remark)
            self.pipeline.told(remark)
            self.record.remarks.append(remark)

    def _note(self, stage: StageRecord) -> None:
        self.record.stages.append(stage)
        logger.info("%s: %s in %.2f s %s", stage.name, stage.action, stage.seconds, stage.facts)
        if self.record.id is not None:
            self._write()

    def _write(self) -> None:
        """Write the record, and then the manifest: a run that is complete has a record."""
        self.directory.write_record(self.record.id, self.record.to_dict())
        if self.record.id is not None:
            self._write_manifest()

    def _write_manifest(self) -> None:
        manifest = {
            "id": self.record.id,
            "complete": self.record.outcome == "complete",
            "parent": self.record.previous,
            "stages": self.keys,
            "begun": self.begun,
            "stores": self.context.own_stores,
            "files": redact_values(self.record.files),
        }
        self.directory.write_manifest(str(self.record.id), manifest)

    def _begin(self) -> None:
        """Make the run's folder and set up where tasks run, before the first stage is done."""
        if self.record.id is not None:
            return
        self._open_folder()
        self.record.cluster = self.stack.enter_context(self.pipeline.place())
        if dashboard := (self.record.cluster or {}).get("dashboard"):
            self.pipeline.told(f"dashboard: {dashboard}")

    def _open_folder(self) -> None:
        if self.record.id is None:
            self.record.id = self.directory.begin_run()
            self.log.keep_at(self.directory, self.record.id)
            logger.info("run %s of %s", self.record.id, self.pipeline.configuration)

    def conclude(self) -> None:
        """Judge the model and, if it is good enough, make it the latest."""
        self._sum_up()
        record, gate = self.record, self.pipeline.settings.gate
        rejected = self.keys in self.directory.rejected()
        if rejected:
            self._remark(("this result was rolled back; it does not become the latest again",))
        latest = self._latest_record()
        self._remark(tuple(class_changes(latest, record.to_dict())))
        reasons = judge(gate, record.to_dict(), latest)
        record.gate = {"passed": not reasons, "reasons": reasons}
        if record.id is None and (rejected or self._is_latest()):
            self.concluded = True  # from here on the record is that of another run, which stands
            record.id = record.previous
            record.files = dict(self.directory.manifest(str(record.id)).get("files", {}))
            record.outcome = "refused" if reasons else "nothing to do"
            self.directory.write_record(None, record.to_dict())
            return
        self._open_folder()
        self._link()
        record.outcome = "refused" if reasons or rejected else "complete"
        self._write()
        if record.outcome == "complete":
            self.directory.move_latest(str(record.id), since=self.seen)
        self.concluded = True
        for run in self.directory.prune(self.pipeline.settings.run.keep, str(record.id)):
            logger.info("removed the old run %s", run)

    def _sum_up(self) -> None:
        """What the record says of the whole."""
        record, outputs = self.record, self.context.outputs
        rows = outputs["ingest"]
        record.rows, record.queries = rows["n_rows"], rows["n_queries"]
        record.skipped = self._skipped()
        record.classes = rows["classes"]
        record.refresh = outputs["fit"].get("refresh")
        if "evaluate" in outputs:
            found = outputs["evaluate"]
            record.metrics = {
                "n_bits": outputs["fit"]["n_bits"],
                "n_queries": found["n_queries"],
                "lengths": found["metrics"],
                "standard_errors": found["standard_errors"],
            }
        record.fingerprints = {
            "database": rows["database"],
            "queries": rows["queries"],
            "model": outputs["fit"]["fingerprint"],
            "codes": outputs["encode"]["fingerprint"],
        }

    def _skipped(self) -> dict[str, str]:
        """Files that could not be read, and why, if the source has got so far."""
        return dict(getattr(self.context.__dict__.get("source"), "skipped", {}))

    def _is_latest(self) -> bool:
        """Whether the latest run consists of just these artefacts."""
        latest = self.record.previous
        if latest is None:
            return False
        return self.directory.manifest_or_nothing(latest).get("stages") == self.keys

    def _latest_record(self) -> Mapping[str, Any] | None:
        """The record of the latest run, unless that is this very model again."""
        latest = self.record.previous
        if latest is None or self._is_latest():
            return None
        try:
            found = self.directory.record(latest)
        except SadihError as error:
            found = None
            logger.warning("%s", error)
        if found is None:
            self._remark((f"run {latest} has no readable record, so nothing is compared with it",))
        return found

    def _link(self) -> None:
        """Make what was made reachable from the run's folder."""
        run = str(self.record.id)
        for stage in STAGES:
            if stage.name in self.keys:
                artefact = self.context.artefacts[stage.name]
                also = tuple(name for name in stage.beside if artefact.holds((name,)))
                for name in stage.links(self.pipeline.settings) + also:
                    self.record.files[name] = self.directory.link(run, name, artefact)

    def give_up(self, error: BaseException) -> None:
        """Record a failure, as far as that is still possible."""
        if self.concluded:  # the result stands; old runs could not be removed, or not this written
            logger.error("%s: %s", type(error).__name__, error)
            return
        self.record.skipped = self._skipped()
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        self.record.outcome = "interrupted" if interrupted else "failed"
        self.record.error = f"{type(error).__name__}: {error}"[:2000]
        logger.error("%s", self.record.error)
        try:
            if not interrupted:  # what was refused before the first stage is a run, too
                self._open_folder()
            self._write()
        except OSError as second:
            logger.error("the record could not be written: %s", second)


def plan(pipeline: Pipeline) -> Iterator[Mapping[str, Any]]:
    """Say of every stage what a run would do, without doing anything."""
    settings = pipeline.settings
    directory = RunDirectory(settings.run.directory)
    context = Context(settings, directory, pipeline.display)
    waiting: set[str] = set()
    for remark in context.plan.remarks:
        pipeline.told(remark)
    for stage in STAGES:
        if not stage.wanted(settings):
            yield {"stage": stage.name, "action": "not asked for"}
            continue
        if lacking := stage.lacks():
            yield {"stage": stage.name, "action": "not possible", "reason": lacking}
            continue
        if before := [name for name in stage.needs if name in waiting]:
            waiting.add(stage.name)
            yield {"stage": stage.name, "action": "to do", "reason": f"after {before[-1]}"}
            continue
        key = stage.key(context)
        artefact = directory.artefact(stage.name, key)
        context.artefacts[stage.name] = artefact
        if (outputs := stage.current(context, artefact)) is not None:
            context.outputs[stage.name] = outputs
            yield {"stage": stage.name, "action": "current"}
            continue
        waiting.add(stage.name)
        yield {"stage": stage.name, "action": "to do", **stage.forecast(context)}
