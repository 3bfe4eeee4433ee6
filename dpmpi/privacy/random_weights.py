"""Local privacy of methods with random weights and Laplace noise: what the weights hide, and figures to compare.

A release of rate beta = 1/b on d coordinates, which one record moves by at most Delta_2 in L2, and hence none of them
by more, has a pure loss of d beta Delta_2 coordinate by coordinate, beta sqrt(d) Delta_2 by the L1 norm, and less by
its Renyi divergence. Random weights hide more, given what was sent before.

An output X is uniform on [low, high], as random weights make it, plus Laplace noise of rate beta (scale 1/beta). One
record moves the interval by at most `shift`. With x the distance of X from the middle of the interval, in units of
1/beta, w = beta (high - low) and h = w/2, the density of X is (beta/2) e^f(x),

    x >= h:   f(x) = h - x + log( (1 - e^-w) / w )                                                     (1)
    x <= h:   f(x) = log( (2 - e^-(h+x) - e^-(h-x)) / w )                                              (2)

f is even, concave (the convolution of two log-concave densities), and of slope at most 1. Let t = beta shift.

Realised loss. sup over |s| <= t of |f(x) - f(x-s)| is reached by moving away from the middle:

    loss(x) = f(x) - f(x + t),   x >= 0.                                                               (3)

For a move towards the middle gains at most f(x - min(x, t)) - f(x), which is no more: a concave function falls less
over a stretch that is no longer and lies further in. And a move past it ends at |x - s| < x + t.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import equal_split_pld_epsilon, rdp_epsilon
from dpmpi.privacy.renyi import zcdp_epsilon
from dpmpi.privacy.spending import Spending, inverse_square, release_group


def log_density(x: Array, w: Array) -> Array:
    """Return f(x) for x >= 0, equations (1) and (2); w = 0 is Laplace noise."""
    h = w / 2
    safe = np.where(w > 0, w, 1.0)
    spread = np.where(w > 0, -np.expm1(-safe) / safe, 1.0)
    inner = np.minimum(x, h)
    inside = (-np.expm1(-(h + inner)) - np.expm1(-(h - inner))) / safe
    return np.asarray(np.log(np.where(x < h, inside, spread)) - np.maximum(x - h, 0.0))


def realised_loss(low: Array, high: Array, output: Array, beta: float, shift: float) -> Array:
    """Return the loss (3) of each coordinate of `output`: Theorem 2.2 of [XYD] in closed form.

    It is a function of private data, through the interval: for the rank's own log, never to be sent or acted on. Its
    sum is what this output gave away, not a guarantee for the run.

    [XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
    """
    w, t = beta * (high - low), beta * shift
    if not 0 < beta < math.inf or not 0 <= shift < math.inf or not np.all(w >= 0):
        raise ConfigError("expected beta > 0, a shift >= 0 and low <= high, found other values")
    x = np.abs(beta * (output - low) - w / 2)
    # beyond the interval f is linear: there the difference is t exactly, where that of two logarithms would be rounded
    return np.asarray(np.where(x >= w / 2, t, log_density(x, w) - log_density(x + t, w)))


def gamma_reduction(beta: float, omega: float, shift: float) -> float:
    """Return gamma of [XYD] Section 2: the expectation of the loss (3), over its largest value beta shift.

    For any width omega, where (11) of [XYD] is for omega > shift. Corrected: the proof takes the loss near an end of
    the interval to be that of moving towards the middle; moving away loses more, so (11) is no bound, see
    `theorems.local_gamma`; its (27) prints e^(omega shift) for e^(beta shift).
    """
    w, t = beta * omega, beta * shift
    if not (0 < beta < math.inf and 0 <= omega < math.inf and 0 < shift < math.inf):
        raise ConfigError(f"expected beta > 0, omega >= 0 and shift > 0, found {beta}, {omega} and {shift}")
    h = w / 2
    total = -math.expm1(-w) / w if w > 0 else 1.0  # both tails, where the loss is t
    for start, end in ((0.0, max(h - t, 0.0)), (max(h - t, 0.0), h)):
        u, weights = graded(levels(end - start), 1)
        x, width = start + (end - start) * u, np.full(u.shape, w)
        f = log_density(x, width)
        total += (end - start) * float(np.sum(weights * np.exp(f) * (f - log_density(x + t, width)))) / t
    return total


def levels(length: float) -> int:
    """Return how often a piece is to be halved towards its ends, where the integrands vary over lengths of one."""
    return max(1, math.ceil(math.log2(length)) if length > 1 else 1)


@lru_cache(maxsize=64)
def graded(levels: int, panels: int) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights on [0, 1]: 16 in each panel; panels shrink to 2^-levels at both ends."""
    x, weights = np.polynomial.legendre.leggauss(16)
    halves = 2.0 ** -np.arange(1, levels + 1)
    cuts = np.unique(np.concatenate([[0.0, 1.0], halves if levels else [], 1 - halves, np.linspace(0, 1, panels + 1)]))
    lengths = np.diff(cuts)[:, None]
    return (cuts[:-1, None] + lengths * (x + 1) / 2).ravel(), (lengths * weights / 2).ravel()


def laplace_figures(spending: Spending, delta: float) -> dict[str, float]:
    """Return the epsilons of Laplace releases on all records, by one way of counting after the other.

    worst_case    pure: every coordinate moves by the whole L2 sensitivity, as if it bounded nothing but each of them
    l1            pure: the sum of the L1 sensitivities over the scales
    zcdp          at `delta`, rho = sum (Delta_2/b)^2/2; needs no more than that the noise is Laplace
    rdp           at `delta`, Renyi divergence: the certified figure, where it is below l1
    pld           at `delta`, if all shifts are spread evenly: not a guarantee, see `equal_split_pld_epsilon`
    """
    groups = [release_group(event, count) for event, count in spending.items()]
    if any((group.noise, group.kind) != ("laplace", "full") for group in groups):
        raise ConfigError("expected laplace noise on all records, found other releases: use the accountants")
    rho = math.fsum(inverse_square(group.z, group.times) / group.coordinates / 2 for group in groups)
    return {
        "worst_case": math.fsum(group.times * math.sqrt(group.coordinates) / group.z for group in groups),
        "l1": math.fsum(group.times / group.z for group in groups),
        "zcdp": zcdp_epsilon(rho, delta),
        "rdp": rdp_epsilon(spending, delta),
        "pld": equal_split_pld_epsilon(spending, delta),
    }


class RealisedLosses:
    """A `Witness` that records the realised loss of each output of a method with random weights.

    A realised loss is a function of the data: it stays on its rank, in a file that only its owner can read. It is no
    guarantee, and nothing may stop or change because of it.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        """The loss of each output, summed over its coordinates."""
        self.largest: list[float] = []
        """What it would have been at worst: reach/scale in every coordinate."""

    def saw(self, output: Array, low: Array, high: Array, scale: float, reach: float) -> None:
        """Note one output."""
        self.losses.append(float(np.sum(realised_loss(low, high, output, 1.0 / scale, reach))))
        self.largest.append(output.size * reach / scale)
