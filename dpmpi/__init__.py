"""Differentially private decentralized optimization as real MPI processes.

Importing this package imports neither mpi4py (which would initialise MPI) nor numpy: a public name is imported when it
is first used. docs/api.md describes them.

Where a launcher has put several ranks on this host, numpy is told to use one thread each, unless the user has said how
many: it reads that when it is imported.
"""

import os
from importlib import import_module

__version__ = "0.2.0"

TYPE_CHECKING = False  # as in typing, which takes ten times as long to load as all that is here
if TYPE_CHECKING:
    from dpmpi.api.launching import launch as launch
    from dpmpi.api.launching import rank as rank
    from dpmpi.api.launching import ranks as ranks
    from dpmpi.api.result import Result as Result
    from dpmpi.api.training import simulate as simulate
    from dpmpi.api.training import train as train
    from dpmpi.core import Agent as Agent
    from dpmpi.core import Gather as Gather
    from dpmpi.core import Method as Method
    from dpmpi.core import Mix as Mix
    from dpmpi.core import NeighbourSum as NeighbourSum
    from dpmpi.core import Penalty as Penalty
    from dpmpi.core import Query as Query
    from dpmpi.core import Release as Release
    from dpmpi.core import Sum as Sum
    from dpmpi.core import combine as combine
    from dpmpi.core import hyperparameter as hyperparameter
    from dpmpi.core import public as public
    from dpmpi.data.arrays import code as code
    from dpmpi.data.split import split as split
    from dpmpi.errors import BudgetExceeded as BudgetExceeded
    from dpmpi.errors import ConfigError as ConfigError
    from dpmpi.errors import DataError as DataError
    from dpmpi.errors import DpmpiError as DpmpiError
    from dpmpi.errors import Preempted as Preempted
    from dpmpi.model import Model as Model
    from dpmpi.model import PrivacyStatement as PrivacyStatement
    from dpmpi.problem.losses import Loss as Loss

_HOMES = {
    "dpmpi.api.launching": ("launch", "rank", "ranks"),
    "dpmpi.api.result": ("Result",),
    "dpmpi.api.training": ("simulate", "train"),
    "dpmpi.core": (
        "Agent",
        "Gather",
        "Method",
        "Mix",
        "NeighbourSum",
        "Penalty",
        "Query",
        "Release",
        "Sum",
        "combine",
        "hyperparameter",
        "public",
    ),
    "dpmpi.data.arrays": ("code",),
    "dpmpi.data.split": ("split",),
    "dpmpi.errors": ("BudgetExceeded", "ConfigError", "DataError", "DpmpiError", "Preempted"),
    "dpmpi.model": ("Model", "PrivacyStatement"),
    "dpmpi.problem.losses": ("Loss",),
}
"""Where each public name is defined."""
_HOME = {name: home for home, names in _HOMES.items() for name in names}

if os.environ.keys() & {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}:
    from dpmpi.network.launcher import ONE_THREAD, local_ranks

    if local_ranks(os.environ) > 1:
        for _name, _value in ONE_THREAD.items():
            os.environ.setdefault(_name, _value)

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - names, all of them


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'dpmpi' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*__all__, *globals()})
