"""The runs of a sweep: every series at every point of its grid, as often as it is repeated.

Every setting goes through the flags of `dpmpi.run`, so that a file is checked as a command line is. All runs are
checked before the first one starts.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dpmpi.commands.sweep.file import FROM_OPTIMUM, Series, Settings, Sweep, Value, dashed
from dpmpi.errors import ConfigError, shown
from dpmpi.runtime.config import Config
from dpmpi.runtime.evaluating import Evaluating
from dpmpi.runtime.flag_parser import make_parser, named_plugins
from dpmpi.runtime.flags import from_values
from dpmpi.runtime.settings import Settings as RunSettings


@dataclass
class SweepRun:
    """One run of a sweep: where it belongs, the flags that start it, what they mean, and how it stands."""

    series: str
    grid: Settings
    repetition: int
    path: str
    flags: tuple[str, ...]
    config: Config
    state: str = "waiting"
    """Or `done` or `failed`."""
    error: str | None = None


def make_runs(sweep: Sweep) -> list[SweepRun]:
    """Return all runs, checked; the first repetition of every point comes before the second of any."""
    runs: dict[str, SweepRun] = {}
    for repetition, series in itertools.product(range(sweep.repetitions), sweep.series):
        own = series.values(sweep.grid)
        for values in itertools.product(*own.values()):
            run = _make_run(sweep, series, dict(zip(own, values, strict=True)), repetition)
            if (other := runs.setdefault(run.path, run)) is not run:
                raise ConfigError(f"two runs would share the directory {run.path}: {other.grid} and {run.grid}")
    for path, run in runs.items():
        if run.repetition > 0:
            continue  # the first one stands for it
        try:
            meant = RunSettings.of(run.config)
            meant.source  # noqa: B018 - raises for what is no source
            meant.schedule(sweep.ranks)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return list(runs.values())


def as_flags(settings: Mapping[str, Value]) -> list[str]:
    """Return the settings as flags of `dpmpi.run`."""
    flags = []
    for name, value in ((dashed(key), value) for key, value in settings.items()):
        flags.append(f"--{name}={value}" if not isinstance(value, bool) else f"--{name}" if value else f"--no-{name}")
    return flags


def _make_run(sweep: Sweep, series: Series, point: Settings, repetition: int) -> SweepRun:
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
        if (
            plot.over_time(sweep.grid)
            and config.evaluate is not None
            and Evaluating.parse(config.evaluate).kind != "open"
        ):
            raise ConfigError(f"{where}: a plot over {plot.x} needs evaluations, found evaluate = 0")
    texts = [re.sub(r"[^\w.:=+@%-]+", "-", f"{key}={value}").strip(".") for key, value in point.items()]
    path = "/".join([series.name, *([",".join(texts)] if texts else []), f"rep-{repetition}"])
    return SweepRun(series.name, point, repetition, path, tuple(as_flags(settings)), config)


@cache  # a sweep may have hundreds of runs
def _parser(plugins: tuple[str, ...]) -> argparse.ArgumentParser:
    return make_parser("python -m dpmpi.run", "", plugins)


def _config(settings: Settings) -> Config:
    words = as_flags(settings)
    return from_values(vars(_parser(named_plugins(words)).parse_args(words)))
