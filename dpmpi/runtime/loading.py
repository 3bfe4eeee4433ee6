"""The shards of a run: each rank reads its own, and all agree on what is public about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dpmpi.data import Shard, Source, Survey, widen
from dpmpi.errors import ConfigError, DataError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import on_all_ranks, on_first_rank
from dpmpi.problem.rows import Dense
from dpmpi.problem.task import Task
from dpmpi.runtime.config import Config
from dpmpi.runtime.job import Past
from dpmpi.runtime.output.console import say


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


@contextmanager
def said_at_home(source: Source, names: Sequence[int], origin: int) -> Iterator[None]:
    """Keep the words of a `DataError` about private records on the terminal of their rank; others hear of it only."""
    try:
        yield
    except DataError as error:
        if error.public or not source.private or len(names) == origin:  # alone, nobody else hears of it
            raise
        say(f"dpmpi: {error}", sys.stderr)
        raise DataError(f"rank {names[0]} cannot use its shard, and says why on its own terminal") from error


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
            with said_at_home(source, mine, origin):
                found = load_many(known, mine, origin) if load_many else (source.load(known, k, origin) for k in mine)
                shards.extend(found)
        return [
            Sizes(rows.count, rows.dimension, isinstance(rows, Dense), tests.count, shard.most, digest, task)
            for shard in shards
            for rows, tests, digest in [(shard.rows, shard.test_rows, _digest(shard))]
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


def _digest(shard: Shard) -> str:
    """Return the digest of the codebook that a shard carries, empty if it carries none."""
    if not shard.codebook:
        return ""
    from dpmpi.data.codebook import parse_codebook  # noqa: PLC0415 - most runs have none

    return parse_codebook(shard.codebook, "the codebook of the shard").digest
