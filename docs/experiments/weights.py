"""Simulate unequal ranks under local noise: weights by records, precision or ranks, and the largest rank alone.

Central and with perfect mixing, as in `defaults.py` beside this file, with logistic loss, derived settings and parts
p_i of sum 1: rank i has q_i records and p_i ~ q_i (records), q_i^2 (precision), q_i^2 / (q_i + 4 m / mu^2) (variance:
sampling included) or 1 (ranks); alone, the largest rank has all. The mean gradient of a round is

    sum_i p_i (mean over the records of rank i of clip_L(gradient)) + L nu sqrt(T) N(0, I),
    nu = (2/mu) sqrt(sum_i (p_i/q_i)^2)                                                                       (1)

The weightings of an epsilon share their noise draws. With --skew, records are sorted by a noisy copy of their labels
before they are dealt, so that the small ranks, who come first, have mostly positive ones.

    DPMPI_DATA=data python docs/experiments/weights.py breast_cancer heart_sites heart digits phishing [--skew]
    python docs/experiments/weights.py members_raw members_tens members_unit members_centred members_z

(members: breast_cancer dealt 35/35/35/351, the other 113 held out, with columns as in `prepared`)
prints a line per pattern of sizes and epsilon: accuracies, and differences with their standard errors in points.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys

import numpy as np
from defaults import DELTA, EPSILONS, FURTHEST, Floats, Matrix, folder, load, rule_rounds, rule_tau, slope
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from dpmpi.privacy.gdp import gdp_mu
from dpmpi.rng import public_generator

PATTERNS = {"1:1:1:10": [1, 1, 1, 10], "19x1:100": [1] * 19 + [100], "1:2:4:8:16:32": [1, 2, 4, 8, 16, 32]}
MEMBERS = [35, 35, 35, 351]
KINDS = ("records", "precision", "variance", "ranks", "alone")
PAIRS = (("precision", "records"), ("variance", "records"), ("precision", "alone"), ("records", "alone"))
CLIP = 0.5
Run = dict[tuple[float, str], float]


def parts(sizes: NDArray[np.float64], m: int, mu: float) -> dict[str, NDArray[np.float64]]:
    """Return p_i of every weighting."""
    q = sizes
    raw = (q, q**2, q**2 / (q + 4 * m / mu**2), np.ones_like(q), (np.arange(len(q)) == q.argmax()).astype(float))
    return {kind: p / p.sum() for kind, p in zip(KINDS, raw, strict=True)}


def train(x: Matrix, y: Floats, held: tuple[Matrix, Floats], sizes: list[int], seed: int) -> Run:
    """Return the held-out accuracy of every epsilon and weighting."""
    m, owner, q = x.shape[1], np.repeat(np.arange(len(sizes)), sizes), np.array(sizes, float)
    norms = np.sqrt(np.asarray(csr_matrix(x).multiply(x).sum(1))).astype(np.float32).reshape(-1, 1)
    columns = []
    for epsilon in EPSILONS:
        mu = gdp_mu(epsilon, DELTA)
        for kind, p in parts(q, m, mu).items():
            nu = 2 / mu * math.hypot(*(p / q))  # (1)
            tau = min(rule_tau(nu, m, CLIP, 1.0), FURTHEST)
            columns.append((rule_rounds(tau), epsilon, kind, nu, tau, (p / q)[owner]))
    columns.sort(key=lambda column: -column[0])  # the longest first: columns end at the right
    rounds = np.array([column[0] for column in columns])
    cell = np.array([EPSILONS.index(column[1]) for column in columns])
    sigma = CLIP * np.array([column[3] for column in columns], np.float32) * np.sqrt(rounds).astype(np.float32)
    eta = (6 * np.array([column[4] for column in columns]) / rounds**2).astype(np.float32)
    beta, signs = (1 - 6 / rounds).astype(np.float32), y.reshape(-1, 1)
    weight = np.stack([column[5] for column in columns], axis=1).astype(np.float32) * -signs
    w, rng = np.zeros((m, len(columns)), np.float32), np.random.default_rng([seed, 7])
    v = np.zeros_like(w)
    for t in range(rounds[0]):
        k = int(np.sum(rounds > t))
        c = np.minimum(slope(signs * (x @ w[:, :k]), "logistic"), CLIP / norms) * weight[:, :k]
        g = x.T @ c + rng.standard_normal((m, len(EPSILONS)), np.float32)[:, cell[:k]] * sigma[:k]
        v[:, :k] = beta[:k] * v[:, :k] - eta[:k] * g
        w[:, :k] += v[:, :k]
    right = np.mean(((held[0] @ w) > 0) == (held[1].reshape(-1, 1) > 0), axis=0)
    return {(column[1], column[2]): float(right[j]) for j, column in enumerate(columns)}


def site_ends() -> list[int]:
    """Return where the records of each of the four hospitals end."""
    counts = []
    for path in sorted((folder() / "heart").glob("processed.*.data")):
        with path.open(newline="") as file:
            counts.append(sum(1 for _ in csv.DictReader(file)))
    return np.cumsum(counts).tolist()


def prepared(x: NDArray[np.float64], columns: str) -> Floats:
    """Return rows with columns as they are, by the next power of ten, to [0, 1] or [-1, 1], or z-scaled, and intercept.

    Ranges, means and deviations are those of the data, in the place of constants that somebody would publish.
    """
    if columns == "tens":
        x = x / 10.0 ** np.ceil(np.log10(x.max(0)))
    elif columns in ("unit", "centred"):
        x = (x - x.min(0)) / np.ptp(x, axis=0)
        x = 2.0 * x - 1.0 if columns == "centred" else x
    elif columns == "z":
        x = (x - x.mean(0)) / x.std(0)
    elif columns != "raw":
        raise ValueError(f"expected raw, tens, unit, centred or z, found {columns}: name one of them")
    x = np.hstack([x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0), np.full((len(x), 1), 0.3)])
    return (x / math.sqrt(1.09)).astype(np.float32)


def members(columns: str) -> tuple[Matrix, Floats]:
    """Return breast_cancer with its columns prepared."""
    from sklearn import datasets  # noqa: PLC0415

    x, y = datasets.load_breast_cancer(return_X_y=True)
    return prepared(x, columns), np.where(y > 0, 1.0, -1.0).astype(np.float32)


def deal(y: Floats, pattern: str, seed: int, *, skew: bool) -> tuple[list[int], list[int], list[int]]:
    """Return the training rows in the order of their ranks, the held-out rows, and the ranks' sizes."""
    shuffle = public_generator(seed, "shuffle")
    if pattern == "sites":
        kept: list[int] = []
        held: list[int] = []
        ends, sizes = site_ends(), []
        for low, high in zip([0, *ends], ends, strict=False):
            order, cut = low + shuffle.permutation(high - low), round((high - low) / 10)
            held += order[:cut].tolist()
            kept += order[cut:].tolist()
            sizes.append(high - low - cut)
        return kept, held, sizes
    order = shuffle.permutation(len(y))
    if pattern == "members":
        return order[: sum(MEMBERS)].tolist(), order[sum(MEMBERS) :].tolist(), MEMBERS
    cut = len(y) - round(len(y) / 10)
    train_rows, share = order[:cut], np.array(PATTERNS[pattern], float)
    if skew:
        noisy = np.random.default_rng([seed, 3]).standard_normal(cut) - 1.5 * y[train_rows]
        train_rows = train_rows[np.argsort(noisy)]
    sizes = np.floor(cut * share / share.sum()).astype(int).tolist()
    return train_rows[: sum(sizes)].tolist(), order[cut:].tolist(), sizes


def main() -> None:
    """Print the table of every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="as in defaults.py, heart_sites, or members_COLUMNS")
    parser.add_argument("--skew", action="store_true", help="small ranks have mostly positive records")
    given = parser.parse_args()
    for name in given.sets:
        kind, _, columns = name.partition("_") if name.startswith("members") else (name, "", "")
        x, y = members(columns) if columns else load(name.removesuffix("_sites"))
        patterns = {"heart_sites": ("sites",), "members": ("members",)}.get(kind, tuple(PATTERNS))
        for pattern in patterns:
            runs = []
            for seed in range(400 if columns else 60 if len(y) < 3000 else 10):
                kept, held, sizes = deal(y, pattern, seed, skew=given.skew)
                runs.append(train(x[kept], y[kept], (x[held], y[held]), sizes, seed))
            for epsilon in EPSILONS:
                found = {kind: np.array([run[epsilon, kind] for run in runs]) for kind in KINDS}
                means = " ".join(f"{kind} {100 * values.mean():.1f}" for kind, values in found.items())
                gaps = []
                for one, other in PAIRS:
                    gap = 100 * (found[one] - found[other])
                    gaps.append(f"{one}-{other} {gap.mean():+.2f} ({gap.std(ddof=1) / math.sqrt(len(runs)):.2f})")
                sys.stdout.write(f"{name} {pattern} {epsilon:g}: {means}; {', '.join(gaps)}\n")


if __name__ == "__main__":
    main()
