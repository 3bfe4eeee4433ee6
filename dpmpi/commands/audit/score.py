"""A score for a run from the numbers that were heard, learned without knowing the method.

What a rank says is a function of what was said before, plus something new: a release. So each number x_k that the
victim says is predicted from the numbers of the exchanges just before, said and received, by least squares on runs
whose world is known, and what the prediction leaves, in units of its own deviation, is new:

    e_k = (x_k - prediction from the last exchanges) / deviation                                        (1)

Methods with dual variables remember all that was said, so the sums of all numbers said before, and of all that were
received, may take part in the prediction too. How far it looks back is what fits best for its size (Schwarz); and, as
noise that is used again can be predicted too, one exchange back besides.

The worlds differ in the means of e. Runs to learn from come in pairs that share their noise, one of each world, so that
the difference of a pair shows the shift d of the means almost without noise; what noise is left is taken off by
shrinking d towards its mean over the exchanges (James and Stein), because rounds are mostly alike. With S the
covariance of e inside of the worlds, shrunk towards the identity, the scores are

    linear discriminant      <S^-1 d, e>                                                                (2)
    likelihood ratio         sum_k log( 1 - s + s exp(p r_k - p^2/2) ) - the same with m                (3)
    sum of squares           |e|^2                                                                      (4)
    distance from the median sum_k e_k - median of e                                                    (5)

(2) is the best score if e is normal. (3) is the best one where a canary is drawn with probability s, independently in
every exchange: p = h/2 and m = -h/2, or p = h and m = 0 where the other records are opposed, and r is e relative to
runs that do not draw it. The shift h of a canary that is drawn comes from the pairs, whose differences are 0 or h: it
is the sum of their squares over their sum. (4) sees a spread that depends on the records. From (5), noise that is the
same in every round drops out, and what batches add remains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.problem.rows import Positions

MEMORIES = ((1, False), (0, False), (2, False), (3, True))
"""How far predictions may look back: this many exchanges, and the sums of all numbers before them. Always the first."""
SHORTEST = (0, False)
SMOOTH = 400
"""Numbers that the deviation of one that changes slowly is estimated from."""
LEAST = 1e-9
"""A deviation below this fraction of the number's own counts as so much: rounding is no noise."""

Columns = tuple[int, Positions]
"""The column of a number, and those that it is predicted from."""
Numbers = Sequence[tuple[list[float], list[float]]]
"""Of one run: for each exchange the numbers that the victim said, and those that it was told."""


@frozen
class Table:
    """The numbers of many runs: a row for each run, and which columns each exchange has; then their sums so far."""

    values: Array
    said: tuple[tuple[int, ...], ...]
    told: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, runs: Sequence[Numbers]) -> Table:
        """Return the table; a run that ended early has zeros where the others went on."""
        longest = max(runs, key=len)
        said, told, width = [], [], 0
        for own, others in longest:
            said.append(tuple(range(width, width + len(own))))
            told.append(tuple(range(width + len(own), width + len(own) + len(others))))
            width += len(own) + len(others)
        values = np.zeros((len(runs), width))
        for row, run in zip(values, runs, strict=True):
            flat = [x for own, others in run for x in (*own, *others)]
            row[: len(flat)] = flat
        sums = [
            np.stack([values[:, list(columns)].sum(axis=1) for columns in kind], axis=1).cumsum(axis=1)
            for kind in (said, told)
        ]
        return cls(np.concatenate([values, *sums], axis=1), tuple(said), tuple(told))

    @property
    def heard(self) -> int:
        """How many numbers were heard in a run."""
        return sum(map(len, self.said)) + sum(map(len, self.told))

    def sums(self, k: int) -> list[int]:
        """Return the columns of the sums of all that was said and told up to and including exchange k."""
        return [self.heard + k, self.heard + len(self.said) + k]


def table_of_worlds(plus: Sequence[Numbers], minus: Sequence[Numbers]) -> tuple[Table, Table]:
    """Return the tables of both worlds, with the same columns."""
    whole = Table.of([*plus, *minus])
    first, second = np.split(whole.values, [len(plus)])
    return Table(first, whole.said, whole.told), Table(second, whole.said, whole.told)


@frozen
class Prediction:
    """(1) for one number: its column, the columns that it is predicted from, their factors, and what is left."""

    column: int
    sources: Positions
    factors: Array
    deviation: float

    def new(self, values: Array) -> Array:
        """Return the part of the number that its sources do not predict, in deviations."""
        return np.asarray((values[:, self.column] - values[:, self.sources] @ self.factors) / self.deviation)


@frozen
class Discriminant:
    """The scores (2) to (5) as learned, from predictions of one kind."""

    predictions: tuple[Prediction, ...]
    weights: Array
    centre: Array
    """The mean of e over both worlds."""
    plus: float
    """The shift of a canary that is drawn, in the world +."""
    minus: float
    rate: float

    def scores(self, values: Array) -> dict[str, Array]:
        """Return the scores of runs, one a row."""
        e = innovations(self.predictions, values) - self.centre
        found = {
            "linear discriminant": e @ self.weights,
            "sum of squares": np.sum(e**2, axis=1),
            "distance from the median": np.sum(e - np.median(e, axis=1, keepdims=True), axis=1),
        }
        if self.rate < 1.0:
            rest = e + self.rate * (self.plus + self.minus) / 2  # relative to runs that do not draw the canary
            found["likelihood ratio"] = likelihood(rest, self.plus, self.minus, self.rate)
        return found


@frozen
class Learned:
    """All scores, by names that say how far back the predictions look."""

    parts: dict[str, Discriminant]

    def scores(self, values: Array) -> dict[str, Array]:
        """Return the scores of runs, one a row."""
        return {
            name + suffix: score for suffix, part in self.parts.items() for name, score in part.scores(values).items()
        }


def innovations(predictions: Sequence[Prediction], values: Array) -> Array:
    """Return (1) for all numbers, a row for each run."""
    return np.stack([one.new(values) for one in predictions], axis=1)


def likelihood(r: Array, plus: float, minus: float, rate: float) -> Array:
    """Return (3), row by row."""
    up, down = plus * r - plus**2 / 2, minus * r - minus**2 / 2
    if rate >= 1.0:
        return np.asarray(np.sum(up - down, axis=1))
    absent, present = math.log1p(-rate), math.log(rate)
    return np.asarray(np.sum(np.logaddexp(absent, present + up) - np.logaddexp(absent, present + down), axis=1))


def learn(plus: Table, minus: Table, rate: float = 1.0, *, opposed: bool = False) -> Learned:
    """Return the scores learned from pairs of runs: row k of both tables has the same noise."""
    fits = predict(plus, minus)
    return Learned({suffix: discriminate(fit, plus, minus, rate, opposed=opposed) for suffix, fit in fits.items()})


def discriminate(
    predictions: tuple[Prediction, ...], plus: Table, minus: Table, rate: float, *, opposed: bool
) -> Discriminant:
    """Return the scores that go with these predictions."""
    new = [innovations(predictions, table.values) for table in (plus, minus)]
    difference, means = new[0] - new[1], [e.mean(axis=0) for e in new]
    d = shrunk_shift(difference)
    inside = np.concatenate([e - mean for e, mean in zip(new, means, strict=True)])
    count, width = inside.shape
    trust = max(0.0, 1.0 - 2.0 * width / count)
    S = trust * (inside.T @ inside / max(1, count - 2)) + (1.0 - trust) * np.eye(width)
    weights = np.linalg.lstsq(S, d, rcond=1e-12)[0]
    hit = float(np.sum(difference**2) / (np.sum(difference) or 1.0))
    up, down = (hit, 0.0) if opposed else (hit / 2, -hit / 2)
    return Discriminant(predictions, weights, shrunk_shift((new[0] + new[1]) / 2), up, down, rate)


def predict(plus: Table, minus: Table) -> dict[str, tuple[Prediction, ...]]:
    """Return how each number that the victim said is predicted, by least squares inside of the worlds.

    The predictions are called "" if they fit best, and " one exchange back" if they look so far and do not.
    """
    inside = np.concatenate([table.values - table.values.mean(axis=0) for table in (plus, minus)])
    fits = [_fit(plus, inside, memory, alike=alike) for memory in MEMORIES for alike in (True, False)]
    best, near = (min(some, key=lambda fit: fit[1]) for some in (fits, fits[:2]))
    if best is near or not near[0]:
        return {"": best[0]}
    return {"": best[0], " one exchange back": near[0]}


def _fit(table: Table, inside: Array, memory: tuple[int, bool], *, alike: bool) -> tuple[tuple[Prediction, ...], float]:
    """Return the predictions with this memory, and Schwarz's criterion: -2 log likelihood + log n for each parameter.

    If rounds are alike, one set of factors serves all exchanges with as many sources, and deviations change slowly.
    """
    spread, n = np.sqrt(np.mean(inside**2, axis=0)), len(inside)
    said = [(k, column) for k, own in enumerate(table.said) for column in own]
    columns = [(column, _sources(table, spread, k, column, memory)) for k, column in said]
    if memory == SHORTEST:
        columns = [(column, sources[: n // 4]) for column, sources in columns]  # with few runs it must do
    if any(len(sources) > n // 4 for _, sources in columns):
        return (), math.inf  # too few runs for so long a memory
    factors = [_solve(inside[:, sources], inside[:, column]) for column, sources in columns]
    squares = _left(inside, columns, factors)
    parameters, window = sum(map(len, factors)), 1
    if alike:
        free = np.array([max(1, n - 2 - len(b)) for b in factors])
        factors = _common(inside, columns, factors, np.sqrt(squares / free))
        squares = _left(inside, columns, factors)
        parameters, window = sum({len(b) for b in factors}), min(len(columns), -(-SMOOTH // n))
    free = np.array([max(1, n - 2 - (0 if alike else len(b))) for b in factors])
    least = LEAST * np.array([max(spread[at], np.abs(table.values[:, at]).max()) for at, _ in columns])
    deviations = np.maximum(np.sqrt(_smoothed(squares / free, window)), least)
    deviations[deviations == 0.0] = 1.0
    criterion = float(np.sum(2 * n * np.log(deviations) + squares / deviations**2))
    criterion += (parameters + len(columns) / window) * math.log(n)
    made = zip(columns, factors, deviations, strict=True)
    return tuple(Prediction(at, sources, b, float(s)) for (at, sources), b, s in made), criterion


def _common(inside: Array, columns: Sequence[Columns], factors: Sequence[Array], deviations: Array) -> list[Array]:
    """Return the factors with one set for all numbers that have as many sources."""
    found = list(factors)
    for count in {len(b) for b in factors}:
        group = [i for i, b in enumerate(factors) if len(b) == count and deviations[i] > 0.0]
        if group:
            X = np.concatenate([inside[:, columns[i][1]] / deviations[i] for i in group])
            y = np.concatenate([inside[:, columns[i][0]] / deviations[i] for i in group])
            b = _solve(X, y)
            for i in group:
                found[i] = b
    return found


def _left(inside: Array, columns: Sequence[Columns], factors: Sequence[Array]) -> Array:
    """Return the sum of squares that each prediction leaves."""
    pairs = zip(columns, factors, strict=True)
    return np.array([float(np.sum((inside[:, at] - inside[:, sources] @ b) ** 2)) for (at, sources), b in pairs])


def _sources(table: Table, spread: Array, k: int, column: int, memory: tuple[int, bool]) -> Positions:
    """Return the columns that a number of exchange k is predicted from; not those that never change."""
    lags, sums = memory
    found = [*table.said[k][: table.said[k].index(column)], *(table.sums(k - 1 - lags) if sums and k > lags else [])]
    for back in range(k - 1, max(-1, k - 1 - lags), -1):
        found += [*table.said[back], *table.told[back]]
    return np.array([j for j in found if spread[j] > 0.0], dtype=np.intp)


def _solve(X: Array, y: Array) -> Array:
    """Return the factors of the columns of X that come nearest to y, whatever units the columns have."""
    units = np.sqrt(np.mean(X**2, axis=0))
    return np.asarray(np.linalg.lstsq(X / units, y, rcond=1e-10)[0] / units)


def _smoothed(values: Array, window: int) -> Array:
    """Return the mean over a window around each value, smaller at the ends."""
    ends = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at + (window + 1) // 2, len(values))
    return np.asarray((ends[high] - ends[low]) / (high - low))


def shrunk_shift(pairs: Array) -> Array:
    """Return the mean of the pairs' differences, shrunk towards its mean over the columns."""
    d = pairs.mean(axis=0)
    common = float(d.mean())
    noise = float(np.sum(pairs.var(axis=0))) / max(1, len(pairs) - 1)
    spread = float(np.sum((d - common) ** 2))
    return np.asarray(common + (d - common) * max(0.0, 1.0 - noise / spread) if spread > 0.0 else d)
