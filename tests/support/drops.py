"""A drop folder with files of labelled rows, and the configuration of a pipeline over it."""

from pathlib import Path

import numpy as np

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
