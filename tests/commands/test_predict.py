"""Predictions for raw tables, every record answered, against scikit-learn, ONNX and a slow coding of single cells."""

import csv
import stat

import numpy as np
import onnxruntime
import pyarrow
import pytest
from pyarrow import parquet

import dpmpi
from dpmpi.commands.dispatch import main as command
from dpmpi.run import main

BOOK = """
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
[columns.sex]
categories = ["f", "m"]
other = true
missing = "column"
"""
RANKS, ROWS = 2, 2000
FEATURES = ["age", "glucose", "glucose is missing", "ward=medicine", "ward=surgery", "sex=f", "sex=m"]
FEATURES += ["sex is another", "sex is missing"]


def people(seed, n, problems=False):
    """Records by column; with problems some cells are missing, unknown or no numbers."""
    draw = np.random.default_rng(seed)
    age, glucose = draw.integers(15, 105, n), np.round(draw.uniform(1, 13, n), 2)
    ill = age / 40 + glucose / 4 + draw.standard_normal(n) > 3.2
    found = {
        "patient": [f"P{seed}-{k:04d}" for k in range(n)],
        "age": [str(a) for a in age],
        "glucose": [repr(float(g)) for g in glucose],
        "ward": draw.choice(["medicine", "surgery"], n).tolist(),
        "sex": draw.choice(["f", "m"], n).tolist(),
        "readmitted": np.where(ill, "yes", "no").tolist(),
    }
    if problems:
        for column, cells in {"age": ["NA", "old", ""], "glucose": ["", "NA", "high"], "ward": ["cellar", ""]}.items():
            for k in draw.choice(n, n // 12, replace=False):
                found[column][k] = cells[k % len(cells)]
        for k in draw.choice(n, n // 12, replace=False):
            found["sex"][k] = ["x", "NA"][k % 2]
    return found


def write_csv(path, columns, order, separator=",", decimal="."):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\r\n")
        writer.writerow(order)
        for row in zip(*(columns[name] for name in order), strict=True):
            cells = [
                cell.replace(".", decimal) if name == "glucose" else cell for name, cell in zip(order, row, strict=True)
            ]
            writer.writerow(cells)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with a model that two hospitals have trained, and a table of new patients with problems."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "book.toml").write_text(BOOK)
    for rank in range(RANKS):
        write_csv(folder / "old.csv", people(rank, 400), ["readmitted", "age", "glucose", "ward", "sex"])
        words = ["--codebook", folder / "book.toml", "--out", folder / f"{rank}.npz"]
        assert command(["data", "table", str(folder / "old.csv"), *map(str, words)]) == 0
    words = ["--loopback", RANKS, "--data", f"shards:{folder}/{{rank}}.npz", "--loss", "logistic", "--epsilon", 4]
    assert main([*map(str, words), "--delta", "1e-3", "--out", str(folder / "run"), "--quiet"]) == 0
    order = ["sex", "remark", "glucose", "patient", "ward", "age"]
    new = people(9, ROWS, problems=True)
    write_csv(folder / "new.csv", new | {"remark": ["a; b"] * ROWS}, order, ";", ",")
    return folder, new


def expected(record):
    """A record as its coded features, by hand; None if it cannot be coded."""
    if not record["age"].isdecimal() or record["ward"] not in ("medicine", "surgery") or record["glucose"] == "high":
        return None
    row = [(min(max(float(record["age"]), 18), 100) - 18) / 82]
    missing = record["glucose"] in ("", "NA")
    row += [0.0, 1.0] if missing else [(min(max(float(record["glucose"]), 2), 12) - 2) / 5 - 1, 0.0]
    row += [float(record["ward"] == ward) for ward in ("medicine", "surgery")]
    sexes = {"f": 0, "m": 1, "x": 2, "NA": 3}
    return row + [float(k == sexes[record["sex"]]) for k in range(4)]


def answers(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predict(folder, *words):
    return command(["predict", str(folder / "run"), *map(str, words)])


def test_every_record_of_a_raw_table_is_answered(site, capsys):
    folder, new = site
    flags = ["--codebook", folder / "book.toml", "--id", "patient", "--decimal", "comma", "--out", folder / "out.csv"]
    assert predict(folder, folder / "new.csv", *flags) == 0
    told = answers(folder / "out.csv")
    assert [row["patient"] for row in told] == new["patient"]
    assert list(told[0]) == ["patient", "prediction", "probability of no", "probability of yes", "problem"]
    assert stat.S_IMODE((folder / "out.csv").stat().st_mode) == 0o600
    records = [dict(zip(new, row, strict=True)) for row in zip(*new.values(), strict=True)]
    coded = [expected(record) for record in records]
    fine = [k for k, row in enumerate(coded) if row is not None]
    assert ROWS // 2 < len(fine) < ROWS - 100
    assert f"{len(fine):,} of 2,000 records predicted, the others say why" in capsys.readouterr().out
    for k in sorted(set(range(ROWS)) - set(fine)):
        assert told[k]["prediction"] == told[k]["probability of yes"] == ""
        assert "expected" in told[k]["problem"]
        assert told[k]["problem"].startswith("column ")
    model, X = dpmpi.Model.load(folder / "run"), np.array([coded[k] for k in fine])
    assert list(model.features) == FEATURES
    p = np.array([[float(told[k][f"probability of {name}"]) for name in ("no", "yes")] for k in fine])
    pipeline = model.to_sklearn()
    np.testing.assert_allclose(p, pipeline.predict_proba(X), rtol=0, atol=1e-12)
    assert [told[k]["prediction"] for k in fine] == pipeline.predict(X).tolist()
    assert all(told[k]["problem"] == "" for k in fine)
    session = onnxruntime.InferenceSession(model.to_onnx(), providers=["CPUExecutionProvider"])
    label, probability = session.run(["label", "probabilities"], {"rows": X})
    np.testing.assert_allclose(p, probability, rtol=0, atol=1e-6)
    assert label.tolist() == pipeline.predict(X).tolist()


def test_the_codebook_may_come_from_the_model_and_labels_are_scored(site, capsys):
    folder, _ = site
    write_csv(folder / "labelled.csv", people(5, 300), ["patient", "readmitted", "age", "glucose", "ward", "sex"])
    assert predict(folder, folder / "labelled.csv", "--id", "patient", "--out", folder / "labelled-out.csv") == 0
    said = capsys.readouterr().out
    assert "of 300 with a label: accuracy 0." in said
    told = answers(folder / "labelled-out.csv")
    right = np.mean([row["prediction"] == label for row, label in zip(told, people(5, 300)["readmitted"], strict=True)])
    assert f"accuracy {right:.4g}, majority" in said


def test_parquet_is_read_and_written(site):
    folder, _ = site
    new = people(6, 200, problems=True)
    write_csv(folder / "same.csv", new, list(new))
    assert predict(folder, folder / "same.csv", "--id", "patient", "--out", folder / "same-out.csv") == 0
    typed = {name: cells for name, cells in new.items() if name != "readmitted"}
    typed["age"] = [None if a in ("NA", "") else 0.5 if a == "old" else float(a) for a in new["age"]]
    typed["glucose"] = [None if g in ("NA", "") else -1.0 if g == "high" else float(g) for g in new["glucose"]]
    parquet.write_table(pyarrow.table(typed), folder / "same.parquet")
    out = folder / "same-out.parquet"
    assert predict(folder, folder / "same.parquet", "--id", "patient", "--out", out) == 0
    one, other = answers(folder / "same-out.csv"), parquet.read_table(out).to_pylist()
    assert [row["patient"] for row in other] == new["patient"]
    compared = 0
    for csv_row, row, age, glucose in zip(one, other, new["age"], new["glucose"], strict=True):
        if age != "old" and glucose != "high":
            compared += 1
            assert (row["prediction"] or "") == csv_row["prediction"]
            assert ("" if row["problem"] is None else row["problem"]) == csv_row["problem"]
            if row["prediction"]:
                assert row["probability of yes"] == pytest.approx(float(csv_row["probability of yes"]), rel=1e-12)
    assert compared > 150
    coded = ["data", "table", str(folder / "same.parquet"), "--codebook", str(folder / "book.toml"), "--unlabelled"]
    assert command([*coded, "--out", str(folder / "never.npz")]) == 2  # an unknown ward stops the coding of a shard


def test_a_shard_is_answered_row_by_row(site, capsys):
    folder, _ = site
    assert predict(folder, folder / "0.npz") == 0
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["row"] for row in rows] == [str(k) for k in range(1, len(rows) + 1)]
    assert "with a label: accuracy" in err
    with np.load(folder / "0.npz") as shard:
        np.savez(folder / "unlabelled.npz", X=shard["X"], y=np.full(len(shard["y"]), np.nan))
    assert predict(folder, folder / "unlabelled.npz") == 0
    out, err = capsys.readouterr()
    assert [row["prediction"] for row in csv.DictReader(out.splitlines())] == [row["prediction"] for row in rows]
    assert "with a label" not in err


def test_lines_with_too_few_cells_are_answered_too(site, capsys):
    folder, _ = site
    (folder / "ragged.csv").write_text("patient,age,glucose,ward,sex\na,50,5,medicine,f\nb,50,5\n\nc,50,5,surgery,m\n")
    assert predict(folder, folder / "ragged.csv", "--id", "patient") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["patient"] for row in rows] == ["a", "b", "c"]
    assert rows[1]["problem"] == "expected 5 cells as in the header, found 3"


def test_libsvm_text_for_a_model_without_a_codebook(tmp_path, capsys):
    words = ["--loopback", "2", "--data", "synthetic:samples=100,features=4", "--rounds", "5", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    (tmp_path / "new.svm").write_text("+1 1:0.5 3:-0.25\n-1 2:1\n")
    capsys.readouterr()
    assert command(["predict", str(tmp_path / "run"), str(tmp_path / "new.svm")]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    model = dpmpi.Model.load(tmp_path / "run")
    X = np.array([[0.5, 0, -0.25, 0], [0, 1, 0, 0]])
    assert [row["prediction"] for row in rows] == list(map(str, model.predict(X)))
    np.testing.assert_allclose([float(row["score"]) for row in rows], model.decision_function(X), atol=1e-15)
    assert command(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 2
    assert "expected --codebook FILE" in capsys.readouterr().err


def test_what_does_not_fit_is_refused_in_one_line(site, capsys):
    folder, _ = site
    (folder / "other.toml").write_text(BOOK.replace("100", "90"))
    cases = {
        "expected the codebook of the model": [folder / "new.csv", "--codebook", folder / "other.toml"],
        "expected a column 'patients' in the header, found none": [folder / "new.csv", "--id", "patients"],
        "expected a table for --id": [folder / "0.npz", "--id", "patient"],
        "ends with .csv or .parquet": [folder / "0.npz", "--out", folder / "out.txt"],
        "no such file": [folder / "nothing.csv"],
        "expected a table as Parquet": [folder / "broken.parquet"],
    }
    (folder / "broken.parquet").write_bytes(b"PAR1 no table PAR1")
    for message, words in cases.items():
        capsys.readouterr()
        assert predict(folder, *words) == 2, message
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_show_prints_the_table_and_the_promise(site, capsys):
    folder, _ = site
    assert command(["show", str(folder / "run"), "--csv", str(folder / "table.csv")]) == 0
    out, model = capsys.readouterr().out, dpmpi.Model.load(folder / "run")
    assert out.startswith("binary, classes no, yes; loss logistic, 9 features")
    lines = [line.split("  ")[0] for line in out.splitlines()[3:12]]
    assert lines == sorted(FEATURES, key=lambda name: -abs(model.coef[name]))
    assert "(intercept)" in out
    assert "18 to 100" in out
    assert f"epsilon {model.privacy.epsilon:.4g} at delta 0.001, certified for replacing one record" in out
    assert (folder / "table.csv").read_text() == model.to_csv()
    assert command(["show", str(folder / "run"), "--most", "3"]) == 0
    assert "6 smaller ones are not shown" in capsys.readouterr().out
    assert command(["show", str(folder / "run"), "--most", "-1"]) == 2


def test_nothing_that_is_read_is_written_over(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    for words in (("predict", "nowhere.npz", table, "--out", table), ("show", table, "--csv", table)):
        assert command([str(word) for word in words]) == 2
        assert capsys.readouterr().err.startswith("dpmpi: expected another file to write than those that are read")
    assert table.read_text() == "a,b\n1,2\n"
