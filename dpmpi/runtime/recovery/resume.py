"""How a run goes on: after a restart from its checkpoints, or after a death among those who are left."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpmpi.errors import CheckpointError, ConfigError, CutOff, LedgerError, RankLost
from dpmpi.network.channel import Transport, World
from dpmpi.network.collective import on_all_ranks, on_first_rank
from dpmpi.privacy.events import ReleaseEvent, from_list, to_list
from dpmpi.privacy.ledger import has_line, recorded_runs
from dpmpi.runtime.assembly import Past
from dpmpi.runtime.budget import ledger_file
from dpmpi.runtime.config import Config
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.recovery.checkpoint import (
    Manifest,
    check_snapshot_owner,
    checkpoint_files,
    common_round,
    read_checkpoint,
    read_manifest,
)
from dpmpi.runtime.recovery.snapshot import Snapshot
from dpmpi.runtime.settings import Settings


def resume(transport: Transport, path: Path, given: dict[str, Any]) -> tuple[Settings, Past]:
    """Return the settings of a run that was interrupted, and what it brings with it; all processes call this together.

    The first rank's copy of the settings counts, so that the others need not see its disk. `given` are flags that may
    say how to run, not what.
    """
    directory = RunDirectory(path)
    if "out" in given:
        raise ConfigError(f"--resume goes on in {path} itself: leave out --out")

    def look() -> list[Any]:
        if (path / "summary.json").exists():
            raise ConfigError(f"{path} is finished: there is nothing to resume, its results are in summary.json")
        try:
            text = (path / "config.toml").read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"--resume takes the directory of a run, found none at {path}: {error}") from error
        manifest = read_manifest(directory)
        return [text, None if manifest is None else dataclasses.asdict(manifest)]

    text, told = on_first_rank(transport, look)
    original = from_text(text, path / "config.toml", {})
    config = from_text(text, path / "config.toml", given | {"out": str(path)})
    if config.digest() != original.digest():
        raise ConfigError(f"--resume goes on with the settings of {path}: leave out flags that change what is computed")
    if config.ledger != original.ledger:
        raise ConfigError(f"--resume charges where {path} has charged before: leave out --ledger")
    if told is None:
        return Settings.of(config), _from_the_beginning(config, transport, directory)
    manifest = Manifest(**told | {"members": tuple(told["members"])})
    if manifest.config != config.digest():
        raise ConfigError(f"the checkpoints in {path} were made with other settings than its config.toml has")
    if len(manifest.members) != transport.size:
        raise ConfigError(f"{path} has {len(manifest.members)} ranks, found {transport.size}: start as many")
    round_ = common_round(transport, directory, manifest.members, manifest.round)
    snapshots: dict[int, Snapshot] = {}

    charged = lost_charges(config, transport, directory, manifest.members, manifest.run)

    def load() -> list[Any]:
        for rank in transport.ranks if round_ else ():
            name = manifest.members[rank]
            file = checkpoint_files(path / "checkpoint", name)[round_]
            snapshots[rank] = found = read_checkpoint(file)
            check_snapshot_owner(found, {"run": manifest.run, "config": manifest.config, "rank": name}, str(file))
            ledger = ledger_file(config, directory.ledger, name)
            if not has_line(ledger, *found.facts["ledger"]):
                raise CheckpointError(f"{ledger} lacks what was charged before round {round_}: it is not this run's")
        return [None] * len(transport.ranks)

    on_all_ranks(transport, load)
    past = Past(manifest.origin, manifest.members, manifest.run, round_, snapshots, charged=charged)
    return Settings.of(config), past


def _from_the_beginning(config: Config, transport: Transport, directory: RunDirectory) -> Past:
    """Return the past of a run that has no checkpoint: none but its name, under which it has charged."""

    def named() -> tuple[str, int, list[int]]:
        ledgers = (ledger_file(config, directory.ledger, rank) for rank in range(transport.size))
        found = [last_header(ledger, "config", config.digest()) for ledger in ledgers]
        mine = [header for header in found if header is not None]
        if not mine:
            raise ConfigError(f"{directory.path} ended before it began: start it again with --config and --out")
        try:
            last = max(mine, key=lambda header: int(header["incarnation"]))  # a rank that was lost has an older one
            members = [int(name) for name in last.get("members") or range(last["ranks"])]
            return str(last["run"]), len(members) + len(last.get("lost", [])), members
        except (LookupError, TypeError, ValueError) as error:
            raise LedgerError(f"the ledgers in {directory.path} are not a run's: {error!r:.80}") from error

    run, origin, members = on_first_rank(transport, named)
    if len(members) != transport.size:
        raise ConfigError(f"{directory.path} has {len(members)} ranks, found {transport.size}: start as many")
    charged = lost_charges(config, transport, directory, members, run)
    return Past(origin, tuple(members), run, charged=charged)


def lost_charges(
    config: Config, transport: Transport, directory: RunDirectory, names: Sequence[int], run: str
) -> dict[int, Counter[ReleaseEvent]]:
    """Return the most that ranks which were lost before can have charged, as the others' ledgers say.

    Raise `ConfigError` if a rank has no ledger of the run: what it has charged itself would be forgotten.
    """

    def look() -> list[Any]:
        found = []
        for rank in transport.ranks:
            ledger = ledger_file(config, directory.ledger, names[rank])
            mine = last_header(ledger, "run", run)
            if mine is None:
                raise ConfigError(
                    f"expected what rank {names[rank]} has charged in {ledger}, found nothing of this run: copy it "
                    "there from the host that it ran on; if the run ended before it began, start it again"
                )
            lost = mine.get("lost", [])
            try:
                found.append([[int(name), to_list(from_list(charged))] for name, charged in lost])
            except (TypeError, ValueError, AttributeError) as error:
                raise LedgerError(f"{ledger}: not what was charged by ranks that were lost: {error!r:.80}") from error
        return found

    told = on_all_ranks(transport, look)
    return {name: from_list(charged) for name, charged in max(told, key=len)}


def last_header(ledger: Path, key: str, value: str) -> dict[str, Any] | None:
    """Return the last header of a ledger with this entry; None if there is none, or no ledger."""
    headers = [header for header, _, _ in recorded_runs(ledger)] if ledger.exists() else []
    return next((header for header in reversed(headers) if header.get(key) == value), None)


def regroup(settings: Settings, before: Past, kept: Sequence[Snapshot], transport: World) -> tuple[World, Past] | None:
    """Return a transport among those who are left and can reach each other, and what they bring with them.

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
            return living, _common_past(before, kept, living, left)
        except RankLost:  # another one, meanwhile
            living, still = living.shrink()
            left = [left[k] for k in still]


def quorate(left: Sequence[int], size: int) -> bool:
    """Return whether those who are left may go on: more than half, or half with the first rank.

    A cut network leaves two groups that take each other for dead. Both going on would spend twice and write one result.
    """
    return 2 * len(left) > size or (2 * len(left) == size and 0 in left)


def _common_past(before: Past, kept: Sequence[Snapshot], living: World, left: Sequence[int]) -> Past:
    """Agree on the last round of which all who live have a snapshot; return what this one brings with it."""
    rounds = [one.round for one in kept] or [0]  # without a snapshot it has not begun
    told = on_all_ranks(living, lambda: [[before.floor, rounds]])
    common = set.intersection(*(set(found) for _, found in told))
    if not common:
        raise CheckpointError("the ranks that are left have no round in common: resume the run from its checkpoint")
    found = next((one for one in kept if one.round == max(common)), None)
    names = tuple(before.names[k] for k in left)
    floor = max(floor for floor, _ in told) + 1
    snapshots = {} if found is None else {living.ranks[0]: found}
    return replace(before, names=names, round=max(common), snapshots=snapshots, floor=floor)
