"""One process's part of a run, from its settings to its exit code, over all the starts that failures make of it.

The command line comes here by `train`, a Python program by `begin` and `carry_out` (`dpmpi/api`).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeAlias

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, CutOff, DpmpiError, RankLost
from dpmpi.network.channel import Transport, World
from dpmpi.network.collective import fail_together, on_first_rank
from dpmpi.network.handshake import Meeting, meet
from dpmpi.network.launcher import announcers, launched_as
from dpmpi.network.transport import open_transport
from dpmpi.runtime.assembly import assemble, claim_of, open_ledgers
from dpmpi.runtime.config import Config
from dpmpi.runtime.failure import Place, end_run, leave_the_others, refuse_unstarted
from dpmpi.runtime.flags import flags_of, from_values
from dpmpi.runtime.job import Job, Past
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.output.progress import Listener
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.signals import Signals
from dpmpi.runtime.trainer import Trainer

_NAME = re.compile(r"[a-z0-9-]{1,60}-\d{8}-\d{6}(-\d{1,9})?")

Wrap: TypeAlias = Callable[[World], World]
"""Puts a transport around the one that a run opens."""
Attend: TypeAlias = Callable[[Job], None]
"""Sees a job before it trains."""


@frozen
class Caller:
    """What whoever starts a run adds to it."""

    attend: Attend | None = None
    listen: Listener | None = None
    bar: bool = False
    end: Callable[..., int] = end_run
    """What is done when the run fails, see `end_run`."""


COMMAND_LINE = Caller()


@frozen
class Start:
    """A run that all ranks have agreed to begin, or to go on with."""

    settings: Settings
    past: Past
    meeting: Meeting
    directory: RunDirectory


def train(argv: Sequence[str], signals: Signals, wrap: Wrap | None = None, attend: Attend | None = None) -> int:
    """Train as the flags say; return the exit code."""
    rank, size = launched_as(os.environ)
    try:
        given = flags_of(argv)
        path = given.pop("resume", None)
        # Of a run that goes on, only how to start is known before its own settings are read.
        how = {name: given[name] for name in ("deadline", "loopback") if name in given}
        config = from_values({**given}) if path is None else Config(**how)
        if config.loopback is not None and size > 1:
            raise ConfigError(f"--loopback runs all agents in one process, found {size}: start it without mpirun")
        world = open_transport(config.loopback, config.deadline)
    except DpmpiError as error:
        return refuse_unstarted(error, rank)
    world = world if wrap is None else wrap(world)
    caller = Caller(attend)
    try:
        signals.end_runs()
        ready = begin(world, config) if path is None else go_on(world, Path(path), given)
    except BaseException as error:
        return end_run(world, error, place_of(world, "while starting"))
    if world.size == 1 and path is None and not announcers(os.environ):
        _say_alone(config)
    if not ready.settings.checkpoints.never:
        signals.stop_runs()
    return carry_out(world, ready, signals, caller)


def _say_alone(config: Config) -> None:
    """Say that one process without a launcher is a run of one rank, unless that was asked for."""
    if config.loopback is None and not config.quiet and not config.log_json:
        how = "dpmpi run -n 20 starts 20 ranks, --loopback 20 runs as many in this process"
        say(f"training alone, 1 rank without neighbours: {how}", sys.stderr)


def begin(world: World, config: Config) -> Start:
    """Let the ranks meet, and agree on these settings and a run directory."""
    settings, past = Settings.of(config), Past.none(world.size)
    meeting = meet(world, claim_of(settings, past), settings.messages.keys)
    return Start(settings, past, meeting, name_directory(config, meeting.control))


def go_on(world: World, path: Path, given: dict[str, Any]) -> Start:
    """Let the ranks of a run that was interrupted meet, see `resume`."""
    from dpmpi.runtime.recovery.resume import resume  # noqa: PLC0415 - few runs go on

    return Start(*resume(world, path, given), RunDirectory(path))


def carry_out(world: World, start: Start, signals: Signals, caller: Caller = COMMAND_LINE) -> int:
    """Run to the end, over the deaths of ranks; return the exit code."""
    settings, past, meeting, directory = start.settings, start.past, start.meeting, start.directory
    while True:
        again = run_once(settings, world, meeting, directory, past, signals, caller)
        if isinstance(again, int):
            return again
        settings, world, meeting, past = again


def run_once(
    settings: Settings,
    world: World,
    meeting: Meeting,
    directory: RunDirectory,
    past: Past,
    signals: Signals,
    caller: Caller = COMMAND_LINE,
) -> int | tuple[Settings, World, Meeting, Past]:
    """Run a job to its end and return the exit code; or return how, with whom and from where to go on after a death.

    What `auto` became stays: it is in config.toml and in the ledgers, whoever is left. Nobody has released anything
    before all ranks have come to open their ledgers; from there on, those who survive a death can go on.
    """
    trainer: Trainer | None = None
    begun = False

    def ready(resolved: Settings, run: str) -> None:
        if past.goes_on:
            forget_end(directory, meeting)
        else:
            create(directory, resolved.config, run, meeting)

    with ExitStack() as stack:
        try:
            job = assemble(settings, world, directory.ledger, stack, past=past, meeting=meeting, ready=ready)
            settings = job.settings
            trainer = Trainer(job, directory, lambda: signals.told_to_stop, caller.listen, caller.bar)
            open_ledgers(job, stack)
            begun = True
            if caller.attend is not None:
                caller.attend(job)
            world.on_slow = _report_slow(job.names, world.ranks[0], directory)
            if len(past.names) < past.origin:
                job.engine.regroup()
            code = trainer.run()
            if not world.agree_to_end():
                raise RankLost("a rank has died while all ended")
            return code
        except BaseException as error:
            # Else nothing was released since the start: start, or resume, it again.
            at_hand = trainer is not None or past.shards is not None
            if isinstance(error, RankLost) and at_hand and settings.config.on_failure == "shrink":
                found = go_on_without_the_dead(settings, trainer, past, world, directory, caller)
                return found if isinstance(found, int) else (settings, *found)
            public = _are_public(settings)
            if trainer is None or not begun:
                return caller.end(world, error, place_of(world, "while starting", public=public))
            engine = trainer.job.engine
            agents = [seat.agent for seat in engine.seats] if engine.failed is None else [engine.failed]
            place = place_of(world, f"round {max(one.round for one in agents)}", begun=True, public=public)
            if engine.failed is not None:
                place = replace(place, rank=engine.failed.rank)
            return caller.end(world, error, place, directory, past.names)


def _are_public(settings: Settings) -> bool:
    """Return whether the records are; those of a source that does not exist are none."""
    with suppress(ConfigError):
        return not settings.source.private
    return True


def go_on_without_the_dead(
    settings: Settings,
    trainer: Trainer | None,
    past: Past,
    world: World,
    directory: RunDirectory,
    caller: Caller = COMMAND_LINE,
) -> int | tuple[World, Meeting, Past]:
    """Return the survivors' transport, as they met, and past; or 0, for a rank that the others cannot reach any more.

    Before a trainer has begun, there is what the run brought with it.
    """
    from dpmpi.runtime.recovery.resume import regroup  # noqa: PLC0415 - few runs lose a rank

    kept = list(past.snapshots.values())
    if trainer is not None:
        job = trainer.job
        kept += [one for one in trainer.kept[world.ranks[0]] if one.round not in [other.round for other in kept]]
        past = replace(
            past, run=job.run, shards=job.shards, floor=job.incarnation, charged=job.most_charged(), snapshots={}
        )
    try:
        found = regroup(settings, past, kept, world)
    except CutOff as error:  # the run is the others' now: neither end it nor write to its directory
        leave_the_others(error, past.names[world.ranks[0]])
    except BaseException as error:
        place = place_of(world, "after a rank was lost", begun=True)
        return caller.end(world, error, replace(place, others_know=True), directory)
    if found is None:
        return 0
    survivors, meeting, ahead = found
    lost = sorted(set(past.names) - set(ahead.names))
    if trainer is None:  # while they assembled: the lost may have begun to repeat what they had planned before
        twice = {name: Counter(past.charged[name]) + Counter(past.charged[name]) for name in lost}
        ahead = replace(ahead, charged={**ahead.charged, **twice})
    if 0 in survivors.ranks:
        who, left = ", ".join(map(str, lost)), len(ahead.names)
        say(f"dpmpi: lost rank {who}; {left} ranks go on after round {ahead.round}", sys.stderr)
    return survivors, meeting, ahead


def place_of(world: World, when: str, *, begun: bool = False, public: bool = False) -> Place:
    """Return where a run was when it ended."""
    return Place(when, begun, world.tolerant, alone=len(world.ranks) == 1, public=public)


def name_directory(config: Config, control: Transport) -> RunDirectory:
    """Return the run directory, not made yet: the one that was given, or one of a name that all ranks have."""
    if config.out is not None:
        return RunDirectory(Path(config.out))
    name: str = on_first_rank(control, lambda: _new_name(f"{config.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"))
    if not _NAME.fullmatch(name):  # nobody else chooses where this rank writes
        raise ConfigError(f"expected a name for the run directory from rank 0, found {name!r:.80}: give --out")
    return RunDirectory(Path("runs") / name)


def _new_name(name: str) -> str:
    """Return the name, with a number after it if there is a run of that name: programs start several in a second."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(name for name in names if not (Path("runs") / name).exists())


def forget_end(directory: RunDirectory, meeting: Meeting) -> None:
    """Make sure, on the first rank of each trust domain, that nobody reads an end that was none."""
    if any(rank in meeting.leaders for rank in meeting.control.ranks):
        stale = [directory.path / "ended.txt", directory.path / "slow.txt"]
        for path in (*stale, *(directory.path / "stall").glob("*.json")):
            path.unlink(missing_ok=True)


def create(directory: RunDirectory, config: Config, run: str, meeting: Meeting) -> None:
    """Make the run directory, on the first rank of each trust domain; on that of the run first, as disks are shared."""

    def make(leaders: Sequence[int]) -> None:
        if any(rank in leaders for rank in meeting.control.ranks):
            kept = directory.create(run)
            if kept is not None:
                say(f"{directory.path} was there: kept as {kept}", sys.stderr)
            directory.write_text("config.toml", config.to_toml())

    fail_together(meeting.control, lambda: make(meeting.leaders[:1]))
    if len(meeting.leaders) > 1:
        fail_together(meeting.control, lambda: make(meeting.leaders[1:]))


def _report_slow(names: Sequence[int], rank: int, directory: RunDirectory) -> Callable[[int, Any, float], None]:
    """Return a callback that reports a slow neighbour once per run."""

    def report(round_: int, missing: tuple[int, ...], seconds: float) -> None:
        with suppress(OSError):  # another rank has said so
            (directory.path / "slow.txt").open("x").close()
            who = ", ".join(str(names[peer]) for peer in missing) or "(own sends)"
            say(f"dpmpi: rank {names[rank]} has waited {seconds:.3g} s for rank {who} in round {round_}", sys.stderr)

    return report
