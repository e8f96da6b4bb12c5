"""Packed codes, Hamming kernels and metrics; NumPy and numba, in memory.

Read `codes` first (bits in bytes), then `histograms` (relevant and total rows by distance),
`metrics` (everything that is read off them), `nearest`, `evaluation` (metrics of a collection),
`failures` (which classes are taken for which) and `trial` (what codes are worth on rows left out).
`kernels` are the compiled loops, `trees` hash functions of decision trees.
"""
