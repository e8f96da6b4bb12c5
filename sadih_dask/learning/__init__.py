"""The learner: NumPy and SciPy only. No Dask, no Zarr, no files."""
