"""Random points in a cube, for the estimation of their mean.

Coordinate k of record r is normal around c R with standard deviation s, given that it lies in [-R, R],

    d_rk ~ N(c R, s^2)  conditioned on  |d_rk| <= R                                          (1)

with c = 0.7 and s = 1 in section V.A of [SKD], where ten agents hold a hundred points each. The text says "a truncated
Gaussian distribution with mean of 0.7R and the unit variance". On [-1, 1] no distribution has both: the variance of one
with mean 0.7 is at most 1 - 0.7^2. So they are taken as those of the normal distribution before truncation.

(1) is drawn by rejection. For s < R a normal proposal is kept if it lies in the cube, which happens with probability at
least P(0 < Z < 2) = 0.47 because |c| <= 1. For s >= R a uniform proposal x on [-R, R] is kept with probability

    exp(-(x - c R)^2 / (2 s^2)) >= exp(-2)                                                   (2)

The cube is the bound on a record, and the sensitivity 2 R sqrt(p) of [SKD] rests on it: rows are clipped to it, and
never scaled to a norm, whatever --normalize says.

Row r is a function of (seed, r) and of R, p, c, s only. Rows are drawn in blocks whose height depends on p alone, each
with its own generator: the same bits come out whichever rank asks for the row.

[SKD] Showkatbakhsh, Karakus, Diggavi. Differentially private consensus-based distributed optimization.
"""

from __future__ import annotations

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.source import GeneratedSource, Shard, Survey
from dpmpi.errors import ConfigError
from dpmpi.problem.rows import Dense
from dpmpi.rng import public_generator

_BLOCK = 128
_BLOCK_NUMBERS = 1 << 16  # half a megabyte: stays in the cache between the passes of the rejection


@frozen
class Mean(GeneratedSource):
    """`mean:radius=1,dimension=10,samples=1000,centre=0.7,spread=1`: points in a cube, for --loss mean."""

    name = "mean"
    radius: float = 1.0
    """R: every coordinate lies in [-R, R]."""
    dimension: int = 10
    samples: int = 1000
    centre: float = 0.7
    """c, in units of R."""
    spread: float = 1.0
    """s, in absolute units."""

    def check(self) -> None:
        """Raise `ConfigError` for options that make no data."""
        for name in ("samples", "dimension"):
            if getattr(self, name) < 1:
                raise ConfigError(f"mean: expected {name} >= 1, found {getattr(self, name)}")
        for name in ("radius", "spread"):
            if not 1e-100 <= getattr(self, name) <= 1e100:
                raise ConfigError(f"mean: expected {name} in 1e-100 ... 1e100, found {getattr(self, name)}")
        if not -1.0 <= self.centre <= 1.0:
            raise ConfigError(f"mean: expected a centre in -1 ... 1, in units of the radius, found {self.centre}")
        if self.options.test_fraction:
            fraction = self.options.test_fraction
            raise ConfigError(
                f"mean: expected no test fraction, as a mean has no accuracy, found {fraction}: leave it out"
            )

        if self.options.deal.by_label:
            kind = self.options.deal.kind
            raise ConfigError(f"mean: expected --deal even or sizes for points without labels, found {kind}")

    def declared_task(self, survey: Survey | None) -> None:
        """Return None: there are no labels."""

    def survey(self) -> Survey:
        """Return the sizes, which are known without looking."""
        return Survey(self.samples, self.dimension, (), self.samples * self.dimension)

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Generate the rows of `rank`; their labels are zeros, which nobody uses."""
        part = self.parts(survey or self.survey(), size)[rank]
        rows = self._generate(range(part[0], part[-1] + 1))  # without labels all deals are of consecutive rows
        return Shard(Dense(rows), np.zeros(len(rows)), Dense(np.empty((0, self.dimension))), np.empty(0))

    def _generate(self, wanted: range) -> Array:
        """Return the rows with the global numbers `wanted`."""
        height = min(_BLOCK, max(1, _BLOCK_NUMBERS // self.dimension))
        rows = np.empty((len(wanted), self.dimension))
        for block in range(wanted.start // height, -(-wanted.stop // height)):
            first = block * height
            start, stop = max(first, wanted.start), min(first + height, wanted.stop)
            points = self._block(public_generator(self.options.seed, "mean", block), height)
            rows[start - wanted.start : stop - wanted.start] = points[start - first : stop - first]
        return np.clip(rows, -self.radius, self.radius, out=rows)

    def _block(self, draw: np.random.Generator, height: int) -> Array:
        """Draw (1): propose, and propose anew whatever was not kept."""
        middle = self.centre * self.radius
        points = np.empty(height * self.dimension)
        open_ = np.arange(len(points))
        while len(open_):
            if self.spread < self.radius:
                proposals = middle + self.spread * draw.standard_normal(len(open_))
                kept = np.abs(proposals) <= self.radius
            else:
                proposals = draw.uniform(-self.radius, self.radius, len(open_))
                kept = draw.random(len(open_)) < np.exp(-0.5 * ((proposals - middle) / self.spread) ** 2)  # (2)
            points[open_[kept]] = proposals[kept]
            open_ = open_[~kept]
        return points.reshape(height, self.dimension)
