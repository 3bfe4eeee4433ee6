"""Metrics of whole runs against scikit-learn on the held-out rows of all ranks, summed openly and hidden."""

import json

import numpy as np
import pytest
from sklearn import metrics as oracle

import dpmpi
from dpmpi.data import parse_source
from dpmpi.run import main

DATA = "synthetic:samples=900,features=6,task=logistic"
RANKS = 3


def trained(out, *flags, loss="logistic", data=DATA):
    words = ["--loopback", RANKS, "--data", data, "--rounds", 20, "--test-fraction", 0.3, "--loss", loss, "--out", out]
    assert main([*map(str, (*words, *flags)), "--quiet"]) == 0
    return dpmpi.Model.load(out), json.loads((out / "summary.json").read_text())


def held_out(loss="logistic", data=DATA):
    given = {"samples": None, "normalize": True, "test_fraction": 0.3, "seed": 0, "loss": loss}
    source = parse_source(data, **given)
    shards = [source.load(source.survey(), rank, RANKS) for rank in range(RANKS)]
    return np.concatenate([shard.test_rows.matrix for shard in shards]), np.concatenate(
        [shard.test_labels for shard in shards]
    )


def check(found, scores, labels):
    guess, p = np.where(scores > 0, 1, -1), 1.0 / (1.0 + np.exp(-scores))
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(labels, guess))
    assert found["balanced_accuracy"] == pytest.approx(oracle.balanced_accuracy_score(labels, guess))
    assert found["f1"] == pytest.approx(oracle.f1_score(labels, guess))
    assert found["log_loss"] == pytest.approx(oracle.log_loss(labels, p), rel=1e-9)
    assert abs(found["auc"] - oracle.roc_auc_score(labels, scores)) <= found["auc_error"] + 1e-12


def test_of_the_mean_model_the_ranks_and_the_optimum(tmp_path):
    seeded = ("--noise", 0.05, "--insecure-noise-seed", 2)  # the optimum is that of the training rows: luck can beat it
    model, summary = trained(tmp_path / "run", *seeded, "--delta", 1e-3, "--graph", "path", "--reference")
    X, labels = held_out()
    found = summary["metrics"]
    assert found["rows"] == len(labels)
    check(found["mean"], model.decision_function(X), labels)
    assert found["mean"]["accuracy"] == pytest.approx(summary["accuracy"])
    own = [model.of_rank(rank).decision_function(X) for rank in range(RANKS)]
    accuracies = [oracle.accuracy_score(labels, np.where(scores > 0, 1, -1)) for scores in own]
    losses = [oracle.log_loss(labels, 1.0 / (1.0 + np.exp(-scores))) for scores in own]
    assert found["ranks_mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert found["ranks_worst"]["accuracy"] == pytest.approx(min(accuracies))
    assert found["ranks_worst"]["log_loss"] == pytest.approx(max(losses))
    assert found["reference"]["log_loss"] < found["mean"]["log_loss"]
    assert "majority" not in found["ranks_mean"]
    assert sum(count for _, _, count in found["reliability"]) == len(labels)


def test_hidden_sums_give_the_same_figures_and_no_ranks(tmp_path, capsys):
    flags = ("--noise", 0.05, "--delta", 1e-3, "--exchange", "shares", "--graph", "complete")
    model, summary = trained(tmp_path / "run", *flags)
    X, labels = held_out()
    check(summary["metrics"]["mean"], model.decision_function(X), labels)
    assert summary["metrics"]["ranks_mean"] is None


def test_a_hinge_and_rows_in_several_goes(tmp_path, monkeypatch):
    monkeypatch.setattr("dpmpi.runtime.quality.MOST_NUMBERS", 1)  # the ranks one by one
    model, summary = trained(tmp_path / "run", loss="hinge")
    X, labels = held_out("hinge")
    found = summary["metrics"]
    assert "log_loss" not in found["mean"]
    assert found["reliability"] is None
    own = [oracle.accuracy_score(labels, model.of_rank(rank).predict(X)) for rank in range(RANKS)]
    assert found["ranks_worst"]["accuracy"] == pytest.approx(min(own))


def test_numbers(tmp_path):
    data = "synthetic:samples=900,features=6,task=regression"
    model, summary = trained(tmp_path / "run", "--algorithm", "dda", "--gamma", 1, loss="squared", data=data)
    X, labels = held_out("squared", data)
    found = summary["metrics"]["mean"]
    assert found["rmse"] == pytest.approx(oracle.root_mean_squared_error(labels, model.predict(X)))
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(labels, model.predict(X)))
    assert found["r2"] == pytest.approx(oracle.r2_score(labels, model.predict(X)))
    assert summary["accuracy"] is None


def test_nothing_is_said_without_held_out_rows_or_scores(tmp_path):
    _, summary = trained(tmp_path / "none", "--test-fraction", 0)
    assert summary["metrics"] is None
    _, summary = trained(tmp_path / "never", "--evaluate", 0)
    assert summary["metrics"] is None
    flags = ("--loss", "mean", "--algorithm", "dgd", "--test-fraction", 0)
    _, summary = trained(tmp_path / "mean", *flags, data="mean:samples=60,dimension=3")
    assert summary["metrics"] is None


def test_the_table_at_the_end_shows_them(tmp_path, capsys):
    words = ["--loopback", "2", "--data", DATA, "--rounds", "5", "--loss", "logistic", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]["mean"]
    assert f"majority {found['majority']:.4g}, balanced accuracy {found['balanced_accuracy']:.4g}, auc" in out
    assert "worst rank" in out
