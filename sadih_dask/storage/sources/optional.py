"""Format libraries that not everybody needs."""

from __future__ import annotations

import importlib
from typing import Any

from sadih_dask.errors import InputError


def require(module: str, path: str) -> Any:
    """Import an optional library, or say which command installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"{path}: reading this format needs {package}, which is not installed. "
            "Install it with: pip install 'sadih-dask[ingest]'"
        ) from error
