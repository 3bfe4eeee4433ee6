"""Random records of a linear model, with noise in the labels.

With g normal (on all columns, or on k random columns of a sparse row), w standard normal, and column j = 1 ... m of
standard deviation d_j = j^-decay,

    a  = g / |g|,   w* = w / |w|,   s = <a, w*> sqrt(sum_j d_j^2 / sum_j (d_j w*_j)^2)    (s has variance 1)       (1)
    svm:         y = sign(s), the other sign with probability `flip`                                             (2)
    logistic:    P(y = +1) = 1 / (1 + exp(-4 s))                                                                 (3)
    regression:  y = s + 0.1 e clipped to [-1, 1], e standard normal                                             (4)

decay = 0 is the hardest case for private learning: all directions matter alike. Real data have a few strong directions
and many weak ones, as decay = 0.5 does.

Row r and its label are a function of (seed, r) and of these options only. They are drawn in blocks of 128 rows, each
with its own generator, and a block is computed in tiles whose shape depends on nothing but the row length: the same
bits come out whichever rank asks for the row, and nothing is ever larger than a tile besides the shard itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.data.base import Settings, Shard, Survey, check_dealt, deal, held_out, parse_options
from dpmpi.errors import ConfigError, nearest
from dpmpi.rng import public_generator
from dpmpi.rows import Csr, Dense, Positions, Rows

Task: TypeAlias = Literal["svm", "logistic", "regression"]
_TASK_OF_LOSS: dict[str, Task] = {"hinge": "svm", "logistic": "logistic", "squared": "regression"}

_BLOCK = 128
_TILE_NUMBERS = 1 << 16  # half a megabyte: stays in the cache between drawing, scaling and scoring


@dataclass(frozen=True, slots=True)
class Synthetic:
    """`synthetic:samples=2000,features=100,task=svm,density=1,flip=0.05,decay=0`; `samples` counts training rows."""

    private: ClassVar[bool] = False

    settings: Settings
    samples: int = 2000
    features: int = 100
    task: Task = "svm"
    density: float = 1.0
    flip: float = 0.05
    decay: float = 0.0

    @classmethod
    def parse(cls, text: str, settings: Settings) -> Self:
        """Return the source for `key=value` options separated by commas; the task defaults to the loss's own."""
        known: dict[str, Callable[[str], object]] = {
            "samples": int, "features": int, "task": str, "density": float, "flip": float,
            "decay": float,
        }  # fmt: skip
        options = parse_options("synthetic", text, known)
        if settings.samples is not None:
            options["samples"] = settings.samples
        options.setdefault("task", _TASK_OF_LOSS.get(settings.loss, "svm"))
        if options["task"] != "svm" and "flip" in options:
            raise ConfigError(f"synthetic: flip belongs to task=svm, and the task is {options['task']}: leave it out")
        source = cls(settings, **options)  # type: ignore[arg-type]  # each value was made by its own converter
        source.check()
        return source

    def check(self) -> None:
        """Raise `ConfigError` for options that make no data."""
        tasks = list(_TASK_OF_LOSS.values())
        if self.task not in tasks:
            raise ConfigError(
                f"synthetic: unknown task {self.task!r}, expected one of {', '.join(tasks)}{nearest(self.task, tasks)}"
            )
        if self.task == "regression" and self.settings.binary:
            raise ConfigError(
                f"synthetic: task=regression has real labels, which --loss {self.settings.loss} cannot use"
            )
        for name in ("samples", "features"):
            if getattr(self, name) < 1:
                raise ConfigError(f"synthetic: {name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.density <= 1.0:
            raise ConfigError(f"synthetic: density must be above 0 and at most 1, got {self.density}")
        if not 0.0 <= self.flip <= 0.5:
            raise ConfigError(f"synthetic: flip must lie in 0 ... 0.5, got {self.flip}")
        if not 0.0 <= self.decay <= 4.0:
            raise ConfigError(f"synthetic: decay must lie in 0 ... 4, got {self.decay}")

    @property
    def nonzeros(self) -> int:
        """The numbers per row: the features of a dense row, the nonzero columns of a sparse one."""
        return self.features if self.density == 1.0 else max(1, round(self.density * self.features))

    @property
    def tests(self) -> int:
        """The test rows, which come on top of `samples`."""
        return held_out(self.samples, self.settings.test_fraction)

    def survey(self) -> Survey:
        """Return the sizes, which are known without looking."""
        rows = self.samples + self.tests
        labels = () if self.task == "regression" else (-1.0, 1.0)
        return Survey(rows, self.features, labels, rows * self.nonzeros)

    def training_rows(self, survey: Survey) -> int:
        """Return `samples`: the test rows come on top."""
        return self.samples

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Generate the rows of `rank`; the test rows are the ones after all training rows."""
        check_dealt(self.samples, size, "synthetic")
        test = deal(self.tests, rank, size)
        train_rows, train_labels = self._generate(deal(self.samples, rank, size))
        test_rows, test_labels = self._generate(range(self.samples + test.start, self.samples + test.stop))
        return Shard(train_rows, train_labels, test_rows, test_labels)

    def _generate(self, wanted: range) -> tuple[Rows, Array]:
        """Return the rows with the global numbers `wanted` and their labels."""
        sparse, k = self.density < 1.0, self.nonzeros
        values, labels = np.empty((len(wanted), k)), np.empty(len(wanted))
        columns = np.empty((len(wanted), k if sparse else 0), np.intp)
        w = public_generator(self.settings.seed, "separator").standard_normal(self.features)
        w *= 1.0 / math.sqrt(np.einsum("i,i", w, w))
        d = None if self.decay == 0.0 else np.arange(1.0, self.features + 1.0) ** -self.decay
        gain = math.sqrt(self.features if d is None else np.sum(d * d) / np.sum((d * w) ** 2))
        height = min(_BLOCK, 1 << (max(1, _TILE_NUMBERS // k).bit_length() - 1))
        spare = _Tile(np.empty((height, k)), np.empty((height, columns.shape[1]), np.intp), np.empty(height))
        for block in range(wanted.start // _BLOCK, -(-wanted.stop // _BLOCK) if wanted else 0):
            draw = public_generator(self.settings.seed, "rows", block)
            noise = self._label_noise(block)
            for first in range(0, _BLOCK, height):
                start = block * _BLOCK + first - wanted.start  # where the tile lies in this rank's arrays
                if start >= len(wanted):
                    break
                inside = start >= 0 and start + height <= len(wanted)
                here = slice(start, start + height)
                tile = _Tile(values[here], columns[here], labels[here]) if inside else spare
                self._fill(tile, draw, noise[first : first + height], w, d, gain)
                if not inside and start + height > 0:
                    overlap = slice(max(start, 0), start + height)
                    for whole, part in ((values, tile.values), (columns, tile.columns), (labels, tile.labels)):
                        target = whole[overlap]
                        target[...] = part[overlap.start - start :][: len(target)]
        if not sparse:
            return Dense(values), labels
        indptr = np.arange(len(wanted) + 1, dtype=np.intp) * k
        return Csr(indptr, columns.reshape(-1), values.reshape(-1), self.features), labels

    def _fill(
        self, tile: _Tile, draw: np.random.Generator, noise: Array, w: Array, d: Array | None, gain: float
    ) -> None:
        """Draw the rows of a tile and label them."""
        for row in tile.columns if self.density < 1.0 else ():
            row[:] = draw.choice(self.features, len(row), replace=False, shuffle=False)
            row.sort()
        a = draw.standard_normal(out=tile.values)
        if d is not None:
            a *= d[tile.columns] if self.density < 1.0 else d
        # einsum and not BLAS, whose last bits depend on how many threads share the work.
        # Below 1 by more than `scale_rows` allows for rounding, so that it never moves a row.
        unit = 1.0 - 4.0 * (self.features + 8) * 2.0**-53
        a *= (unit / np.sqrt(np.einsum("ij,ij->i", a, a)))[:, np.newaxis]  # (1)
        score = np.einsum("ij,ij->i", a, w[tile.columns]) if self.density < 1.0 else np.einsum("ij,j->i", a, w)
        score *= gain
        if self.task == "regression":
            tile.labels[:] = np.clip(score + 0.1 * noise, -1.0, 1.0)  # (4)
        elif self.task == "logistic":
            tile.labels[:] = np.where(np.log(noise / (1.0 - noise)) < 4.0 * score, 1.0, -1.0)  # (3), by the logit of u
        else:
            tile.labels[:] = np.where((score >= 0.0) == (noise >= self.flip), 1.0, -1.0)  # (2)

    def _label_noise(self, block: int) -> Array:
        """Return the noise of a block's labels: normal for regression, else uniform on the open interval (0, 1)."""
        draw = public_generator(self.settings.seed, "labels", block)
        if self.task == "regression":
            return draw.standard_normal(_BLOCK)
        return draw.random(_BLOCK) * (1.0 - 2.0**-52) + 2.0**-54


@dataclass(slots=True)
class _Tile:
    """A few consecutive rows: their numbers, their columns if they are sparse, and their labels."""

    values: Array
    columns: Positions
    labels: Array
