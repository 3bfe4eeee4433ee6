"""Scaling by declared bounds: public numbers, so that nothing is learned from the records.

`bounds` says where records lie, before anybody looks at them:

    R              |x| <= R                 x' = x min(1, R / |x|),             z = x' / R                       (1)
    (low, high)    low_j <= x_j <= high_j   x'_j = x_j cut to the interval,     z_j = (x'_j - c_j) / (h_j sqrt(m))  (2)

with c the middle and h half of the length of the intervals. A record outside is moved to the bounds, row by row, so
that the promise holds for whatever comes; z has norm at most 1. A score <z, w> + b in the units of x is

    <x', v> + b'    with v = w / R, b' = b, or v_j = w_j / (h_j sqrt(m)), b' = b - <c, v>                        (3)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import check_is_fitted, validate_data

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.model.export import clip_norms


def is_norm(declared: Any) -> bool:
    """Return whether bounds were declared as one number, (1)."""
    return isinstance(declared, int | float | np.number)


@frozen
class Bounds:
    """Declared bounds for records of m features."""

    radius: float | None
    """R of (1); None for (2)."""
    middle: Any = 0.0
    half: Any = 1.0

    @classmethod
    def of(cls, declared: Any, m: int) -> Bounds:
        """Return the bounds that were declared for m features; raise `ConfigError` for anything else."""
        advice = "give R for rows of norm at most R, or (low, high) for every feature, from what is public"
        if declared is None:
            raise ConfigError(f"expected bounds that are declared, found none: {advice}")
        if is_norm(declared):
            if not 0.0 < float(declared) < math.inf:
                raise ConfigError(f"expected a bound R above 0, found {declared!r}: {advice}")
            return cls(float(declared))
        if isinstance(declared, str | bytes) or len(declared) != 2:
            raise ConfigError(f"expected bounds R or (low, high), found {declared!r:.80}: {advice}")
        try:
            low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (m,)) for end in declared)
        except ValueError as error:
            raise ConfigError(f"expected bounds for {m} features, found others ({error}): {advice}") from error
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ConfigError(f"expected finite bounds low < high for every feature, found others: {advice}")
        return cls(None, 0.5 * (low + high), 0.5 * (high - low))

    def inside(self, X: Any) -> Any:
        """Return x' of (1) or (2): the records, moved to the bounds where they lie outside."""
        if self.radius is not None:
            return clip_norms(X, self.radius)
        return np.clip(X, self.middle - self.half, self.middle + self.half)

    def scaled(self, X: Any) -> Any:
        """Return z: records of norm at most 1."""
        found = self.inside(X)
        return found / self.radius if self.radius is not None else (found - self.middle) * self._slopes(X.shape[1])

    def in_units(self, w: Array, b: Array) -> tuple[Array, Array]:
        """Return v and b' of (3) for coefficients of z, one row for each score."""
        if self.radius is not None:
            return w / self.radius, b
        v = w * self._slopes(w.shape[1])
        return v, b - v @ self.middle

    def _slopes(self, m: int) -> Array:
        return np.asarray(1.0 / (self.half * math.sqrt(m)))


class BoundedScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale records to norm at most 1 by declared bounds, (1) or (2): a step that learns nothing.

    Parameters
    ----------
    bounds : float or (low, high)
        A bound of the norm of a row, or of every feature: numbers, or arrays with one for each.

    """

    def __init__(self, bounds: Any = None) -> None:
        self.bounds = bounds

    def fit(self, X: Any, y: Any = None) -> BoundedScaler:
        """Check the bounds against the number of features; the records are not used."""
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        Bounds.of(self.bounds, X.shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """Return the scaled records."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        bounds = Bounds.of(self.bounds, X.shape[1])
        if bounds.radius is None and hasattr(X, "tocsr"):
            raise ConfigError("expected dense rows for bounds of every feature, found sparse ones: give a norm R")
        return bounds.scaled(X)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = is_norm(self.bounds)
        return tags


def make_private_pipeline(*steps: Any) -> Pipeline:
    """Return a pipeline whose last step alone learns from the records; raise `ConfigError` for another that does.

    What a scaler, a selector or a decomposition learns is in every prediction and costs epsilon that nobody has paid.
    """
    for step in steps[:-1]:
        learns = hasattr(step, "fit") and step.__sklearn_tags__().requires_fit
        if learns and not isinstance(step, BoundedScaler | FrozenEstimator):
            raise ConfigError(
                f"expected steps that learn nothing from private records, found {type(step).__name__}: use "
                "BoundedScaler(bounds), a codebook, or fit it on public records and wrap it in FrozenEstimator"
            )
    return make_pipeline(*steps)
