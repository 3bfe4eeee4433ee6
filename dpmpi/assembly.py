"""From a configuration to agents in their seats, on whatever transport.

Everything that can fail on one rank alone runs inside `agreed`, so that all ranks learn of it and end together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpmpi import __version__
from dpmpi.config import Config
from dpmpi.core import Agent, Transport
from dpmpi.data import Rows, Shard, Source, Survey, parse_source, widen
from dpmpi.engine import Engine, Seat
from dpmpi.errors import ConfigError, DataError, DpmpiError
from dpmpi.exchange import EXCHANGES
from dpmpi.graphs import make_graph
from dpmpi.losses import LOSSES, Loss
from dpmpi.penalties import Regulariser, parse_penalty
from dpmpi.planning import noise_levels
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem
from dpmpi.rng import PrivateStream, fresh_key, insecure_key
from dpmpi.rows import Dense
from dpmpi.schedules import SampledSchedule, StaticSchedule, make_schedule
from dpmpi.transport.meter import Meter

Result = TypeVar("Result")


def agreed(transport: Transport, action: Callable[[], Result]) -> Result:
    """Run `action` in every process; if it fails in one, raise that process's error in all of them."""
    error: DpmpiError | None = None
    try:
        result = action()
    except DpmpiError as caught:
        error = caught
    text = "" if error is None else json.dumps([type(error).__name__, str(error)])
    for found in transport.collect([text] * len(transport.ranks)):
        if found:
            name, message = json.loads(found)
            kinds = {kind.__name__: kind for kind in (ConfigError, DataError)}
            raise kinds.get(name, DpmpiError)(message)
    return result


@dataclass
class Job:
    """What this process needs for its part of a run."""

    config: Config
    engine: Engine
    meter: Meter
    schedule: StaticSchedule | SampledSchedule
    shards: Sequence[Shard]
    ledgers: Sequence[Ledger]
    loss: Loss
    penalty: Regulariser
    dimension: int
    sigmas: Sequence[float]
    """The noise's standard deviation of every rank, not only of those here."""
    evaluate_every: int
    """0 for never."""


def assemble(config: Config, transport: Transport, ledger_path: Callable[[int], Path], stack: ExitStack) -> Job:
    """Load the data, calibrate the noise, open the ledgers; all processes call this together."""
    if config.ranks is not None and config.ranks != transport.size:
        raise ConfigError(f"the configuration is for {config.ranks} ranks, found {transport.size}")
    algorithm, loss, batch = config.make_algorithm(), LOSSES[config.loss], Batch.parse(config.batch)
    penalty = parse_penalty(config.penalty, config.domain)
    graph = make_graph(config.graph, transport.size, config.seed)
    sampled = getattr(algorithm, "schedule", "static") == "sampled"
    schedule = make_schedule(graph, config.weights, (config.sample_edges or 1) if sampled else None, config.seed)
    source = parse_source(
        config.data, samples=config.samples, normalize=config.normalize, test_fraction=config.test_fraction,
        seed=config.seed, loss=config.loss,
    )  # fmt: skip
    shards, dimension = load_shards(source, transport)

    records = [int(text) for text in transport.collect([str(shard.rows.count) for shard in shards])]
    for count in records:
        batch.check(count)
    active = schedule.active_counts(1, config.rounds + 1).tolist()
    sigmas = calibrated(config, transport, records, active)

    meter = Meter(transport)
    every = config.evaluate
    if every is None:
        every = 0 if source.private else max(1, config.rounds // 20)
    header = {
        "dpmpi": __version__, "algorithm": config.algorithm, "config": config.digest(), "ranks": transport.size,
        "private": is_private(config, sigmas), "insecure_noise": config.insecure_noise_seed is not None,
        "evaluation": "off" if every == 0 else "on: evaluation reads the data without noise, outside of the guarantee",
        "delta": config.delta, "calibration": config.calibration if config.epsilon is not None else "noise given",
    }  # fmt: skip
    seats, ledgers = [], []

    def seat(rank: int, shard: Shard) -> None:
        key = fresh_key() if config.insecure_noise_seed is None else insecure_key(config.insecure_noise_seed, rank)
        problem = LocalProblem(
            shard.rows, shard.labels, loss, batch, config.lipschitz, PrivateStream(key, "batch")
        )
        mechanism = make_mechanism("gaussian" if sigmas[rank] else "none", sigmas[rank], key, dimension)
        expected = sum(count for _, count in algorithm.releases(active[rank]))
        fields = header | {"rank": rank, "sigma": sigmas[rank], "records": shard.rows.count}
        ledger = stack.enter_context(Ledger(ledger_path(rank), fields, expected))
        agent = Agent(rank, transport.size, dimension, schedule.share, problem, penalty, mechanism, ledger)
        exchange = EXCHANGES[config.exchange](meter, rank, transport.size)
        seats.append(Seat(agent, algorithm.start(agent), exchange))
        ledgers.append(ledger)

    def take_seats() -> None:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            seat(rank, shard)

    agreed(transport, take_seats)
    engine = Engine(algorithm, schedule, meter, seats)
    return Job(config, engine, meter, schedule, shards, ledgers, loss, penalty, dimension, sigmas, every)


def is_private(config: Config, sigmas: Sequence[float]) -> bool:
    """Return whether the run promises anything: noise everywhere, from secret keys."""
    return config.insecure_noise_seed is None and all(sigma > 0 for sigma in sigmas)


def load_shards(source: Source, transport: Transport) -> tuple[list[Shard], int]:
    """Return the shards of the ranks in this process, and the dimension that all ranks share."""

    def survey() -> Survey | None:
        return source.survey() if 0 in transport.ranks else None

    def load() -> list[Shard]:
        return [source.load(known, rank, transport.size) for rank in transport.ranks]

    found = agreed(transport, survey)
    text = "" if found is None else json.dumps(found.to_dict())
    texts = transport.collect([text if rank == 0 else "" for rank in transport.ranks])
    known = Survey.from_dict(json.loads(texts[0])) if texts[0] else None
    shards = agreed(transport, load)

    def width(rows: Rows) -> list[int]:
        return [rows.dimension, int(isinstance(rows, Dense))]

    widths = [json.loads(text) for text in transport.collect([json.dumps(width(shard.rows)) for shard in shards])]
    dimension = max(width for width, _ in widths)
    for rank, (found_width, dense) in enumerate(widths):
        if dense and found_width != dimension:
            raise DataError(
                f"all ranks must have the same features: rank {rank} has {found_width} columns, another has {dimension}"
            )
    return [widen(shard, dimension) for shard in shards], dimension


def calibrated(config: Config, transport: Transport, records: Sequence[int], active: Sequence[int]) -> list[float]:
    """Return every rank's noise; where it takes an accountant, the first rank computes it for all."""
    if config.epsilon is None:
        return [config.noise or 0.0] * transport.size

    def compute() -> list[float]:
        return noise_levels(config, records, active) if 0 in transport.ranks else []

    text = json.dumps(agreed(transport, compute))
    return [float(x) for x in json.loads(transport.collect([text] * len(transport.ranks))[0])]
