"""The commands beside training: `python -m dpmpi COMMAND ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from dpmpi import __version__
from dpmpi.errors import INTERRUPTED, ConfigError, DpmpiError, nearest
from dpmpi.network.launcher import launched_as
from dpmpi.runtime.output.console import hush, say

COMMANDS = {
    "run": "train: dpmpi run -n 20 ..., or mpirun -n 20 python -m dpmpi.run ...",
    "bench": "what a round costs here, next to bare MPI: mpirun -n 4 python -m dpmpi bench",
    "plan": "noise, epsilon, bytes and messages before the run: python -m dpmpi plan --ranks 20 ...",
    "verify": "replay the ledgers with an independent accountant: python -m dpmpi verify runs/demo",
    "audit": "attack real runs: is more told than is certified? mpirun -n 3 python -m dpmpi audit ...",
    "data": "list sources, describe and code tables, cut shards: python -m dpmpi data table FILE --codebook FILE ...",
    "sweep": "a family of runs, one after the other: python -m dpmpi sweep docs/experiments/NAME.toml --quick",
    "chaos": "break runs on purpose and check what was promised: python -m dpmpi chaos --runs 20 -- --rounds 300",
    "join": "take part with this party's own rank: dpmpi join --rank 1 --of 3 --meet tcp://host:7000 ...",
    "keys": "identities for sealed messages: python -m dpmpi keys make 20 keys/",
    "predict": "predictions for a table, by the names of its records: python -m dpmpi predict runs/demo new.csv",
    "show": "coefficients, their noise and the privacy statement: python -m dpmpi show runs/demo",
    "report": "figures and one page from runs or a sweep: python -m dpmpi report runs/demo",
}
FILES = {name: f"dpmpi.commands.{name}" for name in ("data", "keys", "plan", "predict", "run", "show", "verify")}
"""The modules of the commands that are not folders."""


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<8} {help_}" for name, help_ in COMMANDS.items()]
    return "\n".join(["usage: python -m dpmpi COMMAND [flags]      (COMMAND --help tells more)", "", *lines])


def main(argv: Sequence[str] | None = None, loaded: Callable[[], None] = lambda: None) -> int:
    """Run a command; return the exit code. `loaded` is called when its modules are there, before it does anything."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words == ["--version"]:
        print(f"dpmpi {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            known, near = ", ".join(COMMANDS), nearest(words[0], COMMANDS)
            raise ConfigError(f"expected a command among {known}, found {words[0]!r}{near}")
        file = FILES.get(words[0], f"dpmpi.commands.{words[0]}.command")
        command = import_module(file)  # each command brings its own imports
        loaded()
        return int(command.main(words[1:]))
    except (DpmpiError, OSError, MemoryError, KeyboardInterrupt) as error:
        return _failed(error)


def _failed(error: BaseException) -> int:
    """Say why a command ended, in one line; return the exit code."""
    code, why = ConfigError.exit_code, f"not enough memory: {error}"
    if isinstance(error, BrokenPipeError):  # whoever read the output has seen enough
        hush(sys.stdout)
        return 0
    if isinstance(error, DpmpiError):
        code, why = error.exit_code, str(error)
    elif isinstance(error, KeyboardInterrupt):
        code, why = INTERRUPTED, "interrupted"
    elif isinstance(error, OSError):
        hush(sys.stdout)  # it may be what cannot be written
        why = f"{error.filename or 'the output'}: {error.strerror or error}"
    if launched_as(os.environ)[0] == 0:
        say(f"dpmpi: {why}", sys.stderr)
    return code
