"""The configuration of a run: a TOML file, the environment and the command line, checked first."""

from __future__ import annotations

from sadih_dask.config.loading import load
from sadih_dask.config.settings import Settings

__all__ = ["Settings", "load"]
