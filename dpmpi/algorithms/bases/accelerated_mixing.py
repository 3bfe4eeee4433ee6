"""Several mixes for one release, by Chebyshev's polynomials; what `momentum`, dual averaging and descent share.

With W the mixing matrix, lambda its second largest |eigenvalue| and K mixes, a vector y on every rank becomes P_K(W) y.
P_K is the Chebyshev polynomial of degree K on [-lambda, lambda] with P_K(1) = 1: the first mix is W y, and the others,
with y^0 = y, y^1 = W y, t_0 = 1, t_1 = 1/lambda, t_{k+1} = (2/lambda) t_k - t_{k-1}, are

    y^{k+1} = (2 t_k / (lambda t_{k+1})) W y^k - (t_{k-1} / t_{k+1}) y^{k-1}                  (1)

The mean over the ranks stays what it was, and what they disagree about shrinks by 1/t_K,
t_K = cosh(K arccosh(1/lambda)).
`auto` is the smallest K with

    1/t_K <= 0.1   or what the method needs                                                   (2)

Mixes cost messages and no privacy: what is mixed was released before. Graphs that average exactly in one mix have one.

[SBB17] Scaman, Bach, Bubeck, Lee, Massoulie. Optimal algorithms for smooth and strongly convex distributed optimization
        in networks. ICML 2017. Section 4.1 has (1) for gossip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmpi.core import Array, Method, Mix, Steps, Terms, combine, hyperparameter, public
from dpmpi.errors import ConfigError

MIXES_HELP = "mixes per release; auto: from the graph"
CLOSING_HELP = "mixes after the last round; auto: as --mixes"
MOST_MIXES = 10_000
"""On a path of 500 ranks, which mixes slowly, they leave 1e-30 of a disagreement."""
TOO_MANY_MIXES = "long before, the ranks agree to the last digit; auto takes as many as the graph needs"
LIMITS: dict[str, Any] = {"maximum": MOST_MIXES, "beyond": TOO_MANY_MIXES}
_EXACT = 1e-9  # W with a smaller lambda averages over all ranks in one mix, up to rounding
_ROUNDING = 1e-9  # of the quotient in (2), so that ranks on unlike machines agree on K


@dataclass(frozen=True)
class AcceleratedMixing(Method):
    """A method that may mix several times for one release."""

    mixes: int | None = hyperparameter(1, MIXES_HELP, minimum=1, **LIMITS)
    closing_mixes: int | None = hyperparameter(0, CLOSING_HELP, minimum=0, **LIMITS)

    def accelerates(self) -> bool:
        """Return whether there is more than one mix for a release; `auto` is one where edges change."""
        none = (None,) if self.schedule == "sampled" else ()
        return self.mixes not in (1, *none) or self.closing_mixes not in (0, *none)

    def check_mixing(self, terms: Terms) -> None:
        """Refuse edges that change from round to round, and graphs that never mix."""
        if self.accelerates() and not terms.mixing < 1.0:
            raise ConfigError(
                "expected a connected graph whose edges are all used in every round for several mixes a release, found "
                "one that never mixes: use another --graph; for sampled edges take sampled-dda with --mixes 1"
            )

    def shrinkage(self, terms: Terms) -> float:
        """Return the t_K that (2) asks for."""
        return 10.0

    def mixes_per_release(self, terms: Terms) -> int:
        """Return K; 1 on a graph that one mix averages exactly, whatever was asked for."""
        if not self.accelerates() or self.mixes == 1 or terms.mixing <= _EXACT:
            return 1
        if self.mixes is not None:
            return self.mixes
        return max(1, math.ceil(math.acosh(self.shrinkage(terms)) / math.acosh(1.0 / terms.mixing) - _ROUNDING))  # (2)

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return K, if it is derived and not 1."""
        K = self.mixes_per_release(terms)
        return {"mixes": K} if self.mixes is None and K > 1 else {}

    def mixes_at_the_end(self, terms: Terms) -> int:
        """Return the number of closing mixes; 0 where the ranks agree anyway."""
        if not self.accelerates() or self.closing_mixes == 0 or terms.mixing <= _EXACT:
            return 0
        return self.mixes_per_release(terms) if self.closing_mixes is None else self.closing_mixes


def check_gossip(method: AcceleratedMixing, terms: Terms) -> float:
    """Return a bound of the curvature of every f_i; raise `ConfigError` for what no method here is `Gossip` with."""
    if method.schedule == "sampled":
        raise ConfigError("edges are sampled: ranks are silent in some rounds")
    if method.mixes_per_release(terms) > 1 or method.mixes_at_the_end(terms):
        raise ConfigError("some mixes carry no fresh noise (--mixes, --closing-mixes)")
    if terms.l1 or terms.bounded or terms.own_penalty:
        raise ConfigError("the penalty is not l2 alone")
    if terms.largest_smoothness is None:
        raise ConfigError("the curvature of the loss has no bound (hinge, or rows of any norm)")
    return terms.largest_smoothness


def accelerate(now: Array, before: Array, scratch: Array, mixing: float, K: int, because: str) -> Steps:
    """Take `now` from y^1 to y^K by (1), with `before` = y^0; both and `scratch` are overwritten.

    In ratios r_k = t_{k-1} / t_k, which do not overflow: r_1 = lambda, r_{k+1} = 1 / (2/lambda - r_k).
    """
    r, mine, last = mixing, now, before
    for _ in range(K - 1):
        following = 1.0 / (2.0 / mixing - r)
        yield Mix(public(now, because=because), out=scratch)
        combine(last, (-following * r, last), (2.0 * following / mixing, scratch), scratch=scratch)  # (1)
        now, last, r = last, now, following
    if now is not mine:
        np.copyto(mine, now)


def mix_again(now: Array, before: Array, scratch: Array, mixing: float, K: int, because: str) -> Steps:
    """Mix `now` K times; `before` and `scratch` are overwritten."""
    if K > 1:
        np.copyto(before, now)
    if K:
        yield Mix(public(now, because=because), out=now)
        yield from accelerate(now, before, scratch, mixing, K, because)
