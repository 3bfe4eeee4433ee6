"""Describe raw tables privately: `python -m dpmpi data describe`, alone, in one process, or under mpirun."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from dpmpi.core.files import read_text, write_file
from dpmpi.data.description import Schema, figures, read_schema
from dpmpi.data.draft import draft_codebook, lines
from dpmpi.errors import ConfigError
from dpmpi.network.channel import World
from dpmpi.network.launcher import launched_as
from dpmpi.network.transport import open_transport
from dpmpi.runtime.describing import Description, Request, describe, merged, to_record
from dpmpi.runtime.failure import end_run
from dpmpi.runtime.process import place_of

EXAMPLES = """\
examples:
  python -m dpmpi data describe --private --schema schema.toml --data a.csv b.csv --epsilon 0.1 --ledger ledgers
  mpirun -n 4 python -m dpmpi data describe --private --schema schema.toml --data 'tables/{rank}.csv' \\
         --epsilon 0.1 --ledger ledgers --codebook draft.toml
  python -m dpmpi data describe --private --schema schema.toml --data mine.csv --rank 2 --epsilon 0.1 \\
         --ledger ledgers --json mine.json
  python -m dpmpi data describe --private --schema schema.toml --merge mine.json theirs.json --codebook draft.toml
"""


def add_describe(actions: Any) -> None:
    """Add the action to those of `data`."""
    what = "noisy quantiles, counts and missing rates of raw tables, to write a codebook from"
    one = actions.add_parser("describe", help=what, allow_abbrev=False, epilog=EXAMPLES)
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    one.description = "Describe the columns of all parties' raw tables under differential privacy, charged to ledgers."
    one.add_argument("--private", action="store_true", help="required: there is no other description")
    what = "a public codebook with generous ranges; it needs no [label]"
    one.add_argument("--schema", type=Path, required=True, metavar="FILE", help=what)
    what = "one table for each rank, or names with {rank}; CSV (plain or .gz ...) or Parquet"
    one.add_argument("--data", nargs="+", metavar="TABLE", help=what)
    one.add_argument("--loopback", type=int, metavar="N", help="all N ranks in this process, for names with {rank}")
    what = "this party's rank in later runs, for one table (default: 0)"
    one.add_argument("--rank", type=int, metavar="K", help=what)
    one.add_argument("--epsilon", type=float, metavar="E", help="of this one release, for every rank")
    one.add_argument("--delta", type=float, default=1e-5, metavar="D", help="(default: 1e-05)")
    one.add_argument("--allow-large-delta", action="store_true", help="accept a delta of at least 1/records")
    what = "where rank-NNN.jsonl is charged, as by a run with the same --ledger"
    one.add_argument("--ledger", type=Path, metavar="DIR", help=what)
    what = "refuse if a ledger would hold a larger epsilon with this"
    one.add_argument("--budget", type=float, metavar="E", help=what)
    what = "the ledger's table has other records by now: what was charged before counts for it, too"
    one.add_argument("--changed", action="store_true", help=what)
    what = "add up what parties have described alone, instead of tables; costs nothing"
    one.add_argument("--merge", nargs="+", type=Path, metavar="JSON", help=what)
    one.add_argument("--json", type=Path, metavar="FILE", help="write the noisy cells and what follows from them")
    one.add_argument("--codebook", type=Path, metavar="FILE", help="write a draft of a codebook, to be edited")
    what = "how long to wait for other ranks (default: 60)"
    one.add_argument("--deadline", type=float, default=60.0, metavar="S", help=what)


def run_describe(flags: argparse.Namespace) -> int:
    """Run `python -m dpmpi data describe`; return the exit code."""
    _check(flags)
    schema = read_schema(flags.schema)
    if flags.merge:
        records = [(str(path), _record(path)) for path in flags.merge]
        found, promise = merged(schema, records)
        _put(flags, schema, found, {**records[0][1], "privacy": promise, **found.to_dict()})
        return 0
    request = Request(
        schema,
        flags.epsilon,
        flags.delta,
        flags.ledger,
        flags.rank or 0,
        flags.budget,
        flags.changed,
        flags.allow_large_delta,
    )
    _, size = launched_as(os.environ)
    if size == 1:
        tables = _tables(flags, range(len(flags.data) if flags.loopback is None else flags.loopback))
        found = describe(request, open_transport(len(tables), flags.deadline), tables)
        _put(flags, schema, found, to_record(request, found))
        return 0
    if flags.loopback is not None or flags.rank is not None:
        raise ConfigError(f"expected neither --loopback nor --rank under mpirun, found {size} ranks: leave them out")
    return _as_rank(flags, request, open_transport(None, flags.deadline))


def _as_rank(flags: argparse.Namespace, request: Request, world: World) -> int:
    """Describe this rank's table together with the others; the first rank prints and writes."""
    try:
        found = describe(request, world, _tables(flags, world.ranks, world.size))
        if 0 in world.ranks:
            _put(flags, request.schema, found, to_record(request, found))
    except BaseException as error:
        return end_run(world, error, place_of(world, "while describing"))
    return 0


def _check(flags: argparse.Namespace) -> None:
    if not flags.private:
        raise ConfigError("expected --private, found none: a description without noise would be a disclosure")
    if (flags.data is None) == (flags.merge is None):
        raise ConfigError("expected either --data TABLE ... or --merge JSON ..., found both or neither")
    if flags.merge is not None:
        return
    if flags.epsilon is None or not 0 < flags.epsilon < math.inf:
        raise ConfigError(f"expected a positive --epsilon, found {flags.epsilon}: 0.1 is a usual price")
    if not 0 < flags.delta < 1:
        raise ConfigError(f"expected --delta between 0 and 1, found {flags.delta:g}")
    if flags.ledger is None:
        raise ConfigError("expected --ledger DIR, found none: what is told here counts for all later runs")
    if flags.budget is not None and not 0 <= flags.budget < math.inf:
        raise ConfigError(f"expected a --budget of at least 0, found {flags.budget}")
    if (flags.loopback or 1) < 1 or (flags.rank or 0) < 0 or (flags.rank is not None and len(flags.data) > 1):
        raise ConfigError("expected --loopback from 1 and --rank from 0 with one table, found others")


def _tables(flags: argparse.Namespace, ranks: Any, size: int | None = None) -> list[Path]:
    """Return the tables of some ranks: from the list, or by names with {rank}."""
    count = len(ranks) if size is None else size
    if len(flags.data) == count and (count > 1 or "{rank" not in flags.data[0]):
        return [Path(flags.data[rank]) for rank in ranks]
    if len(flags.data) > 1 or "{rank" not in flags.data[0]:
        raise ConfigError(f"expected {count} tables, or one name with {{rank}}, found {len(flags.data)}")
    try:
        return [Path(flags.data[0].format(rank=rank + (flags.rank or 0))) for rank in ranks]
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(f"expected {{rank}} or {{rank:03d}} in {flags.data[0]!r}, found another form") from error


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_text(path, "the description"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected what describe --json wrote, found other text") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{path}: expected what describe --json wrote, found other JSON")
    return record


def _put(flags: argparse.Namespace, schema: Schema, found: Description, record: dict[str, Any]) -> None:
    """Print the description, and write what was asked for."""
    columns, promise = figures(schema, found.cells, sum(found.rows), found.deviation), record["privacy"]
    how = f"{sum(found.rows)} rows of {len(found.rows)} tables under ({promise['epsilon']:g}, {promise['delta']:g})"
    print(f"{how}-differential privacy, unit: {promise['unit']}; noise {found.deviation:.4g} in a cell")
    print("\n".join(lines(columns)))
    if flags.json is not None:
        write_file(flags.json, json.dumps({**record, "columns": columns}, indent=1) + "\n", error=ConfigError)
    if flags.codebook is not None:
        write_file(flags.codebook, draft_codebook(schema, columns, f"a description of {how}-DP"), error=ConfigError)
