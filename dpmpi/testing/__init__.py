"""Contracts that every method, mechanism and ledger keeps, for our tests and for those of anyone who adds one.

They take a factory, so that nothing is carried over from one run to the next:

    def test_my_method() -> None:
        check_method(MyMethod)

`check_method` runs all contracts of a method and prints a table; each can be run alone, with the settings of
`simulate`.
"""

from dpmpi.privacy.releases import Recorder
from dpmpi.testing.hooks import check_allocations, check_exchanges, check_regroup, check_resume
from dpmpi.testing.losses import check_loss
from dpmpi.testing.methods import check_method, check_settings
from dpmpi.testing.penalties import check_penalty
from dpmpi.testing.privacy import check_ledger, check_mechanism
from dpmpi.testing.releases import check_no_leak, check_releases, check_sensitivity, check_work
from dpmpi.testing.simulation import (
    DeafAgent,
    Records,
    Tap,
    deaf,
    models,
    noisy,
    random_shards,
    shared,
    simulate,
    usual_task,
)

__all__ = ["check_allocations", "check_exchanges", "check_method", "check_regroup", "check_resume", "check_settings"]
__all__ += [
    "check_ledger",
    "check_loss",
    "check_mechanism",
    "check_no_leak",
    "check_penalty",
    "check_releases",
    "check_sensitivity",
    "check_work",
]
__all__ += ["DeafAgent", "Recorder", "Records", "Tap", "deaf", "models", "noisy", "random_shards", "shared", "simulate"]
__all__ += ["usual_task"]
