"""Reading what runs and sweeps left behind, and the table of their results.

Repetitions become one number and its spread: those of a sweep their median and the 10% and 90% quantiles (linear
interpolation), those among plain runs, which are few, their mean, the smallest and the largest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.core.files import read_toml
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, DataError, DpmpiError
from dpmpi.runtime.output.directory import nearest_run
from dpmpi.runtime.output.process_figures import merged

REPETITION = frozenset(
    {"seed", "insecure-noise-seed", "out", "ledger", "keys", "deadline", "ranks", "checkpoint-every", "on-failure"}
    | {"plugin"}
)
"""Runs that differ in these settings alone are repetitions of each other."""
ALIASES = {
    "epsilon": "privacy.epsilon",
    "bytes": "communication.bytes",
    "messages": "communication.messages",
    "seconds": "wall_seconds",
}
"""What the last value of a curve is called in summary.json."""

COLUMNS = (
    ("objective", "objective", ".4g"),
    ("suboptimality", "suboptimality", ".3g"),
    ("error", "relative error", ".3g"),
    ("accuracy", "accuracy", ".4f"),
    ("private_evaluation.metrics.accuracy.value", "accuracy, private", ".4f"),
    ("private_evaluation.metrics.rmse.value", "RMSE, private", ".4g"),
    ("private_evaluation.metrics.deviance.value", "deviance, private", ".4g"),
    ("privacy.epsilon", "epsilon, certified", ".4g"),
    ("privacy.epsilon_theorem", "epsilon, paper's theorem", ".4g"),
    ("communication.bytes", "bytes", ",.0f"),
    ("wall_seconds", "seconds", ".3g"),
)
"""Key of summary.json, heading and format of the columns of a results table."""


@frozen
class Spread:
    """How repetitions become three numbers: names of the low, the middle and the high one, and how they are found."""

    low: str
    middle: str
    high: str
    words: tuple[str, str]
    """What a caption calls the middle one and the range."""
    of: Callable[[Array], Array]
    """From an array with a row per repetition to one with the three rows."""

    def numbers(self, values: Sequence[float | None]) -> tuple[float, float, float] | None:
        """Return the three numbers of what is there; None if nothing is."""
        there = np.array([value for value in values if value is not None and not np.isnan(value)])
        if not len(there):
            return None
        low, middle, high = self.of(there).tolist()
        return low, middle, high


def _quantiles(table: Array) -> Array:
    found: Array = np.quantile(table, (0.1, 0.5, 0.9), axis=0)
    return found


def _mean_and_range(table: Array) -> Array:
    found: Array = np.array([table.min(axis=0), table.mean(axis=0), table.max(axis=0)])
    return found


QUANTILES = Spread("q10", "median", "q90", ("medians", "10% to 90% quantiles"), _quantiles)
RANGE = Spread("smallest", "mean", "largest", ("means", "smallest to largest"), _mean_and_range)


@frozen
class Waits:
    """When a rank waited for whom: `buckets[k]` are seconds by peer, from `started + k width` on, for `width` seconds.

    Times are seconds since 1970 by the rank's own clock.
    """

    rank: int
    started: float
    width: float
    buckets: tuple[dict[int, float], ...]


@frozen
class Run:
    """A finished run: its summary, its settings, and its evaluations as one array per figure (NaN where there is none).

    `curves` has the figures of metrics/: `bytes` and `messages` added up over the ranks, `epsilon` the largest rank's.
    """

    path: Path
    summary: dict[str, Any]
    settings: dict[str, Any]
    curves: dict[str, Array]

    @property
    def in_one_process(self) -> bool:
        """Whether all ranks were agents in one process (--loopback), in which nobody waits."""
        cost = self.summary.get("cost")
        if cost is not None:
            return cost["ranks_per_host"] is None
        waits = [record["wait_seconds"] for record in self.summary["per_rank"]]
        return None not in waits and not any(waits)

    def number(self, key: str) -> float | None:
        """Return a number of the summary by its dotted key, None if it is not there or null."""
        value: Any = self.summary
        for part in ALIASES.get(key, key).split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@frozen
class Group:
    """The repetitions of one series at one point of its grid; of plain runs, with all their settings as the grid."""

    series: str
    label: str
    grid: dict[str, Any]
    runs: tuple[Run, ...]


@frozen
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
    with reading(path / "summary.json"):
        summary = merged(summary, path)
    settings = read_toml(path / "config.toml", "the settings of a run", DataError)
    with reading(path / "summary.json"):
        ranks = [record["rank"] for record in summary["per_rank"]]  # the lost ones have fewer evaluations
        best = summary.get("optimum")
        return Run(path, summary, settings, _curves(path / "metrics", ranks, None if best is None else float(best)))


def read_sweep_directory(path: Path) -> SweepResult:
    """Return a sweep's index with those of its runs that are done."""
    with reading(path / "sweep.json"):
        return _sweep_result(path, _json(path / "sweep.json"))


def _sweep_result(path: Path, index: dict[str, Any]) -> SweepResult:
    if Path(index["name"]).name != index["name"]:  # it becomes part of file names
        raise ValueError(f"the name {index['name']!r:.40}")
    labels = {one["name"]: one["label"] for one in index["series"]}
    found: dict[tuple[str, str], tuple[dict[str, Any], list[Run]]] = {}
    for one in index["runs"]:
        _, runs = found.setdefault((one["series"], json.dumps(one["grid"])), (one["grid"], []))
        if not one["path"].isprintable():  # it becomes part of messages
            raise ValueError(f"the path {one['path']!r:.40}")
        if one["state"] == "done":
            runs.append(read_run(path / one["path"]))
    order = {name: position for position, name in enumerate(labels)}
    groups = [Group(name, labels[name], grid, tuple(runs)) for (name, _), (grid, runs) in found.items()]
    return SweepResult(path, index, tuple(sorted(groups, key=lambda group: order[group.series])))


def read_waits(path: Path) -> list[Waits]:
    """Return the time lines that the ranks of a run left, in rank order; none if the run has none."""
    found = []
    for file in (path / "waits").glob("rank-*.json"):
        table = _json(file)
        with reading(file):
            buckets = tuple({int(peer): float(s) for peer, s in bucket.items()} for bucket in table["buckets"])
            found.append(Waits(int(table["rank"]), float(table["started"]), float(table["width"]), buckets))
    return sorted(found, key=lambda waits: waits.rank)


def group_runs(runs: Sequence[Run], labels: Sequence[str]) -> list[Group]:
    """Return plain runs as groups of repetitions, in the order of their first ones; see `REPETITION`.

    A group is called by what the names of its runs begin with.
    """
    found: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        same = {key: value for key, value in run.settings.items() if key not in REPETITION}
        found.setdefault(json.dumps([run.summary["ranks"], same], sort_keys=True, default=str), []).append(i)
    names = [common_name([labels[i] for i in places]) for places in found.values()]
    if len(set(names)) < len(names):
        names = [labels[places[0]] for places in found.values()]
    return [
        Group(name, name, runs[places[0]].settings, tuple(runs[i] for i in places))
        for name, places in zip(names, found.values(), strict=True)
    ]


def common_name(names: Sequence[str]) -> str:
    """Return the common beginning of names, less a number that is being counted; the first one if there is none."""
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same).rstrip("0123456789").rstrip("-_./ ") or names[0]


def table_columns(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return those of `COLUMNS` for which some run has a number."""
    return [column for column in COLUMNS if any(run.number(column[0]) is not None for run in runs)]


def text_table(sweep: SweepResult) -> str:
    """Return the results as text: a line per series and point of the grid, medians over the repetitions."""
    columns = table_columns([run for group in sweep.groups for run in group.runs])
    keys = list(sweep.index["grid"])
    rows = [["series", *keys, "runs", *(heading for _, heading, _ in columns)]]
    for group in sweep.groups:
        cells = [(QUANTILES.numbers([run.number(key) for run in group.runs]), form) for key, _, form in columns]
        rows.append(
            [
                group.series,
                *(str(group.grid.get(key, "-")) for key in keys),
                str(len(group.runs)),
                *("-" if cell is None else format(cell[1], form) for cell, form in cells),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total = len(sweep.index["runs"])
    return "\n".join([f"{sweep.index['title']}: {sweep.done} of {total} runs, medians over the repetitions", *lines])


def _curves(folder: Path, ranks: Sequence[int], optimum: float | None) -> dict[str, Array]:
    """Return the evaluations of all ranks as one curve per figure."""
    paths = [folder / f"rank-{rank:03d}.jsonl" for rank in ranks]
    there = [_lines(path) for path in paths if path.is_file()]
    length = min(map(len, there), default=0)
    if not length:
        return {}
    numbers = [name for name, value in there[0][0].items() if value is None or isinstance(value, int | float)]
    tables = {name: np.array([[_number(line, name) for line in lines[:length]] for lines in there]) for name in numbers}
    curves = {name: table[0] for name, table in tables.items()}
    for name in {"bytes", "messages"} & set(tables):
        curves[name] = tables[name].sum(axis=0)
        if len(there) < len(paths):  # hosts without a common disk: what the others sent is not known
            del curves[name]
    if "epsilon" in tables:
        curves["epsilon"] = tables["epsilon"].max(axis=0)
    if optimum is not None and "objective" in curves:
        curves["suboptimality"] = curves["objective"] - optimum
    return curves


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    return float("nan") if value is None else float(value)


def _lines(path: Path) -> list[dict[str, Any]]:
    with reading(path):
        return [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _json(path: Path) -> dict[str, Any]:
    with reading(path):
        table: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    return table


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise `DataError` for whatever a damaged file makes the code inside stumble over."""
    try:
        yield
    except DpmpiError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error!r:.200}): it is damaged, repeat the run") from error


def _why_ended(path: Path) -> str:
    if path.is_file():
        return "a file"
    if not path.is_dir():
        return f"no such directory{nearest_run(path)}"
    note = path / "ended.txt"
    if note.is_file():
        return f"a run that ended early: {note.read_text(encoding='utf-8').strip()}"
    return "a run that has not ended" if (path / "config.toml").is_file() else "something else"
