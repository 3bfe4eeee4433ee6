"""Images in the IDX format: small files of our own, and MNIST where it is."""

import gzip
import os
import struct
from pathlib import Path

import needs
import numpy as np
import pytest

from dpmpi.data import parse_source
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.task import Task


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder, rows=30, tests=10, size=(3, 2), packed=True):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (rows + tests, *size), np.uint8)
    labels = draw.integers(3, 7, rows + tests).astype(np.uint8)
    for name, part in (("train", slice(0, rows)), ("t10k", slice(rows, None))):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            raw = idx(array)
            path = folder / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(raw) if packed else raw)
    return images, labels


def source(folder, **options):
    given = {"samples": None, "normalize": True, "test_fraction": 0.25, "seed": 3, "loss": None} | options
    return parse_source(f"images:{folder}", **given)


@pytest.mark.parametrize("packed", [True, False])
def test_every_image_is_dealt_to_one_rank_scaled_and_with_its_class(tmp_path, packed):
    images, labels = write(tmp_path, packed=packed)
    made = source(tmp_path, normalize=False)
    survey = made.survey()
    assert (survey.rows, survey.features, survey.labels) == (40, 6, (3.0, 4.0, 5.0, 6.0))
    assert made.declared_task(survey) == Task("multiclass", ("3", "4", "5", "6"))
    shards = [made.load(survey, rank, 4) for rank in range(4)]
    X = np.concatenate([part.matrix for s in shards for part in (s.rows, s.test_rows)])
    y = np.concatenate([part for s in shards for part in (s.labels, s.test_labels)])
    assert [s.test_rows.count for s in shards] == [2, 3, 2, 3]
    expected = {tuple(row.reshape(-1).tolist()): label - 3.0 for row, label in zip(images, labels, strict=True)}
    assert {tuple(np.rint(row * 255).astype(int).tolist()): label for row, label in zip(X, y, strict=True)} == expected
    again = made.load_many(survey, [0, 1, 2, 3], 4)
    assert all(np.array_equal(a.rows.matrix, b.rows.matrix) for a, b in zip(again, shards, strict=True))


def test_published_test_images_are_held_out_unless_somebody_says_otherwise(tmp_path):
    images, labels = write(tmp_path)
    made = source(tmp_path, test_fraction=None, normalize=False)
    survey = made.survey()
    shards = made.load_many(survey, [0, 1, 2], 3)
    assert [s.rows.count for s in shards] == made.shard_sizes(survey, 3) == [10, 10, 10]
    tests = np.concatenate([s.test_rows.matrix for s in shards])
    np.testing.assert_array_equal(np.rint(tests * 255), images[30:].reshape(10, 6))
    np.testing.assert_array_equal(np.concatenate([s.test_labels for s in shards]), labels[30:] - 3.0)
    few = source(tmp_path, test_fraction=None, samples=12)
    assert [few.load(survey, k, 3).rows.count for k in range(3)] == [4, 4, 4]
    assert sum(few.load(survey, k, 3).test_rows.count for k in range(3)) == 10
    with pytest.raises(ConfigError, match="expected at least the 31 samples asked for, found 30"):
        source(tmp_path, test_fraction=None, samples=31).shard_sizes(survey, 3)


def test_rows_have_norm_at_most_one_and_numbers_are_an_option(tmp_path):
    write(tmp_path)
    assert source(tmp_path).load(None, 0, 2).rows.norms.max() <= 1.0
    numbers = source(tmp_path, loss="squared").load(None, 0, 2)
    assert numbers.task == Task("regression", (), 3.0, 6.0)
    assert set(numbers.labels) <= {-1.0, -1 / 3, 1 / 3, 1.0} or np.abs(numbers.labels).max() <= 1.0


def cut(path, end):
    path.write_bytes(path.read_bytes()[:end])


def more(path, raw):
    path.write_bytes(path.read_bytes() + raw)


def huge(path):
    path.write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**20, 2**20))


def few(folder):
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((10, 2, 2), np.uint8)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "train-labels-idx1-ubyte").unlink(), "expected .*train-labels-idx1-ubyte"),
        (lambda folder: (folder / "t10k-images-idx3-ubyte").unlink(), "expected .*t10k-images-idx3-ubyte"),
        (lambda folder: (folder / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08"), "expected an IDX file"),
        (
            lambda folder: (folder / "train-images-idx3-ubyte").write_bytes(idx(np.zeros(5, np.uint8))),
            "in 3 dimensions",
        ),
        (lambda folder: cut(folder / "train-images-idx3-ubyte", -1), "expected 30 records of 6 bytes, found 29"),
        (lambda folder: cut(folder / "train-labels-idx1-ubyte", -1), "expected 30 records of 1 bytes, found 29"),
        (lambda folder: more(folder / "train-images-idx3-ubyte", b"x" * 6), "expected 30 records of 6 bytes, found 31"),
        (lambda folder: huge(folder / "train-images-idx3-ubyte"), "expected at most 2048 MB"),
        (few, "expected images of one size with a label each"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, damage, message):
    write(tmp_path, packed=False)
    damage(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        source(tmp_path).load(None, 0, 1)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match="found no such folder"):
        source(tmp_path / "none").survey()


@needs.data
def test_mnist():
    folder = Path(os.environ["DPMPI_DATA"]) / "mnist"
    made = source(folder, test_fraction=0.1)
    survey = made.survey()
    assert (survey.rows, survey.features, len(survey.labels)) == (70000, 784, 10)
    shard = made.load(survey, 3, 200)
    assert shard.rows.count == 315
    assert set(shard.labels) == set(range(10))
