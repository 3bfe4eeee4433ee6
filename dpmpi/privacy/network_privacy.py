"""What a curious rank learns from the few messages that it hears: a proven bound, for reports alone.

The certificate of a run is that of `wire`, who hears everything. A rank hears its neighbours alone, and what comes from
further away has met the noise of every rank on its way. Let all ranks begin with m_k(0) = 0 and say, t = 1 ... T,

    y_j(t) = sum_k w_jk m_k(t-1)                                                                    (1)
    m_j(t) = F_jt(y_j(t)) + s_j(t) nu_j(t),    nu_j(t) ~ N(0, I), fresh in every message            (2)

with maps that move no two points apart, |F_jt(y) - F_jt(y')| <= |y - y'|. One record of rank u moves F_ut by at most
b_t, at every point; it moves no other map. The ranks A are curious: they know all that they have, and hear B, the ranks
j outside of A with w_aj != 0 for some a in A. H are all ranks but A, e_u is the unit vector of u.

Theorem. Take any vectors c(0) = 0, c(1), ..., c(T) over H with c(t) >= 0 and c_j(t) = 0 for j in B. Then, with

    x(t) = max(0, |W_HH| c(t-1) + b_t e_u - c(t))                                                   (3)

what A sees in T rounds is mu-Gaussian DP with regard to the records of u, for

    mu^2 = sum_t sum_{j in H} (x_j(t) / s_j(t))^2.                                                  (4)

If c(T) = 0, then that holds also if A is told the last messages m_j(T) of all ranks at the end.

Proof. Couple two worlds, with the record and without (marked '), such that |m'_k(t) - m_k(t)| <= c_k(t) for k in H and
m'_a(t) = m_a(t) for a in A. It holds for t = 0. Let it hold for t - 1, and let

    d_j = F'_jt(y'_j(t)) - F_jt(y_j(t)),    g = |W_HH| c(t-1) + b_t e_u.                            (5)

Then |d_j| <= g_j for j in H: |y'_j - y_j| <= (|W_HH| c(t-1))_j by (1), as the messages of A are the same, F_jt moves
them no further apart, and for j = u the record adds b_t. Let the part theta_j = min(1, c_j(t) / g_j) of it pass (1 if
g_j = 0), and let the noise absorb the rest:

    s_j nu'_j = s_j nu_j - (1 - theta_j) d_j                                                        (6)

Now m'_j - m_j = theta_j d_j, of length at most min(g_j, c_j(t)), and the noise was moved by at most
(1 - theta_j) g_j = max(0, g_j - c_j(t)) = x_j(t). A rank a of A hears A and B alone, whose messages are the same, so
that with nu'_a = nu_a its own are, too. Hence V'(nu') = V(nu) for what A sees, V and V', in the two worlds; with
c(T) = 0 for all last messages, too. nu' is nu, moved at every (t, j) by a function of what came before, by at most
x_j(t) / s_j(t): who tells V(nu) = V'(nu') from V'(nu) tells nu' from nu, which by adaptive composition of Gaussian
mechanisms is no easier than telling N(mu, 1) from N(0, 1) with (4) [DRS, Corollary 3.3]. QED. W need not be stochastic.

Certificates. `_profiles` takes c(t) = h_t E with E >= 0, E_B = 0 and h_t = b_t, which for c(T) = 0 falls to 0 in the
last k rounds. For b_t = b, s_j = s and many rounds this is

    mu <= (b sqrt(T) / s) min over E of |e_u - (I - W_HH) E|_2                                      (7)

In general (4) is, but for the maximum in (3), a quadratic function of E >= 0; non-negative least squares finds its
minimum. Whatever the solver finds, (4) holds for every E: `_price` evaluates it with all roundings upwards. E = 0 is
the wire. For u in B nothing better exists by (7): the figure never lowers the noise of a run.

Without E >= 0, (7) would be the projection of e_u that is exact where gradients do not answer to what was heard. It is
no bound where they do: differences that come back with another sign do not cancel (tests/privacy/
test_network_privacy.py keeps it as a mistake that must be found).

Where it ends. (2) is about real numbers. Here releases lie on a grid of 2^-20 of their deviation (`samplers.py`), and a
message is such a release plus what was heard before, whose digits below the grid no noise covers. What those digits
tell is covered by the figure of the wire alone.

[DRS] Dong, Roth, Su. Gaussian differential privacy. JRSS B 84(1), 2022.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from dpmpi.core import Array

_UP = 1.0 + 2.0**-50
"""Covers four roundings of positive numbers, each by a factor of at most 1 + 2^-53."""
_DOWN = 1.0 - 2.0**-50
_TINY = 1e-290
"""More than all that underflow can take from a sum of a billion terms."""
_RIDGE = 1e-13
"""Of the largest entry of a matrix, so that its factor exists also where ranks never hear of the curious ones."""


def network_mus(
    W: Array, curious: Collection[int], moves: Array, deviations: Array, *, told_at_end: bool
) -> list[float | None]:
    """Return a bound of mu of (4) for every rank's records; None for the curious ranks.

    `moves` has b_t of the records of rank u in row u, `deviations` s_j(t) in row j. With `told_at_end` the curious
    ranks are told all last messages.
    """
    n = len(W)
    H = [j for j in range(n) if j not in curious]
    heard = np.array([any(W[a, j] != 0.0 for a in curious) for j in H])
    V, s = np.abs(W[np.ix_(H, H)]), deviations[H]
    solved: dict[bytes, _Quadratic] = {}
    found: list[float | None] = [None] * n
    for place, u in enumerate(H):
        b = moves[u]
        choices = [(_wire(b, s[place]) ** 2, np.zeros(len(H)), b)]
        for h in _profiles(b, told_at_end=told_at_end):
            key = (h / b[0]).tobytes()
            if key not in solved:
                solved[key] = _Quadratic(V, ~heard, h / b[0], s)
            choices.append((*solved[key].minimise(place, b), h))
        _, E, h = min(choices, key=lambda choice: choice[0])
        found[u] = min(_price(V, place, E, h, b, s), _wire(b, s[place]))
    return found


def _profiles(b: Array, *, told_at_end: bool) -> Iterator[Array]:
    """Yield h_1 ... h_T: as b_t or as the largest of it so far; with `told_at_end`, 0 at the end."""
    T = len(b)
    lengths = [2**i for i in range(T.bit_length())] if told_at_end else [0]
    most = np.maximum.accumulate(b)
    for base in [b] if np.array_equal(b, most) else [b, most]:
        for k in lengths:
            yield base * np.minimum(1.0, (T - np.arange(1.0, T + 1.0)) / k) if k else base


class _Quadratic:
    """(4) without the maximum in (3), as a function of E, for c(t) = h_t E and any rank's records; at least (4)."""

    def __init__(self, V: Array, free: Array, h: Array, s: Array) -> None:
        self._V, self._free, self._h, self._s = V, np.flatnonzero(free), h, s
        before, precision = _before(h), s**-2.0
        now, both, last = (precision @ product for product in (h * h, h * before, before * before))
        G = np.diag(now) - both[:, None] * V - (both[:, None] * V).T + V.T @ (last[:, None] * V)
        G = G[np.ix_(self._free, self._free)]
        self._size = max(float(np.abs(G).max(initial=0.0)), _TINY)  # the solver has absolute tolerances
        self._factor: Array = np.asarray(np.linalg.cholesky(G / self._size + _RIDGE * np.eye(len(G))), np.float64)

    def minimise(self, u: int, b: Array) -> tuple[float, Array]:
        """Return the least value over E >= 0 with E_B = 0, about, and E."""
        E, precision, scale = np.zeros(len(self._V)), self._s[u] ** -2.0, b[0]
        wire = float(precision @ (b * b))
        if not len(self._free):
            return wire, E
        linear = -(precision @ (b * _before(self._h))) * self._V[u, self._free]
        linear[self._free == u] += precision @ (b * self._h)
        linear /= scale * self._size
        target = np.linalg.solve(self._factor, linear)
        E[self._free] = _least_squares(self._factor.T, target)
        moved = self._factor.T @ E[self._free]
        return wire + scale**2 * self._size * float(moved @ moved - 2.0 * (linear @ E[self._free])), E


def _least_squares(M: Array, target: Array) -> Array:
    """Return the minimiser of |M E - target| over E >= 0, about; whatever is returned is not negative.

    `nnls` of some versions of scipy stops at points where the gradient is far from zero; then another solver goes on.
    """
    from scipy.optimize import lsq_linear, nnls  # noqa: PLC0415 - takes long to import

    try:
        E: Array = nnls(M, target)[0]
    except RuntimeError:  # too many iterations
        E = np.zeros(M.shape[1])
    downhill = M.T @ (target - M @ E)
    if np.max(np.where(E > 0.0, np.abs(downhill), downhill)) > 1e-4 * np.abs(M.T @ target).max():
        E = lsq_linear(M, target, (0.0, np.inf), method="bvls").x
    return np.asarray(np.maximum(E, 0.0))


def _before(h: Array) -> Array:
    """Return h_{t-1}, or h_t where that is more: (3) is not more for it, and its maximum matters less."""
    return np.asarray(np.maximum(np.append(0.0, h[:-1]), h))


def _wire(b: Array, s: Array) -> float:
    """Return mu of who hears all messages, at least: sqrt of the sum of (b_t / s_u(t))^2."""
    ratio = b / s
    return math.sqrt(float(ratio @ ratio) * (1.0 + (len(b) + 16.0) * 2.0**-52)) * _UP


def _price(V: Array, u: int, E: Array, h: Array, b: Array, s: Array) -> float:
    """Return mu of (4) for c(t) = h_t E, rounded up.

    All terms are positive but for one difference, whose first part is rounded up and whose second down.
    """
    n, T = s.shape
    arrives = (V @ E) * (1.0 + (n + 8.0) * 2.0**-52) + _TINY
    g = np.outer(arrives, np.append(0.0, h[:-1])) * _UP
    g[u] += b
    x = np.maximum(0.0, g * _UP - np.outer(E, h) * _DOWN) * _UP  # (3)
    ratio = x / s
    total = float(np.sum(ratio * ratio)) * (1.0 + (n * T + 32.0) * 2.0**-52) + _TINY
    return math.sqrt(total) * _UP  # (4)
