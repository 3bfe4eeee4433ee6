"""From settings to agents in their seats, on whatever transport.

Everything that can fail on one rank alone runs inside `agreed`, so that all ranks learn of it and end together.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dpmpi import __version__
from dpmpi.core import Agent, Charges, Event, Mechanism, Problem
from dpmpi.data import Shard, Source, Survey, widen
from dpmpi.data.codebook import codebook_digest
from dpmpi.errors import ConfigError, DataError, LedgerError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import fail_together, in_each_domain, on_all_ranks, on_first_rank
from dpmpi.network.handshake import Claim, Meeting, Secrets, meet, roster_digest
from dpmpi.network.transport.meter import Meter, Traffic
from dpmpi.privacy.events import ReleaseEvent, to_list
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.ledger_proofs import make_key
from dpmpi.privacy.random_weights import RealisedLosses
from dpmpi.privacy.releases import later_releases, tally
from dpmpi.problem.rows import Dense
from dpmpi.problem.task import Task
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.runtime.budget import Account, Ahead, Fits, open_accounts, remember_rows, set_allowances, split_of
from dpmpi.runtime.config import Config
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.held_out import evaluation_levels
from dpmpi.runtime.noise import PairNoise, Pairs
from dpmpi.runtime.output.console import say
from dpmpi.runtime.plan import Plan, Spent, make_plan, noise_levels
from dpmpi.runtime.recovery.checkpoint import check_snapshot_owner
from dpmpi.runtime.recovery.snapshot import Snapshot, restore
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.verdict import Verdict


@dataclass(frozen=True)
class Past:
    """What a run that goes on brings with it; that of a run which begins is empty."""

    origin: int
    """The ranks that the run began with."""
    names: tuple[int, ...]
    """Those that are left, by their first numbers: rank k of now is the rank names[k] of then."""
    run: str | None = None
    """The run's random name; None if it begins."""
    round: int = 0
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    """Of the ranks in this process, by their numbers now; empty if the run begins, or begins again."""
    shards: Sequence[Shard] | None = None
    """Those of the same ranks, if they are at hand."""
    floor: int = 0
    """The incarnation is not below this one."""
    charged: Mapping[int, Mapping[ReleaseEvent, int]] = field(default_factory=dict)
    """The most that ranks can have charged, by their names; of those that are lost if they ever charged anything."""

    @classmethod
    def none(cls, ranks: int) -> Past:
        """Return the past of a run that begins with `ranks` ranks."""
        return cls(ranks, tuple(range(ranks)))

    @property
    def goes_on(self) -> bool:
        """Whether the run was started before."""
        return self.run is not None

    @property
    def lost(self) -> dict[int, Mapping[ReleaseEvent, int]]:
        """The most that ranks which were lost can have charged, by their names."""
        return {name: self.charged.get(name, {}) for name in range(self.origin) if name not in self.names}

    def progress(self, rank: int) -> tuple[int, int]:
        """Return in how many rounds an agent here was active, and how many releases it made."""
        if rank not in self.snapshots:
            return 0, 0
        agent = self.snapshots[rank].agent
        return agent["active_rounds"], agent["releases"]


@dataclass
class Job:
    """What this process needs for its part of a run."""

    run: str
    """A random name, the same on all ranks."""
    plan: Plan
    past: Past
    engine: Engine
    meter: Meter
    shards: Sequence[Shard]
    accounts: Mapping[int, Account]
    """Of the ranks here."""
    known: Sequence[Account]
    """What is known of every rank's account, not only of those here: what was charged before, and how often."""
    sigmas: Sequence[float]
    """The noise's standard deviation of every rank, not only of those here."""
    evaluation_sigmas: Sequence[float]
    """That of private evaluations; empty if there are none."""
    incarnation: int
    """How often the run was started, or regrouped, before."""
    made: Sequence[int]
    """How many of its planned releases every rank had made when the run went on."""
    meeting: Meeting
    fits: Fits
    """How many of the planned releases the budgets allow, known where results are written."""
    ledgers: list[Ledger] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self.plan.settings

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.plan.config

    @property
    def names(self) -> Sequence[int]:
        """The ranks by their first numbers."""
        return self.past.names

    @property
    def leads(self) -> bool:
        """Whether the first rank of a trust domain is in this process: it writes the domain's results."""
        return any(rank in self.meeting.leaders for rank in self.meter.ranks)

    @property
    def evaluate_every(self) -> int:
        """The rounds between two evaluations without noise; 0 for never."""
        evaluating = self.settings.evaluating
        if evaluating.kind != "open":
            return 0
        return evaluating.every or max(1, self.plan.rounds // 20)

    def verdict(self) -> Verdict | None:
        """Return what to expect of the run within its budgets."""
        return self.plan.verdict(self.fits.share(self.plan.records))

    @property
    def private(self) -> bool:
        """Whether the run promises anything: noise everywhere, from secret keys."""
        return self.config.insecure_noise_seed is None and all(sigma > 0 for sigma in self.sigmas)

    def planned(self, rank: int) -> list[tuple[ReleaseEvent, int]]:
        """Return the releases that a rank has still to make."""
        releases = self.plan.releases(self.plan.terms(rank), self.sigmas[rank])
        return list(later_releases(releases, self.made[rank]))

    def evaluations(self, rank: int) -> list[tuple[ReleaseEvent, int]]:
        """Return what a rank has still to release for private evaluations."""
        held_out = self.plan.held_out
        return [] if held_out is None else held_out.releases(rank, self.evaluation_sigmas[rank], self.past.round)

    def most_charged(self) -> dict[int, Mapping[ReleaseEvent, int]]:
        """Return the most that every rank can charge from the beginning of the run to its end, lost ones included."""
        found = self.past.lost
        for rank, name in enumerate(self.names):
            found[name] = Counter(self.known[rank].own) + tally(self.planned(rank)) + tally(self.evaluations(rank))
        return found

    def spending(self) -> dict[int, Counter[Any]]:
        """Return the charges of the ranks here for this run so far."""
        return {rank: self.spending_of(rank) for rank in self.meter.ranks}

    def spending_of(self, rank: int) -> Counter[Any]:
        """Return the charges of one of the ranks here."""
        found = Counter[Any](self.ledgers[list(self.meter.ranks).index(rank)].spending())
        found.update(self.accounts[rank].own)
        return found

    def traffic(self, rank: int) -> dict[int, Traffic]:
        """Return the traffic between `rank` and each of its peers, by their names, since the run began."""
        found = {self.names[peer]: traffic for peer, traffic in self.meter.traffic(rank).items()}
        if rank in self.past.snapshots:
            for name, before in self.past.snapshots[rank].traffic.items():
                found.setdefault(int(name), Traffic()).add(Traffic(**before))  # type: ignore[arg-type]
        return dict(sorted(found.items()))


def assemble(
    settings: Settings,
    transport: Transport,
    ledger_path: Callable[[int], Path],
    stack: ExitStack,
    *,
    past: Past | None = None,
    meeting: Meeting | None = None,
    ready: Callable[[Settings, str], None] = lambda settings, run: None,
) -> Job:
    """Load the data, calibrate the noise, build the agents; all processes call this together, and then `open_ledgers`.

    The ranks agree on everything as they do since they met. `ready` is called, on all of them, with the settings that
    `auto` is derived in and the name of the run, when nothing is left that could be refused and before anything is
    written.
    """
    past = past or Past.none(transport.size)
    if settings.config.ranks is not None and settings.config.ranks != past.origin:
        raise ConfigError(f"the configuration is for {settings.config.ranks} ranks, found {past.origin}")
    if len(past.names) != transport.size:
        raise ConfigError(f"the run goes on with its {len(past.names)} ranks, found {transport.size}: start as many")
    meeting = meeting or meet(transport, claim_of(settings, past), settings.messages.keys)
    transport, secrets = meeting.control, meeting.secrets
    schedule = settings.schedule(past.origin, past.names)
    shards, features, sizes = load_shards(settings.source, transport, past)
    settings = settings.with_task(sizes[0].declared).with_persons(most_records(settings.config, sizes))
    records, held_out = [one.records for one in sizes], [one.held_out for one in sizes]
    dimension = settings.dimension(features)
    done = on_all_ranks(transport, lambda: [past.progress(rank) for rank in transport.ranks])
    made = [releases for _, releases in done]
    active = [rounds for rounds, _ in done]
    plan = make_plan(settings, schedule, records, dimension, done=active, since=past.round, held_out=held_out)
    settings, config = plan.settings, plan.config
    plan.check()
    accounts, known = open_accounts(config, transport, ledger_path, shards, stack, past.names, past.run)
    spent = [Spent(one.own, count) for one, count in zip(known, made, strict=True)]
    sigmas = agreed_noise(plan, transport, meeting.leaders, spent)
    budgets = [one.budget for one in known]
    evaluation_sigmas = agreed_evaluation_noise(plan, transport, meeting.leaders, sigmas, budgets, spent, past.round)
    ahead = Ahead(sigmas, made, evaluation_sigmas, past.round)
    accounts, fits = set_allowances(plan, transport, meeting.leaders, accounts, known, ahead)
    run = past.run or _drawn_name(transport)
    incarnation = max(past.floor, *(account.starts for account in known))
    messages, meter, seats = settings.messages, Meter(transport), []
    carrier = messages.carrier(meter, secrets)

    def take_seats() -> None:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            key = rank_key(config.insecure_noise_seed, past.names[rank])
            problem = plan.problem(rank, shard.rows, shard.labels, key, shard.persons)
            mechanism = plan.mechanism(sigmas[rank], key, _pairs(plan, rank, secrets, past))
            agent = build_agent(plan, rank, key, problem, mechanism)
            tail = settings.noise.tail(plan, max([sigmas[rank], *evaluation_sigmas]))
            exchange = messages.exchange(
                carrier, rank, secrets, routes=plan.routes, tail=tail, seed=config.insecure_noise_seed
            )
            seat = Seat(agent, plan.method.start(agent), exchange)
            if rank in past.snapshots:
                snapshot, where = past.snapshots[rank], f"the checkpoint of rank {past.names[rank]}"
                check_snapshot_owner(snapshot, {"shard": shard.fingerprint}, where)
                restore(seat, snapshot)
                plan.method.resume(seat.state)
            seats.append(seat)

    fail_together(transport, take_seats)
    for widest in {max(sigmas), max([*sigmas, *evaluation_sigmas])}:  # evaluations share the room of rounds
        settings.noise.check_room(plan, widest)
    if plan.held_out is not None:  # raises for noise that a sum has no room for
        plan.held_out.noise.mechanism(max(evaluation_sigmas), bytes(32), plan.held_out.width, plan.ranks)
    ready(settings, run)
    engine = Engine(plan.method, schedule, carrier, seats, past.round)
    return Job(
        run=run,
        plan=plan,
        past=past,
        engine=engine,
        meter=meter,
        shards=shards,
        accounts=accounts,
        known=known,
        sigmas=sigmas,
        evaluation_sigmas=evaluation_sigmas,
        incarnation=incarnation,
        made=made,
        meeting=meeting,
        fits=fits,
    )


def _pairs(plan: Plan, rank: int, secrets: Secrets | None, past: Past) -> Pairs | None:
    """Return a rank among its neighbours, for noise that they share; None for other noise.

    The secrets are those of this start of the run: after a loss or a resume the noise is new.
    """
    if not isinstance(plan.settings.noise, PairNoise) or secrets is None:
        return None
    seed, names = plan.config.insecure_noise_seed, past.names
    near = plan.schedule.graph.neighbours(rank)
    found = {}
    for peer in near:
        low, high = sorted((names[rank], names[peer]))
        drawn = None if seed is None else rank_key(seed, (low + 1 << 32) + high)
        found[peer] = secrets.keys[rank][peer].purpose(b"pair noise").masks if drawn is None else drawn
    return Pairs(rank, near, found)


def claim_of(settings: Settings, past: Past) -> Claim:
    """Return what this process expects of all ranks before they begin."""
    config = settings.config
    how = f"{config.out is None} {config.ledger is None} {config.checkpoint_every} {config.on_failure}"
    secret, plugins = settings.messages.secret, " ".join(config.plugin_digest)
    return Claim(config.digest(), past.names, past.origin, past.run, secret, how, plugins=plugins)


def _drawn_name(transport: Transport) -> str:
    """Return a random name for the run, to which all ranks contribute: nobody chooses it."""
    parts = on_all_ranks(transport, lambda: [os.urandom(8).hex() for _ in transport.ranks])
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def build_agent(
    plan: Plan,
    rank: int,
    key: bytes,
    problem: Problem,
    mechanism: Mechanism,
    *,
    charges: Charges | None = None,
    make: Callable[..., Agent] = Agent,
) -> Agent:
    """Return a rank as its method sees it; `key` is its own, and without `charges` nothing can be charged yet."""
    told = plan.method.testifies and mechanism.sigma and plan.settings.noise.kind == "laplace"
    return make(
        rank=rank,
        share=plan.schedule.share,
        terms=plan.terms(rank),
        problem=problem,
        penalty=plan.settings.penalty,
        mechanism=mechanism,
        charges=charges or NotYet(),
        stream=PrivateStream(key, "weights"),
        witness=RealisedLosses() if told else None,
    )


class NotYet:
    """Charges of an agent whose ledger is not open: nothing can be released."""

    def charge(self, event: Event, round_: int) -> None:
        """Refuse."""
        raise LedgerError(f"no ledger is open for {event} in round {round_}")


def open_ledgers(job: Job, stack: ExitStack) -> None:
    """Open the ledgers of all agents, for the releases after those that were made; all processes call this together."""
    fail_together(job.meter, lambda: _open_ledgers(job, stack))


def _open_ledgers(job: Job, stack: ExitStack) -> None:
    config = job.config
    outside = "on: it reads the data without noise, outside of the guarantee"
    inside = "private: held-out rows, through releases that are charged to them alone"
    evaluation = outside if job.evaluate_every else "off" if job.plan.held_out is None else inside
    header = {
        "run": job.run,
        "dpmpi": __version__,
        "algorithm": config.algorithm,
        "config": config.digest(),
        "ranks": len(job.names),
        "incarnation": job.incarnation,
        "after_round": job.engine.completed,
        "private": job.private,
        "insecure_noise": config.insecure_noise_seed is not None,
        "evaluation": evaluation,
        "reference": outside if config.reference else "off",
        "delta": config.delta,
        "calibration": config.calibration if config.epsilon is not None else "noise given",
        "roster": roster_digest(job.settings.messages.keys),
        "timings": "shared: outside of the guarantee" if job.settings.shares_timings else "kept by each rank",
    }
    if job.past.lost:
        header["members"] = list(job.names)
        header["lost"] = [[name, to_list(charged)] for name, charged in job.past.lost.items()]
    for seat, shard in zip(job.engine.seats, job.shards, strict=True):
        rank, account = seat.agent.rank, job.accounts[seat.agent.rank]
        fields: dict[str, Any] = {"rank": job.names[rank], "sigma": job.sigmas[rank]}
        fields |= {"records": job.plan.records[rank], "budget": account.budget}
        if job.plan.held_out is not None:
            fields |= {"held_out": job.plan.held_out.rows[rank], "evaluation_sigma": job.evaluation_sigmas[rank]}
        key = make_key(account.path)
        if config.ledger is not None:
            fields |= {"shard": key.owner_mark(shard.identity), "filter_order": account.order}
            fields |= {} if job.plan.held_out is None else {"split": split_of(config, job.names[rank], shard)}
            remember_rows(account.path, key, shard)
        identity = None if job.meeting.secrets is None else job.meeting.secrets.identities.get(rank)
        sign = None if identity is None else identity.sign
        planned, allowance, lines = job.planned(rank), account.allowance, account.lines
        ledger = Ledger(
            account.path,
            header | fields,
            planned,
            allowance,
            lines,
            key=key,
            sign=sign,
            evaluations=account.evaluations,
        )
        seat.agent.charges = stack.enter_context(ledger)
        job.ledgers.append(ledger)


def agreed_noise(plan: Plan, transport: Transport, leaders: Sequence[int], spent: Sequence[Spent] = ()) -> list[float]:
    """Return the noise of every rank, as this rank itself computes it; raise `ConfigError` if another finds another.

    Repeatable noise stays what it was, so that a run which goes on ends as one that was never interrupted.
    """
    before = spent if plan.config.insecure_noise_seed is None and any(one.charged for one in spent) else ()
    return _agreed(transport, leaders, lambda: noise_levels(plan, before))


def agreed_evaluation_noise(
    plan: Plan,
    transport: Transport,
    leaders: Sequence[int],
    sigmas: Sequence[float],
    budgets: Sequence[float | None],
    spent: Sequence[Spent],
    after: int,
) -> list[float]:
    """Return the noise of every rank's private evaluations, as this rank itself computes it; empty without any."""
    if plan.held_out is None:
        return []
    before = spent if plan.config.insecure_noise_seed is None else ()
    return _agreed(transport, leaders, lambda: evaluation_levels(plan, sigmas, budgets, before, after=after))


def _agreed(transport: Transport, leaders: Sequence[int], find: Callable[[], list[float]]) -> list[float]:
    """Return the noise that this rank finds; raise `ConfigError` if another finds another."""
    sigmas: list[float] = in_each_domain(transport, leaders, find)
    for rank, theirs in enumerate(on_all_ranks(transport, lambda: [sigmas] * len(transport.ranks))):
        if theirs != sigmas:
            raise ConfigError(
                f"expected the noise that this rank computes from settings and public facts, found another on rank "
                f"{rank}: run the same versions of dpmpi, numpy and scipy on all hosts"
            )
    if any(sigma and not 1e-100 < sigma < 1e100 for sigma in sigmas):
        raise ConfigError(f"the noise must lie between 1e-100 and 1e100, got {min(sigmas):g} ... {max(sigmas):g}")
    return sigmas


class Sizes(NamedTuple):
    """The public facts of a rank's shard."""

    records: int
    """To train on."""
    dimension: int
    dense: bool
    held_out: int
    most: int
    """The most records of one person."""
    codebook: str
    """The digest of the codebook that it was coded by; empty if there was none."""
    task: dict[str, Any] | None
    """What its labels are, as `Task.to_dict` says it; None if it does not say."""

    @property
    def declared(self) -> Task | None:
        """What its labels are; None if it does not say."""
        return None if self.task is None else Task.from_dict(self.task)


def most_records(config: Config, sizes: Sequence[Sizes]) -> int:
    """Return the most records of one person in any shard; raise `ConfigError` if a shard may have more than declared.

    Persons of several records are known by what the shards say: nothing else holds out, or draws, all of them at once.
    """
    most, declared = max(one.most for one in sizes), config.person_records
    if declared is not None and (most > declared or most == 1 < declared):
        found = f"shards with up to {most}" if most > 1 else "shards that do not say whose their records are"
        raise ConfigError(
            f"expected at most --person-records {declared} records of a person, found {found}: code the tables with "
            f"[person] most = {declared}"
        )
    return declared or most


def load_shards(source: Source, transport: Transport, past: Past) -> tuple[list[Shard], int, list[Sizes]]:
    """Return the shards of the ranks in this process, the features that all share, and every rank's sizes."""

    def survey() -> dict[str, Any] | None:
        found = source.survey()
        return None if found is None else found.to_dict()

    told = None if past.shards is not None else on_first_rank(transport, survey)
    known = None if told is None else Survey.from_dict(told)
    shards: list[Shard] = []

    def load() -> list[Sizes]:
        if past.shards is not None:
            shards.extend(past.shards)
        else:
            # All ranks of one process may read a file together, if the source can.
            load_many = getattr(source, "load_many", None)
            mine, origin = [past.names[rank] for rank in transport.ranks], past.origin
            try:
                found = load_many(known, mine, origin) if load_many else (source.load(known, k, origin) for k in mine)
                shards.extend(found)
            except DataError as error:
                if error.public or not source.private or len(mine) == origin:  # alone, nobody else hears of it
                    raise
                say(f"dpmpi: {error}", sys.stderr)  # depends on the records: for this rank's own eyes
                raise DataError(f"rank {mine[0]} cannot use its shard, and says why on its own terminal") from error
        return [
            Sizes(rows.count, rows.dimension, isinstance(rows, Dense), tests.count, shard.most, digest, task)
            for shard in shards
            for rows, tests, digest in [(shard.rows, shard.test_rows, codebook_digest(shard.codebook))]
            for task in [None if shard.task is None else shard.task.to_dict()]
        ]

    sizes = [Sizes(*told) for told in on_all_ranks(transport, load)]
    dimension, coded = max(one.dimension for one in sizes), {one.codebook for one in sizes if one.codebook}
    if len(coded) > 1:
        raise DataError(
            f"expected shards coded by one codebook, found {len(coded)} ({', '.join(sorted(coded))}): agree on one and "
            "code the tables anew"
        )
    for rank, one in enumerate(sizes):
        if one.task != sizes[0].task:
            raise DataError(
                f"all ranks must declare the same labels: those of rank {rank} are other than those of rank 0; agree "
                "on one codebook, or on --task, --classes and --label-range"
            )
        if one.dense and one.dimension != dimension:
            raise DataError(
                f"all ranks must have the same features: rank {rank} has {one.dimension} columns, another has "
                f"{dimension}"
            )
    return [widen(shard, dimension) for shard in shards], dimension, sizes
