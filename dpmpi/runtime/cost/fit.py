"""What an exchange and a round cost on this machine: fitted to what was timed, and kept.

An exchange with d peers in messages of b bytes takes a rank, in seconds of a core,

    w(d, b) = o + s max(0, 1 - C/R)^2 + d (alpha + beta b)                                 (1)

with R ranks on a host of C cores: o for the exchange itself, s for having lost the core and its caches while waiting,
alpha for a message and beta for a byte of it. Where every rank has a core, a message is on its way for tau seconds on
top. What a first-order method computes in a round, over a batch of B dense rows of m numbers, takes

    c(B, m) = q + kappa B m + nu m + eta m                                                 (2)

with kappa for a number of the batch, another one if the batch is sampled, nu for a coordinate of the step, and eta for
one of the noise, if there is noise. Ranks that compute are not ready at the same time, and who waits on a crowded host
looks, naps and looks again: z max(0, 1 - C/R)^2 seconds more in a round that has both.

Seconds of a core are what is fitted: unlike those of a clock they do not depend on who else uses the machine.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array, Sampling
from dpmpi.core.files import user_path, write_file
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.runtime.cost.dry_run import Hosts

REFITS = 30
SURROUNDINGS = ("ranks", "ranks_per_host", "cores_per_host")
TIMED = ("peers", "bytes", "full", "sampled", "coordinates", "noised")
FIGURES = (*SURROUNDINGS, *TIMED, "seconds", "core_seconds")
"""What a row of measurements holds: its surroundings, the exchange, what was computed, and how long it took."""


@frozen
class Fit:
    """The constants of (1) and (2)."""

    overhead_seconds: float  # o
    switch_seconds: float  # s
    latency_seconds: float  # alpha
    seconds_per_byte: float  # beta
    transit_seconds: float  # tau
    nap_seconds: float  # z
    round_overhead_seconds: float  # q
    gradient_seconds_per_number: float  # kappa of full batches
    batch_seconds_per_number: float  # kappa of sampled ones
    step_seconds_per_number: float  # nu
    noise_seconds_per_number: float  # eta

    def exchange(self, peers: Array, size: float, hosts: Hosts) -> Array:
        """Return w of (1), for each number of peers."""
        own = self.overhead_seconds + self.switch_seconds * hosts.crowding
        return own + peers * (self.latency_seconds + self.seconds_per_byte * size)

    def computing(self, sampling: Sampling, dimension: int, *, noise: bool) -> float:
        """Return c of (2)."""
        kappa = self.gradient_seconds_per_number if sampling.kind == "full" else self.batch_seconds_per_number
        a_coordinate = self.step_seconds_per_number + (self.noise_seconds_per_number if noise else 0.0)
        return self.round_overhead_seconds + (kappa * sampling.expected + a_coordinate) * dimension


CONSTANTS = tuple(f.name for f in dataclasses.fields(Fit))


def fit(rows: Sequence[Mapping[str, Any]]) -> Fit:
    """Return the constants that fit rows of `dpmpi.runtime.cost.timing.measure`; none is negative.

    Twice as much counts like half as much: the sum of (w - y)^2 / (w y), which is close to (log w - log y)^2, is made
    small by least squares, again and again with the w of the fit before in the weights.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - slow to import

    parts, transits = [], []
    for row in rows:
        crowding = Hosts(row["ranks_per_host"], row["cores_per_host"]).crowding
        talks, computes = float(row["bytes"] > 0), float(row["coordinates"] > 0)
        talk = [talks, talks * crowding, row["peers"], row["peers"] * row["bytes"], talks * computes * crowding]
        parts.append([*talk, computes, *(row[name] for name in ("full", "sampled", "coordinates", "noised"))])
        if talks and not computes and not crowding:
            transits.append(max(0.0, row["seconds"] - row["core_seconds"]))
    if not parts or not all(any(part[k] for part in parts) for k in (2, 6, 7, 9)):
        how = "mpirun -n 4 python -m dpmpi bench --fit"
        raise ConfigError(f"expected timed exchanges and rounds, found too few kinds of them: {how}")
    X, y = np.array(parts, np.float64), np.array([row["core_seconds"] for row in rows])
    size = X.max(axis=0)
    size[size == 0.0] = 1.0
    X /= size  # bytes and messages differ by millions
    w = y
    for _ in range(REFITS):
        weights = 1.0 / np.sqrt(w * y)
        prices, _ = nnls(X * weights[:, None], y * weights)
        w = X @ prices
    o, s, alpha, beta, z, *computing = (prices / size).tolist()
    return Fit(o, s, alpha, beta, statistics.median(transits or [0.0]), z, *computing)


def fit_file() -> Path:
    """Return where this user's fit is kept."""
    return user_path("~/.cache/dpmpi/costs.json")


def store(rows: Sequence[Mapping[str, Any]], path: Path | None = None) -> Fit:
    """Add the rows to those in the file, in place of earlier ones of as many ranks; return the fit of all of them."""
    path = path or fit_file()
    measured = {row["ranks"] for row in rows}
    kept = [row for row in _read(path)["rows"] if row["ranks"] not in measured] if path.exists() else []
    found = fit([*kept, *rows])
    text = json.dumps({"fit": dataclasses.asdict(found), "rows": [*kept, *rows]}, indent=1)
    write_file(path, text + "\n", error=ConfigError)
    return found


def load(path: Path | None = None) -> Fit | None:
    """Return the fit of a file; without a path that of this user, or None if nothing was measured yet."""
    if path is None and not fit_file().exists():
        return None
    told = _read(path or fit_file())["fit"]
    return Fit(*(float(told[name]) for name in CONSTANTS))


def _read(path: Path) -> dict[str, Any]:
    """Return the fit and the rows of a file; raise `ConfigError` for one that `store` did not write."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        numbers = [found["fit"][name] for name in CONSTANTS]
        numbers += [row[name] for row in found["rows"] for name in FIGURES]
        if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
            raise ValueError("not all figures are finite and positive")
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"expected measured costs in {path}, found none ({error}): bench --fit writes them"
        raise ConfigError(why) from error
    return dict(found)
