"""The discrete Gaussian noise of a shared sum, priced as a continuous Gaussian of slightly less variance.

Write N(x; v, s^2) for the normal density, and D(j; v, s^2) for the discrete Gaussian around an integer v: N(j; v, s^2)
over its sum over all integers j. By Poisson summation, for all real x,

    sum_j N(j; x, r^2) = 1 + 2 sum_{k>=1} e^(-2 pi^2 r^2 k^2) cos(2 pi k x)  in  1 +- h(r),                     (1)
    h(r) = 2.01 e^(-2 pi^2 r^2)

for r >= 1. Take X ~ N(v, s^2 - r^2) and round it at random, to j with probability N(j; X, r^2) / sum_i N(i; X, r^2).
As variances of independent normal numbers add up, the outcome J has, by (1),

    P(J = j)  in  N(j; v, s^2) / (1 +- h(r)),                                                                    (2)

and D(j; v, s^2) in N(j; v, s^2) / (1 +- h(s)), so that, for 2 <= r < s,

    e^-c <= D(j; v, s^2) / P(J = j) <= e^c,          c = 3 e^(-2 pi^2 r^2).                                      (3)

The noise of a sum is that of n - c honest ranks, a sum of discrete Gaussians of deviation s_0 each, whose law is within
a factor e^(+-tau) of the discrete Gaussian of the whole, tau = 5 sum_k e^(-2 pi^2 s_0^2 k/(k+1)) (Kairouz, Liu, Steinke
2021, Theorem 12). In m coordinates and T releases, each of which may depend on the earlier ones, the factors multiply:
the law of all that is seen, on either of two neighbouring data sets and whatever batches were drawn, is within

    e^(+-w),        w <= T m (c + tau)                                                                           (4)

of that of T continuous Gaussians of variance s^2 - r^2 which are then rounded at random: post-processing, that costs
nothing. If these are (eps, delta)-DP, then for every set S of outcomes

    P(S) <= e^w P'(S) <= e^w (e^eps Q'(S) + delta) <= e^(eps + 2w) Q(S) + e^w delta.                             (5)

Runs refuse parts of fewer than 64 steps, s_0 >= `LEAST_STEPS`, hence s >= 64 and tau < e^-40000; and vectors of more
than `MOST_COORDINATES`. With r^2 = 8, that is c < 1e-68, any 2^64 releases have w < 1e-36, far below the distance of
two numbers in double precision, and the accountants round up by more. What is left is the variance:

    s^2 - r^2 >= s^2 (1 - 8/64^2) = s^2 (1 - 2^-9),                                                              (6)

so that a discrete Gaussian costs what a Gaussian of 0.9990 times its deviation does, whatever its grid.
"""

from __future__ import annotations

import math

LEAST_STEPS = 64.0
"""The smallest deviation of a rank's part of the noise, in steps of the grid: a contract with `SumMechanism`."""
MOST_COORDINATES = 2**40
ROUNDING_VARIANCE = 8.0
"""r^2, in squared steps."""

CONTINUOUS_SHARE = math.sqrt(1.0 - ROUNDING_VARIANCE / LEAST_STEPS**2)
"""The deviation of the continuous Gaussian over that of the discrete one, at least: (6)."""
