"""``python -m sadih_dask.cli``."""

from sadih_dask.cli import main

main()
