"""How much does the wire tell? A lower bound of epsilon, measured on real runs.

Two worlds: the shards of one rank differ in one record, a gradient canary; many runs of either, the wire tapped, a
score per run, and from the scores a bound that holds with the stated confidence. One run (--one-run): many canaries
with random signs in one shard, guessed from a single run.

A low bound is not evidence of privacy. A bound above the ledger is proof of a bug.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi import __version__
from dpmpi.commands.audit.sums import SumLaboratory
from dpmpi.commands.audit.wire import VICTIM, Guesses, Laboratory, Worlds, audit_one_run, audit_runs
from dpmpi.errors import ConfigError
from dpmpi.network.transport import open_transport
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.runtime.config import Config
from dpmpi.runtime.failure import Place, end_run
from dpmpi.runtime.flags import Parser, parse
from dpmpi.runtime.noise import SumNoise
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.progress import Progress
from dpmpi.runtime.settings import Settings

VIOLATION = "VIOLATION: the wire leaks more than the ledger says"
REFUTED = "the claim is refuted: the wire leaks more than it allows"
CONSISTENT = "consistent: which is not evidence of privacy"

EXAMPLES = """\
examples:
  mpirun -n 4 python -m dpmpi audit --records 1000 --rounds 3000 --batch 1 --epsilon 1 --delta 0.01 \\
         --calibration theorem --runs 300 --out audits/theorem
  python -m dpmpi audit --loopback 4 --one-run --canaries 500 --records 500 --rounds 200 --noise 0.01
"""

_DATA = ("data", "samples", "normalize", "test-fraction", "loss", "evaluate", "reference")
MADE_UP = (*_DATA, "budget", "ledger", "quiet", "log-json", "checkpoint-every", "resume")
"""Flags of a run about its data, its ledger and its output, of which an audit makes its own."""


def verdict(lower: float, certified: float | None, claimed: float | None) -> str:
    """Return the verdict of a measured lower bound on the certified and the claimed epsilon."""
    if certified is not None and lower > certified:
        return VIOLATION
    return REFUTED if claimed is not None and lower > claimed else CONSISTENT


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi audit`; return 1 if the wire leaks more than the ledger says."""
    flags, settings = _parse(argv)
    config = settings.config
    transport = open_transport(config.loopback, config.deadline)
    begin = time.perf_counter()
    make = SumLaboratory if isinstance(settings.noise, SumNoise) else Laboratory
    laboratory = make(settings, transport, flags.records)  # what is wrong here, all ranks find alike
    runs = 1 if flags.one_run else 2 * flags.runs
    try:
        found: Worlds | Guesses | None
        with Progress(runs * config.rounds, shown=laboratory.listens) as laboratory.progress:
            if flags.one_run:
                found = audit_one_run(laboratory, flags.canaries, flags.guesses, flags.confidence)
            else:
                opposed = flags.others == "opposed"
                found = audit_runs(laboratory, flags.runs, flags.confidence, opposed=opposed)
        code = "0"
        if found is not None:
            seconds = time.perf_counter() - begin
            pace = {"seconds": round(seconds, 3), "rounds_per_second": round(runs * config.rounds / seconds, 1)}
            result = _result(flags, laboratory, found, pace)
            _publish(flags, config, result, found)
            code = "1" if result["verdict"] == VIOLATION else "0"
        return int(transport.collect([code] * len(transport.ranks))[VICTIM])
    except BaseException as error:
        begun = not isinstance(error, KeyboardInterrupt)  # all are interrupted, and one says so
        alone = len(transport.ranks) == 1
        return end_run(transport, error, Place("during the audit", begun, transport.tolerant, alone))


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Settings]:
    """Return the audit's own flags and the settings of the runs."""
    program, form = "mpirun -n RANKS python -m dpmpi audit", argparse.RawDescriptionHelpFormatter
    usage = "%(prog)s [flags]      (and the flags of a run that are not about its data or its ledger)"
    parser = Parser(program, usage, __doc__, EXAMPLES, formatter_class=form, allow_abbrev=False)
    add = parser.add_argument
    add("--records", type=int, default=1000, metavar="Q", help="the shard's records (default: 1000)")
    add("--runs", type=int, default=300, metavar="N", help="runs in each world (default: 300)")
    others = "gradients of the other records: 0, or against the canary's (default: opposed for fixed batches)"
    add("--others", choices=("silent", "opposed"), help=others)
    add("--one-run", action="store_true", help="many canaries in a single run instead")
    add("--canaries", type=int, metavar="K", help="for --one-run (default: one per record)")
    add("--guesses", type=int, metavar="R", help="for --one-run (default: half of the canaries)")
    add("--confidence", type=float, default=0.95, help="of the lower bound (default: 0.95)")
    add("--json", metavar="FILE", help="write the result to FILE, or - for standard output")
    flags, rest = parser.parse_known_args(argv)
    for flag in (word.split("=")[0] for word in rest):
        if flag.startswith("--") and flag.removeprefix("--").removeprefix("no-") in MADE_UP:
            raise ConfigError(f"{flag} does not apply to an audit, which makes its own shards and ledgers")
    config = parse(rest)
    # An audit promises nothing to anybody, so that any delta can be audited.
    config = replace(config, loss="squared", evaluate=0, reference=False, allow_large_delta=True)
    settings = Settings.of(config)
    if flags.others is None:
        fixed = settings.batch is not None and settings.batch.kind == "fixed"
        flags.others = "opposed" if fixed else "silent"
    if flags.canaries is None:
        flags.canaries = flags.records
    if flags.guesses is None:
        flags.guesses = max(1, flags.canaries // 2)
    _check(flags, config)
    return flags, settings


def _check(flags: argparse.Namespace, config: Config) -> None:
    """Raise `ConfigError` for what cannot be audited."""
    if flags.json not in (None, "-") and not Path(flags.json).absolute().parent.is_dir():
        raise ConfigError(f"--json: expected a file in a folder that is there, got {flags.json}")
    for name, least in (("records", 1), ("runs", 4), ("canaries", 1), ("guesses", 1)):
        if getattr(flags, name) < least:
            raise ConfigError(f"--{name} must be at least {least}, got {getattr(flags, name)}")
    if not 0.5 <= flags.confidence < 1:
        raise ConfigError(f"--confidence must be in [0.5, 1), got {flags.confidence}")
    if flags.one_run and not flags.guesses <= flags.canaries <= flags.records:
        counts = f"{flags.guesses}, {flags.canaries} and {flags.records}"
        raise ConfigError(f"expected --guesses <= --canaries <= --records, got {counts}")
    if config.epsilon is None and config.noise is None:
        raise ConfigError("an audit needs a claim: give --epsilon and --delta, or --noise")


def _result(
    flags: argparse.Namespace, laboratory: Laboratory, found: Worlds | Guesses, pace: dict[str, float]
) -> dict[str, Any]:
    config, sigma = laboratory.config, laboratory.sigmas[VICTIM]
    certified, claimed = spent_epsilon(laboratory.recorder.spending(), config.delta), config.epsilon
    if claimed is None:
        claimed = laboratory.plan.claimed_epsilon(sigma)
    one_run = isinstance(found, Guesses)
    return {
        "dpmpi": __version__,
        "audit": "one run" if one_run else "two worlds",
        "algorithm": config.algorithm,
        "ranks": laboratory.tap.size,
        "records": flags.records,
        "rounds": config.rounds,
        "batch": laboratory.plan.settings.drawn.describe(),
        "sigma": sigma,
        "delta": config.delta,
        "calibration": config.calibration if config.epsilon is not None else "noise given",
        "insecure_noise": config.insecure_noise_seed is not None,
        "releases": len(laboratory.recorder.charged),
        "claimed": claimed,
        "certified": certified,
        "confidence": flags.confidence,
        **pace,
        **({} if one_run else {"runs": flags.runs, "others": flags.others}),
        **found.evidence(),
        "lower": found.epsilon,
        "verdict": verdict(found.epsilon, certified, claimed),
    }


def table(result: dict[str, Any]) -> str:
    """Return the result as people read it."""
    evidence = "{hits}/{trials} hits, {false_alarms}/{trials} false alarms by {score}; as many runs chose the rule"
    if result["audit"] == "one run":
        evidence = "{right} of {guesses} guesses right, {canaries} canaries"
    rows = {
        "runs": "{algorithm}, {ranks} ranks, {rounds} rounds, {records} records, batch {batch}",
        "noise": "sigma {sigma:.4g} ({calibration}), {releases} releases",
        "claimed epsilon": "none at delta {delta:g}"
        if result["claimed"] is None
        else "{claimed:.4g} at delta {delta:g}",
        "certified epsilon": "none" if result["certified"] is None else "{certified:.4g}",
        "measured, at least": "{lower:.4g} with confidence {confidence:g}",
        "evidence": evidence,
        "speed": "{seconds:.1f} s, {rounds_per_second:.0f} rounds/s",
        "verdict": "{verdict}",
    }
    return "\n".join(f"  {name:<20} {text.format(**result)}" for name, text in rows.items())


def _publish(flags: argparse.Namespace, config: Config, result: dict[str, Any], found: Worlds | Guesses) -> None:
    """Show the table; write the result and the plot where they were asked for."""
    text = json.dumps(result, indent=1)
    say(text if flags.json == "-" else f"audit: {result['audit']}\n{table(result)}")
    if flags.json not in (None, "-"):
        Path(flags.json).write_text(text + "\n", encoding="utf-8")
    if config.out is not None:
        folder = Path(config.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")
        (folder / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        drawn = _plot(folder / "audit.png", result, found)
        if flags.json != "-":
            say(drawn)


def _plot(path: Path, result: dict[str, Any], found: Worlds | Guesses) -> str:
    """Draw the scores of the two worlds and the bound next to the claims; return a line that says where."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, one rank only
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return "  no plot: matplotlib is not installed (pip install 'dpmpi[report]')"
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    if isinstance(found, Worlds):
        rule = found.bound.rule
        plus, minus = found.plus[rule.score], found.minus[rule.score]
        bins = np.histogram_bin_edges(np.concatenate([plus, minus]), 40).tolist()
        left.hist([minus, plus], bins, histtype="stepfilled", alpha=0.5, label=["canary -", "canary +"])
        left.axvline(rule.sign * rule.threshold, color="black", linestyle="--", label="threshold")
        left.set(xlabel=rule.score, ylabel="runs", title="what the wire tells")
        left.legend()
    else:
        counts = [found.right, found.guesses - found.right, found.canaries - found.guesses]
        left.bar(["right", "wrong", "not guessed"], counts)
        left.set(ylabel="canaries", title="guesses from one run")
    names = {"claimed": "claimed", "certified": "certified", "lower": "measured,\nat least"}
    bars = {text: result[name] for name, text in names.items() if result[name] is not None}
    right.bar_label(right.bar(list(bars), list(bars.values())), fmt="%.3g")
    right.set(ylabel=f"epsilon at delta {result['delta']:g}", title=result["verdict"].split(":")[0])
    right.set_yscale("symlog")
    right.margins(y=0.15)
    figure.savefig(path, dpi=120)
    return f"  {'plot':<20} {path}"
