"""Files of a directory that several write and delete at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sadih_dask.files.filesystem import LocalFiles


def test_a_name_that_another_has_created_and_tidied_up_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, link = LocalFiles(tmp_path), os.link

    def faster(temporary: Path, target: Path) -> None:
        target.write_bytes(b"whole")
        temporary.unlink()
        link(temporary, target)

    monkeypatch.setattr(os, "link", faster)
    assert not files.create("k", [b"whole"])
    assert files.read("k", 9) == b"whole"


def test_a_temporary_file_that_is_gone_without_its_target_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, link = LocalFiles(tmp_path), os.link

    def gone(temporary: Path, target: Path) -> None:
        temporary.unlink()
        link(temporary, target)

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(FileNotFoundError, match="No such file"):
        files.create("k", [b"whole"])


@pytest.mark.parametrize("other", ["deletes", "writes"])
def test_a_folder_is_deleted_whatever_others_do_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    files, rmtree, calls = LocalFiles(tmp_path), shutil.rmtree, []
    for key in ("a/b/c", "a/b/d"):
        files.write(key, [b"x"])

    def interrupted(path: Any) -> None:
        calls.append(path)
        if len(calls) == 1 and other == "deletes":
            rmtree(path)
        if len(calls) == 1 and other == "writes":
            raise OSError(39, "Directory not empty", str(path))
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    files.delete("a")
    assert files.names("") == []
