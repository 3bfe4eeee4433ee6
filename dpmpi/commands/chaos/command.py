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
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpmpi.commands.chaos.faults import KINDS, draw, parse_kinds, parse_victims
from dpmpi.commands.chaos.promises import PLAYS, PROMISES, Broken, Outcome, Scene, Setting
from dpmpi.core.files import write_file
from dpmpi.errors import INTERRUPTED, ConfigError, interrupt
from dpmpi.network.launcher import Launcher
from dpmpi.rng import public_generator
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.flags import flags_of, parse
from dpmpi.runtime.output.progress import RunsLine
from dpmpi.runtime.settings import Settings

DEFAULT_FLAGS = (
    "--data synthetic:samples=20000,features=20 --loss logistic --algorithm dp-dda --rounds 300 --gamma 20 "
    "--penalty l2:0.0005 --lipschitz 1 --epsilon 4"
)
"""Steps that are short enough for the noise: two runs to which nothing happens end with objectives 1% apart."""
EXAMPLES = """\
examples:
  python -m dpmpi chaos --runs 100 --kind kill --ranks 20 --seed 1 -- --algorithm dp-dda --rounds 300 --loss logistic \\
      --data synthetic:samples=20000,features=20 --noise 0.0375
  python -m dpmpi chaos --kind kill --launcher 'mpirun -n {ranks}' -- --rounds 300 --noise 0.1 --checkpoint-every 50
  python -m dpmpi chaos --kind restart -- --rounds 300 --noise 0.1 --insecure-noise-seed 1
"""


def run_one(setting: Setting, number: int, kind: str, seed: int, victims: tuple[int, int]) -> Outcome:
    """Draw what happens in one run, let it happen, and check the promises."""
    config, generator = setting.config, public_generator(seed, "chaos", number)
    sealed = Settings.of(config).messages.sealed
    faults = draw(generator, kind, setting.ranks, config.known_rounds, victims, sealed=sealed)
    folder, begin = setting.out / f"{number:03d}-{kind}", time.monotonic()
    outcome = Outcome(number, kind, faults, str(folder))
    try:
        folder.mkdir(parents=True)
        PLAYS[kind](Scene(setting, outcome))
    except OSError as error:
        raise ConfigError(f"cannot use {folder}: {error.strerror}; give another --out") from error
    except Broken:
        pass  # the first promise that everything else depends on: it is in `promises`
    outcome.seconds = time.monotonic() - begin
    return outcome


def tally(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return the text of each promise, and how often it was kept and broken."""
    found = {}
    for name, text in PROMISES.items():
        kept = Counter(one.promises[name] is None for one in outcomes if name in one.promises)
        found[name] = {"text": text, "kept": kept[True], "broken": kept[False]}
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Return how often each promise that was asked for was kept and broken."""
    rows = [one for one in tally(outcomes).values() if one["kept"] or one["broken"]]
    rows.insert(0, {"text": "promise", "kept": "kept", "broken": "broken"})
    width = max(len(row["text"]) for row in rows)
    return "\n".join(f"{row['text']:<{width}}  {row['kept']:>5}  {row['broken']:>6}" for row in rows)


def write(command: Sequence[str], setting: Setting, outcomes: Sequence[Outcome]) -> None:
    """Write chaos.json."""
    told = {
        "command": shlex.join(["python", "-m", "dpmpi", "chaos", *command]),
        "ranks": setting.ranks,
        "launcher": setting.launcher.template,
        "promises": tally(outcomes),
        "runs": [asdict(one) for one in outcomes],
    }
    write_file(setting.out / "chaos.json", json.dumps(told, indent=1) + "\n")


def make_parser() -> Parser:
    """Return the parser of the command's own flags."""
    usage, form = "python -m dpmpi chaos [flags] [-- flags of a run]", argparse.RawDescriptionHelpFormatter
    parser = Parser("python -m dpmpi chaos", usage, __doc__, EXAMPLES, formatter_class=form, allow_abbrev=False)
    add = parser.add_argument
    add("--runs", type=int, default=20, metavar="N", help="how many runs to break (default: 20)")
    add("--kind", default="kill", metavar="KINDS", help=f"of {','.join(KINDS)} (default: kill)")
    add("--ranks", type=int, default=20, metavar="N", help="(default: 20)")
    add("--victims", default="1-3", metavar="A-B", help="how many ranks die in a run, less than half (default: 1-3)")
    add("--seed", type=int, default=0, metavar="S", help="what happens is drawn from it (default: 0)")
    add("--first", type=int, default=0, metavar="K", help="begin with run K of the seed (default: 0)")
    add("--launcher", metavar="COMMAND", help="(default: 'mpirun --with-ft ulfm -n {ranks}')")
    add("--limit", type=float, default=120.0, metavar="SECONDS", help="of one start (default: 120)")
    within = "how far the objective may be from an undisturbed one's (default: 0.05)"
    add("--within", type=float, default=0.05, metavar="F", help=within)
    add("--out", type=Path, metavar="DIR", help="(default: runs/chaos-TIME)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command line; return 1 if a promise was broken."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    flags = make_parser().parse_args(argv[:cut])
    given = list(argv[cut + 1 :]) or DEFAULT_FLAGS.split()
    kinds, victims = parse_kinds(flags.kind), parse_victims(flags.victims)
    if flags.runs < 1 or flags.ranks < 3 or flags.first < 0 or flags.seed < 0 or not flags.limit > 0:
        raise ConfigError("expected --runs of at least 1, --ranks 3, --first and --seed 0, --limit more than 0")
    if not 0 < flags.within < math.inf:
        raise ConfigError(f"expected a number above 0 for --within, found {flags.within}")
    if not Path("/proc/self/environ").exists():
        raise ConfigError("expected /proc, where chaos looks for the processes of its runs, found none: use Linux")
    for name in ("out", "resume", "loopback", "ledger"):
        if name in flags_of(given):
            raise ConfigError(f"chaos chooses where its runs go and how they start: leave out --{name} after --")
    config = parse(given)
    launcher = Launcher.make(flags.launcher, tolerant=True)
    out = flags.out or Path(time.strftime("runs/chaos-%Y%m%d-%H%M%S"))
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out: expected an empty directory, found files in {out}: give another one")
    setting = Setting(flags.ranks, launcher, tuple(given), config, flags.limit, flags.within, out)
    signal.signal(signal.SIGTERM, interrupt)
    outcomes: list[Outcome] = []
    code = INTERRUPTED
    with suppress(KeyboardInterrupt), closing(RunsLine(flags.runs)) as line:
        for number in range(flags.first, flags.first + flags.runs):
            kind = kinds[number % len(kinds)]
            line.begins(f"{number} {kind}")
            outcomes.append(run_one(setting, number, kind, flags.seed, victims))
            write(argv, setting, outcomes)
            line.ended(f"{number} {kind}", "; ".join(outcomes[-1].broken) or None)
        code = 0
    sys.stdout.write(f"{table(outcomes)}\n")
    broken = [one for one in outcomes if one.broken]
    for one in broken:
        sys.stdout.write(f"run {one.number} ({one.folder}): {'; '.join(one.broken)}\n")
    sys.stdout.write(f"{len(outcomes) - len(broken)} of {len(outcomes)} runs kept all promises: {out}/chaos.json\n")
    return code or (1 if broken else 0)
