"""Four real hospitals as four ranks: heart disease, as in FLamby's comparison (Ogier du Terrail et al., NeurIPS 2022).

    DPMPI_DATA=FOLDER python docs/experiments/heart.py

prints the table of heart.md, of 10 repetitions.

The records are prepared as FLamby does it, as far as that can be rebuilt: the columns slope, ca and thal, missing at
whole sites, are left out, then records with a missing value; cp and restecg become indicators; two thirds of each site
train (a split with seed 43, stratified where both classes allow it), the others test. Columns are scaled by declared
ranges, not by the records' own means and deviations: that would tell something about them. The figure is the mean over
the four sites of the accuracy on a site's test records, by the common model; repetitions differ in the noise alone.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from pathlib import Path

import dpmpi

SITES = ("cleveland", "hungarian", "switzerland", "va")
RANGES = {"age": (18, 100), "trestbps": (80, 220), "chol": (0, 600), "thalach": (60, 220), "oldpeak": (-3, 7)}
WORDS = {
    "sex": ("0", "1"),
    "cp": ("1", "2", "3", "4"),
    "fbs": ("0", "1"),
    "restecg": ("0", "1", "2"),
    "exang": ("0", "1"),
}
SETTINGS = {
    "no noise": {"rounds": 100},
    "local noise, epsilon 1": {"epsilon": 1.0},
    "noise in the sum, epsilon 1": {"epsilon": 1.0, "exchange": "shares", "noise_in": "sum"},
    "local noise, epsilon 0.1": {"epsilon": 0.1},
    "noise in the sum, epsilon 0.1": {"epsilon": 0.1, "exchange": "shares", "noise_in": "sum"},
}


def records(folder: Path, site: str) -> tuple[list[list[float]], list[int]]:
    """Return the rows and labels of a site."""
    rows, labels = [], []
    with (folder / f"processed.{site}.data").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            cells = [line[name] for name in (*RANGES, *WORDS)]
            if any(cell in ("", "?") for cell in cells):
                continue
            row = [2 * (min(max(float(line[n]), a), b) - a) / (b - a) - 1 for n, (a, b) in RANGES.items()]
            for name, words in WORDS.items():
                found = f"{float(line[name]):g}"
                row += [float(found == word) for word in words[1:]]
            rows.append(row)
            labels.append(int(float(line["target"]) > 0))
    return rows, labels


def main() -> None:
    """Print the table."""
    import numpy as np  # noqa: PLC0415 - after dpmpi, which chooses the number of threads
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - a script
    from sklearn.model_selection import train_test_split  # noqa: PLC0415 - a script

    folder = Path(os.environ["DPMPI_DATA"]) / "heart"
    parts = []
    for site in SITES:
        X, y = map(np.array, records(folder, site))
        classes = y if min(np.bincount(y)) > 1 else None  # at one site all patients but one are ill
        train, test = train_test_split(np.arange(len(y)), test_size=0.34, random_state=43, stratify=classes)
        parts.append(((X[train], y[train]), (X[test], y[test])))
    shards, tests = [part[0] for part in parts], [part[1] for part in parts]
    out = sys.stdout
    out.write(f"records to train on {[len(y) for _, y in shards]}, to test on {[len(y) for _, y in tests]}\n")
    pooled = LogisticRegression(C=1e3, max_iter=5000)
    pooled.fit(np.vstack([X for X, _ in shards]), np.concatenate([y for _, y in shards]))
    sites = [pooled.score(X, y) for X, y in tests]
    out.write(f"pooled, scikit-learn, no privacy: {np.mean(sites):.3f}\n")
    for name, settings in SETTINGS.items():
        found = []
        for repetition in range(10):
            result = dpmpi.simulate(
                shards, loss="logistic", graph="complete", delta=1e-4, evaluate=0, seed=repetition, **settings
            )
            each = [np.mean(result.model.predict(X) == y) for X, y in tests]
            found.append((np.mean(each), *each))
        table = np.array(found)
        spread = statistics.stdev(table[:, 0])
        by_site = " ".join(f"{value:.3f}" for value in table[:, 1:].mean(axis=0))
        out.write(f"{name}: {table[:, 0].mean():.3f} +- {spread:.3f} ({by_site})\n")


if __name__ == "__main__":
    main()
