"""One module a verb; the command line, runs and notebooks call the same function.

In the data's order: `ingest`, `fit` or `tune`, `encode`, then `search`, `evaluate` and `export`;
`methods` compares other learners. `inspect` and `verify` look at what is there, `purge` erases what
was deleted, and `size` says what a job will take, by measured `rates`.
"""
