"""Private linear models with scikit-learn's conventions, on top of `dpmpi.simulate` and `dpmpi.train`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmpi.api.result import Result
from dpmpi.api.training import simulate, train
from dpmpi.core import Array
from dpmpi.data.split import split
from dpmpi.errors import ConfigError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.sklearn.bounds import Bounds, is_norm
from dpmpi.sklearn.fits import note_fit, warn_of_fits, warn_of_noise, warn_of_scaling

_PARAMETERS = """

    Parameters
    ----------
    epsilon, delta : float
        The promise for one record, certified for everything that the agents send, the model included.
    bounds : float or (low, high)
        Where records lie, declared from what is public: a bound of the norm of a row, or of every feature (numbers, or
        arrays with one for each). Rows outside are moved to the bounds, in `fit` and in predictions. Required.
    agents : int
        Into how many agents the records are split, each of which adds its own noise; 1 is a single curator.
    graph, algorithm, rounds, penalty : as the flags of `dpmpi.run`
        By default derived from public facts.
    fit_intercept : bool
    settings : dict, optional
        Further settings by their names as flags, hyperparameters of the algorithm included.
    insecure_noise_seed : int, optional
        Repeatable noise, for tests: NOT PRIVATE.
    comm : mpi4py communicator, optional
        Under mpirun: every rank calls `fit` with its own records, and is an agent.
    out : path, optional
        Keep the run directory, ledgers included; by default it goes when the fit is done.

    Attributes
    ----------
    coef_, intercept_
        In the units of the records that were given.
    privacy_ : PrivacyStatement
        What this fit promises.
    epsilon_spent_ : float or None
        What all fits of this process together have spent on the record that was part of the most; None if not finite.
    n_fits_, n_iter_, n_features_in_, feature_names_in_

    """


_CLASSES = """classes_
        The classes: those that were declared as `classes`, or those of y, whose names are then taken to be public.
    """
_RANGE = """label_range : (low, high)
        The range of y, declared from what is public; required. Numbers outside are moved to it.
    """
_LARGEST = 700.0  # exp of more is no number


class _PrivateLinear(BaseEstimator):  # type: ignore[misc]
    """What the estimators share; each has a constructor of its own, with these parameters among others."""

    _loss: str
    epsilon: float
    delta: float
    bounds: Any
    agents: int
    graph: Any
    algorithm: str
    rounds: int | None
    penalty: str
    fit_intercept: bool
    settings: dict[str, Any] | None
    insecure_noise_seed: int | None
    comm: Any
    out: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = is_norm(self.bounds)
        tags.non_deterministic = self.insecure_noise_seed is None
        return tags

    def _train(self, X: Any, labels: Array, y: Array, **more: Any) -> Array:
        """Train on checked records and labels in the loss's units; return the scores' coefficients, one row each.

        `coef_` and `intercept_` are set, in the units of X, with what the privacy cost.
        """
        bounds = Bounds.of(self.bounds, X.shape[1])
        if bounds.radius is None and hasattr(X, "tocsr"):
            raise ConfigError("expected dense rows for bounds of every feature, found sparse ones: give a norm R")
        if not 0.0 < (self.epsilon or 0.0) < np.inf:
            raise ConfigError(f"expected epsilon above 0, found {self.epsilon!r}: 1 is usual")
        warn_of_scaling(X)
        rows = bounds.scaled(X)
        given: dict[str, Any] = {
            "loss": self._loss,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "graph": self.graph,
            "algorithm": self.algorithm,
            "rounds": self.rounds,
            "penalty": self.penalty,
            "intercept": "auto" if self.fit_intercept else "none",
            "insecure_noise_seed": self.insecure_noise_seed,
            "out": self.out,
        }
        given = {**given, **more, **(self.settings or {})}
        if "method" in given:  # an object, which has its own name
            del given["algorithm"]
        if self.comm is not None:
            result = train(rows, labels, comm=self.comm, **given)
        else:
            shards = [(rows, labels)] if self.agents == 1 else split(rows, labels, self.agents)
            result = simulate(shards, **given)
        model = result.model
        w, b = model.coefficients.T, model.intercepts
        self.privacy_ = result.privacy
        self.n_iter_ = int(result.summary["rounds"])
        self._bounds = bounds
        if self.comm is None or self.comm.Get_rank() == 0:
            warn_of_noise(result.summary.get("verdict"))
        self._note(result, X, y)
        found, intercept = bounds.in_units(w, b)
        self.intercept_: Any = intercept
        return found

    def _note(self, result: Result, X: Any, y: Array) -> None:
        """Note what was spent on the records, and warn if it was not the first time."""
        self.n_fits_, self.epsilon_spent_ = 1, None
        if not self.privacy_.private:  # repeatable noise promises nothing, once or often
            return
        spending = _largest_spending(result, self.delta)
        self.n_fits_, self.epsilon_spent_ = note_fit(X, y, spending, self.delta)
        warn_of_fits(self.n_fits_, self.epsilon_spent_, self.privacy_.epsilon, self.delta)

    def _scores(self, X: Any) -> Array:
        """Return the scores of records, one row of them each."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        found: Array = self._bounds.inside(X) @ np.atleast_2d(self.coef_).T + self.intercept_
        return found


class _PrivateClassifier(ClassifierMixin, _PrivateLinear):  # type: ignore[misc]
    """A classifier."""

    _multiclass: str | None = None
    """The loss of more than two classes."""

    def __init__(  # noqa: PLR0913 - scikit-learn reads the parameters off the signature
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        classes: Any = None,
        agents: int = 1,
        graph: Any = "complete",
        algorithm: str = "momentum",
        rounds: int | None = None,
        penalty: str = "auto",
        fit_intercept: bool = True,
        settings: dict[str, Any] | None = None,
        insecure_noise_seed: int | None = None,
        comm: Any = None,
        out: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.classes = classes
        self.agents = agents
        self.graph = graph
        self.algorithm = algorithm
        self.rounds = rounds
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.settings = settings
        self.insecure_noise_seed = insecure_noise_seed
        self.comm = comm
        self.out = out

    def fit(self, X: Any, y: Any) -> Self:
        """Train on records and their classes."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = self._known_classes(y)
        if len(self.classes_) == 2:
            self.coef_ = self._train(X, np.where(y == self.classes_[1], 1.0, -1.0), y)
        else:
            codes = np.argmax(y[:, None] == self.classes_[None, :], axis=1).astype(np.float64)
            named = ",".join(map(str, range(len(self.classes_))))
            self.coef_ = self._train(X, codes, y, loss=self._multiclass, classes=named)
        return self

    def _known_classes(self, y: Array) -> Array:
        """Return the classes, declared or those of y; raise `ConfigError` for labels of others, or too few."""
        if self.classes is None and self.comm is not None:
            raise ConfigError("expected classes= under mpirun, found none: a rank may not have records of all of them")
        found = np.unique(y)
        known = found if self.classes is None else np.asarray(self.classes)
        if len(known) < 2:
            raise ConfigError(f"expected two classes, found {len(known)} class: declare both by classes=[...]")
        if len(known) > 2 and self._multiclass is None:
            raise ConfigError(f"Only binary classification is supported: expected two classes, found {len(known)}")
        if not np.isin(found, known).all():
            raise ConfigError(f"expected labels of the declared classes {list(known)}, found others in y")
        return known

    def decision_function(self, X: Any) -> Array:
        """Return the scores of records: of the second class, if there are two, else of each."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Array:
        """Return the classes of records."""
        scores = self.decision_function(X)
        chosen = (scores > 0.0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
        found: Array = self.classes_[chosen]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._multiclass is not None
        return tags


class PrivateLogisticRegression(_PrivateClassifier):  # noqa: D101 - put together
    __doc__ = (
        "Logistic regression of two classes, or of several by softmax, with differential privacy."
        + _PARAMETERS
        + _CLASSES
    )

    _loss, _multiclass = "logistic", "softmax"

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the classes, one row for each record."""
        scores = self.decision_function(X)
        if scores.ndim > 1:
            above = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(above / above.sum(axis=1, keepdims=True))
        second = 1.0 / (1.0 + np.exp(-np.clip(scores, -_LARGEST, _LARGEST)))
        return np.stack([1.0 - second, second], axis=1)

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of the probabilities."""
        return np.log(self.predict_proba(X))


class PrivateLinearSVC(_PrivateClassifier):  # noqa: D101 - put together
    __doc__ = (
        "A linear support vector machine of two classes, by the hinge loss, with differential privacy."
        + _PARAMETERS
        + _CLASSES
    )

    _loss = "hinge"


class PrivateRidge(RegressorMixin, _PrivateLinear):  # type: ignore[misc]  # noqa: D101 - put together
    __doc__ = "Linear regression with an l2 penalty and differential privacy." + _PARAMETERS + _RANGE

    _loss = "squared"

    def __init__(  # noqa: PLR0913 - scikit-learn reads the parameters off the signature
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        label_range: Any = None,
        agents: int = 1,
        graph: Any = "complete",
        algorithm: str = "momentum",
        rounds: int | None = None,
        penalty: str = "auto",
        fit_intercept: bool = True,
        settings: dict[str, Any] | None = None,
        insecure_noise_seed: int | None = None,
        comm: Any = None,
        out: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.label_range = label_range
        self.agents = agents
        self.graph = graph
        self.algorithm = algorithm
        self.rounds = rounds
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.settings = settings
        self.insecure_noise_seed = insecure_noise_seed
        self.comm = comm
        self.out = out

    def fit(self, X: Any, y: Any) -> Self:
        """Train on records and their numbers, which are cut to the declared range."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        if self.label_range is None or len(self.label_range) != 2 or not self.label_range[0] < self.label_range[1]:
            raise ConfigError(
                f"expected label_range=(low, high) that is declared, found {self.label_range!r}: give the range of y "
                "from what is public"
            )
        low, high = map(float, self.label_range)
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        coefficients = self._train(X, np.asarray(y, dtype=np.float64), y, label_range=f"{low!r}:{high!r}")
        self.coef_: Array = half * coefficients[0]
        self.intercept_: Any = float(half * self.intercept_[0] + middle)
        return self

    def predict(self, X: Any) -> Array:
        """Return the expected numbers of records."""
        return self._scores(X)[:, 0]


def _largest_spending(result: Result, delta: float) -> Counter[ReleaseEvent]:
    """Return the releases of the agent that has spent the most, among those whose ledgers are here."""
    ledgers = sorted(result.ledger.parent.glob("rank-*.jsonl"))
    spendings = {tuple(sorted(spent.items(), key=repr)): spent for spent in map(recorded_spending, ledgers)}
    if len(spendings) == 1:
        return next(iter(spendings.values()))
    return max(spendings.values(), key=lambda spent: _or_infinity(spent_epsilon(spent, delta)))


def _or_infinity(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon
