"""Noise from a privacy target, charges from a budget, privacy from what was released: one source for all commands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dpmpi.config import Config
from dpmpi.core import Sampling
from dpmpi.data import Source, parse_source
from dpmpi.errors import ConfigError
from dpmpi.graphs import make_graph
from dpmpi.privacy import accountants, calibration, filters, theorems
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.problem import Batch
from dpmpi.schedules import SampledSchedule, StaticSchedule, make_schedule


def source_of(config: Config) -> Source:
    """Return where the records of a run come from."""
    return parse_source(
        config.data, samples=config.samples, normalize=config.normalize, test_fraction=config.test_fraction,
        seed=config.seed, loss=config.loss, dimension=config.dimension,
    )  # fmt: skip


def schedule_of(config: Config, ranks: int) -> StaticSchedule | SampledSchedule:
    """Return who talks to whom in which round of a run with so many ranks."""
    graph = make_graph(config.graph, ranks, config.seed)
    sampled = getattr(config.make_algorithm(), "schedule", "static") == "sampled"
    return make_schedule(graph, config.weights, (config.sample_edges or 1) if sampled else None, config.seed)


def release_event(config: Config, records: int, sigma: float) -> ReleaseEvent:
    """Return what every release of a rank with so many records and this noise is."""
    sampling: Sampling = Batch.parse(config.batch).sampling(records)
    sensitivity = 2.0 * config.lipschitz / sampling.expected
    return ReleaseEvent("gaussian" if sigma > 0 else "none", sigma, sensitivity, sampling)


def planned_releases(config: Config, active_rounds: int) -> int:
    """Return how many releases a rank makes that is active in so many rounds."""
    return sum(count for _, count in config.make_algorithm().releases(active_rounds))


def resolve_batch(config: Config, records: Sequence[int], active: Sequence[int]) -> Config:
    """Return the configuration with `--batch auto` replaced by a number: for the smallest shard, the busiest rank."""
    if config.batch != "auto":
        return config
    if config.epsilon is None:
        raise ConfigError("--batch auto is chosen for a privacy target: give --epsilon, or a batch")
    q = min(records)
    b = calibration.auto_batch(q, planned_releases(config, max(active)), config.epsilon, config.delta)
    return dataclasses.replace(config, batch="full" if b >= q else f"poisson:{b}")


def noise_levels(config: Config, records: Sequence[int], active: Sequence[int]) -> list[float]:
    """Return the noise of every rank that meets --epsilon and --delta, given its records and active rounds.

    Each rank composes over its own active rounds only: the schedule is public, so it hides nothing, but who is silent
    pays nothing.
    """
    if config.epsilon is not None or config.noise:
        for count in sorted(set(records)):
            calibration.check_delta(config.delta, count, config.allow_large_delta)
    if config.epsilon is None:
        return [config.noise or 0.0] * len(records)
    if config.calibration == "theorem":
        return [_theorem_noise(config, min(records), _share(config, active))] * len(records)
    if any(scale != 1.0 for scale, _ in config.make_algorithm().releases(max(active))):
        raise ConfigError(f"the noise of {config.algorithm} varies over the rounds, which --epsilon cannot calibrate")
    epsilon = config.epsilon

    @cache  # ranks with as many records and rounds need the same noise
    def level(count: int, rounds: int) -> float:
        # A rank that is never active releases nothing; the noise of one release keeps its figures finite.
        releases, unit = max(1, planned_releases(config, rounds)), release_event(config, count, 1.0)
        return calibration.calibrate(
            "gaussian", unit.sensitivity, unit.sampling, releases, epsilon, config.delta, cache=cache_file()
        )

    return [level(count, rounds) for count, rounds in zip(records, active, strict=True)]


def _share(config: Config, active: Sequence[int]) -> float:
    return sum(active) / (len(active) * config.rounds)


def _theorem_noise(config: Config, records: int, share: float) -> float:
    L, T, eps = config.lipschitz, config.rounds, config.epsilon or math.nan
    if config.algorithm == "sampled-dda":
        return theorems.node_sampling_sigma(L, T, records, share, eps, config.delta)
    return theorems.liu2022_sigma(L, T, records, eps, config.delta)


def claimed_epsilon(config: Config, records: int, active: Sequence[int], sigma: float) -> float | None:
    """Return what the paper's theorem claims for this noise, or None where it says nothing."""
    if sigma == 0 or config.algorithm == "dda":
        return None
    L, T = config.lipschitz, config.rounds
    if config.algorithm == "sampled-dda":
        return theorems.node_sampling_epsilon(sigma, L, T, records, _share(config, active), config.delta)
    return theorems.liu2022_epsilon(sigma, L, T, records, config.delta)


def spent_epsilon(spending: Mapping[ReleaseEvent, int], delta: float, *, cached: bool = True) -> float | None:
    """Return the certified epsilon of what was released; None if it is infinite, or too large to be computed."""
    try:
        epsilon = accountants.certified_epsilon(spending, delta, cache=cache_file() if cached else None)
    except (ArithmeticError, ValueError, MemoryError):  # losses beyond what the accountant's grid can hold
        return None
    return epsilon if math.isfinite(epsilon) else None


def live_epsilon(spending: Mapping[Any, int], delta: float) -> float | None:
    """Return the certified epsilon so far where it has a closed form, which takes no import; None elsewhere."""
    if all(event.noise == "gaussian" and event.sampling.kind == "full" for event in spending):
        return spent_epsilon(spending, delta)
    return None


def cache_file() -> Path:
    """Return where this user's figures are kept: the accountant takes seconds, and runs repeat."""
    return Path("~/.cache/dpmpi/accountant.json").expanduser()


def read_budget(config: Config, rank: int) -> float | None:
    """Return what a rank may spend: from --budget itself, or from a TOML file that may be the rank's own."""
    if config.budget is None:
        return None
    import tomllib  # noqa: PLC0415 - budgets only

    try:
        value: object = float(config.budget)
    except ValueError:
        path = Path(config.budget.replace("{rank}", str(rank)))
        try:
            value = tomllib.loads(path.read_text(encoding="utf-8")).get("epsilon")
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"--budget: expected a number or a TOML file, cannot read {path}: {error}") from error
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{path}: expected epsilon = a number, got {value!r}") from None
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"a budget is a finite epsilon of at least 0, got {value!r} for rank {rank}")
    return float(value)


def filter_order(event: ReleaseEvent, planned: int, budget: float, delta: float) -> int:
    """Return the Renyi order for a ledger that is to go on over runs: fixed by the first of them, once and for all."""
    if event.noise == "none" or planned == 0:
        return 2
    return max(2, math.ceil(filters.filter_order({event: planned}, budget, delta)))


def allowance(
    event: ReleaseEvent, planned: int, earlier: Mapping[ReleaseEvent, int], budget: float, delta: float, order: int
) -> int:
    """Return how many of the planned releases a budget allows.

    On a fresh ledger everything is fixed before the run, so the certified accountant decides. After earlier runs, whose
    results may have led to this one, composition is adaptive and a filter decides: Gaussian where all releases are
    unsampled Gaussian ones, else Renyi at the order that the ledger fixed when it began.
    """
    if planned == 0 or any(e.noise == "none" for e in (event, *earlier)):
        return 0  # what was said without noise has spent every budget
    if not earlier:
        low, high = 0, planned
        while low < high:
            middle = (low + high + 1) // 2
            fits = accountants.certified_epsilon({event: middle}, delta, cache=cache_file()) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
    gaussian = all(e.noise == "gaussian" and e.sampling.kind == "full" for e in (event, *earlier))
    filter_ = filters.GaussianFilter(budget, delta) if gaussian else filters.RdpFilter(budget, delta, float(order))
    left, cost = filter_.budget - sum(filter_.cost(e, count) for e, count in earlier.items()), filter_.cost(event)
    return min(planned, math.floor(left / cost)) if left > 0 and 0 < cost < math.inf else 0
