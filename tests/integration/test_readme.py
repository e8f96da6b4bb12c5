"""The Python of the README runs as it stands, block after block."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sadih_dask import CodeStore, FeatureStore

README = Path(__file__).parents[2] / "README.md"


def test_every_block_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    blocks = [
        (text[: found.start(1)].count("\n"), found[1])
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]
    assert len(blocks) >= 3
    known: dict[str, Any] = {}
    for first_line, block in blocks:
        if "store" not in known and "X" in known:  # what the text has made with commands before
            known["store"] = FeatureStore.create("s.zarr", known["X"], known["y"], chunk_rows=999)
        exec(compile("\n" * first_line + block, str(README), "exec"), known)
    model, names = known["model"], known["names"].compute()
    assert model.classes_.tolist() == [str(digit) for digit in range(10)]
    assert model.score(known["queries"], known["y_queries"].astype(str)) > 0.9
    np.testing.assert_array_equal(
        CodeStore.open("codes.zarr").read("codes"), known["codes"].compute()
    )
    assert len(names) == len(known["rows"])
    np.testing.assert_array_equal(known["store"].read("features"), known["X"])
