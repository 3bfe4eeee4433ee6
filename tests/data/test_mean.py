"""Points in a cube: the truncated normal distribution, the same bits for every rank count, never outside."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpmpi.data import Survey, parse_source
from dpmpi.data.shards import read_npz, write_shards
from dpmpi.errors import ConfigError


def source(spec="mean", *, samples=None, normalize=True, test_fraction=None, seed=7, loss="mean"):
    return parse_source(spec, samples=samples, normalize=normalize, test_fraction=test_fraction, seed=seed, loss=loss)


def load(spec, rank=0, size=1, **options):
    made = source(spec, **options)
    return made.load(Survey.from_dict(json.loads(json.dumps(made.survey().to_dict()))), rank, size)


def points(spec, size=1, **options):
    return np.vstack([load(spec, rank, size, **options).rows.matrix for rank in range(size)])


def test_defaults_are_the_papers():
    """Section V.A: ten nodes with a hundred points each around 0.7 R, unit variance, nothing held out."""
    made = source("mean")
    assert (made.radius, made.centre, made.spread, made.samples, made.dimension) == (1.0, 0.7, 1.0, 1000, 10)
    shards = [made.load(made.survey(), rank, 10) for rank in range(10)]
    assert {shard.rows.count for shard in shards} == {100}
    assert all(shard.test_rows.count == 0 and shard.test_rows.dimension == 10 for shard in shards)
    assert all(not shard.labels.any() for shard in shards)
    assert made.survey() == Survey(1000, 10, (), 10000)
    assert made.training_rows(made.survey()) == 1000
    assert not made.private


@pytest.mark.parametrize(
    "spec",
    ["mean:samples=300,dimension=7", "mean:samples=40,dimension=3000,spread=0.2", "mean:samples=9,dimension=70000"],
)
def test_the_same_bits_for_every_rank_count(spec):
    whole = points(spec)
    for size in (2, 3, 9):
        assert np.array_equal(points(spec, size), whole)


@given(
    samples=st.integers(1, 300), dimension=st.integers(1, 900), size=st.integers(1, 7), spread=st.sampled_from([0.3, 2])
)
@settings(max_examples=20, deadline=None)
def test_rows_do_not_depend_on_how_they_are_asked_for(samples, dimension, size, spread):
    long = points(f"mean:samples=300,dimension={dimension},spread={spread}")
    size = min(size, samples)
    for rank in range(size):
        shard = load(f"mean:samples={samples},dimension={dimension},spread={spread}", rank, size)
        assert np.array_equal(shard.rows.matrix, long[rank * samples // size : (rank + 1) * samples // size])


@pytest.mark.parametrize(
    ("radius", "centre", "spread"),
    [(1, 0.7, 1), (1, 0.7, 0.25), (2, 0.7, 1), (2, -1, 0.5), (2, 1, 1.999), (0.5, 0, 40), (1, 1, 1), (3, -0.2, 3.5)],
)
def test_coordinates_are_truncated_normal(radius, centre, spread):
    """(1), by the Kolmogorov-Smirnov distance to scipy's distribution, whichever proposal was used."""
    found = points(f"mean:samples=2000,dimension=10,radius={radius},centre={centre},spread={spread}")
    middle = centre * radius
    expected = stats.truncnorm((-radius - middle) / spread, (radius - middle) / spread, loc=middle, scale=spread)
    assert stats.kstest(found.ravel(), expected.cdf).pvalue > 1e-3
    for columns in (found[:, :5], found[:, 5:]):  # no coordinate is special
        error = columns.mean() - expected.mean()
        assert abs(error) < 4.5 * expected.std() / np.sqrt(columns.size)
    assert found.var() == pytest.approx(expected.var(), rel=0.05)


def test_coordinates_and_rows_are_independent():
    found = points("mean:samples=4000,dimension=6")
    correlation = np.corrcoef(found, rowvar=False) - np.eye(6)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(4000)
    assert abs(np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1]) < 4.5 / np.sqrt(found.size)
    assert len(np.unique(found)) == found.size  # no block repeats another


@given(radius=st.floats(1e-6, 1e6), centre=st.floats(-1, 1), spread=st.floats(1e-9, 1e9))
@settings(max_examples=40, deadline=None)
def test_no_point_leaves_the_cube(radius, centre, spread):
    found = points(f"mean:samples=20,dimension=5,radius={radius!r},centre={centre!r},spread={spread!r}")
    assert np.all(np.abs(found) <= radius)


@pytest.mark.parametrize("edge", ["radius=1e-100", "radius=1e100", "spread=1e-100", "spread=1e100,centre=-1"])
def test_extreme_sizes_are_finite(edge):
    made = source(f"mean:samples=5,dimension=3,{edge}")
    found = made.load(None, 0, 1).rows.matrix
    assert np.all(np.abs(found) <= made.radius)


def test_rows_are_not_scaled_to_norm_one():
    scaled, plain = points("mean:radius=5", normalize=True), points("mean:radius=5", normalize=False)
    assert np.array_equal(scaled, plain)
    assert np.linalg.norm(scaled, axis=1).min() > 1.0


def test_seed_and_samples_flag_decide_the_rows():
    assert not np.array_equal(points("mean"), points("mean", seed=8))
    assert np.array_equal(points("mean", samples=30), points("mean")[:30])


def test_shards_round_trip(tmp_path):
    made = source("mean:samples=50,dimension=4,radius=2")
    for rank, path in enumerate(write_shards(made, 3, f"{tmp_path}/{{rank}}.npz", lambda done: None)):
        rows, labels = read_npz(path)
        assert np.array_equal(rows.matrix, made.load(None, rank, 3).rows.matrix)
        assert not labels.any()


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("mean:radius=0", {}, "expected radius in"),
        ("mean:radius=nan", {}, "expected radius in"),
        ("mean:radius=inf", {}, "expected radius in"),
        ("mean:spread=-1", {}, "expected spread in"),
        ("mean:spread=one", {}, "expected spread=NUMBER, found 'one'"),
        ("mean:centre=1.5", {}, "in units of the radius, found 1.5"),
        ("mean:centre=nan", {}, "expected a centre in -1 ... 1"),
        ("mean:dimension=0", {}, "expected dimension >= 1"),
        ("mean:samples=0", {}, "expected samples >= 1"),
        ("mean:features=3", {}, "found the unknown option 'features'"),
        ("mean:center=0", {}, "did you mean centre?"),
        ("mean", {"test_fraction": 0.1}, "no accuracy"),
        ("mean", {"loss": "hinge"}, "expected --loss mean"),
        ("mean", {"loss": "squared"}, "found squared"),
        ("synthetic", {}, "expected --data mean"),
        ("libsvm:nowhere", {}, "found libsvm"),
        ("adult:nowhere", {}, "found adult"),
        ("shards:x-{rank}.npz", {}, "found shards"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(spec, options, says):
    with pytest.raises(ConfigError) as caught:
        source(spec, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_many_ranks():
    with pytest.raises(ConfigError, match="expected a training row for each of 4 ranks, found 3"):
        load("mean:samples=3", 0, 4)
    assert source("synthetic", loss="hinge").options.test_fraction == 0.1
    assert source("mean").options.test_fraction == 0.0
