"""Dask: one scan, one map, memory predicted first; threads or the current cluster.

Read `rows` first (arrays, stores and Dask arrays as blocks), then `reduction` and `scan`
(statistics in one pass), `lazy` and `span` (chunks of Dask arrays, and blocks across their ends),
`checkpoint` (a pass that goes on after a kill), `memory` (the plan), `tree` (pairs, maps),
`encode`, `search`, `evaluate`. `run` and `remote` execute graphs.
"""
