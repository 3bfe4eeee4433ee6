"""Measure what `--noise-schedule optimal` does to `momentum` on a curved loss, and what the best schedule would do.

Heavy ball with step eta and momentum beta answers a unit of noise in round s, in a direction of curvature lambda, with
h_lambda(T - s), where

    h(0) = -eta,   u(0) = -eta,   u(k) = beta u(k-1) - eta lambda h(k-1),   h(k) = h(k-1) + u(k)             (1)

and what noise of deviation sigma_s adds to the loss is half of

    sum_s c_s^2 sigma_s^2,   c_s^2 = sum_j lambda_j h_j(T - s)^2,   lambda_j the eigenvalues of the Hessian    (2)

The schedule of the run has c_s for lambda = 0 instead. Rows, split, noise and derived settings are those of
`defaults.py` beside this file, epsilon 1, local noise, logistic loss.

    DPMPI_DATA=data python docs/experiments/schedule.py a9a phishing mushrooms

prints, for the Hessian at the end of a run without noise, the root of (2) relative to that of equal noise; and the
change of held-out accuracy in points over 12 splits, in which all schedules have the same draws.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from defaults import DELTA, FURTHEST, RANKS, Floats, Matrix, load, rule_rounds, rule_tau, slope
from numpy.typing import NDArray

from dpmpi.algorithms.bases.noise_schedule import relative_noise
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.rng import public_generator

CLIP, SPLITS, LEAST = 0.5, 12, 0.02
"""The clip, the splits, and the least weight of a round relative to the largest."""
Array = NDArray[np.float64]


def answers(rounds: int, eta: float, curvatures: Array) -> Array:
    """Return h of (1), a row per curvature, a column per round s = 1 ... T."""
    beta, h = 1.0 - 6.0 / rounds, np.empty((len(curvatures), rounds))
    u = h[:, -1] = np.full(len(curvatures), -eta)
    for s in range(rounds - 2, -1, -1):
        u = beta * u - eta * curvatures * h[:, s + 1]
        h[:, s] = h[:, s + 1] + u
    return h


def schedule(weights: Array) -> Array:
    """Return the relative noise of every round for the weights c_s."""
    return relative_noise(np.maximum(weights, LEAST * weights.max()))


def guesses(rounds: int, eta: float, m: int) -> dict[str, Array]:
    """Return schedules that need no data: equal noise, that of the run, and some for guessed eigenvalues of sum 1/4."""
    j = np.arange(1.0, m + 1.0)
    spectra = {"1/j": 1.0 / j, "1/j^2": 1.0 / j**2, "all alike": np.ones(m)}
    found = {"equal": np.ones(rounds), "optimal": schedule(np.abs(answers(rounds, eta, np.zeros(1))[0]))}
    for name, spectrum in spectra.items():
        part = 0.25 * spectrum / spectrum.sum()
        found[name] = schedule(np.sqrt(part @ answers(rounds, eta, part) ** 2))  # (2)
    return found


def descend(x: Matrix, y: Floats, eta: float, sigma: Array, seed: int) -> Floats:
    """Return the last x of heavy ball, a column per schedule; sigma has a row per schedule and a column per round."""
    rounds = sigma.shape[1]
    rng, beta, sign = np.random.default_rng([seed, 1]), np.float32(1.0 - 6.0 / rounds), y.reshape(-1, 1)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    w = np.zeros((x.shape[1], len(sigma)), np.float32)
    v = np.zeros_like(w)
    for t in range(rounds):
        c = np.minimum(slope(sign * (x @ w), "logistic"), CLIP / norms) * sign
        noise = rng.standard_normal((x.shape[1], 1), np.float32) * sigma[:, t].astype(np.float32)
        v = beta * v - np.float32(eta) * (noise - x.T @ c / np.float32(len(y)))
        w += v
    return w


def report(name: str) -> None:
    """Print both figures of a set."""
    x, y = load(name)
    cut, m = len(y) - round(len(y) / 10), x.shape[1]
    nu = 2.0 * math.sqrt(RANKS) / (cut * gdp_mu(1.0, DELTA))
    tau = min(rule_tau(nu, m, CLIP, 1.0), FURTHEST)
    rounds = rule_rounds(tau)
    eta = 6.0 * tau / rounds**2
    schedules = guesses(rounds, eta, m)
    p = slope(x @ descend(x, y, eta, np.zeros((1, rounds)), 0), "logistic")
    curvatures = np.maximum(np.linalg.eigvalsh((x * (p * (1.0 - p))).T @ x / len(y)).astype(np.float64), 0.0)
    c2 = curvatures @ answers(rounds, eta, curvatures) ** 2  # (2)
    noise = {kind: math.sqrt(c2 @ scale**2 / c2.sum()) for kind, scale in schedules.items()}
    noise["best"] = math.sqrt(c2 @ schedule(np.sqrt(c2)) ** 2 / c2.sum())
    sys.stdout.write(f"{name}, {rounds} rounds: {', '.join(f'{kind} {value:.3f}' for kind, value in noise.items())}\n")
    sigma, right = CLIP * nu * math.sqrt(rounds) * np.array(list(schedules.values())), []
    for seed in range(SPLITS):
        order = public_generator(seed, "shuffle").permutation(len(y))
        w = descend(x[order[:cut]], y[order[:cut]], eta, sigma, seed)
        right.append(np.mean((x[order[cut:]] @ w > 0) == (y[order[cut:], None] > 0), axis=0))
    change = 100.0 * (np.array(right) - np.array(right)[:, :1])
    errors = change.std(axis=0, ddof=1) / math.sqrt(SPLITS)
    words = (f"{k} {a:+.2f} ({b:.2f})" for k, a, b in zip(schedules, change.mean(0), errors, strict=True))
    sys.stdout.write(f"{name}, accuracy {100 * np.mean(right, axis=0)[0]:.2f}: {', '.join(words)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for each in sys.argv[1:]:
        report(each)
