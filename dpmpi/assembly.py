"""From a configuration to agents in their seats, on whatever transport.

Everything that can fail on one rank alone runs inside `agreed`, so that all ranks learn of it and end together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmpi import __version__
from dpmpi.agreement import agreed, everyone, on_first
from dpmpi.config import Config
from dpmpi.core import Agent, Event, Mechanism
from dpmpi.data import Shard, Source, Survey, widen
from dpmpi.engine import Engine, Seat
from dpmpi.errors import ConfigError, DataError, LedgerError
from dpmpi.penalties import Regulariser, parse_penalty
from dpmpi.planning import Prospect, noise_levels, prospect_of, schedule_of, source_of
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.local import RealisedLosses
from dpmpi.privacy.mechanisms import SumMechanism, make_mechanism
from dpmpi.problem import Batch, make_problem
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.rows import Dense
from dpmpi.secrecy import agree_on_secrets, check_shares, make_exchange, sealed
from dpmpi.transport.meter import Meter
from dpmpi.wallets import Wallet, open_wallets
from dpmpi.wire import Transport


@dataclass
class Job:
    """What this process needs for its part of a run."""

    run: str
    """A random name, the same on all ranks."""
    config: Config
    prospect: Prospect
    engine: Engine
    meter: Meter
    shards: Sequence[Shard]
    ledgers: Sequence[Ledger]
    wallets: dict[int, Wallet]
    penalty: Regulariser
    sigmas: Sequence[float]
    """The noise's standard deviation of every rank, not only of those here."""
    evaluate_every: int
    """0 for never."""


def assemble(
    config: Config, transport: Transport, ledger_path: Callable[[int], Path], stack: ExitStack,
    ready: Callable[[], None] = lambda: None,
) -> Job:  # fmt: skip
    """Load the data, calibrate the noise, open the ledgers; all processes call this together.

    `ready` is called, on all of them, when nothing is left that could be refused and before anything is written.
    """
    if config.ranks is not None and config.ranks != transport.size:
        raise ConfigError(f"the configuration is for {config.ranks} ranks, found {transport.size}")
    penalty = parse_penalty(config.penalty, config.domain)
    schedule = schedule_of(config, transport.size)
    source = source_of(config)
    shards, dimension, records = load_shards(source, transport)
    prospect = prospect_of(config, schedule, records, dimension, getattr(source, "radius", None))
    config, algorithm = prospect.config, prospect.method
    batch = Batch.parse(config.batch)
    for count in records:
        batch.check(count)
    prospect.check()
    check_shares(prospect)
    sigmas = agreed_noise(prospect, transport)
    wallets = open_wallets(prospect, transport, ledger_path, shards, sigmas, stack)
    run = on_first(transport, lambda: os.urandom(8).hex())
    secrets = agree_on_secrets(config, transport, run)
    meter, seats, ledgers = Meter(transport), [], []
    carrier = sealed(config, meter, secrets)

    def take_seats() -> None:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            key = rank_key(config.insecure_noise_seed, rank)
            stream = PrivateStream(key, "batch")
            problem = make_problem(
                shard.rows, shard.labels, config.loss, batch, prospect.lipschitz, stream, getattr(source, "radius", 0.0)
            )
            mechanism = make_noise(prospect, rank, sigmas[rank], key)
            told = algorithm.testifies and sigmas[rank] and prospect.kind == "laplace"
            agent = Agent(
                rank, schedule.share, prospect.terms(rank), problem, penalty, mechanism, NotYet(),
                PrivateStream(key, "weights"), RealisedLosses() if told else None,
            )  # fmt: skip
            exchange = make_exchange(config, carrier, rank, secrets, sigmas[rank])
            seats.append(Seat(agent, algorithm.start(agent), exchange))

    agreed(transport, take_seats)
    ready()
    every = config.evaluate
    if every is None:
        every = 0 if source.private else max(1, config.rounds // 20)
    outside = "on: it reads the data without noise, outside of the guarantee"
    header = {
        "run": run, "dpmpi": __version__, "algorithm": config.algorithm, "config": config.digest(),
        "ranks": transport.size,
        "private": is_private(config, sigmas), "insecure_noise": config.insecure_noise_seed is not None,
        "evaluation": outside if every else "off", "reference": outside if config.reference else "off",
        "delta": config.delta, "calibration": config.calibration if config.epsilon is not None else "noise given",
    }  # fmt: skip

    def open_ledgers() -> None:
        for seat in seats:
            rank, wallet = seat.agent.rank, wallets[seat.agent.rank]
            fields = header | {"rank": rank, "sigma": sigmas[rank], "records": records[rank], "budget": wallet.budget}
            if config.ledger is not None:
                fields |= {"shard": wallet.owner, "filter_order": wallet.order}
            planned = prospect.events(seat.agent.terms, sigmas[rank])
            ledger = stack.enter_context(Ledger(wallet.path, fields, planned, wallet.allowance))
            seat.agent.charges = ledger
            ledgers.append(ledger)

    agreed(transport, open_ledgers)
    engine = Engine(algorithm, schedule, carrier, seats)
    return Job(run, config, prospect, engine, meter, shards, ledgers, wallets, penalty, sigmas, every)


def agreed_noise(prospect: Prospect, transport: Transport) -> list[float]:
    """Return the noise of every rank, calibrated on the first one."""
    sigmas: list[float]
    if prospect.config.epsilon is None:
        sigmas = noise_levels(prospect)
    else:
        sigmas = on_first(transport, lambda: noise_levels(prospect))
    if any(sigma and not 1e-100 < sigma < 1e100 for sigma in sigmas):
        raise ConfigError(f"the noise must lie between 1e-100 and 1e100, got {min(sigmas):g} ... {max(sigmas):g}")
    return sigmas


def make_noise(prospect: Prospect, rank: int, sigma: float, key: bytes) -> Mechanism:
    """Return what a rank adds to its values, or to the sum of all ranks' values."""
    config, width = prospect.config, prospect.method.width(prospect.dimension)
    if sigma and config.noise_in == "sum":
        return SumMechanism(sigma, prospect.schedule.size - config.colluders, config.share_bits, key, width)
    return make_mechanism(prospect.kind if sigma else "none", sigma, key, width)


class NotYet:
    """Charges of an agent whose ledger is not open: nothing can be released."""

    def charge(self, event: Event, round_: int) -> None:
        """Refuse."""
        raise LedgerError(f"no ledger is open for {event} in round {round_}")


def is_private(config: Config, sigmas: Sequence[float]) -> bool:
    """Return whether the run promises anything: noise everywhere, from secret keys."""
    return config.insecure_noise_seed is None and all(sigma > 0 for sigma in sigmas)


def load_shards(source: Source, transport: Transport) -> tuple[list[Shard], int, list[int]]:
    """Return the shards of the ranks in this process, the dimension that all share, and every rank's records."""

    def survey() -> dict[str, Any] | None:
        found = source.survey()
        return None if found is None else found.to_dict()

    told = on_first(transport, survey)
    known = None if told is None else Survey.from_dict(told)
    shards: list[Shard] = []

    def load() -> list[tuple[int, int, bool]]:
        shards.extend(source.load(known, rank, transport.size) for rank in transport.ranks)
        return [(shard.rows.count, shard.rows.dimension, isinstance(shard.rows, Dense)) for shard in shards]

    sizes = everyone(transport, load)
    dimension = max(width for _, width, _ in sizes)
    for rank, (_, width, dense) in enumerate(sizes):
        if dense and width != dimension:
            raise DataError(
                f"all ranks must have the same features: rank {rank} has {width} columns, another has {dimension}"
            )
    return [widen(shard, dimension) for shard in shards], dimension, [count for count, _, _ in sizes]
