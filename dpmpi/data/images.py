"""Images with labels in the IDX format, as MNIST and the sets made like it come.

A folder holds `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, and `t10k-images-idx3-ubyte` and
`t10k-labels-idx1-ubyte` if there are test images, plain or compressed. The test images are held out, unless
`--test-fraction` says otherwise: then all are pooled and dealt out as public rows are. A file begins with four bytes
(0, 0, 8 for bytes, the number of dimensions) and the sizes as big-endian words of 32 bits; bytes follow, image after
image, row after row. With v_j = 0 ... 255 the pixels,

    row:    a = v / 255, then a / max(1, |a|)  (with --normalize)                                                 (1)
    label:  a class 0, 1, 2 ...                                                                                    (2)

so that both look at one image at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.file_reading import MOST_FEATURES, content_pieces, find_file
from dpmpi.data.source import FileSource, Shard, SourceOptions, Survey
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Dense, Positions, scale_rows
from dpmpi.problem.task import Task
from dpmpi.rng import public_generator

PARTS = ("train", "t10k")
_BYTES = 8  # the code of unsigned bytes
_BLOCK = 1 << 20
_MOST = 2**31


@frozen
class Images(FileSource):
    """`images:DIR`: images and their classes from the folder of the IDX files of MNIST, or of a set made like it."""

    name = "images"
    wanted = "the folder of train-images-idx3-ubyte and so on, as in images:data/mnist"
    unit = "images"

    @classmethod
    def parse(cls, text: str, options: SourceOptions) -> Self:
        """Return the source for a folder; unless flags say otherwise, labels are classes."""
        declared = options.declared
        if declared.kind is None:
            declared = replace(declared, kind="multiclass")
        return super().parse(text, replace(options, declared=declared))

    def survey(self) -> Survey:
        """Count the images and read their labels; pixels are read by the rank that keeps them."""
        shapes = [shape for shape, _ in (_header(path, 3) for path, _ in _files(self.path))]
        labels = self._labels()
        rows, features = sum(shape[0] for shape in shapes), math.prod(shapes[0][1:])
        if rows != len(labels) or any(shape[1:] != shapes[0][1:] for shape in shapes):
            found = f"{rows} images of {' and '.join(map(str, shapes))}, {len(labels)} labels"
            raise DataError(f"{self.path}: expected images of one size with a label each, found {found}")
        if not rows or not 1 <= features <= MOST_FEATURES:
            raise DataError(f"{self.path}: expected images with pixels, found {rows} of {features} pixels")
        return Survey(rows, features, tuple(np.unique(labels).tolist()), rows * features)

    def training_rows(self, survey: Survey) -> int:
        """Return how many images are not held out."""
        tests = self._tests(survey)
        if tests is None:
            return super().training_rows(survey)
        wanted, found = self.options.samples or survey.rows - tests, survey.rows - tests
        if wanted > found:
            raise ConfigError(f"expected at least the {wanted} samples asked for, found {found} images to train on")
        return wanted

    def test_rows(self, survey: Survey) -> int:
        """Return how many images are held out."""
        tests = self._tests(survey)
        return super().test_rows(survey) if tests is None else tests

    def _order(self, survey: Survey) -> Positions:
        """Return the images in the global order: those to train on shuffled, then those that are held out."""
        tests = self._tests(survey)
        if tests is None:
            return super()._order(survey)
        order = public_generator(self.options.seed, "shuffle").permutation(survey.rows - tests)
        return np.concatenate([order[: self.training_rows(survey)], np.arange(survey.rows - tests, survey.rows)])

    def _tests(self, survey: Survey) -> int | None:
        """Return how many test images there are to hold out; None if others are."""
        parts = list(_files(self.path)) if self.options.usual_tests else []
        return _header(parts[1][0], 3)[0][0] if len(parts) > 1 else None

    def file_labels(self, survey: Survey) -> Array:
        """Read the label of every image."""
        return self._labels()

    def load_many(self, survey: Survey | None, ranks: Sequence[int], size: int) -> list[Shard]:
        """Read the images of several ranks in one pass."""
        survey = survey or self.survey()
        task = self.declared_task(survey) or Task()
        dealt = self.deal(survey, ranks, size)
        place = np.full(survey.rows, -1)
        wanted = np.concatenate([mine for mine, _ in dealt])
        place[wanted] = np.arange(len(wanted))
        labels = task.coded(self._labels()[wanted], self.title)
        matrix, first = np.empty((len(wanted), survey.features)), 0
        for pixels in self._images(survey):
            here = place[first : first + len(pixels)]
            matrix[here[here >= 0]] = pixels[here >= 0] / 255.0  # (1)
            first += len(pixels)
        if self.options.normalize:
            scale_rows(Dense(matrix), 1.0)  # (1)
        return [Shard(*parts, task=task) for parts in _cut(matrix, labels, dealt)]

    def _labels(self) -> Array:
        """Return all labels in the order of the files, (2)."""
        found = []
        for _, path in _files(self.path):
            (count,), content = _header(path, 1)
            found.append(np.concatenate(list(_records(path, content, count, 1))).reshape(-1))
        return np.concatenate(found).astype(np.float64)

    def _images(self, survey: Survey) -> Iterator[NDArray[np.uint8]]:
        """Yield the pixels of all images in the order of the files, some images at a time."""
        for path, _ in _files(self.path):
            (count, *_), content = _header(path, 3)
            yield from _records(path, content, count, survey.features)


def _cut(
    matrix: Array, labels: Array, dealt: Sequence[tuple[Positions, int]]
) -> Iterator[tuple[Dense, Array, Dense, Array]]:
    """Yield the training rows, their labels, the test rows and theirs for each rank."""
    first = 0
    for mine, n in dealt:
        train, test = slice(first, first + n), slice(first + n, first + len(mine))
        yield Dense(matrix[train].copy()), labels[train].copy(), Dense(matrix[test].copy()), labels[test].copy()
        first += len(mine)


def _files(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files of images and of labels, part by part."""
    if not folder.is_dir():
        raise DataError(f"expected the folder of train-images-idx3-ubyte and so on, found no such folder: {folder}")
    for part in PARTS:
        names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        images, labels = (find_file(folder, name) for name in names)
        if images is not None and labels is not None:
            yield images, labels
        elif part == PARTS[0] or images is not None or labels is not None:
            missing = names[0] if images is None else names[1]
            raise DataError(f"expected {folder / missing}, plain or .gz, .bz2, .xz, found no such file: download it")


def _header(path: Path, dimensions: int) -> tuple[tuple[int, ...], Iterator[bytes]]:
    """Return the sizes that a file begins with, and what follows, piece by piece."""
    pieces = content_pieces(path)
    length, content = 4 + 4 * dimensions, b""
    while len(content) < length and (piece := next(pieces, b"")):
        content += piece
    if len(content) < length or content[:4] != bytes((0, 0, _BYTES, dimensions)):
        raise DataError(f"{path}: expected an IDX file of bytes in {dimensions} dimensions, found none: is it damaged?")
    sizes = struct.unpack(f">{dimensions}I", content[4:length])
    if math.prod(sizes) > _MOST:
        raise DataError(f"{path}: expected at most {_MOST >> 20} MB, found sizes {sizes}: is it damaged?")

    def rest() -> Iterator[bytes]:
        yield content[length:]
        yield from pieces

    return sizes, rest()


def _records(path: Path, content: Iterator[bytes], count: int, width: int) -> Iterator[NDArray[np.uint8]]:
    """Yield `count` records of `width` bytes, some at a time; raise `DataError` if there are fewer or more."""
    buffer, seen, least = bytearray(), 0, max(_BLOCK, width)
    for piece in content:
        buffer += piece
        if len(buffer) >= least:
            whole = len(buffer) // width * width
            seen += whole // width
            yield np.frombuffer(bytes(buffer[:whole]), np.uint8).reshape(-1, width)
            del buffer[:whole]
    seen += len(buffer) // width
    if seen != count or len(buffer) % width:
        raise DataError(f"{path}: expected {count} records of {width} bytes, found {seen}: download it anew")
    yield np.frombuffer(bytes(buffer), np.uint8).reshape(-1, width)
