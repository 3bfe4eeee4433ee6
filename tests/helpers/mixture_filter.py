"""A filter that counts random weights, beyond the Laplace noise that runs are charged for.

An output is uniform on an interval plus Laplace noise, with the density e^f/2 of random_weights.py. The widths of
the intervals over which random weights spread an output follow from what was sent before, so they are public. The Renyi
divergence of two outputs whose intervals lie t apart is at most c_l t^2 in coordinate l. With bounds B_l on the shifts
of the coordinates and Delta_2 on their L2 norm, one release costs at most

    max { sum_l c_l q_l :  0 <= q_l <= B_l^2,  sum_l q_l <= Delta_2^2 }                                     (1)

which fills the largest c_l first. Without bounds, B_l = Delta_2, that is Delta_2^2 max_l c_l: a record that moves one
coordinate alone is hidden no better than the narrowest interval hides it. Weights pay where no interval is narrow, or
where the records are clipped in each coordinate.

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

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import RdpFilter
from dpmpi.privacy.random_weights import graded, levels, log_density
from dpmpi.privacy.renyi import exp_rest, laplace_divergence
from dpmpi.privacy.spending import release_group

_ERROR = 1e-9  # of the quadrature, relative
_WIDEST = 1e4  # wider intervals are priced as an n-th of their width
_STEEPEST = 256.0  # beyond this product of order and shift the weights are not counted


class MixtureFilter(RdpFilter):
    """An `RdpFilter` that counts random weights: it admits a Laplace release at the widths of its public intervals.

    `event` is the Laplace noise alone, `widths` the lengths of the intervals, one for each coordinate, which may depend
    on all that was sent before but on nothing else; `bounds` are the B_l of (1), one for all or one for each. Where the
    widths are not given, a release costs what it costs an `RdpFilter`; it never costs more. The weights are assumed to
    be uniform on multiples of 2^-53, fresh, and as secret as the noise: against real ones they change the logarithm of
    the density of coordinate l by eta_l = 2^-53 w_l/b at most, where w_l is its width, and the divergence by
    (2 alpha - 1)/(alpha - 1) eta_l, which is added.
    """

    def cost(
        self, event: ReleaseEvent, count: int = 1, widths: Array | None = None, bounds: Array | float | None = None
    ) -> float:
        """Return the Renyi divergence of `count` such releases, by (1)."""
        plain = super().cost(event, count)
        if widths is None or plain in (0.0, math.inf):
            return plain
        group = release_group(event, count)
        if (group.noise, group.kind) != ("laplace", "full"):
            raise ConfigError(f"random weights count with laplace noise on all records only, found {event}")
        whole = event.sensitivity / math.sqrt(event.coordinates)
        limits = np.minimum(np.broadcast_to(whole if bounds is None else bounds, np.shape(widths)), whole)
        if not (np.all(np.isfinite(widths)) and np.min(widths, initial=0.0) >= 0 and np.min(limits, initial=0.0) >= 0):
            raise ConfigError("the widths of the intervals and the bounds must be finite and not negative")
        if np.size(widths) < event.coordinates:
            raise ConfigError(f"expected {event.coordinates} widths, one per coordinate, found {np.size(widths)}")
        beta, reach = 1 / event.scale, float(limits.max())
        if bounds is None:  # one narrow interval and the others are of no use
            narrowest = mixture_curvature(self.order, beta, np.array([np.min(widths)]), reach)
            if count * narrowest[0] * whole**2 >= plain:
                return plain
        c = mixture_curvature(self.order, beta, np.asarray(widths, float), reach)
        first = np.argsort(-c, kind="stable")
        reached = np.minimum(np.cumsum(limits[first] ** 2), whole**2)
        mixed = float(np.sum(c[first] * np.diff(reached, prepend=0.0)))  # (1)
        slack = (2 * self.order - 1) / (self.order - 1) * 2.0**-53 * beta * float(np.sum(widths))
        return min(plain, count * (mixed + slack))


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
    depth = levels(float(np.max(edges[2] - edges[1])))
    for start, end, grading in zip(edges[:-1], edges[1:], (0, depth, 0), strict=True):
        u, weights = graded(grading, panels)
        x = start[:, None] + (end - start)[:, None] * u
        f = log_density(np.abs(x), w[:, None])
        r = log_density(np.abs(x - t[:, None]), w[:, None]) - f
        total = total + (end - start) * ((np.exp(f) / 2 * excess(r)) @ weights)
    return np.asarray(total)


def _information(w: Array) -> Array:
    """Return J of (6): 1 for w = 0."""
    h = w[:, None] / 2
    u, weights = graded(levels(float(np.max(h, initial=0.0))), 1)
    left, right = np.exp(-h * (1 + u)), np.exp(-h * (1 - u))
    inside = np.where(h > 0, -np.expm1(-h * (1 + u)) - np.expm1(-h * (1 - u)), 1.0)
    safe = np.where(w > 0, w, 1.0)
    tails = np.where(w > 0, -np.expm1(-safe) / safe, 1.0)
    return np.asarray(tails + 0.5 * (((left - right) ** 2 / inside) @ weights) * (w > 0))
