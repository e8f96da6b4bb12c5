"""Reading a whole run directory and naming what is not as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sadih_dask.errors import SadihError
from sadih_dask.runs.workspace import ARTEFACTS, RUNS, Artefact, Workspace
from sadih_dask.storage.inspect import open_store
from sadih_dask.storage.model import read_model


def is_run_directory(url: str) -> bool:
    """Whether runs have been made there."""
    files = Workspace(url).files
    return bool(files.names(RUNS)) and bool(files.names(ARTEFACTS))


def problems(workspace: Workspace) -> Iterator[str]:
    """Check manifests, records, models, stores and files of every run that is kept."""
    for run in workspace.runs():
        yield from _said(workspace.manifest, run)
        yield from _said(workspace.record, run)
    for artefact in workspace.all_artefacts():
        if artefact.done() is None:
            continue  # unfinished or damaged: the next run makes it anew, and believes none of it
        yield from artefact.problems()
        yield from _own_checksums(artefact)
    for name in workspace.files.names(""):
        if name.endswith(".zarr"):
            yield from _store(workspace.store_url(name))


def _own_checksums(artefact: Artefact) -> Iterator[str]:
    for name in artefact.files.names(artefact.folder):
        if name.endswith(".sadih"):
            yield from _said(read_model, artefact.url(name))
        elif name.endswith(".zarr"):
            yield from _store(artefact.url(name))


def _store(url: str) -> Iterator[str]:
    try:
        yield from open_store(url).verify().problems
    except (SadihError, OSError) as error:
        yield str(error)


def _said(check: Callable[[str], object], of: str) -> Iterator[str]:
    try:
        check(of)
    except (SadihError, OSError) as error:
        yield str(error)
