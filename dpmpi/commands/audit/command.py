"""How much does a rank tell? Attacks on real runs, held against what is certified.

Two worlds: the shards of one rank differ in one record, a gradient canary; many runs of either, everything that the
rank says heard, a score learned from some runs and tested on the others. --one-run: many canaries in a single run of
dual averaging. --figures: does anything but the messages of the rounds tell the worlds apart? --all: every method, with
the certified noise and with a third of it.

A low bound is not evidence of privacy. A refuted claim is proof of a bug.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmpi.commands.audit.every_method import audit_every_method
from dpmpi.commands.audit.examination import Audit, Found, examine, prepare
from dpmpi.commands.audit.listening import VICTIM
from dpmpi.commands.audit.picture import draw
from dpmpi.network.transport import open_transport
from dpmpi.runtime.failure import Place, end_run
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.output.console import say

EXAMPLES = """\
examples:
  python -m dpmpi audit --loopback 3 --rounds 10 --epsilon 1 --delta 1e-5
  python -m dpmpi audit --loopback 3 --rounds 10 --epsilon 1 --delta 1e-5 --weaken 3 --out audits/weak
  python -m dpmpi audit --loopback 2 --records 200 --rounds 200 --batch 1 --epsilon 1 --delta 0.01 --runs 150 \\
         --calibration theorem
  mpirun -n 3 python -m dpmpi audit --figures --algorithm admm --rounds 10 --epsilon 1 --delta 1e-5 --runs 40
  python -m dpmpi audit --all --runs 600
"""


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi audit`; return 1 if a rank tells more than is certified."""
    flags, words = parse_flags(argv)
    if flags.all:
        return audit_every_method(flags, words)
    audit = prepare(flags, words)
    transport = open_transport(audit.config.loopback, audit.config.deadline)
    laboratory = audit.laboratory(transport)
    try:
        code, done = "0", examine(audit, laboratory)
        if done is not None:
            _publish(audit, *done)
            code = "1" if done[0]["verdict"].startswith("VIOLATION") else "0"
        return int(transport.collect([code] * len(transport.ranks))[VICTIM])
    except BaseException as error:
        begun = not isinstance(error, KeyboardInterrupt)  # all are interrupted, and one says so
        alone = len(transport.ranks) == 1
        return end_run(transport, error, Place("during the audit", begun, transport.tolerant, alone, public=True))


def parse_flags(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the audit's own flags, and the words that are left for the runs."""
    program, form = "mpirun -n RANKS python -m dpmpi audit", argparse.RawDescriptionHelpFormatter
    usage = "%(prog)s [flags]      (and the flags of a run that are not about its data or its ledger)"
    parser = Parser(program, usage, __doc__, EXAMPLES, formatter_class=form, allow_abbrev=False)
    add = parser.add_argument
    add("--records", type=int, default=100, metavar="Q", help="the shard's records (default: 100)")
    add("--runs", type=int, default=300, metavar="N", help="runs in each world, a third to learn from (default: 300)")
    others = "gradients of the other records: 0, or against the canary's (default: opposed for fixed batches)"
    add("--others", choices=("silent", "opposed"), help=others)
    add("--sparse", action="store_true", help="keep the rows as their nonzeros")
    add("--weaken", type=float, default=1.0, metavar="F", help="divide the noise by F, untold: does the audit notice?")
    add("--figures", action="store_true", help="whole runs: does anything but the rounds' messages tell the worlds?")
    add("--all", action="store_true", help="audit every method, with certified noise and with a third of it")
    add("--one-run", action="store_true", help="many canaries in a single run of dual averaging instead")
    add("--canaries", type=int, metavar="K", help="for --one-run (default: one per record)")
    add("--guesses", type=int, metavar="R", help="for --one-run (default: half of the canaries)")
    add("--confidence", type=float, default=0.95, help="of bounds and verdicts (default: 0.95)")
    add("--json", metavar="FILE", help="write the result to FILE, or - for standard output")
    flags, words = parser.parse_known_args(argv)
    return flags, words


def table(result: dict[str, Any]) -> str:
    """Return the result as people read it."""
    evidence = "{misses}/{trials} misses, {false_alarms}/{trials} false alarms by the {score} of {numbers} numbers"
    if result["audit"] == "one run":
        evidence = "{right} of {guesses} guesses right, {canaries} canaries"
    if result["audit"] == "figures":
        clearest = "; ".join(f"{one['figure']} (p = {one['p']:.2g})" for one in result["clearest"][:3])
        evidence = f"{{figures}} figures that are not constant; clearest: {clearest or 'none'}"
    mu = result["mu_certified"]
    rows = {
        "runs": "{algorithm}, {ranks} ranks, {rounds} rounds, {records} records, batch {batch}",
        "loss": "{loss}",
        "heard": "{heard}",
        "noise": "sigma {sigma:.4g} ({calibration}), {releases} releases",
        "claimed epsilon": "none at delta {delta:g}"
        if result["claimed"] is None
        else "{claimed:.4g} at delta {delta:g}",
        "certified epsilon": "none" if result["certified"] is None else "{certified:.4g}",
        "certified curve": "Gaussian, mu {mu_certified:.4g}" if mu is not None else "from certified epsilons",
        "epsilon, at least": "{lower:.4g} at delta {delta:g} with confidence {confidence:g}",
        "mu, at least": "{mu_lower:.4g} with confidence {confidence:g}" if result.get("mu_lower") is not None else "",
        "evidence": evidence,
        "speed": "{seconds:.1f} s, {rounds_per_second:,.0f} rounds/s",
        "verdict": "{verdict}",
    }
    if result["weakened"] != 1:
        rows["noise"] += ", of which only 1/{weakened:g} was added"
    if result["audit"] != "two worlds":
        del rows["certified curve"]
    if result["audit"] == "figures":
        del rows["epsilon, at least"]
    return "\n".join(f"  {name:<20} {text.format(**result)}" for name, text in rows.items() if text)


def _publish(audit: Audit, result: dict[str, Any], found: Found) -> None:
    """Show the table; write the result and the plot where they were asked for."""
    text, flags = json.dumps(result, indent=1), audit.flags
    say(text if flags.json == "-" else f"audit: {result['audit']}\n{table(result)}")
    if flags.json not in (None, "-"):
        Path(flags.json).write_text(text + "\n", encoding="utf-8")
    if audit.config.out is not None:
        folder = Path(audit.config.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")
        (folder / "config.toml").write_text(audit.config.to_toml(), encoding="utf-8")
        drawn = draw(folder / "audit.png", result, found)
        if flags.json != "-":
            say(drawn)
