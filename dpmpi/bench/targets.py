"""The ratios that dpmpi wants to keep, measured and judged: `python -m dpmpi bench --targets`.

A ratio compares what ran in the same processes, or in turns, so that a change of load meets both sides; it is the
median over the turns of one side over the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from dpmpi.bench.launch import Launcher, consensus_of_peer, start_run
from dpmpi.bench.parts import gradient, median_ratio

RANKS = (4, 20)
DIMENSION = 2000
GRADIENTS = (100, 2000, 47236)

MIX_OVER_BARE = 1.2
ROUND_OVER_PARTS = 1.2
PEER_OVER_MIX = 6.0
PEER_OVER_START = 3.0
SPEED_OF_BLAS = 0.8


@dataclass(frozen=True)
class Target:
    """One ratio, and what it has to be."""

    name: str
    ratio: float | None
    """None: not measured."""
    bound: Literal["<=", ">="]
    limit: float

    @property
    def verdict(self) -> str:
        """`pass`, `FAIL` or `not measured`."""
        if self.ratio is None:
            return "not measured"
        return "pass" if (self.ratio <= self.limit if self.bound == "<=" else self.ratio >= self.limit) else "FAIL"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the verdict."""
        return asdict(self) | {"verdict": self.verdict}


def measure_targets(
    launcher: Launcher, data_mb: float, turns: int, peer: str | None
) -> tuple[list[Target], list[dict[str, Any]]]:
    """Return all ratios, those against DISROPT only if its interpreter is given, and how it compares in full."""
    targets, comparisons = [], []
    for m in GRADIENTS:
        launcher.say(f"gradient, m = {m}")
        speed = gradient(m, data_mb, turns)["dense"]["speed_of_bare"]
        targets.append(Target(f"gradient, speed of BLAS, m = {m}", speed, ">=", SPEED_OF_BLAS))
    for n in RANKS:
        launcher.say(f"{n} ranks, rounds")
        kinds = "bare exchange,mix,bare gradient,bare noise,dp-dda"
        flags = ("--data-mb", str(data_mb), "--turns", str(turns))
        found = launcher.rounds(n, DIMENSION, *flags, "--only", kinds)["ratios"]
        where = f"{n} ranks, m = {DIMENSION}"
        targets.append(Target(f"mix / bare exchange, {where}", found["mix / bare exchange"], "<=", MIX_OVER_BARE))
        parts = found["dp-dda / bare parts"]
        targets.append(Target(f"dp-dda / bare parts, {where}", parts, "<=", ROUND_OVER_PARTS))
    for n in RANKS:
        compared = None
        if peer is not None:
            compared = against_peer(launcher, peer, n, DIMENSION, turns)
            comparisons.append(compared)
        where = f"{n} ranks, m = {DIMENSION}"
        ratio = None if compared is None else compared["ratios"]["DISROPT round / mix"]
        targets.append(Target(f"DISROPT round / mix, {where}", ratio, ">=", PEER_OVER_MIX))
        if n == max(RANKS):
            ratio = None if compared is None else compared["ratios"]["DISROPT start / start"]
            targets.append(Target(f"DISROPT start / start, {n} ranks", ratio, ">=", PEER_OVER_START))
    return targets, comparisons


def against_peer(launcher: Launcher, python: str, ranks: int, dimension: int, turns: int) -> dict[str, Any]:
    """Return the seconds of a round and of a start, DISROPT's and ours, started in turns, and their ratios."""
    found: dict[str, list[float]] = {"DISROPT start": [], "DISROPT round": [], "start": [], "mix": []}
    flags = ("--turns", "3", "--only", "bare exchange,mix")
    for turn in range(turns + 1):
        launcher.say(f"{ranks} ranks, DISROPT and dpmpi, turn {turn} of {turns}")
        start, round_ = consensus_of_peer(launcher, python, ranks, dimension)
        own = start_run(launcher, ranks)
        mix = launcher.rounds(ranks, dimension, *flags)["seconds"]["mix"]
        if turn:  # the first fills the file cache
            for name, value in zip(found, (start, round_, own, mix), strict=True):
                found[name].append(value)
    return {
        "ranks": ranks, "dimension": dimension,
        "seconds": {name: float(np.median(values)) for name, values in found.items()},
        "ratios": {
            "DISROPT round / mix": median_ratio(found["DISROPT round"], found["mix"]),
            "DISROPT start / start": median_ratio(found["DISROPT start"], found["start"]),
        },
    }  # fmt: skip
