"""Cells of raw tables: every text has one, one record moves them by the declared, quantiles lie between their ends."""

import csv
import itertools
import math

import numpy as np
import pytest

from dpmpi.data.codebook import parse_codebook
from dpmpi.data.description import QUANTILES, count_cells, figures, grid, read_schema
from dpmpi.data.draft import draft_codebook, lines
from dpmpi.errors import ConfigError, DataError

SCHEMA = """
missing-words = ["", "NA"]
[label]
column = "readmitted"
classes = ["no", "yes"]
[columns.age]
range = [0, 200]
[columns.gain]
range = [-100000, 100000]
[columns.ward]
categories = ["medicine", "surgery"]
"""
HEADER = ["ward", "age", "readmitted", "gain", "secret"]
STRANGE = ["", "NA", "nan", "1e999", "-1e999", "-5", "200", "200.0001", "0", "1,5", "surgery", "no", "x" * 500, "0x10"]


@pytest.fixture
def schema(tmp_path):
    return read(tmp_path, SCHEMA)


def read(folder, text):
    (folder / "schema.toml").write_text(text)
    return read_schema(folder / "schema.toml")


def write(path, records, header=HEADER):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *records])
    return path


def drawn(draw, rows):
    """Records of any texts."""
    usual = [["medicine", str(draw.integers(0, 99)), "yes", f"{draw.normal():.3f}", "s"] for _ in range(rows)]
    return [[str(draw.choice([cell, draw.choice(STRANGE)])) for cell in record] for record in usual]


@pytest.mark.parametrize(
    "ends", [(0, 200), (-1e5, 1e5), (18, 100), (1900, 2100), (-3.5, 0.25), (0, 1e9), (1e-3, 2e-3), (0, 40), (0, 41)]
)
def test_edges_are_round_and_in_order_and_few(ends):
    edges = grid(*map(float, ends))
    assert edges[0] == ends[0]
    assert edges[-1] == ends[1]
    assert all(a < b for a, b in itertools.pairwise(edges))
    assert len(edges) < 90
    assert np.diff(edges).max() <= (ends[1] - ends[0]) / 16
    for edge in edges[1:-1]:
        assert edge == float(f"{edge:.3e}")


def test_a_grid_has_small_steps_around_zero_for_long_tails():
    edges = grid(0.0, 1e6)
    assert {5.0, 100.0, 2000.0, 10000.0, 980000.0} < set(edges)
    assert grid(0.0, 200.0)[-4:] == (185.0, 190.0, 195.0, 200.0)


def test_every_record_is_one_in_every_histogram_whatever_its_cells_hold(schema, tmp_path):
    draw = np.random.default_rng(0)
    found = count_cells(write(tmp_path / "t.csv", drawn(draw, 300)), schema)
    assert found.rows == 300
    assert [part.sum() for part in schema.split(found.cells)] == [300.0] * 4


def test_cells_by_hand(tmp_path):
    schema = read(tmp_path, '[columns.a]\nrange = [0, 4]\n[columns.b]\ncategories = ["x", "y"]\n')
    assert not schema.labelled
    edges = schema.histograms[0].edges
    records = [["-1", "x"], ["0", "y"], ["3.95", "z"], ["4", ""], ["4.1", "x"], ["", "x"], ["four", "y"]]
    a, b = schema.split(count_cells(write(tmp_path / "t.csv", records, ["a", "b"]), schema).cells)
    assert len(a) == len(edges) + 3
    places = [0, 1, len(edges) - 1, len(edges) - 1, len(edges), len(edges) + 1, len(edges) + 2]
    assert a.tolist() == np.bincount(places, minlength=len(a)).tolist()
    assert b.tolist() == [3.0, 2.0, 1.0, 1.0]


def test_one_record_moves_the_cells_by_the_declared_and_can_move_them_that_far(schema, tmp_path):
    draw, furthest = np.random.default_rng(1), 0.0
    records = drawn(draw, 30)
    before = count_cells(write(tmp_path / "t.csv", records), schema).cells
    for _ in range(60):
        moved = list(records)
        moved[draw.integers(30)] = drawn(draw, 1)[0]
        after = count_cells(write(tmp_path / "t.csv", moved), schema).cells
        furthest = max(furthest, float(np.linalg.norm(after - before)))
    assert furthest == pytest.approx(schema.sensitivity) == math.sqrt(8)


def test_a_whole_person_moves_the_cells_by_the_declared_times_most(tmp_path):
    schema = read(tmp_path, SCHEMA + '[person]\ncolumn = "secret"\nmost = 3\n')
    a = [["medicine", "50", "yes", "1", "p"]] * 5 + [["surgery", "60", "no", "2", f"q{k}"] for k in range(9)]
    b = [["surgery", "20", "no", "9", "p"]] * 5 + a[5:]
    one, other = (count_cells(write(tmp_path / "t.csv", records), schema) for records in (a, b))
    assert schema.most == 3
    assert one.rows == other.rows == 12
    assert np.linalg.norm(one.cells - other.cells) == pytest.approx(3 * schema.sensitivity)
    with pytest.raises(DataError, match="expected whose the record is"):
        count_cells(write(tmp_path / "t.csv", [["surgery", "20", "no", "9", ""]]), schema)


def test_quantiles_lie_between_their_ends_as_often_as_said(tmp_path):
    schema = read(tmp_path, "[columns.a]\nrange = [0, 1000]\n")
    draw, rows, deviation, inside, tries = np.random.default_rng(2), 20_000, 150.0, 0, 0
    values = np.minimum(draw.gamma(2.0, 40.0, rows), 990.0)
    write(tmp_path / "t.csv", [[f"{v:.6f}"] for v in values], ["a"])
    exact = count_cells(tmp_path / "t.csv", schema).cells
    truth = np.quantile(values, QUANTILES)
    for _ in range(60):
        (found,) = figures(schema, exact + deviation * draw.standard_normal(schema.width), rows, deviation)
        for quantile, true in zip(found["quantiles"], truth, strict=True):
            assert quantile["low"] <= quantile["value"] <= quantile["high"]
            inside += quantile["low"] <= true <= quantile["high"]
            tries += 1
    assert 0.93 * tries < inside
    (found,) = figures(schema, exact, rows, 1e-9)
    for quantile, true in zip(found["quantiles"], truth, strict=True):
        assert quantile["high"] - quantile["low"] <= 25.0
        assert quantile["value"] == pytest.approx(true, abs=5.0)


def test_noise_alone_says_nothing(tmp_path):
    schema = read(tmp_path, "[columns.a]\nrange = [0, 1000]\n")
    noise = 1e6 * np.random.default_rng(3).standard_normal(schema.width)
    (found,) = figures(schema, noise, 100, 1e6)
    assert {(q["low"], q["high"]) for q in found["quantiles"]} == {(0.0, 1000.0)}


def test_rates_and_counts_have_their_spread(tmp_path):
    schema = read(tmp_path, '[columns.b]\ncategories = ["x", "y"]\n')
    exact, draw = np.array([500.0, 200.0, 40.0, 60.0]), np.random.default_rng(4)
    drawn = [figures(schema, exact + 5.0 * draw.standard_normal(4), 800, 5.0)[0] for _ in range(2000)]
    missing = np.array([one["missing"]["value"] for one in drawn])
    counts = np.array([one["counts"]["x"] for one in drawn])
    assert missing.mean() == pytest.approx(60 / 800, abs=0.001)
    assert counts.mean() == pytest.approx(500, abs=0.5)
    assert missing.std() == pytest.approx(drawn[0]["missing"]["error"], rel=0.1)
    assert counts.std() == pytest.approx(drawn[0]["count_error"], rel=0.1)


def test_the_draft_is_a_codebook_with_narrower_ranges(schema, tmp_path):
    draw = np.random.default_rng(5)
    ages = draw.integers(20, 80, 4000)
    records = [["medicine", str(age), "yes", f"{draw.normal():.3f}", "s"] for age in ages]
    cells = count_cells(write(tmp_path / "t.csv", records), schema).cells
    columns = figures(schema, cells, 4000, 1.0)
    book = parse_codebook(draft_codebook(schema, columns, "a test"), "draft.toml")
    assert (book.columns[0].low, book.columns[0].high) == (20.0, 80.0)
    assert book.columns[1].low >= -5.0
    assert book.columns[1].high <= 5.0
    assert book.columns[2].categories == ("medicine", "surgery")
    assert book.columns[2].other
    assert book.label.classes == ("no", "yes")
    assert book.missing_words == ("", "NA")
    text = "\n".join(lines(columns))
    assert "age: number in [0, 200], missing 0.0%" in text
    assert "medicine" in text


def test_a_schema_says_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="categories = "):
        read(tmp_path, '[columns.ward]\nmissing = "drop"\n')
    with pytest.raises(DataError, match="expected a column 'b'"):
        count_cells(write(tmp_path / "t.csv", [["1"]], ["a"]), read(tmp_path, "[columns.b]\nrange = [0, 1]\n"))
