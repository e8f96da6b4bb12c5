"""Run directories: what was made, by which run, and which of them is the latest."""
