"""Sweep files: a family of runs and the figures to draw from them, as TOML (docs/experiments/README.md).

A run of the family is a series, a point of the grid and a repetition. Its settings come from, the later winning,

    [run]  <  [quick] (with --quick)  <  [[series]]  <  [series.quick] (with --quick)  <  [grid]

less what the series lists in `without`. `${NAME}` in a text is replaced from the environment. This module knows the
form of a file; `dpmpi.commands.sweep.runs` makes its runs and checks their settings.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeAlias

from dpmpi.core.files import read_toml
from dpmpi.core.frozen import frozen
from dpmpi.core.tables import TomlTable
from dpmpi.errors import ConfigError, nearest, shown
from dpmpi.runtime.config import Config
from dpmpi.runtime.options import MOST_RANKS

Value: TypeAlias = str | int | float | bool
Settings: TypeAlias = dict[str, Value]

OVER_TIME = ("round", "seconds", "bytes", "messages", "epsilon")
"""Horizontal axes along which a run is a line: one point per evaluation."""
CURVES = ("objective", "suboptimality", "accuracy", "consensus_error", "error", "rank_error", *OVER_TIME[1:])
"""What can be drawn over them."""
FROM_OPTIMUM = ("suboptimality", "error", "rank_error")
"""What is measured from the optimum, which a run looks for with `reference = true`."""

MOST_RUNS = 10_000
"""Of one sweep: all are checked before the first one starts."""

_RESERVED = {"out": "--out", "loopback": "--launcher", "ranks": "ranks = N at the top", "config": "[run] itself"}
_TOP = ("title", "paper", "figure", "text", "ranks", "repetitions", "run", "quick", "series", "grid", "repeat", "plot")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@frozen
class Plot:
    """One figure: `x` is one of `OVER_TIME`, a grid key or a key of summary.json; `log` names the logarithmic axes."""

    x: str
    y: str
    title: str = ""
    log: str = ""

    def over_time(self, grid: Mapping[str, Any]) -> bool:
        """Return whether a run is a line in this figure, and not a point."""
        return self.x in OVER_TIME and self.x not in grid


@frozen
class Series:
    """One line in the figures: its settings, its part of the grid, and which settings and grid keys it does without."""

    name: str
    label: str
    settings: Settings = field(default_factory=dict)
    without: tuple[str, ...] = ()
    grid: dict[str, tuple[Value, ...]] = field(default_factory=dict)

    def values(self, grid: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        """Return the series' part of the grid: less the keys that it drops, and only the values that it names."""
        keys = [key for key in grid if key not in self.without]
        return {key: tuple(value for value in grid[key] if value in self.grid.get(key, grid[key])) for key in keys}


@frozen
class Sweep:
    """A family of runs."""

    name: str
    about: dict[str, str]
    """Its title, paper, figure and text."""
    ranks: int
    repetitions: int
    advance_seed: bool
    base: Settings
    series: tuple[Series, ...]
    grid: dict[str, tuple[Value, ...]]
    plots: tuple[Plot, ...]


def read_sweep(path: Path, *, quick: bool = False, repeat: int | None = None) -> Sweep:
    """Return the sweep that a file describes; `repeat` replaces its number of repetitions."""
    file = TomlTable(read_toml(path, "the sweep"), str(path))
    file.only(*_TOP)
    small = file.table("quick", {})
    counts = {"ranks": _count(file, "ranks"), "repetitions": _count(file, "repetitions", 1)}
    small_counts = {key: _count(small, key, count) for key, count in counts.items()}
    grid, base = _grid(file.table("grid", {})), _settings(file.table("run", {}))
    small_grid, small_base = _grid(small.table("grid", {})), _settings(small, (*counts, "grid"))
    TomlTable(small_grid, str(path), name="quick.grid").only(*grid)
    if quick:
        counts, grid, base = small_counts, grid | small_grid, base | small_base
    algorithm = str(base.get("algorithm", Config.algorithm))
    series = tuple(_series(one, quick) for one in file.tables("series")) or (Series(algorithm, algorithm),)
    _check_series(str(path), series, base, grid)
    ranks, repetitions = counts["ranks"], repeat or counts["repetitions"]
    runs = repetitions * sum(math.prod(map(len, one.values(grid).values())) for one in series)
    if runs > MOST_RUNS:
        how = "repeat less, or make [grid] smaller"
        raise ConfigError(f"{path}: expected at most {MOST_RUNS} runs, found {shown(runs)}: {how}")
    again = file.table("repeat", {})
    again.only("seed")
    seeds = '"advance" (new data and graphs) or "keep" (new noise only)'
    advance = again.get("seed", ("advance", "keep"), "advance", expected=seeds) == "advance"
    name, about = path.stem + ("-quick" if quick else ""), {"title": _text(file, "title", path.stem)}
    about |= {key: _text(file, key) for key in ("paper", "figure", "text")}
    plots = tuple(_plot(one, grid) for one in file.tables("plot"))
    return Sweep(name, about, ranks, repetitions, advance, base, series, grid, plots)


def _check_series(path: str, series: Sequence[Series], base: Settings, grid: Mapping[str, tuple[Value, ...]]) -> None:
    """Raise for series that share a name, set what the grid sets, or do without what is not there."""
    names = [one.name for one in series]
    for one in series:
        where = f"{path}: series {one.name!r}"
        if names.count(one.name) > 1:
            raise ConfigError(f"{where}: expected a name of its own, found another series that has it")
        for key in one.settings:
            if key in grid:
                raise ConfigError(f"{where}: expected {key} in the series or in [grid], found it in both")
        TomlTable(dict.fromkeys(one.without), f"{where}, without").only(*sorted({*base, *grid}))
        TomlTable(one.grid, f"{where}, grid").only(*grid)
        for key, values in one.values(grid).items():
            if not values:
                raise ConfigError(f"{where}, grid: no value of {key} is one of {shown(list(grid[key]))}")


def _series(table: TomlTable, quick: bool) -> Series:
    rule = '"NAME", which becomes a directory: at most 100 letters, digits and . _ + -'
    name = table.get("name", str, expected=rule, valid=_NAME.fullmatch)
    without = table.get("without", list, [])
    if not all(isinstance(key, str) for key in without):
        raise table.fault("without", "[KEYS]")
    settings = _settings(table, ("name", "label", "without", "quick", "grid"))
    small = _settings(table.table("quick", {}))
    settings |= small if quick else {}
    dropped, grid = tuple(map(dashed, without)), _grid(table.table("grid", {}))
    return Series(name, _text(table, "label", name), settings, dropped, grid)


def _plot(table: TomlTable, grid: Mapping[str, Any]) -> Plot:
    table.only("x", "y", "title", "log")
    log = table.get("log", ("", "x", "y", "xy"), "", expected='"x", "y" or "xy"')
    plot = Plot(table.get("x", str).strip(), table.get("y", str).strip(), _text(table, "title"), log)
    known = (*OVER_TIME, *grid)
    if plot.over_time(grid) and plot.y not in CURVES:
        expected = f"one of {', '.join(CURVES)} over {plot.x}"
        raise ConfigError(f"{table.fault('y', expected)}{nearest(plot.y, CURVES)}")
    if not plot.over_time(grid) and plot.x not in grid and "." not in plot.x:
        expected = f"one of {', '.join(known)} or a dotted key of summary.json"
        raise ConfigError(f"{table.fault('x', expected)}{nearest(plot.x, known)}")
    return plot


def _grid(table: TomlTable) -> dict[str, tuple[Value, ...]]:
    grid: dict[str, tuple[Value, ...]] = {}
    for key in table.content:
        values = table.get(key, list, expected="a list of values", valid=bool)
        settings = [_settings(replace(table, content={key: one})) for one in values]
        grid[dashed(key)] = tuple(value for one in settings for value in one.values())
        if len(set(values)) < len(values):
            raise table.fault(key, "different values")
    return grid


def _settings(table: TomlTable, other: Sequence[str] = ()) -> Settings:
    """Return the settings of a run that a table holds beside `other` keys."""
    settings: Settings = {}
    for key, value in table.content.items():
        name = dashed(key)
        if key in other:
            continue
        if len(key) > 80:
            raise ConfigError(f"{table.where}: expected settings of a run, found {shown(key, 40)}")
        if name in _RESERVED:
            raise ConfigError(f"{table.where}: expected settings of a run, found {key}: use {_RESERVED[name]}")
        if not isinstance(value, str | int | float):
            raise table.fault(key, "text, a number, true or false")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise table.fault(key, "a number below 2^63")
        settings[name] = _expanded(f"{table.where}: {key}", value) if isinstance(value, str) else value
    return settings


def _expanded(where: str, text: str) -> str:
    """Return the text with each `${NAME}` replaced from the environment, so that a file names no machine's paths."""
    for name in _VARIABLE.findall(text):
        if not os.environ.get(name):
            raise ConfigError(f"{where} needs the environment variable {name}, which is not set: export {name}=...")
    return _VARIABLE.sub(lambda match: os.environ[match[1]], text)


def dashed(key: str) -> str:
    """Return the key as TOML and flags spell it."""
    return key.replace("_", "-")


def _count(table: TomlTable, key: str, *default: int) -> int:
    most = MOST_RANKS if key == "ranks" else MOST_RUNS
    expected = f"a whole number from 1 to {most}"
    return int(table.get(key, int, *default, expected=expected, valid=lambda count: 1 <= count <= most))


def _text(table: TomlTable, key: str, default: str = "") -> str:
    return str(table.get(key, str, default)).strip()
