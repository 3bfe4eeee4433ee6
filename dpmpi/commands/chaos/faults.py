"""Faults: what happens to which rank, drawn from a seed, and what a rank notes of itself.

Each rank keeps a record in a mapped file of its own, which outlives it.
"""

from __future__ import annotations

import ctypes
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np

from dpmpi.core.files import write_file
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, nearest

KINDS = ("kill", "stop", "slow", "corrupt", "restart")
MOMENTS = ("send", "wait", "aside")
"""When a rank dies: before a send, while its message travels, or before an operation of all ranks."""
TRAILER, PAYLOAD = "trailer", "payload"
"""Which part of a message is corrupted."""
REGROUP = "regroup"
"""When a rank dies that was about to go on without another one: at the `step`-th operation or send of the survivors."""
REGROUP_STEPS = 24
"""To shrink, to agree on a round, to assemble the run anew, and the first rounds take about as many."""
REGROUP_SHARE = 0.25
"""So many of the second and third victims die while the others regroup."""
EARLY_SHARE = 0.125
"""So many restarts hit a run that has not begun."""
STOP_SECONDS, STOP_EVERY, SLOW_SECONDS = 2.0, 10.0, 0.02


@frozen
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


class Record(ctypes.Structure):
    """What a rank notes of itself in a mapped file: it is there when the rank is not."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in ("round", "releases", "tolerant", "nanoseconds")]
    round: int
    """The round of the last message that the rank began to send."""
    releases: int
    """How many releases were made before that message: no more are on the wire."""
    tolerant: int
    """Whether this MPI lets the survivors of a death go on."""
    nanoseconds: int
    """When the fault happened, since 1970; 0 if it did not."""

    @property
    def fired(self) -> float | None:
        """When the fault happened, in seconds since 1970; None if it did not."""
        return self.nanoseconds / 1e9 or None

    def speaks(self, round_: int, releases: int) -> None:
        """Note that a message is about to be sent: the releases first, the rank may die in between."""
        self.releases = releases
        self.round = round_

    def fires(self) -> None:
        """Note that the fault happens now, if it is the first one."""
        self.nanoseconds = self.nanoseconds or time.time_ns()


@frozen
class Start:
    """One start of a run: who is who, and what happens to whom. Its ranks keep their records beside the file."""

    file: Path
    names: tuple[int, ...]
    """Rank k of this start is the rank names[k] of the first one."""
    faults: tuple[Fault, ...] = ()

    def write(self) -> None:
        """Write the file, and an empty record for each rank."""
        write_file(self.file, json.dumps({"names": self.names, "faults": list(map(asdict, self.faults))}, indent=1))
        for name in self.names:
            write_file(self._record_file(name), bytes(ctypes.sizeof(Record)))

    @classmethod
    def read(cls, file: Path) -> Start:
        """Return the start that a file describes."""
        values = json.loads(file.read_text(encoding="utf-8"))
        return cls(file, tuple(values["names"]), tuple(Fault(**fault) for fault in values["faults"]))

    def record(self, name: int) -> Record:
        """Return the record of a rank."""
        return Record.from_buffer(np.memmap(self._record_file(name), np.uint8, "r+").data)

    def records(self) -> dict[int, Record]:
        """Return the records of all ranks by their names."""
        return {name: self.record(name) for name in self.names}

    def fired(self) -> dict[int, float]:
        """Return when the faults of ranks happened, for those where they did."""
        return {name: record.fired for name, record in self.records().items() if record.fired is not None}

    @property
    def pauses_file(self) -> Path:
        """Where it is written how far the others were at the end of a rank's pause."""
        return self.file.with_name(f"{self.file.stem}-pauses.jsonl")

    def pauses(self) -> list[dict[int, int]]:
        """Return in which round each rank was at the end of each pause."""
        lines = self.pauses_file.read_text(encoding="utf-8").splitlines() if self.pauses_file.exists() else []
        return [{int(name): round_ for name, round_ in json.loads(line).items()} for line in lines]

    def _record_file(self, name: int) -> Path:
        return self.file.with_name(f"{self.file.stem}-rank-{name:03d}.count")


def draw(
    generator: np.random.Generator, kind: str, ranks: int, rounds: int, victims: tuple[int, int], sealed: bool = False
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
            raise ConfigError(f"--kind: expected some of {','.join(KINDS)}, found {kind!r}{nearest(kind, KINDS)}")
    return kinds


def parse_victims(text: str) -> tuple[int, int]:
    """Return the least and the largest number of victims that `2` or `1-3` describes."""
    parts = text.split("-")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and len(part) < 9 for part in parts):
        raise ConfigError(f"--victims: expected a number (2) or a range (1-3), found {text!r}")
    low, high = int(parts[0]), int(parts[-1])
    if not 1 <= low <= high:
        raise ConfigError(f"--victims: expected at least 1, and the smaller number first, found {text!r}")
    return low, high
