"""How much does the wire tell? A lower bound of epsilon, measured on real runs.

Two worlds: the shards of one rank differ in one record, a gradient canary; many runs of either, the wire tapped, a
score per run, and from the scores a bound that holds with the stated confidence. One run (--one-run): many canaries
with random signs in one shard, guessed from a single run.

A low bound is not evidence of privacy. A bound above the ledger is proof of a bug.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dpmpi import __version__
from dpmpi.audit.sums import SumLaboratory
from dpmpi.audit.wire import VICTIM, Guesses, Laboratory, Worlds, audit_one_run, audit_runs
from dpmpi.config import Config, parse
from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.planning import claimed_epsilon, spent_epsilon
from dpmpi.problem import Batch
from dpmpi.progress import Progress
from dpmpi.speech import say
from dpmpi.wire import Transport

VIOLATION = "VIOLATION: the wire leaks more than the ledger says"
REFUTED = "the claim is refuted: the wire leaks more than it allows"
CONSISTENT = "consistent: which is not evidence of privacy"

EXAMPLES = """\
examples:
  mpirun -n 4 python -m dpmpi audit --records 1000 --rounds 3000 --batch 1 --epsilon 1 --delta 0.01 \\
         --calibration theorem --runs 300 --out audits/theorem
  python -m dpmpi audit --loopback 4 --one-run --canaries 500 --records 500 --rounds 200 --noise 0.01
"""

MADE_UP = ("--data", "--samples", "--normalize", "--no-normalize", "--test-fraction", "--loss", "--evaluate",
           "--no-evaluate", "--reference", "--no-reference", "--budget", "--ledger", "--quiet",
           "--no-quiet", "--log-json", "--no-log-json", "--checkpoint-every", "--resume")  # fmt: skip
"""Flags of a run about its data, its ledger and its output, of which an audit makes its own."""


def verdict(lower: float, certified: float | None, claimed: float | None) -> str:
    """Return what a measured lower bound says about what was certified and what was claimed."""
    if certified is not None and lower > certified:
        return VIOLATION
    return REFUTED if claimed is not None and lower > claimed else CONSISTENT


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi audit`; return 1 if the wire leaks more than the ledger says."""
    flags, config = _parse(argv)
    transport = _open(config)
    begin = time.perf_counter()
    make = SumLaboratory if config.noise_in == "sum" else Laboratory
    laboratory = make(config, transport, flags.records)  # what is wrong here, all ranks find alike
    runs = 1 if flags.one_run else 2 * flags.runs
    try:
        found: Worlds | Guesses | None
        with Progress(runs * config.rounds, shown=laboratory.listens) as progress:
            if flags.one_run:
                found = audit_one_run(
                    laboratory, flags.canaries, flags.guesses, confidence=flags.confidence, progress=progress
                )
            else:
                opposed = flags.others == "opposed"
                found = audit_runs(
                    laboratory, flags.runs, opposed=opposed, confidence=flags.confidence, progress=progress
                )
        code = "0"
        if found is not None:
            result = _result(flags, laboratory, found, time.perf_counter() - begin)
            _publish(flags, config, result, found)
            code = "1" if result["verdict"] == VIOLATION else "0"
        return int(transport.collect([code] * len(transport.ranks))[VICTIM])
    except BaseException as error:
        return _end_all(transport, error)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Config]:
    """Return the audit's own flags and the configuration of the runs."""
    parser = _Parser(
        prog="mpirun -n RANKS python -m dpmpi audit", description=__doc__, epilog=EXAMPLES, allow_abbrev=False,
        usage="%(prog)s [flags]      (and the flags of a run that are not about its data or its ledger)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--records", type=int, default=1000, metavar="Q", help="the shard's records (default: 1000)")
    parser.add_argument("--runs", type=int, default=300, metavar="N", help="runs in each world (default: 300)")
    parser.add_argument(
        "--others", choices=("silent", "opposed"),
        help="gradients of the other records: 0, or against the canary's (default: opposed for fixed batches)",
    )  # fmt: skip
    parser.add_argument("--one-run", action="store_true", help="many canaries in a single run instead")
    parser.add_argument("--canaries", type=int, metavar="K", help="for --one-run (default: one per record)")
    parser.add_argument("--guesses", type=int, metavar="R", help="for --one-run (default: half of the canaries)")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the lower bound (default: 0.95)")
    parser.add_argument("--json", metavar="FILE", help="write the result to FILE, or - for standard output")
    flags, rest = parser.parse_known_args(argv)
    for word in rest:
        if word.split("=")[0] in MADE_UP:
            raise ConfigError(
                f"{word.split('=')[0]} does not apply to an audit, which makes its own shards and ledgers"
            )
    config = parse(rest)
    # An audit promises nothing to anybody, so that any delta can be audited.
    config = replace(config, loss="squared", evaluate=0, reference=False, allow_large_delta=True)
    if flags.others is None:
        fixed = config.batch != "auto" and Batch.parse(config.batch).kind == "fixed"
        flags.others = "opposed" if fixed else "silent"
    if flags.canaries is None:
        flags.canaries = flags.records
    if flags.guesses is None:
        flags.guesses = max(1, flags.canaries // 2)
    _check(flags, config)
    return flags, config


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
        raise ConfigError(
            f"expected --guesses <= --canaries <= --records, got {flags.guesses}, {flags.canaries} and {flags.records}"
        )
    if config.epsilon is None and config.noise is None:
        raise ConfigError("an audit needs a claim: give --epsilon and --delta, or --noise")


def _open(config: Config) -> Transport:
    if config.loopback is not None:
        from dpmpi.transport.loopback import LoopbackTransport  # noqa: PLC0415 - not under mpirun

        return LoopbackTransport(config.loopback)
    from dpmpi.transport.mpi import open_world  # noqa: PLC0415 - not on loopback

    return open_world(config.deadline)


def _result(
    flags: argparse.Namespace, laboratory: Laboratory, found: Worlds | Guesses, seconds: float
) -> dict[str, Any]:
    config, sigma = laboratory.config, laboratory.sigmas[VICTIM]
    certified, claimed = spent_epsilon(laboratory.spending, config.delta), config.epsilon
    if claimed is None:
        claimed = claimed_epsilon(laboratory.prospect, sigma)
    runs = 1 if isinstance(found, Guesses) else 2 * flags.runs
    result = {
        "dpmpi": __version__, "audit": "one run" if isinstance(found, Guesses) else "two worlds",
        "algorithm": config.algorithm, "ranks": laboratory.tap.size, "records": flags.records, "rounds": config.rounds,
        "batch": Batch.parse(config.batch).describe(), "sigma": sigma, "delta": config.delta,
        "calibration": config.calibration if config.epsilon is not None else "noise given",
        "insecure_noise": config.insecure_noise_seed is not None, "releases": laboratory.spending.total(),
        "claimed": claimed, "certified": certified, "confidence": flags.confidence,
        "seconds": round(seconds, 3), "rounds_per_second": round(runs * config.rounds / seconds, 1),
    }  # fmt: skip
    if isinstance(found, Guesses):
        lower = found.epsilon
        result |= {"canaries": found.canaries, "guesses": found.guesses, "right": found.right}
    else:
        bound, lower = found.bound, found.bound.epsilon
        result |= {
            "runs": flags.runs, "others": flags.others, "score": bound.rule.score, "sign": bound.rule.sign,
            "threshold": bound.rule.threshold, "trials": bound.trials, "hits": bound.hits,
            "false_alarms": bound.false_alarms,
        }  # fmt: skip
    return result | {"lower": lower, "verdict": verdict(lower, certified, claimed)}


def table(result: dict[str, Any]) -> str:
    """Return the result as people read it."""

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:.4g}"

    if result["audit"] == "one run":
        evidence = f"{result['right']} of {result['guesses']} guesses right, {result['canaries']} canaries"
    else:
        evidence = (
            f"{result['hits']}/{result['trials']} hits, {result['false_alarms']}/{result['trials']} false alarms "
            f"by {result['score']}; as many runs chose the rule"
        )
    rows = [
        ("runs", f"{result['algorithm']}, {result['ranks']} ranks, {result['rounds']} rounds, {result['records']} "
                 f"records, batch {result['batch']}"),
        ("noise", f"sigma {result['sigma']:.4g} ({result['calibration']}), {result['releases']} releases"),
        ("claimed epsilon", f"{number(result['claimed'])} at delta {result['delta']:g}"),
        ("certified epsilon", number(result["certified"])),
        ("measured, at least", f"{number(result['lower'])} with confidence {result['confidence']:g}"),
        ("evidence", evidence),
        ("speed", f"{result['seconds']:.1f} s, {result['rounds_per_second']:.0f} rounds/s"),
        ("verdict", result["verdict"]),
    ]  # fmt: skip
    return "\n".join(f"  {name:<20} {text}" for name, text in rows)


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
        left.bar(["right", "wrong", "not guessed"],
                 [found.right, found.guesses - found.right, found.canaries - found.guesses])  # fmt: skip
        left.set(ylabel="canaries", title="guesses from one run")
    bars = [(name, result[name]) for name in ("claimed", "certified", "lower") if result[name] is not None]
    names = {"lower": "measured,\nat least"}
    drawn = right.bar([names.get(name, name) for name, _ in bars], [value for _, value in bars])
    right.bar_label(drawn, [f"{value:.3g}" for _, value in bars])
    right.set(ylabel=f"epsilon at delta {result['delta']:g}", title=result["verdict"].split(":")[0])
    right.set_yscale("symlog")
    right.margins(y=0.15)
    figure.savefig(path, dpi=120)
    return f"  {'plot':<20} {path}"


def _end_all(transport: Transport, error: BaseException) -> int:
    """Say which rank failed and why, and end every rank."""
    interrupted = isinstance(error, KeyboardInterrupt)
    code = 130 if interrupted else error.exit_code if isinstance(error, DpmpiError) else 1
    what = "interrupted" if interrupted else str(error) or type(error).__name__
    if not interrupted or VICTIM in transport.ranks:
        say(f"dpmpi: rank {transport.ranks[0]}, during the audit: {what}", sys.stderr)
    if not isinstance(error, DpmpiError | KeyboardInterrupt) and os.environ.get("DPMPI_TRACEBACK"):
        traceback.print_exception(error)
    abort = getattr(transport, "abort", None)
    if abort is not None:
        abort(code)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report as everywhere: one line, no usage text."""
        raise ConfigError(message)
