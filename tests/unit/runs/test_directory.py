"""Run directories."""

import itertools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sadih_dask.errors import ConflictError, FormatError, IntegrityError, RunBusyError, SadihError
from sadih_dask.runs.artefact import Artefact, checked_json, key_of
from sadih_dask.runs.directory import RunDirectory, is_run_directory


@pytest.fixture(params=["local", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> RunDirectory:
    """On a disk, and behind a URL where there are neither folders nor links."""
    name = f"memory://{tmp_path.name}/runs" if request.param == "memory" else tmp_path / "runs"
    return RunDirectory(name)


def artefact(directory: RunDirectory, stage: str, key: str) -> Artefact:
    """A finished artefact with one file."""
    made = directory.artefact(stage, key).begin()
    made.write("file", key.encode())
    made.finish({}, {})
    return made


def complete(directory: RunDirectory, **stages: str) -> str:
    """A run that becomes the latest."""
    seen = directory.seen()
    run = completed(directory, **stages)
    directory.move_latest(run, since=seen)
    return run


def completed(directory: RunDirectory, **stages: str) -> str:
    """A run that could become the latest."""
    for stage, key in stages.items():
        artefact(directory, stage, key)
    run, parent = directory.begin_run(), directory.latest()
    directory.write_record(run, {"outcome": "complete"})
    directory.write_manifest(run, {"id": run, "complete": True, "parent": parent, "stages": stages})
    return run


def keys(directory: RunDirectory) -> list[str]:
    return sorted(found.key for found in directory.artefacts("fit"))


def test_keys_depend_on_every_part() -> None:
    assert key_of("fit", 1, {"a": 1, "b": 2}) == key_of("fit", 1, {"b": 2, "a": 1})
    assert len({key_of("fit", 1), key_of("fit", 2), key_of("fit", "1"), key_of("encode", 1)}) == 4


def test_an_artefact_is_done_when_it_says_so(directory: RunDirectory) -> None:
    artefact = directory.artefact("fit", "abc").begin()
    artefact.write("model", b"12345")
    assert artefact.done() is None
    artefact.finish({"fingerprint": "x"}, {"rows": 3})
    done = directory.artefact("fit", "abc").done()
    assert done is not None
    assert done["outputs"] == {"fingerprint": "x"}
    assert artefact.read("model") == b"12345"
    assert [found.key for found in directory.artefacts("fit")] == ["abc"]
    assert directory.artefacts("encode") == []


def test_a_damaged_artefact_is_not_done(directory: RunDirectory) -> None:
    artefact = directory.artefact("fit", "abc").begin()
    artefact.finish({"fingerprint": "x"}, {})
    text = artefact.read("done.json")
    artefact.write("done.json", text.replace(b'"x"', b'"y"'))
    assert artefact.done() is None
    artefact.write("done.json", text[:-20])
    assert artefact.done() is None


def test_what_is_written_locally_becomes_part_of_the_artefact(directory: RunDirectory) -> None:
    artefact = directory.artefact("report", "abc").begin()
    with artefact.local_folder() as folder:
        (folder / "figures").mkdir()
        (folder / "figures" / "one.svg").write_text("<svg/>")
    assert artefact.read("figures/one.svg") == b"<svg/>"


@pytest.mark.parametrize("year", [2000, 2090])
def test_runs_come_in_the_order_in_which_they_began(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, year: int
) -> None:
    runs = [directory.begin_run() for _ in range(11)]
    monkeypatch.setattr("sadih_dask.runs.directory.datetime", clock(year))
    runs += [directory.begin_run() for _ in range(2)]
    assert len(set(runs)) == 13
    assert directory.runs() == runs


def clock(year: int) -> Any:
    """A clock that was set."""

    class Clock:
        @staticmethod
        def now(zone: Any) -> datetime:
            return datetime(year, 1, 1, tzinfo=zone)

    return Clock


def test_latest_is_moved(directory: RunDirectory) -> None:
    assert directory.latest() is None
    first, second = complete(directory), complete(directory, fit="b")
    assert directory.latest() == second
    seen = directory.seen()
    assert directory.roll_back(None) == (second, first)
    assert directory.latest() == first
    with pytest.raises(FormatError, match="no complete run before"):
        directory.roll_back(None)
    with pytest.raises(ConflictError, match=f"latest is {first}, and was {second}"):
        directory.move_latest(second, since=seen)
    assert directory.latest() == first


def test_two_runs_of_one_moment_have_two_folders(directory: RunDirectory) -> None:
    there = directory.runs
    directory.runs = list  # type: ignore[method-assign,assignment] # both looked before one began
    runs = [directory.begin_run() for _ in range(3)]
    assert sorted(runs) == sorted(set(runs)) == sorted(there())


def test_damaged_records_are_errors(directory: RunDirectory) -> None:
    run = directory.begin_run()
    assert directory.record(run) is None
    directory.write_record(run, {"outcome": "complete"})
    key = f"runs/{run}/record.json"
    data = directory.files.read(key, 1000)
    directory.files.write(key, [data.replace(b"complete", b"completE")])
    with pytest.raises(IntegrityError, match=r"record\.json is damaged"):
        directory.record(run)
    for text in (b"[1]", b"{}", b"", json.dumps({"crc32c": 1}).encode()):
        directory.files.write(key, [text])
        with pytest.raises(IntegrityError, match=r"record\.json is damaged"):
            directory.record(run)
    with pytest.raises(FormatError, match="has no run 'nothing'"):
        directory.manifest("nothing")


def test_old_runs_and_what_nobody_refers_to_go(directory: RunDirectory) -> None:
    first = complete(directory, fit="a")
    killed = directory.begin_run()
    artefact(directory, "fit", "k")
    manifest = {"id": killed, "complete": False, "begun": ["fit-k", "fit-c"]}
    directory.write_manifest(killed, manifest)
    second, third = complete(directory, fit="b"), complete(directory, fit="c")
    refused = directory.begin_run()
    artefact(directory, "fit", "d")
    directory.write_manifest(refused, {"id": refused, "complete": False, "stages": {"fit": "d"}})
    assert directory.prune(2, refused) == [first]
    assert directory.runs() == [killed, second, third, refused]
    assert keys(directory) == ["b", "c", "d"]
    assert not list(directory.problems())


def test_only_what_a_manifest_names_is_removed(directory: RunDirectory, tmp_path: Path) -> None:
    directory.files.write("artefacts/thesis-figures/one.svg", [b"mine"])
    directory.files.write("artefacts/notes.txt", [b"mine"])
    directory.files.write("mine", [b"mine"])
    artefact(directory, "fit", "z")
    first = complete(directory, fit="a")
    manifest = directory.manifest(first)
    directory.write_manifest(first, {**manifest, "begun": ["../mine", "fit-a/../../mine", ""]})
    second = complete(directory, fit="b")
    assert directory.prune(1, second) == [first]
    assert keys(directory) == ["b", "z"]
    for name in ("artefacts/thesis-figures/one.svg", "artefacts/notes.txt", "mine"):
        assert directory.files.read(name, 9) == b"mine"


@pytest.mark.parametrize("year", [2000, 2090])
def test_what_was_rejected_goes_first_whatever_the_clock_says(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, year: int
) -> None:
    a, b, c = (complete(directory, fit=key) for key in "abc")
    directory.roll_back(b)
    monkeypatch.setattr("sadih_dask.runs.directory.datetime", clock(year))
    d = complete(directory, fit="d")
    assert directory.lineage(d) == [d, b, a]
    assert directory.prune(2, d) == [a, c]
    assert directory.runs() == [b, d]
    assert keys(directory) == ["b", "d"]
    assert directory.roll_back(None) == (d, b)


def test_the_latest_stays_however_old(directory: RunDirectory) -> None:
    first, _, last = (complete(directory, fit=key) for key in "abb")
    directory.roll_back(first)
    directory.prune(1, last)
    assert directory.runs() == [first, last]
    assert keys(directory) == ["a", "b"]


def test_nothing_is_removed_if_it_is_not_known_what_is_needed(directory: RunDirectory) -> None:
    runs = [complete(directory, fit=key) for key in "abc"]
    directory.files.write(f"runs/{runs[-1]}/manifest.json", [b"{}"])
    assert directory.prune(1, runs[0]) == []
    assert keys(directory) == ["a", "b", "c"]


def test_who_sleeps_before_removing_removes_nothing_that_others_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(f"memory://{tmp_path.name}/runs")
    a, b = complete(directory, fit="a"), complete(directory, fit="b")
    replace = directory._replace

    def late(*args: Any) -> bool:
        monkeypatch.setattr(directory, "_replace", replace)
        directory.roll_back(a)
        return replace(*args)

    monkeypatch.setattr(directory, "_replace", late)
    assert directory.prune(1, b) == []
    assert directory.latest() == a
    assert not list(directory.problems())


@pytest.mark.parametrize("deletions", [0, 1, 2])
def test_who_sleeps_while_removing_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    directory = RunDirectory(f"memory://{tmp_path.name}/runs")
    a, b = complete(directory, fit="a"), complete(directory, fit="b")
    started = directory.seen()

    def others() -> None:
        with pytest.raises(SadihError, match=r"removed|missing|gone|not complete|has no run"):
            directory.roll_back(a)
        late = completed(directory, fit="a")  # by one that has begun before
        with pytest.raises(ConflictError, match="another run has removed old runs"):
            directory.move_latest(late, since=started)
        assert directory.seen().removing >= {"artefacts/fit-a", f"runs/{a}"}
        complete(directory, fit="c")

    delete, count = directory.files.delete, itertools.count()

    def slow(key: str) -> None:
        if next(count) == deletions:
            monkeypatch.setattr(directory.files, "delete", delete)
            others()
        delete(key)

    monkeypatch.setattr(directory.files, "delete", slow)
    assert directory.prune(1, b) == [a]
    assert directory.latest() not in (a, b)
    assert directory.seen().removing == set()
    directory.files.delete("artefacts/fit-a")  # of the late one, whose manifest says complete
    assert [problem for problem in directory.problems() if "fit-a" not in problem] == []
    assert "c" in keys(directory)


def test_names_that_a_killed_run_was_removing_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(f"memory://{tmp_path.name}/runs")
    _, b = complete(directory, fit="a"), complete(directory, fit="b")
    with monkeypatch.context() as patch:
        patch.setattr(directory.files, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            directory.prune(1, b)
    assert "artefacts/fit-a" in directory.seen().removing
    directory.prune(1, complete(directory, fit="c"))
    assert keys(directory) == ["c"]
    assert directory.seen().removing >= {"artefacts/fit-a"}
    assert "artefacts/fit-b" not in directory.seen().removing


def killed(_: str) -> None:
    raise KeyboardInterrupt


def test_what_was_rolled_back_is_remembered(directory: RunDirectory) -> None:
    first, second = complete(directory, fit="a"), complete(directory, fit="b")
    assert directory.rejected() == []
    directory.roll_back(first)
    assert directory.rejected() == [{"fit": "b"}]
    third = complete(directory, fit="c")
    directory.roll_back(second)  # neither came after the other
    assert directory.rejected() == [{"fit": "c"}]
    directory.roll_back(third)
    assert directory.rejected() == [{"fit": "b"}]


def test_two_who_roll_back_at_once_forget_nothing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (complete(directory, fit=key) for key in "abc")
    manifest = directory.manifest

    def meanwhile(run: str) -> Any:
        monkeypatch.setattr(directory, "manifest", manifest)
        directory.roll_back(second)
        return manifest(run)

    monkeypatch.setattr(directory, "manifest", meanwhile)
    with pytest.raises(ConflictError, match=f"latest is {second}, and was {third}"):
        directory.roll_back(first)
    assert directory.latest() == second
    assert directory.rejected() == [{"fit": "c"}]


def test_links_in_a_run_directory_lead_nowhere(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs")
    first, second = complete(directory, fit="a"), complete(directory, fit="b")
    (tmp_path / "runs/artefacts").rename(tmp_path / "elsewhere")
    (tmp_path / "runs/artefacts").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.glob("elsewhere/*/*"))
    with pytest.raises(FormatError, match=r"'artefacts' is a symbolic link.* not followed"):
        directory.prune(1, second)
    with pytest.raises(FormatError, match=r"'artefacts' is a symbolic link"):
        directory.artefact("fit", "c").begin()
    assert sorted(tmp_path.glob("elsewhere/*/*")) == before
    with pytest.raises(FormatError, match=r"'artefacts' is a symbolic link"):
        directory.artefact("fit", "a").url("file")
    (tmp_path / "runs/latest").unlink()
    (tmp_path / "runs/latest").symlink_to(tmp_path / "elsewhere" / first)
    with pytest.raises(IntegrityError, match=r"latest leads to .* no run of this directory"):
        directory.latest()


def test_whoever_writes_into_an_artefact_by_himself_meets_no_links(tmp_path: Path) -> None:
    made = artefact(RunDirectory(tmp_path / "runs"), "report", "a")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "runs" / made.folder / "figures"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="/figures' is a symbolic link"), made.local_folder():
        pytest.fail("the folder was handed out")
    link.unlink()
    with made.local_folder() as folder:
        assert folder == link.parent


@pytest.mark.parametrize(
    "change",
    [
        {"stages": {"fit": "../../../elsewhere"}},
        {"stages": {"fit": 1}},
        {"stages": []},
        {"stores": ["../elsewhere"]},
        {"stores": "s"},
        {"parent": "../x"},
        {"complete": 1},
    ],
    ids=str,
)
def test_a_manifest_that_leads_elsewhere_is_damaged(
    directory: RunDirectory, change: dict[str, Any]
) -> None:
    run = complete(directory, fit="a")
    directory.write_manifest(run, {**directory.manifest(run), **change})
    with pytest.raises(IntegrityError, match=r"manifest\.json is not that of a run"):
        directory.manifest(run)
    assert any("is not that of a run" in problem for problem in directory.problems())


@pytest.mark.parametrize(
    "change",
    [{"names": ["../x"]}, {"names": "file"}, {"digests": {"file/../../../x": ""}}, {"outputs": 1}],
    ids=str,
)
def test_a_stage_whose_record_leads_elsewhere_is_done_again(
    directory: RunDirectory, change: dict[str, Any]
) -> None:
    found = artefact(directory, "fit", "a")
    done = {**(found.done() or {}), **change}
    directory.files.write(f"{found.folder}/done.json", [checked_json(done)])
    assert found.done() is None


def test_a_run_of_which_something_is_gone_does_not_become_the_latest(
    directory: RunDirectory,
) -> None:
    first, second = complete(directory, fit="a"), complete(directory, fit="b")
    directory.files.delete("artefacts/fit-a/file")
    with pytest.raises(IntegrityError, match=r"cannot become the latest: .*file is missing"):
        directory.roll_back(first)
    directory.files.delete("artefacts/fit-a")
    with pytest.raises(IntegrityError, match="fit-a is gone"):
        directory.roll_back(None)
    assert directory.latest() == second
    assert directory.rejected() == []


def test_verifying_asks_for_what_manifests_name(directory: RunDirectory) -> None:
    assert list(directory.problems()) == [f"{directory.url} has no runs"]
    first = complete(directory, fit="a", encode="b")
    assert not list(directory.problems())
    made = directory.artefact("fit", "a")
    made.write("file", b"other")
    assert [p for p in directory.problems() if "fit-a/file is damaged" in p]
    made.digests.clear()
    made.finish({}, {})
    assert [p for p in directory.problems() if "fit-a/file has no digest" in p]
    directory.files.delete("artefacts")
    assert len(list(directory.problems())) == 2
    directory.files.delete(f"runs/{first}")
    problems = list(directory.problems())
    assert [p for p in problems if f"latest is run {first}, which is gone" in p]
    assert is_run_directory(directory.url)


def test_a_resumed_artefact_has_digests(directory: RunDirectory) -> None:
    def export() -> Artefact:
        made = directory.artefact("export", "a").begin()
        with made.local_folder() as folder:
            (folder / "index").write_text("all")
        return made

    export()  # killed before it could say that it was done
    export().finish({}, {})
    done = directory.artefact("export", "a").done()
    assert done is not None
    assert set(done["digests"]) == {"index"}
    assert not list(directory.artefact("export", "a").problems())


def test_one_run_at_a_time(directory: RunDirectory) -> None:
    with (
        directory.locked(),
        pytest.raises(RunBusyError, match=r"another run is at work: .* process"),
        RunDirectory(directory.url).locked(),
    ):
        pass
    assert not directory.is_held()
    with directory.locked():
        assert directory.is_held()
