"""Who gets which training rows of public data: even shards, or shards that differ as those of real parties do.

The shared seed puts the n training rows into one global order. Of s ranks, rank i = 0 ... s-1 has, of this order,

    even:         the rows floor(i n / s) ... floor((i+1) n / s) - 1                                               (1)
    sorted:       the rows (1) after a stable sort by label: most ranks have one class                             (2)
    sizes:A,B,..: the first A rows, the next B rows, ...; rows that are left over are not used                     (3)
    dirichlet:a:  of the n_c rows of each class c those from floor(n_c P_ci) to floor(n_c P_c,i+1) - 1, with
                  P_ci = p_c0 + ... + p_c,i-1   and   (p_c0, ..., p_c,s-1) ~ Dirichlet(a, ..., a)                  (4)

(4) is the label skew of [YAG], section 4. Shares have mean 1/s and variance (1/s)(1 - 1/s)/(s a + 1): for large a they
are even, for small a few ranks have all of a class. A rank that (4) leaves without a row takes the last row of the
rank that has most rows by then, of several the first; empty ranks take turns in their order                       (5)

Laid end to end, the shards (1) and (2) are the same data for every s; those of (4) hold the same rows for every s.
Test rows are always dealt by (1), so that accuracies of all deals are about the same rows.

Every rank needs all labels for (2) and (4), hence public data.

[YAG] Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni. Bayesian nonparametric federated learning of neural
      networks. ICML 2019.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, nearest
from dpmpi.problem.rows import Positions
from dpmpi.rng import public_generator

Part: TypeAlias = range | Positions
"""A rank's rows: positions in the global order."""

KINDS = ("even", "sorted", "dirichlet", "sizes")
_WANTED = "expected --deal even, sorted, dirichlet:ALPHA or sizes:A,B,..."
_LEAST, _MOST = 1e-3, 1e6  # alpha: a single rank has a class, all have the same share of it


@frozen
class Deal:
    """How training rows are dealt out to the ranks."""

    kind: str = "even"
    alpha: float = 0.0
    sizes: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Deal:
        """Return the deal that `--deal` names; raise `ConfigError`."""
        kind, colon, value = text.partition(":")
        if kind not in KINDS or bool(colon) != (kind in ("dirichlet", "sizes")):
            raise ConfigError(f"{_WANTED}, found {text!r}{nearest(kind, KINDS)}")
        if kind == "dirichlet":
            return cls(kind, alpha=_alpha(value))
        return cls(kind, sizes=tuple(map(_size, value.split(",")))) if kind == "sizes" else cls(kind)

    @property
    def by_label(self) -> bool:
        """Whether the labels decide."""
        return self.kind in ("sorted", "dirichlet")

    def parts(self, count: int, labels: Array | None, ranks: int, seed: int) -> list[Part]:
        """Return every rank's part of `count` >= `ranks` rows; deals by label need `labels` in the global order."""
        if self.kind == "sizes":
            return _by_sizes(self.sizes, count, ranks)
        even: list[Part] = [evenly(count, rank, ranks) for rank in range(ranks)]
        if labels is None or not self.by_label:
            return even
        if self.kind == "dirichlet":
            return _by_dirichlet(self.alpha, labels, ranks, seed)
        order = np.argsort(labels, kind="stable")
        return [pick(order, part) for part in even]  # (2)


EVEN = Deal()


def evenly(count: int, rank: int, ranks: int) -> range:
    """Return the positions (1) that fall to `rank`."""
    return range(rank * count // ranks, (rank + 1) * count // ranks)


def pick(order: Positions, part: Part) -> Positions:
    """Return the entries of `order` at the positions of a part."""
    return order[part.start : part.stop] if isinstance(part, range) else order[part]


def _by_sizes(sizes: tuple[int, ...], count: int, ranks: int) -> list[Part]:
    if len(sizes) != ranks:
        raise ConfigError(
            f"expected a size for each of {ranks} ranks in --deal sizes, found {len(sizes)}: name {ranks}"
        )
    if sum(sizes) > count:
        raise ConfigError(
            f"expected at most the {count} training rows that there are in --deal sizes, found {sum(sizes)}: name "
            "smaller sizes, or more samples"
        )
    return [range(*ends) for ends in pairwise(accumulate(sizes, initial=0))]  # (3)


def _by_dirichlet(alpha: float, labels: Array, ranks: int, seed: int) -> list[Part]:
    parts: list[list[Positions]] = [[] for _ in range(ranks)]
    for c, label in enumerate(np.unique(labels)):
        rows = np.flatnonzero(labels == label)
        shares = public_generator(seed, "dirichlet", ranks, c).dirichlet([alpha] * ranks)
        ends = np.floor(len(rows) * np.cumsum(shares)[:-1]).astype(np.intp)
        for part, found in zip(parts, np.split(rows, np.minimum(ends, len(rows))), strict=True):  # (4)
            part.append(found)
    dealt = [np.sort(np.concatenate(part)) for part in parts]
    for rank in range(ranks):
        if len(dealt[rank]) == 0:
            richest = max(range(ranks), key=lambda other: len(dealt[other]))
            dealt[rank], dealt[richest] = dealt[richest][-1:], dealt[richest][:-1]  # (5)
    return list(dealt)


def _alpha(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = 0.0
    if not _LEAST <= alpha <= _MOST:
        raise ConfigError(f"expected --deal dirichlet:ALPHA with ALPHA in {_LEAST:g} ... {_MOST:g}, found {text!r}")
    return alpha


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text)):
        raise ConfigError(f"expected --deal sizes:A,B,... with whole numbers from 1, found {text!r}")
    return int(text)
