"""Attacks on real runs, held against what is certified: `python -m dpmpi audit`."""
