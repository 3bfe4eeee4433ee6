"""One audit from its flags to its result."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from dpmpi import __version__
from dpmpi.commands.audit.figures import Figures, compare
from dpmpi.commands.audit.laboratory import Canary, Laboratory, bait, honest, weaken
from dpmpi.commands.audit.one_run import Guesses, audit_one_run
from dpmpi.commands.audit.statistics import Claim, GaussianClaim, PairsClaim, certified_claim
from dpmpi.commands.audit.two_worlds import Worlds, audit_runs
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.network.channel import Transport
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.problem.losses import Squared
from dpmpi.runtime.config import Config
from dpmpi.runtime.flags import parse
from dpmpi.runtime.messages import SharedSums
from dpmpi.runtime.output.progress import Progress
from dpmpi.runtime.settings import Settings

VIOLATION = "VIOLATION: the rank tells more than is certified"
LEDGER = "VIOLATION: the ledger is not what the settings allow"
FIGURE = "VIOLATION: a figure of the process tells the records apart"
REFUTED = "the claim is refuted: the rank tells more than it allows"
CONSISTENT = "consistent: which is not evidence of privacy"

LABELS = ("task", "classes", "label_range", "class_weights", "loss")
"""Settings about labels."""
_DATA = ("data", "samples", "normalize", "test-fraction", "deal", "evaluate", "reference")
MADE_UP = (*_DATA, "budget", "ledger", "quiet", "log-json", "checkpoint-every", "resume")
"""Flags of a run about its data, its ledger and its output, of which an audit makes its own."""
POINTS = ("one-shot",)
"""Methods for the mean of points alone."""
FEATURES = 5
"""The length of the model, unless --dimension says another."""

Found: TypeAlias = Worlds | Guesses | Figures


@frozen
class Audit:
    """What to audit: the audit's own flags, and the settings of the runs."""

    flags: argparse.Namespace
    settings: Settings

    @property
    def config(self) -> Config:
        """The configuration of the runs."""
        return self.settings.config

    @property
    def kind(self) -> str:
        """The kind of audit."""
        return "one run" if self.flags.one_run else "figures" if self.flags.figures else "two worlds"

    @property
    def runs(self) -> int:
        """How many runs there are in all."""
        return 1 if self.flags.one_run else 2 * self.flags.runs

    def laboratory(self, transport: Transport) -> Laboratory:
        """Return the laboratory; all ranks raise the same error for settings that it does not fit."""
        flags = self.flags
        width = flags.canaries if flags.one_run else self.config.dimension or FEATURES
        canary = Canary(flags.records, width, flags.others == "opposed", flags.sparse, flags.figures)
        return Laboratory(self.settings, transport, canary, honest if flags.weaken == 1 else weaken(flags.weaken))


def prepare(flags: argparse.Namespace, words: Sequence[str]) -> Audit:
    """Return the audit that its flags and those of a run ask for; raise `ConfigError` for what cannot be audited."""
    for flag in (word.split("=")[0] for word in words):
        if flag.startswith("--") and flag.removeprefix("--").removeprefix("no-") in MADE_UP:
            raise ConfigError(f"{flag} does not apply to an audit, which makes its own shards and ledgers")
    config = parse(list(words))
    # An audit promises nothing to anybody, so that any delta can be audited.
    made: dict[str, Any] = {"evaluate": 0, "reference": False, "allow_large_delta": True, "quiet": True}
    if "--out" not in {word.split("=")[0] for word in words}:  # that of --config is the run's own
        made["out"] = None
    flags = argparse.Namespace(**vars(flags))
    settings, flags.loss = _with_loss(config, made, _is_said(config, words), flags.one_run)
    if flags.others is None:
        fixed = settings.batch is not None and settings.batch.kind == "fixed"
        flags.others = "opposed" if fixed and not flags.figures else "silent"
    if flags.canaries is None:
        flags.canaries = flags.records
    if flags.guesses is None:
        flags.guesses = max(1, flags.canaries // 2)
    _check(flags, settings.config)
    return Audit(flags, settings)


def _is_said(config: Config, words: Sequence[str]) -> bool:
    """Return whether a loss is asked for: by a flag, or by the settings of a run."""
    return "--config" in {word.split("=")[0] for word in words} or any(getattr(config, name) for name in LABELS)


def _with_loss(config: Config, made: dict[str, Any], said: bool, one_run: bool) -> tuple[Settings, str]:
    """Return the settings with the loss that is asked for, or one in its place, and the loss in words."""
    instead = dict.fromkeys(LABELS) | {"loss": "squared"}
    if config.algorithm in POINTS or config.loss == "mean":
        return Settings.of(replace(config, **made | instead | {"loss": "mean", "data": "mean"})), "mean"
    if not said:
        return Settings.of(replace(config, **made | instead)), "squared"
    settings = Settings.of(replace(config, **made))
    try:
        if one_run and settings.scores > 1:
            raise ConfigError("it has several scores, and --one-run guesses one number a canary")
        hook = bait(settings)
    except ConfigError as error:
        return Settings.of(
            replace(config, **made | instead)
        ), f"squared, instead of {config.loss or 'that of the run'}: {error}"
    if isinstance(settings.loss, Squared):
        return settings, settings.loss_name
    L = settings.config.lipschitz or settings.loss.clip  # type: ignore[union-attr]
    share = min(1.0, hook.slope / L)
    return (
        settings,
        f"{settings.loss_name}, canaries of label {hook.label:g} with {share:.2g} of the clip at the model 0",
    )


def _check(flags: argparse.Namespace, config: Config) -> None:
    if flags.json not in (None, "-") and not Path(flags.json).absolute().parent.is_dir():
        raise ConfigError(f"--json: expected a file in a folder that is there, got {flags.json}")
    for name, least in (("records", 1), ("runs", 12), ("canaries", 1), ("guesses", 1)):
        if getattr(flags, name) < least:
            raise ConfigError(f"--{name} must be at least {least}, got {getattr(flags, name)}")
    if not 0.5 <= flags.confidence < 1:
        raise ConfigError(f"--confidence must be in [0.5, 1), got {flags.confidence}")
    if not 0 < flags.weaken < 1e6:
        raise ConfigError(f"--weaken must be greater than 0 and below 1e6, got {flags.weaken}")
    if flags.one_run and flags.figures:
        raise ConfigError("give --one-run or --figures, not both")
    if flags.one_run and not flags.guesses <= flags.canaries <= flags.records:
        counts = f"{flags.guesses}, {flags.canaries} and {flags.records}"
        raise ConfigError(f"expected --guesses <= --canaries <= --records, got {counts}")
    if config.epsilon is None and config.noise is None and not flags.figures:
        raise ConfigError("an audit needs a claim: give --epsilon and --delta, or --noise")


def examine(audit: Audit, laboratory: Laboratory, *, shown: bool = True) -> tuple[dict[str, Any], Found] | None:
    """Run the audit; return its result, JSON-ready, and what it comes from; None where the victim is not."""
    flags, config, begin = audit.flags, laboratory.config, time.perf_counter()
    found: Found | None
    claim: Claim = PairsClaim(())
    with Progress(audit.runs * laboratory.plan.rounds, shown=shown and laboratory.listens) as laboratory.progress:
        if flags.figures:
            found = audit_figures(laboratory, flags.runs)
        elif flags.one_run:
            found = audit_one_run(laboratory, flags.guesses, flags.confidence)
        else:
            if laboratory.listens:
                claim = certified_claim(laboratory.claim, config.delta)
            found = audit_runs(laboratory, flags.runs, flags.confidence, claim, _other_claim(laboratory))
    if found is None:
        return None
    seconds = time.perf_counter() - begin
    pace = {"seconds": round(seconds, 3), "rounds_per_second": round(audit.runs * laboratory.plan.rounds / seconds, 1)}
    return _result(audit, laboratory, found, claim) | pace, found


def audit_figures(laboratory: Laboratory, runs: int) -> Figures | None:
    """Run both worlds `runs` times from start to closing, and compare the figures; None where the victim is not."""
    worlds: dict[int, list[dict[str, float]]] = {1: [], -1: []}
    for k in range(runs):
        order = (1, -1) if k % 2 else (-1, 1)  # neither world comes first
        for sign in order:
            worlds[sign].append(laboratory.run_whole(laboratory.world(sign)))
            laboratory.progress.update(laboratory.runs * laboratory.plan.rounds)
    return compare(worlds[1], worlds[-1]) if laboratory.listens else None


def claimed_epsilon(laboratory: Laboratory) -> float | None:
    """Return the epsilon that is claimed: the one that was asked for, or the paper's for this noise."""
    config = laboratory.config
    return config.epsilon if config.epsilon is not None else laboratory.plan.claimed_epsilon(laboratory.sigma)


def _other_claim(laboratory: Laboratory) -> Claim | None:
    """Return the claim of a paper's theorem; None where the claim is what is certified."""
    config, epsilon = laboratory.config, claimed_epsilon(laboratory)
    if epsilon is None or (config.epsilon is not None and config.calibration == "certified"):
        return None
    return PairsClaim(((epsilon, config.delta),))


def _result(audit: Audit, laboratory: Laboratory, found: Found, claim: Claim) -> dict[str, Any]:
    flags, config = audit.flags, laboratory.config
    certified, claimed = spent_epsilon(laboratory.claim, config.delta), claimed_epsilon(laboratory)
    result: dict[str, Any] = {
        "dpmpi": __version__,
        "audit": audit.kind,
        "algorithm": config.algorithm,
        "ranks": laboratory.plan.ranks,
        "records": flags.records,
        "rounds": laboratory.plan.rounds,
        "batch": laboratory.settings.drawn.describe(),
        "loss": flags.loss,
        "heard": heard_in_words(audit, laboratory),
        "sigma": laboratory.sigma,
        "weakened": flags.weaken,
        "delta": config.delta,
        "calibration": config.calibration if config.epsilon is not None else "noise given",
        "insecure_noise": config.insecure_noise_seed is not None,
        "releases": sum(laboratory.claim.values()),
        "claimed": claimed,
        "certified": certified,
        "mu_certified": claim.mu if isinstance(claim, GaussianClaim) else None,
        "confidence": flags.confidence,
    }
    if isinstance(found, Figures):
        told = found.separates(flags.confidence)
        clearest = [{"figure": name, "p": p} for name, p in found.clearest]
        result |= {"runs": flags.runs, "figures": found.count, "clearest": clearest}
        return result | {"lower": 0.0, "verdict": FIGURE if told else CONSISTENT}
    as_planned = laboratory.charged == laboratory.claim
    result |= {"ledger_as_planned": as_planned, "lower": found.epsilon, **found.evidence()}
    if isinstance(found, Worlds):
        result |= {"runs": flags.runs, "others": flags.others}
        refuted, other = found.certified.refuted, found.claimed is not None and found.claimed.refuted
    else:
        refuted = certified is not None and found.epsilon > certified
        other = claimed is not None and found.epsilon > claimed
    verdict = VIOLATION if refuted else LEDGER if not as_planned else REFUTED if other else CONSISTENT
    return result | {"verdict": verdict}


def heard_in_words(audit: Audit, laboratory: Laboratory) -> str:
    """Return which figures of the process were audited."""
    messages, noise, n = laboratory.settings.messages, laboratory.settings.noise, laboratory.plan.ranks
    if audit.flags.figures:
        return "all numbers that rank 0 hands over outside of the rounds"
    if noise.place == "pairs":
        known = noise.colluders or 0
        return f"all messages of all ranks, with the secrets of {known} colluder{'s' * (known != 1)}"
    if not isinstance(messages, SharedSums):
        return "all messages that rank 0 sends and receives in the rounds, inside of the seals"
    known = n - 1 if noise.colluders is None else noise.colluders
    return f"the shared sums, less what {known} colluders put into them"
