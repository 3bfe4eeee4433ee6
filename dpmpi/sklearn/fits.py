"""What the fits of this process have spent on the same records.

Every fit releases anew. A record that was part of fits with the spendings S_1, ..., S_k (the releases of the agent that
has spent the most) has spent S_1 + ... + S_k, whose certified epsilon is that of one run with all these releases: fits
compose as rounds do. In cross-validation and grid searches records are part of some fits and not of others, so that
each is followed by a keyed hash of its row and label. Nothing of this leaves the process.

The bound holds for fits that were planned in advance (a grid, folds). Whoever decides after each fit whether, and how,
to go on keeps a budget: `--budget` and `--ledger` of the command line.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import spent_epsilon


class PrivacyWarning(UserWarning):
    """Something costs more privacy than one fit says."""


class NoiseWarning(UserWarning):
    """The noise leaves a weak model, or hardly anything but noise."""


_LIBRARIES = ("dpmpi", "sklearn", "joblib")
"""Between a fit and the user's line that asked for it, by itself or by a search."""
_key = os.urandom(32)
_spendings: list[Counter[ReleaseEvent]] = []
_told: set[tuple[str, int]] = set()
"""The words on fits, and their columns, that were told."""
_part_of: dict[bytes, tuple[int, ...]] = {}
"""The fits that each record was part of."""


def forget_fits() -> None:
    """Forget what was spent, and told: for other records that happen to be the same, as in examples and tests."""
    _spendings.clear()
    _part_of.clear()
    _told.clear()


def note_fit(X: Any, y: Array, spending: Counter[ReleaseEvent], delta: float) -> tuple[int, float | None]:
    """Note a fit; return of how many fits the record that has spent the most was part, and its epsilon."""
    number = len(_spendings)
    _spendings.append(spending)
    groups = set()
    for name in _names(X, y):
        _part_of[name] = (*(one for one in _part_of.get(name, ()) if one != number), number)
        groups.add(_part_of[name])
    largest = [one for one in groups if not any(set(one) < set(other) for other in groups)]
    spent = [(_epsilon(one, delta), len(one)) for one in largest]
    unbounded = [count for epsilon, count in spent if epsilon is None]
    if unbounded:
        return max(unbounded), None
    epsilon, count = max((epsilon or 0.0, count) for epsilon, count in spent)
    return count, epsilon


def warn_of_fits(count: int, epsilon: float | None, own: float | None, delta: float) -> None:
    """Warn if records were part of several fits."""
    if count > 1:
        together = "no finite epsilon" if epsilon is None else f"epsilon {epsilon:.3g}"
        alone = "none" if own is None else f"{own:.3g}"
        warnings.warn(
            f"records were part of {count} fits in this process: together they have spent {together} at delta "
            f"{delta:g}, not {alone}; every fold, and every setting that is tried, is a fit",
            PrivacyWarning,
            stacklevel=_callers_level(),
        )


def warn_of_noise(verdict: Mapping[str, Any] | None) -> None:
    """Warn if a run was expected to give a weak model or mostly noise, with the line that says why and what would do.

    A search fits many times, each fold with other figures: it is told once for each word and number of columns.
    """
    if verdict is None or verdict["word"] not in ("weak", "mostly noise"):
        return
    alike = verdict["word"], verdict["dimension"]
    if alike not in _told:
        _told.add(alike)
        warnings.warn(verdict["line"], NoiseWarning, stacklevel=_callers_level())


def warn_of_scaling(X: Any) -> None:
    """Warn of records that look as if they had been scaled by figures of their own."""
    if hasattr(X, "tocsr") or len(X) < 10:
        return
    spread = X.std(axis=0)
    varying = X[:, spread > 0]
    if not varying.size:
        return
    standard = np.abs(varying.mean(axis=0)) < 1e-9
    standard &= np.abs(varying.std(axis=0) - 1.0) < 1e-9
    least = varying.min(axis=0)
    unit = (np.abs(least) < 1e-12) | (np.abs(least + 1.0) < 1e-12)
    unit &= np.abs(varying.max(axis=0) - 1.0) < 1e-12
    binary = np.isin(varying, (-1.0, 0.0, 1.0)).all(axis=0)
    if standard.all() or (unit.all() and not binary.any()):
        warnings.warn(
            "records look as if they had been scaled by their own mean or range, which every prediction then tells "
            "without noise: scale by declared bounds, as BoundedScaler does",
            PrivacyWarning,
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """Return the `stacklevel` at which a function that calls this warns of the line outside of the libraries."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    return level


def _epsilon(fits: tuple[int, ...], delta: float) -> float | None:
    return spent_epsilon(sum((_spendings[one] for one in fits), Counter()), delta)


def _names(X: Any, y: Array) -> list[bytes]:
    """Return a keyed hash of every record."""
    if hasattr(X, "tocsr"):
        ends = X.indptr.tolist()
        rows = [X.indices[a:b].tobytes() + X.data[a:b].tobytes() for a, b in pairwise(ends)]
    else:
        rows = [row.tobytes() for row in np.ascontiguousarray(X)]
    labels = [str(label).encode() for label in y.tolist()]
    return [
        hashlib.blake2b(row + label, digest_size=8, key=_key).digest() for row, label in zip(rows, labels, strict=True)
    ]
