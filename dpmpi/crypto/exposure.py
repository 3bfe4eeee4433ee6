"""What sums give away: whether the summands of some groups can be solved for, and what masks hide.

**Sums of groups.** Row g of A says which ranks are in sum g. Whoever sees all the sums, and knows the vectors of the
colluders, knows the honest summands up to the null space of the honest columns of A. With P the projector onto their
row space,

    h_a = |P e_a|^2                                                                                     (1)

rank a's summand is exposed if and only if h_a = 1: then e_a is a combination of the rows. The sum of all n ranks alone
has h_a = 1/(n - c) for c colluders.

**Masked summands.** Everything that somebody sees is a linear combination of summands k_i and masks, of which each is
uniform and independent of all else. Then what is seen tells the combinations of it in which no mask is left, and
nothing more: given these, the rest is uniform whatever the k_i. `learned` finds them by elimination, mask by mask, for
any view; `masked_view` is that of colluders who listen to everything under masks of some pairs (mask_graph.py has the
theorem that this checks). Over the rationals: the matrices here are those of graphs, whose minors are 0, 1 and -1, so
that the same combinations remain modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from dpmpi.core import Array
from dpmpi.crypto.mask_graph import Pair

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


def masked_view(size: int, pairs: Iterable[Pair], colluders: Iterable[int]) -> list[dict[Hashable, int]]:
    """Return the colluders' view: every masked summand y_i, and their own summands and masks.

    Summands are named by their ranks, masks by their pairs. Whatever is added up on the way is a combination of these.
    """
    pairs, known = list(pairs), set(colluders)
    seen: list[dict[Hashable, int]] = [
        {rank: 1} | {pair: 1 if rank == pair[0] else -1 for pair in pairs if rank in pair} for rank in range(size)
    ]
    seen += [{rank: 1} for rank in known]
    return seen + [{pair: 1} for pair in pairs if known & {*pair}]


def learned(seen: Sequence[Mapping[Hashable, int]], honest: Sequence[int]) -> list[list[Fraction]]:
    """Return all that is learned about the summands of the honest ranks: a basis of combinations, reduced.

    `seen` are combinations of named unknowns; the honest ranks name the summands, all others hide them. [[1, 1, 1]] is
    the sum of three honest ranks and nothing else.
    """
    rows = [{name: Fraction(weight) for name, weight in row.items()} for row in seen]
    for name in {name for row in rows for name in row if name not in honest}:
        _eliminate(rows, name)
    basis: list[list[Fraction]] = []
    for rank in honest:
        pivot = _eliminate(rows, rank)
        if pivot is not None:
            row = [pivot.get(other, Fraction(0)) / pivot[rank] for other in honest]
            column = honest.index(rank)
            basis = [[x - one[column] * y for x, y in zip(one, row, strict=True)] for one in basis] + [row]
    return basis


def _eliminate(rows: list[dict[Hashable, Fraction]], name: Hashable) -> dict[Hashable, Fraction] | None:
    """Take an unknown out of all rows by the shortest that has it, which is removed and returned; None if none has."""
    holders = sorted((row for row in rows if name in row), key=len)
    if not holders:
        return None
    pivot = holders[0]
    rows[:] = [row for row in rows if row is not pivot]
    for row in holders[1:]:
        factor = row[name] / pivot[name]
        for other, weight in pivot.items():
            row[other] = row.get(other, Fraction(0)) - factor * weight
            if not row[other]:
                del row[other]
    return pivot
