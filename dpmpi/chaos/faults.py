"""Failures on purpose: what is to happen to which rank, drawn from a seed, and how a rank tells what it had said.

    kill      the rank kills itself (SIGKILL), at its first chance from a round on
    stop      a process beside it stops the rank for some seconds, again and again
    slow      it sleeps in every round
    corrupt   one bit of one message is another one when it arrives
    restart   all processes are killed at once, from outside

Each rank keeps a record in a mapped file of its own, which outlives it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dpmpi.errors import ConfigError, nearest

KINDS = ("kill", "stop", "slow", "corrupt", "restart")
MOMENTS = ("send", "wait", "aside")
"""When a rank dies: before a send, while its message travels, or before an operation of all ranks."""
TRAILER, PAYLOAD = "trailer", "payload"
"""Which part of a message is corrupted."""
REGROUP = "regroup"
"""When a rank dies that was about to go on without another one: at the `step`-th operation or send of the survivors."""
REGROUP_STEPS = 24
"""To shrink, to agree on a round, to assemble the run anew, and the first rounds take about so many."""
REGROUP_SHARE = 0.25
"""So many of the second and third victims die while the others regroup."""
EARLY_SHARE = 0.125
"""So many restarts hit a run that has not begun."""
STOP_SECONDS, STOP_EVERY, SLOW_SECONDS = 2.0, 10.0, 0.02


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one rank, by its first number, from a round on."""

    kind: str
    rank: int
    round: int
    moment: str = "send"
    step: int = 0
    """Of `regroup`: before which operation or send of the survivors; 0 is the first. Of `corrupt`: which bit."""
    seconds: float = 0.0
    every: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is who, and what happens to whom, in one start of a run."""

    names: tuple[int, ...]
    """Rank k of this start is the rank names[k] of the first one."""
    faults: tuple[Fault, ...] = ()

    def write(self, path: Path) -> None:
        """Write the plan, and an empty record for each rank."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        for name in self.names:
            record_file(path, name).write_bytes(bytes(8 * len(Record.FIELDS)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Return the plan that a file holds."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(tuple(values["names"]), tuple(Fault(**fault) for fault in values["faults"]))


class Record:
    """What a rank says about itself in shared memory: it is there when the rank is not."""

    FIELDS = ("round", "releases", "tolerant", "fired")

    def __init__(self, path: Path) -> None:
        self._values = np.memmap(path, np.int64, "r+", shape=(len(self.FIELDS),))

    @property
    def round(self) -> int:
        """The round of the last message that the rank began to send."""
        return int(self._values[0])

    @property
    def releases(self) -> int:
        """How many releases were made before that message: no more than so many are on the wire."""
        return int(self._values[1])

    def speaks(self, round_: int, releases: int) -> None:
        """Note that a message is about to be sent."""
        self._values[1] = releases
        self._values[0] = round_

    @property
    def tolerant(self) -> bool:
        """Whether this MPI lets the survivors of a death go on."""
        return bool(self._values[2])

    @tolerant.setter
    def tolerant(self, value: bool) -> None:
        self._values[2] = value

    @property
    def fired(self) -> float | None:
        """When the fault happened, in seconds since 1970; None if it did not."""
        return float(self._values[3]) / 1e9 or None

    def fires(self, nanoseconds: int) -> None:
        """Note that the fault happens now, if it is the first one."""
        if not self._values[3]:
            self._values[3] = nanoseconds


def record_file(plan: Path, name: int) -> Path:
    """Return where a rank keeps its record."""
    return plan.with_name(f"{plan.stem}-rank-{name:03d}.count")


def pauses_file(plan: Path) -> Path:
    """Return where it is written how far the others were at the end of a rank's pause."""
    return plan.with_name(f"{plan.stem}-pauses.jsonl")


def draw(
    generator: np.random.Generator,
    kind: str,
    ranks: int,
    rounds: int,
    victims: tuple[int, int],
    *,
    sealed: bool = False,
) -> tuple[Fault, ...]:
    """Return the faults of one run. More than half of the ranks are left.

    In messages that are sealed any part may be corrupted, else the trailer: a number that was changed is a number.
    """
    if kind == "restart":
        early = generator.random() < EARLY_SHARE
        return (Fault(kind, -1, 0 if early else int(generator.integers(1, rounds)), seconds=generator.uniform(0, 3)),)
    most = min(victims[1], (ranks - 1) // 2) if kind == "kill" else 1
    count = int(generator.integers(min(victims[0], most), most + 1))
    faults = []
    for k, rank in enumerate(generator.permutation(ranks)[:count].tolist()):
        round_ = int(generator.integers(1, rounds + 1))
        if kind == "kill":
            moment, step = str(generator.choice(MOMENTS)), 0
            if k and generator.random() < REGROUP_SHARE:
                moment, step = REGROUP, int(generator.integers(REGROUP_STEPS))
            faults.append(Fault(kind, rank, round_, moment, step))
        elif kind == "stop":
            faults.append(Fault(kind, rank, 1 + rounds // 4 + round_ // 4, seconds=STOP_SECONDS, every=STOP_EVERY))
        elif kind == "slow":
            faults.append(Fault(kind, rank, 1, seconds=SLOW_SECONDS))
        else:
            part = PAYLOAD if sealed else TRAILER
            faults.append(Fault(kind, rank, round_, part, step=int(generator.integers(1 << 30))))
    return tuple(faults)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of failures that `kill,stop` names."""
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--kind takes some of {','.join(KINDS)}, got {kind!r}{nearest(kind, KINDS)}")
    return kinds


def parse_victims(text: str) -> tuple[int, int]:
    """Return the least and the largest number of victims that `2` or `1-3` describes."""
    parts = text.split("-")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and len(part) < 9 for part in parts):
        raise ConfigError(f"--victims takes a number (2) or a range (1-3), got {text!r}")
    low, high = int(parts[0]), int(parts[-1])
    if not 1 <= low <= high:
        raise ConfigError(f"--victims must be at least 1 and in order, got {text!r}")
    return low, high


def fired(plan: Path, names: Sequence[int]) -> dict[int, float]:
    """Return when the faults of ranks happened, for those where they did."""
    found = {name: Record(record_file(plan, name)).fired for name in names}
    return {name: when for name, when in found.items() if when is not None}
