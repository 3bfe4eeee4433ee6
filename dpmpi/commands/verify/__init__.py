"""Check a run's ledgers against its plan, and price them again: `python -m dpmpi verify RUN`."""

from dpmpi.commands.verify.command import main, verify

__all__ = ["main", "verify"]
