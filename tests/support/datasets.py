"""Rows to learn from: clouds in memory, and files of them in the drop folder of a pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
N_CLASSES, N_FEATURES = 5, 16

CONFIGURATION = """
[run]
directory = "{directory}"
keep = 3

[source]
features = "{drop}/*.npz"
hold_out = 0.1

[model]
n_bits = 16
anchors = 50
n_init = 1
block_rows = 512

[report]
enabled = false
"""


def blobs(n: int = 60, d: int = 5, c: int = 3, *, seed: int = 0) -> tuple[Array, Array]:
    """Features (n, d) and class numbers (n,); every class has a row among any c in a row."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % c
    return rng.normal(size=(n, d)) + rng.normal(scale=1.5, size=(c, d))[labels], labels


def tagged_blobs(n: int = 60, d: int = 5, c: int = 4, *, seed: int = 0) -> tuple[Array, Array]:
    """Features (n, d) and a multi-hot matrix (n, c) of one to three labels a row."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((n, c), np.int64)
    for i in range(n):
        labels[i, rng.choice(c, size=rng.integers(1, min(c, 3) + 1), replace=False)] = 1
    return rng.normal(size=(n, d)) + labels @ rng.normal(scale=1.5, size=(c, d)), labels


def rows(
    n: int = 5000, d: int = 12, *, multi_label: bool = False, dtype: str = "float32", seed: int = 0
) -> tuple[Array, Array]:
    """Overlapping clouds about a mean that is not zero."""
    rng = np.random.default_rng(seed)
    noise = 2.0 + rng.normal(size=(n, d))
    if not multi_label:
        labels = rng.integers(5, size=n)
        labels[:10] = np.arange(10) % 5
        return (noise + rng.normal(size=(5, d))[labels]).astype(dtype), labels
    tags = (rng.random((n, 4)) < 0.3).astype(np.uint8)
    tags[np.arange(n), rng.integers(4, size=n)] = 1
    return (noise + tags @ rng.normal(size=(4, d))).astype(dtype), tags


def drop(folder: Path, name: str, n_rows: int, seed: int, *, spread: float = 1.5) -> Path:
    """Put a file of rows into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    centres = spread * np.random.default_rng(99).standard_normal((N_CLASSES, N_FEATURES))
    rng = np.random.default_rng(seed)
    labels = rng.integers(N_CLASSES, size=n_rows)
    features = centres[labels] + rng.standard_normal((n_rows, N_FEATURES))
    path = folder / f"{name}.npz"
    np.savez(path, features=features.astype(np.float32), labels=labels)
    return path


def configuration(folder: Path, text: str = "") -> Path:
    """Write a configuration over ``folder / "incoming"``, with further sections."""
    path = folder / "pipeline.toml"
    said = CONFIGURATION.format(directory=folder / "runs", drop=folder / "incoming")
    path.write_text(said + text)
    return path
