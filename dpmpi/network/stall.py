"""Who waits for whom when nothing moves any more.

A rank that has waited until the deadline writes down for whom, in which round and hop:

    RUN/stall/rank-003.json   {"rank": 3, "round": 77, "hop": 0, "waits_for": [4]}

After a moment, in which the others do the same, one of them reads what all have written and says what it comes to: a
rank that is waited for and waits for nobody is the silent one; if there is none, the waits form a cycle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from dpmpi.core.files import write_file
from dpmpi.core.frozen import frozen


@frozen
class Stall:
    """What one rank waited for until the deadline."""

    rank: int
    round: int
    hop: int
    waits_for: tuple[int, ...]


def write_stall(folder: Path, stall: Stall) -> None:
    """Write down what a rank waits for; a disk that fails must not hide the message that follows."""
    with suppress(OSError):
        write_file(folder / f"rank-{stall.rank:03d}.json", json.dumps(asdict(stall)) + "\n")


def read_stalls(folder: Path) -> dict[int, Stall]:
    """Return the stalls that the ranks have written down; those that cannot be read are left out."""
    found = {}
    for path in sorted(folder.glob("rank-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            values = json.loads(path.read_text(encoding="utf-8"))
            stall = Stall(int(values["rank"]), int(values["round"]), int(values["hop"]), tuple(values["waits_for"]))
            found[stall.rank] = stall
    return found


def explain(waits: Mapping[int, Stall]) -> str:
    """Return in one sentence who holds up the others."""
    silent = sorted({peer for wait in waits.values() for peer in wait.waits_for} - set(waits))
    if silent:
        first = min((wait for wait in waits.values() if set(wait.waits_for) & set(silent)), key=lambda wait: wait.round)
        who = f"rank {', '.join(map(str, silent))} is silent and waits for nobody"
        return f"{who}: rank {first.rank} waits for it in round {first.round}, hop {first.hop}"
    for start in waits:
        path = [start]
        while (after := next((peer for peer in waits[path[-1]].waits_for if peer in waits), None)) is not None:
            if after in path:
                cycle = [*path[path.index(after) :], after]
                parts = [f"{rank} (round {waits[rank].round}, hop {waits[rank].hop})" for rank in cycle]
                return f"the ranks wait for each other in a cycle: {' -> '.join(parts)}"
            path.append(after)
    return "no rank said for whom it waits"
