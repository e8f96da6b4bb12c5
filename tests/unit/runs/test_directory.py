"""Run directories."""

import json
from pathlib import Path

import pytest

from sadih_dask.errors import FormatError, IntegrityError, RunBusyError
from sadih_dask.runs.directory import Workspace, key_of


@pytest.fixture(params=["local", "memory"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    """On a disk, and behind a URL where there are neither folders nor links."""
    name = f"memory://{tmp_path.name}/runs" if request.param == "memory" else tmp_path / "runs"
    return Workspace(name)


def complete(workspace: Workspace, **stages: str) -> str:
    run = workspace.begin_run()
    workspace.write_manifest(run, {"id": run, "complete": True, "stages": stages})
    return run


def test_keys_depend_on_every_part() -> None:
    assert key_of("fit", 1, {"a": 1, "b": 2}) == key_of("fit", 1, {"b": 2, "a": 1})
    assert len({key_of("fit", 1), key_of("fit", 2), key_of("fit", "1"), key_of("encode", 1)}) == 4


def test_an_artefact_is_done_when_it_says_so(workspace: Workspace) -> None:
    artefact = workspace.artefact("fit", "abc").begin()
    artefact.write("model", b"12345")
    assert artefact.done() is None
    artefact.finish({"fingerprint": "x"}, {"rows": 3})
    done = workspace.artefact("fit", "abc").done()
    assert done is not None
    assert done["outputs"] == {"fingerprint": "x"}
    assert artefact.read("model") == b"12345"
    assert [found.key for found in workspace.artefacts("fit")] == ["abc"]
    assert workspace.artefacts("encode") == []


def test_a_damaged_artefact_is_not_done(workspace: Workspace) -> None:
    artefact = workspace.artefact("fit", "abc").begin()
    artefact.finish({"fingerprint": "x"}, {})
    text = artefact.read("done.json")
    artefact.write("done.json", text.replace(b'"x"', b'"y"'))
    assert artefact.done() is None
    artefact.write("done.json", text[:-20])
    assert artefact.done() is None


def test_what_is_written_locally_becomes_part_of_the_artefact(workspace: Workspace) -> None:
    artefact = workspace.artefact("report", "abc").begin()
    with artefact.local_folder() as folder:
        (folder / "figures").mkdir()
        (folder / "figures" / "one.svg").write_text("<svg/>")
    assert artefact.read("figures/one.svg") == b"<svg/>"


def test_runs_have_ids_that_sort_by_time(workspace: Workspace) -> None:
    runs = [workspace.begin_run() for _ in range(3)]
    assert sorted(runs) == runs == workspace.runs()


def test_latest_is_moved(workspace: Workspace) -> None:
    assert workspace.latest() is None
    first, second = complete(workspace), complete(workspace)
    workspace.point_latest_at(second)
    assert workspace.latest() == second
    assert workspace.previous_complete() == first
    workspace.point_latest_at(first)
    assert workspace.latest() == first
    with pytest.raises(FormatError, match="no complete run before"):
        workspace.previous_complete()


def test_damaged_records_are_errors(workspace: Workspace) -> None:
    run = workspace.begin_run()
    assert workspace.record(run) is None
    workspace.write_record(run, {"outcome": "complete"})
    key = f"runs/{run}/record.json"
    data = workspace.files.read(key, 1000)
    workspace.files.write(key, [data.replace(b"complete", b"completE")])
    with pytest.raises(IntegrityError, match=r"record\.json is damaged"):
        workspace.record(run)
    for text in (b"[1]", b"{}", b"", json.dumps({"crc32c": 1}).encode()):
        workspace.files.write(key, [text])
        with pytest.raises(IntegrityError, match=r"record\.json is damaged"):
            workspace.record(run)
    with pytest.raises(FormatError, match="has no run 'nothing'"):
        workspace.manifest("nothing")


def test_old_runs_and_what_nobody_refers_to_go(workspace: Workspace) -> None:
    for key in ("a", "b", "c", "d", "e"):
        workspace.artefact("fit", key).begin().finish({}, {})
    first = complete(workspace, fit="a")
    killed = workspace.begin_run()
    second = complete(workspace, fit="b")
    third = complete(workspace, fit="c")
    workspace.point_latest_at(third)
    refused = workspace.begin_run()
    workspace.write_manifest(refused, {"id": refused, "complete": False, "stages": {"fit": "d"}})
    assert workspace.prune(2, refused) == [first]
    assert workspace.runs() == sorted([killed, second, third, refused])
    assert sorted(found.key for found in workspace.artefacts("fit")) == ["b", "c", "d"]


def test_the_latest_stays_however_old(workspace: Workspace) -> None:
    workspace.artefact("fit", "a").begin().finish({}, {})
    first = complete(workspace, fit="a")
    workspace.point_latest_at(first)
    others = [complete(workspace, fit="b") for _ in range(3)]
    workspace.prune(1, others[-1])
    assert workspace.runs() == [first, others[-1]]
    assert [found.key for found in workspace.artefacts("fit")] == ["a"]


def test_what_was_rolled_back_is_remembered(workspace: Workspace) -> None:
    first, _ = complete(workspace, fit="a"), complete(workspace, fit="b")
    assert workspace.rejected() == []
    workspace.reject_after(first)
    assert workspace.rejected() == [{"fit": "b"}]
    third = complete(workspace, fit="c")
    workspace.reject_after(third)
    assert {"fit": "c"} not in workspace.rejected()


def test_one_run_at_a_time(workspace: Workspace) -> None:
    with (
        workspace.locked(),
        pytest.raises(RunBusyError, match="held by another run: process"),
        Workspace(workspace.url).locked(),
    ):
        pass
    assert not workspace.is_held()
    with workspace.locked():
        assert workspace.is_held()
