"""Paths and URLs taken apart in one place, and files replaced in one step."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from sadih_dask.errors import InputError
from sadih_dask.files.file import locate
from sadih_dask.files.filesystem import connect, status, write_atomically
from sadih_dask.sources import list_variables, open_features


def test_a_file_url_is_the_path_it_names(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    url = f"file://{tmp_path}"
    assert open_features(f"{url}/*.npy").files() == (f"{tmp_path}/x.npy",)
    assert open_features(f"{url}/x.npy").read(0, 3).sum() == 6
    assert list_variables(f"{url}/x.npy")[0].shape == (3, 2)
    assert connect(url).url == str(tmp_path)
    assert str(locate(f"{url}/x.npy")) == f"{tmp_path}/x.npy"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/x.npy", r"needs s3fs, which is not .*pip install 'sadih-dask\[s3\]'"),
        ("gs://bucket/x.npy", "needs gcsfs, which is not installed.*pip install gcsfs"),
        ("nonsense://x.npy", r"is no URL that can be reached \(Protocol not known: nonsense"),
    ],
)
def test_a_missing_client_library_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    for library in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, f"{library}.core", raising=False)
    for loaded in ("_registry", "registry"):  # what other tests have used
        monkeypatch.setattr(import_module("fsspec.registry"), loaded, {})
    for use in (connect, open_features, status, list_variables):
        with pytest.raises(InputError, match=f"^{url}.*{said}"):
            use(url)
    with pytest.raises(InputError, match=said):
        locate(url.replace("://x", "://bucket/x"))


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old")

    def fail(scratch: Path) -> None:
        scratch.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=f"No space left on device: '{target}'"):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "x"
    (target / "old").mkdir(parents=True)
    write_atomically(target, lambda scratch: (scratch / "new").mkdir(parents=True))
    assert [path.name for path in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]
