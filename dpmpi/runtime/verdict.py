"""Say from public figures what to expect of a run: good, weak or mostly noise.

With nu the noise of the mean gradient per unit of the clip and sqrt(round), m columns, pi the declared share of the
smaller class (1/2 if nobody says), tau how far the settings go (flow time) and tau* how far the derived ones would go:

    F = nu m^(1/4) / pi^2          how hard it is to see the classes through the noise                (1)
    r = tau / tau*                 above 1 the noise of a score, tau L nu, outgrows what is learned   (2)

    mostly noise   F >= 1.26 or r >= 10                                                               (3)
    weak           F >= 0.64, or tau < 2/pi^3 with r < 0.1 and pi < 0.45                              (4)
    good           otherwise                                                                          (5)

The second part of (4) is a run that stops while it still puts all records into the larger, declared class. What would
do: nu falls as 1/N in the records and as 1/mu in the Gaussian DP of (epsilon, delta), so (1) is solved for N, and for
epsilon by mu. The constants were fitted on simulated runs (docs/experiments/defaults.md): a guide, not a theorem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from dpmpi.errors import ConfigError
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu

Word = Literal["good", "weak", "mostly noise"]

WEAK_NOISE, MOST_NOISE = 0.64, 1.26
"""F of (4) and (3)."""
MOST_FLOW = 10.0
"""r of (3)."""
SHORT_FLOW, SHORT_PART, SMALL_CLASS = 2.0, 0.1, 0.45
"""tau pi^3, r and pi of the second part of (4)."""
ZERO_MODEL = {"logistic": math.log(2.0), "hinge": 1.0}
"""The mean loss of the model 0."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What everybody may know about a run before it starts."""

    ranks: int
    records: int
    smallest: int
    """The records of the smallest rank."""
    dimension: int
    clip: float
    nu: float
    """The noise of the mean gradient in a coordinate per unit of `clip` and sqrt(round); 0 without noise."""
    share: float | None = None
    """The declared share of the smaller class."""
    flow: float | None = None
    """How far the settings go, None if the method does not say."""
    advised: float | None = None
    """How far the derived settings would go."""
    epsilon: float | None = None
    delta: float = 1e-5

    def check(self) -> None:
        """Raise `ConfigError` for figures that no run has."""
        if min(self.ranks, self.records, self.dimension) < 1 or self.clip <= 0 or self.nu < 0:
            raise ConfigError(
                "expected ranks, records, columns and a clip above 0 and noise of at least 0, found "
                f"{self.ranks}, {self.records}, {self.dimension}, {self.clip:g} and {self.nu:g}"
            )
        if self.share is not None and not 0 < self.share <= 0.5:
            raise ConfigError(f"expected a share of the smaller class above 0 and at most 0.5, found {self.share:g}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word, one line for people, and the figures behind them."""

    word: Word
    line: str
    figures: dict[str, Any]


def verdict(figures: Figures) -> Verdict:
    """Return what to expect of a run with these figures, (3) to (5)."""
    figures.check()
    F, r = hardness(figures), overshoot(figures)
    early = _stops_early(figures)
    word: Word = "good"
    if F >= MOST_NOISE or r >= MOST_FLOW:
        word = "mostly noise"  # (3)
    elif F >= WEAK_NOISE or early:
        word = "weak"  # (4)
    records, epsilon = _enough(figures, F)
    expected = word if word == "mostly noise" else f"a {word} model"
    parts = [f"expect {expected}: {_noise(figures)}"]
    if r >= MOST_FLOW:
        parts.append(
            f"these settings go {r:.3g} times as far as the noise allows (flow {figures.flow:.3g}, derived "
            f"{figures.advised:.3g}): leave them to auto"
        )
    elif early:
        parts.append(f"flow {figures.flow:.3g} is too short for a class of {figures.share:.0%}: leave it to auto")
    if records is not None:
        would = f"about {records:,} records" + (f", or epsilon {epsilon:.2g}," if epsilon is not None else "")
        parts.append(f"{would} would do")
    found = {
        "word": word,
        "hardness": F,
        "overshoot": r,
        "noise_of_mean_gradient": figures.nu,
        "smallest_rank": figures.smallest,
        "dimension": figures.dimension,
        "records_that_would_do": records,
        "epsilon_that_would_do": epsilon,
    }
    return Verdict(word, "; ".join(parts), found)


def hardness(figures: Figures) -> float:
    """Return F of (1)."""
    return figures.nu * math.sqrt(math.sqrt(figures.dimension)) / (figures.share or 0.5) ** 2


def overshoot(figures: Figures) -> float:
    """Return r of (2); 1 where it is not known, or without noise."""
    if figures.flow is None or figures.advised is None or figures.nu == 0 or figures.advised <= 0:
        return 1.0
    return figures.flow / figures.advised


def worse_than_nothing(loss: str, objective: float) -> str | None:
    """Return a sentence on a model whose objective is above that of the model 0, None for any other."""
    zero = ZERO_MODEL.get(loss)
    if zero is None or objective <= zero:
        return None
    return f"the objective {objective:.4g} is above the {zero:.4g} of a model of zeros: its scores are mostly noise"


def _stops_early(figures: Figures) -> bool:
    """Return whether the second part of (4) holds."""
    if figures.flow is None or figures.share is None or figures.share >= SMALL_CLASS:
        return False
    return figures.flow < SHORT_FLOW / figures.share**3 and overshoot(figures) < SHORT_PART


def _enough(figures: Figures, F: float) -> tuple[int | None, float | None]:
    """Return the records, and the epsilon, for which F is just below (4); None where F already is."""
    if F < WEAK_NOISE:
        return None, None
    wanted = 1.01 * F / WEAK_NOISE
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
