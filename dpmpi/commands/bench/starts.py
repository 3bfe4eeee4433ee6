"""Figures that need a new start of ranks each: how long a start takes, a peer's consensus, and a run of many ranks.

With them the ratios that dpmpi wants to keep are measured and judged (`bench --targets`). A ratio compares what ran in
the same processes, or in turns, so that a change of load meets both sides; it is the median over the turns of one side
over the other.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from dpmpi.commands.bench import peer as bench_peer
from dpmpi.commands.bench.parts import gradient
from dpmpi.commands.bench.rows import condense
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import Launcher, OutOfTime, finish, start

VERSION_SECONDS = 20.0
RANKS = (4, 20)
DIMENSION = 2000
GRADIENTS = (100, 2000, 47236)
OVER_BARE, SPEED_OF_BLAS = 1.2, 0.8
SUMS = ((20, 2000, 2.5), (50, 2000, 2.5), (20, 47236, 2.0))
"""Ranks, words, and how many times what MPI_Iallreduce takes an expanded sum may take."""
PEER_OVER_MIX, PEER_OVER_START = 6.0, 3.0
PEER_RATIOS = {"DISROPT round / mix": ("DISROPT round", "mix"), "DISROPT start / start": ("DISROPT start", "start")}
_BARRIER = "import time, numpy; from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier(); c.rank or print(time.time())"


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@frozen
class Starter:
    """Starts ranks for the bench, and ends them after `limit` seconds."""

    launcher: Launcher
    limit: float

    def run(self, ranks: int, program: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        """Run the ranks to their end; return what they wrote. Raise `ConfigError` if they fail or take too long."""
        done = self.launcher.run(ranks, program, self.limit, {"OPENBLAS_NUM_THREADS": "1", **(environment or {})})
        if done.code:
            raise ConfigError(f"expected {ranks} ranks to finish, found a failure: {done.complaint}")
        return done.out

    def version(self) -> str:
        """Return the name and version of the launcher; the name alone if it does not say."""
        program = self.launcher.command(2, [])[0]
        told = ""
        with suppress(OutOfTime):
            told = finish(start([program, "--version"]), VERSION_SECONDS).out.strip()
        return told.partition("\n")[0] or Path(program).name

    def bench(self, ranks: int, *flags: str, environment: Mapping[str, str] | None = None) -> Any:
        """Run `python -m dpmpi bench` with these flags under the launcher; return its figures."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "bench.json")
            self.run(ranks, [sys.executable, "-m", "dpmpi", "bench", *flags, "--json", str(path)], environment)
            return json.loads(path.read_text(encoding="utf-8"))

    def rounds(self, ranks: int, dimension: int, *flags: str) -> Any:
        """Return the seconds and ratios of the rounds of `ranks` ranks in one dimension."""
        found = self.bench(ranks, "--dimensions", str(dimension), "--no-parts", *flags)
        return found["runs"][0]["dimensions"][str(dimension)]


def start_run(starter: Starter, ranks: int) -> float:
    """Return the seconds from the launcher to the end of the first round of a run."""
    return _one_round(starter, ranks)["dpmpi"]


def _one_round(starter: Starter, ranks: int) -> dict[str, float]:
    """Return the seconds from the launcher to the end of the first round of a run, and of its start and end."""
    summary, begin = _run(starter, ranks, "--rounds", "1", "--data", f"synthetic:samples={100 * ranks},features=20")
    whole = time.time() - begin
    first = float(summary["started"] + summary["wall_seconds"] - begin)
    return {"dpmpi": first, "dpmpi, start and end": whole - float(summary["wall_seconds"])}


def startup(starter: Starter, ranks: int, turns: int) -> dict[str, Any]:
    """Return the seconds from mpirun to a barrier of bare ranks and to the first round of a run, and of all but rounds.

    Each with their ratio.
    """

    def measure() -> dict[str, float]:
        begin = time.time()
        bare = float(starter.run(ranks, [sys.executable, "-c", _BARRIER])) - begin
        return {"bare ranks": bare, "bare ranks, start and end": time.time() - begin, **_one_round(starter, ranks)}

    whole = "start and end"
    formulas = {"ratio": ("dpmpi", "bare ranks"), f"ratio, {whole}": (f"dpmpi, {whole}", f"bare ranks, {whole}")}
    return {"ranks": ranks, **condense(_in_turns(f"start of {ranks} ranks", turns, measure), formulas)}


def crowd(starter: Starter, ranks: int) -> dict[str, Any]:
    """Return how long `ranks` ranks take for 1000 rounds of dp-dda on the ring with 50 features."""
    data = f"synthetic:samples={40 * ranks},features=50"
    summary, begin = _run(starter, ranks, "--rounds", "1000", "--data", data, "--noise", "0.1")
    figures = {name: summary[name] for name in ("ranks", "rounds", "dimension", "wall_seconds", "rounds_per_second")}
    return figures | {"startup_seconds": summary["started"] - begin}


def consensus_of_peer(
    starter: Starter, python: str, ranks: int, dimension: int, seconds: float = 0.25
) -> tuple[float, float]:
    """Return of DISROPT the seconds from the launcher to the end of its first round, and those of a round."""
    text, begin = Path(bench_peer.__file__).read_text(encoding="utf-8"), time.time()
    told = starter.run(ranks, [python, "-c", text, str(dimension), str(seconds)])
    found = json.loads(told.strip().splitlines()[-1])
    return found["there"] - begin, found["round"]


def judge(name: str, ratio: float | None, bound: Literal["<=", ">="], limit: float) -> dict[str, Any]:
    """Return one ratio, None if it was not measured, what it has to be, and the verdict."""
    met = ratio is not None and (ratio <= limit if bound == "<=" else ratio >= limit)
    verdict = "not measured" if ratio is None else "pass" if met else "FAIL"
    return {"name": name, "ratio": ratio, "bound": bound, "limit": limit, "verdict": verdict}


def measure_targets(starter: Starter, data_mb: float, turns: int, peer: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return all ratios, judged, and how DISROPT compares in full if its interpreter is given."""
    targets, compared = [], []
    for m in GRADIENTS:
        say(f"gradient, m = {m}")
        speed = gradient(m, data_mb, turns)["dense"]["speed_of_bare"]
        targets.append(judge(f"gradient, speed of BLAS, m = {m}", speed, ">=", SPEED_OF_BLAS))
    for n in RANKS:
        say(f"{n} ranks, rounds")
        flags = ("--data-mb", str(data_mb), "--turns", str(turns))
        kinds = "bare exchange,mix,bare gradient,bare noise,dp-dda"
        found = starter.rounds(n, DIMENSION, *flags, "--only", kinds)["ratios"]
        for name in ("mix / bare exchange", "dp-dda / bare parts"):
            targets.append(judge(f"{name}, {n} ranks, m = {DIMENSION}", found[name], "<=", OVER_BARE))
    for n, m, limit in SUMS:
        say(f"{n} ranks, sums of {m} words")
        found = starter.rounds(n, m, "--turns", str(turns), "--only", "Iallreduce,expanded sum")["ratios"]
        name = "expanded sum / Iallreduce"
        targets.append(judge(f"{name}, {n} ranks, m = {m}", found[name], "<=", limit))
    for n in RANKS:
        compared += [] if peer is None else [against_peer(starter, peer, n, turns)]
        round_, start = compared[-1]["ratios"].values() if compared else (None, None)
        targets.append(judge(f"DISROPT round / mix, {n} ranks, m = {DIMENSION}", round_, ">=", PEER_OVER_MIX))
    targets.append(judge(f"DISROPT start / start, {n} ranks", start, ">=", PEER_OVER_START))
    return {"targets": targets} | ({"peer": compared} if compared else {})


def against_peer(starter: Starter, python: str, ranks: int, turns: int) -> dict[str, Any]:
    """Return the seconds of a round and of a start, DISROPT's and ours, started in turns, and their ratios."""

    def measure() -> dict[str, float]:
        start, round_ = consensus_of_peer(starter, python, ranks, DIMENSION)
        own = start_run(starter, ranks)
        mix = starter.rounds(ranks, DIMENSION, "--turns", "3", "--only", "bare exchange,mix")["seconds"]["mix"]
        return {"DISROPT start": start, "DISROPT round": round_, "start": own, "mix": mix}

    found = _in_turns(f"{ranks} ranks, DISROPT and dpmpi", turns, measure)
    return {"ranks": ranks, "dimension": DIMENSION, **condense(found, PEER_RATIOS)}


def _run(starter: Starter, ranks: int, *flags: str) -> tuple[dict[str, Any], float]:
    """Return the summary of a run of dp-dda on the ring, and when it was launched."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        program = [sys.executable, "-m", "dpmpi.run", "--algorithm", "dp-dda", "--graph", "ring", "--no-evaluate"]
        begin = time.time()
        starter.run(ranks, [*program, *flags, "--out", str(out)])
        return json.loads((out / "summary.json").read_text(encoding="utf-8")), begin


def _in_turns(what: str, turns: int, measure: Callable[[], dict[str, float]]) -> dict[str, list[float]]:
    """Return the measurements of each turn; one more comes first and fills the file cache."""
    found = []
    for turn in range(turns + 1):
        say(f"{what}, turn {turn} of {turns}")
        found.append(measure())
    return {name: [one[name] for one in found[1:]] for name in found[0]}
