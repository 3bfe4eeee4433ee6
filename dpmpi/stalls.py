"""Who waits for whom when nothing moves any more.

A rank that has waited until the deadline writes down for whom, in which round and hop:

    RUN/stall/rank-003.json   {"rank": 3, "round": 77, "hop": 0, "waits_for": [4]}

After a moment, in which the others do the same, one of them reads what all have written and says what it comes to: a
rank that is waited for and waits for nobody is the silent one; if there is none, the waits form a cycle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wait:
    """What one rank waited for until the deadline."""

    rank: int
    round: int
    hop: int
    waits_for: tuple[int, ...]


def write_wait(folder: Path, wait: Wait) -> None:
    """Write down what a rank waits for; a disk that fails must not hide the message that follows."""
    try:
        folder.mkdir(exist_ok=True)
        temporary = folder / f".rank-{wait.rank:03d}.part"
        temporary.write_text(json.dumps(asdict(wait)) + "\n", encoding="utf-8")
        temporary.replace(folder / f"rank-{wait.rank:03d}.json")
    except OSError:
        pass


def read_waits(folder: Path) -> dict[int, Wait]:
    """Return what the ranks have written down; what cannot be read is left out."""
    waits = {}
    for path in sorted(folder.glob("rank-*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            wait = Wait(int(values["rank"]), int(values["round"]), int(values["hop"]), tuple(values["waits_for"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        waits[wait.rank] = wait
    return waits


def explain(waits: Mapping[int, Wait]) -> str:
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
