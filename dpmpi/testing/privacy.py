"""Contracts of the two other things that a privacy claim rests on: a mechanism and a ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array, Mechanism, Query, Sampling
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_spending


def check_mechanism(make: Callable[[int], Mechanism], *, dimension: int = 4000) -> None:
    """Raise AssertionError if a mechanism does not add the noise that its event declares, afresh each time.

    `make(dimension)` returns a new mechanism. Four things are looked at: the spread of the noise against the event's
    scale, its independence of the value, its freshness from call to call, and whether the low bits of the output tell
    which value was noised. The bounds are wide enough to fail a right mechanism once in a million times.
    """
    calls, bound = 8, 6.0 / np.sqrt(8 * dimension)
    query = Query(np.zeros(dimension), 1.0, Sampling("full", 10.0, 10))
    noises: dict[float, Array] = {}
    for value in (0.0, 1.0 / 3.0):
        mechanism, rows = make(dimension), []
        for _ in range(calls):
            mechanism.prepare()
            mechanism.event(query)
            query.value.fill(value)
            mechanism.perturb(query.value)
            rows.append(query.value.copy())
        noises[value] = np.array(rows)
    event: Any = make(dimension).event(query)
    spread = {"gaussian": 1.0, "discrete-gaussian": 1.0, "laplace": np.sqrt(2.0)}.get(event.noise)
    for value, outputs in noises.items():
        noise = outputs - value
        if spread is not None and abs(noise.std() / (spread * event.scale) - 1.0) > 2 * bound:
            found = noise.std() / spread
            raise AssertionError(f"the event declares noise of scale {event.scale:.4g}, found {found:.4g}")
        if abs(noise.mean()) > bound * noise.std():
            raise AssertionError(f"the noise on value {value:.3g} is not centred: mean {noise.mean():.3g}")
        for lag in range(1, calls):
            correlation = float(np.mean(noise[lag:] * noise[:-lag]) / noise.var())
            if abs(correlation) > 6.0 / np.sqrt((calls - lag) * dimension):
                raise AssertionError(f"noise is reused: calls {lag} apart correlate with {correlation:.2f}")
    steps = [_common_step(outputs) for outputs in noises.values()]
    if steps[0] != steps[1] or steps[0] < 1e-9 * event.scale:
        raise AssertionError(
            f"the low bits tell values apart: multiples of {steps[0]:.3g} for one value, {steps[1]:.3g} for another"
        )


def _common_step(outputs: Array) -> float:
    """Return the largest power of two that all outputs are multiples of."""
    mantissas, exponents = np.frexp(outputs[outputs != 0])
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    trailing = np.log2((integers & -integers).astype(np.float64))
    return float(2.0 ** np.min(exponents - 53 + trailing))


def check_ledger(make: Callable[[Path, int], Any], folder: Path) -> None:
    """Raise AssertionError if a ledger can say less than was charged to it.

    `make(path, expected)` returns a new ledger in a file: anything with `charge(event, round)` and `close()`. Before
    every charge returns, the file must hold it; the chain must hold at every moment; a ledger that is not closed counts
    at least what was charged, and one that is closed counts exactly that.
    """
    events = [ReleaseEvent("gaussian", scale, 1.0, Sampling("full", 10.0, 10)) for scale in (1.0, 2.0)]
    for closed in (False, True):
        path = folder / f"check-{closed}.jsonl"
        ledger, made = make(path, 400), 0
        for t in range(1, 400):
            ledger.charge(events[t % 97 == 0], t)
            made += 1
            found = recorded_spending(path).total()
            if found < made:
                raise AssertionError(f"after {made} charges the file holds {found}: not durable before the release")
        if closed:
            ledger.close()
            found = recorded_spending(path).total()
            if found != made:
                raise AssertionError(f"a closed ledger holds {found} charges, made were {made}")
