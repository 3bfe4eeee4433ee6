"""How a run goes on: after a restart from its checkpoints, or after a death among those who are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpmpi.errors import CheckpointError, ConfigError, CutOff, LedgerError, ProtocolError, RankLost
from dpmpi.network.channel import Transport, World
from dpmpi.network.collective import fail_together, on_all_ranks
from dpmpi.network.handshake import Meeting, meet, roster_digest
from dpmpi.privacy.events import ReleaseEvent, from_list, to_list
from dpmpi.privacy.ledger import check_run_proofs, has_line, recorded_runs
from dpmpi.runtime.assembly import claim_of
from dpmpi.runtime.budget import ledger_file, read_budget
from dpmpi.runtime.config import Config
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.job import Past
from dpmpi.runtime.noise import SumNoise
from dpmpi.runtime.output.directory import RunDirectory, settings_of_run
from dpmpi.runtime.recovery.checkpoint import checkpoint_files, common_round, read_checkpoint, read_manifest
from dpmpi.runtime.recovery.snapshot import Snapshot, check_snapshot_owner
from dpmpi.runtime.settings import Settings


def resume(world: Transport, path: Path, given: dict[str, Any]) -> tuple[Settings, Past, Meeting]:
    """Return the settings of a run that was interrupted, and what it brings with it; all processes call this together.

    Every rank takes the settings from its own copy, compares them with what its own ledger says that it began with, and
    goes on only with ranks that have found the same. `given` are flags that may say how to run, not what.
    """
    directory = RunDirectory(path)
    own: list[tuple[Settings, Past, int]] = []
    fail_together(world, lambda: own.append(_own_past(directory, given, world)))
    [(settings, past, confirmed)] = own
    meeting = meet(world, claim_of(settings, past), settings.messages.keys)
    transport, config, run = meeting.control, settings.config, past.run or ""
    charged = lost_charges(config, transport, directory, past.names, run)
    round_ = common_round(transport, directory, past.names, confirmed)
    snapshots: dict[int, Snapshot] = {}

    def load() -> list[Any]:
        for rank in transport.ranks if round_ else ():
            name = past.names[rank]
            file = checkpoint_files(path / "checkpoint", name)[round_]
            snapshots[rank] = found = read_checkpoint(file)
            check_snapshot_owner(found, {"run": run, "config": config.digest(), "rank": name}, str(file))
            ledger = ledger_file(config, directory.ledger, name)
            if not has_line(ledger, *found.facts["ledger"]):
                raise CheckpointError(f"{ledger} lacks what was charged before round {round_}: it is not this run's")
        return [None] * len(transport.ranks)

    on_all_ranks(transport, load)
    return settings, replace(past, round=round_, snapshots=snapshots, charged=charged), meeting


def _own_past(directory: RunDirectory, given: dict[str, Any], world: Transport) -> tuple[Settings, Past, int]:
    """Return a run's settings, its past and the last common round, as this process's own files have them."""
    path = directory.path
    if "out" in given:
        raise ConfigError(f"--resume goes on in {path} itself: leave out --out")
    if (path / "summary.json").exists():
        raise ConfigError(f"{path} is finished: there is nothing to resume, its results are in summary.json")
    text = settings_of_run(path)
    original = from_text(text, path / "config.toml", {name: given[name] for name in ("plugin",) if name in given})
    config = from_text(text, path / "config.toml", given | {"out": str(path)})
    if config.digest() != original.digest():
        raise ConfigError(f"--resume goes on with the settings of {path}: leave out flags that change what is computed")
    if config.ledger != original.ledger:
        raise ConfigError(f"--resume charges where {path} has charged before: leave out --ledger")
    manifest = read_manifest(directory)
    if manifest is None:
        past, confirmed = _from_the_beginning(config, world.size, directory), 0
    else:
        if manifest.config != config.digest():
            raise ConfigError(f"the checkpoints in {path} were made with other settings than its config.toml has")
        past, confirmed = Past(manifest.origin, manifest.members, manifest.run), manifest.round
    if len(past.names) != world.size:
        raise ConfigError(f"{path} has {len(past.names)} ranks, found {world.size}: start as many")
    settings = Settings.of(config)
    for rank in world.ranks:
        _check_own_ledger(settings, directory, past, past.names[rank])
    return settings, past, confirmed


def _check_own_ledger(settings: Settings, directory: RunDirectory, past: Past, name: int) -> None:
    """Raise `ConfigError` unless a rank's own ledger says that it began the run with these settings."""
    config = settings.config
    ledger = ledger_file(config, directory.ledger, name)
    header = last_header(ledger, "run", past.run or "")
    if header is None:
        raise ConfigError(
            f"expected what rank {name} has charged in {ledger}, found nothing of this run: copy it there from the "
            "host that it ran on; if the run ended before it began, start it again"
        )
    check_run_proofs(ledger, past.run or "")
    said: dict[str, tuple[str, Any]] = {
        "settings": ("config", config.digest()),
        "roster": ("roster", roster_digest(settings.messages.keys)),
    }
    if config.budget is not None:
        said["budget"] = ("budget", read_budget(config, name))
    for what, (key, value) in said.items():
        if header.get(key) != value:
            raise ConfigError(
                f"expected the {what} that rank {name} began with, as {ledger} says, found others in {directory.path}: "
                "put back what was changed"
            )


def _from_the_beginning(config: Config, size: int, directory: RunDirectory) -> Past:
    """Return the past of a run that has no checkpoint: none but its name, under which it has charged."""
    ledgers = [ledger_file(config, directory.ledger, rank) for rank in range(size)]
    found = [last_header(ledger, "config", config.digest()) for ledger in ledgers]
    mine = [header for header in found if header is not None]
    if not mine and config.ledger is None and any(ledger.exists() for ledger in ledgers):
        raise ConfigError(
            f"expected the settings that the ledgers in {directory.path} began with, found others in config.toml: put "
            "back what was changed"
        )
    if not mine:
        raise ConfigError(f"{directory.path} ended before it began: start it again with --config and --out")
    try:
        last = max(mine, key=lambda header: int(header["incarnation"]))  # a rank that was lost has an older one
        members = tuple(int(name) for name in last.get("members") or range(last["ranks"]))
        return Past(len(members) + len(last.get("lost", [])), members, str(last["run"]))
    except (LookupError, TypeError, ValueError) as error:
        raise LedgerError(f"the ledgers in {directory.path} are not a run's: {error!r:.80}") from error


def lost_charges(
    config: Config, transport: Transport, directory: RunDirectory, names: Sequence[int], run: str
) -> dict[int, Counter[ReleaseEvent]]:
    """Return the most that ranks which were lost before can have charged, as the others' ledgers say."""

    def look() -> list[Any]:
        found = []
        for rank in transport.ranks:
            ledger = ledger_file(config, directory.ledger, names[rank])
            mine = last_header(ledger, "run", run) or {}
            lost = mine.get("lost", [])
            try:
                found.append([[int(name), to_list(from_list(charged))] for name, charged in lost])
            except (TypeError, ValueError, AttributeError) as error:
                raise LedgerError(f"{ledger}: not what was charged by ranks that were lost: {error!r:.80}") from error
        return found

    told = on_all_ranks(transport, look)
    longest = max(told, key=len)  # a rank that was killed while the others regrouped knows of fewer
    for rank, found in enumerate(told):
        if len(found) == len(longest) and found != longest:
            raise LedgerError(
                f"expected the same charges of lost ranks in all ledgers, found others on rank {names[rank]} than on "
                f"rank {names[told.index(longest)]}: put back what was changed"
            )
    return {name: from_list(charged) for name, charged in longest}


def last_header(ledger: Path, key: str, value: str) -> dict[str, Any] | None:
    """Return the last header of a ledger with this entry; None if there is none, or no ledger."""
    headers = [header for header, _, _ in recorded_runs(ledger)] if ledger.exists() else []
    return next((header for header in reversed(headers) if header.get(key) == value), None)


def regroup(
    settings: Settings, before: Past, kept: Sequence[Snapshot], transport: World
) -> tuple[World, Meeting, Past] | None:
    """Return a transport among the survivors that can reach each other, and the past that they bring with them.

    None for a rank that cannot be reached by the largest group. `before` says who they were, `kept` are this rank's
    snapshots. The ranks go back to the last round of which all have one; what they released since then is charged, and
    is charged again when it is repeated.
    """
    living, still = transport.shrink()
    left, size = still, len(before.names)
    while True:
        if not quorate(still, size):
            raise CutOff(
                f"{len(left)} of {size} ranks can still reach each other, too few to go on: the others may, or resume "
                "the run"
            )
        size = len(left)
        try:
            names = [before.names[k] for k in left]
            group = settings.graph(before.origin).induced(names).largest_component()
            if len(group) < len(names):
                chosen = living.among(group)
                if chosen is None:
                    return None
                living, left, size = chosen, [left[k] for k in group], len(group)
            after = replace(before, names=tuple(before.names[k] for k in left))
            check_crowd(settings, after)
            meeting = meet(living, claim_of(settings, after), settings.messages.keys)
            return living, meeting, _common_past(after, kept, meeting.control)
        except RankLost:  # another one, meanwhile
            living, still = living.shrink()
            left = [left[k] for k in still]


def fewest_ranks(settings: Settings, origin: int) -> int:
    """Return how many of the ranks that a run began with must be left: with noise in the sum all but the colluders.

    Colluders may leave to learn what the others' sum is without theirs. The parties agreed to hide among n - c honest
    ranks, and a run does not go on among fewer ranks than that.
    """
    return origin - settings.noise.colluders if isinstance(settings.noise, SumNoise) else 1


def check_crowd(settings: Settings, after: Past) -> None:
    """Raise `ProtocolError` on all survivors if they are too few for noise in their sum."""
    fewest = fewest_ranks(settings, after.origin)
    if len(after.names) < fewest:
        raise ProtocolError(
            f"expected at least {fewest} of {after.origin} ranks to go on with noise in the sum, found "
            f"{len(after.names)}: start again, or with more --colluders, who may also be lost"
        )


def quorate(left: Sequence[int], size: int) -> bool:
    """Return whether the survivors may go on: more than half, or half with the first rank.

    A cut network leaves two groups that take each other for dead. Both going on would spend twice and write one result.
    """
    return 2 * len(left) > size or (2 * len(left) == size and 0 in left)


def _common_past(after: Past, kept: Sequence[Snapshot], living: Transport) -> Past:
    """Agree on the last round of which all who live have a snapshot; return what this one brings with it."""
    rounds = [one.round for one in kept] or [0]  # without a snapshot it has not begun
    told = on_all_ranks(living, lambda: [[after.floor, rounds]])
    common = set.intersection(*(set(found) for _, found in told))
    if not common:
        raise CheckpointError("the ranks that are left have no round in common: resume the run from its checkpoint")
    found = next((one for one in kept if one.round == max(common)), None)
    floor = max(floor for floor, _ in told) + 1
    snapshots = {} if found is None else {living.ranks[0]: found}
    return replace(after, round=max(common), snapshots=snapshots, floor=floor)
