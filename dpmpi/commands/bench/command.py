"""What a round costs on this machine, next to the bare MPI exchange of the same bytes.

Under mpirun (`mpirun -n 4 python -m dpmpi bench`) every dimension is timed in the same run, under the same load:

    bare exchange     Irecv/Isend/Waitall of the same bytes with the same neighbours, and the weighted sum, by mpi4py
    mix               a consensus method that only says Mix, through engine, exchange, meter and transport
    mix + AES-GCM     the same, and the library's calls that seal and open such messages, alone, beside it
    sealed mix        mix with every message sealed for its receiver
    bare gradient     the two products X x and X' c of a full batch in numpy; of sparse rows, in scipy
    bare noise        drawing as many noised coordinates, alone
    dda, dp-dda       whole rounds; sealed dp-dda: with sealed messages; sparse dp-dda: on sparse rows
    NAME              whole rounds of each method of --plugin FILE, with noise
    Allreduce         MPI's own sum of as many words, and Iallreduce: what a sum can cost at best
    sum               the sum of all ranks' vectors on a complete graph, in plain messages
    expanded sum      the same sum of secret shares, expanded from the secrets of few pairs, or of all
    full sum          the same sum of full shares: sealed shares to few partners, then sealed sums
    ring sum          the sum up a spanning tree of a ring and down again; expanded, and on a torus, too

The first rank alone times gradients, noise and sealing against the libraries' own. The kinds take turns, so that a
change of load meets all of them; seconds are medians over the turns, ratios are medians of the turns' ratios.

Without mpirun it starts mpirun itself: `--ranks 2,4,20` for the above, `--startup N,N` for the time from mpirun to the
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
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.commands.bench import memory as bench_memory
from dpmpi.commands.bench.parts import alone
from dpmpi.commands.bench.rows import condense, kinds_for, make_kinds, measure
from dpmpi.commands.bench.starts import Starter, against_peer, crowd, measure_targets, say, startup
from dpmpi.commands.bench.tables import draw, put, tables
from dpmpi.core import Method
from dpmpi.core.files import write_file
from dpmpi.errors import ConfigError, nearest
from dpmpi.network.collective import on_first_rank
from dpmpi.network.launcher import RANK_VARIABLES, Launcher, usable_cores
from dpmpi.network.transport.mpi import open_world
from dpmpi.runtime.cost.timing import fit_here
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.plugins import resolve

DIMENSIONS = "100,2000,47236"
DEFAULT_RANKS = (4,)
MEMORY_RANKS = 6


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi bench`."""
    flags = _parser().parse_args(argv)
    _check(flags)
    starts_ranks = flags.ranks or flags.targets or flags.startup or flags.crowd or flags.show
    if not starts_ranks and _is_rank():
        return _as_rank(flags)
    if flags.show:
        _show(flags, _read(flags.show))
        return 0
    starter = Starter(Launcher.make(flags.launcher), flags.limit)
    result = _header(flags, starter.version())
    for section in _sections(starter, flags):
        result |= section
        _save(flags, result)  # what is there is there, whatever happens to the next section
    _show(flags, result)
    return int(any(target["verdict"] == "FAIL" for target in result.get("targets", ())))


def _sections(starter: Starter, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure what the flags ask for, section by section; rounds if they ask for nothing."""
    if flags.targets:
        yield measure_targets(starter, flags.data_mb, flags.turns, flags.peer_python)
    if flags.ranks or not (flags.targets or flags.startup or flags.memory or flags.crowd):
        yield from _rounds(starter, flags)
    if flags.startup:
        yield {"startup": [startup(starter, ranks, flags.turns) for ranks in flags.startup]}
    if flags.memory:
        say(f"memory of {MEMORY_RANKS} ranks")
        yield {"memory": starter.bench(MEMORY_RANKS, "--memory", environment=bench_memory.ENVIRONMENT)["memory"]}
    if flags.crowd:
        say(f"a run of {flags.crowd} ranks")
        yield {"crowd": crowd(starter, flags.crowd)}


def _is_rank() -> bool:
    """Return whether a launcher started this process."""
    return any(name in os.environ for name in RANK_VARIABLES)


def _check(flags: argparse.Namespace) -> None:
    """Raise `ConfigError` for what could not be measured or written."""
    if flags.fit is not None and not _is_rank():
        raise ConfigError("expected ranks to measure, found none: mpirun -n 4 python -m dpmpi bench --fit")
    known = [*kinds_for(20), *_own_methods(flags)]
    for name in flags.only:
        if name not in known:
            raise ConfigError(f"unknown kind {name!r} in --only{nearest(name, known)}; --help lists them")
    if flags.page:
        put(_text(flags.page), "")


def _own_methods(flags: argparse.Namespace) -> dict[str, Method]:
    """Return the methods of the plug-ins that are given, with their default hyperparameters."""
    return {name: cls() for plugin in resolve(flags.plugin) for name, cls in plugin.methods.items()}


def _whole(least: int, text: str) -> int:
    """Return a whole number."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text}")
    return int(text)


def _wholes(least: int, text: str) -> list[int]:
    """Return whole numbers that are separated by commas."""
    return [_whole(least, part) for part in text.split(",")]


def _positive(text: str) -> float:
    """Return a number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")


def _parser() -> Parser:
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m dpmpi bench", description=__doc__, allow_abbrev=False, formatter_class=form)
    add = parser.add_argument
    dimensions = f"separated by commas (default: {DIMENSIONS})"
    add("--dimensions", type=partial(_wholes, 1), default=DIMENSIONS, help=dimensions)
    add("--data-mb", type=_positive, default=640.0, help="the data of all ranks in MB (default: 640)")
    add("--turns", type=partial(_whole, 1), default=5, help="how often each kind is timed (default: 5)")
    add("--seconds", type=_positive, default=0.25, metavar="S", help="how long each time (default: 0.25)")
    add(
        "--only",
        type=lambda text: text.split(",") if text else [],
        default="",
        metavar="KINDS",
        help="time these kinds alone, separated by commas",
    )
    text = "a Python file, or an installed module, whose methods are timed, too; may be repeated"
    add("--plugin", action="append", default=[], metavar="FILE", help=text)
    add("--parts", action=argparse.BooleanOptionalAction, default=True, help="what one process alone takes, too")
    add("--json", metavar="FILE", help="write the figures to FILE, or - for standard output")
    add("--ranks", type=partial(_wholes, 2), metavar="N,N", help="start mpirun for each of these numbers (default: 4)")
    add("--startup", type=partial(_wholes, 2), metavar="N,N", help="time start and end of so many ranks")
    add("--memory", action="store_true", help="fit the memory of a rank over dimensions and degrees")
    add("--crowd", type=partial(_whole, 2), metavar="N", help="run 1000 rounds of dp-dda with N ranks")
    add("--targets", action="store_true", help="measure the ratios that dpmpi wants to keep")
    add("--peer-python", metavar="PATH", help="an interpreter with DISROPT, to compare with")
    add("--plots", metavar="DIR", help="draw how rounds a second fall with ranks and dimension")
    add("--page", metavar="FILE", help="put the tables into a page, between the marks that it has for them")
    add("--fit", nargs="?", const="", metavar="FILE", help="under mpirun: measure what plan --predict needs")
    add("--launcher", metavar="TEXT", help="how to start ranks, such as 'mpirun -n {ranks}'")
    add("--limit", type=_positive, default=900.0, metavar="S", help="seconds that one start may take (default: 900)")
    add("--show", metavar="FILE", help="print the tables of an earlier --json FILE")
    return parser


def _as_rank(flags: argparse.Namespace) -> int:
    """Be one of the ranks that are timed."""
    transport = open_world()
    if transport.size < 2:
        raise ConfigError("expected at least 2 ranks, found 1: start it as mpirun -n 4 python -m dpmpi bench")
    if flags.fit is not None:
        said = fit_here(transport, Path(flags.fit) if flags.fit else None, flags.turns)
        if transport.rank == 0:
            say(said)
        transport.close()
        return 0
    run: dict[str, Any] = {"ranks": transport.size, "mpi": transport.describe(), "dimensions": {}}
    result = _header(flags, transport.describe())
    with tempfile.TemporaryDirectory() as folder:
        if flags.memory:
            rows = bench_memory.measure(transport, Path(folder))
            if rows is not None:
                result["memory"] = bench_memory.fit(rows)
        else:
            for m in flags.dimensions:
                world = open_world()  # a new transport each time: one keeps the buffers of all its channels
                megabytes = flags.data_mb / world.size
                kinds, vectors = make_kinds(world, m, megabytes, Path(folder), flags.only, _own_methods(flags))
                seconds = measure(world, kinds, flags.turns, flags.seconds)
                run["dimensions"][str(m)] = condense(seconds, vectors=vectors)
            if flags.parts:
                result["parts"] = on_first_rank(transport, lambda: _all_parts(flags))
            result["runs"] = [run]
    if transport.rank == 0:
        _save(flags, result)
        _print(flags, result)
    return 0


def _show(flags: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print the tables, put them into a page, draw."""
    if flags.page:
        write_file(Path(flags.page), put(_text(flags.page), tables(result)))
    for path in draw(result, Path(flags.plots)) if flags.plots and "runs" in result else ():
        say(f"wrote {path}")
    _print(flags, result)


def _rounds(starter: Starter, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the rounds of all numbers of ranks, what a process alone takes, and a peer's rounds if there is one."""
    dimensions, ranks = ",".join(map(str, flags.dimensions)), flags.ranks or DEFAULT_RANKS
    words = ["--dimensions", dimensions, "--data-mb", str(flags.data_mb), "--turns", str(flags.turns)]
    words += ["--seconds", str(flags.seconds), "--only", ",".join(flags.only), "--no-parts"]
    words += [f"--plugin={where}" for where in flags.plugin]
    runs: list[dict[str, Any]] = []
    for n in ranks:
        say(f"{n} ranks, m = {dimensions}")
        runs += starter.bench(n, *words)["runs"]
        yield {"runs": runs}
    if flags.parts:
        say("gradients, noise and sealing alone")
        yield {"parts": _all_parts(flags)}
    if flags.peer_python and not flags.targets:  # which compares with it anyhow
        yield {"peer": [against_peer(starter, flags.peer_python, n, flags.turns) for n in ranks]}


def _all_parts(flags: argparse.Namespace) -> dict[str, Any]:
    return {str(m): alone(m, flags.data_mb, flags.turns) for m in flags.dimensions}


def _header(flags: argparse.Namespace, mpi: str) -> dict[str, Any]:
    """Return the conditions of the figures: the machine and the flags."""
    names = Path("/proc/cpuinfo")
    lines = names.read_text(encoding="utf-8").splitlines() if names.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    machine: dict[str, Any] = {"cores": usable_cores(), "processor": model or platform.machine(), "mpi": mpi}
    machine |= {"python": platform.python_version(), "numpy": np.__version__, "load": os.getloadavg()[0]}
    return {"machine": machine, "turns": flags.turns, "data_mb": flags.data_mb}


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


def _save(flags: argparse.Namespace, result: dict[str, Any]) -> None:
    if flags.json not in (None, "-"):
        write_file(Path(flags.json), json.dumps(result, indent=1) + "\n")


def _print(flags: argparse.Namespace, result: dict[str, Any]) -> None:
    print(json.dumps(result, indent=1) + "\n" if flags.json == "-" else tables(result), end="", flush=True)
