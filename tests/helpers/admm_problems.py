"""Problems and independent answers for the tests of the methods."""

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize

from dpmpi.core import Agent, Sampling, Terms
from dpmpi.network.graph import make_graph
from dpmpi.problem.rows import Dense
from dpmpi.testing import random_shards

TERMS = Terms(7, 7, 5, 2, 3, 4, 0.5, Sampling("full", 40.0, 40), 0.25, 0.0, 0.05, 0.0, False, 0.5)


def labelled_shards(n=6, records=60, m=8, seed=0):
    """Unit rows around a mean of the rank's own, labels of a common hyperplane with 5% flipped."""
    draw = np.random.default_rng(seed)
    w, shards = draw.standard_normal(m), []
    for rows, _ in random_shards(n, records, m, seed):
        X = rows.matrix + 0.3 * draw.standard_normal(m) / np.sqrt(m)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append((type(rows)(X), np.where(draw.random(records) < 0.05, -1, 1) * np.sign(X @ w)))
    return shards


def gradient(shard, x):
    """The gradient of the mean logistic loss."""
    X, y = shard[0].matrix, shard[1]
    return -(X.T @ (y / (1.0 + np.exp(y * (X @ x))))) / len(y)


def hessian(shard, x):
    X = shard[0].matrix
    p = 1.0 / (1.0 + np.exp(-(X @ x)))
    return (X.T * (p * (1.0 - p))) @ X / len(X)


def objective(shards, l2, x):
    losses = [np.mean(np.logaddexp(0.0, -y * (rows.matrix @ x))) for rows, y in shards]
    return float(np.mean(losses)) + 0.5 * l2 * float(x @ x)


def gap(shards, l2, x):
    """(F(x) - F*) / (F(0) - F*) for the logistic loss, with the optimum of scipy's trust region method."""
    m = shards[0][0].dimension
    best = minimize(
        lambda w: objective(shards, l2, w),
        np.zeros(m),
        jac=lambda w: np.mean([gradient(s, w) for s in shards], axis=0) + l2 * w,
        hess=lambda w: np.mean([hessian(s, w) for s in shards], axis=0) + l2 * np.eye(m),
        method="trust-exact",
        options={"gtol": 1e-12},
    )
    return (objective(shards, l2, x) - best.fun) / (objective(shards, l2, np.zeros(m)) - best.fun)


def exact_step(shard, linear, quadratic):
    """argmin of the mean logistic loss + <linear, x> + quadratic |x|^2 / 2, by Newton's method."""
    x = np.zeros(len(linear))
    for _ in range(60):
        g = gradient(shard, x) + linear + quadratic * x
        if np.linalg.norm(g) < 1e-15:
            break
        x -= np.linalg.solve(hessian(shard, x) + quadratic * np.eye(len(x)), g)
    return x


def adjacency(graph, n):
    A = np.zeros((n, n))
    for i, j in make_graph(graph, n, 0).edges:
        A[i, j] = A[j, i] = 1.0
    return A


class OutOfBudget(Agent):
    """An agent of which rank 1 may not release any more after round 3."""

    def _admits(self, query, scale, part):
        if self.rank == 1 and self.round > 3:
            self.stopped = self.stopped or self.round
            query.value.fill(0.0)
            return False
        return super()._admits(query, scale, part)


def shards_of_unlike_ranks(n, records=40, m=6, seed=0):
    """Each rank's rows lie around a centre of its own; labels follow a common w, some at random."""
    draw = np.random.default_rng(seed)
    w, shards = draw.standard_normal(m), []
    for _ in range(n):
        X = draw.standard_normal((records, m)) + draw.standard_normal(m)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append((Dense(X), np.where(draw.random(records) < 0.2, -1.0, 1.0) * np.sign(X @ w)))
    return shards


def newton(shards, l2):
    """The minimiser of the mean logistic loss over ranks plus l2 |x|^2 / 2."""
    x = np.zeros(shards[0][0].dimension)
    for _ in range(30):
        g, H = l2 * x, l2 * np.eye(x.size)
        for rows, y in shards:
            p = 1.0 / (1.0 + np.exp(y * (rows.matrix @ x)))
            g = g - rows.matrix.T @ (y * p) / (len(y) * len(shards))
            H = H + (rows.matrix.T * (p * (1.0 - p))) @ rows.matrix / (len(y) * len(shards))
        x = x - np.linalg.solve(H, g)
    assert np.linalg.norm(g) < 1e-14
    return x


@dataclass
class Keeping:
    """A witness that keeps what it is told."""

    told: list = field(default_factory=list)

    def saw(self, output, low, high, scale, reach):
        self.told.append((output.copy(), low, high, scale, reach))


class Witnessed(Agent):
    """An agent whose witness keeps what it is told."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.witness = Keeping()
