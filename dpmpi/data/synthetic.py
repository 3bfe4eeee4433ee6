"""Random records of a linear model, with noise in the labels, or random documents on a topic.

With g normal (on all columns, or on k random columns of a sparse row), w standard normal, and column j = 1 ... m of
standard deviation d_j = j^-decay,

    a  = g / |g|,   w* = w / |w|,   s = <a, w*> sqrt(sum_j d_j^2 / sum_j (d_j w*_j)^2)    (s has variance 1)       (1)
    svm:         y = 1 if s > 0, else -1; the other one with probability `flip`                                  (2)
    logistic:    P(y = +1) = 1 / (1 + exp(-4 s))                                                                 (3)
    regression:  y = s + 0.1 e clipped to [-1, 1], e standard normal                                             (4)
    counts:      y Poisson with the expectation e^s, 20 at most                                                  (9)
    multiclass:  y = argmax_k s_k, each s_k by a w of its own; with probability `flip` one of the others         (10)

decay = 0 is the hardest case for private learning: all directions matter alike. Real data have a few strong directions
and many weak ones, as decay = 0.5 does.

With skew = S > 0 shards differ in their features: training row r of n, and test row n + r of n tests, is moved by where
it lies in the global order, around a circle that two standard normal vectors c, c' span,

    u = (r + 1/2) / n,   g_j <- g_j + S (c_j cos(2 pi u) + c'_j sin(2 pi u))                                     (8)

before (1). S = 1 moves a row as far as it is long. Rows half a turn apart are moved in opposite directions, so that all
rows together have mean zero, and on a ring of ranks the differences are those that mixing takes longest to even out.

With zipf > 0 the rows are documents, as the columns of RCV1 are words: frequencies fall by the law of Zipf and
Mandelbrot, and one topic runs through the vocabulary, which half of the words speak for (w_j = +1), the others against
(w_j = -1). A document has s standard normal, how much it is for the topic, and with k words

    p_j ~ (j + shift)^-zipf,   sum_j p_j = 1                                                                     (5)
    columns: drawn one after the other with probabilities ~ p_j exp(topic s w_j) until k distinct ones are there  (6)
    a_j ~ (1 + log c_j) log(1 + 1/(k p_j)),   P(c_j = c) = 0.6 0.4^(c-1),   |a| = 1                              (7)

and the label that (2) to (4) give to s. (7) is term frequency times inverse document frequency. But for repeated words,
the likelihood of s is exp(topic s D) / Z(s)^k, D the words for minus those against: y = +1 is the likelier the larger D
is, so the best classifier is linear in which words occur. It errs on documents that are hardly for or against.

Row r and its label are a function of (seed, r) and of these options only, for skew > 0 also of how many rows there are.
They are drawn in blocks of 128 rows, each with its own generator, and a block is computed in tiles whose shape depends
on nothing but the row length: the same bits come out whichever rank asks for the row, and nothing is ever larger than a
tile besides the shard itself (a block and all labels, where labels decide who has which rows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.dealing import Part, evenly
from dpmpi.data.source import GeneratedSource, Shard, SourceOptions, Survey, held_out
from dpmpi.errors import ConfigError, nearest
from dpmpi.problem.rows import Csr, Dense, Positions, Rows
from dpmpi.problem.task import MOST_CLASSES, Task, TaskKind
from dpmpi.rng import public_generator

Labels: TypeAlias = Literal["svm", "logistic", "regression", "counts", "multiclass"]
_TASKS: dict[Labels, TaskKind] = {
    "svm": "binary",
    "logistic": "binary",
    "regression": "regression",
    "counts": "counts",
    "multiclass": "multiclass",
}
_MOST = 20
"""The largest count of (9)."""

_BLOCK = 128
_TILE_NUMBERS = 1 << 16  # half a megabyte: stays in the cache between drawing, scaling and scoring


@frozen
class Synthetic(GeneratedSource):
    """`synthetic:samples=2000,features=100,task=svm,density=1,flip=0.05,decay=0,skew=0,zipf=0,shift=0,topic=0.5`.

    `samples` counts training rows; `shift` and `topic` belong to documents, zipf > 0; `classes` to task=multiclass.
    """

    name = "synthetic"
    samples: int = 2000
    features: int = 100
    task: Labels = "svm"
    density: float = 1.0
    flip: float = 0.05
    decay: float = 0.0
    skew: float = 0.0
    zipf: float = 0.0
    shift: float = 0.0
    topic: float = 0.5
    classes: int = 3

    @classmethod
    def complete(cls, given: dict[str, Any], options: SourceOptions) -> None:
        """Add the task of the loss; raise `ConfigError` for values of another task, or of documents."""
        kind = options.declared.kind
        usual = "logistic" if options.loss == "logistic" else "svm"
        given.setdefault("task", usual if kind in (None, "binary") else kind)
        if given["task"] not in ("svm", "multiclass") and "flip" in given:
            raise ConfigError(
                f"synthetic: expected flip with task=svm or multiclass only, found task={given['task']}: leave it out"
            )
        if given["task"] != "multiclass" and "classes" in given:
            raise ConfigError(
                f"synthetic: expected classes with task=multiclass only, found task={given['task']}: leave it out"
            )
        if not given.get("zipf"):
            for name in {"shift", "topic"} & given.keys():
                raise ConfigError(
                    f"synthetic: expected {name} with documents only, found zipf=0: set it, or leave it out"
                )

    def check(self) -> None:
        """Raise `ConfigError` for options that make no data."""
        if self.task not in _TASKS:
            near = nearest(self.task, _TASKS)
            raise ConfigError(f"synthetic: expected a task among {', '.join(_TASKS)}, found {self.task!r}{near}")
        kind = self.options.declared.kind or _TASKS[self.task]
        if kind != _TASKS[self.task] and (kind, _TASKS[self.task]) != ("regression", "binary"):
            raise ConfigError(
                f"synthetic: expected --task {_TASKS[self.task]} for task={self.task}, found {kind}: add it, or a loss "
                "for it"
            )
        if not 2 <= self.classes <= MOST_CLASSES:
            raise ConfigError(f"synthetic: expected 2 to {MOST_CLASSES} classes, found {self.classes}")
        if self.zipf and self.task in ("multiclass", "counts"):
            raise ConfigError(f"synthetic: expected two classes or numbers for documents, found task={self.task}")
        for name in ("samples", "features"):
            if getattr(self, name) < 1:
                raise ConfigError(f"synthetic: expected {name} >= 1, found {getattr(self, name)}")
        if not 0.0 < self.density <= 1.0:
            raise ConfigError(f"synthetic: expected a density above 0 and at most 1, found {self.density}")
        for name, top in (("flip", 0.5), ("decay", 4.0), ("skew", 100.0), ("zipf", 4.0), ("shift", 1e5)):
            if not 0.0 <= getattr(self, name) <= top:
                raise ConfigError(f"synthetic: expected {name} in 0 ... {top:g}, found {getattr(self, name)}")
        if not 0.0 < self.topic <= 4.0:
            raise ConfigError(f"synthetic: expected a topic above 0 and at most 4, found {self.topic}")
        if self.zipf and (self.density == 1.0 or self.decay or self.skew):
            raise ConfigError(
                f"synthetic: expected a density below 1, no decay and no skew for documents (zipf={self.zipf:g}), "
                f"found density={self.density:g}, decay={self.decay:g}, skew={self.skew:g}: change them, or drop zipf"
            )

    @property
    def nonzeros(self) -> int:
        """The numbers per row: the features of a dense row, the nonzero columns of a sparse one."""
        return self.features if self.density == 1.0 else max(1, round(self.density * self.features))

    @property
    def tests(self) -> int:
        """The test rows, which come on top of `samples`."""
        return held_out(self.samples, self.options.test_fraction)

    def test_rows(self, survey: Survey) -> int:
        """Return `tests`."""
        return self.tests

    def survey(self) -> Survey:
        """Return the sizes, which are known without looking."""
        rows = self.samples + self.tests
        labels = (-1.0, 1.0) if _TASKS[self.task] == "binary" else ()
        return Survey(rows, self.features, labels, rows * self.nonzeros)

    def declared_task(self, survey: Survey | None) -> Task:
        """Return the task of the labels, which the options say."""
        kinds: dict[TaskKind, Task] = {
            "binary": Task(),
            "multiclass": Task("multiclass", tuple(map(str, range(self.classes)))),
            "regression": Task("regression", ()),
            "counts": Task("counts", (), 0.0, float(_MOST)),
        }
        return self.options.declared.with_declared(kinds[_TASKS[self.task]])

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Generate the rows of `rank`; the test rows are the ones after all training rows."""
        [shard] = self.load_many(survey, [rank], size)
        return shard

    def load_many(self, survey: Survey | None, ranks: Sequence[int], size: int) -> list[Shard]:
        """Generate the rows of several ranks; where labels decide who has which rows, all rows are generated once."""
        parts = self.parts(survey or self.survey(), size)
        shards = []
        for rank in ranks:
            test = evenly(self.tests, rank, size)
            tests = self._generate(range(self.samples + test.start, self.samples + test.stop))
            shards.append(Shard(*self._generate(parts[rank]), *tests, task=self.declared_task(survey)))
        return shards

    def training_labels(self, survey: Survey) -> Array:
        """Generate all training rows, a block at a time, and keep their labels."""
        blocks = (range(first, min(first + _BLOCK, self.samples)) for first in range(0, self.samples, _BLOCK))
        kind = self._kind()
        return np.concatenate([self._draw(block, kind).labels for block in blocks])

    def _generate(self, wanted: Part) -> tuple[Rows, Array]:
        """Return the rows with the global numbers `wanted` and their labels."""
        found = self._draw(wanted, self._kind())
        if self.density == 1.0:
            return Dense(found.values), found.labels
        indptr = np.arange(len(wanted) + 1, dtype=np.intp) * self.nonzeros
        return Csr(indptr, found.columns.reshape(-1), found.values.reshape(-1), self.features), found.labels

    def _kind(self) -> _Documents | _Records:
        return _Documents(self) if self.zipf else _Records(self)

    def _draw(self, wanted: Part, kind: _Documents | _Records) -> _Tile:
        """Draw the rows with the global numbers `wanted`, tile by tile."""
        width = self.nonzeros if self.density < 1.0 else 0
        height = min(_BLOCK, 1 << (max(1, _TILE_NUMBERS // self.nonzeros).bit_length() - 1))
        found, spare = (
            _Tile(np.empty((rows, self.nonzeros)), np.empty((rows, width), np.intp), np.empty(rows))
            for rows in (len(wanted), height)
        )
        numbers = np.arange(wanted.start, wanted.stop) if isinstance(wanted, range) else wanted
        places = np.argsort(numbers, kind="stable")
        numbers = numbers[places]
        blocks = numbers // _BLOCK
        for block in blocks[np.flatnonzero(np.diff(blocks, prepend=-1))].tolist():  # np.unique would import numpy.ma
            draw, noise = public_generator(self.options.seed, "rows", block), self._label_noise(block)
            first, last = block * _BLOCK, numbers[np.searchsorted(numbers, (block + 1) * _BLOCK) - 1]
            for start in range(first, int(last) + 1, height):
                low, high = np.searchsorted(numbers, (start, start + height))
                here = places[low:high]
                inside = len(here) == height and bool(np.all(np.diff(here) == 1))
                tile = found.part(slice(here[0], here[0] + height)) if inside else spare
                self._label(tile, kind.fill(tile, draw, start), noise[start - first :][:height])
                if not inside:
                    found.put(here, tile, numbers[low:high] - start)
        return found

    def _label(self, tile: _Tile, score: Array, noise: Array) -> None:
        """Label the rows of a tile by their scores s."""
        if self.task == "regression":
            tile.labels[:] = np.clip(score + 0.1 * noise, -1.0, 1.0)  # (4)
        elif self.task == "multiclass":
            best, others = score.argmax(axis=1), np.ceil(noise / max(self.flip, 1e-300) * (self.classes - 1))
            tile.labels[:] = np.where(noise < self.flip, (best + others) % self.classes, best)  # (10)
        elif self.task == "counts":
            expected, total = np.exp(score), np.zeros_like(score)
            term = np.exp(-expected)
            tile.labels[:] = 0.0
            for k in range(_MOST):
                total += term
                tile.labels[:] += noise > total  # (9), by the distribution function
                term *= expected / (k + 1)
        elif self.task == "logistic":
            tile.labels[:] = np.where(np.log(noise / (1.0 - noise)) < 4.0 * score, 1.0, -1.0)  # (3), by the logit of u
        else:
            tile.labels[:] = np.where((score > 0.0) == (noise >= self.flip), 1.0, -1.0)  # (2)

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

    def part(self, rows: slice) -> _Tile:
        """Return a view of some rows."""
        return _Tile(self.values[rows], self.columns[rows], self.labels[rows])

    def put(self, places: Positions, other: _Tile, rows: Positions) -> None:
        """Copy some rows of another tile to `places`."""
        self.values[places], self.columns[places] = other.values[rows], other.columns[rows]
        self.labels[places] = other.labels[rows]


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
        many = (source.features, source.classes) if source.task == "multiclass" else None
        self.many = None if many is None else public_generator(source.options.seed, "separators").standard_normal(many)
        d = None if source.decay == 0.0 else np.arange(1.0, source.features + 1.0) ** -source.decay
        self.w, self.d = w, d
        self.gain = math.sqrt(source.features if d is None else np.sum(d * d) / np.sum((d * w) ** 2))
        self.skew, self.samples, self.tests = source.skew, source.samples, source.tests
        circle = public_generator(source.options.seed, "skew")
        self.circle = circle.standard_normal((2, source.features if source.skew else 0)) * source.skew

    def fill(self, tile: _Tile, draw: np.random.Generator, first: int) -> Array:
        """Draw the rows of a tile, numbered from `first`; return their s."""
        for row in tile.columns if self.sparse else ():
            row[:] = draw.choice(self.features, len(row), replace=False, shuffle=False)
            row.sort()
        a = draw.standard_normal(out=tile.values)
        if self.skew:
            for c, weight in zip(self.circle, self._place(first, len(a)), strict=True):
                a += (c[tile.columns] if self.sparse else c) * weight[:, np.newaxis]  # (8)
        if self.d is not None:
            a *= self.d[tile.columns] if self.sparse else self.d
        _scale(a, self.features)  # (1)
        if self.many is not None:
            W = self.many[tile.columns] if self.sparse else self.many
            return np.asarray(np.einsum("ij,ijk->ik" if self.sparse else "ij,jk->ik", a, W))
        s = np.einsum("ij,ij->i", a, self.w[tile.columns]) if self.sparse else np.einsum("ij,j->i", a, self.w)
        return np.asarray(self.gain * s)

    def _place(self, first: int, count: int) -> tuple[Array, Array]:
        """Return cos(2 pi u) and sin(2 pi u) of rows numbered from `first`."""
        r = np.arange(first, first + count)
        trains = r < self.samples
        u = (r - np.where(trains, 0, self.samples) + 0.5) / np.where(trains, self.samples, max(1, self.tests))
        return np.cos(2.0 * math.pi * u), np.sin(2.0 * math.pi * u)


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

    def fill(self, tile: _Tile, draw: np.random.Generator, first: int) -> Array:
        """Draw the rows of a tile, wherever it lies; return their s."""
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
