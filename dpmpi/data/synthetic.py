"""Random records of a linear model, with noise in the labels, or random documents on a topic.

With g normal (on all columns, or on k random columns of a sparse row), w standard normal, and column j = 1 ... m of
standard deviation d_j = j^-decay,

    a  = g / |g|,   w* = w / |w|,   s = <a, w*> sqrt(sum_j d_j^2 / sum_j (d_j w*_j)^2)    (s has variance 1)       (1)
    svm:         y = sign(s), the other sign with probability `flip`                                             (2)
    logistic:    P(y = +1) = 1 / (1 + exp(-4 s))                                                                 (3)
    regression:  y = s + 0.1 e clipped to [-1, 1], e standard normal                                             (4)

decay = 0 is the hardest case for private learning: all directions matter alike. Real data have a few strong directions
and many weak ones, as decay = 0.5 does.

With zipf > 0 the rows are documents, as the columns of RCV1 are words: frequencies fall by the law of Zipf and
Mandelbrot, and one topic runs through the vocabulary, which half of the words speak for (w_j = +1), the others against
(w_j = -1). A document has s standard normal, how much it is for the topic, and with k words

    p_j ~ (j + shift)^-zipf,   sum_j p_j = 1                                                                     (5)
    columns: drawn one after the other with probabilities ~ p_j exp(topic s w_j) until k distinct ones are there  (6)
    a_j ~ (1 + log c_j) log(1 + 1/(k p_j)),   P(c_j = c) = 0.6 0.4^(c-1),   |a| = 1                              (7)

and the label that (2) to (4) give to s. (7) is term frequency times inverse document frequency. But for repeated words,
the likelihood of s is exp(topic s D) / Z(s)^k, D the words for minus those against: y = +1 is the likelier the larger D
is, so the best classifier is linear in which words occur. It errs on documents that are hardly for or against.

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
    """`synthetic:samples=2000,features=100,task=svm,density=1,flip=0.05,decay=0,zipf=0,shift=0,topic=0.5`.

    `samples` counts training rows; `shift` and `topic` belong to documents, zipf > 0.
    """

    private: ClassVar[bool] = False

    settings: Settings
    samples: int = 2000
    features: int = 100
    task: Task = "svm"
    density: float = 1.0
    flip: float = 0.05
    decay: float = 0.0
    zipf: float = 0.0
    shift: float = 0.0
    topic: float = 0.5

    @classmethod
    def parse(cls, text: str, settings: Settings) -> Self:
        """Return the source for `key=value` options separated by commas; the task defaults to the loss's own."""
        known: dict[str, Callable[[str], object]] = {
            "samples": int, "features": int, "task": str, "density": float, "flip": float,
            "decay": float, "zipf": float, "shift": float, "topic": float,
        }  # fmt: skip
        options = parse_options("synthetic", text, known)
        if settings.samples is not None:
            options["samples"] = settings.samples
        options.setdefault("task", _TASK_OF_LOSS.get(settings.loss, "svm"))
        if options["task"] != "svm" and "flip" in options:
            raise ConfigError(f"synthetic: flip belongs to task=svm, and the task is {options['task']}: leave it out")
        if not options.get("zipf"):
            for name in {"shift", "topic"} & options.keys():
                raise ConfigError(f"synthetic: {name} belongs to documents, and zipf is 0: set zipf, or leave it out")
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
        for name, top in (("flip", 0.5), ("decay", 4.0), ("zipf", 4.0), ("shift", 1e5)):
            if not 0.0 <= getattr(self, name) <= top:
                raise ConfigError(f"synthetic: {name} must lie in 0 ... {top:g}, got {getattr(self, name)}")
        if not 0.0 < self.topic <= 4.0:
            raise ConfigError(f"synthetic: topic must be above 0 and at most 4, got {self.topic}")
        if self.zipf and (self.density == 1.0 or self.decay):
            raise ConfigError(
                f"synthetic: documents, zipf={self.zipf:g}, need a density below 1 and no decay, "
                f"got density={self.density:g}, decay={self.decay:g}: change them, or leave zipf out"
            )

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
        kind = _Documents.of(self) if self.zipf else _Records.of(self)
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
                self._label(tile, kind.fill(tile, draw), noise[first : first + height])
                if not inside and start + height > 0:
                    overlap = slice(max(start, 0), start + height)
                    for whole, part in ((values, tile.values), (columns, tile.columns), (labels, tile.labels)):
                        target = whole[overlap]
                        target[...] = part[overlap.start - start :][: len(target)]
        if not sparse:
            return Dense(values), labels
        indptr = np.arange(len(wanted) + 1, dtype=np.intp) * k
        return Csr(indptr, columns.reshape(-1), values.reshape(-1), self.features), labels

    def _label(self, tile: _Tile, score: Array, noise: Array) -> None:
        """Label the rows of a tile by their scores s."""
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


def _scale(rows: Array, features: int) -> None:
    """Scale the rows to norm 1, in place."""
    # Below 1 by more than `scale_rows` allows for rounding, so that it never moves a row.
    unit = 1.0 - 4.0 * (features + 8) * 2.0**-53
    # einsum and not BLAS, whose last bits depend on how many threads share the work.
    rows *= (unit / np.sqrt(np.einsum("ij,ij->i", rows, rows)))[:, np.newaxis]


@dataclass(frozen=True, slots=True)
class _Records:
    """Normal rows, dense or sparse."""

    features: int
    sparse: bool
    w: Array
    d: Array | None
    gain: float

    @classmethod
    def of(cls, source: Synthetic) -> Self:
        """Return what the rows of this source have in common."""
        w = public_generator(source.settings.seed, "separator").standard_normal(source.features)
        w *= 1.0 / math.sqrt(np.einsum("i,i", w, w))
        d = None if source.decay == 0.0 else np.arange(1.0, source.features + 1.0) ** -source.decay
        gain = math.sqrt(source.features if d is None else np.sum(d * d) / np.sum((d * w) ** 2))
        return cls(source.features, source.density < 1.0, w, d, gain)

    def fill(self, tile: _Tile, draw: np.random.Generator) -> Array:
        """Draw the rows of a tile; return their s."""
        for row in tile.columns if self.sparse else ():
            row[:] = draw.choice(self.features, len(row), replace=False, shuffle=False)
            row.sort()
        a = draw.standard_normal(out=tile.values)
        if self.d is not None:
            a *= self.d[tile.columns] if self.sparse else self.d
        _scale(a, self.features)  # (1)
        s = np.einsum("ij,ij->i", a, self.w[tile.columns]) if self.sparse else np.einsum("ij,j->i", a, self.w)
        return np.asarray(self.gain * s)


@dataclass(frozen=True, slots=True)
class _Documents:
    """Sparse rows of word weights."""

    order: Positions
    """The columns, those against the topic first."""
    ends: Array
    """p_j summed up in this order."""
    against: float
    """The sum of p_j over the columns against the topic."""
    p: Array
    w: Array
    rarity: Array
    """log(1 + 1/(k p_j))"""
    topic: float

    @classmethod
    def of(cls, source: Synthetic) -> Self:
        """Return the vocabulary of this source."""
        p = (np.arange(1.0, source.features + 1.0) + source.shift) ** -source.zipf  # (5)
        p /= p.sum()
        w = np.where(public_generator(source.settings.seed, "separator").random(source.features) < 0.5, -1.0, 1.0)
        order = np.argsort(w, kind="stable")
        ends = np.cumsum(p[order])
        against = float(ends[np.count_nonzero(w < 0.0) - 1]) if w.min() < 0.0 else 0.0
        ends[-1] = math.inf  # whatever a draw is rounded to, it falls to a column
        return cls(order, ends, against, p, w, np.log1p(1.0 / (source.nonzeros * p)), source.topic)

    def fill(self, tile: _Tile, draw: np.random.Generator) -> Array:
        """Draw the rows of a tile; return their s."""
        s = draw.standard_normal(len(tile.columns))
        for row, strength in zip(tile.columns, s, strict=True):
            row[:] = self._words(len(row), self.topic * float(strength), draw)
            row.sort()
        tile.values[:] = 1.0 + np.log(draw.geometric(0.6, tile.values.shape))
        tile.values *= self.rarity[tile.columns]
        _scale(tile.values, len(self.p))  # (7)
        return s

    def _words(self, k: int, tilt: float, draw: np.random.Generator) -> Positions:
        """Return k distinct columns, (6) with tilt = topic s."""
        minus, plus = self.against * math.exp(-tilt), (1.0 - self.against) * math.exp(tilt)
        # A uniform number, stretched so that it falls to a column for the topic with the probability that (6) gives it.
        u = np.interp(draw.random(2 * k), [0.0, minus / (minus + plus), 1.0], [0.0, self.against, 1.0])
        words, first = np.unique(self.order[np.searchsorted(self.ends, u, side="right")], return_index=True)
        if len(words) >= k:
            return np.asarray(words[np.argsort(first)[:k]])
        # Drawing has no memory. The order in which the other columns would come is that of exponential waiting times,
        # which costs as much as there are columns, but ends also where a few columns take nearly all draws.
        wait = draw.standard_exponential(len(self.p)) * np.exp(-tilt * self.w) / self.p
        wait[words] = 0.0
        return np.argpartition(wait, k - 1)[:k]
