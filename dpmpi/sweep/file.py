"""Sweep files: a family of runs and the figures to draw from them, as TOML (docs/experiments/README.md).

A run of the family is a series, a point of the grid and a repetition. Its settings come from, the later winning,

    [run]  <  [quick] (with --quick)  <  [[series]]  <  [series.quick] (with --quick)  <  [grid]

less what the series lists in `without`. `${NAME}` in a text is replaced from the environment. This module knows the
form of a file; `dpmpi.sweep.plan` makes its runs and checks their settings.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from dpmpi.config import Config, shown
from dpmpi.errors import ConfigError, nearest

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
MOST_RANKS = 10_000
"""Of one run: its graph is made to check it."""

_RESERVED = {"out": "--out", "loopback": "--launcher", "ranks": "ranks = N at the top", "config": "[run] itself"}
_TOP = ("title", "paper", "figure", "text", "ranks", "repetitions", "run", "quick", "series", "grid", "repeat", "plot")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Plot:
    """One figure: `x` is one of `OVER_TIME`, a grid key or a key of summary.json; `log` names the logarithmic axes."""

    x: str
    y: str
    title: str = ""
    log: str = ""

    def over_time(self, grid: Mapping[str, Any]) -> bool:
        """Return whether a run is a line in this figure, and not a point."""
        return self.x in OVER_TIME and self.x not in grid


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Sweep:
    """A family of runs."""

    name: str
    title: str
    paper: str
    figure: str
    text: str
    ranks: int
    repetitions: int
    advance_seed: bool
    base: Settings
    series: tuple[Series, ...]
    grid: dict[str, tuple[Value, ...]]
    plots: tuple[Plot, ...]


def read_sweep(path: Path, *, quick: bool = False, repeat: int | None = None) -> Sweep:
    """Return the sweep that a file describes; `repeat` replaces its number of repetitions."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the sweep {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # broken TOML or UTF-8, endless digits, brackets without end
        raise ConfigError(f"{path} is not TOML: {error!s:.200}") from error
    try:
        return _sweep(path, table, quick, repeat)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _sweep(path: Path, table: dict[str, Any], quick: bool, repeat: int | None) -> Sweep:
    _known("", table, _TOP)
    if "ranks" not in table:
        raise ConfigError("expected ranks = N at the top, found none")
    small = _table(table, "quick")
    counts = {"ranks": table["ranks"], "repetitions": table.get("repetitions", 1)}
    grid, base = _grid(_table(table, "grid")), _settings("[run]", _table(table, "run"))
    small_grid = _grid(_table(small, "grid"))
    _known("[quick.grid] ", small_grid, tuple(grid))
    small_base = _settings("[quick]", {k: v for k, v in small.items() if k not in (*counts, "grid")})
    if quick:
        counts |= {key: small[key] for key in counts if key in small}
        grid, base = grid | small_grid, base | small_base
    series = tuple(_series(position, one, quick) for position, one in enumerate(_tables(table, "series")))
    if not series:
        name = str(base.get("algorithm", Config.algorithm))
        series = (Series(name, name),)
    names = [one.name for one in series]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two series have the name {name!r}: give each its own")
    for one in series:
        both = sorted(set(one.settings) & set(grid))
        if both:
            raise ConfigError(f"series {one.name!r} sets {both[0]}, and so does [grid]: keep one of them")
        for key in one.without:
            _known(f"series {one.name!r}, without: ", [key], sorted({*base, *grid}))
        _known(f"series {one.name!r}, grid: ", one.grid, tuple(grid))
        for key, values in one.values(grid).items():
            if not values:
                raise ConfigError(f"series {one.name!r}, grid: no value of {key} is one of {shown(list(grid[key]))}")
    repetitions = repeat or _count("repetitions", counts["repetitions"])
    runs = repetitions * sum(math.prod(map(len, one.values(grid).values())) for one in series)
    ranks = _count("ranks", counts["ranks"])
    if ranks > MOST_RANKS:
        raise ConfigError(f"expected at most {MOST_RANKS} ranks, found {shown(ranks)}")
    if runs > MOST_RUNS:
        raise ConfigError(
            f"expected at most {MOST_RUNS} runs, found {shown(runs)}: fewer repetitions, or a smaller grid"
        )
    plots = tuple(_plot(position, one, grid) for position, one in enumerate(_tables(table, "plot")))
    return Sweep(
        name=path.stem + ("-quick" if quick else ""), title=_text(table, "title", path.stem),
        paper=_text(table, "paper"), figure=_text(table, "figure"), text=_text(table, "text"),
        ranks=ranks,
        repetitions=repetitions,
        advance_seed=_repeat(_table(table, "repeat")),
        base=base, series=series, grid=grid, plots=plots,
    )  # fmt: skip


def _series(position: int, table: dict[str, Any], quick: bool) -> Series:
    if "name" not in table:
        raise ConfigError(f"series {position + 1} has no name: a short one, which becomes a directory")
    name = table["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"a series name is made of letters, digits and . _ + -, at most 100, found {shown(name)}")
    without = table.get("without", [])
    if not isinstance(without, list) or not all(isinstance(key, str) for key in without):
        raise ConfigError(f"series {name!r}: without is a list of keys, found {shown(without)}")
    own = {k: v for k, v in table.items() if k not in ("name", "label", "without", "quick", "grid")}
    settings, small = _settings(f"series {name!r}", own), _settings(f"series {name!r}, quick", _table(table, "quick"))
    settings |= small if quick else {}
    dropped = tuple(map(dashed, without))
    return Series(name, _text(table, "label", name), settings, dropped, _grid(_table(table, "grid")))


def _plot(position: int, table: dict[str, Any], grid: Mapping[str, Any]) -> Plot:
    where = f"plot {position + 1}"
    _known(f"{where}: ", table, ("x", "y", "title", "log"))
    if "x" not in table or "y" not in table:
        raise ConfigError(f"{where}: expected x and y, found {', '.join(table) or 'neither'}")
    plot = Plot(**{key: _text(table, key) for key in table})
    if plot.log not in ("", "x", "y", "xy"):
        raise ConfigError(f"{where}: log is x, y or xy, found {shown(plot.log)}")
    if plot.over_time(grid) and plot.y not in CURVES:
        text = f"{where}: over {plot.x}, y is one of {', '.join(CURVES)}"
        raise ConfigError(f"{text}; found {shown(plot.y)}{nearest(plot.y, CURVES)}")
    if not plot.over_time(grid) and plot.x not in grid and "." not in plot.x:
        known = (*OVER_TIME, *grid)
        text = f"{where}: x is one of {', '.join(known)} or a dotted key of summary.json"
        raise ConfigError(f"{text}; found {shown(plot.x)}{nearest(plot.x, known)}")
    return plot


def _grid(table: dict[str, Any]) -> dict[str, tuple[Value, ...]]:
    grid: dict[str, tuple[Value, ...]] = {}
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"[grid] {key} must be a list of values, found {shown(values)}")
        grid[dashed(key)] = tuple(value for one in values for value in _settings("[grid]", {key: one}).values())
        if len(set(values)) < len(values):
            raise ConfigError(f"[grid] {key} holds a value twice: {shown(values)}")
    return grid


def _repeat(table: dict[str, Any]) -> bool:
    _known("[repeat] ", table, ("seed",))
    seed = table.get("seed", "advance")
    if seed not in ("advance", "keep"):
        raise ConfigError(
            f'[repeat] seed is "advance" (new data and graphs) or "keep" (new noise only), found {shown(seed)}'
        )
    return bool(seed == "advance")


def _settings(where: str, table: dict[str, Any]) -> Settings:
    settings: Settings = {}
    for key, value in table.items():
        name = dashed(key)
        if len(key) > 80:
            raise ConfigError(f"{where} unknown key {shown(key, 40)}")
        if name in _RESERVED:
            raise ConfigError(f"{where} {key} is not for a sweep's settings: use {_RESERVED[name]}")
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{where} {key} must be one value: text, a number, true or false; found {shown(value)}")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{where} {key} must be below 2^63, found {shown(value)}")
        settings[name] = _expanded(f"{where} {key}", value) if isinstance(value, str) else value
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


def _known(where: str, found: Mapping[str, Any] | Sequence[str], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            expected = f"expected one of {', '.join(known)}" if known else "there is none to choose from"
            raise ConfigError(f"{where}unknown key {shown(key)}{nearest(key[:80], known)}, {expected}")


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
        raise ConfigError(f"{name} must be a whole number of at least 1, found {shown(value)}")
    return value


def _text(table: dict[str, Any], key: str, default: str = "") -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be text, found {shown(value)}")
    return value.strip()


def _table(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"[{key}] must be a table, found {shown(value)}")
    return value


def _tables(table: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ConfigError(f"[[{key}]] must be tables in double brackets, found {shown(value)}")
    return value
