"""From a configuration to agents in their seats, on whatever transport.

Everything that can fail on one rank alone runs inside `agreed`, so that all ranks learn of it and end together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmpi import __version__
from dpmpi.agreement import agreed, everyone, on_first
from dpmpi.checkpoint import Interval, check_owner
from dpmpi.config import Config
from dpmpi.core import Agent, Event, Mechanism
from dpmpi.data import Shard, Source, Survey, widen
from dpmpi.engine import Engine, Seat
from dpmpi.errors import ConfigError, DataError, LedgerError
from dpmpi.penalties import Regulariser, parse_penalty
from dpmpi.planning import Prospect, Spent, after, noise_levels, prospect_of, schedule_of, source_of, tally
from dpmpi.privacy.events import ReleaseEvent, to_list
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.local import RealisedLosses
from dpmpi.privacy.mechanisms import SumMechanism, make_mechanism
from dpmpi.problem import Batch, make_problem
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.rows import Dense
from dpmpi.secrecy import agree_on_secrets, check_room, check_shares, make_exchange, sealed
from dpmpi.snapshots import Snapshot, restore
from dpmpi.transport.meter import Meter, Traffic
from dpmpi.wallets import Wallet, allow, open_wallets, owner_mark
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
    ledgers: list[Ledger]
    wallets: dict[int, Wallet]
    penalty: Regulariser
    sigmas: Sequence[float]
    """The noise's standard deviation of every rank, not only of those here."""
    evaluate_every: int
    """0 for never."""
    origin: int
    """The ranks that the run began with."""
    names: Sequence[int]
    """Those that are left, by their first numbers: rank k of now is the rank names[k] of then."""
    incarnation: int
    """How often the run was started, or regrouped, before."""
    carried: dict[int, Snapshot]
    """What the ranks of this process brought with them, if the run goes on."""
    charged: Sequence[Mapping[ReleaseEvent, int]]
    """What every rank, not only those here, had charged for this run before it went on."""
    made: Sequence[int]
    """How many of its planned releases every rank had made by then."""
    lost: Mapping[int, Mapping[ReleaseEvent, int]]
    """The most that ranks which were lost can have charged, by their names."""

    def most_charged(self) -> dict[int, Mapping[ReleaseEvent, int]]:
        """Return the most that every rank can charge from the beginning of the run to its end, lost ones included."""
        found = dict(self.lost)
        for rank, name in enumerate(self.names):
            planned = self.prospect.events(self.prospect.terms(rank), self.sigmas[rank])
            found[name] = Counter(self.charged[rank]) + tally(after(planned, self.made[rank]))
        return found

    def traffic(self, rank: int) -> dict[int, Traffic]:
        """Return what went between `rank` and each of its peers, by their names, since the run began."""
        found = {self.names[peer]: traffic for peer, traffic in self.meter.traffic(rank).items()}
        if rank in self.carried:
            for name, before in self.carried[rank].traffic.items():
                found.setdefault(int(name), Traffic()).add(Traffic(**before))  # type: ignore[arg-type]
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Past:
    """What a run that goes on brings with it."""

    run: str
    origin: int
    names: tuple[int, ...]
    round: int
    snapshots: Mapping[int, Snapshot]
    """Of the ranks in this process, by their numbers now; empty if the run begins again."""
    shards: Sequence[Shard] | None = None
    """Those of the same ranks, if they are at hand."""
    floor: int = 0
    """The incarnation is not below this one."""
    charged: Mapping[int, Mapping[ReleaseEvent, int]] = field(default_factory=dict)
    """The most that ranks can have charged, by their names; of those that are lost if they ever charged anything."""


def assemble(
    config: Config, transport: Transport, ledger_path: Callable[[int], Path], stack: ExitStack,
    ready: Callable[[], None] = lambda: None, past: Past | None = None,
) -> Job:  # fmt: skip
    """Load the data, calibrate the noise, open the ledgers; all processes call this together.

    `ready` is called, on all of them, when nothing is left that could be refused and before anything is written.
    """
    origin, names = (transport.size, range(transport.size)) if past is None else (past.origin, past.names)
    if config.ranks is not None and config.ranks != origin:
        raise ConfigError(f"the configuration is for {config.ranks} ranks, found {origin}")
    if len(names) != transport.size:
        raise ConfigError(f"the run goes on with its {len(names)} ranks, found {transport.size}: start as many")
    Interval.parse(config.checkpoint_every)
    penalty = parse_penalty(config.penalty, config.domain)
    schedule = schedule_of(config, origin, names)
    source = source_of(config)
    shards, dimension, records = load_shards(source, transport, names, origin, None if past is None else past.shards)
    carried = dict(past.snapshots) if past is not None else {}
    done = everyone(transport, lambda: [_progress(carried.get(rank)) for rank in transport.ranks])
    prospect = prospect_of(
        config, schedule, records, dimension, getattr(source, "radius", None),
        [active for active, _ in done], 0 if past is None else past.round,
    )  # fmt: skip
    made = [releases for _, releases in done]
    config, algorithm = prospect.config, prospect.method
    batch = Batch.parse(config.batch)
    for count in records:
        batch.check(count)
    prospect.check()
    check_shares(prospect)
    wallets, known = open_wallets(
        config, transport, ledger_path, shards, stack, names, None if past is None else past.run
    )
    spent = [Spent(wallet.own, releases) for wallet, releases in zip(known, made, strict=True)]
    sigmas = agreed_noise(prospect, transport, spent)
    wallets = allow(prospect, transport, wallets, known, sigmas, made)
    run = on_first(transport, lambda: os.urandom(8).hex() if past is None else past.run)
    incarnation = max(0 if past is None else past.floor, *(wallet.starts for wallet in known))
    secrets = agree_on_secrets(config, transport, run, incarnation, names)
    meter, seats = Meter(transport), []
    carrier = sealed(config, meter, secrets)

    def take_seats() -> None:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            key = rank_key(config.insecure_noise_seed, names[rank])
            agent = make_agent(prospect, rank, shard, sigmas[rank], key, penalty, getattr(source, "radius", 0.0))
            seat = Seat(agent, algorithm.start(agent), make_exchange(config, carrier, rank, secrets, sigmas[rank]))
            if rank in carried:
                check_owner(carried[rank], {"shard": shard.fingerprint}, f"the checkpoint of rank {names[rank]}")
                restore(seat, carried[rank])
                algorithm.resume(seat.state)
            seats.append(seat)

    agreed(transport, take_seats)
    check_room(prospect, max(sigmas))
    ready()
    every = config.evaluate
    if every is None:
        every = 0 if source.private else max(1, config.rounds // 20)
    engine = Engine(algorithm, schedule, carrier, seats, 0 if past is None else past.round)
    lost = {} if past is None else {k: past.charged.get(k, {}) for k in range(origin) if k not in names}
    job = Job(
        run, config, prospect, engine, meter, shards, [], wallets, penalty, sigmas, every, origin, names, incarnation,
        carried, [wallet.own for wallet in known], made, lost,
    )  # fmt: skip
    agreed(transport, lambda: open_ledgers(job, stack))
    return job


def open_ledgers(job: Job, stack: ExitStack) -> None:
    """Open the ledgers of the agents here, for the releases that come after those that were made."""
    config, prospect = job.config, job.prospect
    outside = "on: it reads the data without noise, outside of the guarantee"
    header = {
        "run": job.run, "dpmpi": __version__, "algorithm": config.algorithm, "config": config.digest(),
        "ranks": len(job.names), "incarnation": job.incarnation, "after_round": job.engine.completed,
        "private": is_private(config, job.sigmas), "insecure_noise": config.insecure_noise_seed is not None,
        "evaluation": outside if job.evaluate_every else "off", "reference": outside if config.reference else "off",
        "delta": config.delta, "calibration": config.calibration if config.epsilon is not None else "noise given",
    }  # fmt: skip
    if job.lost:
        header["members"] = list(job.names)
        header["lost"] = [[name, to_list(charged)] for name, charged in job.lost.items()]
    for seat, shard in zip(job.engine.seats, job.shards, strict=True):
        rank, wallet, sigma = seat.agent.rank, job.wallets[seat.agent.rank], job.sigmas[seat.agent.rank]
        fields: dict[str, Any] = {"rank": job.names[rank], "sigma": sigma, "records": prospect.records[rank]}
        fields["budget"] = wallet.budget
        if config.ledger is not None:
            fields |= {"shard": wallet.owner or owner_mark(wallet.path, shard), "filter_order": wallet.order}
        planned = after(prospect.events(seat.agent.terms, sigma), job.made[rank])
        ledger = stack.enter_context(Ledger(wallet.path, header | fields, planned, wallet.allowance, wallet.lines))
        seat.agent.charges = ledger
        job.ledgers.append(ledger)


def make_agent(
    prospect: Prospect, rank: int, shard: Shard, sigma: float, key: bytes, penalty: Regulariser, radius: float
) -> Agent:
    """Return a rank as its algorithm sees it; nothing can be charged yet."""
    config = prospect.config
    problem = make_problem(
        shard.rows, shard.labels, config.loss, Batch.parse(config.batch), prospect.lipschitz,
        PrivateStream(key, "batch"), radius,
    )  # fmt: skip
    told = prospect.method.testifies and sigma and prospect.kind == "laplace"
    return Agent(
        rank, prospect.schedule.share, prospect.terms(rank), problem, penalty, make_noise(prospect, rank, sigma, key),
        NotYet(), PrivateStream(key, "weights"), RealisedLosses() if told else None,
    )  # fmt: skip


def _progress(snapshot: Snapshot | None) -> tuple[int, int]:
    """Return in how many rounds an agent was active, and how many releases it made."""
    return (0, 0) if snapshot is None else (snapshot.agent["active_rounds"], snapshot.agent["releases"])


def agreed_noise(prospect: Prospect, transport: Transport, spent: Sequence[Spent] = ()) -> list[float]:
    """Return the noise of every rank, calibrated on the first one.

    Repeatable noise stays what it was, so that a run which goes on ends as one that was never interrupted.
    """
    sigmas: list[float]
    before = spent if prospect.config.insecure_noise_seed is None and any(one.charged for one in spent) else ()
    if prospect.config.epsilon is None:
        sigmas = noise_levels(prospect)
    else:
        sigmas = on_first(transport, lambda: noise_levels(prospect, before))
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


def load_shards(
    source: Source, transport: Transport, names: Sequence[int], origin: int, known_shards: Sequence[Shard] | None = None
) -> tuple[list[Shard], int, list[int]]:
    """Return the shards of the ranks in this process, the dimension that all share, and every rank's records."""

    def survey() -> dict[str, Any] | None:
        found = source.survey()
        return None if found is None else found.to_dict()

    told = None if known_shards is not None else on_first(transport, survey)
    known = None if told is None else Survey.from_dict(told)
    shards: list[Shard] = []

    def load() -> list[tuple[int, int, bool]]:
        if known_shards is not None:
            shards.extend(known_shards)
        else:
            # All ranks of one process may read a file together, if the source can.
            load_many = getattr(source, "load_many", None)
            mine = [names[rank] for rank in transport.ranks]
            found = load_many(known, mine, origin) if load_many else (source.load(known, k, origin) for k in mine)
            shards.extend(found)
        return [(shard.rows.count, shard.rows.dimension, isinstance(shard.rows, Dense)) for shard in shards]

    sizes = everyone(transport, load)
    dimension = max(width for _, width, _ in sizes)
    for rank, (_, width, dense) in enumerate(sizes):
        if dense and width != dimension:
            raise DataError(
                f"all ranks must have the same features: rank {rank} has {width} columns, another has {dimension}"
            )
    return [widen(shard, dimension) for shard in shards], dimension, [count for count, _, _ in sizes]
