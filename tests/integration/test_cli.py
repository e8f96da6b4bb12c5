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

from sadih_dask import SADIH, __version__
from sadih_dask.cli import main

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
    assert re.search(r"^\s+demo\s+\S", done.stdout, re.MULTILINE)


def test_version() -> None:
    assert sadih("--version").stdout.strip().endswith(__version__)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demonstration, run once: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "not" / "there" / "yet"
    done = sadih("demo", "-o", folder, "--bits", 13, "--bits", 32)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


def test_the_demo_retrieves_well(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    report = json.loads((folder / "report.json").read_text())
    by_length = {row["n_bits"]: row for row in report["quality"]}
    assert list(by_length) == [13, 32]
    assert by_length[32]["map_learned"] >= 0.95
    assert by_length[32]["map_encoded"] >= 0.9
    assert report["parameters"]["n_bits"] == 32
    assert f"{by_length[32]['map_learned']:.4f}" in printed


def test_the_demo_lists_what_it_wrote(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    listed = {Path(word) for word in printed.split() if word.startswith(str(folder))}
    assert listed == set(folder.iterdir())
    assert {"model.sadih", "report.json", "report.html"} <= {path.name for path in listed}


def test_the_demo_draws_what_it_found(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    page = (folder / "report.html").read_text()
    assert "open report.html there in a browser" in printed
    assert "Queries and what they find" in page
    assert page.count("<image ") + page.count("data:image/png") > 10  # digits, as pictures
    quality = json.loads((folder / "report.json").read_text())["quality"]
    assert all(f"{row['map_encoded']:.4f}" in page for row in quality)
    without = page.replace("http://www.w3.org/", "")  # names of XML vocabularies
    assert not re.search(r"https?://|<script|@import|src=\"(?!data:)", without)


def test_the_demo_without_matplotlib(tmp_path: Path) -> None:
    """The numbers are there all the same, and the command says what the report needs."""
    program = (
        "import sys; sys.modules['matplotlib'] = None; from sadih_dask.cli import main; main()"
    )
    words = ("demo", "-o", str(tmp_path), "--bits", "8")
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'sadih-dask[report]'" in done.stderr
    assert "report.json" in done.stdout
    assert not (tmp_path / "report.html").exists()


def test_what_the_demo_wrote_fits_together(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    model = SADIH.load(folder / "model.sadih")
    codes, labels = np.load(folder / "codes.npy"), np.load(folder / "labels.npy")
    assert codes.shape == (1437, 4)
    assert codes.dtype == np.uint8
    assert labels.shape == (1437,)
    X, _ = load_digits(return_X_y=True)
    known = {row.tobytes() for row in model.transform(X)}
    assert {row.tobytes() for row in codes} <= known
    assert model.statistics_.n_samples == 1437


def test_a_bad_option_is_wrong_usage(tmp_path: Path) -> None:
    done = sadih("demo", "--depth", 3, cwd=tmp_path)
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--bits", "0"], "0 is not in the range"),
        (["demo", "--bits", "many"], "not a valid integer"),
        (["demo", "--encoder", "best"], "'best' is not one of"),
        (["demo", "-o", __file__], "is a file"),
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
    done = sadih("demo", "-o", tmp_path / "file" / "folder")
    assert done.returncode == 1
    assert one_line(done.stderr)
    assert done.stderr.startswith("sadih: ")
    assert str(tmp_path / "file") in done.stderr
    assert done.stdout == ""
