"""Data sources: the same global data for every rank count, exact reading, and errors that say where and what."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from dpmpi.data import SOURCES, Shard, Survey, parse_source, widen
from dpmpi.data.libsvm import to_dense
from dpmpi.data.shards import read_npz, write_npz, write_shards
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Csr, Dense
from dpmpi.rng import public_generator

SIZES = (2, 5, 20)
OPEN = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def source(spec, *, samples=None, normalize=True, test_fraction=0.0, seed=7, loss="hinge", dimension=None):
    return parse_source(
        str(spec), samples=samples, normalize=normalize, test_fraction=test_fraction, seed=seed, loss=loss,
        dimension=dimension,
    )  # fmt: skip


def load(spec, rank=0, size=1, **options):
    made = source(spec, **options)
    survey = made.survey()
    if survey is not None:
        survey = Survey.from_dict(json.loads(json.dumps(survey.to_dict())))
    return made.load(survey, rank, size)


def matrix(rows):
    return rows.matrix if isinstance(rows, Dense) else to_dense(rows).matrix


def stacked(spec, size, **options):
    """Return (rows, labels, test rows, test labels) of all ranks, end to end."""
    shards = [load(spec, rank, size, **options) for rank in range(size)]
    assert all(shard.rows.count == len(shard.labels) >= 1 for shard in shards)
    assert all(shard.test_rows.count == len(shard.test_labels) for shard in shards)
    train = [(matrix(shard.rows), shard.labels) for shard in shards]
    test = [(matrix(shard.test_rows), shard.test_labels) for shard in shards]
    return tuple(np.concatenate(parts) for half in (train, test) for parts in zip(*half, strict=True))


def write_text(path, lines):
    with OPEN.get(path.suffix, open)(path, "wb") as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
    return path


def random_file(path, rows=97, features=40, density=0.1, labels=("-1", "+1"), seed=0):
    """Write a file whose rows are told apart by their numbers, with comments, blank lines and empty rows."""
    draw = np.random.default_rng(seed)
    lines = ["# a comment", ""]
    for r in range(rows):
        columns = np.flatnonzero(draw.random(features) < density) + 1
        columns = columns[:0] if r == 3 else columns
        if r == 5:
            columns = np.array([1, features])
        pairs = " ".join(f"{c}:{draw.normal():.17g}" for c in columns)
        lines.append(f"{labels[r % len(labels)]} {pairs}{'  # note' if r % 10 == 0 else ''}")
    return write_text(path, lines)


# --- synthetic -------------------------------------------------------------------------------------------------------

SYNTHETIC = [
    "synthetic:samples=701,features=33",
    "synthetic:samples=300,features=9,task=logistic",
    "synthetic:samples=300,features=1000,density=0.02",
    "synthetic:samples=140,features=3000,density=0.5",  # tiles of fewer rows than a block
    "synthetic:samples=21,features=33000",  # tiles of one row
]


@pytest.mark.parametrize("spec", SYNTHETIC)
def test_synthetic_is_the_same_bits_for_every_rank_count(spec):
    whole = stacked(spec, 1, test_fraction=0.3)
    for size in SIZES:
        for part, expected in zip(stacked(spec, size, test_fraction=0.3), whole, strict=True):
            assert np.array_equal(part, expected)


@given(
    samples=st.integers(1, 400), features=st.integers(1, 700), size=st.integers(1, 9), density=st.sampled_from([1, 0.1])
)
@settings(max_examples=25, deadline=None)
def test_synthetic_rows_do_not_depend_on_how_they_are_asked_for(samples, features, size, density):
    spec = f"synthetic:samples={samples},features={features},density={density}"
    long, labels, _, _ = stacked(f"synthetic:samples=400,features={features},density={density}", 1)
    size = min(size, samples)
    for rank in range(size):
        shard = load(spec, rank, size)
        here = slice(rank * samples // size, (rank + 1) * samples // size)
        assert np.array_equal(matrix(shard.rows), long[here])
        assert np.array_equal(shard.labels, labels[here])


def test_synthetic_test_rows_come_after_the_training_rows():
    rows, labels, test_rows, test_labels = stacked("synthetic:samples=250,features=5", 3, test_fraction=0.2)
    assert (len(rows), len(test_rows)) == (250, 50)
    longer, longer_labels, _, _ = stacked("synthetic:samples=300,features=5", 1)
    assert np.array_equal(np.vstack([rows, test_rows]), longer)
    assert np.array_equal(np.concatenate([labels, test_labels]), longer_labels)


@pytest.mark.parametrize("spec", SYNTHETIC)
def test_synthetic_rows_have_norm_one_and_never_more(spec):
    rows = stacked(spec, 1)[0]
    exact = [math.fsum(float(v) ** 2 for v in row) for row in rows[:50]]
    assert max(exact) <= 1.0
    assert min(exact) > 1.0 - 1e-10


def test_seed_and_samples_flag_decide_the_rows():
    spec = "synthetic:samples=64,features=8"
    assert np.array_equal(stacked(spec, 1)[0], stacked(spec, 1)[0])
    assert not np.array_equal(stacked(spec, 1)[0], stacked(spec, 1, seed=8)[0])
    assert load(spec, samples=32).rows.count == 32
    assert load("synthetic").rows.count == 2000
    assert load("synthetic").rows.dimension == 100


def separator(features, seed=7):
    w = public_generator(seed, "separator").standard_normal(features)
    return w / np.linalg.norm(w)


@pytest.mark.parametrize(("flip", "density"), [(0.0, 1.0), (0.05, 1.0), (0.2, 0.05)])
def test_label_noise_has_the_declared_rate(flip, density):
    rows, labels, _, _ = stacked(f"synthetic:samples=20000,features=40,flip={flip},density={density}", 1)
    score = rows @ separator(40)
    wrong = np.mean(np.sign(score) != labels)
    assert abs(wrong - flip) <= 4.5 * math.sqrt(flip * (1 - flip) / 20000)
    assert abs(np.mean(labels[np.abs(score) < 0.05] > 0) - 0.5) < 0.05  # neither class is favoured


def test_logistic_labels_follow_their_probabilities():
    rows, labels, _, _ = stacked("synthetic:samples=40000,features=30", 1, loss="logistic")
    probability = 1.0 / (1.0 + np.exp(-4.0 * math.sqrt(30) * (rows @ separator(30))))
    for low in np.arange(0.0, 1.0, 0.1):
        bin_ = (probability >= low) & (probability < low + 0.1)
        spread = math.sqrt(np.sum(probability[bin_] * (1 - probability[bin_])))
        assert abs(np.sum((labels[bin_] > 0) - probability[bin_])) < 4.5 * spread


def test_regression_labels_are_the_clipped_score_plus_noise():
    rows, labels, _, _ = stacked("synthetic:samples=20000,features=30", 1, loss="squared")
    score = math.sqrt(30) * (rows @ separator(30))
    inner = np.abs(score) < 0.5  # five standard deviations from the clip
    residual = labels[inner] - score[inner]
    assert np.abs(labels).max() <= 1.0
    assert np.all(labels[score > 1.6] == 1.0)
    assert abs(np.std(residual) - 0.1) < 0.003
    assert abs(np.mean(residual)) < 4.5 * 0.1 / math.sqrt(len(residual))


def test_sparse_rows_have_distinct_sorted_columns_spread_evenly():
    shard = load("synthetic:samples=3000,features=47236,density=0.0016", 1, 3)
    assert isinstance(shard.rows, Csr)
    columns = shard.rows.indices.reshape(1000, 76)  # round(0.0016 * 47236)
    assert np.all(np.diff(columns, axis=1) > 0)
    assert columns.min() >= 0
    assert columns.max() < 47236
    counts = np.bincount(columns.ravel() // 4724, minlength=10)
    assert np.abs(counts - 7600).max() < 4.5 * math.sqrt(7600)


@pytest.mark.parametrize("spec", ["synthetic:samples=1000,features=62500", "synthetic:samples=40000,features=1562"])
def test_a_dense_shard_is_generated_in_place(spec):
    made = source(spec)
    tracemalloc.start()
    # One of ten ranks, 50 MB: what comes on top of the shard does not depend on its length.
    shard = made.load(made.survey(), 3, 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shard.rows.matrix.nbytes > 49e6
    assert peak - shard.rows.matrix.nbytes < 5e6


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("sinthetic", "did you mean synthetic?"),
        ("csv:x", "synthetic, libsvm, shards"),
        ("a9a.bz2", "found 'a9a.bz2' (did you mean libsvm:a9a.bz2?)"),
        ("libsv:a9a.bz2", "found 'libsv' (did you mean libsvm?)"),
        ("/data/a9a.t", "(did you mean libsvm:/data/a9a.t?)"),
        ("shard-{rank}.npz", "(did you mean shards:shard-{rank}.npz?)"),
        ("people.csv.gz", "found 'people.csv.gz': code it into shards first (dpmpi data table --help)"),
        ("synthetic:sample=3", "did you mean samples?"),
        ("synthetic:samples=many", "expected samples=NUMBER, found 'many'"),
        ("synthetic:samples=0", "expected samples >= 1, found 0"),
        ("synthetic:features=-1", "expected features >= 1, found -1"),
        ("synthetic:task=svn", "did you mean svm?"),
        ("synthetic:task=regression", "expected --task regression for task=regression, found binary"),
        ("synthetic:task=logistic,flip=0.1", "expected flip with task=svm or multiclass only"),
        ("synthetic:density=0", "expected a density above 0"),
        ("synthetic:density=nan", "expected a density above 0"),
        ("synthetic:flip=0.7", "expected flip in"),
        ("libsvm:", "path of a file"),
        ("shards:all.npz", "expected a pattern of shards with {rank}"),
        ("shards:{rank}-{size}.npz", "no other field"),
        ("shards:{rank", "expected a pattern of shards with {rank}"),
        ("shards:{rank:zz}", "expected a pattern of shards with {rank}"),
    ],
)
def test_bad_specification_is_refused(spec, says):
    with pytest.raises(ConfigError) as caught:
        source(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="test fraction"):
        source("synthetic", test_fraction=1.0)
    with pytest.raises(ConfigError, match="expected at least 1 sample"):
        source("synthetic", samples=0)
    with pytest.raises(ConfigError, match="expected no samples for shards, used whole, found 5"):
        source("shards:{rank}.npz", samples=5)
    with pytest.raises(ConfigError, match="each of 4 ranks, found 3"):
        load("synthetic:samples=3", 0, 4)
    path = random_file(tmp_path / "few", rows=10)
    with pytest.raises(ConfigError, match="each of 6 ranks, found 5"):
        load(f"libsvm:{path}", 0, 6, test_fraction=0.5)
    with pytest.raises(ConfigError, match=r"the 11 samples asked for, found that .* has 10 rows"):
        load(f"libsvm:{path}", samples=11)
    assert load(f"libsvm:{path}", 9, 10).rows.count == 1


# --- libsvm ----------------------------------------------------------------------------------------------------------


def permuted(path, seed=7):
    """Return the whole file in its shuffled order, read by scikit-learn."""
    rows, labels = load_svmlight_file(str(path), zero_based=False)
    order = public_generator(seed, "shuffle").permutation(len(labels))
    return rows.toarray()[order], labels[order]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("density", [0.1, 0.6])
def test_libsvm_agrees_with_scikit_learn(tmp_path, suffix, density):
    plain = random_file(tmp_path / "plain", density=density)
    path = tmp_path / f"file{suffix}"
    with OPEN[suffix](path, "wb") as stream:
        stream.write(plain.read_bytes())
    shard = load(f"libsvm:{path}", normalize=False)
    rows, labels = permuted(plain)
    assert type(shard.rows) is (Dense if density > 0.25 else Csr)
    assert np.array_equal(matrix(shard.rows), rows)
    assert np.array_equal(shard.labels, labels)
    assert shard.test_rows.count == 0


@pytest.mark.parametrize("density", [0.1, 0.6])
def test_libsvm_is_the_same_data_for_every_rank_count(tmp_path, density):
    path = random_file(tmp_path / "file", density=density)
    rows, labels = permuted(path)
    options = {"samples": 80, "test_fraction": 0.25, "normalize": False}
    whole = stacked(f"libsvm:{path}", 1, **options)
    for size in SIZES:
        for part, expected in zip(stacked(f"libsvm:{path}", size, **options), whole, strict=True):
            assert np.array_equal(part, expected)
    assert np.array_equal(np.vstack([whole[0], whole[2]]), rows[:80])  # hence disjoint and complete
    assert np.array_equal(np.concatenate([whole[1], whole[3]]), labels[:80])
    assert len(whole[3]) == 20


def test_libsvm_rows_are_scaled_down_and_never_up(tmp_path):
    path = write_text(tmp_path / "file", ["1 1:3 2:4", "0 1:0.3 2:0.4", "1", "0 2:1"])
    for size in (1, 4):
        rows, labels, _, _ = stacked(f"libsvm:{path}", size)
        order = public_generator(7, "shuffle").permutation(4)
        expected = np.array([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, 1.0]])[order]
        assert np.allclose(rows, expected, rtol=0, atol=1e-14)
        assert np.array_equal(labels, np.array([1.0, -1.0, 1.0, -1.0])[order])
        assert all(math.fsum(v * v for v in row) <= 1.0 for row in rows.tolist())


@pytest.mark.parametrize("density", [0.15, 0.6])
def test_a_normalised_row_does_not_depend_on_its_shard(tmp_path, density):
    path = random_file(tmp_path / "file", rows=60, features=200, density=density)
    whole = stacked(f"libsvm:{path}", 1)
    assert np.array_equal(stacked(f"libsvm:{path}", 7)[0], whole[0])


@pytest.mark.parametrize("pair", [("0", "1"), ("1", "2"), ("-1", "+1"), ("-1.0", "1e0"), ("3", "7")])
def test_two_labels_are_mapped_by_order_on_every_rank(tmp_path, pair):
    path = random_file(tmp_path / "file", rows=20, labels=pair)
    expected = np.where(permuted(path)[1] == float(pair[1]), 1.0, -1.0)
    assert np.array_equal(stacked(f"libsvm:{path}", 20)[1], expected)  # one row a rank: a single class there
    assert np.array_equal(stacked(f"libsvm:{path}", 20, loss="squared")[1], expected)  # scaled to their range


def test_a_rank_parses_its_own_lines_only(tmp_path):
    path = random_file(tmp_path / "file", rows=20)
    survey = source(f"libsvm:{path}").survey()
    lines = path.read_text().split("\n")
    lines[2 + 4] = "1 1:rubbish 2:1"  # row 4
    path.write_text("\n".join(lines))
    position = int(np.flatnonzero(public_generator(7, "shuffle").permutation(20) == 4)[0])
    for rank in range(4):
        if rank == position // 5:
            with pytest.raises(DataError, match=r"file:7: expected index:value, found '1:rubbish'"):
                source(f"libsvm:{path}").load(survey, rank, 4)
        else:
            assert source(f"libsvm:{path}").load(survey, rank, 4).rows.count == 5


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["1 1:1", "0 2:x"], ":2: expected index:value, found '2:x'"),
        (["# c", "1 1:1:1 2:1", "0 1:1"], ":2: expected index:value, found '1:1:1'"),
        (["1 1: 1", "0 1:1"], ":1: expected index:value"),
        (["1 qid:3 1:1", "0 1:1"], ":1: expected index:value, found 'qid:3'"),
        (["1 1_0:1 11:1", "0 1:1"], ":1: expected index:value, found '1_0:1'"),
        (["1 1:1", "1_0 2:1"], ":2: expected a number as label, found '1_0'"),
        (["1 1 1:1", "0 1:1"], ":1: expected index:value, found '1'"),
        (["1 0:1 1:1", "0 1:1"], ":1: expected an index from 1 to 2147483647, found '0:1'"),
        (["1 -1:1 1:1", "0 1:1"], "found '-1:1'"),
        (["1 4294967296:1", "0 1:1"], "found '4294967296:1'"),
        (["1 1:1", "0 3:1 2:1"], ":2: expected ascending indices, found 2 after 3"),
        (["1 1:1", "0 2:1 2:1"], ":2: expected ascending indices, found 2 after 2"),
        (["1 1:1", "yes 2:1"], ":2: expected a number as label, found 'yes'"),
        (["1 1:1", "nan 2:1"], ":2: expected a number as label, found 'nan'"),
        (["1 1:1", "1,2 2:1"], ":2: expected a number as label, found '1,2'"),
        (["1 1:1", "0 1:nan 2:1"], ":2: expected a finite value, found '1:nan'"),
        (["1 1:1", "0 1:1 2:1e999"], ":2: expected a finite value, found '2:1e999'"),
        (["1 1:1", "0 1:-inf 2:1"], ":2: expected a finite value, found '1:-inf'"),
        (["", "# nothing"], "expected lines of `label index:value ...`, found none"),
        (["1", "0"], "expected index:value in some of 2 rows, found none"),
        (["1 1:1", "2 1:1", "3 1:1", "4 1:1"], "exactly two label values, found 1, 2, 3 and more"),
        (["1 1:1", "1 2:1"], "exactly two label values, found 1:"),
        (["1 " + "9" * 100 + "x", "0 1:1"], "999..."),
    ],
)
def test_bad_line_is_named(tmp_path, lines, says):
    path = write_text(tmp_path / "file", lines)
    with pytest.raises(DataError) as caught:
        load(f"libsvm:{path}")
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(DataError, match="gone: no such file"):
        load(f"libsvm:{tmp_path / 'gone'}")
    with pytest.raises(DataError, match="cannot read"):
        load(f"libsvm:{tmp_path}")
    for suffix in (".gz", ".bz2", ".xz"):
        whole = random_file(tmp_path / f"cut{suffix}").read_bytes()
        (tmp_path / f"cut{suffix}").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match="damaged or incomplete"):
            load(f"libsvm:{tmp_path / f'cut{suffix}'}")
        (tmp_path / f"not{suffix}").write_bytes(b"1 1:1\n0 2:1\n" * 5)
        with pytest.raises(DataError, match=r"cannot decompress .*not\.(gz|bz2|xz): "):
            load(f"libsvm:{tmp_path / f'not{suffix}'}")


def test_file_that_changes_between_the_passes_is_noticed(tmp_path):
    path = write_text(tmp_path / "file", ["1 1:1", "0 2:1"])
    made = source(f"libsvm:{path}")
    survey = made.survey()
    write_text(path, ["1 1:1", "0 2:1", "0 1:1"])
    with pytest.raises(DataError, match="expected the 2 rows of the first pass, found 3"):
        made.load(survey, 0, 1)
    write_text(path, ["1 1:1", "0 3:1"])
    with pytest.raises(DataError, match="expected indices up to 2 as in the first pass, found 3"):
        made.load(survey, 0, 1)


# --- shards ----------------------------------------------------------------------------------------------------------


def bits(rows):
    arrays = [rows.matrix] if isinstance(rows, Dense) else [rows.indptr, rows.indices, rows.data]
    return [array.tobytes() for array in arrays], rows.dimension


@pytest.mark.parametrize(
    "spec",
    [
        "synthetic:samples=50,features=6",
        "synthetic:samples=9,features=33000",
        "synthetic:samples=50,features=60,density=0.1",
    ],
)
def test_shards_round_trip(tmp_path, spec):
    made = source(spec, test_fraction=0.2)
    done = []
    paths = write_shards(made, 4, str(tmp_path / "deep" / "part-{rank:03d}.npz"), done.append)
    assert [path.name for path in paths] == ["part-000.npz", "part-001.npz", "part-002.npz", "part-003.npz"]
    assert done == [1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path / "deep")) == [path.name for path in paths]  # nothing temporary is left
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths)
    for rank in range(4):
        original, again = load(spec, rank, 4), load(f"shards:{tmp_path}/deep/part-{{rank:03d}}.npz", rank, 4)
        assert bits(again.rows) == bits(original.rows)
        assert np.array_equal(again.labels, original.labels)
        assert again.fingerprint == original.fingerprint
        assert again.test_rows.count == 0
        assert again.test_rows.dimension == original.rows.dimension


def test_cutting_a_file_gives_what_each_rank_would_have_read(tmp_path):
    path = random_file(tmp_path / "file.bz2", labels=("1", "2"))
    write_shards(source(f"libsvm:{path}", test_fraction=0.5), 3, f"{tmp_path}/{{rank}}.npz", lambda rank: None)
    for rank in range(3):
        original, again = load(f"libsvm:{path}", rank, 3), load(f"shards:{tmp_path}/{{rank}}.npz", rank, 3)
        assert bits(again.rows) == bits(original.rows)
        assert np.array_equal(again.labels, original.labels)


def test_test_rows_of_a_shard_are_disjoint_and_complete(tmp_path):
    made = source("synthetic:samples=50,features=6")
    write_shards(made, 2, f"{tmp_path}/{{rank}}.npz", lambda rank: None)
    for rank in range(2):
        whole = load(f"shards:{tmp_path}/{{rank}}.npz", rank, 2)
        shard = load(f"shards:{tmp_path}/{{rank}}.npz", rank, 2, test_fraction=0.3)
        assert shard.test_rows.count == round(0.3 * 25)
        order = public_generator(7, "shuffle", rank).permutation(25)
        assert np.array_equal(np.vstack([matrix(shard.rows), matrix(shard.test_rows)]), matrix(whole.rows)[order])
        assert np.array_equal(np.concatenate([shard.labels, shard.test_labels]), whole.labels[order])
    assert SOURCES["shards"].private
    assert not SOURCES["libsvm"].private
    assert source(f"shards:{tmp_path}/{{rank}}.npz").survey() is None


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_text_shards_and_widening(tmp_path, suffix):
    write_text(tmp_path / f"0{suffix}", ["1 1:0.5 3:0.5", "0", "0 2:0.25"])
    write_text(tmp_path / f"1{suffix}", ["1 5:3"])
    pattern = f"shards:{tmp_path}/{{rank}}{suffix}"
    with pytest.raises(ConfigError, match="expected --dimension"):
        load(pattern)
    with pytest.raises(DataError, match="up to --dimension 4"):
        load(pattern, 1, 2, dimension=4)
    first, second = load(pattern, 0, 2, dimension=3), load(pattern, 1, 2, dimension=5)
    assert (first.rows.dimension, second.rows.dimension) == (3, 5)
    assert np.array_equal(first.labels, [1.0, -1.0, -1.0])
    assert np.array_equal(second.labels, [1.0])
    wide = widen(first, 5)
    assert np.array_equal(matrix(wide.rows), [[0.5, 0, 0.5, 0, 0], [0] * 5, [0, 0.25, 0, 0, 0]])
    assert wide.test_rows.dimension == 5
    assert np.allclose(matrix(second.rows), [[0, 0, 0, 0, 1]], rtol=0, atol=1e-14)
    assert widen(second, 5).rows is second.rows
    with pytest.raises(DataError, match="expected 3 features, found a sparse shard of 5"):
        widen(second, 3)
    dense = Shard(Dense(np.ones((1, 2))), np.ones(1), Dense(np.ones((0, 2))), np.ones(0))
    with pytest.raises(DataError, match="expected 3 features, found a dense shard of 2"):
        widen(dense, 3)


def test_fingerprint_tells_any_change_apart():
    shard = load("synthetic:samples=9,features=4")
    seen = {shard.fingerprint, load("synthetic:samples=9,features=4", seed=8).fingerprint}
    seen.add(replace(shard, labels=-shard.labels).fingerprint)
    seen.add(replace(shard, rows=Dense(shard.rows.matrix.reshape(18, 2)), labels=np.ones(9)).fingerprint)
    seen.add(replace(shard, rows=Dense(shard.rows.matrix.reshape(6, 6)), labels=np.ones(9)).fingerprint)
    assert len(seen) == 5
    assert replace(shard, test_labels=np.ones(3)).fingerprint == shard.fingerprint


GOOD_SPARSE = {"indptr": [0, 2, 2, 3], "indices": [0, 2, 1], "data": [1.0, 2.0, 3.0], "dimension": 3, "y": [1, 0, 1]}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"X": np.ones((2, 2))}, "found X"),
        ({"X": np.ones(2), "y": np.ones(2)}, "(2,)"),
        ({"X": np.ones((2, 2)), "y": np.ones(3)}, "expected one label for each of 2 rows, found shape (3,)"),
        ({"X": np.array([["a"]]), "y": np.ones(1)}, "in the array X, found <U1"),
        ({"X": np.array([[None]]), "y": np.ones(1)}, "expected an .npz of plain arrays"),
        ({"X": np.ones((0, 2)), "y": np.ones(0)}, "0 rows"),
        ({"X": np.ones((2, 2)), "y": np.array([1.0, np.nan])}, "expected finite labels, found another in row 1"),
        ({"X": np.array([[1.0], [np.inf]]), "y": np.ones(2)}, "row 1"),
        ({"X": np.ones((2, 2)), "y": np.array([1.0, 2.0])}, "expected class labels -1/+1 or 0/1, found others"),
        ({"X": np.ones((3, 2)), "y": np.array([1.0, 0.0, -1.0])}, "found others"),
        (GOOD_SPARSE | {"data": [1.0, np.nan, 3.0]}, "row 0"),
        (GOOD_SPARSE | {"indices": [0, 3, 1]}, "columns"),
        (GOOD_SPARSE | {"indices": [0, -1, 1]}, "columns"),
        (GOOD_SPARSE | {"indices": [2, 2, 1]}, "one again in row 0"),
        (GOOD_SPARSE | {"indices": [0.0, 2.0, 1.0]}, "in the array indices, found float64"),
        (GOOD_SPARSE | {"indptr": [0, 2, 1, 3]}, "pointers"),
        (GOOD_SPARSE | {"indptr": [0, 2, 2, 2]}, "pointers"),
        (GOOD_SPARSE | {"data": [1.0, 2.0]}, "pointers"),
        (GOOD_SPARSE | {"dimension": [3]}, "number dimension"),
        (GOOD_SPARSE | {"indptr": np.empty(0, int)}, "pointers"),
    ],
)
def test_bad_shard_is_refused(tmp_path, arrays, says):
    np.savez(tmp_path / "0.npz", **arrays)
    with pytest.raises(DataError) as caught:
        load(f"shards:{tmp_path}/{{rank}}.npz")
    assert str(tmp_path / "0.npz") in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_good_sparse_shard_is_read(tmp_path):
    np.savez(tmp_path / "0.npz", **GOOD_SPARSE)
    rows, labels = read_npz(tmp_path / "0.npz")
    assert np.array_equal(matrix(rows), [[1, 0, 2], [0, 0, 0], [0, 3, 0]])
    assert np.array_equal(labels, [1, 0, 1])


def test_missing_and_broken_shards_are_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the shard of rank 3: no such file .*/part-3\.npz"):
        load(f"shards:{tmp_path}/part-{{rank}}.npz", 3, 5)
    (tmp_path / "0.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(DataError, match=r"expected an \.npz of plain arrays"):
        load(f"shards:{tmp_path}/{{rank}}.npz")
    write_text(tmp_path / "0.txt", ["1 1:1", "2 2:1"])
    with pytest.raises(DataError, match=r"-1/\+1 or 0/1, found others"):
        load(f"shards:{tmp_path}/{{rank}}.txt", dimension=2)
    write_text(tmp_path / "0.txt", ["1 1:1"])
    with pytest.raises(DataError, match="expected rows to train on, found none of 1"):
        load(f"shards:{tmp_path}/{{rank}}.txt", test_fraction=0.9, dimension=2)
    with pytest.raises(ConfigError, match=r"ends with \.npz"):
        write_shards(source("synthetic"), 2, f"{tmp_path}/{{rank}}.txt", lambda rank: None)
    with pytest.raises(ConfigError, match="at least one rank"):
        write_shards(source("synthetic"), 0, f"{tmp_path}/{{rank}}.npz", lambda rank: None)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot write .*: Not a directory"):
        write_npz(tmp_path / "file" / "0.npz", Dense(np.ones((1, 1))), np.ones(1))


# --- real data -------------------------------------------------------------------------------------------------------


@needs.data
@pytest.mark.parametrize(
    ("name", "rows", "features", "nonzeros", "labels", "positives"),
    [
        ("a9a", 32561, 123, 451592, (-1.0, 1.0), 7841),
        ("mushrooms", 8124, 112, 170604, (1.0, 2.0), 4208),
        ("phishing", 11055, 68, 331650, (0.0, 1.0), 6157),
        ("w8a", 49749, 300, 579586, (-1.0, 1.0), 1479),
    ],
)
def test_real_files_have_their_published_counts(name, rows, features, nonzeros, labels, positives):
    made = source(f"libsvm:{Path(os.environ['DPMPI_DATA']) / name}.bz2", test_fraction=0.2)
    survey = made.survey()
    assert survey == Survey(rows, features, labels, nonzeros)
    shard = made.load(survey, 0, 1)
    assert shard.test_rows.count == round(0.2 * rows)
    assert np.sum(shard.labels > 0) + np.sum(shard.test_labels > 0) == positives
    assert isinstance(shard.rows, Dense) is (name == "phishing")
    assert np.max(shard.rows.norms) <= 1.0
    if name == "w8a":
        empty = sum(int(np.sum(np.diff(part.indptr) == 0)) for part in (shard.rows, shard.test_rows))
        assert empty == 4203


@needs.data
def test_one_rank_of_many_reads_its_rows_of_a_real_file():
    path = Path(os.environ["DPMPI_DATA"]) / "reuters_small.bz2"
    made = source(f"libsvm:{path}", normalize=False)
    rows, labels = permuted(path)
    shard = made.load(made.survey(), 19, 20)
    assert np.array_equal(matrix(shard.rows), rows[1900:])
    assert np.array_equal(shard.labels, labels[1900:])


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_decay_is_the_standard_deviation_of_the_columns(density):
    shard = load(f"synthetic:samples=6000,features=200,decay=0.5,density={density}", 0, 1)
    dense = shard.rows.matrix if density == 1.0 else to_dense(shard.rows).matrix
    np.testing.assert_allclose(np.linalg.norm(dense, axis=1), 1.0, atol=1e-12)
    power = (dense**2).mean(axis=0)
    # Normalising rows shifts a little power away from the strongest columns; later ones keep the ratio 1/j.
    assert power[19] / power[39] == pytest.approx(2.0, rel=0.15)
    assert power[49] / power[149] == pytest.approx(3.0, rel=0.15)


def test_decay_keeps_the_scale_of_the_scores():
    """(1): whatever the decay, about as many logistic labels go against the sign of the score."""

    def against(decay):
        shard = load(f"synthetic:samples=8000,features=60,task=logistic,decay={decay}", 0, 1)
        w = separator(60)
        return np.mean(np.sign(shard.rows.matrix @ w) != shard.labels)

    assert against(0.5) == pytest.approx(against(0), abs=0.03)
    assert 0.05 < against(0) < 0.2
