"""A trained model: what it predicts, by name and in the units of the table that its records came from.

For a record with coded features a in R^m, the row that is scored and its K scores are

    a' = a min(1, B / |a|)              B bounds the norm of a row, if the run had a bound                          (1)
    s  = a' C + b                       C the coefficients, m x K; b the intercepts                                 (2)

A run trains a vector x, (m + 1) x K in C order, on rows (a', c) / sqrt(1 + c^2). (2) gives the same scores with

    C = x[:m] / sqrt(1 + c^2),   b = c x[m] / sqrt(1 + c^2)                                                         (3)

and without an intercept C = x, b = 0. The scores become

    binary       the second class if s > 0, else the first: a score of exactly 0 is the negative class              (4)
                 p = 1 / (1 + exp(-s)) is the probability of the second, for a logistic loss
    multiclass   the class of the largest score, the first of several; p = softmax(s)                               (5)
    regression   ((high - low) s + low + high) / 2                                                                  (6)
    counts       exp(s), the expected count                                                                         (7)

Where a codebook coded a number v as a = offset + slope v within its range, (2) in original units is

    s = (sum_j C_j slope_j v_j + sum_j C_j offset_j) min(1, B / |a|) + b                                            (8)

so `coef_per_unit` C_j slope_j is what one unit of v adds to the score, before the factor that all features share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError
from dpmpi.model.privacy_statement import PrivacyStatement
from dpmpi.problem.rows import Csr, Dense, Rows, scale_rows
from dpmpi.problem.task import Task

if TYPE_CHECKING:
    from dpmpi.model.coefficients import Coefficient

Link: TypeAlias = Literal["none", "logistic", "softmax", "identity", "log"]
"""How scores become probabilities or expectations; `none` for scores that are only compared, as the hinge's."""
LINKS: dict[str, Link] = {
    "hinge": "none",
    "logistic": "logistic",
    "softmax": "softmax",
    "squared": "identity",
    "huber": "identity",
    "poisson": "log",
}
"""The link of each loss."""
_LARGEST_LOG = 700.0  # exp of more is no number


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model that stands alone."""

    coefficients: Array
    """C of (2), m x K, for coded features."""
    intercepts: Array
    """b of (2), K numbers."""
    task: Task = field(default_factory=Task)
    loss: str = "hinge"
    link: Link = "none"
    names: tuple[str, ...] | None = None
    """The names of the features; None for numbers from 1 on."""
    norm_bound: float = np.inf
    """B of (1); infinite for rows as they are."""
    scaling: Array | None = None
    """A row (slope, offset, low, high) of (8) for each feature; low and high are NaN where it is 0 or 1."""
    codebook: str = ""
    """The text of the codebook that the records were coded by; empty if there was none."""
    codebook_digest: str = ""
    privacy: PrivacyStatement = field(default_factory=PrivacyStatement)
    noise_std: tuple[float, float] | None = None
    """At most about the standard deviation of the noise in each coefficient, in each intercept, in scores; or None."""
    noise_note: str = "not known: the file is of a version that did not say"
    """What `noise_std` is, or why it is not known."""
    constant: float = 0.0
    """c of (3); 0 without an intercept."""
    x: Array | None = None
    """The mean of all ranks' vectors, as trained."""
    x_rank: Array | None = None
    """The vectors of the ranks, one a row, where a run has seen them."""
    version: str = ""
    """The version of dpmpi that wrote it."""

    def __post_init__(self) -> None:
        m, K = self.coefficients.shape
        if self.task.scores != K or self.intercepts.shape != (K,) or (self.names is not None and len(self.names) != m):
            raise DataError(
                f"expected coefficients and intercepts for {self.task.scores} scores and a name for each of {m} "
                f"features, found shapes {self.coefficients.shape} and {self.intercepts.shape}: the model is damaged"
            )

    @classmethod
    def of_vector(cls, x: Array, constant: float, task: Task, **more: Any) -> Model:
        """Return the model of a vector that was trained beside the constant c, 0 for no intercept, by (3)."""
        table, scale = x.reshape(-1, task.scores), 1.0 / float(np.hypot(1.0, constant))
        if not constant:
            return cls(table.copy(), np.zeros(task.scores), task, x=x, **more)
        return cls(scale * table[:-1], scale * constant * table[-1], task, x=x, constant=constant, **more)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Model:
        """Read a model file, or that of a run directory; raise `DataError` for anything else."""
        from dpmpi.model.file import read_model  # noqa: PLC0415 - it makes models itself

        return read_model(Path(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model as an .npz of plain arrays."""
        from dpmpi.model.file import write_model  # noqa: PLC0415

        write_model(self, Path(path))

    # --- what it is ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        task, several = self.task, len(self.features) != 1
        labels = f"{task.low:g} to {task.high:g}"
        if task.classifies:
            labels = f"classes {', '.join(task.classes[:5])}{' ...' if len(task.classes) > 5 else ''}"
        promise = "NOT PRIVATE"
        if self.privacy.private:
            spent = "no finite epsilon" if self.privacy.epsilon is None else f"epsilon {self.privacy.epsilon:.4g}"
            promise = f"{spent} at delta {self.privacy.delta or 0:g} for one {self.privacy.unit}"
        probabilities = ", .predict_proba(X)" if self.has_probabilities else ""
        return (
            f"dpmpi.Model: {task.kind}, {labels}; {len(self.features):,} feature{'s' * several}, loss {self.loss}; "
            f"{promise}\n  .predict(X){probabilities}, .coef, .intercept, .privacy.text, .to_csv(path), .save(path)"
        )

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the coded features."""
        return self.names or tuple(map(str, range(1, len(self.coefficients) + 1)))

    @property
    def classes(self) -> NDArray[Any]:
        """The classes in the order of their codes, as `predict` returns them: whole numbers if all are, else names."""
        named = self.task.classes
        numbers = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in named)
        return np.array([int(name) for name in named] if numbers else named)

    @property
    def label_unit(self) -> float:
        """What a score of 1 is in the units of the label: half of its range for a number, else 1."""
        return 0.5 * (self.task.high - self.task.low) if self.task.kind == "regression" else 1.0

    @property
    def coef(self) -> dict[Any, float]:
        """What each coded feature adds to the score, by name, of several classes by (name, class).

        For a number it is in the label's own units.
        """
        return {row.key: row.value for row in self.coefficient_table() if not row.intercept}

    @property
    def coef_per_unit(self) -> dict[Any, float]:
        """The same for one unit of the original column, (8); for 0 and 1 columns `coef`."""
        return {row.key: row.per_unit for row in self.coefficient_table() if not row.intercept}

    @property
    def intercept(self) -> Any:
        """The score of a row of zeros, in the label's own units for a number; of several classes by class."""
        found = self.intercepts * self.label_unit
        if self.task.kind == "regression":
            found = found + 0.5 * (self.task.low + self.task.high)
        if self.task.kind != "multiclass":
            return float(found[0])
        return dict(zip(self.task.classes, found.tolist(), strict=True))

    @property
    def units(self) -> dict[str, tuple[float, float] | None]:
        """The range of the original numbers behind each feature; None where it is 0 or 1, or there was no codebook."""
        if self.scaling is None:
            return dict.fromkeys(self.features)
        ranges = self.scaling[:, 2:].tolist()
        return {
            name: None if np.isnan(low) else (low, high)
            for name, (low, high) in zip(self.features, ranges, strict=True)
        }

    def coefficient_table(self) -> list[Coefficient]:
        """Return a row for every coefficient and intercept, in the order of the features."""
        from dpmpi.model.coefficients import coefficient_table  # noqa: PLC0415 - it knows models

        return coefficient_table(self)

    # --- what it predicts ------------------------------------------------------------------------------------------

    def rows(self, X: Any) -> Rows:
        """Return records, in coded features, as the run scored them, (1).

        X is a matrix with a record a row, dense or of scipy's sparse kinds, or `Rows` of dpmpi.
        """
        rows = _as_rows(X)
        if rows.dimension != len(self.coefficients):
            raise DataError(
                f"expected rows of {len(self.coefficients)} features, found {rows.dimension}: code them as the records "
                "of the run were"
            )
        _check_finite(rows)
        if np.isfinite(self.norm_bound):
            scale_rows(rows, self.norm_bound)
        return rows

    def scores(self, X: Any) -> Array:
        """Return the scores of records, (2), one row of K for each."""
        if self.loss == "mean":
            raise ConfigError("expected a model that scores records, found the mean of points: it is in `coefficients`")
        if not (np.isfinite(self.coefficients).all() and np.isfinite(self.intercepts).all()):
            raise DataError("expected finite coefficients, found NaN or infinity: the run has diverged, repeat it")
        rows = self.rows(X)
        columns = [rows.scores(np.ascontiguousarray(column)) for column in self.coefficients.T]
        return np.stack(columns, axis=1) + self.intercepts

    def decision_function(self, X: Any) -> Array:
        """Return the scores of records: one each, or one for each of several classes."""
        found = self.scores(X)
        return found if self.task.kind == "multiclass" else found[:, 0]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class (4), (5), the number in original units (6), or the expected count (7) of each record."""
        scores = self.scores(X)
        if self.task.kind == "multiclass":
            found: NDArray[Any] = self.classes[np.argmax(scores, axis=1)]  # (5)
        elif self.task.kind == "binary":
            found = self.classes[(scores[:, 0] > 0.0).astype(np.intp)]  # (4)
        elif self.task.kind == "counts":
            found = np.exp(np.minimum(scores[:, 0], _LARGEST_LOG))  # (7)
        else:
            found = self.task.unscaled(scores[:, 0])  # (6)
        return found

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, one row a record; raise `ConfigError` for a loss that has none."""
        self.check_probabilities()
        return probabilities(self.scores(X), self.link)

    @property
    def has_probabilities(self) -> bool:
        """Whether scores mean probabilities of classes."""
        return self.link in ("logistic", "softmax")

    def check_probabilities(self) -> None:
        """Raise `ConfigError` unless scores mean probabilities."""
        if not self.has_probabilities:
            raise ConfigError(
                f"expected a loss with probabilities (logistic, softmax), found {self.loss}: take predict, or "
                "decision_function"
            )

    # --- what others read ------------------------------------------------------------------------------------------

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """Return the table of coefficients as CSV, written to `path` if it is given."""
        from dpmpi.model.coefficients import coefficient_csv  # noqa: PLC0415

        text = coefficient_csv(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8", newline="")
        return text

    def to_sklearn(self) -> Any:
        """Return a fitted pipeline of scikit-learn that predicts the same: (1), then a linear estimator."""
        from dpmpi.model.export import to_sklearn  # noqa: PLC0415 - brings scikit-learn

        return to_sklearn(self)

    def to_onnx(self, path: str | PathLike[str] | None = None) -> bytes:
        """Return the model as ONNX, written to `path` if it is given; it needs the package onnx."""
        from dpmpi.model.export import to_onnx  # noqa: PLC0415 - brings onnx

        found = to_onnx(self)
        if path is not None:
            Path(path).write_bytes(found)
        return found

    def of_rank(self, rank: int) -> Model:
        """Return the model that one rank ended with; raise `ConfigError` if nobody has seen it."""
        if self.x is None or self.x_rank is None:
            raise ConfigError("expected a run with plain messages, found one in which nobody sees a rank's own model")
        if not 0 <= rank < len(self.x_rank):
            raise ConfigError(f"expected a rank from 0 to {len(self.x_rank) - 1}, found {rank}")
        own = Model.of_vector(self.x_rank[rank], self.constant, self.task)
        return replace(self, coefficients=own.coefficients, intercepts=own.intercepts, x=own.x, x_rank=None)


def probabilities(scores: Array, link: str) -> Array:
    """Return the probabilities of the classes from scores, n x K: of two classes from one score each, without overflow.

    They are exp(-log(1 + exp(-s))) and the same of -s, or softmax.
    """
    if link == "softmax":
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
    s = scores[:, 0]
    return np.stack([np.exp(-np.logaddexp(0.0, s)), np.exp(-np.logaddexp(0.0, -s))], axis=1)


def _check_finite(rows: Rows) -> None:
    """Raise `DataError` for a record with NaN or infinity: comparisons of its scores would make a class of it."""
    values = rows.data if isinstance(rows, Csr) else rows.matrix
    if np.isfinite(values).all():
        return
    place = int(np.flatnonzero(~np.isfinite(values))[0])
    found = "NaN" if np.isnan(values.flat[place]) else "infinity"
    row = np.searchsorted(rows.indptr, place, "right") - 1 if isinstance(rows, Csr) else place // rows.dimension
    raise DataError(
        f"expected finite numbers, found {found} in row {row} (counting from 0): fill in what is missing, as the "
        "records of the run had it, or leave the row out"
    )


def _as_rows(X: Any) -> Rows:
    """Return a copy of records as rows."""
    if isinstance(X, Dense):
        return Dense(X.matrix.copy())
    if isinstance(X, Csr):
        return Csr(X.indptr, X.indices, X.data.copy(), X.dimension)
    if hasattr(X, "tocsr"):
        csr = X.tocsr(copy=True)
        csr.sum_duplicates()
        return Csr(csr.indptr, csr.indices, csr.data.astype(np.float64), csr.shape[1])
    matrix = np.array(X, dtype=np.float64, order="C")
    if matrix.ndim != 2:
        raise DataError(f"expected a matrix with a record a row, found shape {matrix.shape}: reshape the features")
    return Dense(matrix)
