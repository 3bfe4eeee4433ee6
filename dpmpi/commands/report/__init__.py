"""Figures and one page from run directories: `python -m dpmpi report`."""
