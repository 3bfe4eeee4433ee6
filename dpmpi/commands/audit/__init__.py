"""A lower bound on epsilon, measured from the wire: `python -m dpmpi audit`."""
