"""Every method audited twice: with the noise that is certified, and with a third of it.

With certified noise nothing may be refuted. With a third of it, a claim is refuted where the accounting is tight: where
it is not, the rank tells less than is certified even then, and the table says why.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmpi.commands.audit.examination import examine, prepare
from dpmpi.commands.audit.laboratory import Laboratory
from dpmpi.commands.audit.listening import VICTIM
from dpmpi.errors import ConfigError
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.runtime.flag_parser import named_plugins
from dpmpi.runtime.output.console import say
from dpmpi.runtime.plugins import methods

RANKS = 3
DEFAULTS = {"--rounds": "10", "--epsilon": "1", "--delta": "1e-5", "--graph": "complete"}
"""Flags of the runs that were not given."""
FACTORS = (1.0, 3.0)


def audit_every_method(flags: argparse.Namespace, words: Sequence[str]) -> int:
    """Audit all methods in this process, and show the table; return 1 if certified noise was refuted anywhere."""
    given = {word.split("=")[0] for word in words}
    for flag in ("--algorithm", "--loopback", "--noise", "--out"):
        if flag in given:
            raise ConfigError(f"{flag} does not apply to --all, which audits all methods among {RANKS} agents")
    if flags.one_run or flags.figures or flags.weaken != 1:
        raise ConfigError("--all audits two worlds: leave --one-run, --figures and --weaken out")
    rest = [*words, *(word for pair in DEFAULTS.items() if pair[0] not in given for word in pair)]
    results, begin = [], time.perf_counter()
    for name in methods(named_plugins(words)):
        for factor in FACTORS:
            results.append(_one(flags, [*rest, "--algorithm", name, "--loopback", str(RANKS)], factor))
            if flags.json != "-":
                say(row(results[-1]) if len(results) > 1 else f"{HEADER}\n{row(results[-1])}")
    text = json.dumps(results, indent=1)
    if flags.json == "-":
        say(text)
    elif flags.json is not None:
        Path(flags.json).write_text(text + "\n", encoding="utf-8")
    wrong = [one["algorithm"] for one in results if one["weakened"] == 1 and one["verdict"].startswith("VIOLATION")]
    if flags.json != "-":
        seconds = time.perf_counter() - begin
        say(f"{len(results)} audits in {seconds:.0f} s; refuted with certified noise: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def _one(flags: argparse.Namespace, words: Sequence[str], factor: float) -> dict[str, Any]:
    flags = argparse.Namespace(**vars(flags) | {"weaken": factor})
    audit = prepare(flags, words)
    laboratory = audit.laboratory(LoopbackTransport(RANKS))
    done = examine(audit, laboratory, shown=False)
    return {} if done is None else done[0] | {"tightness": tightness(laboratory)}  # on loopback the victim is here


def tightness(laboratory: Laboratory) -> str:
    """Return how near the certified curve is to what the messages can tell at most, and why."""
    method, events = laboratory.settings.method, list(laboratory.claim)
    kinds = {event.noise for event in events}
    if method.testifies:
        return "loose: random weights hide more than is certified, and Laplace noise is priced by Renyi divergence"
    if any(one.extra for one in method.releases(laboratory.plan.terms(VICTIM))):
        price = "for shifts that follow the noise" if "objective" in kinds else "its noise is priced as pure"
        return f"loose: objective perturbation pays for its Jacobian, and {price}"
    if "spherical-laplace" in kinds:
        return "tight: spherical Laplace noise on all records, of which a linear score sees a part"
    if "laplace" in kinds:
        return "loose: Laplace noise on vectors is priced by Renyi divergence, and a linear score sees half of it"
    if any(event.sampling.kind != "full" for event in events):
        return "tight up to the discretisation; which records a batch holds is not seen"
    return "tight: Gaussian noise on all records"


HEADER = (
    "| method | noise | certified curve | mu, at least | epsilon, at least | misses | false alarms | refuted "
    "| accounting |\n|---|---|---|---|---|---|---|---|---|"
)


def row(result: dict[str, Any]) -> str:
    """Return a line of the table."""
    mu, lower = result["mu_certified"], result["mu_lower"]
    cells = [
        f"`{result['algorithm']}`",
        "certified" if result["weakened"] == 1 else f"1/{result['weakened']:g}",
        "epsilons" if mu is None else f"mu {mu:.3f}",
        "-" if lower is None else f"{lower:.2f}",
        f"{result['lower']:.2f}",
        f"{result['misses']}/{result['trials']}",
        f"{result['false_alarms']}/{result['trials']}",
        "**yes**" if result["verdict"].startswith("VIOLATION") else "no",
        result["tightness"],
    ]
    return f"| {' | '.join(cells)} |"
