"""Dask: reductions and maps over row blocks. The only place that builds graphs."""
