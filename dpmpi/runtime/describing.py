"""Private descriptions of raw tables: one noisy histogram of all columns, of each rank's own table, added up.

Rank i, whose table has N_i rows, computes the cells h_i of all columns (data/description.py) and

    r_i = h_i + Gaussian noise for (epsilon, delta) at sensitivity k sqrt(2 C), charged to its ledger           (1)
    r   = sum over the ranks of r_i, by plain messages                                                          (2)

with C columns and at most k records of a person. Everything that is printed or written follows from (2), from the
public schema, and from the rows N_i, which are public as those of shards are.

Privacy: (1) is one Gaussian release of all rows; the event says so, so that it counts for training rows and held-out
ones alike when a run goes on with the ledger. Each rank's own noise suffices for its table, whoever else colludes.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi import __version__
from dpmpi.core import Agent, Array, Mechanism, Query, Sampling
from dpmpi.core.frozen import frozen
from dpmpi.data.description import Described, Schema, count_cells
from dpmpi.errors import ConfigError, DataError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import fail_together, on_all_ranks
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.privacy.calibration import calibrate, check_delta
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Ledger, recorded_runs
from dpmpi.privacy.ledger_proofs import make_key
from dpmpi.privacy.spending import to_all_rows
from dpmpi.rng import fresh_key
from dpmpi.runtime.budget import allowance, charged_for_persons, filter_order
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.ledger_owner import check_ledger, check_not_gone, check_table_owner, first_order, lock_ledger
from dpmpi.runtime.noise import LocalNoise
from dpmpi.runtime.output.console import say
from dpmpi.runtime.private_evaluation import evaluation


@frozen
class Request:
    """What all ranks are asked for, the same on all of them but for the folders."""

    schema: Schema
    epsilon: float
    delta: float
    ledger: Path
    """The folder of the ledgers."""
    first: int = 0
    """The name of the first rank, for a party that describes its table alone."""
    budget: float | None = None
    """The most epsilon that a ledger may hold, this description included."""
    changed: bool = False
    """Whether a ledger may go on that knows another table."""
    allow_large_delta: bool = False

    @property
    def noise(self) -> LocalNoise:
        """The noise on each rank's own cells."""
        return LocalNoise("gaussian", records=self.schema.most)

    def path(self, rank: int) -> Path:
        """Return where a rank's charges go, as those of its runs do."""
        return self.ledger / f"rank-{self.first + rank:03d}.jsonl"

    def event(self, sigma: float, rows: int) -> ReleaseEvent:
        """Return the event of (1) under noise of this deviation."""
        sampling = Sampling("full", float(rows), rows)
        return self.noise.price(sigma, self.schema.width).event(self.schema.sensitivity, sampling)

    def sigma(self, rows: int) -> float:
        """Return the noise that epsilon and delta ask for."""
        check_delta(self.delta, rows, self.allow_large_delta)
        return calibrate(lambda sigma: {self.event(sigma, rows): 1}, self.epsilon, self.delta)


@frozen
class Description:
    """The noisy cells of some tables together, (2), and what is public of them."""

    cells: Array
    rows: tuple[int, ...]
    """Of each table."""
    deviation: float
    """Of the noise in a cell of the sum."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {"rows": list(self.rows), "deviation": self.deviation, "cells": self.cells.tolist()}


def describe(request: Request, transport: Transport, tables: Sequence[Path], *, make: Any = None) -> Description:
    """Describe the tables of all ranks, of which `tables` are those of the ranks here; all processes call it together.

    `make(rank, sigma)` replaces the mechanism, for contracts.
    """
    ranks = transport.ranks
    found: list[Described] = []

    def count() -> list[Any]:
        for rank, path in zip(ranks, tables, strict=True):
            found.append(_counted(path, request.schema, transport, rank))
        asked = [request.schema.digest, request.epsilon, request.delta]
        return [[asked, one.rows] for one in found]

    told = on_all_ranks(transport, count)
    if any(asked != told[0][0] for asked, _ in told):
        raise ConfigError("expected one schema, epsilon and delta on all ranks, found others: agree on them")
    rows = tuple(int(count) for _, count in told)
    sigmas = [request.sigma(count) for count in rows]
    with ExitStack() as stack:
        ledgers: list[Ledger] = []

        def open_all() -> None:
            for rank, one in zip(ranks, found, strict=True):
                ledgers.append(_open_ledger(request, rank, one, sigmas[rank], transport.size, stack))

        fail_together(transport, open_all)
        seats, flows, sums = [], [], []
        for rank, one, ledger in zip(ranks, found, ledgers, strict=True):
            mechanism = _mechanism(request, sigmas[rank], transport.size) if make is None else make(rank, sigmas[rank])
            agent = _agent(rank, mechanism, ledger)
            seats.append(Seat(agent, None, PlainExchange(transport, rank, transport.size)))
            query = Query(one.cells, request.schema.sensitivity, Sampling("full", float(one.rows), one.rows))
            sums.append(np.zeros(request.schema.width))
            flows.append(evaluation(seats[-1], query, 0, sums[-1]))  # (1), (2)
        nothing: Any = None
        Engine(nothing, nothing, transport, seats).drive(flows)
    return Description(sums[0], rows, math.hypot(*sigmas))


def _counted(path: Path, schema: Schema, transport: Transport, rank: int) -> Described:
    """Count a rank's own table; what is wrong with its cells is said on its own terminal alone."""
    try:
        return count_cells(path, schema)
    except DataError as error:
        if len(transport.ranks) == transport.size:  # nobody else hears of it
            raise
        say(f"dpmpi: {error}", sys.stderr)
        raise DataError(f"rank {rank} cannot use its table, and says why on its own terminal") from error


def _mechanism(request: Request, sigma: float, ranks: int) -> Mechanism:
    return request.noise.mechanism(sigma, fresh_key(), request.schema.width, ranks, stream="description")


def _agent(rank: int, mechanism: Mechanism, ledger: Ledger) -> Agent:
    """Return the rank as what releases its one query: there is no problem to solve, and no model."""
    nothing: Any = None
    return Agent(rank, 1.0, nothing, nothing, nothing, mechanism, ledger, nothing)


def _open_ledger(request: Request, rank: int, one: Described, sigma: float, ranks: int, stack: ExitStack) -> Ledger:
    """Open a rank's lasting ledger for the one charge; raise `ConfigError` if its budget has no room for it."""
    path, event = request.path(rank), request.event(sigma, one.rows)
    stack.enter_context(lock_ledger(path))
    lines = None
    if path.exists():
        lines = check_ledger(path, None)
    else:
        check_not_gone(path)
    planned = [(event, 1)]
    most = max(request.budget or 1.0, request.epsilon)
    order = first_order(path) if lines else filter_order(planned, most, request.delta)
    earlier: Counter[ReleaseEvent] = Counter()
    for before, spent, _ in recorded_runs(path) if lines else ():
        earlier += charged_for_persons(to_all_rows(spent), before, request.schema.most)
    if request.budget is not None and not allowance(planned, earlier, request.budget, request.delta, order):
        raise ConfigError(
            f"expected room for epsilon {request.epsilon:g} in the budget {request.budget:g} of rank "
            f"{request.first + rank}, found too much spent before: raise the budget, or describe with less"
        )
    header = {
        "run": hashlib.sha256(fresh_key()).hexdigest()[:16],
        "dpmpi": __version__,
        "algorithm": "describe",
        "schema": request.schema.digest,
        "ranks": ranks,
        "rank": request.first + rank,
        "private": True,
        "insecure_noise": False,
        "delta": request.delta,
        "person_records": request.schema.most,
        "calibration": "certified",
        "sigma": sigma,
        "records": one.rows,
        "budget": request.budget,
        "filter_order": order,
        "table": check_table_owner(path, one.identity, changed=request.changed),
    }
    return stack.enter_context(Ledger(path, header, planned, 1, lines, key=make_key(path)))


def to_record(request: Request, found: Description) -> dict[str, Any]:
    """Return a description as JSON-ready values; `merged` reads it back."""
    unit = "record" if request.schema.most == 1 else f"person, at most {request.schema.most} records"
    promise = {"epsilon": request.epsilon, "delta": request.delta, "unit": unit, "adjacency": "replace one"}
    return {"dpmpi": __version__, "schema": request.schema.digest, "privacy": promise, **found.to_dict()}


def merged(schema: Schema, records: Sequence[tuple[str, dict[str, Any]]]) -> tuple[Description, dict[str, Any]]:
    """Return descriptions of different tables as one, and what is promised for each; records come with their file."""
    cells, rows, deviations, promises = np.zeros(schema.width), [], [], []
    for name, record in records:
        try:
            theirs = np.array(record["cells"], np.float64)
            counts, deviation = [int(one) for one in record["rows"]], float(record["deviation"])
            promise = record["privacy"]
            promises.append({"epsilon": float(promise["epsilon"]), "delta": float(promise["delta"]), **promise})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{name}: expected what describe --json wrote, found other values") from error
        good = theirs.shape == cells.shape and np.isfinite(theirs).all() and min(counts, default=0) > 0
        if record.get("schema") != schema.digest or not good or not 0 < deviation < math.inf:
            raise ConfigError(f"{name}: expected a description by the same schema, found another: agree on one")
        cells += theirs
        rows += counts
        deviations.append(deviation)
    if any(one != promises[0] for one in promises):
        raise ConfigError("expected the same epsilon, delta and unit in all descriptions, found others: agree on them")
    return Description(cells, tuple(rows), math.hypot(*deviations)), promises[0]
