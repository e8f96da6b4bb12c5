"""SADIH and SADIHCV: estimators over the learner and the scan.

Read `estimator` first, then `inputs` and `collections` (what X and y may be), `parameters`,
`scanning` (rows to statistics), `solve` (statistics to codes and a hash function), `model_file`,
`evaluation` with `baselines`, and `cross_validation` with `results`.
"""
