"""All that an agent carries over a round, as values that can be kept, written and taken up again.

A snapshot holds the method's state, what the agent has counted, and what went over the wire. The positions of random
streams are in it only if the noise is repeatable anyway (--insecure-noise-seed): a secret stream is never written down
and never used twice, so whoever goes on draws fresh noise.

As bytes, a snapshot is a line of JSON with the SHA-256 of the rest, a line with everything but the arrays, and then the
arrays, one after the other. Whatever cannot be read as that raises `CheckpointError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Draws
from dpmpi.core.frozen import frozen
from dpmpi.errors import CheckpointError, shown
from dpmpi.privacy.random_weights import RealisedLosses
from dpmpi.runtime.engine import Seat

FORMAT = 1
TYPES = ("<f8", "<i8")
"""The numbers that a state may consist of."""


@frozen
class Snapshot:
    """One agent after a round. `facts` is JSON-ready and says which run, rank and shard it belongs to."""

    round: int
    arrays: Mapping[str, NDArray[Any]]
    numbers: Mapping[str, Any]
    agent: Mapping[str, Any]
    losses: Sequence[Sequence[float]] | None = None
    streams: Sequence[Sequence[int]] | None = None
    traffic: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By the peers' names."""
    facts: Mapping[str, Any] = field(default_factory=dict)


def capture(seat: Seat, round_: int, *, repeatable: bool, **more: Any) -> Snapshot:
    """Return a snapshot of an agent after `round_`; `more` are fields that the agent does not know."""
    agent, arrays, numbers = seat.agent, {}, {}
    for f in dataclasses.fields(seat.state):
        value = getattr(seat.state, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = value.copy()
        else:
            numbers[f.name] = value
    told = {name: getattr(agent, name) for name in ("active_rounds", "releases", "stopped", "admitted")}
    witness = agent.witness
    losses = [witness.losses[:], witness.largest[:]] if isinstance(witness, RealisedLosses) else None
    streams = [stream.position for stream in _streams(seat)] if repeatable else None
    return Snapshot(round_, arrays, numbers, told, losses, streams, **more)


def restore(seat: Seat, snapshot: Snapshot) -> None:
    """Put an agent where the snapshot was taken; raise `CheckpointError` for the snapshot of another kind of agent."""
    agent, state = seat.agent, seat.state
    names = {f.name for f in dataclasses.fields(state)}
    if names != {*snapshot.arrays, *snapshot.numbers}:
        raise CheckpointError(f"expected a state of {sorted(names)}, found another method's")
    for name, array in snapshot.arrays.items():
        mine = getattr(state, name)
        if not isinstance(mine, np.ndarray) or mine.shape != array.shape or mine.dtype != array.dtype:
            raise CheckpointError(f"expected the array {name} of this run's size and type, found another one")
        np.copyto(mine, array)
    for name, number in snapshot.numbers.items():
        if isinstance(getattr(state, name), np.ndarray):
            raise CheckpointError(f"expected the array {name}, found a number")
        setattr(state, name, number)
    for name, value in snapshot.agent.items():
        setattr(agent, name, value)
    agent.round = snapshot.round
    if isinstance(agent.witness, RealisedLosses) and snapshot.losses is not None:
        agent.witness.losses, agent.witness.largest = (list(values) for values in snapshot.losses)
    if snapshot.streams is not None:
        for stream, position in zip(_streams(seat), snapshot.streams, strict=True):
            stream.seek(position)


def _streams(seat: Seat) -> list[Draws]:
    agent = seat.agent
    return [*agent.mechanism.streams(), agent.stream, agent.problem.stream]


def to_bytes(snapshot: Snapshot) -> bytes:
    """Return the snapshot as a file's content."""
    kinds = {name: [array.dtype.str, list(array.shape)] for name, array in snapshot.arrays.items()}
    fields = {f.name: getattr(snapshot, f.name) for f in dataclasses.fields(Snapshot) if f.name != "arrays"}
    pieces: list[bytes | memoryview] = [json.dumps(fields | {"arrays": kinds}).encode(), b"\n"]
    pieces += [np.ascontiguousarray(array).data.cast("B") for array in snapshot.arrays.values() if array.size]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return b"".join((json.dumps({"dpmpi": FORMAT, "sha256": digest.hexdigest()}).encode(), b"\n", *pieces))


def from_bytes(content: bytes, where: str) -> Snapshot:
    """Return the snapshot that a file holds; raise `CheckpointError` if it is damaged or something else."""
    try:
        first, rest = content.split(b"\n", 1)
        seal = json.loads(first)
        if seal["dpmpi"] != FORMAT or seal["sha256"] != hashlib.sha256(rest).hexdigest():
            raise ValueError("its hash is another one")
        text, body = rest.split(b"\n", 1)
        fields = json.loads(text)
        kinds, arrays, at = fields.pop("arrays"), {}, 0
        for name, (kind, shape) in kinds.items():
            if kind not in TYPES:
                raise ValueError(f"numbers of type {kind}")
            length = math.prod(shape) * 8
            arrays[name] = np.frombuffer(body[at : at + length], kind).reshape(shape).copy()
            at += length
        if at != len(body):
            raise ValueError("more than its arrays")
        found = Snapshot(arrays=arrays, **fields)
        if not _makes_sense(found):
            raise ValueError("fields that cannot be")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError) as error:
        why = shown(str(error))
        raise CheckpointError(
            f"{where} is damaged or no checkpoint ({why}): remove it, and the run goes on from the one before"
        ) from error


def check_snapshot_owner(snapshot: Snapshot, expected: dict[str, Any], where: str) -> None:
    """Raise `CheckpointError` unless the snapshot's facts are the expected ones."""
    reasons = {
        "run": "it is of another run",
        "config": "the settings are not those it was made with",
        "rank": "it is another rank's",
        "shard": "the rank's rows are not those it was made with",
    }
    for name, value in expected.items():
        if snapshot.facts.get(name) != value:
            raise CheckpointError(f"{where} cannot be used: {reasons.get(name, name)}")


def _makes_sense(found: Snapshot) -> bool:
    """Return whether everything but the arrays has the types that `restore` takes for granted."""
    agent, losses, streams, traffic = found.agent, found.losses, found.streams, found.traffic
    if not all(isinstance(table, dict) for table in (found.numbers, agent, traffic, found.facts)):
        return False
    stopped = agent.get("stopped")
    return (
        _natural(found.round)
        and all(isinstance(number, int | float) for number in found.numbers.values())
        and set(agent) == {"active_rounds", "releases", "stopped", "admitted"}
        and _natural(agent["active_rounds"])
        and _natural(agent["releases"])
        and (stopped is None or _natural(stopped))
        and isinstance(agent["admitted"], bool)
        and (losses is None or (len(losses) == 2 and all(_numbers(row) for row in losses)))
        and (streams is None or all(len(row) == 4 and all(map(_natural, row)) for row in streams))
        and all(name.isdecimal() and isinstance(kinds, dict) for name, kinds in traffic.items())
        and all(_numbers(kinds.values()) for kinds in traffic.values())
    )


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _numbers(values: Iterable[object]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
