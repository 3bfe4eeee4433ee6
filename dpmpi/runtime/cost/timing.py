"""Times what `fit.py` fits: exchanges, rounds of dual averaging without messages, and rounds with them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpmpi.core import Mix, public
from dpmpi.network.channel import TRAILER_BYTES, Neighbourhood, Transport
from dpmpi.network.collective import on_all_ranks, on_first_rank
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.graph import make_graph
from dpmpi.network.launcher import usable_cores
from dpmpi.network.schedule import StaticSchedule
from dpmpi.network.sums import payload_of
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.privacy.releases import Recorder
from dpmpi.problem.batches import Batch
from dpmpi.problem.rows import Dense
from dpmpi.rng import fresh_key
from dpmpi.runtime.assembly import build_agent
from dpmpi.runtime.config import Config
from dpmpi.runtime.cost.fit import SURROUNDINGS, TIMED, Fit, fit_file, store
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.settings import Settings

if TYPE_CHECKING:
    from dpmpi.network.transport.mpi import MpiTransport

LENGTHS = (16, 2000, 20_000)
"""Numbers in the messages that are timed."""
SMALL, LARGE, WIDE = (2000, 8), (2000, 2000), (20_000, 8)
"""Features and records; the most records do not fit into a cache."""
FULL, SAMPLED = Batch("full"), Batch("poisson", 50)
SILENT = (((16, 8), FULL, 0.0), (WIDE, FULL, 0.0), (LARGE, FULL, 0.0), (LARGE, SAMPLED, 0.0))
ROUNDS = (*SILENT, (SMALL, FULL, 1.0), (WIDE, FULL, 1.0))
"""Data, batch and noise of the rounds that are timed without messages."""
WHOLE = (((16, 8), FULL, 1.0), (LARGE, SAMPLED, 1.0), ((2000, 500), FULL, 0.0))
"""The same for those that are timed with their messages, on a ring."""

Many: TypeAlias = Callable[[int], None]
"""Does something a number of times."""


def measure(transport: MpiTransport, turns: int = 5, turn_seconds: float = 0.1) -> list[dict[str, Any]]:
    """Return timed exchanges and rounds, of all ranks at once; all of them call this together.

    The kinds take turns, so that a change of load meets all of them. `seconds` are those of the fastest turn by the
    clock, `core_seconds` those of a core for a rank, the median over the turns.
    """
    meter, n = Meter(transport), transport.size
    graphs = [make_graph(*graph, 0) for graph in (("ring", n), ("complete", n), ("ring", 1))]
    ring, complete, alone = map(StaticSchedule, graphs)

    def talk(schedule: StaticSchedule, length: int) -> dict[str, float]:
        return {"peers": schedule.graph.degrees[transport.rank], "bytes": payload_of(length, "float64") + TRAILER_BYTES}

    runs: list[tuple[dict[str, float], Many]] = []
    for schedule in (ring, complete):
        near = schedule.neighbourhood(transport.rank)
        runs += [(talk(schedule, length), _exchanges(meter, near, length)) for length in LENGTHS]
    runs += [(_numbers(*one), _rounds(LoopbackTransport(1), alone, *one)) for one in ROUNDS]
    runs += [(talk(ring, one[0][0]) | _numbers(*one), _rounds(meter, ring, *one)) for one in WHOLE]
    counts = [repeats(transport, run, turn_seconds, least=3) for _, run in runs]
    pairs = np.zeros((turns, len(runs), 2))
    for turn in range(turns):
        pairs[turn] = [timed(transport, run, count) for (_, run), count in zip(runs, counts, strict=True)]
    crowd = dict(zip(SURROUNDINGS, (n, fullest_host(transport), usable_cores()), strict=True))
    meter.close()
    fastest, core = pairs[:, :, 0].min(axis=0).tolist(), np.median(pairs[:, :, 1], axis=0).tolist()
    empty = crowd | dict.fromkeys(TIMED, 0)
    return [empty | kind | {"seconds": fastest[k], "core_seconds": core[k]} for k, (kind, _) in enumerate(runs)]


def fit_here(transport: MpiTransport, path: Path | None = None, turns: int = 5, turn_seconds: float = 0.1) -> str:
    """Measure, add the rows to those in `path` or this user's file, and return what to show; all ranks call this."""
    rows = measure(transport, turns, turn_seconds)
    found = Fit(**on_first_rank(transport, lambda: dataclasses.asdict(store(rows, path))))
    lines = [f"{transport.size} ranks measured; the fit of all that were is in {path or fit_file()}"]
    for f in dataclasses.fields(Fit):
        value, unit = getattr(found, f.name), "ns" if "_per_" in f.name else "us"
        lines.append(f"  {f.name.replace('_', ' '):<29} {value * (1e9 if unit == 'ns' else 1e6):9.3g} {unit}")
    return "\n".join(lines)


def fullest_host(transport: Transport) -> int:
    """Return the most ranks that share a host; all processes call this together."""
    return max(Counter(on_all_ranks(transport, lambda: [os.uname().nodename] * len(transport.ranks))).values())


def _exchanges(meter: Meter, near: Neighbourhood, length: int) -> Many:
    """Return a function that mixes a vector with the neighbours', again and again."""
    rank, round_ = meter.ranks[0], 0
    exchange, vector = PlainExchange(meter, rank, meter.size), np.full(length, float(rank))

    def run(count: int) -> None:
        nonlocal round_
        for _ in range(count):
            round_ += 1
            for channel in exchange.serve(Mix(public(vector, because="it never met data"), vector), near, round_):
                meter.start(channel)
                meter.wait(channel)

    return run


def _numbers(data: tuple[int, int], batch: Batch, sigma: float) -> dict[str, float]:
    """Return how many numbers a round computes with."""
    m, records = data
    drawn = batch.sampling(records)
    kind = "full" if drawn.kind == "full" else "sampled"
    return {kind: drawn.expected * m, "coordinates": m, "noised": m if sigma else 0}


def _rounds(transport: Transport, schedule: StaticSchedule, data: tuple[int, int], batch: Batch, sigma: float) -> Many:
    """Return a function that runs rounds of dual averaging on made-up records."""
    m, records = data
    rank, key, draw = transport.ranks[0], fresh_key(), np.random.default_rng()
    X = draw.random((records, m))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rows, labels = Dense(X), draw.choice([-1.0, 1.0], records)
    settings = Settings.of(Config(algorithm="dp-dda", rounds=1, batch=batch.describe(), intercept="none"))
    plan = make_plan(settings, schedule, [records] * schedule.size, m)
    problem, mechanism = plan.problem(rank, rows, labels, key), plan.mechanism(sigma, key)
    agent = build_agent(plan, rank, key, problem, mechanism, charges=Recorder())
    seat = Seat(agent, plan.method.start(agent), PlainExchange(transport, rank, transport.size))
    engine = Engine(plan.method, schedule, transport, [seat])
    return lambda count: engine.advance(engine.completed + count)


def timed(transport: MpiTransport, run: Many, count: int) -> tuple[float, float]:
    """Return the seconds of one by the clock, until the last rank is through, and of a core for a rank on average."""
    transport.barrier()
    begin, core = time.perf_counter(), time.process_time()
    run(count)
    cores = np.array([time.process_time() - core])  # before the barrier: who is through waits there
    transport.barrier()
    clock = time.perf_counter() - begin
    transport.total(cores)
    return clock / count, float(cores[0]) / transport.size / count


def repeats(transport: MpiTransport, run: Many, seconds: float, least: int = 1) -> int:
    """Return how many take about `seconds`, the same number on every rank."""
    run(2)
    one = np.array([timed(transport, run, 5)[0]])
    transport.total(one)
    return max(least, int(seconds * transport.size / one[0]))
