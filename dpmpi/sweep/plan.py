"""The runs of a sweep: every series at every point of its grid, as often as it is repeated.

Every setting goes through the flags of `dpmpi.run`, so that a file is checked as a command line is. All runs are
checked before the first one starts.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dpmpi.config import Config, from_values, make_parser, shown
from dpmpi.errors import ConfigError
from dpmpi.planning import schedule_of, source_of
from dpmpi.sweep.file import FROM_OPTIMUM, Series, Settings, Sweep, Value, dashed


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: where it belongs, the flags that start it, and what they mean."""

    series: str
    grid: Settings
    repetition: int
    path: str
    flags: tuple[str, ...]
    config: Config


def plan_runs(sweep: Sweep) -> list[PlannedRun]:
    """Return all runs, checked; the first repetition of every point comes before the second of any."""
    runs: list[PlannedRun] = []
    for repetition in range(sweep.repetitions):
        for series in sweep.series:
            own = series.values(sweep.grid)
            for values in itertools.product(*own.values()):
                point = dict(zip(own, values, strict=True))
                runs.append(_planned(sweep, series, point, repetition))
    taken: dict[str, PlannedRun] = {}
    for run in runs:
        if run.path in taken:
            raise ConfigError(f"two runs would share the directory {run.path}: {taken[run.path].grid} and {run.grid}")
        taken[run.path] = run
    _check_data_and_graphs(sweep, runs)
    return runs


def flags_of(settings: Mapping[str, Value]) -> list[str]:
    """Return the settings as flags of `dpmpi.run`."""
    flags = []
    for key, value in settings.items():
        name = dashed(key)
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags.append(f"--{name}={value}")
    return flags


def _planned(sweep: Sweep, series: Series, point: Settings, repetition: int) -> PlannedRun:
    """Return one run; the seed moves on with the repetition, and so does a repeatable noise, or all would be equal."""
    settings = {k: v for k, v in (sweep.base | series.settings | point).items() if k not in series.without}
    where = f"series {series.name!r}" + "".join(f", {key} = {shown(value)}" for key, value in point.items())
    try:
        config = _config(settings)
        if sweep.advance_seed:
            settings["seed"] = config.seed + repetition
        if config.insecure_noise_seed is not None:
            settings["insecure-noise-seed"] = config.insecure_noise_seed + repetition
        config = _config(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for plot in sweep.plots:
        if plot.y in FROM_OPTIMUM and not config.reference:
            raise ConfigError(f"{where}: a plot of the {plot.y.replace('_', ' ')} needs reference = true")
        if plot.over_time(sweep.grid) and config.evaluate == 0:
            raise ConfigError(f"{where}: a plot over {plot.x} needs evaluations, found evaluate = 0")
    names = [_directory_name(f"{key}={value}") for key, value in point.items()]
    parts = [series.name, *([",".join(names)] if names else []), f"rep-{repetition}"]
    return PlannedRun(series.name, point, repetition, "/".join(parts), tuple(flags_of(settings)), config)


@cache  # a sweep may have hundreds of runs
def _parser() -> argparse.ArgumentParser:
    return make_parser("python -m dpmpi.run", "")


def _config(settings: Settings) -> Config:
    return from_values(vars(_parser().parse_args(flags_of(settings))))


def _check_data_and_graphs(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    """Raise for a source or a graph that cannot be: the first repetition stands for the others."""
    for run in runs:
        if run.repetition == 0:
            try:
                source_of(run.config)
                schedule_of(run.config, sweep.ranks)
            except ConfigError as error:
                raise ConfigError(f"{run.path}: {error}") from None


def _directory_name(text: str) -> str:
    return re.sub(r"[^\w.:=+@%-]+", "-", text).strip(".") or "-"
