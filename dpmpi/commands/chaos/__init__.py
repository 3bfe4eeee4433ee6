"""Runs that are broken on purpose, and the promises that are checked: `python -m dpmpi chaos`."""
