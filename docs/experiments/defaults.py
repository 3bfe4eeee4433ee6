"""Simulate the derived settings of `momentum` on many data sets: the rule, an oracle, and no noise.

Central and with perfect mixing. Rows a have norm 1 at most, then (a, 0.3)/sqrt(1.09). With nu of dpmpi.runtime.derived,

    g_t = mean over records of clip_L(gradient at x_t) + L nu sqrt(T) N(0, I)                       (1)
    v <- beta v - eta g_t,   x <- x + v,   beta = 1 - 6/T,   eta = 6 tau / T^2                      (2)

and the model is the last x. One column per setting, so that a round is two matrix products for all settings of a set;
the columns of a cell (epsilon, place of the noise) share their noise. Each split holds out another tenth of the rows.

    DPMPI_DATA=data python docs/experiments/defaults.py simulate cells.jsonl [--sets a9a heart] [--loss hinge]
    python docs/experiments/defaults.py regrets cells.jsonl      # the rule, another one, and the oracle
    python docs/experiments/defaults.py verdicts cells.jsonl     # how often dpmpi.runtime.verdict is right

The folder DPMPI_DATA holds the LIBSVM files, `heart/` and the original files of Adult; defaults.md has the results.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, diags, hstack

from dpmpi.data import parse_source
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.rows import Dense
from dpmpi.rng import public_generator
from dpmpi.runtime.verdict import Figures, verdict

FITTED = ("a9a", "phishing", "mushrooms", "ijcnn1", "w8a", "rcv1", "adult", "heart", "reuters_moneyfx")
CHECKED = ("reuters_small", "mixture", "rare", "noisy")
FRESH = ("breast_cancer", "digits", "generated")
LATER = ("mnist", "decaying", "documents")
FILES = {"rcv1": "rcv1_subsets.binary"}
SYNTHETIC = {
    "decaying": "synthetic:samples=10000,features=100,decay=0.5,task=logistic",
    "documents": "synthetic:samples=20000,features=5000,density=0.01,zipf=1.5,shift=100,topic=0.75,flip=0,task=svm",
}
EPSILONS, DELTA, RANKS, COLLUDERS = (0.2, 1.0, 5.0), 1e-5, 20, 1
SPREAD = {"local": math.sqrt(RANKS), "sum": math.sqrt(RANKS / (RANKS - COLLUDERS))}
CLIPS = {"logistic": (0.5, 0.25, 1.0), "hinge": (1.0,)}
PART = {"logistic": 1.0, "hinge": 0.35}
FURTHEST = 8.0 * 100**2 / 6
Floats = NDArray[np.float32]
Matrix = Any
"""A dense float32 array or a csr_matrix."""

OPTIONS: dict[str, dict[str, Any]] = {
    "generated": {"n_samples": 20_000, "n_features": 40, "n_informative": 10, "random_state": 1},
    "mixture": {"n_samples": 10_000, "n_features": 200, "n_informative": 20, "random_state": 2},
    "rare": {
        "n_samples": 30_000,
        "n_features": 60,
        "n_informative": 8,
        "weights": [0.93],
        "class_sep": 1.5,
        "random_state": 3,
    },
    "noisy": {"n_samples": 5_000, "n_features": 20, "n_informative": 5, "flip_y": 0.2, "random_state": 4},
}
"""Of scikit-learn's make_classification."""


@dataclass(frozen=True)
class Setting:
    """One column: a cell, and what is chosen for it."""

    epsilon: float
    place: str
    nu: float
    clip: float
    tau: float
    rounds: int
    kind: str
    """`rule`; `other`, with 4 (10/m)^(1/4) / (2 L nu) for tau; `grid`, for the oracle; `far`, from 0.003 to 100 tau."""


def rule_tau(nu: float, m: int, clip: float, part: float, power: float = 0.5) -> float:
    """Return how far to go, (5) of dpmpi.runtime.derived, with (10/m)^power, not yet capped."""
    return float(part * (2.0 * clip * nu) ** -1.5 * (10.0 / m) ** power)


def rule_rounds(tau: float, most: int = 100) -> int:
    """Return the rounds for tau, (8) of dpmpi.algorithms.momentum."""
    return min(max(math.ceil(math.sqrt(6.0 * tau / 8.0)), 10), most)


# --- data


def folder() -> Path:
    """Return the folder of the data files."""
    return Path(os.environ.get("DPMPI_DATA", "data"))


def heart() -> tuple[Matrix, Floats]:
    """Return the four hospitals' records, coded with ranges of the codebook; a missing value is 0."""
    scales = {"age": 100, "sex": 1, "trestbps": 200, "chol": 600, "fbs": 1, "thalach": 220, "exang": 1, "oldpeak": 6.2}
    kinds = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "ca": (0, 1, 2, 3), "thal": (3, 6, 7)}
    rows, labels = [], []
    for path in sorted((folder() / "heart").glob("processed.*.data")):
        with path.open(newline="") as file:
            for record in csv.DictReader(file):
                cells = {k: float(v) if v not in ("", "?") else None for k, v in record.items()}
                row = [min((cells[k] or 0.0) / scale, 1.0) for k, scale in scales.items()]
                rows.append(row + [float(cells[k] == value) for k, values in kinds.items() for value in values])
                labels.append(1.0 if (cells["target"] or 0) > 0 else -1.0)
    return np.array(rows, np.float32), np.array(labels, np.float32)


def scikit(name: str) -> tuple[Matrix, Floats]:
    """Return a data set or a generated one of scikit-learn; measured columns are scaled by public-looking ranges."""
    from sklearn import datasets  # type: ignore[import-untyped]  # noqa: PLC0415

    if name == "breast_cancer":
        x, y = datasets.load_breast_cancer(return_X_y=True)
        x = x / 10.0 ** np.ceil(np.log10(x.max(0)))  # the next power of ten
    elif name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        x, y = x / 16.0, y % 2
    elif name == "mnist":
        parts = (folder() / "mnist" / f"train-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1"))
        images, digits = (gzip.decompress(path.read_bytes()) for path in parts)
        x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 784)[:12_000] / 255.0
        y = np.frombuffer(digits, np.uint8, offset=8)[:12_000] % 2
    else:
        x, y = datasets.make_classification(**OPTIONS[name])
    return np.asarray(x, np.float32), np.where(y > 0, 1.0, -1.0).astype(np.float32)


def load(name: str) -> tuple[Matrix, Floats]:
    """Return all rows of a set, at most of norm 1 and with the intercept, and the labels -1 and +1."""
    if name == "heart":
        x, y = heart()
    elif name in (*CHECKED[1:], *FRESH, "mnist"):
        x, y = scikit(name)
    else:
        spec = (
            f"adult:{folder()}"
            if name == "adult"
            else SYNTHETIC.get(name) or f"libsvm:{folder() / FILES.get(name, name)}.bz2"
        )
        source = parse_source(spec, samples=None, normalize=True, test_fraction=0.0, seed=0, loss="logistic")
        shard = source.load(source.survey(), 0, 1)
        rows, y = shard.rows, shard.labels.astype(np.float32)
        x = rows.matrix if isinstance(rows, Dense) else csr_matrix((rows.data, rows.indices, rows.indptr))
    dense = x.shape[1] <= 1000
    x = csr_matrix(x, dtype=np.float32)
    x = diags(1.0 / np.maximum(np.sqrt(x.multiply(x).sum(1)).A1, 1.0)) @ x
    x = csr_matrix(hstack([x, np.full((x.shape[0], 1), 0.3)]) / math.sqrt(1.09), dtype=np.float32)
    return (x.toarray() if dense else x), y


@dataclass(frozen=True)
class Split:
    """Training rows and held-out rows."""

    x: Matrix
    y: Floats
    held_x: Matrix
    held_y: Floats


def splits(name: str) -> Iterator[Split]:
    """Yield the splits of a set: 10, or 40 of a small one."""
    x, y = load(name)
    for seed in range(10 if len(y) > 3000 else 40):
        order = public_generator(seed, "shuffle").permutation(len(y))
        cut = len(y) - round(len(y) / 10)
        yield Split(x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]])


# --- training


def slope(margins: Floats, loss: str) -> Floats:
    """Return minus the derivative of the loss of a margin."""
    if loss == "hinge":
        return (margins < 1.0).astype(np.float32)
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(margins, -30.0, 30.0))), np.float32)


def mean_loss(margins: NDArray[Any], loss: str) -> NDArray[Any]:
    """Return the mean loss of each column of margins."""
    each = np.maximum(1.0 - margins, 0.0) if loss == "hinge" else np.logaddexp(0.0, -margins)
    return np.asarray(each.mean(0))


def train(split: Split, settings: list[Setting], loss: str, seed: int) -> tuple[Floats, Floats]:
    """Return, a column per setting, the last x and the mean of the last T/2."""
    n, m = split.x.shape
    norms = np.sqrt(np.asarray(csr_matrix(split.x).multiply(split.x).sum(1))).astype(np.float32).reshape(-1, 1)
    order = sorted(
        range(len(settings)), key=lambda k: -settings[k].rounds
    )  # the longest first: columns end at the right
    rounds = np.array([settings[k].rounds for k in order])
    cells = sorted({(s.epsilon, s.place) for s in settings})
    cell = np.array([cells.index((settings[k].epsilon, settings[k].place)) for k in order])
    clip = np.array([settings[k].clip for k in order], np.float32)
    sigma = np.array([settings[k].clip * settings[k].nu * math.sqrt(settings[k].rounds) for k in order], np.float32)
    eta = np.array([6.0 * settings[k].tau / settings[k].rounds ** 2 for k in order], np.float32)
    beta = (1.0 - 6.0 / rounds).astype(np.float32)
    w, v = np.zeros((m, len(order)), np.float32), np.zeros((m, len(order)), np.float32)
    total = np.zeros((m, len(order)), np.float32)
    y, rng = split.y.reshape(-1, 1), np.random.default_rng([seed, 1])
    for t in range(rounds[0]):
        k = int(np.sum(rounds > t))
        c = slope(y * (split.x @ w[:, :k]), loss)
        c = np.minimum(c, clip[:k] / norms) * y
        g = (split.x.T @ c) / np.float32(-n)
        g += rng.standard_normal((m, len(cells)), np.float32)[:, cell[:k]] * sigma[:k]  # (1)
        v[:, :k] = beta[:k] * v[:, :k] - eta[:k] * g  # (2)
        w[:, :k] += v[:, :k]
        total[:, :k] += w[:, :k] * (t >= rounds[:k] // 2)
    back = np.argsort(order)
    return w[:, back], (total / (rounds - rounds // 2).astype(np.float32))[:, back]


def descend(split: Split, settings: list[Setting], loss: str, seed: int) -> list[NDArray[Any]]:
    """Return, for every setting, held-out accuracy and loss of the last x, and of the mean of the last T/2."""
    found, held = [], split.held_y.reshape(-1, 1)
    for model in train(split, settings, loss, seed):
        scores = split.held_x @ model
        found += [np.mean((scores > 0) == (held > 0), axis=0), mean_loss(held * scores, loss)]
    return found


def without_noise(split: Split, loss: str) -> float:
    """Return the held-out accuracy of the minimiser, L2 penalty 1e-6; the hinge is smoothed over 0.1."""
    n, m = split.x.shape

    def objective(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        margins = split.y * (split.x @ w.astype(np.float32))
        if loss == "hinge":
            gap = np.clip((1.0 - margins) / 0.1, 0.0, 1.0)
            value, down = np.mean(np.where(gap < 1, 0.05 * gap**2, 0.95 - margins)), gap
        else:
            value, down = np.mean(np.logaddexp(0.0, -margins)), slope(margins, loss)
        gradient = -(split.x.T @ (split.y * down).astype(np.float32)) / n + 1e-6 * w
        return float(value + 5e-7 * w @ w), gradient.astype(np.float64)

    found = minimize(objective, np.zeros(m), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return float(np.mean((split.held_x @ found.x > 0) == (split.held_y > 0)))


def _setting(epsilon: float, place: str, nu: float, kind: str, clip: float, tau: float, rounds: int) -> Setting:
    """Return a setting whose step is at most 15: heavy ball on a logistic loss diverges beyond 16."""
    return Setting(epsilon, place, nu, clip, min(tau, 15.0 * rounds**2 / 6), rounds, kind)


def choose(n: int, m: int, loss: str) -> list[Setting]:
    """Return the settings to try: by rule, around it for the oracle, and much too far or not nearly far enough."""
    settings = []
    for epsilon in EPSILONS:
        for place, spread in SPREAD.items():
            nu = 2.0 * spread / (n * gdp_mu(epsilon, DELTA))
            own = CLIPS[loss][0]
            tau = min(rule_tau(nu, m, own, PART[loss]), FURTHEST)

            put = partial(_setting, epsilon, place, nu)
            settings.append(put("rule", own, tau, rule_rounds(tau)))
            other = min(PART[loss] * 4.0 / (2.0 * own * nu) * (10.0 / m) ** 0.25, FURTHEST)
            settings.append(put("other", own, other, rule_rounds(other)))
            for k in range(-4, 6):
                for clip in CLIPS[loss][: 3 if k % 2 == 0 else 2]:
                    settings.append(put("grid", clip, tau * 2.0**k, rule_rounds(tau * 2.0**k, 150)))
                if k % 2 == 0:
                    settings.append(put("grid", own, tau * 2.0**k, 100))
            for factor in (0.003, 0.03, 100.0):
                settings.append(put("far", own, tau * factor, 300 if factor > 1 else rule_rounds(tau * factor)))
    return settings


def simulate(name: str, loss: str) -> dict[str, Any]:
    """Return the facts of a set and what every setting reaches on it, means over the splits."""
    began, settings = time.time(), []
    found, majority, free = [], [], []
    for seed, split in enumerate(splits(name)):
        n, m = split.x.shape
        settings = choose(n, m, loss)
        found.append(descend(split, settings, loss, seed))
        majority.append(float(np.mean(split.held_y == np.sign(np.sum(split.y)))))
        free.append(without_noise(split, loss))
        share = float(np.mean(split.y > 0))
    spread, means = np.std(found, axis=0, ddof=1)[0], np.mean(found, axis=0)
    names = ("accuracy", "objective", "mean_accuracy", "mean_objective")
    rows = [
        {**vars(s), "spread": float(spread[k]), **{name: float(means[j][k]) for j, name in enumerate(names)}}
        for k, s in enumerate(settings)
    ]
    facts = {"set": name, "loss": loss, "records": n, "dimension": m, "share": min(share, 1 - share)}
    ends = {
        "majority": max(float(np.mean(majority)), 1 - min(share, 1 - share)),
        "free": float(np.mean(free)),
        "splits": len(free),
    }
    each = {"each": [[round(float(v), 5) for v in f[0]] for f in found]}
    sys.stderr.write(f"{name} {loss}: {ends} {time.time() - began:.0f} s\n")
    return facts | ends | each | {"settings": rows}


# --- what comes out


def regrets(results: list[dict[str, Any]]) -> None:
    """Print a row per set: accuracy of the rule / the oracle by cell, and mean regrets in points.

    The oracle is the best setting by the mean over all splits. `crossed` has it chosen on one half of the splits and
    measured on the other, both ways, so that it gains nothing by luck.
    """
    for d in results:
        values, settings, row = np.array(d["each"]), d["settings"], []
        gaps: dict[str, list[float]] = {"rule": [], "crossed": [], "other": []}
        for epsilon in EPSILONS:
            for place in ("sum", "local"):
                cell = [k for k, s in enumerate(settings) if (s["epsilon"], s["place"]) == (epsilon, place)]
                cell = [k for k in cell if settings[k]["kind"] != "far"]
                kinds = [settings[k]["kind"] for k in cell]
                mean, a, b = values[:, cell].mean(0), values[::2, cell].mean(0), values[1::2, cell].mean(0)
                rule, other = mean[kinds.index("rule")], mean[kinds.index("other")]
                gaps["rule"].append(mean.max() - rule)
                gaps["crossed"].append((a[b.argmax()] + b[a.argmax()]) / 2 - rule)
                gaps["other"].append(mean.max() - other)
                row.append(f"{100 * rule:.1f} / {100 * mean.max():.1f}")
        regret = " | ".join(f"{100 * np.mean(gap):.2f}" for gap in gaps.values())
        head = f"{d['set']} {d['loss']} | {100 * d['majority']:.1f} | {100 * d['free']:.1f}"
        sys.stdout.write(f"| {head} | {' | '.join(row)} | {regret} |\n")


def is_right(word: str, way: float, objective: float, zero: float, slack: float) -> bool:
    """Return whether a word is right of a model that came `way` from the majority class (0) to no noise (1)."""
    if word == "good":
        return way > 0.5 - slack and objective <= zero
    if word == "mostly noise":
        return way < 0.2 + slack or objective > zero
    return way < 0.5 + slack and objective <= zero and way > 0.2 - slack


def verdicts(results: list[dict[str, Any]]) -> None:
    """Print how many words are right: of the rule's settings, and of all with the rule's clip."""
    counts: dict[tuple[str, str, str, float], list[int]] = {}
    for d in results:
        own, zero = CLIPS[d["loss"]][0], LOSSES[d["loss"]].at_zero or 0.0
        group = "fitted" if d["set"] in FITTED else "checked"
        advised = {(s["epsilon"], s["place"]): s["tau"] for s in d["settings"] if s["kind"] == "rule"}
        for s in d["settings"]:
            if s["clip"] != own or s["kind"] == "other":
                continue
            facts = Figures(
                ranks=RANKS,
                records=d["records"],
                smallest=d["records"] // RANKS,
                dimension=d["dimension"],
                clip=own,
                nu=s["nu"],
                share=d["share"],
                flow=s["tau"],
                advised=advised[s["epsilon"], s["place"]],
            )
            word, way = verdict(facts).word, (s["accuracy"] - d["majority"]) / (d["free"] - d["majority"])
            early = word == "weak" and s["tau"] < 0.1 * advised[s["epsilon"], s["place"]]
            for slack in (0.0, 0.05):
                good = is_right(word, way, s["objective"], zero, slack) or (early and way < 0.5 + slack)
                for kind in ("rule", "all") if s["kind"] == "rule" else ("all",):
                    counts.setdefault((kind, group, d["loss"], slack), []).append(good)
            if s["kind"] == "rule" and not good:
                where = f"{d['set']} {d['loss']} {s['epsilon']} {s['place']}"
                sys.stdout.write(f"wrong: {where}: {word}, went {way:.2f} of the way\n")
    for key, rights in sorted(counts.items()):
        sys.stdout.write(f"{key}: {sum(rights)} of {len(rights)}\n")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("simulate", "regrets", "verdicts"))
    parser.add_argument("cells", type=Path, help="JSON lines, one per set and loss; simulate appends")
    parser.add_argument("--sets", nargs="+", default=[*FITTED, *CHECKED, *FRESH, *LATER])
    parser.add_argument("--loss", choices=tuple(CLIPS), default="logistic")
    given = parser.parse_args()
    if given.command == "simulate":
        for name in given.sets:
            with given.cells.open("a") as file:
                file.write(json.dumps(simulate(name, given.loss)) + "\n")
        return
    results = [json.loads(line) for line in given.cells.read_text().splitlines()]
    (regrets if given.command == "regrets" else verdicts)(results)


if __name__ == "__main__":
    main()
