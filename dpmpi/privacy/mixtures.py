"""What random weights hide: uniform plus Laplace noise, in one coordinate.

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

Renyi divergence. Let E(t) = integral of p(x-t)^alpha p(x)^(1-alpha), p = e^f/2, and D(t) = log E(t) / (alpha - 1).

    E(t) - 1 = integral of p (e^(alpha r) - 1 - alpha (e^r - 1)),   r(x) = f(x-t) - f(x)               (4)
    (log E)'' = alpha (alpha - 1) Cov( f'(x-t), f'(x) )                                                (5)
    E(t) - 1 <= alpha (alpha-1) J t^2/2 e^((alpha - 1/2) t),   J = integral of p f'^2                  (6)

(4) subtracts the integral of alpha (p(x-t) - p(x)) = 0, so that nothing cancels. In (5) the covariance is under the
density p(x-t)^alpha p(x)^(1-alpha) / E: integrate by parts once in E'' and either way in E'. Both factors fall with x,
so it is not negative (Chebyshev): D is convex in t, hence increasing. (6): by the same parts E'' is alpha (alpha-1)
times the integral of sqrt(p(x-t) p(x)) e^((alpha-1/2) r) f'(x-t) f'(x), where |r| <= t; Cauchy-Schwarz leaves J.
Unlike for Laplace noise alone, D is not concave in t^2: for wide intervals it grows faster, up to t of about w.

Adding an independent uniform draw is post-processing, so D never exceeds that of Laplace noise, and an interval of
width w does no worse than one of width w/n, n whole.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.privacy.renyi import exp_rest, laplace_divergence

_ERROR = 1e-9  # of the quadrature, relative
_WIDEST = 1e4  # wider intervals are priced as an n-th of their width
_STEEPEST = 256.0  # beyond this product of order and shift the weights are not counted


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
        raise ConfigError("a realised loss needs beta > 0, a shift >= 0 and low <= high, found other values")
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
        raise ConfigError(f"gamma needs beta > 0, omega >= 0 and shift > 0, found {beta}, {omega} and {shift}")
    h = w / 2
    total = -math.expm1(-w) / w if w > 0 else 1.0  # both tails, where the loss is t
    for start, end in ((0.0, max(h - t, 0.0)), (max(h - t, 0.0), h)):
        u, weights = _graded(_levels(end - start), 1)
        x, width = start + (end - start) * u, np.full(u.shape, w)
        f = log_density(x, width)
        total += (end - start) * float(np.sum(weights * np.exp(f) * (f - log_density(x + t, width)))) / t
    return total


def mixture_divergence(order: float, beta: Array | float, omega: Array | float, shift: Array | float) -> Array:
    """Return the Renyi divergence D of two such outputs whose intervals, of width `omega`, lie `shift` apart.

    By quadrature of (4), whose relative error is below 1e-9; so much is added. `beta`, `omega`, `shift` are broadcast.
    """
    if not 1 < order < math.inf:
        raise ConfigError(f"a Renyi divergence needs 1 < order < inf, found {order}")
    b, width, moved = np.broadcast_arrays(*(np.asarray(v, float) for v in (beta, omega, shift)))
    w, t = (b * width).ravel(), np.abs(b * moved).ravel()
    if not (np.all(b > 0) and np.all(w >= 0) and np.all(np.isfinite(w)) and np.all(np.isfinite(t))):
        raise ConfigError("a divergence needs beta > 0, finite widths >= 0 and finite shifts, found other values")
    found = laplace_divergence(order, t)
    w = w / np.maximum(np.ceil(w / _WIDEST), 1.0)
    todo = (order * t <= _STEEPEST) & (t > 0) & (w > 0)
    if np.any(todo):
        power = _power(order, w[todo], t[todo])
        found[todo] = np.minimum(found[todo], np.log1p(power) / (order - 1) * (1 + _ERROR))
    return found.reshape(b.shape)


def mixture_curvature(order: float, beta: float, omega: Array, reach: float) -> Array:
    """Return c with D(shift) <= c shift^2 for all shifts up to `reach`, for each width of `omega`.

    Up to t0 = 0.005/(order - 1/2) by (6); beyond, D lies below its chords on a grid, as it is convex, and a chord
    A + B t, A <= 0, over t^2 is largest at -2A/B, or at an end. c is at most that of Laplace noise, order beta^2/2.
    """
    w = np.asarray(beta * omega, float).ravel()
    w = w / np.maximum(np.ceil(w / _WIDEST), 1.0)
    last = beta * reach
    first = min(0.005 / (order - 0.5), last)
    c = order * _information(w) / 2 * math.exp((order - 0.5) * first)  # (6)
    if last > first:
        t = np.geomspace(first, last, 2 + math.ceil(math.log(last / first) / math.log(1.12)))
        blocks = np.array_split(w[:, None], 1 + len(w) // 64)  # for the memory's sake
        D = np.concatenate([mixture_divergence(order, 1.0, block, t[None, :]) for block in blocks])
        B = np.diff(D) / np.diff(t)
        A = np.minimum(D[:, 1:] - B * t[1:], 0.0)
        peak = np.clip(-2 * A / B, t[:-1], t[1:])
        c = np.maximum(c, np.max((A + B * peak) / peak**2, axis=1))
    return np.asarray(np.minimum(c, order / 2) * beta**2).reshape(np.shape(omega))


def _power(order: float, w: Array, t: Array) -> Array:
    """Return E(t) - 1 of (4) for w, t > 0: the tails in closed form, three pieces between them by quadrature."""

    def excess(r: Array) -> Array:
        return np.asarray(exp_rest(order * r) - order * exp_rest(r))

    h = w / 2
    tail = -np.expm1(-w) / (2 * w)
    total = tail * (excess(-t) + np.exp(-t) * excess(t))
    panels = math.ceil((order * float(t.max()) + float(np.minimum(w, t).max())) / 8)
    edges = (-h, np.minimum(t - h, h), np.maximum(t - h, h), t + h)
    levels = _levels(float(np.max(edges[2] - edges[1])))
    for start, end, graded in zip(edges[:-1], edges[1:], (0, levels, 0), strict=True):
        u, weights = _graded(graded, panels)
        x = start[:, None] + (end - start)[:, None] * u
        f = log_density(np.abs(x), w[:, None])
        r = log_density(np.abs(x - t[:, None]), w[:, None]) - f
        total = total + (end - start) * ((np.exp(f) / 2 * excess(r)) @ weights)
    return np.asarray(total)


def _information(w: Array) -> Array:
    """Return J of (6): 1 for w = 0."""
    h = w[:, None] / 2
    u, weights = _graded(_levels(float(np.max(h, initial=0.0))), 1)
    left, right = np.exp(-h * (1 + u)), np.exp(-h * (1 - u))
    inside = np.where(h > 0, -np.expm1(-h * (1 + u)) - np.expm1(-h * (1 - u)), 1.0)
    safe = np.where(w > 0, w, 1.0)
    tails = np.where(w > 0, -np.expm1(-safe) / safe, 1.0)
    return np.asarray(tails + 0.5 * (((left - right) ** 2 / inside) @ weights) * (w > 0))


def _levels(length: float) -> int:
    """Return how often a piece is to be halved towards its ends, where the integrands vary over lengths of one."""
    return max(1, math.ceil(math.log2(length)) if length > 1 else 1)


@lru_cache(maxsize=64)
def _graded(levels: int, panels: int) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights on [0, 1]: 16 in each panel; panels shrink to 2^-levels at both ends."""
    x, weights = np.polynomial.legendre.leggauss(16)
    halves = 2.0 ** -np.arange(1, levels + 1)
    cuts = np.unique(np.concatenate([[0.0, 1.0], halves if levels else [], 1 - halves, np.linspace(0, 1, panels + 1)]))
    lengths = np.diff(cuts)[:, None]
    return (cuts[:-1, None] + lengths * (x + 1) / 2).ravel(), (lengths * weights / 2).ravel()
