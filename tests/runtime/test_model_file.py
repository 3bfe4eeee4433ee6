"""The model file of whole runs on loopback: it scores records as the run did, by the names of the codebook."""

import json
import math
import os

import needs
import numpy as np
import pytest

import dpmpi
from dpmpi.commands.dispatch import main as command
from dpmpi.data.adult import FEATURE_NAMES
from dpmpi.data.codebook import read_codebook
from dpmpi.data.shards import read_npz
from dpmpi.run import main

BOOK = """
[label]
column = "{label}"
{values}

[columns.age]
range = [20, 80]
scale = [-1, 1]
missing = "column"

[columns.ward]
categories = ["medicine", "surgery"]
other = true
"""
CLASSES = 'classes = ["well", "ill"]'


def write_shards(folder, ranks, book, label=lambda age: "ill" if age > 50 else "well", first=0):
    (folder / "book.toml").write_text(book)
    draw = np.random.default_rng(first)
    for rank in range(ranks):
        ages, wards = draw.integers(15, 90, 60), draw.choice(["medicine", "surgery", "x"], 60)
        lines = [f"{age},{ward},{label(age)}" for age, ward in zip(ages, wards, strict=True)]
        (folder / "table.csv").write_text("age,ward,outcome\n" + "\n".join(lines) + "\n")
        words = ["--codebook", folder / "book.toml", "--out", folder / f"{first + rank}.npz"]
        assert command(["data", "table", str(folder / "table.csv"), *map(str, words)]) == 0


def trained(folder, *flags, ranks=3, data="shards:{folder}/{{rank}}.npz"):
    out = folder / "run"
    words = ["--loopback", ranks, "--data", data.format(folder=folder), "--rounds", 30, "--out", out, *flags]
    assert main([*map(str, words), "--quiet"]) == 0
    return dpmpi.Model.load(out), json.loads((out / "summary.json").read_text())


@pytest.fixture
def coded(tmp_path):
    write_shards(tmp_path, 3, BOOK.format(label="outcome", values=CLASSES))
    return tmp_path


def test_a_model_of_tables_stands_alone(coded):
    model, summary = trained(coded, "--loss", "logistic", "--epsilon", 2, "--delta", 1e-3)
    assert model.task.classes == ("well", "ill")
    assert model.features == ("age", "age is missing", "ward=medicine", "ward=surgery", "ward is another")
    assert model.codebook == BOOK.format(label="outcome", values=CLASSES)
    assert model.codebook_digest == read_codebook(coded / "book.toml").digest
    assert model.units["age"] == (20.0, 80.0)
    assert model.privacy.epsilon == summary["privacy"]["epsilon"]
    assert (model.privacy.delta, model.privacy.unit, model.privacy.run) == (1e-3, "record", summary["run"])
    assert "private, of rows that training did not read" in model.privacy.evaluation  # the default for shards


def test_predictions_are_those_that_the_run_counted(coded):
    model, summary = trained(coded, "--loss", "logistic", "--evaluate", 30, "--test-fraction", 0)
    assert summary["accuracy"] is None
    rows = [read_npz(coded / f"{rank}.npz") for rank in range(3)]
    right = [np.mean((model.predict(X) == "ill") == (y > 0)) for X, y in rows]
    assert np.mean(right) > 0.9
    assert "outside of the guarantee" in model.privacy.text


def test_a_run_on_public_rows(tmp_path):
    model, summary = trained(
        tmp_path, "--test-fraction", 0.5, "--no-normalize", data="synthetic:samples=300,features=5"
    )
    assert model.names is None
    assert math.isinf(model.norm_bound)
    assert model.features[-1] == "5"
    assert model.x_rank.shape == (3, 6)
    assert not model.privacy.private
    np.testing.assert_allclose(model.x_rank.mean(axis=0), model.x, atol=1e-15)
    assert summary["accuracy"] > 0.5


@needs.data
def test_the_features_of_the_census_have_their_names(tmp_path):
    data = f"adult:{os.environ['DPMPI_DATA']}"
    model, _ = trained(tmp_path, "--samples", 300, "--algorithm", "dda", data=data)
    assert model.features == FEATURE_NAMES


@pytest.mark.parametrize(("scale", "low"), [("[-1, 1]", 0.0), ("[0, 1]", -200.0)])
def test_numbers_are_predicted_in_the_units_of_the_table(tmp_path, scale, low):
    values = f"range = [0, 200]\nscale = {scale}"
    write_shards(tmp_path, 3, BOOK.format(label="outcome", values=values), label=lambda age: 2 * age)
    flags = ("--loss", "squared", "--algorithm", "dda", "--gamma", 0.3, "--rounds", 400, "--lipschitz", 10)
    model, _ = trained(tmp_path, *flags)
    assert (model.task.kind, model.task.low, model.task.high) == ("regression", low, 200.0)
    ages = np.array([30.0, 50.0, 70.0])
    row = np.stack([(ages - 50.0) / 30.0, 0 * ages, 1 + 0 * ages, 0 * ages, 0 * ages], axis=1)
    np.testing.assert_allclose(model.predict(row), 2 * ages, atol=25.0)


def test_shards_of_two_codebooks_are_refused(coded, capsys):
    write_shards(coded, 1, BOOK.format(label="outcome", values=CLASSES).replace("80", "90"), first=2)
    words = ["--loopback", "3", "--data", f"shards:{coded}/{{rank}}.npz", "--out", str(coded / "run")]
    assert main(words) == 2
    assert "expected shards coded by one codebook, found 2" in capsys.readouterr().err


def test_a_mean_is_written_too(tmp_path):
    flags = ("--loss", "mean", "--algorithm", "dgd")
    model, _ = trained(tmp_path, *flags, data="mean:samples=60,dimension=3")
    assert model.loss == "mean"
    np.testing.assert_array_equal(model.coefficients[:, 0], model.x)
