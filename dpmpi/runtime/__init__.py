"""Puts data, privacy, network and algorithms together into a run."""
