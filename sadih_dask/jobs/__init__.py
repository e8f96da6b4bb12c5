"""One module a verb; the command line, runs and notebooks call the same function.

In the data's order: `ingest`, `fit` or `tune`, `encode`, then `search`, `evaluate` and `export`;
`inspect` and `verify` look at what is there.
"""
