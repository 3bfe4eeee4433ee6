"""The losses of single releases, for `verify` alone: pairs that dominate, and pairs that two data sets attain.

The numbers of the equations are those of `replay.py`, which says which pair is used for what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy.loss_sums import Loss


def _quantile(p: float) -> float:
    """Return an x with P(N(0,1) > x) <= p."""
    return math.sqrt(-2 * math.log(p))


def gaussian_loss(t: float, s: float) -> Loss:
    """Return the loss of (2); with s = 1, of (1).

    With u = e^(x t/2), k = s e^(-t^2/8) and y = e^l, the loss at x is l where (1-s+ku)/(1-s+k/u) = y.
    """
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    def place(loss: Array) -> Array:
        """Return the x with that loss; the pair is its own mirror image."""
        if s == 1:
            return loss / t
        y = np.exp(np.minimum(np.abs(loss), 700.0))
        log_k = math.log(s) - t * t / 8
        with np.errstate(divide="ignore"):
            log_b = math.log1p(-s) + np.log(y - 1) - log_k  # u = (b + sqrt(b^2 + 4 y))/2, b = (1-s)(y-1)/k
        log_u = log_b + np.log1p(np.sqrt(1 + 4 * np.exp(np.minimum(np.log(y) - 2 * log_b, 700.0)))) - math.log(2)
        log_u = np.where(2 * log_b < np.log(y) - 690, np.log(y) / 2, log_u)
        return np.asarray(np.sign(loss) * log_u * 2 / t)

    def cdf(loss: Array) -> Array:
        x = place(loss)
        return np.asarray((1 - s) * ndtr(x) + s * ndtr(x - t / 2))

    def reach(p: float) -> float:
        x = _quantile(p / 2) + t / 2
        top = x * t / 2 - t * t / 8
        over, under = (
            np.logaddexp(math.log1p(-s), math.log(s) + v) if s < 1 else v for v in (top, -x * t / 2 - t * t / 8)
        )
        return float(over - under)

    return Loss(cdf, reach)


Tails = Callable[[Array], tuple[Array, Array]]
"""For losses l >= 0: P(L > l) and Q(L > l)."""


def mirrored(tails: Tails, t: float, s: float, top: float = math.inf) -> Loss:
    """Return the loss of a pair whose negative losses are the positive ones of its mirror image, the rest at 0."""

    def cdf(loss: Array) -> Array:
        p, q = tails(np.abs(loss))
        return np.asarray(np.where(loss < 0, q, 1 - p))

    def reach(p: float) -> float:
        most = min(top, t * (_quantile(p) + t) - t * t / 2)
        return float(np.logaddexp(math.log1p(-s), math.log(s) + most)) if s < 1 else most

    return Loss(cdf, reach, (0.0,) if top == math.inf else (0.0, -reach(0.5), reach(0.5)))


def _unmixed(loss: Array, s: float) -> Array:
    """Return the loss of the release itself that shows as `loss` when it happens at rate s."""
    return np.asarray(np.log1p(np.expm1(np.minimum(loss, 500.0)) / s) + np.maximum(loss - 500.0, 0.0))


def gaussian_tails(t: float, s: float) -> Tails:
    """Return the tails of M against N(0,1) in (3)."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    def tails(loss: Array) -> tuple[Array, Array]:
        x = _unmixed(loss, s) / t + t / 2
        return (1 - s) * ndtr(-x) + s * ndtr(t - x), ndtr(-x)

    return tails


def one_sided(t: float, s: float) -> Loss:
    """Return the loss of M against N(0,1) in (3), as it is: all other records on one side, this one moves across."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    def cdf(loss: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.log(np.maximum(np.expm1(np.minimum(loss, 500.0)) / s + 1, 0.0)) + np.maximum(loss - 500.0, 0.0)
        x = moved / t + t / 2
        return np.asarray((1 - s) * ndtr(x) + s * ndtr(x - t))

    def reach(p: float) -> float:
        top = t * (_quantile(p / 2) + t) - t * t / 2
        return (
            float(max(np.logaddexp(math.log1p(-s), math.log(s) + top), -math.log1p(-s))) if s < 1 else abs(top) + t * t
        )

    return Loss(cdf, reach, (math.log1p(-s),) if s < 1 else ())


def laplace_loss(t: float) -> Loss:
    """Return the loss t - 2x of Lap(0) against Lap(t), between -t and t."""

    def cdf(loss: Array) -> Array:
        inside = np.exp((np.clip(loss, -t, t) - t) / 2) / 2
        return np.where(loss >= t, 1.0, np.where(loss < -t, 0.0, inside))

    return Loss(cdf, lambda p: t, (-t, t))


def laplace_tails(t: float, s: float) -> Tails:
    """Return the tails of (1-s) Lap(0) + s Lap(t) against Lap(0)."""

    def tails(loss: Array) -> tuple[Array, Array]:
        own = _unmixed(loss, s)
        x = (np.minimum(own, t) + t) / 2
        without, within = np.exp(-x) / 2, 1 - np.exp(x - t) / 2
        return np.where(own < t, (1 - s) * without + s * within, 0.0), np.where(own < t, without, 0.0)

    return tails


def laplace_pair(t: float, s: float) -> Loss:
    """Return the loss of (1-s) Lap(0) + s Lap(t/2) against (1-s) Lap(0) + s Lap(-t/2)."""
    a = t / 2

    def density(x: Array, at: float) -> Array:
        """Return the density over that of Lap(0)."""
        return np.asarray((1 - s) + s * np.exp(np.abs(x) - np.abs(x - at)))

    grid = np.linspace(-a, a, 20001)  # the loss is constant beyond, and grows between
    losses = np.log(density(grid, a) / density(grid, -a))
    top = float(losses[-1])

    def cdf(loss: Array) -> Array:
        x = np.interp(loss, losses, grid)
        mass = (1 - s) * _laplace_cdf(x) + s * _laplace_cdf(x - a)
        return np.where(loss >= top, 1.0, np.where(loss < -top, 0.0, mass))

    return Loss(cdf, lambda p: top, (-top, top))


def _laplace_cdf(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0.0)) / 2, 1 - np.exp(-np.maximum(x, 0.0)) / 2)


def pure_tails(t: float, s: float) -> Tails:
    """Return the tails of randomised response, which dominates everything that is t-DP, at rate s."""
    top, q = (math.log1p(s * math.expm1(t)) if t < 500 else t + math.log(s)), 1 / (1 + math.exp(min(t, 700.0)))

    def tails(loss: Array) -> tuple[Array, Array]:
        below = loss < top * (1 - 1e-12)
        return np.where(below, (1 - s) * q + s * (1 - q), 0.0), np.where(below, q, 0.0)

    return tails


def objective_loss(t: float, extra: float) -> Loss:
    """Return the loss of Gaussian noise in an objective, `extra` that of its determinant.

    It is extra + t^2/2 + t |z| with z normal, from the smallest |z| on from which P and Q of both signs together
    are at most 1, or .613 if that is more; the rest of the mass is there.
    """
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    z = np.linspace(0.613, 1.0, 4001)
    taken = 2 * ndtr(-z) + 2 * math.exp(-extra) * ndtr(-z - t)
    first = int(np.argmax(taken <= 1))
    start = extra + t * t / 2 + t * float(z[first])
    rest = (1 - float(taken[first])) / (1 + math.exp(-start))
    p0, q0 = 2 * ndtr(-z[first]) + rest, 2 * math.exp(-extra) * ndtr(-z[first] - t) + rest * math.exp(-start)

    def tails(loss: Array) -> tuple[Array, Array]:
        at = (loss - extra) / t - t / 2
        above = loss >= start
        return np.where(above, 2 * ndtr(-at), p0), np.where(above, 2 * math.exp(-extra) * ndtr(-at - t), q0)

    return replace(mirrored(tails, t + extra, 1.0), kinks=(0.0, -start, start))


def spherical_loss(t: float, m: int) -> Loss:
    """Return the loss (5): it is at most l where c <= (l^2 + 2 l r - t^2)/(2 r t)."""
    if m == 1:
        return laplace_loss(t)
    from scipy.special import betainc, gammaincinv  # noqa: PLC0415 - slow

    nodes, weights = _gamma_nodes(m)
    half = (m - 1) / 2

    def cdf(loss: Array) -> Array:
        total = np.zeros(loss.shape)
        for r, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            c = (loss * loss + 2 * loss * r - t * t) / (2 * r * t)
            total += weight * betainc(half, half, np.clip((c + 1) / 2, 0.0, 1.0))
        return np.where(loss >= t, 1.0, np.where(loss < -t, 0.0, total))

    def reach(p: float) -> float:
        """|c| <= x except with probability 2 e^(-m x^2/2) (Ball), and then -t x <= L <= t x + t^2/(2 (r - t x))."""
        x, low = math.sqrt(2 * math.log(4 / p) / m), float(gammaincinv(m, p / 2))
        return min(t, t * x + t * t / (2 * (low - t * x))) if low > t * x else t

    return Loss(cdf, reach, (-t, t))


def _gamma_nodes(m: int) -> tuple[Array, Array]:
    """Return nodes and weights of quadrature against the Gamma(m) distribution, all but 1e-17 of it."""
    from scipy.special import gammainccinv, gammaincinv, gammaln  # noqa: PLC0415 - slow

    x, w = np.polynomial.legendre.leggauss(12)
    ends = np.linspace(float(gammaincinv(m, 1e-17)), float(gammainccinv(m, 1e-17)), 31)
    middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2
    nodes = (middle[:, None] + half[:, None] * x).ravel()
    density = np.exp((m - 1) * np.log(nodes) - nodes - gammaln(m))
    return nodes, (half[:, None] * w).ravel() * density
