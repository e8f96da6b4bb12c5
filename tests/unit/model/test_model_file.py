"""Model files: what is written is what is read, and writing is atomic."""

import json
import pickle
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from sadih_dask import SADIH
from sadih_dask.errors import InputError
from tests.support.datasets import blobs, tagged_blobs
from tests.support.models import QUICK, same_model

NAMES = np.array(["cat", "dog", "eel"])


def fitted(X: Any, y: Any, **parameters: Any) -> SADIH:
    return SADIH(**{"n_bits": 11, **QUICK, "anchors": 5, **parameters}).fit(X, y)


@pytest.fixture(scope="module")
def small() -> SADIH:
    """A small model that has every kind of member."""
    return fitted(*blobs(12, 2), n_bits=3, anchors=2, n_init=1, max_iter=1, encoder="posterior")


@pytest.fixture
def path(tmp_path: Path, small: SADIH) -> Path:
    small.save(tmp_path / "model.sadih")
    return tmp_path / "model.sadih"


# --- what is written is what is read ---------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "anchors"),
    [("posterior", 5), ("discriminant", None), ("ridge", None), ("orthogonal", 5), ("lemma", None)],
)
@pytest.mark.parametrize(
    "labels",
    [
        np.asarray,
        NAMES.take,
        lambda y: y == 1,
        lambda y: y.astype(float),
        lambda y: np.eye(3)[y],
        lambda y: sp.csr_array(np.eye(3)[y] + np.eye(3)[y - 1]),
    ],
    ids=["numbers", "names", "booleans", "floats", "one-hot", "sparse"],
)
def test_round_trip(tmp_path: Path, encoder: str, anchors: int | None, labels: Any) -> None:
    X, y = blobs(40)
    y = labels(y)
    model = fitted(X[:30], y[:30], encoder=encoder, anchors=anchors)
    model.save(tmp_path / "model")
    loaded = SADIH.load(tmp_path / "model")
    same_model(loaded, model, X)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.get_params() == model.get_params()
    assert loaded.trace_ == model.trace_
    assert (loaded.n_iter_, loaded.seed_) == (model.n_iter_, model.seed_)
    assert (loaded.n_features_in_, loaded.multi_label_) == (5, model.multi_label_)
    np.testing.assert_array_equal(loaded.project(X), model.project(X))
    assert loaded.score(X, y) == model.score(X, y)
    assert loaded.get_feature_names_out().tolist() == model.get_feature_names_out().tolist()
    same_model(loaded.partial_fit(X[30:], y[30:]), model.partial_fit(X[30:], y[30:]), X)
    same_model(loaded.forget(X[:9], y[:9]), model.forget(X[:9], y[:9]), X)


@pytest.mark.parametrize(
    "random_state", [None, 7, np.int64(7), np.random.default_rng(7), np.random.RandomState(7)]
)
def test_any_source_of_randomness(path: Path, random_state: Any) -> None:
    X, y = blobs()
    model = fitted(X, y, random_state=random_state)
    model.save(path)
    loaded = SADIH.load(path)
    expected = model.seed_ if not isinstance(random_state, int | None) else random_state
    assert loaded.get_params()["random_state"] == expected
    same_model(loaded.set_params(n_bits=5).refit(), model.set_params(n_bits=5).refit(), X)


def test_parameters_as_numpy_scalars(path: Path) -> None:
    X, y = blobs()
    fitted(X, y, n_bits=np.int32(9), ridge=np.float32(0.5), tol=np.float64(0.0)).save(path)
    assert SADIH.load(path).get_params()["ridge"] == 0.5


def test_names_of_the_features(path: Path) -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=["a", "b", "ü", "d d", "e"])
    fitted(frame, y).save(path)
    loaded = SADIH.load(path)
    assert loaded.feature_names_in_.tolist() == ["a", "b", "ü", "d d", "e"]
    with pytest.raises(InputError, match="feature names should match"):
        loaded.transform(frame[["b", "a", "ü", "d d", "e"]])


def test_without_statistics_the_file_is_smaller(path: Path, small: SADIH) -> None:
    whole = path.stat().st_size
    small.save(path, statistics=False)
    assert path.stat().st_size < whole
    assert SADIH.load(path).statistics_ is None


def test_equal_contents_are_equal_bytes(path: Path, small: SADIH) -> None:
    again = path.with_name("again")
    SADIH.load(path).save(again)
    assert again.read_bytes() == path.read_bytes()
    X, y = blobs(12, 2)
    SADIH(**small.get_params()).fit(X, y).save(again)
    assert again.read_bytes() == path.read_bytes()


def test_numpy_and_zip_open_the_file_too(path: Path, small: SADIH) -> None:
    with np.load(path) as members:
        np.testing.assert_array_equal(members["label_codes"], small.label_codes_)
    with zipfile.ZipFile(path) as members:
        assert json.loads(members.read("meta.json"))["parameters"]["n_bits"] == 3


def test_pickle_is_never_called(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was called")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    SADIH.load(path).save(path)


def test_labels_of_rows_with_several(tmp_path: Path) -> None:
    X, Y = tagged_blobs()
    model = fitted(X, Y)
    model.save(tmp_path / "model")
    loaded = SADIH.load(tmp_path / "model")
    assert (loaded.label_groups_ != model.label_groups_).nnz == 0


# --- writing is atomic -----------------------------------------------------------------------

SAVE_AND_DIE = """
import os, random, signal, sys, time
from pathlib import Path
from sadih_dask import SADIH

target = Path(sys.argv[1])
models = [SADIH.load(path) for path in sys.argv[2:]]
for trial in range(25):
    child = os.fork()
    if child == 0:
        while True:
            for model in models:
                model.save(target)
    while not target.exists():
        time.sleep(0.0005)
    time.sleep(0.02 * random.Random(trial).random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    target.rename(target.with_suffix(f".{trial}"))
"""


def test_a_writer_killed_at_any_time_leaves_a_whole_file(tmp_path: Path) -> None:
    X, y = blobs(30, 40)
    models = {n_bits: fitted(X, y, n_bits=n_bits, anchors=None) for n_bits in (8, 16)}
    for n_bits, model in models.items():
        model.save(tmp_path / f"whole-{n_bits}")
    (tmp_path / "run").mkdir()
    target = tmp_path / "run" / "model"
    sources = [tmp_path / f"whole-{n_bits}" for n_bits in models]
    subprocess.run([sys.executable, "-c", SAVE_AND_DIE, target, *sources], check=True)
    left = list((tmp_path / "run").iterdir())
    assert any(path.name.startswith(".model.") for path in left)  # killed while writing
    whole = [path for path in left if not path.name.startswith(".")]
    assert whole
    for path in whole:
        same_model(loaded := SADIH.load(path), models[loaded.n_bits], X)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    path: Path, small: SADIH, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match="disk full"):
        small.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_file_has_the_permissions_of_any_new_file(path: Path) -> None:
    plain = path.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_folder_that_does_not_exist(tmp_path: Path, small: SADIH) -> None:
    with pytest.raises(FileNotFoundError, match="make the folder of model first"):
        small.save(tmp_path / "nowhere" / "model")
    with pytest.raises(FileNotFoundError, match=r"nowhere.*does not exist"):
        SADIH.load(tmp_path / "nowhere")
