"""The `sadih` command and its demonstration, as processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sadih_dask import SADIH, CodeStore, __version__
from sadih_dask.cli import main

DIGITS = Path(__file__).parents[2] / "pipelines" / "digits.toml"
COMMAND = Path(sys.executable).with_name("sadih")
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def sadih(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd=cwd,
        check=False,
        timeout=300,
    )


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n") and "Traceback" not in text


def test_help_names_the_commands() -> None:
    done = sadih("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: sadih" in done.stdout
    assert re.search(r"^\s+run\s+\S", done.stdout, re.MULTILINE)


def test_version() -> None:
    assert sadih("--version").stdout.strip().endswith(__version__)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What `make demo` runs, run once: its run directory and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "not" / "there" / "yet"
    done = sadih("run", DIGITS, "--set", f"run.directory={folder}", "--set", "evaluation.bits=[13]")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_demo_retrieves_well(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    record = json.loads((folder / "latest" / "record.json").read_text())
    by_length = record["metrics"]["lengths"]
    assert list(by_length) == ["13", "64"]
    assert by_length["64"]["learned"]["MAP"] >= 0.95
    assert by_length["64"]["encoded"]["MAP"] >= 0.9
    assert by_length["64"]["fresh"]["MAP"] >= 0.9
    assert f"{by_length['64']['learned']['MAP']:.4f}" in printed


def test_the_demo_lists_what_it_wrote(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    words = [Path(word) for word in printed.split() if word.startswith(str(folder))]
    listed = {path.name for path in words if path.parent.parent.name == "runs"}
    assert listed == {"model.sadih", "codes.zarr", "metrics.json", "report.html", "figures"}
    assert all((folder / "latest" / name).exists() for name in listed)


def test_the_demo_draws_what_it_found(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    page = (folder / "latest" / "report.html").read_text()
    assert "Queries and what they find" in page
    assert page.count("<image ") + page.count("data:image/png") > 10  # digits, as pictures
    record = json.loads((folder / "latest" / "record.json").read_text())
    for found in record["metrics"]["lengths"].values():
        assert f"{found['encoded']['MAP']:.4f}" in page
    without = page.replace("http://www.w3.org/", "")  # names of XML vocabularies
    assert not re.search(r"https?://|<script|@import|src=\"(?!data:)", without)


def test_what_the_demo_wrote_fits_together(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    model = SADIH.load(folder / "latest" / "model.sadih")
    codes = CodeStore.open(folder / "latest" / "codes.zarr")
    assert codes.read("codes").shape == (1437, 8)
    X, _ = load_digits(return_X_y=True)
    hashed = model.transform(X[codes.read("ids")].astype(np.float32))
    np.testing.assert_array_equal(codes.read("codes"), hashed)
    assert model.statistics_.n_samples == 1437


def test_a_bad_option_is_wrong_usage(tmp_path: Path) -> None:
    done = sadih("run", DIGITS, "--depth", 3, cwd=tmp_path)
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "s", "m", "--bits", "0"], "0 is not in the range"),
        (["fit", "s", "m", "--bits", "many"], "not a valid integer"),
        (["fit", "s", "m", "--encoder", "best"], "'best' is not one of"),
        (["demonstrate"], "No such command 'demonstrate'"),
    ],
)
def test_wrong_usage(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["sadih", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert said in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = sadih("run", DIGITS, "--set", f"run.directory={tmp_path / 'file' / 'folder'}")
    assert done.returncode == 1
    assert one_line(done.stderr)
    assert done.stderr.startswith("sadih: ")
    assert str(tmp_path / "file") in done.stderr
    assert done.stdout == ""
