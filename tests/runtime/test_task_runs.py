"""Runs whose labels are classes, numbers and counts: who declares them, what is written, what is refused."""

import json

import numpy as np
import pytest

from dpmpi.commands.dispatch import main as command
from dpmpi.problem.task import Task
from dpmpi.run import main
from dpmpi.runtime.flags import parse

COMPLETE = ("--graph", "complete")


def run(out, *flags, code=0):
    assert main(["--loopback", "3", "--quiet", "--out", str(out), *map(str, flags)]) == code
    return None if code else json.loads((out / "summary.json").read_text())


def model(out):
    return np.load(out / "model.npz")["x"]


def write_text(path, X, y):
    lines = [
        f"{label!r} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row)) for row, label in zip(X, y, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


def classes(records=300, features=5, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(records, features)) / 4.0
    return X.tolist(), (X @ draw.normal(size=(features, 3))).argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("flags", "loss", "task"),
    [
        (("--data", "synthetic:samples=300,features=5,task=multiclass,classes=4"), "softmax", "multiclass"),
        (("--data", "synthetic:samples=300,features=5", "--loss", "softmax"), "softmax", "multiclass"),
        (("--data", "synthetic:samples=300,features=5,task=counts"), "poisson", "counts"),
        (("--data", "synthetic:samples=300,features=5", "--task", "regression"), "squared", "regression"),
        (("--data", "synthetic:samples=300,features=5", "--loss", "huber:0.25"), "huber:0.25", "regression"),
        (("--data", "synthetic:samples=300,features=5"), "hinge", "binary"),
    ],
)
@pytest.mark.parametrize("noise", [(), ("--epsilon", 5)], ids=["free", "noisy"])
def test_a_run_writes_what_it_found_and_can_be_repeated_from_it(tmp_path, flags, loss, task, noise):
    settings = (*flags, *noise, "--insecure-noise-seed", 1)
    summary = run(tmp_path / "a", *settings)
    config = parse(["--config", str(tmp_path / "a" / "config.toml")])
    assert (config.loss, config.task) == (loss, task)
    assert (summary["accuracy"] is not None) == (task in ("binary", "multiclass"))
    run(tmp_path / "b", "--config", tmp_path / "a" / "config.toml")
    np.testing.assert_array_equal(model(tmp_path / "a"), model(tmp_path / "b"))
    assert command(["verify", str(tmp_path / "a")]) == 0


def test_classes_of_a_file_are_named_after_its_labels_and_dealt_by_them(tmp_path):
    X, y = classes()
    write_text(tmp_path / "all.svm", X, [5 + 2 * label for label in y])
    flags = ("--data", f"libsvm:{tmp_path / 'all.svm'}", "--task", "multiclass")
    summary = run(tmp_path / "run", *flags, "--deal", "dirichlet:0.5", *COMPLETE)
    assert parse(["--config", str(tmp_path / "run" / "config.toml")]).classes == "5,7,9"
    assert summary["accuracy"] > 0.8
    assert summary["dimension"] == 18
    assert command(["plan", "--ranks", "3", *flags, "--epsilon", "1"]) == 0


def test_shards_that_were_cut_from_public_data_say_what_their_labels_are(tmp_path):
    X, y = classes()
    write_text(tmp_path / "all.svm", X, y)
    out = str(tmp_path / "{rank}.npz")
    words = ["data", "shard", f"libsvm:{tmp_path / 'all.svm'}", "--task", "multiclass", "--ranks", "3", "--out", out]
    assert command(words) == 0
    run(tmp_path / "run", "--data", f"shards:{out}")
    assert parse(["--config", str(tmp_path / "run" / "config.toml")]).classes == "0,1,2"
    for flags in (("--classes", "0,1"), ("--task", "binary"), ("--label-range", "0:2")):
        run(tmp_path / "no", "--data", f"shards:{out}", *flags, code=2)


def test_private_labels_are_declared_or_refused(tmp_path, capsys):
    X, y = classes()
    for rank in range(3):
        part = slice(100 * rank, 100 * rank + 100)
        np.savez(tmp_path / f"{rank}.npz", X=np.array(X[part]), y=np.array(y[part], float))
    data = ("--data", f"shards:{tmp_path}/{{rank}}.npz")
    run(tmp_path / "run", *data, "--classes", "low,middle,high")
    assert parse(["--config", str(tmp_path / "run" / "config.toml")]).task == "multiclass"
    run(tmp_path / "numbers", *data, "--label-range", "0:4")
    run(tmp_path / "counts", *data, "--task", "counts", "--label-range", "0:2")
    capsys.readouterr()
    for flags, expected in (
        (("--task", "multiclass"), "expected --classes a,b,... for --task multiclass"),
        (("--loss", "squared"), "expected --label-range low:high for --task regression"),
        (("--task", "counts"), "expected --label-range low:high for --task counts"),
        ((), "expected class labels -1/+1 or 0/1, found others"),
        (("--loss", "logistic"), "use --task multiclass --loss softmax --classes a,b,c for more"),
        (("--loss", "logistic", "--classes", "a,b,c"), "found 3: use --task multiclass --loss softmax"),
        (("--classes", "low,high"), "expected labels of the classes of --classes low,high, found others"),
    ):
        run(tmp_path / "no", *data, *flags, code=2)
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--task", "binary", "--loss", "softmax"),
            "expected a loss for --task binary (hinge, logistic), found softmax",
        ),
        (("--task", "counts", "--loss", "huber"), "expected a loss for --task counts (poisson), found huber"),
        (("--class-weights", "1=2,7=1"), "expected --class-weights of -1, 1, found '7'"),
        (("--task", "regression", "--class-weights", "a=2"), "for classes only, found regression"),
        (("--loss", "sofmax"), "did you mean softmax"),
        (("--data", "mean", "--classes", "a,b"), "expected no --classes for points without labels"),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(tmp_path, capsys, flags, message):
    run(tmp_path / "no", *flags, code=2)
    assert message in capsys.readouterr().err


def test_weights_move_the_model_towards_the_class_that_counts_more(tmp_path):
    flags = ("--data", "synthetic:samples=900,features=4,flip=0.3,task=svm", "--loss", "logistic", "--rounds", 100)
    intercepts = []
    for k, weights in enumerate((("--class-weights=-1=4",), (), ("--class-weights=1=4",))):
        run(tmp_path / f"{k}", *flags, *weights)
        intercepts.append(model(tmp_path / f"{k}")[-1])
    assert intercepts == sorted(intercepts)
    assert intercepts[2] - intercepts[0] > 1.0


def test_a_target_in_the_hundreds_is_learned_in_its_own_units(tmp_path):
    """Squared and Huber, without noise, are what other solvers find on the scaled target."""
    from scipy.optimize import minimize  # noqa: PLC0415
    from sklearn.datasets import load_diabetes  # noqa: PLC0415
    from sklearn.linear_model import Ridge  # noqa: PLC0415

    X, y = load_diabetes(return_X_y=True)
    X = 2.0 * X
    write_text(tmp_path / "d.svm", X.tolist(), y.tolist())
    l2, task = 0.02, Task("regression", (), 25.0, 346.0)
    flags = ("--data", f"libsvm:{tmp_path / 'd.svm'}", "--test-fraction", 0, "--penalty", f"l2:{l2}", "--lipschitz", 9)
    exact = ("--algorithm", "admm", "--average", "last", "--tolerance", 1e-10, "--rounds", 200)
    more = (*COMPLETE, "--intercept", "none", "--evaluate", 0, *exact)
    run(tmp_path / "squared", *flags, *more, "--task", "regression")
    u = task.scaled(y)
    ridge = Ridge(alpha=l2 * len(y), fit_intercept=False).fit(X, u).coef_
    np.testing.assert_allclose(model(tmp_path / "squared"), ridge, atol=1e-6)
    run(tmp_path / "huber", *flags, *more, "--loss", "huber:0.3")

    def value(w):
        r = X @ w - u
        clipped = np.clip(r, -0.3, 0.3)
        return np.mean(clipped * (r - 0.5 * clipped)) + l2 / 2 * w @ w, X.T @ clipped / len(u) + l2 * w

    best = minimize(value, np.zeros(10), jac=True, method="BFGS", options={"gtol": 1e-12}).x
    np.testing.assert_allclose(model(tmp_path / "huber"), best, atol=1e-6)


def test_a_regression_that_noise_drowns_is_announced(tmp_path, capsys):
    words = ["plan", "--ranks", "4", "--samples-per-rank", "90", "--dimension", "10", "--task", "regression"]
    for epsilon, word in ((5, "a good model"), (1, "a weak model"), (0.1, "mostly noise")):
        assert command([*words, "--epsilon", str(epsilon), "--allow-large-delta"]) == 0
        assert f"expect {word}" in capsys.readouterr().out
