"""One module a verb; the command line, runs and notebooks call the same function."""
