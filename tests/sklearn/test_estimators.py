"""Estimators: scikit-learn's own checks, units and bounds, pipelines, and what repeated fits cost."""

import re
import warnings
from pathlib import Path

import needs
import numpy as np
import pytest
import trained
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpmpi
from dpmpi.commands.verify.command import verify
from dpmpi.errors import ConfigError
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu
from dpmpi.sklearn import (
    BoundedScaler,
    NoiseWarning,
    PrivacyWarning,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    forget_fits,
    make_private_pipeline,
)
from dpmpi.sklearn.bounds import Bounds

DELTA = 1e-5
LOUD = {"epsilon": 1000.0, "insecure_noise_seed": 0}
EVERY = [
    PrivateLogisticRegression(bounds=10.0, **LOUD),
    PrivateLinearSVC(bounds=10.0, **LOUD),
    PrivateRidge(bounds=10.0, label_range=(-4.0, 4.0), **LOUD),
    BoundedScaler(bounds=10.0),
]


# A few hundred records.
pytestmark = pytest.mark.filterwarnings("ignore::dpmpi.sklearn.NoiseWarning")


@pytest.fixture(autouse=True)
def first():
    forget_fits()


@parametrize_with_checks(EVERY)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # they fit the same records again and again
        warnings.simplefilter("ignore", NoiseWarning)  # and a handful of them
        check(estimator)


def records(count=400, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.uniform([0.0, 10.0, -3.0], [100.0, 30.0, 3.0], (count, 3))
    y = (X @ [0.02, -0.1, 0.3] + draw.normal(0, 0.1, count) > -1.0).astype(int)
    return X, y


LOW, HIGH = np.array([0.0, 10.0, -3.0]), np.array([100.0, 30.0, 3.0])


# --- units and bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [110.0, (LOW, HIGH), (-3.0, 100.0)], ids=["norm", "each", "one for all"])
def test_coefficients_are_in_the_units_of_the_records(bounds):
    X, y = records()
    model = PrivateLogisticRegression(bounds=bounds, **LOUD).fit(X, y)
    assert (model.coef_.shape, model.intercept_.shape) == ((1, 3), (1,))
    np.testing.assert_allclose(model.decision_function(X), X @ model.coef_[0] + model.intercept_[0], rtol=1e-9)
    scaled = BoundedScaler(bounds).fit_transform(X)
    assert np.linalg.norm(scaled, axis=1).max() <= 1.0 + 1e-12
    beside = PrivateLogisticRegression(bounds=1.0, **LOUD).fit(scaled, y)
    np.testing.assert_allclose(beside.decision_function(scaled), model.decision_function(X), rtol=1e-9)
    assert model.score(X, y) > 0.85
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(probabilities[:, 1] > 0.5, model.predict(X) == 1)


def test_records_outside_are_moved_to_the_bounds():
    X, y = records()
    outside = X.copy()
    outside[::3] = [[300.0, 5.0, -7.0]]
    inside = np.clip(outside, LOW, HIGH)
    models = [PrivateLinearSVC(bounds=(LOW, HIGH), **LOUD).fit(one, y) for one in (outside, inside)]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    np.testing.assert_array_equal(models[0].decision_function(outside), models[0].decision_function(inside))


def test_a_number_is_predicted_in_its_own_units():
    X, _ = records()
    y = 1000.0 + 5.0 * X[:, 0] - 20.0 * X[:, 2]
    model = PrivateRidge(bounds=(LOW, HIGH), label_range=(900.0, 1600.0), rounds=300, penalty="none", **LOUD).fit(X, y)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)
    assert model.score(X, y) > 0.9
    cut = clone(model).set_params(label_range=(1000.0, 1400.0)).fit(X, y)
    again = clone(cut).fit(X, np.clip(y, 1000.0, 1400.0))
    np.testing.assert_array_equal(cut.coef_, again.coef_)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (None, "expected bounds that are declared, found none"),
        (-1.0, "expected a bound R above 0"),
        ("wide", "expected bounds R or"),
        ((1.0, 0.0), "low < high"),
        (([0.0, 0.0], 1.0), "expected bounds for 3 features"),
    ],
)
def test_bounds_are_declared(bounds, words):
    with pytest.raises(ConfigError, match=words):
        PrivateLogisticRegression(bounds=bounds).fit(*records())


def test_sparse_rows_take_a_norm():
    from scipy.sparse import csr_array  # noqa: PLC0415

    X, y = records()
    model = PrivateLogisticRegression(bounds=110.0, **LOUD)
    dense, sparse = clone(model).fit(X, y), clone(model).fit(csr_array(X), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_)
    np.testing.assert_allclose(sparse.predict(csr_array(X)), dense.predict(X))
    with pytest.raises(ConfigError, match="expected dense rows"):
        PrivateLogisticRegression(bounds=(LOW, HIGH), **LOUD).fit(csr_array(X), y)


def test_the_units_are_those_of_the_formula():
    bounds, w = Bounds.of((LOW, HIGH), 3), np.array([[1.0, -2.0, 0.5]])
    x = np.array([[50.0, 12.0, 1.0]])
    v, b = bounds.in_units(w, np.array([0.3]))
    np.testing.assert_allclose(x @ v[0] + b, bounds.scaled(x) @ w[0] + 0.3)


# --- what is promised ------------------------------------------------------------------------------------------------


def test_a_fit_is_a_run_whose_ledgers_check_out(tmp_path):
    X, y = records(2000)
    model = PrivateLogisticRegression(epsilon=2.0, bounds=(LOW, HIGH), agents=3, out=tmp_path / "run").fit(X, y)
    assert model.privacy_.private
    assert model.privacy_.epsilon == pytest.approx(2.0, rel=1e-3)
    assert (model.n_fits_, model.epsilon_spent_) == (1, pytest.approx(model.privacy_.epsilon))
    assert not any(rank.problems for rank in verify(tmp_path / "run"))
    assert model.score(X, y) > 0.7


def test_repeatable_noise_promises_nothing():
    model = PrivateLogisticRegression(bounds=110.0, **LOUD).fit(*records())
    assert not model.privacy_.private
    assert model.epsilon_spent_ is None


def test_classes_and_names():
    pandas = needs.package("pandas", "test")
    X, y = records()
    named = np.where(y == 1, "yes", "no")
    table = pandas.DataFrame(X, columns=["age", "dose", "change"])
    model = PrivateLogisticRegression(bounds=110.0, **LOUD).fit(table, named)
    assert list(model.classes_) == ["no", "yes"]
    assert set(model.predict(table)) <= {"no", "yes"}
    assert list(model.feature_names_in_) == ["age", "dose", "change"]
    declared = PrivateLogisticRegression(bounds=110.0, classes=["yes", "no"], **LOUD).fit(table, named)
    assert list(declared.classes_) == ["yes", "no"]
    with pytest.raises(ConfigError, match="expected labels of the declared classes"):
        PrivateLogisticRegression(bounds=110.0, classes=["a", "b"], **LOUD).fit(table, named)
    with pytest.raises(NotFittedError):
        PrivateLogisticRegression(bounds=1.0).predict(X)


def test_several_classes_have_a_score_each():
    X, _ = records(900)
    bins = np.digitize(X[:, 0], [30.0, 70.0])
    y = np.array(["low", "middle", "high"])[bins]
    model = PrivateLogisticRegression(bounds=(LOW, HIGH), rounds=400, **LOUD).fit(X, y)
    assert model.coef_.shape == (3, 3)
    scores = model.decision_function(X)
    np.testing.assert_allclose(scores, X @ model.coef_.T + model.intercept_, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), model.classes_[scores.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert model.score(X, y) > 0.75
    with pytest.raises(ConfigError, match="Only binary classification is supported"):
        PrivateLinearSVC(bounds=110.0).fit(X, y)


# --- repeated fits ---------------------------------------------------------------------------------------------------


def together(fits, epsilon=1.0):
    """The epsilon of so many fits, by Gaussian DP."""
    return gdp_epsilon(gdp_mu(epsilon, DELTA) * fits**0.5, DELTA)


def test_fits_on_the_same_records_add_up():
    X, y = records()
    model = PrivateLogisticRegression(bounds=110.0)
    model.fit(X, y)
    with pytest.warns(PrivacyWarning, match=r"part of 2 fits in this process: together they have spent epsilon 1\.47"):
        model.fit(X[::2], y[::2])
    assert model.epsilon_spent_ == pytest.approx(together(2), rel=1e-3)
    with pytest.warns(PrivacyWarning, match="part of 3 fits"):
        model.fit(X, y)
    assert model.epsilon_spent_ == pytest.approx(together(3), rel=1e-3)
    model.fit(X + 0.5, y)  # other records
    assert (model.n_fits_, model.epsilon_spent_) == (1, pytest.approx(1.0, rel=1e-3))


def test_cross_validation_warns_of_what_its_folds_spend_together():
    X, y = records()
    with pytest.warns(PrivacyWarning) as told:
        scores = cross_val_score(PrivateLogisticRegression(bounds=(LOW, HIGH)), X, y, cv=4)
    assert len(scores) == 4
    last = str(told[-1].message)
    assert re.search(rf"part of 3 fits .* epsilon {together(3):.3g} at delta 1e-05, not 1;", last), last


@pytest.mark.parametrize("how", ["by itself", "in a search"])
def test_warnings_are_one_line_and_point_to_the_callers_line(how):
    X, y = records()
    model = PrivateLogisticRegression(0.07, bounds=(LOW, HIGH))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if how == "by itself":
            model.fit(X, y).fit(X, y)
        else:
            cross_val_score(model, X, y, cv=3)
    assert {one.category for one in told} == {PrivacyWarning, NoiseWarning}
    for one in told:
        assert one.filename == __file__
        assert "\n" not in str(one.message)
        assert len(str(one.message)) < 200
        assert how == "by itself" or one.category is PrivacyWarning or one is told[0]  # once
        assert any(call in Path(__file__).read_text().splitlines()[one.lineno - 1] for call in ("fit(", "cross_val"))


@pytest.mark.parametrize(
    ("epsilon", "count", "word"), [(0.01, 400, "mostly noise"), (0.07, 400, "a weak model"), (100.0, 4000, None)]
)
def test_a_verdict_that_is_not_good_is_a_warning(epsilon, count, word):
    X, y = records(count)
    model = PrivateLogisticRegression(epsilon, bounds=(LOW, HIGH))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for part in (slice(None), slice(None), slice(1, None)):
            model.fit(X[part], y[part])
    lines = [str(one.message) for one in told if one.category is NoiseWarning]
    assert len(lines) == (word is not None), lines
    assert not lines or (lines[0].startswith(f"expect {word}: noise of the mean") and "would do" in lines[0])


def test_a_grid_search_over_a_pipeline_warns_with_the_composed_epsilon():
    X, y = records()
    pipeline = make_private_pipeline(BoundedScaler((LOW, HIGH)), PrivateLogisticRegression(epsilon=0.5, bounds=1.0))
    search = GridSearchCV(pipeline, {"privatelogisticregression__rounds": [5, 10]}, cv=2)
    with pytest.warns(PrivacyWarning) as told:
        search.fit(X, y)
    fits = 2 * 1 + 1  # both settings on one of two folds, and the last fit on all records
    last = str(told[-1].message)
    assert f"part of {fits} fits in this process: together they have spent epsilon {together(fits, 0.5):.3g}" in last
    assert search.best_estimator_[-1].n_fits_ == fits
    assert 0.5 < search.score(X, y) <= 1.0


# --- steps that learn ------------------------------------------------------------------------------------------------


def test_a_step_that_learns_from_the_records_is_refused():
    last = PrivateLogisticRegression(bounds=1.0)
    for step in (StandardScaler(), MinMaxScaler()):
        with pytest.raises(ConfigError, match=f"found {type(step).__name__}: use BoundedScaler"):
            make_private_pipeline(step, last)
    public = FrozenEstimator(StandardScaler().fit(records(seed=1)[0]))
    make_private_pipeline(BoundedScaler(1.0), FunctionTransformer(np.log1p), Normalizer(), public, last)


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), MinMaxScaler((-1, 1))])
def test_records_that_were_scaled_by_their_own_figures_are_noticed(scaler):
    X, y = records()
    with pytest.warns(PrivacyWarning, match="scaled by their own mean or range"):
        PrivateLogisticRegression(bounds=3.0, **LOUD).fit(scaler.fit_transform(X), y)


def test_zeros_and_ones_are_not_taken_for_scaled(recwarn):
    X, y = records()
    PrivateLogisticRegression(bounds=2.0, **LOUD).fit((X.mean(axis=0) < X).astype(float), y)
    assert not recwarn.list


def test_the_code_of_the_page_runs(capsys):
    page = (Path(dpmpi.__file__).parents[1] / "docs" / "sklearn.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    exec("".join(blocks), {})
    said = capsys.readouterr().out
    for words in (
        "expected steps that learn nothing from private records, found StandardScaler",
        "part of 3 fits in this",
    ):
        assert words in said
        assert words in page
    [spent] = re.findall(r"# \.\.\. (part of .*;) \.\.\.$", page, re.MULTILINE)
    assert spent in said


# --- under mpirun ----------------------------------------------------------------------------------------------------


@needs.mpi
def test_under_mpirun_every_rank_fits_its_own_records(tmp_path):
    ranks = dpmpi.launch(trained.estimator, 3, str(tmp_path / "run"), timeout=60)
    assert [one["coef"] for one in ranks] == [ranks[0]["coef"]] * 3
    shards = trained.shards(3)
    model = PrivateLogisticRegression(bounds=4.0, agents=3, insecure_noise_seed=3, graph="ring")
    X, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    bounded = Bounds.of(4.0, X.shape[1])
    simulated = dpmpi.simulate(
        [(bounded.scaled(rows), np.where(labels == 1, 1.0, -1.0)) for rows, labels in shards],
        loss="logistic",
        epsilon=1.0,
        insecure_noise_seed=3,
    )
    np.testing.assert_array_equal(ranks[0]["coef"], (simulated.model.coefficients.T / 4.0).tolist())
    assert model.fit(X, y).coef_.shape == (1, 6)
