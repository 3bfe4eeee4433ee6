"""The model file and what it predicts, against scikit-learn and ONNX, for all kinds of tasks."""

import math

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import LinearSVC

import dpmpi
from dpmpi.errors import ConfigError, DataError
from dpmpi.model import Model, PrivacyStatement
from dpmpi.model.model import LINKS
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.rows import Csr, Dense, scale_rows
from dpmpi.problem.task import Task

KINDS = {
    "hinge": (Task("binary", ("healthy", "ill")), LinearSVC),
    "logistic": (Task(), LogisticRegression),
    "softmax": (Task("multiclass", ("red", "green", "blue")), LogisticRegression),
    "softmax of two": (Task("multiclass", ("no", "yes")), LogisticRegression),
    "squared": (Task("regression", (), 25.0, 346.0), Ridge),
    "huber": (Task("regression", (), -3.0, 5.0), HuberRegressor),
    "poisson": (Task("counts", (), 0.0, 20.0), PoissonRegressor),
}


def made(kind, m=5, constant=0.3, seed=0, **more):
    """A model of random numbers."""
    task, _ = KINDS[kind]
    loss, draw = kind.split()[0], np.random.default_rng(seed)
    x = draw.standard_normal((m + bool(constant)) * task.scores)
    names = tuple(f"feature {k}" for k in range(m))
    more = {"loss": loss, "link": LINKS[loss], "names": names, "norm_bound": 1.0} | more
    return Model.of_vector(x, constant, task, **more)


def records(m=5, n=40, seed=1):
    X = np.random.default_rng(seed).standard_normal((n, m))
    X[::3] *= 0.1  # some inside of the norm bound
    X[0] = 0.0
    return X


@pytest.mark.parametrize("constant", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_run(kind, constant):
    model, X = made(kind, constant=constant), records()
    rows = Dense(X.copy())
    scale_rows(rows, 1.0)
    scored = WithConstant(rows, constant) if constant else rows
    expected = np.stack([scored.scores(column.copy()) for column in model.x.reshape(-1, model.task.scores).T], axis=1)
    np.testing.assert_allclose(model.scores(X), expected, atol=1e-14)
    sparse = csr_matrix(X)
    np.testing.assert_allclose(model.scores(sparse), expected, atol=1e-14)
    np.testing.assert_allclose(model.scores(Csr(sparse.indptr, sparse.indices, sparse.data, 5)), expected, atol=1e-14)
    assert np.array_equal(X, records())  # nothing is scaled in place


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "found"), [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")])
def test_what_is_no_number_is_no_class(kind, value, found):
    model, X = made(kind), records()
    X[3, 2] = X[7, 0] = value
    rows = csr_matrix(X)
    asked = [model.predict, model.decision_function, *([model.predict_proba] if model.has_probabilities else [])]
    for ask in asked:
        for given_rows in (X, rows, Dense(X), Csr(rows.indptr, rows.indices, rows.data, 5)):
            with pytest.raises(
                DataError, match=rf"^expected finite numbers, found {found} in row 3 \(counting from 0\): "
            ):
                ask(given_rows)
    assert len(model.predict(np.delete(X, [3, 7], axis=0))) == 38
    assert model.predict(X[:0]).shape == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_scikit_learn_predicts_the_same(kind):
    model, X = made(kind), records()
    pipeline = model.to_sklearn()
    assert type(pipeline[-1]) is KINDS[kind][1]
    for rows in (X, csr_matrix(X)):
        ours, theirs = model.predict(rows), pipeline.predict(rows)
        if model.task.classifies:
            assert ours.tolist() == theirs.tolist()
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    if model.has_probabilities:
        np.testing.assert_allclose(model.predict_proba(X), pipeline.predict_proba(X), rtol=0, atol=1e-12)
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, atol=1e-12)
    if kind in ("hinge", "logistic", "softmax"):
        np.testing.assert_allclose(model.decision_function(X), pipeline.decision_function(X), atol=1e-12)


@pytest.mark.parametrize("bound", [1.0, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_predicts_the_same(kind, bound):
    model, X = made(kind, norm_bound=bound), records()
    session = onnxruntime.InferenceSession(model.to_onnx(), providers=["CPUExecutionProvider"])
    found = dict(zip([out.name for out in session.get_outputs()], session.run(None, {"rows": X}), strict=True))
    np.testing.assert_allclose(found["scores"], model.scores(X), atol=1e-12)
    if model.task.classifies:
        assert found["label"].tolist() == model.predict(X).tolist()
    else:
        np.testing.assert_allclose(found["label"], model.predict(X), rtol=1e-12)
    assert ("probabilities" in found) == model.has_probabilities
    if model.has_probabilities:
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), rtol=0, atol=1e-6)


def test_a_score_of_exactly_0_is_the_negative_class():
    model = Model(np.zeros((3, 1)), np.zeros(1), Task("binary", ("no", "yes")), "logistic", "logistic")
    assert model.predict(np.ones((2, 3))).tolist() == ["no", "no"]
    assert model.to_sklearn().predict(np.ones((2, 3))).tolist() == ["no", "no"]
    np.testing.assert_array_equal(model.predict_proba(np.ones((1, 3))), [[0.5, 0.5]])


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5))
def test_probabilities_neither_overflow_nor_leave_the_interval(scores):
    model = Model(np.ones((1, 1)), np.zeros(1), Task(), "logistic", "logistic")
    found = model.predict_proba(np.array(scores)[:, None])
    assert ((found >= 0.0) & (found <= 1.0)).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)


def test_classes_that_are_whole_numbers_are_predicted_as_such():
    assert made("logistic").classes.tolist() == [-1, 1]
    assert made("hinge").classes.tolist() == ["healthy", "ill"]
    digits = Model(np.zeros((1, 2)), np.zeros(2), Task("multiclass", ("01", "2")))
    assert digits.classes.tolist() == ["01", "2"]  # 01 would come back as 1


def test_coefficients_by_name_class_and_unit():
    one = made("logistic")
    assert one.coef["feature 2"] == one.coefficients[2, 0]
    assert one.intercept == one.intercepts[0]
    several = made("softmax")
    assert several.coef["feature 2", "blue"] == several.coefficients[2, 2]
    assert several.intercept["green"] == several.intercepts[1]
    numbers = made("squared", norm_bound=math.inf)
    zero, unit = np.zeros((1, 5)), np.eye(5)[:1]
    assert numbers.intercept == pytest.approx(float(numbers.predict(zero)[0]), rel=1e-12)
    assert numbers.coef["feature 0"] == pytest.approx(float((numbers.predict(unit) - numbers.predict(zero))[0]))


def test_one_unit_of_an_original_column_adds_what_is_said():
    slope, offset = 2.0 / 82.0, -1.0 - 2.0 / 82.0 * 18.0  # [18, 100] to [-1, 1]
    scaling = np.array([[slope, offset, 18.0, 100.0], [1.0, 0.0, math.nan, math.nan]])
    model = made("logistic", m=2, norm_bound=math.inf, scaling=scaling)
    ages = np.array([[offset + slope * age, 0.0] for age in (40.0, 41.0)])
    assert np.diff(model.decision_function(ages))[0] == pytest.approx(model.coef_per_unit["feature 0"])
    assert model.coef_per_unit["feature 1"] == model.coef["feature 1"]
    assert model.units == {"feature 0": (18.0, 100.0), "feature 1": None}


@pytest.mark.parametrize(("colluders", "who"), [(0, "0 ranks"), (1, "1 rank;"), (2, "2 ranks;")])
@pytest.mark.parametrize("noise_in", ["sum", "pairs"])
def test_the_statement_counts_who_may_collude(noise_in, colluders, who):
    told = PrivacyStatement(True, 1.0, 1e-5, noise_in=noise_in, colluders=colluders, ranks=3, run="0123").text
    assert f"{'the noise' if noise_in == 'sum' else 'the secrets'} of {who}" in told
    assert ", 3 ranks, run 0123" in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_everything(kind, tmp_path):
    told = PrivacyStatement(True, 1.0, 1e-5, "record", algorithm="momentum", ranks=4, run="0123", config="4567")
    more = {"scaling": np.ones((5, 4)), "codebook": "bias = true", "codebook_digest": "89ab", "privacy": told}
    model = made(kind, noise_std=(0.1, 0.03), noise_note="what it is", x_rank=np.ones((2, 4)), **more)
    model.save(tmp_path / "model.npz")
    for path in (tmp_path, tmp_path / "model.npz"):
        again = dpmpi.Model.load(path)
        np.testing.assert_array_equal(again.predict(records()), model.predict(records()))
        for name, value in vars(model).items():
            if name not in ("version", "features"):
                np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)
        assert again.version == dpmpi.__version__
    with np.load(tmp_path / "model.npz", allow_pickle=False) as plain:
        assert all(plain[name].dtype.kind in "fiuU" for name in plain.files)  # numpy reads it without pickle
        np.testing.assert_array_equal(plain["x"], model.x)


def test_files_of_earlier_versions_are_read(tmp_path):
    x = np.array([1.0, -2.0, 0.5])
    np.savez(tmp_path / "first.npz", x=x, x_rank=np.stack([x, x]))
    first = Model.load(tmp_path / "first.npz")
    assert first.predict([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).tolist() == [-1, 1, -1]
    assert first.coef == {"1": 1.0, "2": -2.0, "3": 0.5}
    assert "NOT PRIVATE" in first.privacy.text
    named = {"algorithm": np.array("dp-dda"), "config": np.array("0123")}
    np.savez(tmp_path / "second.npz", x=x, coefficients=x[:2] / 2, intercept=np.array(0.1), **named)
    second = Model.load(tmp_path / "second.npz")
    np.testing.assert_allclose(second.decision_function([[1.0, 1.0]]), 0.5 - 1.0 + 0.1)
    assert second.privacy.algorithm == "dp-dda"


def test_a_statement_of_a_newer_version_is_read():
    assert PrivacyStatement.from_dict({"private": True, "epsilon": 2.0, "later": 1}).epsilon == 2.0


DAMAGE = {
    "text": lambda path: path.write_text("no archive"),
    "empty": lambda path: path.write_bytes(b""),
    "objects": lambda path: np.savez(path, x=np.array([{}], dtype=object)),
    "other arrays": lambda path: np.savez(path, X=np.ones(3), y=np.ones(3)),
    "words": lambda path: np.savez(path, x=np.array(["one"])),
    "classes": lambda path: np.savez(path, x=np.ones(3), task=np.array('{"kind": "binary", "classes": ["a"]}')),
    "names": lambda path: np.savez(path, x=np.ones(3), features=np.array(["a"])),
    "scaling": lambda path: np.savez(path, x=np.ones(3), scaling=np.ones((2, 4))),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_model_is_refused_in_one_line(damage, tmp_path):
    DAMAGE[damage](tmp_path / "model.npz")
    with pytest.raises(DataError, match=r"model\.npz") as raised:
        Model.load(tmp_path / "model.npz")
    assert "\n" not in str(raised.value)


def test_what_a_model_cannot_do_it_says():
    with pytest.raises(ConfigError, match="expected a loss with probabilities"):
        made("hinge").predict_proba(records())
    with pytest.raises(DataError, match="expected rows of 5 features, found 4"):
        made("hinge").predict(records(4))
    with pytest.raises(DataError, match="a record a row"):
        made("hinge").predict(np.ones(5))
    with pytest.raises(ConfigError, match="nobody sees"):
        made("hinge").of_rank(0)
    with pytest.raises(DataError, match="diverged"):
        Model(np.full((2, 1), np.nan), np.zeros(1)).predict(np.ones((1, 2)))
    with pytest.raises(ConfigError, match="the mean of points"):
        Model(np.ones((2, 1)), np.zeros(1), Task("regression", ()), "mean").predict(np.ones((1, 2)))


def test_a_ranks_own_model():
    model = made("softmax", x_rank=np.arange(36.0).reshape(2, 18))
    own = model.of_rank(1)
    np.testing.assert_allclose(own.coefficients, np.arange(18.0, 33.0).reshape(5, 3) / math.hypot(1.0, 0.3))
    with pytest.raises(ConfigError, match="from 0 to 1"):
        model.of_rank(2)


def test_the_table_as_csv(tmp_path):
    model = made("softmax", noise_std=(0.5, 0.1))
    text = model.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == text
    rows = [line.split(",") for line in text.splitlines()[1:]]
    sizes = [abs(float(row[2])) for row in rows if row[0] != "(intercept)"]
    assert sizes == sorted(sizes, reverse=True)
    assert len(rows) == 18
    for name, label, value, noise, *_ in rows:
        expected = model.intercept[label] if name == "(intercept)" else model.coef[name, label]
        assert float(value) == expected
        assert float(noise) == (0.1 if name == "(intercept)" else 0.5)


def test_a_printed_model_is_short_and_says_what_to_call():
    promised = PrivacyStatement(private=True, epsilon=1.23456, delta=1e-5, unit="person", run="x")
    first, second = repr(made("softmax", m=3000, privacy=promised)).splitlines()
    assert "multiclass, classes red, green, blue; 3,000 features, loss softmax; epsilon 1.235 at delta 1e-05" in first
    assert first.endswith("for one person")
    for name in ("predict", "predict_proba", "coef", "intercept", "privacy", "to_csv", "save"):
        assert f".{name}" in second
        assert hasattr(Model, name) or name == "privacy"
    assert "predict_proba" not in repr(made("hinge"))
    assert "regression, 25 to 346; 1 feature, loss squared; NOT PRIVATE\n" in repr(made("squared", m=1))
    many = Model(np.zeros((2, 9)), np.zeros(9), Task("multiclass", tuple("abcdefghi")))
    assert "classes a, b, c, d, e ...;" in repr(many)
