"""The commands beside training: `python -m dpmpi COMMAND ...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.transport.mpi import launched_as

USAGE = """\
usage: python -m dpmpi COMMAND [flags]      (COMMAND --help tells more)

  run      train: mpirun -n 20 python -m dpmpi.run ...
  bench    what a round costs here, next to bare MPI: mpirun -n 4 python -m dpmpi bench
  plan     noise, epsilon, bytes and messages before the run: python -m dpmpi plan --ranks 20 ...
  verify   replay the ledgers with an independent accountant: python -m dpmpi verify runs/demo
  audit    measure a lower bound on epsilon from the wire: mpirun -n 4 python -m dpmpi audit ...
  data     prepare shards: python -m dpmpi data shard libsvm:FILE --ranks 20 --out 'shards/{rank}.npz'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    import os  # noqa: PLC0415

    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if words else 2
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "run": _run, "bench": _bench, "plan": _plan, "verify": _verify, "audit": _audit, "data": _data,
    }  # fmt: skip
    try:
        if words[0] not in commands:
            raise ConfigError(f"unknown command {words[0]!r}, expected one of {', '.join(commands)}")
        return commands[words[0]](words[1:])
    except DpmpiError as error:
        if launched_as(os.environ)[0] == 0:
            print(f"dpmpi: {error}", file=sys.stderr)
        return error.exit_code


def _run(argv: Sequence[str]) -> int:
    from dpmpi.run import main as run  # noqa: PLC0415 - each command brings its own imports

    return run(argv)


def _bench(argv: Sequence[str]) -> int:
    from dpmpi.bench import main as bench  # noqa: PLC0415 - each command brings its own imports

    return bench(argv)


def _plan(argv: Sequence[str]) -> int:
    from dpmpi.plan import main as plan  # noqa: PLC0415 - each command brings its own imports

    return plan(argv)


def _verify(argv: Sequence[str]) -> int:
    from dpmpi.verify import main as verify  # noqa: PLC0415 - each command brings its own imports

    return verify(argv)


def _audit(argv: Sequence[str]) -> int:
    from dpmpi.audit import main as audit  # noqa: PLC0415 - each command brings its own imports

    return audit(argv)


def _data(argv: Sequence[str]) -> int:
    from dpmpi.config import Parser  # noqa: PLC0415 - each command brings its own imports
    from dpmpi.data import parse_source, write_shards  # noqa: PLC0415

    parser = Parser(
        prog="python -m dpmpi data", description="Cut a data set into one file per rank, once.", allow_abbrev=False,
        epilog="example: python -m dpmpi data shard libsvm:a9a.bz2 --ranks 20 --seed 7 --out 'shards/a9a-{rank}.npz'",
    )  # fmt: skip
    parser.add_argument("action", choices=("shard",))
    parser.add_argument("source", help="what --data of a run takes: libsvm:PATH or synthetic:...")
    parser.add_argument("--ranks", type=int, required=True, metavar="N")
    parser.add_argument("--out", required=True, metavar="PATTERN", help="file names, with {rank}")
    parser.add_argument("--seed", type=int, default=0, help="the shared seed: shuffles the rows (default: 0)")
    parser.add_argument("--samples", type=int, metavar="N", help="use only so many rows in total")
    losses = ("hinge", "logistic", "squared")
    parser.add_argument("--loss", default="hinge", choices=losses, help="squared keeps real labels (default: hinge)")
    parser.add_argument("--normalize", action=argparse.BooleanOptionalAction, default=True)
    flags = parser.parse_args(argv)
    if flags.ranks < 1 or flags.seed < 0:
        raise ConfigError(f"--ranks must be at least 1 and --seed at least 0, got {flags.ranks} and {flags.seed}")
    source = parse_source(
        flags.source, samples=flags.samples, normalize=flags.normalize, test_fraction=0.0, seed=flags.seed,
        loss=flags.loss,
    )  # fmt: skip

    def progress(done: int) -> None:
        print(f"\r{done}/{flags.ranks} shards", end="", file=sys.stderr, flush=True)

    paths = write_shards(source, flags.ranks, flags.out, progress)
    print(f"\r{len(paths)} shards: {paths[0]} ... {paths[-1]}", file=sys.stderr)
    return 0
