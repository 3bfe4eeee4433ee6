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
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.data.source import GeneratedSource, Shard, SourceOptions, Survey, check_dealt, deal, held_out
from dpmpi.errors import ConfigError, nearest
from dpmpi.problem.rows import Csr, Dense, Positions, Rows
from dpmpi.rng import public_generator

Task: TypeAlias = Literal["svm", "logistic", "regression"]
_TASK_OF_LOSS: dict[str, Task] = {"hinge": "svm", "logistic": "logistic", "squared": "regression"}

_BLOCK = 128
_TILE_NUMBERS = 1 << 16  # half a megabyte: stays in the cache between drawing, scaling and scoring


@dataclass(frozen=True, slots=True)
class Synthetic(GeneratedSource):
    """`synthetic:samples=2000,features=100,task=svm,density=1,flip=0.05,decay=0,zipf=0,shift=0,topic=0.5`.

    `samples` counts training rows; `shift` and `topic` belong to documents, zipf > 0.
    """

    name = "synthetic"
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
    def complete(cls, given: dict[str, Any], options: SourceOptions) -> None:
        """Add the task of the loss; raise `ConfigError` for values of another task, or of documents."""
        given.setdefault("task", _TASK_OF_LOSS.get(options.loss, "svm"))
        if given["task"] != "svm" and "flip" in given:
            raise ConfigError(f"synthetic: expected flip with task=svm only, found task={given['task']}: leave it out")
        if not given.get("zipf"):
            for name in {"shift", "topic"} & given.keys():
                raise ConfigError(
                    f"synthetic: expected {name} with documents only, found zipf=0: set it, or leave it out"
                )

    def check(self) -> None:
        """Raise `ConfigError` for options that make no data."""
        tasks = list(_TASK_OF_LOSS.values())
        if self.task not in tasks:
            near = nearest(self.task, tasks)
            raise ConfigError(f"synthetic: expected a task among {', '.join(tasks)}, found {self.task!r}{near}")
        if self.task == "regression" and self.options.binary:
            raise ConfigError(f"synthetic: expected --loss squared for task=regression, found {self.options.loss}")
        for name in ("samples", "features"):
            if getattr(self, name) < 1:
                raise ConfigError(f"synthetic: expected {name} >= 1, found {getattr(self, name)}")
        if not 0.0 < self.density <= 1.0:
            raise ConfigError(f"synthetic: expected a density above 0 and at most 1, found {self.density}")
        for name, top in (("flip", 0.5), ("decay", 4.0), ("zipf", 4.0), ("shift", 1e5)):
            if not 0.0 <= getattr(self, name) <= top:
                raise ConfigError(f"synthetic: expected {name} in 0 ... {top:g}, found {getattr(self, name)}")
        if not 0.0 < self.topic <= 4.0:
            raise ConfigError(f"synthetic: expected a topic above 0 and at most 4, found {self.topic}")
        if self.zipf and (self.density == 1.0 or self.decay):
            raise ConfigError(
                f"synthetic: expected a density below 1 and no decay for documents (zipf={self.zipf:g}), "
                f"found density={self.density:g}, decay={self.decay:g}: change them, or leave zipf out"
            )

    @property
    def nonzeros(self) -> int:
        """The numbers per row: the features of a dense row, the nonzero columns of a sparse one."""
        return self.features if self.density == 1.0 else max(1, round(self.density * self.features))

    @property
    def tests(self) -> int:
        """The test rows, which come on top of `samples`."""
        return held_out(self.samples, self.options.test_fraction)

    def survey(self) -> Survey:
        """Return the sizes, which are known without looking."""
        rows = self.samples + self.tests
        labels = () if self.task == "regression" else (-1.0, 1.0)
        return Survey(rows, self.features, labels, rows * self.nonzeros)

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
        kind = _Documents(self) if self.zipf else _Records(self)
        height = min(_BLOCK, 1 << (max(1, _TILE_NUMBERS // k).bit_length() - 1))
        spare = _Tile(np.empty((height, k)), np.empty((height, columns.shape[1]), np.intp), np.empty(height))
        for block in range(wanted.start // _BLOCK, -(-wanted.stop // _BLOCK) if wanted else 0):
            draw = public_generator(self.options.seed, "rows", block)
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
        draw = public_generator(self.options.seed, "labels", block)
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


class _Records:
    """Normal rows, dense or sparse."""

    def __init__(self, source: Synthetic) -> None:
        self.features, self.sparse = source.features, source.density < 1.0
        w = public_generator(source.options.seed, "separator").standard_normal(source.features)
        w *= 1.0 / math.sqrt(np.einsum("i,i", w, w))
        d = None if source.decay == 0.0 else np.arange(1.0, source.features + 1.0) ** -source.decay
        self.w, self.d = w, d
        self.gain = math.sqrt(source.features if d is None else np.sum(d * d) / np.sum((d * w) ** 2))

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


class _Documents:
    """Sparse rows of word weights."""

    def __init__(self, source: Synthetic) -> None:
        p = (np.arange(1.0, source.features + 1.0) + source.shift) ** -source.zipf  # (5)
        p /= p.sum()
        w = np.where(public_generator(source.options.seed, "separator").random(source.features) < 0.5, -1.0, 1.0)
        self.p, self.w, self.topic = p, w, source.topic
        self.rarity = np.log1p(1.0 / (source.nonzeros * p))
        self.order = np.argsort(w, kind="stable")  # the columns against the topic come first
        self.ends = np.cumsum(p[self.order])
        self.against = float(self.ends[np.count_nonzero(w < 0.0) - 1]) if w.min() < 0.0 else 0.0
        self.ends[-1] = math.inf  # whatever a draw is rounded to, it falls to a column

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
