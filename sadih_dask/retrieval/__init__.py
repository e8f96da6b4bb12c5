"""Codes, Hamming distances and retrieval metrics on NumPy arrays."""
