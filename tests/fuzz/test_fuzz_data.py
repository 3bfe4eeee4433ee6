"""Data files: what is accepted is exactly what the file says, by a reader that shares no code with ours.

A container with a checksum (.gz, .bz2, .xz, .npz) that was damaged is refused, or its content is the undamaged one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import re
import zipfile

import numpy as np
import pytest
from hostile import attempt, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.data import parse_source
from dpmpi.data.adult import ATTRIBUTES, FEATURE_NAMES
from dpmpi.data.file_reading import ALWAYS_BYTES, LONGEST_LINE, MOST_FEATURES, MOST_TIMES
from dpmpi.data.libsvm import read_rows, to_dense
from dpmpi.data.shards import read_npz
from dpmpi.errors import DataError, DpmpiError
from dpmpi.problem.rows import Csr, Dense

PACK = {"": bytes, ".gz": lambda raw: gzip.compress(raw, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}


def load(spec, loss="squared", dimension=None):
    source = parse_source(
        spec, samples=None, normalize=False, test_fraction=0.0, seed=0, loss=loss, dimension=dimension
    )
    return source.load(source.survey(), 0, 1)


def stacked(shard):
    """Return the rows of a shard as sorted tuples with their labels in front."""
    rows = shard.rows.matrix if isinstance(shard.rows, Dense) else to_dense(shard.rows).matrix
    return sorted((label, *row) for label, row in zip(shard.labels.tolist(), rows.tolist(), strict=True))


# --- text ------------------------------------------------------------------------------------------------------------

TEXT = (
    b"# twelve records\n"
    + b"".join(b"%d 1:%.6f 3:-0.25 7:%de-3 # note\n" % (1 - 2 * (r % 2), r / 7, r) for r in range(8))
    + b"-1\n+1 2:1\n1 1:0.5 2:1e-5\r\n-1 7:3"
)
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
WHOLE = re.compile(r"[+-]?\d+\Z", re.ASCII)


def reference(raw: bytes) -> list[tuple[float, dict[int, float]]] | None:
    """Return label and {index: value} of every record by the letter of the format, None if a line is not of it."""
    records = []
    for line in raw.split(b"\n"):
        words = re.split(r"[ \t\r\v\f]+", line.split(b"#")[0].decode("latin-1").strip(" \t\r\v\f"))
        if words == [""]:
            continue
        pairs = [word.split(":") for word in words[1:]]
        if not DECIMAL.match(words[0]) or not all(
            len(p) == 2 and WHOLE.match(p[0]) and DECIMAL.match(p[1]) for p in pairs
        ):
            return None
        if any(len(p[0]) > 4000 for p in pairs):
            return None
        label, indices, values = float(words[0]), [int(p[0]) for p in pairs], [float(p[1]) for p in pairs]
        if not all(map(math.isfinite, (label, *values))) or indices != sorted(
            {i for i in indices if 0 < i <= MOST_FEATURES}
        ):
            return None
        records.append((label, dict(zip(indices, values, strict=True))))
    return records if any(row for _, row in records) else None


def read_text(path) -> list[tuple[float, dict[int, float]]]:
    """Return the records of a file by our reader, in the order of the file."""
    rows, labels = read_rows(path)
    spans = zip(labels.tolist(), rows.indptr[:-1], rows.indptr[1:], strict=True)
    return [
        (label, dict(zip((rows.indices[a:b] + 1).tolist(), rows.data[a:b].tolist(), strict=True)))
        for label, a, b in spans
    ]


@given(raw=damaged(TEXT), suffix=st.sampled_from(sorted(PACK)))
@examples(100)
def test_text_of_records(raw, suffix, tmp_path):
    path = tmp_path / f"0{suffix}"
    path.write_bytes(PACK[suffix](raw))
    found, expected = attempt("libsvm text", lambda: read_text(path)), reference(raw)
    if expected is None:
        assert isinstance(found, DataError)
        expected = []
    else:
        assert found == expected
    labels = [label for label, _ in expected]
    for spec, loss in ((f"libsvm:{path}", "squared"), (f"shards:{tmp_path}/{{rank}}{suffix}", "hinge")):
        shard = attempt(f"{spec.partition(':')[0]} of text", lambda: load(spec, loss, dimension=9))  # noqa: B023
        if not isinstance(shard, DpmpiError):
            scaled = shard.task.scaled(np.array(labels)).tolist()
            meant = [label or -1.0 for label in labels] if loss == "hinge" else scaled  # classes may be 0 and 1
            assert sorted(shard.labels.tolist()) == sorted(meant)


def made_of(records, parts) -> bool:
    """Return whether the records are nothing but whole parts, end to end."""
    return not records or any(
        records[: len(part)] == part and made_of(records[len(part) :], parts) for part in parts if part
    )


@given(data=st.data(), suffix=st.sampled_from(sorted(set(PACK) - {""})), several=st.booleans())
@examples(150)
def test_compressed_text(data, suffix, several, tmp_path):
    half = TEXT.index(b"\n", 150) + 1
    parts = [TEXT[:half], TEXT[half:]] if several else [TEXT]
    path = tmp_path / f"data{suffix}"
    path.write_bytes(data.draw(damaged(b"".join(map(PACK[suffix], parts)))))
    found = attempt(f"libsvm {suffix}", lambda: read_text(path))
    # A file of several compressed ones that is cut between two of them is a whole file too; else nothing is missing.
    assert isinstance(found, DataError) or made_of(found, [reference(part) for part in parts])


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_rows_are_never_left_out_in_silence(suffix, tmp_path):
    path, packed = tmp_path / f"data{suffix}", PACK[suffix](TEXT)
    path.write_bytes(packed + packed + bytes(64))
    assert read_text(path) == reference(TEXT) * 2  # two files end to end, and padding
    second = bytes([packed[0] ^ 1, *packed[1:]])
    for raw in (b"", packed + second, packed + b"more", packed + packed[:-1], packed[: len(packed) // 2]):
        path.write_bytes(raw)
        with pytest.raises(DataError, match="damaged or incomplete"):
            read_text(path)


# --- archives --------------------------------------------------------------------------------------------------------

DRAW = np.random.default_rng(0)
DENSE = {"X": DRAW.normal(size=(12, 3)), "y": np.where(np.arange(12) % 3, 1.0, -1.0)}
SPARSE = {
    "indptr": np.array([0, 2, 2, 5, 6]), "indices": np.array([0, 4, 1, 2, 3, 0]), "data": DRAW.normal(size=6),
    "dimension": np.array(5), "y": np.array([1.0, 0.0, 0.0, 1.0]),
}  # fmt: skip


def archive(arrays, save=np.savez) -> bytes:
    out = io.BytesIO()
    save(out, **arrays)
    return out.getvalue()


ARCHIVES = [archive(arrays, save) for arrays in (DENSE, SPARSE) for save in (np.savez, np.savez_compressed)]


def numbers(rows, labels):
    parts = [rows.matrix] if isinstance(rows, Dense) else [rows.indptr, rows.indices, rows.data]
    return [(part.shape, part.tobytes()) for part in (*parts, labels)], rows.dimension


@given(data=st.data(), which=st.integers(0, 3))
@examples(200)
def test_damaged_archive(data, which, tmp_path):
    path = tmp_path / "0.npz"
    path.write_bytes(ARCHIVES[which])
    undamaged = numbers(*read_npz(path))
    path.write_bytes(data.draw(damaged(ARCHIVES[which])))
    found = attempt("npz", lambda: read_npz(path))
    assert isinstance(found, DataError) or numbers(*found) == undamaged
    attempt("shards of npz", lambda: load(f"shards:{tmp_path}/{{rank}}.npz", "hinge"))


def test_a_large_array_is_read_to_its_checksum(tmp_path):
    """An array that says to be smaller than it is would be read in part, and its checksum never looked at."""
    path = tmp_path / "0.npz"
    raw = archive({"X": DRAW.normal(size=(4000, 3)), "y": np.ones(4000)})
    assert raw.count(b"(4000, 3)") == 1
    path.write_bytes(raw.replace(b"(4000, 3)", b"(4000, 2)"))
    with pytest.raises(DataError, match=r"expected an \.npz of plain arrays"):
        read_npz(path)


@given(data=st.data(), which=st.integers(0, 1))
@examples(100)
def test_damaged_header_of_an_array(data, which, tmp_path):
    """The archive is made anew around the damage, with a checksum that fits."""
    arrays = (DENSE, SPARSE)[which]
    hit = data.draw(st.sampled_from(sorted(arrays)))
    path = tmp_path / "0.npz"
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            out = io.BytesIO()
            np.lib.format.write_array(out, array)
            head, _, body = out.getvalue().partition(b"\n")
            file.writestr(f"{name}.npy", (data.draw(damaged(head)) if name == hit else head) + b"\n" + body)
    found = attempt("npy header", lambda: read_npz(path))
    if not isinstance(found, DataError):
        check_rows(*found)


def check_rows(rows, labels):
    """Assert what every accepted shard has: finite numbers that fit together."""
    assert labels.shape == (rows.count,)
    assert np.isfinite(labels).all()
    if isinstance(rows, Csr):
        assert rows.indptr[-1] == len(rows.indices) == len(rows.data)
        assert (np.diff(rows.indptr) >= 0).all()
        assert ((rows.indices >= 0) & (rows.indices < rows.dimension)).all()
    values = rows.matrix if isinstance(rows, Dense) else rows.data
    assert values.dtype == np.float64
    assert np.isfinite(values).all()


ODD = (
    np.array(np.nan), np.array([[1.0, np.inf]]), np.array(["a", "b"]), np.array([1, 2], object), np.array([1 + 2j]),
    np.array([2**64 - 1, 2**63], np.uint64), np.array([-1, 0]), np.array(2**62), np.array(10**9), np.zeros((3, 0)),
    np.zeros((0, 3)), np.zeros(0), np.zeros((2, 2, 2)), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, [("a", "f8")]),
    np.array([1e300, 1e308], np.longdouble) * np.longdouble(1e300), np.array([True, False]), np.zeros(4, "V3"),
    np.array([1.0, -1.0], ">f8"), np.array([0, 1], np.int8), np.ones((4, 2), np.float16), np.ones((3, 2), order="F"),
    np.array([0, 2**62, 0]), np.array([0, 3, 1]), np.array(3.0), np.array([5e-324]), np.full((12, 3), 1.7e308),
)  # fmt: skip


@given(
    which=st.integers(0, 1), name=st.sampled_from(["X", "y", "indptr", "indices", "data", "dimension", "more"]),
    value=st.sampled_from(ODD), drop=st.sampled_from([None, None, None, "X", "y", "data"]),
)  # fmt: skip
@examples(100)
def test_odd_arrays(which, name, value, drop, tmp_path):
    arrays = {**(DENSE, SPARSE)[which], name: value}
    arrays.pop(drop, None)
    path = tmp_path / "0.npz"
    path.write_bytes(archive(arrays))
    found = attempt("npz of odd arrays", lambda: read_npz(path))
    if not isinstance(found, DataError):
        check_rows(*found)
    attempt("shards of odd arrays", lambda: load(f"shards:{tmp_path}/{{rank}}.npz", "hinge"))


# --- Adult -----------------------------------------------------------------------------------------------------------

PEOPLE = (
    "39, State-gov, 77516, Bachelors, 13, Divorced, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K",
    "50, Self-emp-inc, 83311, Bachelors, 13, Widowed, Exec-managerial, Husband, White, Male, 0, 0, 13, Cuba, >50K",
    "28, Private, 338409, Bachelors, 13, Separated, Prof-specialty, Wife, Black, Female, 0, 0, 40, Cuba, <=50K",
    "30, ?, 1, HS-grad, 9, Divorced, ?, Unmarried, Other, Female, 0, 0, 40, Cuba, <=50K",
    "52, Private, 209642, HS-grad, 9, Divorced, Sales, Husband, White, Male, 0, 1902, 45, Mexico, >50K",
)  # fmt: skip
FILES = {
    "adult.data": "\n".join((*PEOPLE, "", "")).encode(),
    "adult.test": "\n".join(("|1x3 Cross validator", *(f"{line}." for line in PEOPLE), "")).encode(),
}


def coded(files) -> list[tuple[float, ...]]:
    """Return label and columns of all complete records, attribute by attribute."""
    rows = []
    for raw in files:
        for line in raw.split(b"\n"):
            text = line.split(b"#")[0]
            if text.strip() and not text.startswith(b"|") and b"?" not in text:
                cells = [cell.strip().decode("latin-1") for cell in text.split(b",")]
                row = dict.fromkeys(FEATURE_NAMES, 0.0)
                for (name, kind), cell in zip(ATTRIBUTES.items(), cells, strict=False):
                    row[name if isinstance(kind, float) else f"{name}={cell}"] = (
                        min(int(cell) / kind, 1.0) if isinstance(kind, float) else 1.0
                    )
                assert len(row) == len(FEATURE_NAMES), "a category that there is not"
                rows.append((1.0 if ">" in cells[-1] else -1.0, *row.values()))
    return sorted(rows)


@given(data=st.data(), name=st.sampled_from(sorted(FILES)), suffix=st.sampled_from(sorted(PACK)), packed=st.booleans())
@examples(120)
def test_adult_files(data, name, suffix, packed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adult")
    inside = dict(FILES)
    if not packed:
        inside[name] = data.draw(damaged(inside[name]))
    files = {each: PACK[suffix](raw) for each, raw in inside.items()}
    if packed and suffix:
        files[name] = data.draw(damaged(files[name]))
    for each, raw in files.items():
        (folder / f"{each}{suffix}").write_bytes(raw)
    shard = attempt("adult", lambda: load(f"adult:{folder}"))
    assert isinstance(shard, DpmpiError) or stacked(shard) == coded(inside.values())


# --- bombs and what is no file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("line", [b"1 1:1  # " + b"one" * 300 + b"\n", b" "], ids=["records", "one line"])
def test_a_bomb_is_refused_before_it_is_unpacked(suffix, line, tmp_path):
    path, times = tmp_path / f"0{suffix}", 300_000 // len(line)
    path.write_bytes(PACK[suffix](line * times) * 50)
    assert 300 * path.stat().st_size < 50 * 300_000
    for spec in (f"libsvm:{path}", f"shards:{tmp_path}/{{rank}}{suffix}"):
        error = attempt(f"bomb {suffix}", lambda: load(spec, dimension=3))  # noqa: B023
        assert isinstance(error, DataError)
        assert f"{MOST_TIMES} times its size" in str(error)


def test_a_bomb_in_an_archive_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "0.npz"
    path.write_bytes(archive({"X": np.zeros((3 * ALWAYS_BYTES // 80, 10)), "y": np.ones(5)}, np.savez_compressed))
    error = attempt("bomb .npz", lambda: read_npz(path))
    assert f"{MOST_TIMES} times its size" in str(error)
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("X.npy", b"\x93NUMPY\x01\x00\x76\x00" + shape.ljust(117) + b"\n" + b"x" * 80)
        file.writestr("y.npy", b"")
    assert isinstance(attempt("bomb .npz", lambda: read_npz(path)), DataError)


def test_content_that_compresses_well_is_read_up_to_the_limit(tmp_path):
    path = tmp_path / "0.bz2"
    path.write_bytes(bz2.compress(b"1 1:1\n" * 20_000) * 10)
    assert path.stat().st_size * MOST_TIMES < 1_200_000 < ALWAYS_BYTES
    assert read_rows(path)[0].count == 200_000


def test_an_index_of_billions_is_not_a_model(tmp_path):
    path = tmp_path / "0"
    path.write_bytes(b"1 1:1\n-1 2147483647:1\n")
    assert f"at most {MOST_FEATURES} features" in str(attempt("huge index", lambda: load(f"libsvm:{path}")))
    (tmp_path / "0.npz").write_bytes(archive(SPARSE | {"dimension": np.array(2**40)}))
    assert f"at most {MOST_FEATURES} features" in str(attempt("huge index", lambda: read_npz(tmp_path / "0.npz")))


@pytest.mark.parametrize("name", ["0", "0.gz", "0.npz", "0.bz2"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    os.mkdir(tmp_path / f"1{name}")
    suffix = name.removeprefix("0")
    for path in (tmp_path / name, tmp_path / f"1{name}"):
        with pytest.raises(DataError, match="not a file, but a folder, a pipe or a device"):
            read_npz(path) if suffix == ".npz" else read_rows(path)
    with pytest.raises(DataError, match="not a file"):
        load(f"shards:{tmp_path}/{{rank}}{suffix}", dimension=3)


def test_a_file_without_lines_ends_at_the_limit(tmp_path):
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(4 * LONGEST_LINE)
    assert "expected lines of at most 16 MB" in str(attempt("hole", lambda: load(f"libsvm:{path}")))
