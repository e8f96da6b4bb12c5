"""Seeing: figures, the report of a run as one HTML file, and what notebooks show.

`figures` needs matplotlib (``pip install 'sadih-dask[report]'``); `page` and `notebook` do not.
"""
