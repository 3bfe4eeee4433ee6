"""What a round costs on this machine, next to the bare MPI exchange of the same bytes.

Under mpirun (`mpirun -n 4 python -m dpmpi bench`) every dimension is timed in the same run, under the same load:

    bare exchange   Irecv/Isend/Waitall of the same bytes with the same neighbours, and the weighted sum, by mpi4py
    mix             a consensus method that only says Mix, through engine, exchange, meter and transport
    bare gradient   the two products X x and X' c of a full batch, in numpy
    bare noise      drawing as many noised coordinates, alone
    dda, dp-dda     whole rounds

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.algorithms.dual_averaging import ConventionalDualAveraging, DualAveraging
from dpmpi.config import Parser
from dpmpi.core import Agent, Array, Mix, Steps, public
from dpmpi.engine import Engine, Seat
from dpmpi.errors import ConfigError
from dpmpi.exchange.plain import PlainExchange
from dpmpi.graphs import make_graph
from dpmpi.losses import LOSSES
from dpmpi.methods import Method, Planned, Terms
from dpmpi.penalties import Regulariser
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem, make_terms
from dpmpi.rng import PrivateStream, fresh_key
from dpmpi.rows import Dense
from dpmpi.schedules import StaticSchedule
from dpmpi.transport.meter import Meter
from dpmpi.transport.mpi import MpiTransport, open_world

DIMENSIONS = (100, 2000, 47236)
SIGMA = 0.05
TARGET_SECONDS = 0.25


@dataclass(frozen=True)
class Consensus(Method):
    """Averages a public vector: a round that is nothing but its exchange."""

    def start(self, agent: Agent) -> Array:
        """Return a vector that differs between ranks."""
        return np.full(agent.dimension, float(agent.rank))

    def round(self, agent: Agent, state: Array, t: int) -> Steps:
        """Mix."""
        yield Mix(public(state, because="it never met data"), out=state)

    def model(self, agent: Agent, state: Array, t: int, out: Array) -> None:
        """Write the vector."""
        np.copyto(out, state)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return none."""
        return []


class Bare:
    """The exchange and the weighted sum as one would write them with mpi4py alone."""

    def __init__(self, transport: MpiTransport, schedule: StaticSchedule, dimension: int) -> None:
        near = schedule.neighbourhood(transport.rank)
        self._comm = transport.bare_communicator()
        self._peers, self._weights, self._own = near.peers, near.weights, near.self_weight
        self._wait = transport.wait_all
        self._vector = np.zeros(dimension + 2)
        self._heard = [np.zeros(dimension + 2) for _ in near.peers]
        self._sum, self._scratch = np.zeros(dimension), np.zeros(dimension)

    def round(self) -> None:
        """Exchange and add up once."""
        comm, vector, m = self._comm, self._vector, self._sum.size
        requests = [comm.Irecv(b, p) for b, p in zip(self._heard, self._peers, strict=True)]
        requests += [comm.Isend(vector, p) for p in self._peers]
        self._wait(requests)
        np.multiply(vector[:m], self._own, out=self._sum)
        for heard, weight in zip(self._heard, self._weights, strict=True):
            np.multiply(heard[:m], weight, out=self._scratch)
            np.add(self._sum, self._scratch, out=self._sum)
        vector[:m] = self._sum


def measure(transport: MpiTransport, dimension: int, shard_mb: float, turns: int, folder: Path) -> dict[str, float]:
    """Return the median seconds of one round of each kind, the slowest rank's."""
    rank, schedule = transport.rank, StaticSchedule(make_graph("ring", transport.size, 0))
    draw, records = np.random.default_rng(rank), max(8, int(shard_mb * 1e6 / (8 * dimension)))
    X = draw.standard_normal((records, dimension))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = draw.choice([-1.0, 1.0], records)
    x, g, c = np.zeros(dimension), np.zeros(dimension), np.ones(records)
    bare, noise = Bare(transport, schedule, dimension), make_mechanism("gaussian", SIGMA, fresh_key(), dimension)

    def engine(algorithm: Method, sigma: float, name: str) -> Engine:
        key, meter = fresh_key(), Meter(transport)
        problem = LocalProblem(Dense(X), y, LOSSES["hinge"], Batch.parse("full"), 1.0, PrivateStream(key, "batch"))
        mechanism = make_mechanism("gaussian" if sigma else "none", sigma, key, dimension)
        plan = [(mechanism.event(problem.subgradient(x)), 1 << 30)]
        ledger, penalty = Ledger(folder / f"{name}-{dimension}-{rank}.jsonl", {}, plan), Regulariser(l2=5e-4)
        terms = make_terms(
            rank=rank, schedule=schedule, rounds=1, active_rounds=1, dimension=dimension, lipschitz=1.0,
            sampling=problem.batch.sampling(records), loss="hinge", normalized=True, penalty=penalty, bounded=False,
        )  # fmt: skip
        agent = Agent(rank, 1.0, terms, problem, penalty, mechanism, ledger, PrivateStream(key, "weights"))
        seat = Seat(agent, algorithm.start(agent), PlainExchange(meter, rank, transport.size))
        return Engine(algorithm, schedule, meter, [seat])

    def rounds(run: Engine) -> Callable[[int], None]:
        return lambda count: run.advance(run.completed + count)

    def repeat(step: Callable[[], Any]) -> Callable[[int], None]:
        def many(count: int) -> None:
            for _ in range(count):
                step()

        return many

    def gradient() -> None:
        np.dot(X, x)
        np.dot(c, X, out=g)

    kinds: dict[str, Callable[[int], None]] = {
        "bare exchange": repeat(bare.round),
        "mix": rounds(engine(Consensus(), 0.0, "mix")),
        "bare gradient": repeat(gradient),
        "bare noise": repeat(lambda: noise.perturb(g)),
        "dda": rounds(engine(ConventionalDualAveraging(), 0.0, "dda")),
        "dp-dda": rounds(engine(DualAveraging(), SIGMA, "dp-dda")),
    }
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


def _timed(transport: MpiTransport, run: Callable[[int], None], count: int) -> float:
    """Return the seconds until the last rank is through."""
    transport.barrier()
    begin = time.perf_counter()
    run(count)
    transport.barrier()
    return time.perf_counter() - begin


def _rounds_for(transport: MpiTransport, run: Callable[[int], None]) -> int:
    """Return how many rounds take about the target, the same number on every rank."""
    run(3)
    seconds = np.array([_timed(transport, run, 10) / 10])
    transport.total(seconds)
    return max(5, int(TARGET_SECONDS * transport.size / seconds[0]))


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Return what dpmpi adds to the bare parts."""
    parts = seconds["bare exchange"] + seconds["bare gradient"]
    return {
        "mix / bare exchange": seconds["mix"] / seconds["bare exchange"],
        "dda / bare parts": seconds["dda"] / parts,
        "dp-dda / bare parts": seconds["dp-dda"] / (parts + seconds["bare noise"]),
    }


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
            noise = sampler(transport, m, flags.turns)
            result["dimensions"][str(m)] = {"seconds": seconds, "ratios": found, "sampler_ns": noise}
            text.append(f"m = {m}")
            text.append(_lines([(name, f"{value * 1e6:9.1f}") for name, value in seconds.items()]))
            text.append(_lines([(name, f"{value:9.2f}") for name, value in found.items()]))
            text.append(_lines([(f"{name}, ns/coord", f"{value:9.1f}") for name, value in noise.items()]))
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
