"""From a configuration to agents in their seats, on whatever transport.

Everything that can fail on one rank alone runs inside `agreed`, so that all ranks learn of it and end together.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpmpi import __version__
from dpmpi.config import Config
from dpmpi.core import Agent, Transport
from dpmpi.data import Shard, Source, Survey, parse_source, widen
from dpmpi.engine import Engine, Seat
from dpmpi.errors import ConfigError, DataError, DpmpiError
from dpmpi.exchange import EXCHANGES
from dpmpi.graphs import make_graph
from dpmpi.losses import LOSSES, Loss
from dpmpi.penalties import Regulariser, parse_penalty
from dpmpi.planning import (
    allowance,
    filter_order,
    noise_levels,
    planned_releases,
    read_budget,
    release_event,
    resolve_batch,
)
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Ledger, read_ledger, recorded_spending
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem
from dpmpi.rng import PrivateStream, fresh_key, insecure_key
from dpmpi.rows import Dense, Rows
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


@dataclass(frozen=True)
class Wallet:
    """Where a rank charges, what it may spend in all, and how many charges of this run that leaves."""

    path: Path
    earlier: Mapping[ReleaseEvent, int]
    budget: float | None
    allowance: int | None
    order: int
    """The Renyi order of the filter, for a ledger that goes on over runs."""


@dataclass
class Job:
    """What this process needs for its part of a run."""

    run: str
    """A random name, the same on all ranks."""
    config: Config
    engine: Engine
    meter: Meter
    schedule: StaticSchedule | SampledSchedule
    shards: Sequence[Shard]
    ledgers: Sequence[Ledger]
    wallets: dict[int, Wallet]
    loss: Loss
    penalty: Regulariser
    dimension: int
    sigmas: Sequence[float]
    """The noise's standard deviation of every rank, not only of those here."""
    records: Sequence[int]
    """How many records every rank has."""
    evaluate_every: int
    """0 for never."""


def assemble(config: Config, transport: Transport, ledger_path: Callable[[int], Path], stack: ExitStack) -> Job:
    """Load the data, calibrate the noise, open the ledgers; all processes call this together."""
    if config.ranks is not None and config.ranks != transport.size:
        raise ConfigError(f"the configuration is for {config.ranks} ranks, found {transport.size}")
    algorithm, loss = config.make_algorithm(), LOSSES[config.loss]
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
    active = schedule.active_counts(1, config.rounds + 1).tolist()
    if config.batch == "auto":
        config = resolve_batch(config, records, active)
    batch = Batch.parse(config.batch)
    for count in records:
        batch.check(count)
    known = config.epsilon is None
    sigmas = noise_levels(config, records, active) if known else on_first(
        transport, lambda: noise_levels(config, records, active)
    )  # fmt: skip
    wallets = open_wallets(config, transport, ledger_path, shards, records, sigmas, active)

    meter = Meter(transport)
    every = config.evaluate
    if every is None:
        every = 0 if source.private else max(1, config.rounds // 20)
    run = on_first(transport, lambda: secrets.token_hex(8))
    header = {
        "run": run, "dpmpi": __version__, "algorithm": config.algorithm, "config": config.digest(),
        "ranks": transport.size,
        "private": is_private(config, sigmas), "insecure_noise": config.insecure_noise_seed is not None,
        "evaluation": "off" if every == 0 else "on: evaluation reads the data without noise, outside of the guarantee",
        "delta": config.delta, "calibration": config.calibration if config.epsilon is not None else "noise given",
    }  # fmt: skip
    seats, ledgers = [], []

    def seat(rank: int, shard: Shard) -> None:
        key = fresh_key() if config.insecure_noise_seed is None else insecure_key(config.insecure_noise_seed, rank)
        problem = LocalProblem(shard.rows, shard.labels, loss, batch, config.lipschitz, PrivateStream(key, "batch"))
        mechanism = make_mechanism("gaussian" if sigmas[rank] else "none", sigmas[rank], key, dimension)
        wallet = wallets[rank]
        fields = header | {"rank": rank, "sigma": sigmas[rank], "records": shard.rows.count, "budget": wallet.budget}
        if config.ledger is not None:
            fields |= {"shard": shard.fingerprint, "filter_order": wallet.order}
        expected = planned_releases(config, active[rank])
        ledger = stack.enter_context(Ledger(wallet.path, fields, expected, wallet.allowance))
        agent = Agent(rank, transport.size, dimension, schedule.share, problem, penalty, mechanism, ledger)
        exchange = EXCHANGES[config.exchange](meter, rank, transport.size)
        seats.append(Seat(agent, algorithm.start(agent), exchange))
        ledgers.append(ledger)

    def take_seats() -> None:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            seat(rank, shard)

    agreed(transport, take_seats)
    engine = Engine(algorithm, schedule, meter, seats)
    return Job(
        run, config, engine, meter, schedule, shards, ledgers, wallets, loss, penalty, dimension, sigmas, records, every
    )


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


def open_wallets(
    config: Config, transport: Transport, ledger_path: Callable[[int], Path], shards: Sequence[Shard],
    records: Sequence[int], sigmas: Sequence[float], active: Sequence[int],
) -> dict[int, Wallet]:  # fmt: skip
    """Return the wallets of the ranks in this process, after reading their budgets and what earlier runs spent."""
    earlier: dict[int, Counter[ReleaseEvent]] = {}
    budgets: dict[int, float | None] = {}
    orders: dict[int, int] = {}
    path = ledger_path if config.ledger is None else lambda rank: Path(str(config.ledger)) / f"rank-{rank:03d}.jsonl"

    def read() -> None:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            budgets[rank] = read_budget(config, rank)
            earlier[rank] = Counter()
            if path(rank).exists():
                check_owner(path(rank), shard)
                earlier[rank] = recorded_spending(path(rank))
                orders[rank] = int(next(read_ledger(path(rank))).get("filter_order", 2))

    agreed(transport, read)
    told = [
        json.dumps([budgets[k], orders.get(k), [[event.to_dict(), count] for event, count in earlier[k].items()]])
        for k in transport.ranks
    ]
    everyone = [json.loads(text) for text in transport.collect(told)]

    def allow(rank: int) -> tuple[int | None, int]:
        budget, order, spent = everyone[rank]
        event, planned = release_event(config, records[rank], sigmas[rank]), planned_releases(config, active[rank])
        before = {ReleaseEvent.from_dict(fields): count for fields, count in spent}
        if order is None:
            order = filter_order(event, planned, budget or config.epsilon or 1.0, config.delta)
        allowed = None if budget is None else allowance(event, planned, before, budget, config.delta, order)
        return allowed, order

    plain = config.budget is None and config.ledger is None
    found = [(None, 2)] * transport.size if plain else on_first(
        transport, lambda: [allow(rank) for rank in range(transport.size)]
    )  # fmt: skip
    return {k: Wallet(path(k), earlier[k], budgets[k], *found[k]) for k in transport.ranks}


def check_owner(path: Path, shard: Shard) -> None:
    """Raise `ConfigError` if a ledger belongs to another shard: its spending would be counted for the wrong people."""
    for entry in read_ledger(path):
        owner = entry.get("shard")
        if owner is not None and owner != shard.fingerprint:
            raise ConfigError(f"the ledger {path} belongs to another shard: give this one its own --ledger directory")


def on_first(transport: Transport, compute: Callable[[], Any]) -> Any:
    """Compute a JSON-ready value on the first rank and give it to all: accountants are slow to import."""
    text = json.dumps(agreed(transport, lambda: compute() if 0 in transport.ranks else None))
    return json.loads(transport.collect([text] * len(transport.ranks))[0])
