"""The commands beside training: `python -m dpmpi COMMAND ...`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dpmpi.errors import INTERRUPTED, ConfigError, DpmpiError
from dpmpi.launched import launched_as
from dpmpi.speech import hush, say

USAGE = """\
usage: python -m dpmpi COMMAND [flags]      (COMMAND --help tells more)

  run      train: mpirun -n 20 python -m dpmpi.run ...
  bench    what a round costs here, next to bare MPI: mpirun -n 4 python -m dpmpi bench
  plan     noise, epsilon, bytes and messages before the run: python -m dpmpi plan --ranks 20 ...
  verify   replay the ledgers with an independent accountant: python -m dpmpi verify runs/demo
  audit    measure a lower bound on epsilon from the wire: mpirun -n 4 python -m dpmpi audit ...
  data     list sources, code tables, cut shards: python -m dpmpi data table FILE --codebook FILE --out 0.npz
  sweep    a family of runs, one after the other: python -m dpmpi sweep docs/experiments/NAME.toml --quick
  chaos    break runs on purpose and check what was promised: python -m dpmpi chaos --runs 20 -- --rounds 300
  keys     identities for sealed messages: python -m dpmpi keys make 20 keys/
  report   figures and one page from runs or a sweep: python -m dpmpi report runs/demo
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "run": _run, "bench": _bench, "plan": _plan, "verify": _verify, "audit": _audit, "data": _data,
        "sweep": _sweep, "report": _report, "keys": _keys, "chaos": _chaos,
    }  # fmt: skip
    try:
        if words[0] not in commands:
            raise ConfigError(f"unknown command {words[0]!r}, expected one of {', '.join(commands)}")
        return commands[words[0]](words[1:])
    except (DpmpiError, OSError, MemoryError, KeyboardInterrupt) as error:
        return _failed(error)


def _failed(error: BaseException) -> int:
    """Say why a command ended, in one line; return the exit code."""
    if isinstance(error, BrokenPipeError):  # whoever read the output has seen enough
        hush(sys.stdout)
        return 0
    code, why = ConfigError.exit_code, str(error)
    if isinstance(error, DpmpiError):
        code = error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        code, why = INTERRUPTED, "interrupted"
    elif isinstance(error, OSError):
        hush(sys.stdout)  # it may be what cannot be written
        why = f"{error.filename or 'the output'}: {error.strerror or error}"
    else:
        why = f"not enough memory: {error}"
    if launched_as(os.environ)[0] == 0:
        say(f"dpmpi: {why}", sys.stderr)
    return code


def _run(argv: Sequence[str]) -> int:
    from dpmpi.run import main as run  # noqa: PLC0415 - each command brings its own imports

    return run(argv)


def _bench(argv: Sequence[str]) -> int:
    from dpmpi.bench.command import main as bench  # noqa: PLC0415 - each command brings its own imports

    return bench(argv)


def _plan(argv: Sequence[str]) -> int:
    from dpmpi.plan import main as plan  # noqa: PLC0415 - each command brings its own imports

    return plan(argv)


def _verify(argv: Sequence[str]) -> int:
    from dpmpi.verify import main as verify  # noqa: PLC0415 - each command brings its own imports

    return verify(argv)


def _audit(argv: Sequence[str]) -> int:
    from dpmpi.audit.command import main as audit  # noqa: PLC0415 - each command brings its own imports

    return audit(argv)


def _sweep(argv: Sequence[str]) -> int:
    from dpmpi.sweep.command import main as sweep  # noqa: PLC0415 - each command brings its own imports

    return sweep(argv)


def _report(argv: Sequence[str]) -> int:
    from dpmpi.report.command import main as report  # noqa: PLC0415 - each command brings its own imports

    return report(argv)


def _chaos(argv: Sequence[str]) -> int:
    from dpmpi.chaos.command import main as chaos  # noqa: PLC0415 - each command brings its own imports

    return chaos(argv)


def _keys(argv: Sequence[str]) -> int:
    from pathlib import Path  # noqa: PLC0415 - each command brings its own imports

    from dpmpi.config import Parser  # noqa: PLC0415
    from dpmpi.crypto.keys import key_name, make_identities, make_identity  # noqa: PLC0415

    parser = Parser(
        prog="python -m dpmpi keys", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Make what --keys DIR of a run reads: roster.toml for all, rank-000.key for one rank each.",
        epilog="examples: python -m dpmpi keys make 20 keys/\n"
        "          python -m dpmpi keys one 3 keys/    for rank 3 alone; its line goes into everybody's roster",
    )  # fmt: skip
    parser.add_argument("action", choices=("make", "one"), help="make: keys for N ranks; one: the key of rank N alone")
    parser.add_argument("number", type=int, metavar="N")
    parser.add_argument("folder", type=Path, metavar="DIR")
    flags = parser.parse_args(argv)
    if flags.action == "make":
        roster = make_identities(flags.number, flags.folder)
        print(f"{len(roster)} keys and roster.toml in {flags.folder}: give each rank its own key file and the roster")
        return 0
    if flags.number < 0:
        raise ConfigError(f"expected a rank of at least 0, got {flags.number}")
    flags.folder.mkdir(parents=True, exist_ok=True)
    identity = make_identity(flags.folder / f"{key_name(flags.number)}.key")
    print(f'{key_name(flags.number)} = "{identity.public.hex()}"')
    return 0


def _data(argv: Sequence[str]) -> int:
    from dpmpi.config import Parser  # noqa: PLC0415 - each command brings its own imports

    parser = Parser(
        prog="python -m dpmpi data", description="Prepare data sets once.", allow_abbrev=False,
        epilog="ACTION --help tells more",
    )  # fmt: skip
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="what --data of a run takes", allow_abbrev=False)
    shard = actions.add_parser(
        "shard", help="cut a data set into one file per rank", allow_abbrev=False,
        epilog="example: python -m dpmpi data shard libsvm:a9a.bz2 --ranks 20 --seed 7 --out 'shards/a9a-{rank}.npz'",
    )  # fmt: skip
    shard.add_argument("source", help="what --data of a run takes: libsvm:PATH, adult:DIR or synthetic:...")
    losses = ("hinge", "logistic", "squared", "mean")
    shard.add_argument("--loss", default="hinge", choices=losses, help="squared keeps real labels (default: hinge)")
    adult = actions.add_parser(
        "adult", help="code the UCI census records: one file, or with --ranks one per rank", allow_abbrev=False,
        epilog="example: python -m dpmpi data adult data/uci --out adult.svm",
    )  # fmt: skip
    adult.add_argument("folder", metavar="DIR", help="where adult.data and adult.test are, plain or compressed")
    adult.set_defaults(loss="hinge")
    _add_table(actions)
    for action in (shard, adult):
        action.add_argument("--ranks", type=int, required=action is shard, metavar="N")
        names = "file names, with {rank}" if action is shard else "a .npz or .svm file; with --ranks names with {rank}"
        action.add_argument("--out", required=True, metavar="FILE", help=names)
        action.add_argument("--seed", type=int, help="the shared seed: shuffles the rows (default: 0)")
        action.add_argument("--samples", type=int, metavar="N", help="use only so many rows in total")
        action.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=True)
    flags, unknown = parser.parse_known_args(argv)
    if unknown:  # the action's own parser knows which flag was meant
        actions.choices[flags.action].error(f"unrecognized arguments: {' '.join(unknown)}")
    if flags.action == "list":
        return _list_sources()
    if flags.action == "table":
        return _write_table(flags)
    return _write_adult(flags) if flags.action == "adult" and flags.ranks is None else _write_shards(flags)


def _add_table(actions: Any) -> None:
    from pathlib import Path  # noqa: PLC0415 - each command brings its own imports

    from dpmpi.data.codebook import DECIMALS, EXAMPLE, SEPARATORS  # noqa: PLC0415

    table = actions.add_parser(
        "table", help="code a CSV table by a codebook, for shards", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Code a table by a codebook that all parties agreed on. Without TABLE, say what it gives.",
        epilog="examples: python -m dpmpi data table --codebook codebook.toml\n"
        f"          python -m dpmpi data table patients.csv --codebook codebook.toml --out hospital-0.npz\n\n{EXAMPLE}",
    )  # fmt: skip
    table.add_argument("table", nargs="?", type=Path, metavar="TABLE", help="CSV with a header line, plain or .gz ...")
    table.add_argument("--codebook", required=True, type=Path, metavar="FILE", help="what becomes of which column")
    table.add_argument("--out", type=Path, metavar="FILE", help="the shard to write, a .npz file")
    table.add_argument("--separator", choices=SEPARATORS, help="(default: the codebook's, or what fits the header)")
    table.add_argument("--decimal", choices=DECIMALS, help="comma for 37,5 (default: the codebook's, or point)")
    table.add_argument("--unlabelled", action="store_true", help="the table has no labels: to predict, not to learn")


def _write_table(flags: argparse.Namespace) -> int:
    from dataclasses import replace  # noqa: PLC0415 - each command brings its own imports

    from dpmpi.data.codebook import read_codebook  # noqa: PLC0415
    from dpmpi.data.shards import write_npz  # noqa: PLC0415
    from dpmpi.data.table import code_table  # noqa: PLC0415

    if (flags.table is None) != (flags.out is None) or (flags.out is not None and flags.out.suffix != ".npz"):
        raise ConfigError("give TABLE and --out FILE.npz, or neither to look at the codebook alone")
    codebook = read_codebook(flags.codebook)
    given = {name: getattr(flags, name) for name in ("separator", "decimal") if getattr(flags, name) is not None}
    if flags.table is None:
        print(f"{len(codebook.features)} columns: {', '.join(codebook.features)}")
    else:
        coded = code_table(flags.table, replace(codebook, **given), labelled=not flags.unlabelled)
        write_npz(flags.out, coded.rows, coded.labels)
        print(f"{coded.rows.count} rows of {coded.rows.dimension} columns: {flags.out}")
        if coded.dropped:
            print(f"left out for missing values: {coded.dropped} rows")
        if coded.unused:
            print(f"not in the codebook, left out: {', '.join(coded.unused)}")
    print(f"codebook {codebook.digest}: all parties must see the same")
    return 0


def _list_sources() -> int:
    from dpmpi.data import SOURCES  # noqa: PLC0415 - each command brings its own imports

    for source in SOURCES.values():
        print((source.__doc__ or "").splitlines()[0].replace("`", ""))
    return 0


def _write_adult(flags: argparse.Namespace) -> int:
    from pathlib import Path  # noqa: PLC0415 - each command brings its own imports

    from dpmpi.data import Settings, write_whole  # noqa: PLC0415
    from dpmpi.data.adult import FEATURES, Adult  # noqa: PLC0415

    if "{" in flags.out or flags.seed is not None or flags.samples is not None:
        raise ConfigError("{rank}, --seed and --samples are for shards: give --ranks N too, or leave them out")
    rows = write_whole(Adult.parse(flags.folder, Settings(normalize=flags.normalize)), Path(flags.out))
    print(f"{rows} rows of {len(FEATURES)} columns: {flags.out}", file=sys.stderr)
    return 0


def _write_shards(flags: argparse.Namespace) -> int:
    from dpmpi.data import parse_source, write_shards  # noqa: PLC0415 - each command brings its own imports

    seed = flags.seed or 0
    if flags.ranks < 1 or seed < 0:
        raise ConfigError(f"--ranks must be at least 1 and --seed at least 0, got {flags.ranks} and {seed}")
    source = parse_source(
        f"adult:{flags.folder}" if flags.action == "adult" else flags.source,
        samples=flags.samples, normalize=flags.normalize, test_fraction=0.0, seed=seed, loss=flags.loss,
    )  # fmt: skip

    def progress(done: int) -> None:
        print(f"\r{done}/{flags.ranks} shards", end="", file=sys.stderr, flush=True)

    paths = write_shards(source, flags.ranks, flags.out, progress)
    print(f"\r{len(paths)} shards: {paths[0]} ... {paths[-1]}", file=sys.stderr)
    return 0
