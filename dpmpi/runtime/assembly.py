"""From settings to agents in their seats, on whatever transport.

Everything that can fail on one rank alone runs inside `agreed`, so that all ranks learn of it and end together.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dpmpi import __version__
from dpmpi.core import Agent, Charges, Event, Mechanism, Problem
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import fail_together, in_each_domain, on_all_ranks
from dpmpi.network.handshake import Claim, Meeting, Secrets, meet, roster_digest
from dpmpi.network.transport.meter import Meter
from dpmpi.privacy.events import to_list
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.ledger_proofs import make_key
from dpmpi.privacy.random_weights import RealisedLosses
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.runtime.budget import Ahead, open_accounts, set_allowances, split_of
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.held_out import evaluation_levels
from dpmpi.runtime.job import Job, Past
from dpmpi.runtime.ledger_owner import remember_rows, remember_split, training_mark
from dpmpi.runtime.loading import load_shards, most_records, said_at_home
from dpmpi.runtime.noise import Pairs
from dpmpi.runtime.noise_levels import Spent, noise_levels
from dpmpi.runtime.plan import Plan, make_plan
from dpmpi.runtime.recovery.snapshot import check_snapshot_owner, restore
from dpmpi.runtime.settings import Settings


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
    active, made = [rounds for rounds, _ in done], [releases for _, releases in done]
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
            with said_at_home(settings.source, [past.names[one] for one in transport.ranks], past.origin):
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

    for widest in {max(sigmas), max([*sigmas, *evaluation_sigmas])}:  # evaluations share the room of rounds
        settings.noise.check_room(plan, widest)
    fail_together(transport, take_seats)
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
    if plan.settings.noise.place != "pairs" or secrets is None:
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
    """Return the settings and ranks that this process expects of all others before they begin."""
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
        "person_records": job.settings.noise.records,
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
            if job.plan.held_out is not None:
                fields |= {"split": split_of(config, job.names[rank], shard)}
                fields |= {"training": training_mark(account.path, shard)}
            remember_rows(account.path, key, shard)
        elif job.plan.held_out is not None:
            remember_split(account.path, shard)
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
    mine = hashlib.sha256(json.dumps(sigmas).encode()).hexdigest()  # of many ranks they are many
    for rank, theirs in enumerate(on_all_ranks(transport, lambda: [mine] * len(transport.ranks))):
        if theirs != mine:
            raise ConfigError(
                f"expected the noise that this rank computes from settings and public facts, found another on rank "
                f"{rank}: run the same versions of dpmpi, numpy and scipy on all hosts"
            )
    if any(sigma and not 1e-100 < sigma < 1e100 for sigma in sigmas):
        raise ConfigError(f"the noise must lie between 1e-100 and 1e100, got {min(sigmas):g} ... {max(sigmas):g}")
    return sigmas
