"""Whole jobs: from data to codes, metrics and files."""
