"""Checkpoints: every rank's own state, on disk, and what it takes to go on from there.

    RUN/checkpoint/rank-003-400.state   what rank 3 had after round 400, for its owner alone (mode 0600)
    RUN/checkpoint/manifest.json        the last round that all ranks are known to have, of each trust domain

A file is written under a temporary name, fsynced and renamed, by a thread, while the rounds go on. The ranks tell each
other what they have by votes that travel with the rounds (votes.py), and nobody waits; only when all have a checkpoint
are older ones removed. So at any moment there is a round that all ranks have, and a crash costs the rounds since then:
at most one interval, unless a disk is slower than that.

What was released in these rounds is charged again when they are repeated, under fresh noise.
"""

from __future__ import annotations

import _thread
import json
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from dpmpi.core.files import write_file
from dpmpi.core.frozen import frozen
from dpmpi.errors import CheckpointError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import on_all_ranks
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.recovery.snapshot import Snapshot, from_bytes, to_bytes

LARGEST_FILE = 1 << 34
_NAME = re.compile(r"rank-(\d+)-(\d+)\.state")


@frozen
class Manifest:
    """Which run the checkpoints of a directory belong to, and the last round that all ranks are known to have."""

    run: str
    config: str
    origin: int
    """The ranks that the run began with."""
    members: tuple[int, ...]
    """Those that are left, by their first names: rank k of now is member k."""
    round: int


class Keeper:
    """Writes the checkpoints of the ranks in this process."""

    def __init__(
        self, directory: RunDirectory, transport: Transport, manifest: Manifest, *, leads: bool = True
    ) -> None:
        """Keep the checkpoints in `directory`; who `leads` a trust domain also keeps the domain's manifest."""
        self._folder = directory.path / "checkpoint"
        self._directory = directory
        self._transport = transport
        self._manifest = manifest
        self._leads = leads
        self._names = [manifest.members[rank] for rank in transport.ranks]
        self._files = {name: checkpoint_files(self._folder, name) for name in self._names}
        self._writing = _thread.allocate_lock()
        self._settled = manifest.round
        self.written = 0
        """The last round of which all ranks here have a checkpoint on disk, of those begun here."""

    def announce(self) -> None:
        """Write down whose checkpoints these are, and the last round that all ranks are known to have."""
        if self._leads:
            write_manifest(self._directory, self._manifest)

    def keep(self, snapshots: Sequence[Snapshot]) -> None:
        """Begin to write a checkpoint; all processes call this after the same round."""
        contents = [to_bytes(snapshot) for snapshot in snapshots]
        self._writing.acquire()  # when the one before is on disk
        # threading.Thread would wait until the thread runs, which takes milliseconds where ranks share a core.
        _thread.start_new_thread(self._write, (snapshots[0].round, contents))

    def settle(self, round_: int) -> None:
        """Take note that all ranks have the checkpoint of a round: older ones can go, when the next one is written."""
        self._settled = max(self._settled, round_)

    def finish(self) -> int:
        """Wait until the last checkpoint is on every rank's disk; return the last that all have, 0 if there is none."""
        self.join()
        self.settle(min(on_all_ranks(self._transport, lambda: [self.written] * len(self._names))))
        self._tidy()
        return self._settled

    def remove(self) -> None:
        """Remove all checkpoints of these ranks: the run has its result."""
        self.join()
        mine = [path for files in self._files.values() for path in files.values()]
        mine += [path for name in self._names for path in self._folder.glob(f".rank-{name:03d}-*.part")]  # of a crash
        if self._leads:
            lost = set(range(self._manifest.origin)) - set(self._manifest.members)
            mine += [path for name in lost for path in checkpoint_files(self._folder, name).values()]
            mine += [self._folder / "manifest.json", *self._folder.glob(".manifest.json.*.part")]
        for path in mine:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # another rank's is still there, or there never was one
            self._folder.rmdir()

    def join(self) -> None:
        """Wait until what was begun is on disk, or has failed."""
        with self._writing:
            pass

    def _write(self, round_: int, contents: Iterable[bytes]) -> None:
        try:
            for name, content in zip(self._names, contents, strict=True):
                path = self._files[name][round_] = self._folder / f"rank-{name:03d}-{round_}.state"
                write_file(path, content, private=True, durable=True)
            self.written = round_
            self._tidy()
        except OSError as error:
            reason = f"cannot write a checkpoint to {self._folder}: {error.strerror}"
            say(f"dpmpi: {reason}; the run goes on without it", sys.stderr)
        finally:
            self._writing.release()

    def _tidy(self) -> None:
        """Write down what all ranks have, and remove what is older."""
        if self._settled <= self._manifest.round:
            return
        self._manifest = replace(self._manifest, round=self._settled)
        self.announce()
        for files in self._files.values():
            for round_ in [older for older in files if older < self._manifest.round]:
                files.pop(round_).unlink(missing_ok=True)


def write_manifest(directory: RunDirectory, manifest: Manifest) -> None:
    """Write manifest.json."""
    text = json.dumps(asdict(manifest), indent=1) + "\n"
    write_file(directory.path / "checkpoint" / "manifest.json", text, private=True, durable=True)


def read_manifest(directory: RunDirectory) -> Manifest | None:
    """Return the manifest of a run directory; None if there is none."""
    path = directory.path / "checkpoint" / "manifest.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and "batch" in values:
            raise CheckpointError(
                f"expected checkpoints of this version in {path.parent}, found those of dpmpi 0.1: resume the run with "
                "that version, or start it again with --config"
            )
        if not isinstance(values, dict) or values.keys() != Manifest.__dataclass_fields__.keys():
            raise ValueError("entries that are not a manifest's")
        found = Manifest(**values | {"members": tuple(values["members"])})
        numbers = (found.origin, found.round, *found.members)
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 10**9 for n in numbers):
            raise ValueError("numbers out of range")
        if not all(isinstance(text, str) for text in (found.run, found.config)):
            raise ValueError("names that are not text")
        if not found.members or max(found.members) >= found.origin or list(found.members) != sorted({*found.members}):
            raise ValueError("members that are not ranks in order")
        bytes.fromhex(found.run)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be used ({error!s:.200}): it names the rounds that all ranks have"
        ) from error
    return found


def checkpoint_files(folder: Path, name: int) -> dict[int, Path]:
    """Return the checkpoints of a rank by their rounds."""
    found = {}
    for path in folder.glob(f"rank-{name:03d}-*.state"):
        if match := _NAME.fullmatch(path.name):
            found[int(match[2])] = path
    return found


def read_checkpoint(path: Path) -> Snapshot:
    """Return the snapshot in a file; raise `CheckpointError` for anything else."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CheckpointError(f"{path} is larger than any checkpoint")
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    return from_bytes(content, str(path))


def common_round(transport: Transport, directory: RunDirectory, names: Sequence[int], confirmed: int) -> int:
    """Return the last round of which every rank has a checkpoint that can be read; 0 if there is none.

    Raise `CheckpointError` if it is older than `confirmed`, which this rank knows that all had, or another rank knows.
    """

    def rounds(name: int) -> list[int]:
        good = []
        for round_, path in checkpoint_files(directory.path / "checkpoint", name).items():
            try:
                good.append(read_checkpoint(path).round)
            except CheckpointError as error:
                say(f"dpmpi: {error}", sys.stderr)
                continue
            if good[-1] != round_:
                good.pop()
        return sorted(good)

    told = on_all_ranks(transport, lambda: [[confirmed, rounds(names[rank])] for rank in transport.ranks])
    confirmed = max(known for known, _ in told)
    common = max(set.intersection(*(set(found) for _, found in told)), default=0)
    if common < confirmed:
        lacking = [str(names[rank]) for rank, (_, found) in enumerate(told) if confirmed not in found]
        raise CheckpointError(
            f"expected a checkpoint of round {confirmed} for every rank, found none for rank {', '.join(lacking)} in "
            f"{directory.path}: put it back where that rank starts (it is for its owner alone), or start a new run"
        )
    return common
