"""Who gets which rows: every deal is a partition, labels and sizes are as promised, held-out rows are the same."""

from __future__ import annotations

import hashlib
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.commands.data import main
from dpmpi.data import parse_source
from dpmpi.data.dealing import Deal, evenly
from dpmpi.data.libsvm import to_dense
from dpmpi.data.shards import read_npz
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Dense
from dpmpi.rng import public_generator

SYNTHETIC = "synthetic:samples=300,features=7"
DEALS = ["sorted", "dirichlet:0.3", "dirichlet:0.001", "sizes:200,3,22"]
PERSON = "39, State-gov, {}, Bachelors, 13, Divorced, Sales, Husband, White, Male, 0, 0, 40, Cuba, {}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of 60 rows in LIBSVM text, and the census records of 400 people."""
    path = tmp_path_factory.mktemp("data")
    lines = (f"{1 + (r * r) % 7 % 2} 1:{r} {2 + r % 5}:0.{r + 10}\n" for r in range(60))
    (path / "file").write_text("".join(lines))
    people = (PERSON.format(1000 + r, (">50K", "<=50K")[r * r % 7 % 2]) for r in range(400))
    (path / "adult.data").write_text("".join(people))
    (path / "adult.test").write_text("")
    return path


@pytest.fixture(params=[SYNTHETIC, "synthetic:samples=300,features=40,density=0.2", "libsvm:{}/file2", "adult:{}"])
def spec(request, folder):
    """A source with at least 300 rows."""
    if not (folder / "file2").exists():
        lines = (f"{(r * r) % 7 % 2} 1:{r} {2 + r % 5}:0.{r + 10}\n" for r in range(400))
        (folder / "file2").write_text("".join(lines))
    return request.param.format(folder)


def source(spec, deal="even", *, test_fraction=0.25, seed=7, loss="hinge", samples=None):
    return parse_source(
        spec, samples=samples, normalize=False, test_fraction=test_fraction, seed=seed, loss=loss, deal=deal
    )


def load(spec, size, deal="even", **options):
    made = source(spec, deal, **options)
    return [made.load(made.survey(), rank, size) for rank in range(size)]


def table(shards):
    """The training records of all ranks end to end, the label last."""
    return np.vstack([np.column_stack([to_dense(shard.rows).matrix, shard.labels]) for shard in shards])


def held_out(shards):
    return [np.column_stack([to_dense(shard.test_rows).matrix, shard.test_labels]) for shard in shards]


def in_order(records):
    return records[np.lexsort(records.T)]


# --- even shards are those of earlier versions ------------------------------------------------------------------------


def digest(shards):
    """A hash of all numbers to 30 bits, which is the same on every processor."""
    h = hashlib.sha256()
    for shard in shards:
        for rows, labels in ((shard.rows, shard.labels), (shard.test_rows, shard.test_labels)):
            arrays = [rows.matrix] if isinstance(rows, Dense) else [rows.indptr, rows.indices, rows.data]
            for array in (*arrays, labels):
                h.update(str(array.shape).encode() + np.round(array * 2.0**30).astype("<i8").tobytes())
    return h.hexdigest()[:16]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SYNTHETIC, "efe255973f5043f4"),
        ("synthetic:samples=300,features=40,density=0.2,decay=0.5,task=logistic", "2f6eb3d774047a9f"),
        ("synthetic:samples=150,features=90,density=0.1,zipf=1.2", "b6a7bdf27dce320d"),
        ("libsvm:{}/file", "fc49efd00a890627"),
        ("adult:{}", "b71989804218cf9b"),
    ],
)
def test_even_shards_are_those_of_0_1(folder, spec, expected):
    assert digest(load(spec.format(folder), 3)) == expected


def test_even_points_are_those_of_0_1():
    assert digest(load("mean:samples=200,dimension=3", 3, loss="mean", test_fraction=0.0)) == "d1870789d57b9a15"


# --- every deal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deal", ["sorted", "dirichlet:0.3", "dirichlet:0.001", "sizes:100,1,24,100"])
def test_shards_are_a_partition_of_the_training_rows(spec, deal):
    options = {"samples": 300, "test_fraction": 0.25 if spec[0] != "s" else 0.0}
    whole, shards = table(load(spec, 1, **options)), load(spec, 4, deal, **options)
    if deal.startswith("sizes"):
        whole = whole[:225]
    assert len(np.unique(whole, axis=0)) == len(whole)
    assert np.array_equal(in_order(table(shards)), in_order(whole))
    assert all(shard.rows.count >= 1 for shard in shards)
    assert not np.array_equal(table(shards), whole) or deal.startswith("sizes")


@pytest.mark.parametrize("deal", DEALS)
def test_held_out_rows_do_not_depend_on_the_deal(spec, deal):
    for even, other in zip(held_out(load(spec, 3)), held_out(load(spec, 3, deal)), strict=True):
        assert len(even) >= 25
        assert np.array_equal(even, other)


@pytest.mark.parametrize("deal", DEALS)
def test_ranks_of_one_process_have_what_each_would_have_alone(spec, deal):
    made = source(spec, deal)
    alone, together = load(spec, 3, deal), made.load_many(None, [2, 0], 3)
    assert [shard.fingerprint for shard in together] == [alone[2].fingerprint, alone[0].fingerprint]
    assert made.shard_sizes(made.survey(), 3) == [shard.rows.count for shard in alone]


# --- sorted -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 20])
def test_sorted_shards_end_to_end_are_the_stable_sort(spec, size):
    whole = table(load(spec, 1))
    shards = load(spec, size, "sorted")
    assert np.array_equal(table(shards), whole[np.argsort(whole[:, -1], kind="stable")])
    assert [shard.rows.count for shard in shards] == [len(evenly(len(whole), rank, size)) for rank in range(size)]
    assert sum(len(np.unique(shard.labels)) > 1 for shard in shards) <= 1
    assert {shards[0].labels[0], shards[-1].labels[-1]} == {-1.0, 1.0}


def test_real_labels_are_sorted_too():
    labels = [shard.labels for shard in load("synthetic:samples=50,features=5", 5, "sorted", loss="squared")]
    assert all(low.max() <= high.min() for low, high in pairwise(labels))
    assert len(np.unique(np.concatenate(labels))) > 20


# --- Dirichlet --------------------------------------------------------------------------------------------------------


def by_definition(labels, alpha, s, seed):
    """(4) and (5), one row at a time."""
    parts = [[] for _ in range(s)]
    for c, label in enumerate(sorted(set(labels))):
        rows = [r for r, found in enumerate(labels) if found == label]
        p = public_generator(seed, "dirichlet", s, c).dirichlet([alpha] * s)
        for k, row in enumerate(rows):
            # Row k is in the part of i if floor(n P_i) <= k < floor(n P_{i+1}).
            i = sum(int(np.floor(len(rows) * P)) <= k for P in np.cumsum(p)[:-1])
            parts[i].append(row)
    parts = [sorted(part) for part in parts]
    while [] in parts:
        most = max(map(len, parts))
        parts[parts.index([])] = [next(part for part in parts if len(part) == most).pop()]
    return parts


@given(
    labels=st.lists(st.sampled_from([-1.0, 1.0, 3.0]), min_size=1, max_size=40),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e6]),
    s=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_dirichlet_parts_are_those_of_the_definition(labels, alpha, s, seed):
    s = min(s, len(labels))
    parts = Deal("dirichlet", alpha).parts(len(labels), np.array(labels), s, seed)
    assert [part.tolist() for part in parts] == by_definition(labels, alpha, s, seed)
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


def shares(alpha, s, seed, n=4000):
    """Each rank's share of each of two classes."""
    labels = np.where(np.arange(n) % 4 == 0, -1.0, 1.0)
    parts = Deal("dirichlet", alpha).parts(n, labels, s, seed)
    return np.array([[np.sum(labels[part] == c) / np.sum(labels == c) for part in parts] for c in (-1.0, 1.0)])


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_shares_have_their_mean_and_variance(alpha):
    s, seeds = 5, 600
    found = np.array([shares(alpha, s, seed) for seed in range(seeds)])
    variance = (1 / s) * (1 - 1 / s) / (s * alpha + 1)
    assert np.abs(found.mean(axis=0) - 1 / s).max() < 4.5 * np.sqrt(variance / seeds)
    assert np.abs(found.var(axis=0) / variance - 1).max() < 0.35
    # Classes are dealt independently: no correlation of a rank's two shares.
    a, b = (found[:, c, 0] - 1 / s for c in (0, 1))
    assert abs(np.mean(a * b)) < 4.5 * variance / np.sqrt(seeds)


def test_dirichlet_is_even_for_large_alpha_and_follows_the_seed():
    assert np.abs(shares(1e6, 8, 0) - 1 / 8).max() < 2e-3
    assert np.array_equal(shares(0.5, 8, 3), shares(0.5, 8, 3))
    assert not np.array_equal(shares(0.5, 8, 3), shares(0.5, 8, 4))
    assert np.sort(shares(1e-3, 8, 0), axis=1)[:, -1].min() > 0.9  # a rank has nearly all of a class


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_sizes_are_exact_and_in_order(spec):
    shards = load(spec, 4, "sizes:7,1,100,30")
    assert [shard.rows.count for shard in shards] == [7, 1, 100, 30]
    assert np.array_equal(table(shards), table(load(spec, 1))[:138])


def test_sizes_are_for_points_too():
    options = {"loss": "mean", "test_fraction": 0.0}
    whole = table(load("mean:samples=300,dimension=3", 1, **options))
    shards = load("mean:samples=300,dimension=3", 3, "sizes:5,130,9", **options)
    assert [shard.rows.count for shard in shards] == [5, 130, 9]
    assert np.array_equal(table(shards), whole[:144])


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deal", "says"),
    [
        ("srted", "expected --deal even, sorted, .* found 'srted' .did you mean sorted"),
        ("sorted:3", "found 'sorted:3'"),
        ("even:", "found 'even:'"),
        ("", "found ''"),
        ("dirichlet", "found 'dirichlet'"),
        ("dirichlet:", "with ALPHA in 0.001 ... 1e.06, found ''"),
        ("dirichlet:x", "found 'x'"),
        ("dirichlet:0", "found '0'"),
        ("dirichlet:nan", "found 'nan'"),
        ("dirichlet:inf", "found 'inf'"),
        ("sizes:", "whole numbers from 1, found ''"),
        ("sizes:3,0", "found '0'"),
        ("sizes:3,-1", "found '-1'"),
        ("sizes:3,1.5", "found '1.5'"),
        ("sizes:3,,4", "found ''"),
        ("sizes:9999999999999999", "found '9999999999999999'"),
        ("sizes:3,4", "expected a size for each of 3 ranks in --deal sizes, found 2"),
        ("sizes:100,100,101", "expected at most the 300 training rows .* found 301"),
    ],
)
def test_bad_deal_is_refused(deal, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load(SYNTHETIC, 3, deal)
    assert "\n" not in str(caught.value)


def test_deals_that_the_source_cannot_serve_are_refused(folder):
    for deal in ("sorted", "dirichlet:1", "sizes:1"):
        with pytest.raises(ConfigError, match="expected no --deal for shards, which are dealt already, found"):
            source("shards:{rank}.npz", deal)
    for deal in ("sorted", "dirichlet:1"):
        with pytest.raises(ConfigError, match="mean: expected --deal even or sizes for points without labels"):
            source("mean", deal, loss="mean", test_fraction=0.0)
    with pytest.raises(ConfigError, match="expected classes for --deal dirichlet, found regression"):
        source(SYNTHETIC, "dirichlet:1", loss="squared")
    with pytest.raises(ConfigError, match="each of 301 ranks, found 300"):
        load(SYNTHETIC, 301, "dirichlet:1")


def test_files_that_change_while_labels_are_read_are_noticed(folder, tmp_path):
    (tmp_path / "file").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "adult.data").write_text(PERSON.format(1, ">50K") * 2)
    (tmp_path / "adult.test").write_text("")
    for spec in (f"libsvm:{tmp_path}/file", f"adult:{tmp_path}"):
        made = source(spec, "sorted", test_fraction=0.0)
        survey = made.survey()
        for name in ("file", "adult.data"):
            path = tmp_path / name
            path.write_text(path.read_text() * 2)
        with pytest.raises(DataError, match=r"expected the \d .* of the first pass, found \d: the files? changed"):
            made.load(survey, 0, 1)


# --- memory and the command line --------------------------------------------------------------------------------------


def test_dealing_by_label_keeps_a_number_a_row_of_other_ranks(tmp_path):
    """The file would take 10 MB as arrays, the shard of one rank a twentieth of it."""
    pairs = " ".join(f"{column}:0.5" for column in range(1, 41))
    (tmp_path / "file").write_text("".join(f"{r % 2} {pairs}\n" for r in range(16_000)))
    made = source(f"libsvm:{tmp_path}/file", "sorted")
    survey = made.survey()
    tracemalloc.start()
    shard = made.load(survey, 3, 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shard.rows.count == 600
    assert np.ptp(shard.labels) == 0
    assert peak < 3.5e6


@pytest.mark.parametrize("deal", ["sorted", "dirichlet:0.5", "sizes:20,5,1"])
def test_data_shard_cuts_what_each_rank_of_a_run_would_have(folder, tmp_path, deal):
    out = f"{tmp_path}/{{rank}}.npz"
    main(
        [
            "shard",
            f"libsvm:{folder}/file",
            "--ranks",
            "3",
            "--seed",
            "7",
            "--deal",
            deal,
            "--no-normalize",
            "--out",
            out,
        ]
    )
    for rank, shard in enumerate(load(f"libsvm:{folder}/file", 3, deal, test_fraction=0.0)):
        rows, labels = read_npz(tmp_path / f"{rank}.npz")
        assert np.array_equal(to_dense(rows).matrix, to_dense(shard.rows).matrix)
        assert np.array_equal(labels, shard.labels)


def test_one_file_of_all_census_records_is_not_dealt(folder, tmp_path):
    with pytest.raises(ConfigError, match="expected --ranks N with"):
        main(["adult", str(folder), "--deal", "sorted", "--out", f"{tmp_path}/adult.npz"])


# --- features that differ ---------------------------------------------------------------------------------------------

SKEWED = [
    "synthetic:samples=701,features=33,skew=0.7",
    "synthetic:samples=300,features=1000,density=0.02,skew=2",
    "synthetic:samples=140,features=3000,density=0.5,skew=1,decay=0.3",
    "synthetic:samples=21,features=33000,skew=1",
]


@pytest.mark.parametrize("spec", SKEWED)
def test_skewed_rows_are_the_same_bits_for_every_rank_count(spec):
    whole = load(spec, 1)
    for size in (2, 5, 20):
        shards = load(spec, size)
        assert np.array_equal(table(shards), table(whole))
        assert np.array_equal(np.vstack(held_out(shards)), held_out(whole)[0])
    assert np.sum(table(whole)[:, :-1] ** 2, axis=1).max() <= 1.0


def test_no_skew_is_no_change():
    assert digest(load(f"{SYNTHETIC},skew=0", 3)) == digest(load(SYNTHETIC, 3))
    assert digest(load(f"{SYNTHETIC},skew=1e-3", 3)) != digest(load(SYNTHETIC, 3))


def directions(features, count, seed=7):
    """The unit vectors of (8) for each of `count` rows."""
    circle = public_generator(seed, "skew").standard_normal((2, features))
    u = 2 * np.pi * (np.arange(count) + 0.5) / count
    found = np.outer(np.cos(u), circle[0]) + np.outer(np.sin(u), circle[1])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("S", [0.5, 1.0, 3.0])
def test_rows_are_moved_around_the_circle(S):
    """Of a row of norm 1, S / sqrt(1 + S^2) is along its direction, in training and test rows alike."""
    m = 4000
    [shard] = load(f"synthetic:samples=400,features={m},skew={S}", 1)
    for rows, count in ((shard.rows, 400), (shard.test_rows, 100)):
        along = np.einsum("ij,ij->i", rows.matrix, directions(m, count))
        assert abs(along.mean() - S / np.sqrt(1 + S * S)) < 0.02
        assert np.abs(along - along.mean()).max() < 0.1
        assert np.linalg.norm(rows.matrix.mean(axis=0)) < 1.5 / np.sqrt(count)  # as without skew: all together centred


def test_skewed_labels_follow_the_same_rule_and_differ_between_ranks():
    shards = load("synthetic:samples=20000,features=40,flip=0.05,skew=1.5", 8)
    w = public_generator(7, "separator").standard_normal(40)
    wrong = [np.mean(np.sign(shard.rows.matrix @ w) != shard.labels) for shard in shards]
    assert np.abs(np.array(wrong) - 0.05).max() < 4.5 * np.sqrt(0.05 * 0.95 / 2500)
    means = np.array([shard.rows.matrix.mean(axis=0) for shard in shards])
    assert np.linalg.norm(means, axis=1).min() > 0.5
    assert np.linalg.norm(means.mean(axis=0)) < 0.05
    assert np.ptp([np.mean(shard.labels > 0) for shard in shards]) > 0.3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("skew=-1", "expected skew in 0 ... 100, found -1"),
        ("skew=nan", "expected skew in 0 ... 100, found nan"),
        ("density=0.1,zipf=1,skew=1", "no decay and no skew for documents"),
    ],
)
def test_bad_skew_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        source(f"synthetic:{options}")
