"""What `train` and `simulate` return: a view of a run directory."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.model import Model, PrivacyStatement
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.output.result_table import table
from dpmpi.runtime.output.results import Run, read_run


class Result:
    """A finished run: everything is read from its directory, when it is asked for.

    `Result("runs/demo")` opens a run of the command line too. The directory of a simulation without `out` is temporary:
    it goes with the last reference to the result, unless `save` has copied it.
    """

    def __init__(self, path: str | Path, rank: int = 0, *, temporary: bool = False) -> None:
        self.path = Path(path).absolute()
        """The run directory."""
        self.rank = rank
        """The rank that this process was, or its first one."""
        if temporary:
            self._removal = weakref.finalize(self, shutil.rmtree, self.path.parent, ignore_errors=True)

    @cached_property
    def _run(self) -> Run:
        return read_run(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """All figures of the run, as in summary.json."""
        return self._run.summary

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, as in config.toml; what `auto` became is in them."""
        return self._run.settings

    @property
    def history(self) -> dict[str, Array]:
        """One array per figure with an entry per evaluation, NaN where there is none; empty without evaluations.

        A private evaluation has `round`, for each metric its values, and `<metric>_error`, their standard deviations.
        """
        return self._run.curves | _private_history(self.summary.get("private_evaluation"))

    @property
    def privacy(self) -> PrivacyStatement:
        """What the run promises, which its model says too."""
        return self.model.privacy

    @property
    def communication(self) -> dict[str, int]:
        """The messages and bytes of all ranks, by kind."""
        return dict(self.summary["communication"])

    @property
    def ledger(self) -> Path:
        """The ledger of this rank: what it released, written before it was sent."""
        kept = self.settings.get("ledger")
        name = RunDirectory(self.path).ledger(self.rank)
        return name if kept is None else Path(kept) / name.name

    @cached_property
    def model(self) -> Model:
        """The mean of all ranks' models, as in model.npz."""
        return Model.load(self.path)

    def save(self, directory: str | Path) -> Path:
        """Copy the run directory, ledgers and keys included, and use the copy from now on; return its path."""
        where = Path(directory).absolute()
        if where.exists() and (not where.is_dir() or any(where.iterdir())):
            raise ConfigError(f"expected a new or empty directory to save in, found {where}: give another")
        shutil.copytree(self.path, where, dirs_exist_ok=True)
        self.path = where
        if (removal := getattr(self, "_removal", None)) is not None:
            removal()
        return where

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "rank": self.rank}

    def __repr__(self) -> str:
        return table(self.summary, self.path)


def _private_history(found: Mapping[str, Any] | None) -> dict[str, Array]:
    """Return the metrics of private evaluations and their errors; NaN for what is not told from noise."""
    each = [] if found is None else found["history"]
    if not each:
        return {}
    told = {"round": np.array([one["round"] for one in each], float)}
    for name in [name for name in each[-1] if name != "round"]:
        for key, part in ((name, "value"), (f"{name}_error", "error")):
            told[key] = np.array([one[name][part] for one in each], float)
    return told
