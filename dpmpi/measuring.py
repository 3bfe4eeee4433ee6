"""Times what `dpmpi.fitting` fits: exchanges, rounds of dual averaging without messages, and rounds with them."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpmpi.agreement import everyone, on_first
from dpmpi.algorithms.dual_averaging import DualAveraging
from dpmpi.core import Agent, Event, Mix, public
from dpmpi.engine import Engine, Seat
from dpmpi.exchange.plain import PlainExchange, payload_bytes
from dpmpi.fitting import Fit, fit_file, store
from dpmpi.graphs import make_graph
from dpmpi.launched import usable_cores
from dpmpi.losses import LOSSES
from dpmpi.penalties import Regulariser
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem, make_terms
from dpmpi.rng import PrivateStream, fresh_key
from dpmpi.rows import Dense
from dpmpi.schedules import StaticSchedule
from dpmpi.transport.loopback import LoopbackTransport
from dpmpi.transport.meter import Meter
from dpmpi.wire import TRAILER_BYTES, Neighbourhood, Transport

if TYPE_CHECKING:
    from dpmpi.transport.mpi import MpiTransport

LENGTHS = (16, 2000, 20_000)
"""Numbers in the messages that are timed."""
ROUNDS = (
    (16, 8, "full", 0.0), (20_000, 8, "full", 0.0), (2000, 2000, "full", 0.0), (2000, 2000, "50", 0.0),
    (2000, 8, "full", 1.0), (20_000, 8, "full", 1.0),
)  # fmt: skip
"""Features, records, batch and noise of the rounds that are timed; the most records do not fit into a cache."""
WHOLE = ((16, 8, "full", 1.0), (2000, 2000, "50", 1.0), (2000, 500, "full", 0.0))
"""The same for those that are timed with their messages, on a ring."""

NOTHING: dict[str, float] = dict.fromkeys(("peers", "bytes", "full", "sampled", "coordinates", "noised"), 0)

Many: TypeAlias = Callable[[int], None]
"""Does something so many times."""


def measure(transport: MpiTransport, turns: int = 5, turn_seconds: float = 0.1) -> list[dict[str, Any]]:
    """Return timed exchanges and rounds, of all ranks at once; all of them call this together.

    The kinds take turns, so that a change of load meets all of them. `seconds` are those of the fastest turn by the
    clock, `core_seconds` those of a core for a rank, the median over the turns.
    """
    meter, n = Meter(transport), transport.size
    runs: list[tuple[dict[str, Any], Many]] = []
    ring, complete, alone = (
        StaticSchedule(make_graph(*graph, 0)) for graph in (("ring", n), ("complete", n), ("ring", 1))
    )
    for schedule in (ring, complete):
        near = schedule.neighbourhood(transport.rank)
        for length in LENGTHS:
            talk = {"peers": len(near.peers), "bytes": payload_bytes(length) + TRAILER_BYTES}
            runs.append((NOTHING | talk, _exchanges(meter, near, length)))
    for settings in ROUNDS:
        runs.append((NOTHING | _numbers(*settings), _rounds(LoopbackTransport(1), alone, *settings)))
    for settings in WHOLE:
        talk = {"peers": ring.graph.degrees[transport.rank], "bytes": payload_bytes(settings[0]) + TRAILER_BYTES}
        runs.append((talk | _numbers(*settings), _rounds(meter, ring, *settings)))
    counts = [_count(transport, run, turn_seconds) for _, run in runs]
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(turns):
        for timings, (_, run), count in zip(found, runs, counts, strict=True):
            timings.append(_timed(transport, run, count))
    crowd = {"ranks": n, "ranks_per_host": fullest_host(transport), "cores_per_host": usable_cores()}
    meter.close()
    rows = []
    for (kind, _), pairs in zip(runs, found, strict=True):
        fastest, core = min(clock for clock, _ in pairs), statistics.median(core for _, core in pairs)
        rows.append(crowd | kind | {"seconds": fastest, "core_seconds": core})
    return rows


def fit_here(transport: MpiTransport, path: Path | None = None, turns: int = 5, turn_seconds: float = 0.1) -> str:
    """Measure, add the rows to those of other numbers of ranks, and return what to show; all ranks call this together.

    The file is `path`, or that of this user.
    """
    rows = measure(transport, turns, turn_seconds)
    found = Fit(**on_first(transport, lambda: dataclasses.asdict(store(rows, path))))
    lines = [f"{transport.size} ranks measured; the fit of all that were is in {path or fit_file()}"]
    for f in dataclasses.fields(Fit):
        value, unit = getattr(found, f.name), "ns" if "_per_" in f.name else "us"
        lines.append(f"  {f.name.replace('_', ' '):<29} {value * (1e9 if unit == 'ns' else 1e6):9.3g} {unit}")
    return "\n".join(lines)


def fullest_host(transport: Transport) -> int:
    """Return the most ranks that share a host; all processes call this together."""
    return max(Counter(everyone(transport, lambda: [os.uname().nodename] * len(transport.ranks))).values())


def _exchanges(meter: Meter, near: Neighbourhood, length: int) -> Many:
    """Return what mixes a vector with the neighbours'."""
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


class _Free:
    """Charges that nobody keeps: the records are made up."""

    def charge(self, event: Event, round_: int) -> None:
        """Do nothing."""


def _numbers(m: int, records: int, batch: str, sigma: float) -> dict[str, float]:
    """Return what is computed in such a round."""
    drawn = Batch.parse(batch).sampling(records)
    full, sampled = (drawn.expected * m, 0.0) if drawn.kind == "full" else (0.0, drawn.expected * m)
    return {"full": full, "sampled": sampled, "coordinates": m, "noised": m if sigma else 0}


def _rounds(transport: Transport, schedule: StaticSchedule, m: int, records: int, batch: str, sigma: float) -> Many:
    """Return what runs dual averaging on made-up records."""
    rank, key, draw = transport.ranks[0], fresh_key(), np.random.default_rng()
    X = draw.random((records, m))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    drawn, penalty = Batch.parse(batch), Regulariser(l2=5e-4)
    problem = LocalProblem(
        Dense(X), draw.choice([-1.0, 1.0], records), LOSSES["hinge"], drawn, 1.0, PrivateStream(key, "batch")
    )
    terms = make_terms(
        rank=rank, schedule=schedule, rounds=1, active_rounds=1, dimension=m, lipschitz=1.0,
        sampling=drawn.sampling(records), loss="hinge", normalized=True, penalty=penalty, bounded=False,
    )  # fmt: skip
    mechanism = make_mechanism("gaussian" if sigma else "none", sigma, key, m)
    agent = Agent(rank, 1.0, terms, problem, penalty, mechanism, _Free(), PrivateStream(key, "weights"))
    algorithm = DualAveraging()
    seat = Seat(agent, algorithm.start(agent), PlainExchange(transport, rank, transport.size))
    engine = Engine(algorithm, schedule, transport, [seat])
    return lambda count: engine.advance(engine.completed + count)


def _timed(transport: MpiTransport, run: Many, count: int) -> tuple[float, float]:
    """Return the seconds of one by the clock, until the last rank is through, and of a core for a rank on average."""
    transport.barrier()
    begin, core = time.perf_counter(), time.process_time()
    run(count)
    cores = np.array([time.process_time() - core])  # before the barrier: who is through waits there
    transport.barrier()
    clock = time.perf_counter() - begin
    transport.total(cores)
    return clock / count, float(cores[0]) / transport.size / count


def _count(transport: MpiTransport, run: Many, turn_seconds: float) -> int:
    """Return how many take about a turn, the same number on every rank."""
    run(2)
    seconds = np.array([_timed(transport, run, 5)[0]])
    transport.total(seconds)
    return max(3, int(turn_seconds * transport.size / seconds[0]))
