"""What a round costs on this machine, next to the bare MPI exchange of the same bytes.

Under mpirun (`mpirun -n 4 python -m dpmpi bench`) every dimension is timed in the same run, under the same load:

    bare exchange   Irecv/Isend/Waitall of the same bytes with the same neighbours, and the weighted sum, by mpi4py
    mix             a consensus method that only says Mix, through engine, exchange, meter and transport
    sealed mix      the same with every message sealed for its receiver
    sum             the sum of all ranks' vectors, everyone to everyone, in plain messages
    expanded sum    the same sum of secret shares, expanded from pairwise secrets
    full sum        the same sum of full shares: a hop of sealed shares, a hop of sealed partial sums
    bare gradient   the two products X x and X' c of a full batch, in numpy
    bare noise      drawing as many noised coordinates, alone
    dda, dp-dda     whole rounds

Sealing is timed on the first rank alone, against the library's own AES-256-GCM on messages of the same length.

The kinds take turns, so that a change of load meets all of them; a figure is the median over the turns. Without mpirun,
`--startup N` times N ranks from mpirun to the first round against N that import mpi4py and numpy and meet at a barrier.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.bench_rows import SIGMA, Many, make_kinds
from dpmpi.config import Parser
from dpmpi.crypto.speed import sealing_seconds
from dpmpi.errors import ConfigError
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.rng import fresh_key
from dpmpi.transport.mpi import MpiTransport, open_world

DIMENSIONS = (100, 2000, 47236)
TARGET_SECONDS = 0.25


def measure(transport: MpiTransport, dimension: int, shard_mb: float, turns: int, folder: Path) -> dict[str, float]:
    """Return the median seconds of one round of each kind, the slowest rank's."""
    kinds = make_kinds(transport, dimension, shard_mb, folder)
    counts = {name: _rounds_for(transport, run) for name, run in kinds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(turns):
        for name, run in kinds.items():
            seconds[name].append(_timed(transport, run, counts[name]) / counts[name])
    return {name: statistics.median(values) for name, values in seconds.items()}


def sampler(transport: MpiTransport, dimension: int, turns: int) -> dict[str, float]:
    """Return the nanoseconds of the first rank, alone, for a coordinate of exact noise and of PCG64's normals."""
    found = np.zeros(2)
    if transport.rank == 0:
        exact, plain = make_mechanism("gaussian", SIGMA, fresh_key(), dimension), np.random.default_rng()
        value, repeats = np.zeros(dimension), max(5, 1_000_000 // dimension)

        def seconds(step: Callable[[], Any]) -> float:
            begin = time.perf_counter()
            for _ in range(repeats):
                step()
            return (time.perf_counter() - begin) / repeats

        pairs = [
            (seconds(lambda: exact.perturb(value)), seconds(lambda: plain.standard_normal(dimension, out=value)))
            for _ in range(turns)
        ]
        found[:] = np.median(pairs, axis=0) / dimension * 1e9
    transport.total(found)
    return {"exact noise": float(found[0]), "PCG64 normals": float(found[1])}


def sealing(transport: MpiTransport, dimension: int, turns: int) -> dict[str, float]:
    """Return the gigabytes a second of the first rank, alone, for sealed messages and for the library's AES-GCM."""
    found, length = np.zeros(2), 8 * dimension
    if transport.rank == 0:
        found[:] = sealing_seconds(length, turns, repeats=max(20, 20_000_000 // (length + 4000)))
        found[:] = length / found / 1e9
    transport.total(found)
    return {"seal": float(found[0]), "AESGCM alone": float(found[1])}


def _timed(transport: MpiTransport, run: Many, count: int) -> float:
    """Return the seconds until the last rank is through."""
    transport.barrier()
    begin = time.perf_counter()
    run(count)
    transport.barrier()
    return time.perf_counter() - begin


def _rounds_for(transport: MpiTransport, run: Many) -> int:
    """Return how many rounds take about the target, the same number on every rank."""
    run(3)
    seconds = np.array([_timed(transport, run, 10) / 10])
    transport.total(seconds)
    return max(5, int(TARGET_SECONDS * transport.size / seconds[0]))


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Return what dpmpi adds to the bare parts, and secrecy to plain messages."""
    parts = seconds["bare exchange"] + seconds["bare gradient"]
    found = {
        "mix / bare exchange": seconds["mix"] / seconds["bare exchange"],
        "dda / bare parts": seconds["dda"] / parts,
        "dp-dda / bare parts": seconds["dp-dda"] / (parts + seconds["bare noise"]),
        "sealed mix / mix": seconds["sealed mix"] / seconds["mix"],
    }
    shared = [name for name in ("expanded sum", "full sum") if name in seconds]
    return found | {f"{name} / sum": seconds[name] / seconds["sum"] for name in shared}


def startup(ranks: int, turns: int) -> dict[str, float]:
    """Return the median seconds from mpirun to a barrier of bare ranks, and from mpirun to the first round of a run."""
    barrier = (
        "import sys, time, numpy; from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier();c.rank or print(time.time())"
    )
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    launch = [mpirun if Path(mpirun).exists() else "mpirun", "-n", str(ranks), sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        data, summary = ["--data", "synthetic:samples=2000,features=20"], Path(folder, "run", "summary.json")
        one = ["--rounds", "1", "--no-evaluate", *data, "--out", f"{folder}/run"]
        commands = {"bare ranks": [*launch, "-c", barrier], "dpmpi": [*launch, "-m", "dpmpi.run", *one]}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(turns + 1):
            for name, command in commands.items():
                begin = time.time()
                done = subprocess.run(  # noqa: S603 - our own command
                    command, check=True, capture_output=True, text=True, timeout=300
                )
                there = done.stdout if name == "bare ranks" else json.loads(summary.read_text())["started"]
                if turn:  # the first fills the file cache
                    seconds[name].append(float(there) - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi bench`."""
    parser = Parser(
        prog="mpirun -n RANKS python -m dpmpi bench", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--dimensions", default=",".join(map(str, DIMENSIONS)), help="which, separated by commas")
    parser.add_argument("--shard-mb", type=float, default=32.0, help="the data of a rank in MB (default: 32)")
    parser.add_argument("--turns", type=int, default=5, help="how often each kind is timed (default: 5)")
    parser.add_argument("--startup", type=int, metavar="N", help="time the start of N ranks instead (without mpirun)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE, or - for standard output")
    flags = parser.parse_args(argv)
    if flags.startup:
        found = startup(flags.startup, flags.turns)
        result: dict[str, Any] = {"ranks": flags.startup, "seconds": found}
        result["ratio"] = found["dpmpi"] / found["bare ranks"]
        rows = [(name, f"{value:.2f} s") for name, value in found.items()] + [("ratio", f"{result['ratio']:.2f}")]
        title = f"{flags.startup} ranks, from mpirun to the first round, median of {flags.turns}"
        _show(flags.json, result, title + "\n" + _lines(rows))
        return 0
    transport = open_world()
    if transport.size < 2:
        raise ConfigError("bench times an exchange: start it as mpirun -n 4 python -m dpmpi bench")
    result = {"ranks": transport.size, "mpi": transport.describe(), "shard_mb": flags.shard_mb, "dimensions": {}}
    text = [f"{transport.size} ranks on a ring, {flags.shard_mb:g} MB a rank; us a round, median of {flags.turns}"]
    with tempfile.TemporaryDirectory() as folder:
        for m in (int(part) for part in flags.dimensions.split(",")):
            seconds = measure(transport, m, flags.shard_mb, flags.turns, Path(folder))
            found = ratios(seconds)
            noise, seals = sampler(transport, m, flags.turns), sealing(transport, m, flags.turns)
            found["AESGCM alone / seal"] = seals["AESGCM alone"] / seals["seal"]
            result["dimensions"][str(m)] = {
                "seconds": seconds, "ratios": found, "sampler_ns": noise, "sealing_gb_per_second": seals,
            }  # fmt: skip
            text.append(f"m = {m}")
            text.append(_lines([(name, f"{value * 1e6:9.1f}") for name, value in seconds.items()]))
            text.append(_lines([(name, f"{value:9.2f}") for name, value in found.items()]))
            text.append(_lines([(f"{name}, ns/coord", f"{value:9.1f}") for name, value in noise.items()]))
            text.append(_lines([(f"{name}, GB/s", f"{value:9.2f}") for name, value in seals.items()]))
    if transport.rank == 0:
        _show(flags.json, result, "\n".join(text))
    return 0


def _lines(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"  {name:<22} {value}" for name, value in rows)


def _show(destination: str | None, result: dict[str, Any], text: str) -> None:
    if destination == "-":
        text = json.dumps(result, indent=1)
    elif destination is not None:
        Path(destination).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(text, flush=True)
