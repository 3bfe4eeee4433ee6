"""The census records: 45,222 x 104 as published, coded by constants and one record at a time."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import math
import os
from pathlib import Path

import needs
import numpy as np
import pytest
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, normalize

from dpmpi.data import SOURCES, Survey, parse_source
from dpmpi.data.adult import ATTRIBUTES, FEATURE_NAMES
from dpmpi.data.libsvm import to_dense
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Dense
from dpmpi.rng import public_generator

NUMBERS = [name for name, kind in ATTRIBUTES.items() if isinstance(kind, float)]
GOOD = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Husband, White, Male, 0, 0, 40, Cuba, <=50K"


def source(spec, *, samples=None, normalize=True, test_fraction=0.0, seed=7, loss="hinge"):
    return parse_source(
        str(spec), samples=samples, normalize=normalize, test_fraction=test_fraction, seed=seed, loss=loss
    )


def load(spec, rank=0, size=1, **options):
    made = source(spec, **options)
    survey = Survey.from_dict(json.loads(json.dumps(made.survey().to_dict())))
    return made.load(survey, rank, size)


def make_folder(folder, records=23, seed=0):
    """Write a small pair of files with records of every kind, missing values included; return the complete ones."""
    draw = np.random.default_rng(seed)
    lines, complete = [], []
    for r in range(records):
        cells = [
            str(draw.integers(0, int(kind) + 1)) if isinstance(kind, float) else str(draw.choice(kind))
            for kind in ATTRIBUTES.values()
        ]
        cells.append((">50K", "<=50K")[r % 2])
        if r % 5 == 4:
            cells[int(draw.choice([1, 6, 13]))] = "?"
        else:
            complete.append(cells)
        lines.append(", ".join(cells))
    half = records // 2
    folder.mkdir(exist_ok=True)
    (folder / "adult.data").write_text("".join(f"{line}\n" for line in lines[:half]) + "\n")
    tests = "|1x3 Cross validator\n" + "".join(f"{line}.\n" for line in lines[half:]) + "\n"
    (folder / "adult.test.bz2").write_bytes(bz2.compress(tests.encode()))
    return complete


def coded(cells):
    """(1), (2), (4) of the module, one cell at a time."""
    row = dict.fromkeys(FEATURE_NAMES, 0.0)
    for (name, kind), cell in zip(ATTRIBUTES.items(), cells, strict=False):
        if isinstance(kind, float):
            row[name] = min(int(cell) / kind, 1.0)
        else:
            row[f"{name}={cell}"] = 1.0
    return [row[name] for name in FEATURE_NAMES], 1.0 if cells[-1].startswith(">") else -1.0


def expected_of(records):
    rows, labels = zip(*map(coded, records), strict=True)
    return np.array(rows), np.array(labels)


# --- small files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_rank_has_its_part_of_the_permuted_records(tmp_path, size):
    rows, labels = expected_of(make_folder(tmp_path))
    order = public_generator(7, "shuffle").permutation(len(rows))
    held = round(0.3 * len(rows))
    train, test = order[:-held], order[-held:]
    shards = [load(f"adult:{tmp_path}", rank, size, test_fraction=0.3, normalize=False) for rank in range(size)]
    assert np.array_equal(np.vstack([shard.rows.matrix for shard in shards]), rows[train])
    assert np.array_equal(np.concatenate([shard.labels for shard in shards]), labels[train])
    assert np.array_equal(np.vstack([shard.test_rows.matrix for shard in shards]), rows[test])
    assert np.array_equal(np.concatenate([shard.test_labels for shard in shards]), labels[test])
    assert {len(shard.labels) for shard in shards} <= {len(train) // size, -(-len(train) // size)}


def test_ranks_of_one_process_read_together_what_each_would_alone(tmp_path):
    make_folder(tmp_path, records=60)
    made = source(f"adult:{tmp_path}", test_fraction=0.2)
    together = made.load_many(made.survey(), [0, 2, 3], 4)
    for rank, shard in zip([0, 2, 3], together, strict=True):
        alone = made.load(made.survey(), rank, 4)
        assert shard.fingerprint == alone.fingerprint
        np.testing.assert_array_equal(shard.test_rows.matrix, alone.test_rows.matrix)
        np.testing.assert_array_equal(shard.test_labels, alone.test_labels)


def test_samples_are_the_first_of_the_permutation(tmp_path):
    rows, labels = expected_of(make_folder(tmp_path))
    order = public_generator(3, "shuffle").permutation(len(rows))
    shard = load(f"adult:{tmp_path}", seed=3, samples=6, test_fraction=0.5, normalize=False)
    assert np.array_equal(np.vstack([shard.rows.matrix, shard.test_rows.matrix]), rows[order[:6]])
    assert np.array_equal(np.concatenate([shard.labels, shard.test_labels]), labels[order[:6]])
    assert (shard.rows.count, shard.test_rows.count) == (3, 3)


def test_no_record_changes_the_row_of_another(tmp_path):
    """Coding is local: the other records, however large, do not enter."""
    for folder, other in (("a", GOOD), ("b", GOOD.replace("39", "999").replace("77516", "999999999"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "adult.data").write_text(f"{GOOD}\n{other}\n")
        (tmp_path / folder / "adult.test").write_text("")
    for scaled in (True, False):
        small, large = (source(f"adult:{tmp_path / folder}", normalize=scaled).whole()[0].matrix for folder in "ab")
        assert np.array_equal(small[0], large[0])
        assert not np.array_equal(small[1], large[1])
    assert large.max() == 1.0  # clipped


def test_rows_are_scaled_to_norm_one(tmp_path):
    rows, labels = expected_of(make_folder(tmp_path))
    found, found_labels = source(f"adult:{tmp_path}").whole()
    np.testing.assert_allclose(found.matrix, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-13, atol=0)
    assert max(math.fsum(v * v for v in row) for row in found.matrix.tolist()) <= 1.0
    assert np.array_equal(found_labels, labels)


def test_real_labels_are_the_same_signs(tmp_path):
    make_folder(tmp_path)
    assert np.array_equal(load(f"adult:{tmp_path}", loss="squared").labels, load(f"adult:{tmp_path}").labels)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1, 2, 3", "adult.data:2: expected 15 cells separated by commas, found 3"),
        (f"{GOOD}, 1", "expected 15 cells separated by commas, found 16"),
        (
            GOOD.replace("State-gov", "State-guv"),
            "categories of workclass .* found 'State-guv' .did you mean State-gov",
        ),
        (GOOD.replace("State-gov", "Never-worked"), "expected one of 7 categories of workclass"),
        (GOOD.replace("Cuba", "Atlantis"), "expected one of 41 categories of native-country"),
        (GOOD.replace("Cuba", "Cub\xe4"), "categories of native-country"),
        (GOOD.replace("39", "-1"), "whole number as age, found '-1'"),
        (GOOD.replace("39", "nan"), "whole number as age, found 'nan'"),
        (GOOD.replace("77516", "7" * 5000), "whole number as fnlwgt, found '7777"),
        (GOOD.replace("<=50K", "50K"), "expected >50K or <=50K as label, found '50K'"),
    ],
)
def test_a_wrong_record_is_named(tmp_path, line, says):
    (tmp_path / "adult.data").write_text(f"{GOOD}\n{line}\n", encoding="latin-1")
    (tmp_path / "adult.test").write_text("")
    with pytest.raises(DataError, match=says) as caught:
        load(f"adult:{tmp_path}")
    assert str(tmp_path / "adult.data:2") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_missing_files_and_impossible_settings(tmp_path):
    with pytest.raises(ConfigError, match="expected the folder"):
        source("adult:")
    with pytest.raises(DataError, match=r"found no such folder: .*nowhere"):
        load(f"adult:{tmp_path}/nowhere")
    (tmp_path / "adult.data").write_text("")
    with pytest.raises(DataError, match=r"expected .*adult\.test, .*found no such file"):
        load(f"adult:{tmp_path}")
    (tmp_path / "adult.test").write_text("|comment\n" + GOOD.replace("Cuba", "?") + "\n")
    with pytest.raises(DataError, match="expected complete records"):
        load(f"adult:{tmp_path}")
    (tmp_path / "adult.test").write_text(f"{GOOD}\n{GOOD}\n")  # the held-out file alone is not Adult
    with pytest.raises(DataError, match=r"expected complete records in adult\.data, found none"):
        load(f"adult:{tmp_path}")
    (tmp_path / "adult.test").write_text("|comment\n")
    (tmp_path / "adult.data").write_text(f"{GOOD}\n{GOOD}\n")
    with pytest.raises(ConfigError, match=r"the 3 samples asked for, found that .* has 2 complete records"):
        load(f"adult:{tmp_path}", samples=3)
    with pytest.raises(ConfigError, match="each of 3 ranks, found 2"):
        load(f"adult:{tmp_path}", 0, 3)
    made = source(f"adult:{tmp_path}")
    survey = made.survey()
    for lines in (1, 3):
        (tmp_path / "adult.data").write_text(f"{GOOD}\n" * lines)
        with pytest.raises(DataError, match="expected the 2 complete records of the first pass"):
            made.load(survey, 0, 1)
    (tmp_path / "adult.data").unlink()
    (tmp_path / "adult.data.gz").write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(DataError, match="damaged or incomplete"):
        load(f"adult:{tmp_path}")


# --- the command -----------------------------------------------------------------------------------------------------


def command(capsys, *words):
    from dpmpi.commands.dispatch import main  # noqa: PLC0415 - only these tests need the commands

    code = main(["data", *map(str, words)])
    return code, *capsys.readouterr()


def test_prepared_text_gives_the_same_shards_for_any_seed(tmp_path, capsys):
    make_folder(tmp_path)
    code, _, said = command(capsys, "adult", tmp_path, "--out", tmp_path / "deep" / "adult.svm")
    assert (code, said.split(":")[0]) == (0, "19 rows of 104 columns")
    assert os.listdir(tmp_path / "deep") == ["adult.svm"]
    for rank, seed in ((0, 7), (1, 7), (2, 8)):
        direct = load(f"adult:{tmp_path}", rank, 3, test_fraction=0.2, seed=seed)
        prepared = load(f"libsvm:{tmp_path}/deep/adult.svm", rank, 3, test_fraction=0.2, seed=seed)
        found = to_dense(prepared.rows).matrix
        missing = 104 - found.shape[1]  # text ends with the last column that occurs
        assert np.array_equal(np.pad(found, ((0, 0), (0, missing))), direct.rows.matrix)
        assert np.array_equal(prepared.labels, direct.labels)
        assert np.array_equal(prepared.test_labels, direct.test_labels)


def test_prepared_archive_holds_all_rows_in_the_order_of_the_files(tmp_path, capsys):
    rows, labels = expected_of(make_folder(tmp_path))
    assert command(capsys, "adult", tmp_path, "--out", tmp_path / "adult.npz", "--no-normalize")[0] == 0
    with np.load(tmp_path / "adult.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["X"], rows)
        assert np.array_equal(archive["y"], labels)


def test_prepared_shards_are_what_each_rank_would_have_read(tmp_path, capsys):
    make_folder(tmp_path)
    pattern = f"{tmp_path}/part-{{rank}}.npz"
    assert command(capsys, "adult", tmp_path, "--ranks", 4, "--seed", 5, "--out", pattern)[0] == 0
    for rank in range(4):
        shard, direct = source(f"shards:{pattern}").load(None, rank, 4), load(f"adult:{tmp_path}", rank, 4, seed=5)
        assert shard.fingerprint == direct.fingerprint


def test_list_names_every_source_on_one_line(capsys):
    code, listed, _ = command(capsys, "list")
    assert code == 0
    assert [line.split(":")[0] for line in listed.splitlines()] == list(SOURCES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("adult", "nowhere", "--out", "x.npz"), "found no such folder: nowhere"),
        (("adult", "nowhere", "--out", "x.bz2"), "ends with .npz, .svm"),
        (("adult", "nowhere", "--out", "x-{rank}.npz"), "expected --ranks N"),
        (("adult", "nowhere", "--out", "x.npz", "--samples", "3"), "expected --ranks N"),
        (("adult", "nowhere", "--out", "x.npz", "--ranks", "3"), "expected a pattern of shards with {rank}"),
        (("adult", "nowhere", "--out", "{rank}.npz", "--ranks", "0"), "expected --ranks >= 1"),
        (("shard", "synthetic", "--out", "{rank}.npz", "--ranks", "2", "--sampels", "3"), "did you mean --samples?"),
        (("shard", "mean", "--out", "{rank}.npz", "--ranks", "2"), "expected --loss mean"),
        (("adlut", "nowhere"), "adlut"),
        ((), "ACTION"),
    ],
)
def test_wrong_words_end_with_one_line(words, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, printed, said = command(capsys, *words)
    assert (code, printed) == (2, "")
    assert said.startswith("dpmpi: ")
    assert says in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []


# --- the published files ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder():
    return Path(os.environ["DPMPI_DATA"])


@pytest.fixture(scope="module")
def published(folder):
    """The complete records, read by other means."""
    records = []
    for name in ("adult.data.gz", "adult.test.gz"):
        with gzip.open(folder / name, "rt") as stream:
            found = csv.reader(stream, skipinitialspace=True)
            records += [cells for cells in found if len(cells) == 15 and "?" not in cells]
    return records


@needs.data
def test_categories_are_those_of_the_codebook(folder):
    found = {}
    for line in (folder / "adult.names").read_text().splitlines():
        name, colon, kinds = line.partition(":")
        if colon and not line.startswith("|"):
            found[name] = kinds.strip().rstrip(".").split(", ")
    assert list(found) == list(ATTRIBUTES)
    found["workclass"].remove("Never-worked")
    for name, kind in ATTRIBUTES.items():
        assert found[name] == ["continuous"] if isinstance(kind, float) else list(kind) == found[name]


@needs.data
def test_who_never_worked_has_no_occupation(folder):
    """Why 104 columns are enough for complete records."""
    lines = [
        line
        for name in ("adult.data.gz", "adult.test.gz")
        for line in gzip.decompress((folder / name).read_bytes()).decode().splitlines()
        if "Never-worked" in line
    ]
    assert len(lines) == 10
    assert all(line.split(", ")[list(ATTRIBUTES).index("occupation")] == "?" for line in lines)


@needs.data
def test_the_published_counts(folder):
    """45,222 x 104: section 5.2 of the paper; 24.78 % above 50K: the codebook."""
    made = source(f"adult:{folder}", test_fraction=0.2)
    survey = made.survey()
    assert survey == Survey(45222, 104, (-1.0, 1.0), 45222 * 104)
    shards = [made.load(survey, rank, 20) for rank in (0, 19)]
    assert [shard.rows.count for shard in shards] == [1808, 1809]  # floor(36178 / 20) and one more for the last
    assert sum(shard.test_rows.count for shard in shards) in range(2 * 452, 2 * 453 + 1)
    assert all(isinstance(shard.rows, Dense) and shard.rows.dimension == 104 for shard in shards)
    _, labels = made.whole()
    assert round(100 * np.mean(labels > 0), 2) == 24.78


@needs.data
def test_rows_are_those_of_data_driven_coding(folder, published):
    """With the published files, the constants give what one-hot coding and scaling by the maxima of the data give."""
    names = list(ATTRIBUTES)
    table = np.array(published)
    numbers = [names.index(name) for name in NUMBERS]
    others = [k for k in range(14) if k not in numbers]
    one_hot = OneHotEncoder(sparse_output=False).fit(table[:, others])
    columns = list(one_hot.get_feature_names_out([f"{names[k]}=" for k in others]))
    found = [name.replace("=_", "=") for name in columns] + NUMBERS
    assert len(found) == 104
    matrix = np.hstack(
        [one_hot.transform(table[:, others]), MaxAbsScaler().fit_transform(table[:, numbers].astype(float))]
    )
    matrix = matrix[:, [found.index(name) for name in FEATURE_NAMES]]
    rows, labels = source(f"adult:{folder}", normalize=False).whole()
    assert np.array_equal(rows.matrix, matrix)
    assert np.array_equal(labels, [1.0 if cells[-1].startswith(">") else -1.0 for cells in published])
    assert np.array_equal(rows.matrix.max(axis=0), np.ones(104))
    scaled = source(f"adult:{folder}").whole()[0]
    np.testing.assert_allclose(scaled.matrix, normalize(matrix), rtol=1e-13, atol=0)
    assert scaled.norms.max() <= 1.0
