"""Break runs on purpose, and check what was promised: `python -m dpmpi chaos -- FLAGS OF A RUN`.

Every run is a real one, of as many processes as ranks. What happens to it is drawn from the seed:

    kill      1-3 ranks die (SIGKILL): before a send, while a message travels, before an operation of all ranks, or
              while the others regroup. With fault tolerance (mpirun --with-ft ulfm) the others must finish; without it
              all must end, and a run with checkpoints must be resumable.
    stop      a rank is stopped for 2 s every 10 s. The run must finish, and the others must not stand still longer
              than they have to.
    slow      a rank sleeps 20 ms in every round. The run must finish, and its summary must name the culprit.
    corrupt   a bit of a message is flipped: with --seal anywhere, else in its trailer. All ranks must end within 5 s,
              and say why.
    restart   all processes are killed at once; the run must finish with --resume, to the same bits if its noise is
              repeatable (--insecure-noise-seed).

After each: no process is left, every ledger checks out, and none charges less than the wire carried. Everything is kept
in OUT: a folder for each run, and chaos.json with what was drawn, kept and broken. Run K of a seed is repeated by
--first K --runs 1 and the same other flags. All ranks must be on this host.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpmpi.chaos.faults import KINDS, Fault, draw, parse_kinds, parse_victims
from dpmpi.chaos.launch import tolerant_template
from dpmpi.chaos.promises import PROMISES, Broken, Setting, keep_promises
from dpmpi.config import Parser, flags_of, from_values
from dpmpi.errors import INTERRUPTED, ConfigError, interrupt
from dpmpi.rng import public_generator
from dpmpi.rundir import RunDirectory
from dpmpi.sweep.command import Line

DEFAULT_FLAGS = (
    "--data", "synthetic:samples=20000,features=20", "--loss", "logistic", "--rounds", "300", "--epsilon", "4",
)  # fmt: skip
EXAMPLES = """\
examples:
  python -m dpmpi chaos --runs 100 --kind kill --ranks 20 --seed 1 -- --algorithm dp-dda --rounds 300 --loss logistic \\
      --data synthetic:samples=20000,features=20 --noise 0.0375
  python -m dpmpi chaos --kind kill --launcher 'mpirun -n {ranks}' -- --rounds 300 --noise 0.1 --checkpoint-every 50
  python -m dpmpi chaos --kind restart -- --rounds 300 --noise 0.1 --insecure-noise-seed 1
"""


@dataclass
class Outcome:
    """One run: what happened to it, and of each promise None if it was kept, or what was found instead."""

    number: int
    kind: str
    faults: tuple[Fault, ...]
    folder: str
    seconds: float = 0.0
    promises: dict[str, str | None] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """What was broken, a line each."""
        return [f"{name}: {why}" for name, why in self.promises.items() if why is not None]


def run_one(setting: Setting, number: int, kind: str, seed: int, victims: tuple[int, int]) -> Outcome:
    """Draw what happens in one run, let it happen, and check the promises."""
    generator = public_generator(seed, "chaos", number)
    config = setting.config
    faults = draw(generator, kind, setting.ranks, config.rounds, victims, sealed=config.sealed)
    folder = setting.out / f"{number:03d}-{kind}"
    begin = time.monotonic()
    promises: dict[str, str | None] = {}
    notes: dict[str, Any] = {}
    try:
        RunDirectory(folder).path.mkdir(parents=True)
        keep_promises(setting, kind, faults, folder, promises, notes)
    except OSError as error:
        raise ConfigError(f"cannot use {folder}: {error.strerror}; give another --out") from error
    except Broken:
        pass  # the first promise that everything else depends on: it is in `promises`
    return Outcome(number, kind, faults, str(folder), time.monotonic() - begin, promises, notes)


def tally(outcomes: Sequence[Outcome], name: str) -> dict[str, int]:
    """Return how often a promise was kept and broken."""
    found = [one.promises[name] for one in outcomes if name in one.promises]
    kept = sum(why is None for why in found)
    return {"kept": kept, "broken": len(found) - kept}


def table(outcomes: Sequence[Outcome]) -> str:
    """Return how often each promise that was asked for was kept and broken."""
    rows = [("promise", "kept", "broken")]
    for name, text in PROMISES.items():
        counts = tally(outcomes, name)
        if any(counts.values()):
            rows.append((text, str(counts["kept"]), str(counts["broken"])))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{text:<{width}}  {kept:>5}  {broken:>6}" for text, kept, broken in rows)


def write(path: Path, command: Sequence[str], setting: Setting, outcomes: Sequence[Outcome]) -> None:
    """Write chaos.json."""
    told = {
        "command": shlex.join(["python", "-m", "dpmpi", "chaos", *command]), "ranks": setting.ranks,
        "launcher": setting.launcher,
        "promises": {name: {"text": text} | tally(outcomes, name) for name, text in PROMISES.items()},
        "runs": [asdict(one) for one in outcomes],
    }  # fmt: skip
    RunDirectory(path).write_text("chaos.json", json.dumps(told, indent=1) + "\n")


def make_parser() -> Parser:
    """Return the parser of the command's own flags."""
    parser = Parser(
        prog="python -m dpmpi chaos", usage="python -m dpmpi chaos [flags] [-- flags of a run]", allow_abbrev=False,
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how many runs to break (default: 20)")
    parser.add_argument("--kind", default="kill", metavar="KINDS", help=f"of {','.join(KINDS)} (default: kill)")
    parser.add_argument("--ranks", type=int, default=20, metavar="N", help="(default: 20)")
    parser.add_argument("--victims", default="1-3", metavar="A-B", help="how many ranks die in a run (default: 1-3)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="what happens is drawn from it (default: 0)")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with run K of the seed (default: 0)")
    parser.add_argument("--launcher", metavar="COMMAND", help="(default: 'mpirun --with-ft ulfm -n {ranks}')")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of one start (default: 120)")
    parser.add_argument(
        "--within", type=float, default=0.05, metavar="F",
        help="how far the objective may be from an undisturbed one's (default: 0.05)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="(default: runs/chaos-TIME)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command line; return 1 if a promise was broken."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    flags = make_parser().parse_args(argv[:cut])
    given = list(argv[cut + 1 :]) or list(DEFAULT_FLAGS)
    kinds, victims = parse_kinds(flags.kind), parse_victims(flags.victims)
    if flags.runs < 1 or flags.ranks < 3 or flags.first < 0 or flags.seed < 0 or not flags.limit > 0:
        raise ConfigError("--runs must be at least 1, --ranks 3, --first and --seed 0, --limit more than 0")
    if not 0 < flags.within < math.inf:
        raise ConfigError(f"--within must be a number above 0, got {flags.within}")
    if not Path("/proc/self/environ").exists():
        raise ConfigError("chaos looks for the processes of its runs in /proc: it needs Linux")
    for name in ("out", "resume", "loopback", "ledger"):
        if name in flags_of(given):
            raise ConfigError(f"chaos chooses where its runs go and how they start: leave out --{name} after --")
    config = from_values({**flags_of(given)})
    launcher = flags.launcher or tolerant_template()
    try:
        shlex.split(launcher)
    except ValueError as error:
        raise ConfigError(f"--launcher is not a command: {error}, got {launcher}") from None
    out = flags.out or Path(time.strftime("runs/chaos-%Y%m%d-%H%M%S"))
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out} is not empty: give another one")
    setting = Setting(flags.ranks, launcher, tuple(given), config, flags.limit, flags.within, out)
    signal.signal(signal.SIGTERM, interrupt)
    outcomes: list[Outcome] = []
    line, code = Line(flags.runs), 0
    try:
        for number in range(flags.first, flags.first + flags.runs):
            kind = kinds[number % len(kinds)]
            line.begins(f"{number} {kind}")
            outcomes.append(run_one(setting, number, kind, flags.seed, victims))
            write(out, argv, setting, outcomes)
            line.ended(f"{number} {kind}", "; ".join(outcomes[-1].broken) or None)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        line.close()
    sys.stdout.write(f"{table(outcomes)}\n")
    broken = [one for one in outcomes if one.broken]
    for one in broken:
        sys.stdout.write(f"run {one.number} ({one.folder}): {'; '.join(one.broken)}\n")
    sys.stdout.write(f"{len(outcomes) - len(broken)} of {len(outcomes)} runs kept all promises: {out}/chaos.json\n")
    return code or (1 if broken else 0)
