"""Tables coded by a codebook: against a slow coding of single cells, for any way to write the same table."""

import csv
import gzip
import io
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

from dpmpi.commands.dispatch import main
from dpmpi.data import parse_source
from dpmpi.data.codebook import EXAMPLE, SEPARATORS, Category, Classes, Codebook, Number, Person, read_codebook
from dpmpi.data.table import code_table
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Csr, Dense

CODEBOOK = """
bias = true
missing-words = ["", "NA"]
[label]
column = "readmitted"
classes = ["no", "yes"]
missing = "drop"
[columns.age]
range = [18, 100]
missing = "drop"
[columns.glucose]
range = [2, 12]
scale = [-1, 1]
missing = "column"
[columns.ward]
categories = ["medicine", "surgery"]
other = true
missing = "column"
[columns.sex]
categories = ["f", "m"]
"""
FEATURES = (
    "age", "glucose", "glucose is missing", "ward=medicine", "ward=surgery", "ward is another", "ward is missing",
    "sex=f", "sex=m", "bias",
)  # fmt: skip
HEADER = ["id", "age", "glucose", "ward", "sex", "readmitted"]
GOOD = ["7", "50", "6.5", "surgery", "f", "yes"]


@pytest.fixture
def codebook(tmp_path):
    return book(tmp_path, CODEBOOK)


def book(folder, text):
    (folder / "codebook.toml").write_text(text, encoding="utf-8")
    return read_codebook(folder / "codebook.toml")


def write(path, records, header=HEADER, **how):
    text = io.StringIO()
    csv.writer(text, **how).writerows([header, *records])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def expected(record, header=HEADER):
    """The row of a record before it is scaled, and its label, one cell at a time; None if it is left out."""
    cell = dict(zip(header, record, strict=True))
    if cell["age"] in ("", "NA") or cell["readmitted"] in ("", "NA"):
        return None
    row = dict.fromkeys(FEATURES, 0.0) | {"bias": 1.0}
    row["age"] = (min(max(float(cell["age"]), 18), 100) - 18) / 82
    if cell["glucose"] in ("", "NA"):
        row["glucose is missing"] = 1.0
    else:
        row["glucose"] = (min(max(float(cell["glucose"]), 2), 12) - 7) / 5
    kind = "ward is missing" if cell["ward"] in ("", "NA") else f"ward={cell['ward']}"
    row[kind if kind in row else "ward is another"] = 1.0
    row[f"sex={cell['sex']}"] = 1.0
    return [row[name] for name in FEATURES], {"no": -1.0, "yes": 1.0}[cell["readmitted"]]


def reference(records):
    kept = [coded for record in records if (coded := expected(record)) is not None]
    rows, labels = (np.array(part) for part in zip(*kept, strict=True))
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True)), labels


numbers = st.floats(-50, 200, allow_nan=False).map(repr) | st.integers(0, 120).map(str)
wards = st.sampled_from(["medicine", "surgery", "urology", "Medicine", "", "NA"])
records = st.tuples(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=6), numbers | st.just("NA"),
    numbers | st.just(""), wards, st.sampled_from("fm"), st.sampled_from(["yes", "no", "yes", "no", ""]),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.lists(records, min_size=1, max_size=6), st.permutations(range(len(HEADER))), st.sampled_from([*SEPARATORS]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]), st.booleans(),
)  # fmt: skip
def test_rows_are_those_of_coding_single_cells(tmp_path_factory, table, order, separator, quoting, end, told):
    """Whatever the order of the columns, the separator, quotes, line ends, and text in columns that nobody asks for."""
    folder = tmp_path_factory.mktemp("table")
    made = book(folder, CODEBOOK)
    table = [*table, GOOD]
    shuffled = [[record[k] for k in order] for record in table]
    how = {"delimiter": SEPARATORS[separator], "quoting": quoting, "lineterminator": end}
    path = write(folder / "t.csv", shuffled, [HEADER[k] for k in order], **how)
    coded = code_table(path, replace(made, separator=separator) if told else made)
    rows, labels = reference(table)
    assert isinstance(coded.rows, Dense)
    np.testing.assert_allclose(coded.rows.matrix, rows, rtol=1e-13, atol=1e-16)
    assert np.array_equal(coded.labels, labels)
    assert coded.dropped == len(table) - len(labels)
    assert coded.unused == ("id",)
    assert max(math.fsum(v * v for v in row) for row in coded.rows.matrix.tolist()) <= 1.0


def test_rows_are_those_of_scikit_learn(tmp_path):
    draw = np.random.default_rng(3)
    low, high, kinds = np.array([-5.0, 0.0]), np.array([5.0, 1e6]), ["a", "b", "c d"]
    table = [
        [repr(draw.uniform(-9, 9)), repr(draw.uniform(-1e5, 2e6)), str(draw.choice(kinds)), "1"] for _ in range(50)
    ]
    made = book(
        tmp_path,
        "[label]\ncolumn = 'y'\nrange = [0, 4]\n[columns.u]\nrange = [-5, 5]\nscale = [-1, 1]\n"
        f"[columns.v]\nrange = [0, 1e6]\nscale = [-1, 1]\n[columns.w]\ncategories = {kinds}\n",
    )
    coded = code_table(write(tmp_path / "t.csv", table, ["u", "v", "w", "y"]), made)
    cells = np.array([record[:2] for record in table], float)
    scaled = MinMaxScaler((-1, 1), clip=True).fit(np.array([low, high])).transform(cells)
    hot = OneHotEncoder(categories=[kinds], sparse_output=False).fit_transform([record[2:3] for record in table])
    rows = np.hstack([scaled, hot])
    np.testing.assert_allclose(
        coded.rows.matrix, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-12, atol=1e-15
    )
    assert np.array_equal(coded.labels, np.full(50, -0.5))  # 1 in [0, 4], scaled to [-1, 1]


def test_no_record_changes_the_row_of_another(tmp_path, codebook):
    """Coding is local: the other records, however strange, enter neither rows nor columns."""
    others = [[["1", "18", "2", "medicine", "m", "no"]], [["1", "1e9", "-1e300", "x", "f", "yes"]] * 3]
    found = [code_table(write(tmp_path / "t.csv", [GOOD, *other]), codebook).rows.matrix for other in others]
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0].shape[1] == found[1].shape[1] == len(FEATURES)
    assert not np.array_equal(found[0][1], found[1][1])


def test_a_short_row_keeps_its_length(tmp_path):
    made = book(tmp_path, "[label]\ncolumn = 'y'\nclasses = ['n', 'p']\n[columns.u]\nrange = [0, 10]\n")
    coded = code_table(write(tmp_path / "t.csv", [["2.5", "n"], ["0", "p"], ["99", "p"]], ["u", "y"]), made)
    assert coded.rows.matrix[:2].tolist() == [[0.25], [0.0]]
    assert 1.0 - 1e-14 < coded.rows.matrix[2, 0] <= 1.0
    assert coded.labels.tolist() == [-1.0, 1.0, 1.0]


def test_decimal_commas_and_byte_order_marks_and_blank_lines(tmp_path, codebook):
    text = "age;glucose;ward;sex;readmitted\n50; 6,5 ;surgery;f;yes\n\n50,0;6,50;surgery;f;yes\n"
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.encode()))
    plain = code_table(write(tmp_path / "p.csv", [GOOD, GOOD]), codebook)
    for name in ("t.csv", "t.csv.gz"):
        coded = code_table(tmp_path / name, replace(codebook, decimal="comma"))
        assert np.array_equal(coded.rows.matrix, plain.rows.matrix)
        assert coded.unused == ()


def test_many_categories_become_sparse_rows(tmp_path):
    """Dense or sparse is for the codebook to say: a table of one record has the kind of every other."""
    codes = [f"c{k}" for k in range(200)]
    label = "[label]\ncolumn = 'y'\nclasses = ['n', 'p']\n"
    made = book(tmp_path, f"{label}[columns.u]\nrange = [0, 1]\n[columns.code]\ncategories = {codes}\n")
    table = [["0.5", "c7", "p"], ["0", "c199", "n"]]
    coded = code_table(write(tmp_path / "t.csv", table, ["u", "code", "y"]), made)
    assert isinstance(coded.rows, Csr)
    dense = np.zeros((2, 201))
    dense[0, [0, 8]] = np.array([0.5, 1.0]) / math.sqrt(1.25)
    dense[1, 200] = 1.0
    found = np.zeros((2, 201))
    for r in range(2):
        here = slice(coded.rows.indptr[r], coded.rows.indptr[r + 1])
        found[r, coded.rows.indices[here]] = coded.rows.data[here]
    np.testing.assert_allclose(found, dense, rtol=1e-13)


# --- the codebook ----------------------------------------------------------------------------------------------------


def test_the_example_of_the_help_is_a_codebook(tmp_path):
    text = EXAMPLE.partition("\n")[2]
    made = book(tmp_path, text)
    assert made == Codebook(
        label=Classes("readmitted", ("no", "yes"), "drop"),
        columns=(
            Number("age", 18.0, 100.0, (-1.0, 1.0), None),
            Number("glucose", 3.0, 20.0, (0.0, 1.0), "column"),
            Category("ward", ("medicine", "surgery", "cardiology"), True, None),
        ),
        missing_words=("", "NA"),
        bias=True,
        person=Person("patient", 3),
    )


def test_the_features_are_in_the_order_of_the_codebook(codebook):
    assert codebook.features == FEATURES


SAME = {
    "comments": lambda text: text.replace("bias = true", "bias = true  # of course"),
    "integers": lambda text: text.replace("[18, 100]", "[18.0, 1e2]"),
    "what is the default": lambda text: text.replace("range = [18, 100]", "range = [18, 100]\nscale = [0, 1]"),
    "how the table is written": lambda text: f"separator = 'tab'\ndecimal = 'comma'\n{text}",
    "order of missing words": lambda text: text.replace('["", "NA"]', '["NA", "", "NA"]'),
}
OTHER = {
    "a range": lambda text: text.replace("[18, 100]", "[18, 101]"),
    "a scale": lambda text: text.replace("[-1, 1]", "[0, 1]"),
    "swapped classes": lambda text: text.replace('["no", "yes"]', '["yes", "no"]'),
    "swapped categories": lambda text: text.replace('["f", "m"]', '["m", "f"]'),
    "a category": lambda text: text.replace('"surgery"', '"Surgery"'),
    "other": lambda text: text.replace("other = true", "other = false"),
    "missing values": lambda text: text.replace('missing = "column"', 'missing = "drop"', 1),
    "missing words": lambda text: text.replace('"NA"', '"?"'),
    "bias": lambda text: text.replace("bias = true", "bias = false"),
    "a name": lambda text: text.replace("columns.sex", "columns.gender"),
    "the label": lambda text: text.replace('"readmitted"', '"died"'),
    "the order": lambda text: text.replace("columns.age", "columns.x").replace("columns.sex", "columns.age"),
}


def test_the_digest_is_of_the_coding(tmp_path, codebook):
    for change in SAME.values():
        assert change(CODEBOOK) != CODEBOOK
        assert book(tmp_path, change(CODEBOOK)).digest == codebook.digest
    digests = {book(tmp_path, change(CODEBOOK)).digest for change in OTHER.values()}
    assert len(digests | {codebook.digest}) == len(OTHER) + 1


def changed(old, new):
    assert CODEBOOK.count(old) >= 1
    return CODEBOOK.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = [", "is not TOML"),
        ("", r"expected a table \[label\]"),
        ("[label]\ncolumn = 3\n[columns]", r'\[label\]: expected column = "NAME", found 3'),
        ('[label]\ncolumn = "y"\nclasses = ["a", "b"]', r"expected a table \[columns\], found nothing"),
        ('[columns]\n[label]\ncolumn = "y"\nclasses = ["a", "b"]', r"expected a table \[columns.NAME\]"),
        (changed("bias", "bais"), r"unknown key 'bais'.*did you mean bias\?"),
        (changed("bias = true", "bias = 1"), "bias = true or false, found 1"),
        (changed('["", "NA"]', '""'), "expected missing-words"),
        (changed("[18, 100]", "[100, 18]"), r"\[columns.age\]: expected range = .* low < high, found \[100, 18\]"),
        (changed("[18, 100]", "[18, 18]"), "low < high"),
        (changed("[18, 100]", "[18, inf]"), "low < high"),
        (changed("[18, 100]", "[-1e308, 1e308]"), "low < high"),
        (changed("[18, 100]", "[nan, 1]"), "low < high"),
        (changed("[18, 100]", f"[0, 1{'0' * 400}]"), "low < high"),
        (changed("[18, 100]", "[true, 2]"), "low < high"),
        (changed("[18, 100]", "18"), "low < high"),
        (changed("[-1, 1]", "[-2, 2]"), r"\[columns.glucose\]: expected scale = \[0, 1\] or \[-1, 1\]"),
        (changed('"column"', '"colunm"'), '\\[columns.glucose\\]: expected missing = "drop" or "column", found'),
        (changed('missing = "drop"', 'missing = "column"'), '\\[label\\]: expected missing = "drop", found'),
        (changed('["no", "yes"]', '["no"]'), "expected 2 to 1000 classes"),
        (changed('["no", "yes"]', "[0, 1]"), "words in quotes"),
        (changed('["f", "m"]', '["f", "f"]'), "different words"),
        (changed('["f", "m"]', '["f", " m"]'), "different words"),
        (changed('["f", "m"]', "[]"), "different words"),
        (changed('["f", "m"]', '["f", "NA"]'), "expected no value among missing-words, found 'NA' of column sex"),
        (changed("[columns.sex]", "[columns.readmitted]"), r"found \[columns.readmitted\]"),
        (changed("[columns.sex]", '[columns."a\\nb"]'), "strange name"),
        (changed("other = true", "range = [0, 1]"), "either range = .* or categories = .*, found both or neither"),
        (changed("range = [18, 100]", ""), "found both or neither"),
        (changed("other = true", "other = 1"), "other = true or false"),
        (changed("other = true", "scale = [0, 1]"), "unknown key 'scale'"),
        (f"separator = ','\n{CODEBOOK}", "expected separator = .*, found ','"),
        (f"decimal = ['point']\n{CODEBOOK}", 'expected decimal = "point" or "comma"'),
    ],
)
def test_a_codebook_that_cannot_be_meant_is_refused(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        book(tmp_path, text)
    assert str(tmp_path / "codebook.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


# --- wrong tables ----------------------------------------------------------------------------------------------------


def with_cell(column, cell):
    return [cell if name == column else value for name, value in zip(HEADER, GOOD, strict=True)]


@pytest.mark.parametrize(
    ("column", "cell", "says"),
    [
        ("age", "old", "column age: expected a number, found 'old'"),
        ("age", "nan", "expected a number, found 'nan'"),
        ("age", "inf", "expected a number"),
        ("age", "1_000", "expected a number"),
        ("age", "0x10", "expected a number"),
        ("age", "\u0665\u0660", "expected a number"),
        ("glucose", "6,5", r"expected a number \(--decimal comma if it is one\), found '6,5'"),
        ("glucose", "z" * 9999, "found 'z{40}'"),
        ("sex", "F", "column sex: expected one of 2 categories of the codebook"),
        ("sex", "", 'column sex: expected missing = "drop" or "column" in the codebook, or no missing values'),
        ("readmitted", "Yes", "column readmitted: expected 'no' or 'yes', found 'Yes'"),
    ],
)
def test_a_wrong_cell_is_named_by_line_and_column(tmp_path, codebook, column, cell, says):
    """Also behind a record of two lines."""
    path = write(tmp_path / "t.csv", [["a\nb", *GOOD[1:]], GOOD, with_cell(column, cell)])
    with pytest.raises(DataError, match=says) as caught:
        code_table(path, codebook)
    assert str(caught.value).startswith(f"{path}:5: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250 + len(str(path))


def test_a_record_that_is_left_out_must_be_right_all_the_same(tmp_path, codebook):
    bad = with_cell("sex", "x")
    bad[1] = "NA"
    with pytest.raises(DataError, match=":2: column sex"):
        code_table(write(tmp_path / "t.csv", [bad]), codebook)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ":1: expected a column 'readmitted' in the header, found none"),
        (b"age,glucose,ward,sex,readmited\n", r"found none .did you mean readmited\?"),
        (b"age,age,glucose,ward,sex,readmitted\n", "expected a column 'age' in the header, found 2 of them"),
        (b"age,glucose,ward,sex,readmitted\n", "expected records below the header, found none .*0 with"),
        (b"age,glucose,ward,sex,readmitted\nNA,5,x,f,yes\n", "expected records below the header, found none .*1 with"),
        (b"age,glucose,ward,sex,readmitted\n1,2,3\n", ":2: expected 5 cells as in the header, found 3"),
        (b'age,glucose,ward,sex,readmitted\n1,"2" x,3,f,no\n', ":2: expected cells separated as declared, found"),
        (b'age,glucose,ward,sex,readmitted\n1,2,"3,f,no\n', ":2: expected cells .* unexpected end of data"),
        (b"age,glucose,ward,sex,readmitted\n1,2,caf\xe9,f,no\n", ":2: expected UTF-8"),
        ("age,glucose,ward,sex,readmitted\n1,2,x,f,no\n".encode("utf-16"), ":1: expected UTF-8"),
        (b"age,glucose,ward,sex,readmitted\r1,2,x,f,no\r", ":1: expected cells"),
    ],
)
def test_what_is_not_such_a_table_is_refused(tmp_path, codebook, content, says):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        code_table(tmp_path / "t.csv", codebook)
    assert str(caught.value).startswith(str(tmp_path / "t.csv"))
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path, codebook):
    with pytest.raises(DataError, match="no such file"):
        code_table(tmp_path / "none.csv", codebook)
    with pytest.raises(ConfigError, match="cannot read the codebook"):
        read_codebook(tmp_path / "none.toml")


# --- the command -----------------------------------------------------------------------------------------------------


def command(capsys, *words):
    code = main(["data", "table", *map(str, words)])
    return code, *capsys.readouterr()


def shards_of(pattern, **options):
    settings_ = {"samples": None, "normalize": True, "test_fraction": 0.0, "seed": 1, "loss": "logistic"} | options
    return parse_source(f"shards:{pattern}", **settings_)


def test_the_command_writes_what_a_run_reads(tmp_path, codebook, capsys):
    path, out = write(tmp_path / "t.csv", [GOOD, with_cell("age", "NA")]), tmp_path / "deep" / "part-0.npz"
    code, said, wrong = command(capsys, path, "--codebook", tmp_path / "codebook.toml", "--out", out)
    assert (code, wrong) == (0, "")
    assert said.splitlines() == [
        f"1 rows of 10 columns: {out}",
        "left out for missing values: 1 rows",
        f"which rows were left out, and why, for you alone: {out.with_name('part-0.left-out.csv')}",
        "not in the codebook, left out: id",
        f"codebook {codebook.digest}: all parties must see the same",
    ]
    shard = shards_of(f"{tmp_path}/deep/part-{{rank}}.npz").load(None, 0, 1)
    coded = code_table(path, codebook)
    assert np.array_equal(shard.rows.matrix, coded.rows.matrix)  # a second scaling moves nothing
    assert shard.labels.tolist() == [1.0]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(os.listdir(out.parent)) == ["part-0.left-out.csv", "part-0.npz"]


def test_without_a_table_it_says_what_the_codebook_gives(tmp_path, codebook, capsys):
    code, said, _ = command(capsys, "--codebook", tmp_path / "codebook.toml")
    assert code == 0
    assert said.splitlines() == [
        f"10 columns: {', '.join(FEATURES)}",
        f"codebook {codebook.digest}: all parties must see the same",
    ]


def test_a_table_without_labels_is_for_predictions_alone(tmp_path, codebook, capsys):
    header, record = HEADER[:-1], GOOD[:-1]
    path, out = write(tmp_path / "t.csv", [record], header), tmp_path / "part-0.npz"
    flags = [path, "--codebook", tmp_path / "codebook.toml", "--out", out]
    assert command(capsys, *flags)[0] == 2
    assert not out.exists()
    assert command(capsys, *flags, "--unlabelled")[0] == 0
    with np.load(out) as found:
        assert np.array_equal(found["X"], code_table(write(tmp_path / "u.csv", [GOOD]), codebook).rows.matrix)
    with pytest.raises(DataError, match="expected finite labels, found another in row 0"):
        shards_of(f"{tmp_path}/part-{{rank}}.npz").load(None, 0, 1)


def test_flags_win_over_the_codebook(tmp_path, capsys):
    book(tmp_path, f"separator = 'tab'\n{CODEBOOK}")
    path = write(tmp_path / "t.csv", [with_cell("glucose", "6,5")], delimiter=";")
    flags = [path, "--codebook", tmp_path / "codebook.toml", "--out", tmp_path / "a.npz"]
    code, _, wrong = command(capsys, *flags)
    assert code == 2
    assert "expected a column 'readmitted'" in wrong
    assert command(capsys, *flags, "--separator", "semicolon", "--decimal", "comma")[0] == 0
    with np.load(tmp_path / "a.npz") as found:
        assert found["X"][0, FEATURES.index("glucose")] < 0.0  # 6.5, below the middle of [2, 12]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("t.csv",), "--codebook"),
        (("t.csv", "--codebook", "c.toml"), "expected TABLE and --out FILE.npz"),
        (("--codebook", "c.toml", "--out", "a.npz"), "expected TABLE and --out FILE.npz"),
        (("t.csv", "--codebook", "c.toml", "--out", "a.svm"), "expected TABLE and --out FILE.npz"),
        (("t.csv", "--codebook", "c.toml", "--out", "a.npz"), "cannot read the codebook c.toml"),
        (("t.csv", "--codebook", "c.toml", "--out", "a.npz", "--separator", ";"), "--separator"),
        (("t.csv", "--codebok", "c.toml", "--codebook", "c.toml"), "did you mean --codebook?"),
    ],
)
def test_wrong_words_end_with_one_line(words, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, printed, wrong = command(capsys, *words)
    assert (code, printed) == (2, "")
    assert wrong.startswith("dpmpi: ")
    assert says in wrong
    assert wrong.count("\n") == 1
    assert os.listdir(Path()) == []


def left_out(path):
    with path.open(newline="") as file:
        return [(int(row["line"]), row["reason"]) for row in csv.DictReader(file)]


def test_rows_that_are_left_out_are_listed_with_the_reason_for_their_owner_alone(tmp_path, capsys):
    (tmp_path / "book.toml").write_text(CODEBOOK + '[person]\ncolumn = "id"\nmost = 2\n')
    bad = ["8", "", "6.5", "surgery", "f", "NA"]
    write(tmp_path / "t.csv", [GOOD, bad, GOOD, GOOD, ["9", "NA", "1", "surgery", "m", "no"]])
    words = ["data", "table", str(tmp_path / "t.csv"), "--codebook", str(tmp_path / "book.toml"), "--out"]
    assert main([*words, str(tmp_path / "0.npz")]) == 0
    expected = [(3, "missing: readmitted, age"), (5, "its person had 2 records before"), (6, "missing: age")]
    beside = tmp_path / "0.left-out.csv"
    assert left_out(beside) == expected
    assert stat.S_IMODE(os.stat(beside).st_mode) == 0o600
    assert f"for you alone: {beside}" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "1.npz"), "--left-out", str(tmp_path / "why.csv")]) == 0
    assert left_out(tmp_path / "why.csv") == expected
    assert not (tmp_path / "1.left-out.csv").exists()
    write(tmp_path / "t.csv", [GOOD])
    assert main([*words, str(tmp_path / "0.npz")]) == 0
    assert not beside.exists()
    assert main([*words, str(tmp_path / "0.npz"), "--left-out", str(tmp_path / "why.txt")]) == 2
    assert "ends with .csv or .parquet" in capsys.readouterr().err


def test_a_parquet_table_with_persons_is_coded_as_its_csv_is_and_lists_what_it_leaves_out(tmp_path):
    parquet = needs.package("pyarrow.parquet", "parquet")
    pyarrow = needs.package("pyarrow", "parquet")
    (tmp_path / "book.toml").write_text(CODEBOOK + '[person]\ncolumn = "id"\nmost = 2\n')
    records = [GOOD, ["8", "", "6.5", "surgery", "f", "yes"], GOOD, GOOD, ["9", "33", "", "eyes", "m", "no"]]
    write(tmp_path / "t.csv", records)
    typed = {name: [row[k] or None for row in records] for k, name in enumerate(HEADER)}
    typed["id"] = [int(value) for value in typed["id"]]
    typed["age"] = [None if value is None else float(value) for value in typed["age"]]
    parquet.write_table(pyarrow.table(typed), tmp_path / "t.parquet")
    for kind in ("csv", "parquet"):
        words = ["data", "table", str(tmp_path / f"t.{kind}"), "--codebook", str(tmp_path / "book.toml")]
        out = ["--out", str(tmp_path / f"{kind}.npz"), "--left-out", str(tmp_path / f"why.{kind}")]
        assert main([*words, *out]) == 0
    one, other = (np.load(tmp_path / f"{kind}.npz") for kind in ("csv", "parquet"))
    for name in ("X", "y", "person", "most"):
        assert np.array_equal(one[name], other[name]), name
    listed = parquet.read_table(tmp_path / "why.parquet").to_pylist()
    assert [(row["line"], row["reason"]) for row in listed] == left_out(tmp_path / "why.csv")
    assert len(listed) == 2
    assert stat.S_IMODE(os.stat(tmp_path / "why.parquet").st_mode) == 0o600
