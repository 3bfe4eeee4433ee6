"""Two worlds: many runs over either of two adjacent shards, scored, and held against what is claimed.

A third of the runs is there to learn a test from: half of them for the score, half for the threshold. They come in
pairs of one run in each world with the same noise, under seeds that are thrown away: how a test is chosen is the
auditor's own business, and so the shift between the worlds is seen without the noise. The other runs have keys of their
own, as every run of the product, and count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dpmpi.commands.audit.laboratory import Laboratory
from dpmpi.commands.audit.score import Numbers, Table, learn, table_of_worlds
from dpmpi.commands.audit.statistics import (
    Claim,
    Counts,
    GaussianClaim,
    Rule,
    Scores,
    against,
    at_delta,
    epsilon_bound,
    mu_bound,
    refutes,
)
from dpmpi.core.frozen import frozen


@frozen
class Tested:
    """A claim, the rule that was to refute it, how often the rule was wrong, and whether that refutes the claim."""

    claim: Claim
    rule: Rule
    counts: Counts
    refuted: bool


@frozen
class Worlds:
    """The scores of the runs that count, and what they say."""

    scores: Scores
    certified: Tested
    claimed: Tested | None
    """For a claim that is not what the accountant certifies: a paper's theorem."""
    epsilon: float
    """The lower bound at the run's delta, whatever the claim."""
    mu: float | None
    """The lower bound of mu, where the claim is Gaussian DP."""
    numbers: int
    """How many numbers were heard in a run."""

    def evidence(self) -> dict[str, Any]:
        """Return the rule that tells the worlds apart and how often it was wrong, JSON-ready."""
        shown = self.claimed if self.claimed is not None and not self.certified.refuted else self.certified
        return asdict(shown.rule) | asdict(shown.counts) | {"mu_lower": self.mu, "numbers": self.numbers}


def audit_runs(
    laboratory: Laboratory, runs: int, confidence: float, certified: Claim, claimed: Claim | None = None
) -> Worlds | None:
    """Run both worlds `runs` times; return the verdicts where the victim is, None elsewhere."""
    pairs = runs // 3
    heard = collect(laboratory, runs, pairs)
    if not laboratory.listens:
        return None
    scores, numbers = score(heard, pairs, laboratory)

    def tested(claim: Claim) -> Tested:
        rule, counts = scores.test(against(claim), confidence)
        return Tested(claim, rule, counts, refutes(counts, claim, confidence))

    _, counts = scores.test(at_delta(laboratory.config.delta), confidence)
    main = tested(certified)
    return Worlds(
        scores=scores,
        certified=main,
        claimed=None if claimed is None else tested(claimed),
        epsilon=epsilon_bound(counts, laboratory.config.delta, confidence),
        mu=mu_bound(main.counts, confidence) if isinstance(certified, GaussianClaim) else None,
        numbers=numbers,
    )


def collect(laboratory: Laboratory, runs: int, pairs: int) -> dict[int, list[Numbers]]:
    """Run both worlds in turns; return what was heard in each, the pairs to learn from first."""
    found: dict[int, list[Numbers]] = {1: [], -1: []}
    base, repeatable = laboratory.seed(), laboratory.config.insecure_noise_seed is not None
    for k in range(runs):
        for sign, world in found.items():
            shared = base + 2 * k
            own = shared + (sign < 0) if repeatable else None
            noted = laboratory.run(laboratory.world(sign), shared if k < pairs else own)
            world.append(noted.numbers(laboratory.canary.dimension, laboratory.settings.scores))
    return found


def score(heard: Mapping[int, Sequence[Numbers]], pairs: int, laboratory: Laboratory) -> tuple[Scores, int]:
    """Learn from half of the pairs; return the scores of the other runs, and how many numbers each is made of.

    A threshold is chosen on the other half of the pairs: those that were learned from would flatter the score.
    """
    both = table_of_worlds(heard[1], heard[-1])
    plus, minus = (Table(table.values[: pairs // 2], table.said, table.told) for table in both)
    learned = learn(plus, minus, laboratory.rate, opposed=laboratory.canary.opposed)
    choose, count = (
        (learned.scores(both[0].values[rows]), learned.scores(both[1].values[rows]))
        for rows in (slice(pairs // 2, pairs), slice(pairs, None))
    )
    return Scores(choose, count), both[0].heard
