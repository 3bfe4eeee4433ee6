"""What a round costs on this machine, next to the bare MPI exchange of the same bytes.

Under mpirun (`mpirun -n 4 python -m dpmpi bench`) every dimension is timed in the same run, under the same load:

    bare exchange     Irecv/Isend/Waitall of the same bytes with the same neighbours, and the weighted sum, by mpi4py
    mix               a consensus method that only says Mix, through engine, exchange, meter and transport
    mix + AES-GCM     the same, and the library's calls that seal and open such messages, alone, beside it
    sealed mix        mix with every message sealed for its receiver
    bare gradient     the two products X x and X' c of a full batch in numpy; of sparse rows, in scipy
    bare noise        drawing as many noised coordinates, alone
    dda, dp-dda       whole rounds; sealed dp-dda: with sealed messages; sparse dp-dda: on sparse rows
    sum               the sum of all ranks' vectors, everyone to everyone, in plain messages
    expanded sum      the same sum of secret shares, expanded from pairwise secrets
    full sum          the same sum of full shares: a hop of sealed shares, a hop of sealed partial sums

The first rank alone times gradients, noise and sealing against the libraries' own. The kinds take turns, so that a
change of load meets all of them; seconds are medians over the turns, ratios are medians of the turns' ratios.

Without mpirun it starts mpirun itself: `--ranks 2,4,20` for the above, `--startup N` for the time from mpirun to the
first round, `--memory` for what a rank's memory grows by, `--crowd N` for a run of many ranks, `--targets` for the
ratios that dpmpi wants to keep, with a verdict (exit code 1 if one fails). `--peer-python PATH` names an interpreter
that has DISROPT, to compare with its consensus. `--show FILE` prints the tables of an earlier `--json FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.agreement import on_first
from dpmpi.bench import memory as bench_memory
from dpmpi.bench import parts as bench_parts
from dpmpi.bench.launch import Launcher, crowd, default_template, startup
from dpmpi.bench.rows import kinds_for, make_kinds
from dpmpi.bench.tables import draw, put, tables
from dpmpi.bench.targets import DIMENSION, against_peer, measure_targets
from dpmpi.bench.timing import condense, measure
from dpmpi.config import Parser
from dpmpi.errors import ConfigError, nearest
from dpmpi.launched import RANK_VARIABLES, usable_cores
from dpmpi.measuring import fit_here
from dpmpi.transport.mpi import open_world

DIMENSIONS = "100,2000,47236"
DEFAULT_RANKS = "4"
MEMORY_RANKS = 6


def parts(dimension: int, data_mb: float, turns: int) -> dict[str, Any]:
    """Return what a process alone takes for gradients, noise and sealing."""
    return {
        "gradient": bench_parts.gradient(dimension, data_mb, turns),
        "noise_ns": bench_parts.noise(dimension, turns),
        "sealing_gb_per_second": bench_parts.sealing(dimension, turns),
    }


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi bench`."""
    flags = _parser().parse_args(argv)
    starts_ranks = flags.ranks or flags.targets or flags.startup or flags.crowd or flags.show
    dimensions, ranks = _check(flags)
    if not starts_ranks and any(name in os.environ for name in RANK_VARIABLES):
        return _as_rank(flags, dimensions)
    if flags.show:
        return _show(flags, _read(flags.show))
    launcher = Launcher(flags.launcher or default_template(), flags.limit, _say)
    result: dict[str, Any] = {"machine": _machine(launcher.version()), "turns": flags.turns, "data_mb": flags.data_mb}
    for section in _sections(launcher, flags, ranks, dimensions):
        result |= section
        if flags.json != "-":  # what is there is there, whatever happens to the next section
            _write(flags.json, result)
    if flags.json == "-":
        _write(flags.json, result)
    _show(flags, result)
    return int(any(target["verdict"] == "FAIL" for target in result.get("targets", ())))


def _sections(
    launcher: Launcher, flags: argparse.Namespace, ranks: Sequence[int], dimensions: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Measure what the flags ask for, section by section; rounds if they ask for nothing."""
    if flags.targets:
        targets, compared = measure_targets(launcher, flags.data_mb, flags.turns, flags.peer_python)
        yield {"targets": [target.to_dict() for target in targets]} | ({"peer": compared} if compared else {})
    if flags.ranks or not (flags.targets or flags.startup or flags.memory or flags.crowd):
        yield from _rounds(launcher, flags, ranks, dimensions)
    if flags.startup:
        yield {"startup": startup(launcher, flags.startup, flags.turns)}
    if flags.memory:
        _say(f"memory of {MEMORY_RANKS} ranks")
        yield {"memory": launcher.bench(MEMORY_RANKS, "--memory", more=bench_memory.ENVIRONMENT)["memory"]}
    if flags.crowd:
        _say(f"a run of {flags.crowd} ranks")
        yield {"crowd": crowd(launcher, flags.crowd)}


def _check(flags: argparse.Namespace) -> tuple[list[int], list[int]]:
    """Return the dimensions and the numbers of ranks; raise `ConfigError` for what could not be measured or written."""
    try:
        dimensions = [int(part) for part in flags.dimensions.split(",")]
        ranks = [int(part) for part in (flags.ranks or DEFAULT_RANKS).split(",")]
    except ValueError:
        raise ConfigError("--ranks and --dimensions take whole numbers, separated by commas") from None
    if min(dimensions) < 1 or min(ranks) < 2 or flags.turns < 1:
        raise ConfigError("expected --ranks of at least 2, --dimensions and --turns of at least 1")
    for name in ("seconds", "data_mb", "limit"):
        if not 0 < getattr(flags, name) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} must be a number above 0, got {getattr(flags, name)}")
    if flags.crowd is not None and flags.crowd < 2:
        raise ConfigError(f"--crowd takes at least 2 ranks, got {flags.crowd}")
    if flags.fit is not None and not any(name in os.environ for name in RANK_VARIABLES):
        raise ConfigError("--fit measures the ranks that it is started with: mpirun -n 4 python -m dpmpi bench --fit")
    known = kinds_for(3, 1)
    for name in flags.only.split(",") if flags.only else ():
        if name not in known:
            raise ConfigError(f"unknown kind {name!r} in --only{nearest(name, known)}; --help lists them")
    if flags.page:
        put(_text(flags.page), "")
    return dimensions, ranks


def _parser() -> Parser:
    parser = Parser(
        prog="python -m dpmpi bench", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--dimensions", default=DIMENSIONS, help=f"which, separated by commas (default: {DIMENSIONS})")
    add("--data-mb", type=float, default=640.0, help="the data of all ranks in MB (default: 640)")
    add("--turns", type=int, default=5, help="how often each kind is timed (default: 5)")
    add("--seconds", type=float, default=0.25, metavar="S", help="how long each time (default: 0.25)")
    add("--only", default="", metavar="KINDS", help="time these kinds alone, separated by commas")
    add("--parts", action=argparse.BooleanOptionalAction, default=True, help="what one process alone takes, too")
    add("--json", metavar="FILE", help="write the figures to FILE, or - for standard output")
    add("--ranks", metavar="N,N", help=f"start mpirun for each of these numbers (default: {DEFAULT_RANKS})")
    add("--startup", type=int, metavar="N", help="time the start of N ranks")
    add("--memory", action="store_true", help="fit the memory of a rank over dimensions and degrees")
    add("--crowd", type=int, metavar="N", help="run 1000 rounds of dp-dda with N ranks")
    add("--targets", action="store_true", help="measure the ratios that dpmpi wants to keep")
    add("--peer-python", metavar="PATH", help="an interpreter with DISROPT, to compare with")
    add("--plots", metavar="DIR", help="draw how rounds a second fall with ranks and dimension")
    add("--page", metavar="FILE", help="put the tables into a page, between the marks that it has for them")
    add("--fit", nargs="?", const="", metavar="FILE", help="under mpirun: measure what plan --predict needs")
    add("--launcher", metavar="TEXT", help="how to start ranks, such as 'mpirun -n {ranks}'")
    add("--limit", type=float, default=900.0, metavar="S", help="seconds that one start may take (default: 900)")
    add("--show", metavar="FILE", help="print the tables of an earlier --json FILE")
    return parser


def _as_rank(flags: argparse.Namespace, dimensions: Sequence[int]) -> int:
    """Be one of the ranks that are timed."""
    transport = open_world()
    if transport.size < 2:
        raise ConfigError("bench times an exchange: start it as mpirun -n 4 python -m dpmpi bench")
    if flags.fit is not None:
        said = fit_here(transport, Path(flags.fit) if flags.fit else None, flags.turns)
        if transport.rank == 0:
            _say(said)
        transport.close()
        return 0
    only = flags.only.split(",") if flags.only else ()
    run: dict[str, Any] = {"ranks": transport.size, "mpi": transport.describe(), "dimensions": {}}
    result: dict[str, Any] = {
        "machine": _machine(transport.describe()), "turns": flags.turns, "data_mb": flags.data_mb,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if flags.memory:
            rows = bench_memory.measure(transport, bench_memory.DIMENSIONS, Path(folder))
            if rows is not None:
                degrees = sorted({int(degree) for degree in rows[:, 1]})
                fitted = bench_memory.fit(rows)
                result["memory"] = fitted | {"dimensions": bench_memory.DIMENSIONS, "degrees": degrees}
        else:
            for m in dimensions:
                world = open_world()  # a new transport each time: one keeps the buffers of all its channels
                kinds = make_kinds(world, m, flags.data_mb / world.size, Path(folder), only)
                run["dimensions"][str(m)] = condense(measure(world, kinds, flags.turns, flags.seconds))
            if flags.parts:
                result["parts"] = on_first(transport, lambda: _all_parts(flags, dimensions))
            result["runs"] = [run]
    if transport.rank == 0:
        _write(flags.json, result)
        if flags.json != "-":
            print(tables(result), end="", flush=True)
    return 0


def _show(flags: argparse.Namespace, result: dict[str, Any]) -> int:
    """Print the tables, put them into a page, draw."""
    text = tables(result)
    if flags.page:
        Path(flags.page).write_text(put(_text(flags.page), text), encoding="utf-8")
    for path in draw(result, Path(flags.plots)) if flags.plots and "runs" in result else ():
        _say(f"wrote {path}")
    if flags.json != "-":
        print(text, end="", flush=True)
    return 0


def _rounds(
    launcher: Launcher, flags: argparse.Namespace, ranks: Sequence[int], dimensions: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Measure the rounds of all numbers of ranks, what a process alone takes, and a peer's rounds if there is one."""
    words = ["--dimensions", flags.dimensions, "--data-mb", str(flags.data_mb), "--turns", str(flags.turns)]
    words += ["--seconds", str(flags.seconds), "--only", flags.only, "--no-parts"]
    runs: list[dict[str, Any]] = []
    for n in ranks:
        _say(f"{n} ranks, m = {flags.dimensions}")
        runs += launcher.bench(n, *words)["runs"]
        yield {"runs": runs}
    if flags.parts:
        _say("gradients, noise and sealing alone")
        yield {"parts": _all_parts(flags, dimensions)}
    if flags.peer_python and not flags.targets:  # which compares with it anyhow
        yield {"peer": [against_peer(launcher, flags.peer_python, n, DIMENSION, flags.turns) for n in ranks]}


def _all_parts(flags: argparse.Namespace, dimensions: Sequence[int]) -> dict[str, Any]:
    return {str(m): parts(m, flags.data_mb, flags.turns) for m in dimensions}


def _machine(mpi: str) -> dict[str, Any]:
    """Return what the figures depend on."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text(encoding="utf-8").splitlines() if names.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": usable_cores(), "processor": model or platform.machine(), "mpi": mpi,
        "python": platform.python_version(), "numpy": np.__version__, "load": os.getloadavg()[0],
    }  # fmt: skip


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _read(path: str) -> dict[str, Any]:
    """Return the figures of an earlier bench."""
    text = _text(path)
    try:
        found: dict[str, Any] = json.loads(text)
        tables(found)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"expected the figures of a bench in {path}, found something else ({error})") from None
    return found


def _write(destination: str | None, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1)
    if destination == "-":
        print(text, flush=True)
    elif destination is not None:
        try:
            Path(destination).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {destination}: {error.strerror}") from error


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
