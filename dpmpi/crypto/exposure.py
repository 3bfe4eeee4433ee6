"""Exposure by sums: whether the summands of some groups can be solved for.

Row g of A says which ranks are in sum g. Whoever sees all the sums, and knows the vectors of the colluders, knows the
honest summands up to the null space of the honest columns of A. With P the projector onto their row space,

    h_a = |P e_a|^2                                                                                     (1)

rank a's summand is exposed if and only if h_a = 1: then e_a is a combination of the rows. The sum of all n ranks alone
has h_a = 1/(n - c) for c colluders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dpmpi.core import Array

_ROUNDING = 1e-9


def exposure(groups: Sequence[Iterable[int]], size: int, colluders: Iterable[int] = ()) -> Array:
    """Return h_a of (1) for every rank; nan for colluders, who have nothing to hide from themselves."""
    A = np.zeros((len(groups), size))
    for g, group in enumerate(groups):
        A[g, list(group)] = 1.0
    known = sorted(set(colluders))
    honest = [a for a in range(size) if a not in known]
    _, values, rows = np.linalg.svd(A[:, honest], full_matrices=False)
    basis = rows[values > _ROUNDING * max(1.0, values.max(initial=0.0))]
    found: Array = np.full(size, np.nan)
    found[honest] = np.sum(basis * basis, axis=0)
    return found


def exposed(groups: Sequence[Iterable[int]], size: int, colluders: Iterable[int] = ()) -> list[int]:
    """Return the ranks whose summand can be solved for."""
    return [int(a) for a in np.flatnonzero(exposure(groups, size, colluders) > 1.0 - _ROUNDING)]
