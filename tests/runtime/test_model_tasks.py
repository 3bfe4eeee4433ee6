"""Models of all kinds of tasks, end to end: coded tables, a run, its metrics, predictions for a raw table."""

import csv
import json

import numpy as np
import onnxruntime
import pytest
from sklearn import metrics as oracle

import dpmpi
from dpmpi.commands.dispatch import main as command
from dpmpi.data.shards import read_shard
from dpmpi.run import main

RANKS, ROWS = 3, 150
COLUMNS = '[columns.size]\nrange = [0, 10]\nscale = [-1, 1]\n[columns.kind]\ncategories = ["a", "b"]\nother = true\n'
LABELS = {
    "multiclass": 'classes = ["setosa", "virginica", "versicolor"]',
    "regression": "range = [100, 500]",
    "counts": "most = 30",
}
NAMES = ("setosa", "virginica", "versicolor")
LOSSES = {"multiclass": "softmax", "regression": "squared", "counts": "poisson"}


def table(path, kind, seed):
    """Write a table, and return its columns."""
    draw = np.random.default_rng(seed)
    size, other = np.round(draw.uniform(0, 10, ROWS), 2), draw.choice(["a", "b", "c"], ROWS)
    level = size + 3.0 * (other == "b")
    if kind == "multiclass":
        label = [NAMES[0 if v < 4 else 1 if v < 8 else 2] for v in level]
    elif kind == "regression":
        label = np.round(100 + 30 * level + draw.normal(0, 5, ROWS), 1).tolist()
    else:
        label = np.minimum(draw.poisson(np.exp(0.2 * level)), 30).tolist()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "kind", "label", "size"])
        writer.writerows(zip([f"r{k}" for k in range(ROWS)], other, label, size, strict=True))
    return {"size": size, "kind": other, "label": label}


@pytest.fixture(scope="module", params=LABELS)
def site(request, tmp_path_factory):
    """A folder with a model of three ranks, trained without noise on coded tables with held-out rows."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    (folder / "book.toml").write_text(f'[label]\ncolumn = "label"\n{LABELS[kind]}\n{COLUMNS}')
    for rank in range(RANKS):
        table(folder / "old.csv", kind, rank)
        words = [folder / "old.csv", "--codebook", folder / "book.toml", "--out", folder / f"{rank}.npz"]
        assert command(["data", "table", *map(str, words)]) == 0
    words = ["--loopback", RANKS, "--data", f"shards:{folder}/{{rank}}.npz", "--loss", LOSSES[kind], "--quiet"]
    words += ["--evaluate", 300, "--test-fraction", 0.2, "--rounds", 300, "--algorithm", "dda", "--gamma", 0.4]
    assert main([*map(str, words), "--lipschitz", "5", "--out", str(folder / "run")]) == 0
    return kind, folder


def test_the_model_knows_its_task(site):
    kind, folder = site
    model = dpmpi.Model.load(folder / "run")
    assert (model.task.kind, model.loss) == (kind, LOSSES[kind])
    assert model.features == ("size", "kind=a", "kind=b", "kind is another")
    if kind == "multiclass":
        assert model.task.classes == NAMES
        assert set(model.intercept) == set(NAMES)
        assert len(model.coef) == 12
    if kind == "regression":
        assert (model.task.low, model.task.high) == (100.0, 500.0)


def test_predictions_of_a_raw_table_are_good_and_scored_as_scikit_learn_does(site, capsys):
    kind, folder = site
    new = table(folder / "new.csv", kind, 9)
    words = [folder / "run", folder / "new.csv", "--id", "id", "--out", folder / "out.csv"]
    assert command(["predict", *map(str, words)]) == 0
    said = capsys.readouterr().out
    with (folder / "out.csv").open() as file:
        told = list(csv.DictReader(file))
    assert [row["id"] for row in told] == [f"r{k}" for k in range(ROWS)]
    if kind == "multiclass":
        right = oracle.accuracy_score(new["label"], [row["prediction"] for row in told])
        assert right > 0.8
        assert f"accuracy {right:.4g}," in said
        p = np.array([[float(row[f"probability of {name}"]) for name in NAMES] for row in told])
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        codes = [NAMES.index(label) for label in new["label"]]
        assert f"log loss {oracle.log_loss(codes, p):.4g}," in said
    else:
        guess = np.array([float(row["prediction"]) for row in told])
        assert f"mae {oracle.mean_absolute_error(new['label'], guess):.4g}," in said
        assert oracle.r2_score(new["label"], guess) > (0.8 if kind == "regression" else 0.2)
        if kind == "counts":
            assert f"deviance {oracle.mean_poisson_deviance(new['label'], guess):.4g}" in said


def test_scikit_learn_and_onnx_predict_the_same(site):
    kind, folder = site
    model = dpmpi.Model.load(folder / "run")
    X = read_shard(folder / "0.npz").rows.matrix
    pipeline = model.to_sklearn()
    session = onnxruntime.InferenceSession(model.to_onnx(), providers=["CPUExecutionProvider"])
    label = session.run(["label"], {"rows": X})[0]
    if kind == "multiclass":
        assert model.predict(X).tolist() == pipeline.predict(X).tolist() == label.tolist()
        np.testing.assert_allclose(model.predict_proba(X), pipeline.predict_proba(X), rtol=0, atol=1e-12)
    else:
        np.testing.assert_allclose(model.predict(X), pipeline.predict(X), rtol=1e-12)
        np.testing.assert_allclose(model.predict(X), label, rtol=1e-12)


def test_the_run_scored_its_held_out_rows(site):
    kind, folder = site
    found = json.loads((folder / "run" / "summary.json").read_text())["metrics"]
    assert found["rows"] == RANKS * ROWS // 5
    if kind == "multiclass":
        assert found["mean"]["accuracy"] > max(0.8, found["mean"]["majority"])
        assert found["mean"]["auc"] > 0.9
        assert found["mean"]["log_loss"] < np.log(3)
    else:
        assert found["mean"]["r2"] > (0.8 if kind == "regression" else 0.2)
        assert found["mean"]["rmse"] < (40 if kind == "regression" else 6)
    assert found["ranks_worst"].keys() == found["ranks_mean"].keys()


def test_the_table_of_coefficients(site, capsys):
    kind, folder = site
    assert command(["show", str(folder / "run")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{kind}, ")
    assert "0 to 10" in out
    assert "none was added" in out
    assert out.count("(intercept)") == (3 if kind == "multiclass" else 1)
