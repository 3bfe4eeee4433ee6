"""Reading what runs and sweeps left behind, and the table of their results.

A table's cell is the median over the repetitions. Where they differ, the 10% and 90% quantiles (linear interpolation)
stand beside it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError

QUANTILES = (0.1, 0.5, 0.9)
ALIASES = {
    "epsilon": "privacy.epsilon", "bytes": "communication.bytes", "messages": "communication.messages",
    "seconds": "wall_seconds",
}  # fmt: skip
"""What the last value of a curve is called in summary.json."""

COLUMNS = (
    ("objective", "objective", ".4g"), ("suboptimality", "suboptimality", ".3g"), ("error", "relative error", ".3g"),
    ("accuracy", "accuracy", ".4f"), ("privacy.epsilon", "epsilon, certified", ".4g"),
    ("privacy.epsilon_theorem", "epsilon, paper's theorem", ".4g"), ("communication.bytes", "bytes", ",.0f"),
    ("wall_seconds", "seconds", ".3g"),
)  # fmt: skip
"""Key of summary.json, heading and format of the columns of a results table."""


@dataclass(frozen=True)
class Run:
    """A finished run: its summary, its settings, and its evaluations as one array per figure (NaN where there is none).

    `curves` has the figures of metrics/: `bytes` and `messages` added up over the ranks, `epsilon` the largest rank's.
    """

    path: Path
    summary: dict[str, Any]
    settings: dict[str, Any]
    curves: dict[str, Array]

    def number(self, key: str) -> float | None:
        """Return a number of the summary by its dotted key, None if it is not there or null."""
        value: Any = self.summary
        for part in ALIASES.get(key, key).split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Group:
    """The repetitions of one series at one point of its grid."""

    series: str
    label: str
    grid: dict[str, Any]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class SweepResult:
    """A sweep's index (sweep.json) and the runs that are done."""

    path: Path
    index: dict[str, Any]
    groups: tuple[Group, ...]

    @property
    def done(self) -> int:
        """How many runs are done."""
        return sum(len(group.runs) for group in self.groups)


def read_run(path: Path) -> Run:
    """Return a finished run; raise `ConfigError` if there is none."""
    if not (path / "summary.json").is_file():
        ended = _why_ended(path)
        raise ConfigError(f"expected a run with summary.json or a sweep with sweep.json in {path}, found {ended}")
    summary = _json(path / "summary.json")
    try:
        settings = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path / 'config.toml'} cannot be read ({error}): the run directory is damaged") from error
    return Run(path, summary, settings, _curves(path / "metrics", summary.get("optimum")))


def read_sweep_directory(path: Path) -> SweepResult:
    """Return a sweep's index with those of its runs that are done."""
    index = _json(path / "sweep.json")
    labels = {one["name"]: one["label"] for one in index["series"]}
    found: dict[tuple[str, str], tuple[dict[str, Any], list[Run]]] = {}
    for one in index["runs"]:
        _, runs = found.setdefault((one["series"], json.dumps(one["grid"])), (one["grid"], []))
        if one["state"] == "done":
            runs.append(read_run(path / one["path"]))
    order = {name: position for position, name in enumerate(labels)}
    groups = [Group(name, labels[name], grid, tuple(runs)) for (name, _), (grid, runs) in found.items()]
    return SweepResult(path, index, tuple(sorted(groups, key=lambda group: order[group.series])))


def spread(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Return the 10%, 50% and 90% quantiles of what is there; None if nothing is."""
    there = [value for value in values if value is not None and not np.isnan(value)]
    if not there:
        return None
    low, middle, high = np.quantile(there, QUANTILES)
    return float(low), float(middle), float(high)


def table_columns(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return those of `COLUMNS` for which some run has a number."""
    return [column for column in COLUMNS if any(run.number(column[0]) is not None for run in runs)]


def text_table(sweep: SweepResult) -> str:
    """Return the results as text: a line per series and point of the grid, medians over the repetitions."""
    columns = table_columns([run for group in sweep.groups for run in group.runs])
    keys = list(sweep.index["grid"])
    rows = [["series", *keys, "runs", *(heading for _, heading, _ in columns)]]
    for group in sweep.groups:
        cells = [(spread([run.number(key) for run in group.runs]), form) for key, _, form in columns]
        rows.append(
            [
                group.series, *(str(group.grid.get(key, "-")) for key in keys), str(len(group.runs)),
                *("-" if cell is None else format(cell[1], form) for cell, form in cells),
            ]
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = len(sweep.index["runs"])
    return "\n".join([f"{sweep.index['title']}: {sweep.done} of {total} runs, medians over the repetitions", *lines])


def _curves(folder: Path, optimum: float | None) -> dict[str, Array]:
    """Return the evaluations of all ranks as one curve per figure."""
    ranks = [_lines(path) for path in sorted(folder.glob("rank-*.jsonl"))]
    if not ranks or not ranks[0]:
        return {}
    length = min(map(len, ranks))
    numbers = [name for name, value in ranks[0][0].items() if value is None or isinstance(value, int | float)]
    tables = {name: np.array([[_number(line, name) for line in lines[:length]] for lines in ranks]) for name in numbers}
    curves = {name: table[0] for name, table in tables.items()}
    for name in {"bytes", "messages"} & set(tables):
        curves[name] = tables[name].sum(axis=0)
    if "epsilon" in tables:
        curves["epsilon"] = tables["epsilon"].max(axis=0)
    if optimum is not None and "objective" in curves:
        curves["suboptimality"] = curves["objective"] - optimum
    return curves


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    return float("nan") if value is None else float(value)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): the run directory is damaged") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): repeat the run") from error
    return table


def _why_ended(path: Path) -> str:
    if not path.is_dir():
        return "no such directory"
    note = path / "ended.txt"
    if note.is_file():
        return f"a run that ended early: {note.read_text(encoding='utf-8').strip()}"
    return "a run that has not ended" if (path / "config.toml").is_file() else "something else"
