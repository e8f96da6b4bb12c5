"""Seeing: the report of a run as one HTML file, its figures, and what notebooks show.

`page` is what was measured of a model, and makes of it a report with `figures`; `code_statistics`
is what both show of codes, `methods` the report of several learners. `notebook` has the cards, with
small pictures in them, and `explore` what one draws beside them. `html` is below all: colours,
words, templates. `figures` and `explore` need matplotlib (``pip install 'sadih-dask[report]'``),
the others do not.
"""
