"""Families of runs, described in a file, run one after the other: `python -m dpmpi sweep`."""
