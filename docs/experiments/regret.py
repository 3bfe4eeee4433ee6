"""Measure the regret of the derived settings against an oracle that gains nothing by luck, and that of another rule.

An oracle that takes the best of 32 settings by the accuracies that it is then credited with is too good even if all
settings are alike. Here the records are cut into two halves, and so are the splits. The oracle chooses by the held-out
records of one half in the splits of one half, and is measured, as the rule is, by the other records in the other
splits; then the other way round; the mean over many such cuts is `crossed`. Its standard error is that of 30 bootstrap
samples of records and splits, each with a cut of its own. `naive` is what the same splits give without any cut,
and `few` with as many splits as defaults.py takes.

The other rule, `quarter`, clips to 1/4 where noise and not the number of rounds is what ends a run, and goes

    tau = 2 sqrt(2) (2 L nu)^(-5/4) (10/m)^(3/8),   L = 1/4,   if that is less than `momentum` goes at most        (1)

far; elsewhere it is the rule. Rows, noise and rounds are those of `defaults.py` beside this file, logistic loss.

    DPMPI_DATA=data python docs/experiments/regret.py breast_cancer=2000 digits=1000 generated=150 a9a:300=60 site0=200

takes sets of defaults.py, site0 to site3 (hospitals of heart), wine, iris, diabetes (scikit-learn's, as two classes) or
members (breast_cancer), these four with _COLUMNS as in weights.py, and how many splits there are. With `:N`, N records
are for training and up to 3000 others held out, else nine tenths and one. It prints regrets in points by cell, and mean
held-out losses: the rule's, quarter's, and that of 0.6 times quarter's model.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from defaults import FURTHEST, Floats, Matrix, Setting, Split, choose, heart, load, mean_loss, rule_rounds, train
from numpy.typing import NDArray
from weights import members, prepared, site_ends

from dpmpi.rng import public_generator

CUTS, SAMPLES, SHRUNK = 40, 30, 0.6
Counts = NDArray[np.float64]


@dataclass
class Found:
    """What all settings reach in a split: which records were held out, and which of them were right."""

    held: NDArray[np.int64]
    right: Floats
    """A row per record, a column per setting."""
    losses: Counts
    """Of all settings, and of their models times SHRUNK."""


def rows(name: str) -> tuple[Matrix, Floats]:
    """Return the records of a set with the intercept, and labels."""
    head, _, columns = name.partition("_")
    if head == "members":
        return members(columns)
    if head in ("wine", "iris", "diabetes"):
        from sklearn import datasets  # noqa: PLC0415

        x, y = getattr(datasets, f"load_{head}")(return_X_y=True, **({"scaled": False} if head == "diabetes" else {}))
        x, y = (x[y > 0], y[y > 0] == 2) if head == "iris" else (x, y > np.median(y) if head == "diabetes" else y == 1)
        return prepared(x, columns or "tens"), np.where(y, 1.0, -1.0).astype(np.float32)
    if not name.startswith("site"):
        return load(name)
    ends, site = [0, *site_ends()], int(name[4:])
    x, y = (part[ends[site] : ends[site + 1]] for part in heart())
    return prepared(x, "raw"), y


def quarter(rule: Setting, m: int) -> Setting:
    """Return the other rule, (1), for the cell of a setting by rule."""
    tau = 2.0 * math.sqrt(2.0) * (0.5 * rule.nu) ** -1.25 * (10.0 / m) ** 0.375
    if tau >= FURTHEST:
        return replace(rule, kind="quarter")
    return replace(rule, kind="quarter", clip=0.25, tau=tau, rounds=rule_rounds(tau))


def simulate(name: str, records: int, count: int) -> Iterator[tuple[list[Setting], Found]]:
    """Yield the settings and what they reach, split by split."""
    x, y = rows(name)
    cut = records or len(y) - round(len(y) / 10)
    for seed in range(count):
        order = public_generator(seed, "shuffle").permutation(len(y))
        kept, held = order[:cut], order[cut : cut + 3000 if records else None]
        settings = [s for s in choose(cut, x.shape[1], "logistic") if s.kind in ("rule", "grid")]
        settings += [quarter(s, x.shape[1]) for s in settings if s.kind == "rule"]
        model, labels = train(Split(x[kept], y[kept], x[held], y[held]), settings, "logistic", seed)[0], y[held, None]
        scores = x[held] @ model
        losses = [mean_loss(labels * scores * scale, "logistic") for scale in (1.0, SHRUNK)]
        yield settings, Found(held, ((scores > 0) == (labels > 0)).astype(np.float32), np.array(losses))


def accuracies(found: list[Found], weight: Counts, which: NDArray[np.int64] | range) -> Counts:
    """Return the accuracies of all settings in these splits, records counted by weight."""
    right = sum(weight[found[k].held] @ found[k].right for k in which)
    return np.asarray(right / sum(weight[found[k].held].sum() for k in which))


class Cells:
    """Which settings belong to which cell, and to which rule."""

    def __init__(self, settings: list[Setting]) -> None:
        cells = [(epsilon, place) for epsilon in (0.2, 1.0, 5.0) for place in ("sum", "local")]
        kind, cell = (
            np.array([s.kind for s in settings]),
            np.array([cells.index((s.epsilon, s.place)) for s in settings]),
        )
        self.oracles = [np.flatnonzero((cell == c) & (kind != "quarter")) for c in range(6)]
        self.rules = {k: np.array([np.flatnonzero((cell == c) & (kind == k))[0] for c in range(6)]) for k in KINDS}

    def regrets(self, chosen_by: Counts, measured: Counts) -> Counts:
        """Return the regrets of the rules by cell."""
        oracle = np.array([measured[which[chosen_by[which].argmax()]] for which in self.oracles])
        return np.array([oracle - measured[self.rules[kind]] for kind in KINDS])


KINDS = ("rule", "quarter")


def crossed(found: list[Found], cells: Cells, rng: np.random.Generator, *, sample: bool) -> Counts:
    """Return the regrets with an oracle that is chosen on one half and measured on the other, both ways."""
    records = 1 + max(int(f.held.max()) for f in found)
    weight = rng.multinomial(records, np.full(records, 1.0 / records)) if sample else np.ones(records)
    weight, half, order = weight.astype(np.float32), rng.random(records) < 0.5, rng.permutation(len(found))
    sides = [rng.choice(side, len(side)) if sample else side for side in (order[::2], order[1::2])]
    a, b = accuracies(found, weight * half, sides[0]), accuracies(found, weight * ~half, sides[1])
    return (cells.regrets(a, b) + cells.regrets(b, a)) / 2


def report(name: str, records: int, count: int) -> None:
    """Print the regrets on a set."""
    found: list[Found] = []
    for now, one in simulate(name, records, count):
        settings, _ = now, found.append(one)
    cells, rng = Cells(settings), np.random.default_rng(0)
    each = np.array([f.right.mean(0) for f in found])
    few = 10 if len(found[0].held) > 300 else 40
    small = [each[rng.permutation(count)[:few]].mean(0) for _ in range(CUTS)]
    everything = accuracies(found, np.ones(1 + max(int(f.held.max()) for f in found)), range(count))
    naive, lucky = cells.regrets(everything, everything), np.mean([cells.regrets(a, a) for a in small], axis=0)
    cut = np.mean([crossed(found, cells, rng, sample=False) for _ in range(CUTS)], axis=0)
    spread = np.std([crossed(found, cells, rng, sample=True).mean(1) for _ in range(SAMPLES)], axis=0, ddof=1)
    gain = each[:, cells.rules["quarter"]].mean(1) - each[:, cells.rules["rule"]].mean(1)
    losses = np.mean([f.losses for f in found], axis=0)
    of_rule, of_quarter = losses[0][cells.rules["rule"]], losses[:, cells.rules["quarter"]]
    head = f"{name} {records}" if records else name
    right = " ".join(f"{100 * value:.1f}" for value in everything[cells.rules["rule"]])
    sys.stdout.write(f"{head} rule: accuracy {right}\n")
    for k, kind in enumerate(KINDS):
        by_cell = " ".join(f"{100 * value:.2f}" for value in cut[k])
        sys.stdout.write(
            f"{head} {kind}: few {100 * lucky[k].mean():.2f}, naive {100 * naive[k].mean():.2f}, crossed "
            f"{100 * cut[k].mean():.2f} (se {100 * spread[k]:.2f}), by cell {by_cell}\n"
        )
    error = 100 * gain.std(ddof=1) / math.sqrt(count)
    sys.stdout.write(
        f"{head} quarter - rule: {100 * gain.mean():+.2f} (se {error:.2f}); losses {of_rule.mean():.3f}, "
        f"{of_quarter[0].mean():.3f}, {of_quarter[1].mean():.3f}; above log 2 in {np.sum(of_rule > math.log(2))}, "
        f"{np.sum(of_quarter[0] > math.log(2))}, {np.sum(of_quarter[1] > math.log(2))} of 6 cells\n"
    )
    sys.stdout.flush()


def main() -> None:
    """Print the regrets on every set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET[:RECORDS]=SPLITS")
    for text in parser.parse_args().sets:
        head, count = text.split("=")
        name, _, records = head.partition(":")
        report(name, int(records or 0), int(count))


if __name__ == "__main__":
    main()
