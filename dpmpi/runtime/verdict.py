"""Say from public figures what to expect of a run: good, weak or mostly noise.

With nu the noise of the mean gradient per unit of the clip over all rounds, of what the method releases
(`expectation.py`), m columns, pi the declared share of the smaller class (if nobody says, 1/2; 1/sqrt(2 K) for K
classes), tau how far the settings go (flow time) and tau* how far this noise lets them go:

    F = nu m^(1/4) / pi^2          how hard it is to see the classes through the noise                (1)
    F = nu m^(1/2)                 the same for numbers and counts                                    (1')
    r = tau / tau*                 above 1 the noise of a score, tau L nu, outgrows what is learned   (2)

    mostly noise   F >= 1.26 or r >= 10                                                               (3)
    weak           F >= 0.64, or tau < 2/pi^3 with r < 0.1 and pi < 0.45 (or unknown: 0.45)           (4)
    good           otherwise                                                                          (5)

With (1') the limits of F are 0.4 and 0.12: from a fifth, and from half, of the R^2 without noise on.

If the budgets of the ranks have room for the part s < 1 of the planned releases, training ends early: it sees the
classes through the noise of fewer rounds, and goes less far,

    F / sqrt(s) instead of F                                                                          (6)
    mostly noise   s < 0.1;    weak   s < 0.5                                                         (7)

(A careful choice that was fitted to nothing: an easy set is learned with a twentieth of the releases, too.)

The second part of (4) is a run that stops while it still puts all records into the larger class. Where pi is not
declared and the word is good, the line names the share below which (1) is weak. What would do (for even classes if pi
is not declared): nu falls as 1/N in the records and as 1/mu in the Gaussian DP of (epsilon, delta), so (1) is solved
for N, and for epsilon by mu; for the noise where that is given instead of epsilon. The constants were fitted on
simulated runs (docs/experiments/defaults.md): a guide, not a theorem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu

Word = Literal["good", "weak", "mostly noise"]

WEAK_NOISE, MOST_NOISE = 0.64, 1.26
"""F of (4) and (3)."""
WEAK_NUMBERS, MOST_NUMBERS = 0.12, 0.4
"""The same for (1')."""
MORE_NOISE = 1.5
"""From so many times the usual noise, or clip, on it is told."""
MOST_FLOW = 10.0
"""r of (3)."""
WEAK_CUT, MOST_CUT = 0.5, 0.1
"""s of (7)."""
SHORT_FLOW, SHORT_PART, SMALL_CLASS = 2.0, 0.1, 0.45
"""tau pi^3, r and pi of the second part of (4)."""


@frozen
class Figures:
    """What everybody may know about a run before it starts."""

    ranks: int
    records: int
    smallest: int
    """The records of the smallest rank."""
    dimension: int
    clip: float
    nu: float
    """The noise of the mean gradient in a coordinate per unit of `clip`, by all releases; 0 without noise."""
    usual: float = 0.0
    """The same if all records were released under Gaussian noise; 0 where that is not known."""
    share: float | None = None
    """The declared share of the smaller class."""
    flow: float | None = None
    """How far the settings go, None if the method does not say."""
    advised: float | None = None
    """How far this noise lets them go."""
    clip_ratio: float = 1.0
    """The clip over the usual one; where it is above 1 `nu` and `usual` are, and below 1 `flow` is, so many times."""
    epsilon: float | None = None
    delta: float = 1e-5
    classes: int = 2
    """K"""
    fits: float = 1.0
    """s"""
    numbers: bool = False
    """Whether labels are numbers or counts, not classes."""

    @property
    def limits(self) -> tuple[float, float]:
        """F of (4) and (3)."""
        return (WEAK_NUMBERS, MOST_NUMBERS) if self.numbers else (WEAK_NOISE, MOST_NOISE)

    def check(self) -> None:
        """Raise `ConfigError` for figures that no run has."""
        if min(self.ranks, self.records, self.dimension) < 1 or self.clip <= 0 or self.nu < 0:
            raise ConfigError(
                "expected ranks, records, columns and a clip above 0 and noise of at least 0, found "
                f"{self.ranks}, {self.records}, {self.dimension}, {self.clip:g} and {self.nu:g}"
            )
        if self.share is not None and not 0 < self.share <= 0.5:
            raise ConfigError(f"expected a share of the smaller class above 0 and at most 0.5, found {self.share:g}")


@frozen
class Verdict:
    """A word, one line for people, and the figures behind them."""

    word: Word
    line: str
    figures: dict[str, Any]


def verdict(figures: Figures) -> Verdict:
    """Return the verdict on a run with these figures, (3) to (5)."""
    figures.check()
    F, r, s = hardness(figures), overshoot(figures), figures.fits
    seen = F / math.sqrt(s) if s > 0 else math.inf  # (6)
    early = _stops_early(figures)
    word: Word = "good"
    if figures.limits[1] <= seen or r >= MOST_FLOW or s < MOST_CUT:
        word = "mostly noise"  # (3), (7)
    elif figures.limits[0] <= seen or early or s < WEAK_CUT:
        word = "weak"  # (4), (7)
    wanted = 1.01 * F / figures.limits[0]
    records, epsilon = _enough(figures, wanted)
    least = _least_share(figures) if word == "good" else None
    only = (
        "" if least is None else f" if {no_class_below(least)} (weak or worse otherwise; say it with --smaller-class)"
    )
    expected = word if word == "mostly noise" else f"a {word} model"
    parts = [f"expect {expected}{only}: {_noise(figures)}"]
    if figures.clip_ratio > MORE_NOISE:
        parts.append(f"the clip is {figures.clip_ratio:.3g} times the usual one: more noise, and hardly more signal")
    if figures.usual and figures.nu > MORE_NOISE * figures.usual:
        more = figures.nu / figures.usual
        parts.append(f"that is {more:.2g} times what Gaussian noise on gradients of all records would be")
    if s < 1:
        parts.append(f"the budget has room for {s:.0%} of the planned releases: raise it, or plan a smaller epsilon")
    if r >= MOST_FLOW:
        parts.append(
            f"the steps go {r:.3g} times as far as the noise allows (flow {figures.flow:.3g}, not "
            f"{figures.advised:.3g}): leave settings to auto, or take a method with less noise"
        )
    elif early:
        rare = "classes that are not even" if figures.share is None else f"a class of {figures.share:.0%}"
        held = f", with a clip of {figures.clip_ratio:.2g} of the usual one," if figures.clip_ratio < 1 else ""
        parts.append(
            f"the steps cannot get far: flow {figures.flow:.3g}{held} is too short for {rare}: leave it to auto"
        )
    if records is not None:
        would = f"about {records:,} records" + (f", or epsilon {epsilon:.2g}," if epsilon is not None else "")
        parts.append(f"{would} would do{_for_even(figures)}")
    elif wanted >= 1.01 and figures.epsilon is None:
        parts.append(f"noise {wanted:.2g} times smaller would do{_for_even(figures)}")
    found = {
        "word": word,
        "hardness": F,
        "fits_budget": s,
        "overshoot": r,
        "least_share": least,
        "noise_of_mean_gradient": figures.nu,
        "smallest_rank": figures.smallest,
        "dimension": figures.dimension,
        "records_that_would_do": records,
        "epsilon_that_would_do": epsilon,
    }
    return Verdict(word, "; ".join(parts), found)


def hardness(figures: Figures) -> float:
    """Return F of (1) or (1')."""
    if figures.numbers:
        return figures.nu * math.sqrt(figures.dimension)
    share = figures.share or 1.0 / math.sqrt(2.0 * figures.classes)
    return figures.nu * math.sqrt(math.sqrt(figures.dimension)) / share**2


def overshoot(figures: Figures) -> float:
    """Return r of (2); 1 where it is not known, or without noise."""
    if figures.flow is None or figures.advised is None or figures.nu == 0 or figures.advised <= 0:
        return 1.0
    return figures.flow / figures.advised


def worse_than_nothing(zero: float | None, objective: float | None) -> str | None:
    """Return a sentence on a model whose objective is above that of the model 0, if it is known; None for any other."""
    if zero is None or objective is None or objective <= zero:
        return None
    return f"the objective {objective:.4g} is above the {zero:.4g} of a model of zeros: its scores are mostly noise"


def _stops_early(figures: Figures) -> bool:
    """Return whether the second part of (4) holds."""
    share = figures.share or SMALL_CLASS
    if figures.flow is None or figures.numbers or (figures.share or 0.0) >= SMALL_CLASS:
        return False
    if figures.share is None and figures.classes > 2:
        return False
    return figures.flow < SHORT_FLOW / share**3 and overshoot(figures) < SHORT_PART


def no_class_below(share: float) -> str:
    """Return the condition of a verdict in words."""
    return f"no class is below {100.0 * share:.3g}%"


def no_better_than_majority(metrics: Mapping[str, Any] | None) -> str | None:
    """Return a sentence on a model whose accuracy is not above that of a constant; None for any other."""
    found = (metrics or {}).get("mean") or {}
    accuracy, majority = found.get("accuracy"), found.get("majority")
    if not metrics or accuracy is None or majority is None or accuracy > majority:
        return None
    known = f"the {majority:.4f} of always naming the largest class"
    return f"the accuracy {accuracy:.4f} on {metrics['rows']:,} held-out rows is not above {known}"


def _open_share(figures: Figures) -> bool:
    """Return whether the share of the smaller class decides, and nobody declared it."""
    return not figures.numbers and figures.classes == 2 and figures.share is None


def _for_even(figures: Figures) -> str:
    return " if classes are even" if _open_share(figures) else ""


def _least_share(figures: Figures) -> float | None:
    """Return the share of a class, if nobody declared one, from which on (4) does not hold."""
    if not _open_share(figures) or not figures.nu:
        return None
    seen = figures.nu * math.sqrt(math.sqrt(figures.dimension)) / math.sqrt(figures.fits)
    return math.ceil(1000.0 * math.sqrt(seen / WEAK_NOISE)) / 1000.0


def _enough(figures: Figures, wanted: float) -> tuple[int | None, float | None]:
    """Return the records, and the epsilon, with `wanted` times less noise; None where it is fine, or does not fall."""
    if wanted < 1.01 or figures.epsilon is None:
        return None, None
    records = _two_digits(figures.records * wanted)
    if not figures.epsilon or not math.isfinite(figures.epsilon):
        return records, None
    epsilon = gdp_epsilon(gdp_mu(figures.epsilon, figures.delta) * wanted, figures.delta)
    scale = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return records, math.ceil(epsilon / scale) * scale


def _two_digits(count: float) -> int:
    """Return the count, rounded up to two digits."""
    scale: float = 10.0 ** max(0, math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / scale) * scale)


def _noise(figures: Figures) -> str:
    """Return the noise, the smallest rank and the dimension in words."""
    whole = figures.nu * math.sqrt(figures.dimension)
    return (
        f"noise of the mean gradient {whole:.2g} of the clip, {figures.records:,} records, {figures.smallest:,} on the "
        f"smallest rank, {figures.dimension:,} columns"
    )
