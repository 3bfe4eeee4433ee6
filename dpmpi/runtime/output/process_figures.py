"""Figures about a rank's process: how long it took and how much memory.

They depend on the records (a sparse shard is larger, a batch has its length), so they are not part of the guarantee.
With `--timings shared` all ranks tell them and they are in summary.json. Otherwise a rank keeps its own:

    process/rank-003.json   the figures of rank 3, for its owner alone (mode 0600)

and summary.json has null in their places. `merged` puts those that are at hand back where a reader expects them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

OF_A_RANK = ("wait_seconds", "compute_seconds", "training_seconds", "core_seconds", "seconds", "max_rss_mb")
"""Of a rank's record."""
OF_A_RUN = ("started", "wall_seconds", "rounds_per_second")
"""Of the whole run, by the clock of the rank."""


def without_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's record without what depends on its process."""
    found = {name: None if name in OF_A_RANK else value for name, value in record.items() if name != "host"}
    found["neighbours"] = {peer: {**one, "wait_seconds": None} for peer, one in record["neighbours"].items()}
    return found


def own_figures(record: Mapping[str, Any], run: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures that a rank keeps to itself: those of its record, and of the run by its own clock."""
    found = {name: record[name] for name in ("rank", *OF_A_RANK, "host")} | {name: run[name] for name in OF_A_RUN}
    found["neighbours"] = {peer: one["wait_seconds"] for peer, one in record["neighbours"].items()}
    return found


def merged(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a summary with the figures of those ranks whose files are in a run's `process` folder."""
    files: dict[int, Mapping[str, Any]] = {}
    for path in sorted((folder / "process").glob("rank-*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):  # a damaged one counts as not there
            table = json.loads(path.read_text(encoding="utf-8"))
            files[int(table["rank"])] = table
    if not files:
        return summary
    first = files[min(files)]
    missing = {name: first.get(name) for name in OF_A_RUN if summary.get(name) is None}
    ranks = [_with_figures(record, files.get(record["rank"])) for record in summary["per_rank"]]
    return summary | missing | {"per_rank": ranks}


def _with_figures(record: dict[str, Any], kept: Mapping[str, Any] | None) -> dict[str, Any]:
    if kept is None or record.get("training_seconds") is not None:
        return record
    waits = kept.get("neighbours", {})
    near = {peer: {**one, "wait_seconds": waits.get(peer)} for peer, one in record["neighbours"].items()}
    return record | {name: kept.get(name) for name in OF_A_RANK} | {"neighbours": near}
