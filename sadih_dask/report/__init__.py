"""Seeing: figures, the report of a run as one HTML file, and what notebooks show.

`figures` and `explore` need matplotlib (``pip install 'sadih-dask[report]'``), the others do not.
"""
