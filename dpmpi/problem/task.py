"""What is predicted: classes, numbers or counts. Declared, never read from private labels.

    binary       two named classes, coded -1 and +1                     one score s
    multiclass   K named classes, coded 0 ... K-1                       K scores
    regression   a number in the declared range [low, high]             one score, of the scaled label
    counts       0, 1, 2 ... up to a declared bound                     one score, log of the expected count

A regression label y in original units is scaled to

    u = clip((2 y - low - high) / (high - low), -1, 1)                                                             (1)

and a score u is scaled back to ((high - low) u + low + high) / 2.
A model of K scores is a vector of (columns x K) numbers in C order, one row for each column of the records, the
intercept's last.

`Declared` is what flags say about the labels, `Task` is what a run knows. What flags leave open comes from the shard,
which a codebook declared it for, or from labels that are public.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, DataError

TaskKind: TypeAlias = Literal["binary", "multiclass", "regression", "counts"]
MOST_CLASSES = 1000
MORE_CLASSES = "--task multiclass --loss softmax --classes a,b,c"
"""What an error names for labels of more than two classes."""


@frozen
class Task:
    """What is predicted, and in which units."""

    kind: TaskKind = "binary"
    classes: tuple[str, ...] = ("-1", "1")
    """The names of the classes in the order of their codes; empty for numbers and counts."""
    low: float = -1.0
    high: float = 1.0
    """The declared range of a number, or of a count (from 0), in original units."""

    def __post_init__(self) -> None:
        if self.kind == "binary" and len(self.classes) != 2:
            advice = "use --task multiclass --loss softmax"
            raise ConfigError(f"expected the names of two classes, found {len(self.classes)}: {advice}")
        if self.kind == "multiclass" and not 2 <= len(self.classes) <= MOST_CLASSES:
            expected = f"expected the names of 2 to {MOST_CLASSES} classes"
            raise ConfigError(f"{expected}, found {len(self.classes)}: give --classes")
        if len(set(self.classes)) != len(self.classes):
            raise ConfigError(f"expected classes with different names, found {', '.join(self.classes)}")
        if not self.classifies and not -np.inf < self.low < self.high < np.inf:
            raise ConfigError(f"expected a label range low:high, found {self.low:g}:{self.high:g}: give --label-range")
        if self.kind == "counts" and (self.low != 0.0 or self.high != math.floor(self.high)):
            expected = "expected counts from 0 to a whole number"
            raise ConfigError(f"{expected}, found {self.low:g}:{self.high:g}: give --label-range 0:MOST")

    @property
    def classifies(self) -> bool:
        """Whether labels are classes."""
        return self.kind in ("binary", "multiclass")

    @property
    def scores(self) -> int:
        """The scores of a record, K."""
        return len(self.classes) if self.kind == "multiclass" else 1

    @property
    def class_text(self) -> str | None:
        """The names of the classes as `--classes` has them; None without classes."""
        if not self.classifies:
            return None
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(self.classes)
        return line.getvalue()

    @property
    def range_text(self) -> str | None:
        """The range as `--label-range` has it; None for classes."""
        return None if self.classifies else f"{self.low!r}:{self.high!r}"

    def scaled(self, labels: Array) -> Array:
        """Return numbers in original units as labels of the loss, (1); other labels as they are."""
        if self.kind != "regression":
            return labels
        with np.errstate(over="ignore"):  # what is too large for a float is at the end of the range
            return np.clip((labels - self._middle) / self._half, -1.0, 1.0)

    def unscaled(self, scores: Array) -> Array:
        """Return labels or scores of the loss in original units."""
        if self.kind != "regression":
            return scores
        return self._half * scores + self._middle

    @property
    def _middle(self) -> float:
        return 0.5 * self.low + 0.5 * self.high

    @property
    def _half(self) -> float:
        return 0.5 * self.high - 0.5 * self.low

    def coded(self, labels: Array, what: str) -> Array:
        """Return labels as they stand in a file as labels of the loss; raise `DataError` for others than declared.

        Classes stand there as the numbers that they are named by, or as their codes; two classes also as 0 and 1. The
        message does not show a label.
        """
        if self.kind == "regression":
            return self.scaled(labels)
        if self.kind == "counts":
            whole = (labels >= 0.0) & (labels == np.floor(labels))
            if not whole.all():
                raise DataError(f"{what}: expected counts 0, 1, 2 ..., found other labels: use --task regression")
            return np.minimum(labels, self.high)
        codes = np.array([-1.0, 1.0]) if self.kind == "binary" else np.arange(float(len(self.classes)))
        for values in self._written(codes):
            order = np.argsort(values)
            places = order[np.searchsorted(values[order], labels).clip(max=len(values) - 1)]
            if np.array_equal(values[places], labels):
                return np.asarray(codes[places])
        if self == Task():
            advice = f"name two as in --classes 1,2, use {MORE_CLASSES} for more, or --task regression for real labels"
            raise DataError(f"{what}: expected class labels -1/+1 or 0/1, found others: {advice}")
        named = f"--classes {self.class_text}"
        raise DataError(f"{what}: expected labels of the classes of {named}, found others: declare all, or recode them")

    def kept(self, labels: Array, what: str) -> Array:
        """Return labels that are said to be coded already, numbers and counts within the declared range.

        Raise `DataError` for classes and counts that are none; the message does not show a label.
        """
        if self.kind == "regression":
            return np.clip(labels, -1.0, 1.0)
        if self.kind == "binary":
            right, expected = np.abs(labels) == 1.0, "classes coded -1 and +1"
        else:
            most = len(self.classes) - 1.0 if self.kind == "multiclass" else math.inf
            right = (labels >= 0.0) & (labels <= most) & (labels == np.floor(labels))
            expected = "counts 0, 1, 2 ..." if self.kind == "counts" else f"classes coded 0 to {most:.0f}"
        if not right.all():
            raise DataError(f"{what}: expected {expected}, found other labels: code the table anew")
        return np.minimum(labels, self.high) if self.kind == "counts" else labels

    def written(self, names: Sequence[Any], what: str) -> Array:
        """Return labels that are names of classes as the numbers that `coded` takes; raise `DataError` for others."""
        codes = np.array([-1.0, 1.0]) if self.kind == "binary" else np.arange(float(len(self.classes)))
        numbers = dict(zip(self.classes, self._written(codes)[0].tolist(), strict=True)) if self.classifies else {}
        try:
            return np.array([numbers[str(name).strip()] for name in names])
        except KeyError:
            named = f"classes {self.class_text}" if numbers and self != Task() else "classes that are declared"
            raise DataError(f"{what}: expected labels of the {named}, found others: declare all by --classes") from None

    def _written(self, codes: Array) -> list[Array]:
        """Return the numbers by which the classes may stand in a file, in the order of their codes."""
        names = [_number(name) for name in self.classes]
        if not all(map(math.isfinite, names)):
            names = codes.tolist()
        found = [np.array(names)]
        if self.kind == "binary" and names == [-1.0, 1.0]:
            found.append(np.array([0.0, 1.0]))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON-ready values."""
        return {"kind": self.kind, "classes": list(self.classes), "low": self.low, "high": self.high}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Task:
        """Return the task that `to_dict` described; raise `DataError` for anything else."""
        try:
            if fields["kind"] not in get_args(TaskKind):
                raise ValueError
            classes = tuple(str(name) for name in fields["classes"])
            return cls(fields["kind"], classes, float(fields["low"]), float(fields["high"]))
        except (KeyError, TypeError, ValueError, ConfigError):
            raise DataError("expected a task with kind, classes, low and high, found none: write it anew") from None


@frozen
class Declared:
    """What flags say about the labels; None where they say nothing."""

    kind: TaskKind | None = None
    classes: tuple[str, ...] | None = None
    span: tuple[float, float] | None = None

    @classmethod
    def parse(cls, kind: TaskKind | None, classes: str | None, label_range: str | None) -> Declared:
        """Return the declaration in `--task`, `--classes` and `--label-range`, with the kind that they imply."""
        names = None if classes is None else _names(classes)
        span = None if label_range is None else _span(label_range)
        if names is not None and span is not None:
            raise ConfigError("give --classes (for classes) or --label-range (for numbers and counts), not both")
        if kind is None and names is not None:
            kind = "binary" if len(names) == 2 else "multiclass"
        if kind is None and span is not None:
            kind = "regression"
        for flag, given, kinds in (
            ("--classes", names, ("binary", "multiclass")),
            ("--label-range", span, ("regression", "counts")),
        ):
            if given is not None and kind not in kinds:
                raise ConfigError(f"expected {flag} with --task {' or '.join(kinds)} only, found {kind}: leave it out")
        return cls(kind, names, span)

    def known(self) -> Task | None:
        """Return the task, if flags say it all; two classes are called -1 and 1 if nobody says."""
        if self.kind in (None, "binary"):
            return Task("binary", self.classes or ("-1", "1"))
        if self.kind == "multiclass":
            return None if self.classes is None else Task("multiclass", self.classes)
        return None if self.span is None or self.kind is None else Task(self.kind, (), *self.span)

    def with_declared(self, declared: Task) -> Task:
        """Return the task of labels that are coded for `declared`; raise `ConfigError` where flags say otherwise."""
        if declared.kind == "binary" and self.kind == "regression":  # -1 and +1 are numbers too
            declared = Task("regression", ())
        same = self.kind in (None, declared.kind) and self.classes in (None, declared.classes)
        if not same or self.span not in (None, (declared.low, declared.high)):
            said = declared.class_text or f"{declared.kind} in {declared.range_text}"
            raise ConfigError(f"expected --task, --classes, --label-range as the data declare ({said}), found others")
        return declared

    def with_labels(self, values: Sequence[float], span: tuple[float, float] | None, what: str) -> Task:
        """Return the task, what flags leave open taken from public labels.

        `values` are the different ones in order, `MOST_CLASSES` + 1 at most, `span` the ends of more of them.
        """
        if self.kind in (None, "binary", "multiclass"):
            kind: TaskKind = self.kind or "binary"
            if self.classes is not None:
                return Task(kind, self.classes)
            if len(values) < 2 or len(values) > (2 if kind == "binary" else MOST_CLASSES):
                shown = ", ".join(f"{value:g}" for value in values[:3]) + (" and more" if len(values) > 3 else "")
                many = "exactly two" if kind == "binary" else f"2 to {MOST_CLASSES}"
                raise DataError(
                    f"{what}: expected {many} label values, found {shown}: choose another file, {MORE_CLASSES} "
                    "for more, or --task regression for real labels"
                )
            return Task(kind, tuple(f"{v:g}" if float(f"{v:g}") == v else repr(v) for v in values))
        low, high = self.span or span or (min(values, default=0.0), max(values, default=1.0))
        if self.kind == "counts":
            return Task("counts", (), 0.0, max(1.0, high))
        return Task("regression", (), low, high if high > low else low + max(1.0, abs(low)))


def _names(text: str) -> tuple[str, ...]:
    try:
        [names] = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        names = []
    names = [name.strip() for name in names]
    if not names or not all(name and name.isprintable() for name in names):
        raise ConfigError(f"expected --classes a,b,... with the names of the classes, found {text!r}")
    return tuple(names)


def _span(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    found = _number(low), _number(high)
    if not -math.inf < found[0] < found[1] < math.inf:
        raise ConfigError(f"expected --label-range low:high with numbers low < high, found {text!r}")
    return found


def parse_weights(text: str) -> dict[str, float]:
    """Return the weights that `--class-weights a=1,b=5` declares."""
    found: dict[str, float] = {}
    for item in _names(text):
        name, _, value = item.rpartition("=")
        weight = _number(value)
        if not name or name in found or not 1e-6 <= weight <= 1e6:
            expected = "expected --class-weights a=1,b=5,... with each class once and weights in 1e-6 ... 1e6"
            raise ConfigError(f"{expected}, found {item!r}")
        found[name] = weight
    return found


def _number(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
