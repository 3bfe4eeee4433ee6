"""The rounds that `python -m dpmpi bench` times, one beside the other in the same processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpmpi.agreement import on_first
from dpmpi.algorithms.dual_averaging import ConventionalDualAveraging, DualAveraging
from dpmpi.config import Config
from dpmpi.core import Agent, Array, Mix, Steps, Sum, public
from dpmpi.engine import Engine, Seat
from dpmpi.graphs import make_graph
from dpmpi.losses import LOSSES
from dpmpi.methods import Method, Planned, Terms
from dpmpi.penalties import Regulariser
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem, make_terms
from dpmpi.rng import PrivateStream, fresh_key
from dpmpi.rows import Dense
from dpmpi.schedules import StaticSchedule
from dpmpi.secrecy import agree_on_secrets, make_exchange, sealed
from dpmpi.transport.meter import Meter
from dpmpi.transport.mpi import MpiTransport

SIGMA = 0.05

Many: TypeAlias = Callable[[int], Any]
"""Runs so many rounds."""

PLAIN = Config()
SEALED = Config(seal=True)
EXPANDED = Config(exchange="shares", share_mode="expanded")
FULL = Config(exchange="shares", share_mode="full")


@dataclass(frozen=True)
class Consensus(Method):
    """Averages a public vector: a round that is nothing but its exchange."""

    def start(self, agent: Agent) -> Array:
        """Return a vector that differs between ranks."""
        return np.full(agent.dimension, float(agent.rank))

    def round(self, agent: Agent, state: Array, t: int) -> Steps:
        """Mix."""
        yield Mix(public(state, because="it never met data"), out=state)

    def model(self, agent: Agent, state: Array, t: int, out: Array) -> None:
        """Write the vector."""
        np.copyto(out, state)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return none."""
        return []


@dataclass(frozen=True)
class Totals(Consensus):
    """Adds up the vectors of all ranks, the same ones in every round."""

    def start(self, agent: Agent) -> Array:
        """Return the rank's vector and room for the sum."""
        return np.vstack((super().start(agent), np.zeros(agent.dimension)))

    def round(self, agent: Agent, state: Array, t: int) -> Steps:
        """Ask for the sum."""
        yield Sum(public(state[0], because="it never met data"), out=state[1])

    def model(self, agent: Agent, state: Array, t: int, out: Array) -> None:
        """Write the sum."""
        np.copyto(out, state[1])


class Bare:
    """The exchange and the weighted sum as one would write them with mpi4py alone."""

    def __init__(self, transport: MpiTransport, schedule: StaticSchedule, dimension: int) -> None:
        near = schedule.neighbourhood(transport.rank)
        self._comm = transport.bare_communicator()
        self._peers, self._weights, self._own = near.peers, near.weights, near.self_weight
        self._wait = transport.wait_all
        self._vector = np.zeros(dimension + 2)
        self._heard = [np.zeros(dimension + 2) for _ in near.peers]
        self._sum, self._scratch = np.zeros(dimension), np.zeros(dimension)

    def round(self) -> None:
        """Exchange and add up once."""
        comm, vector, m = self._comm, self._vector, self._sum.size
        requests = [comm.Irecv(b, p) for b, p in zip(self._heard, self._peers, strict=True)]
        requests += [comm.Isend(vector, p) for p in self._peers]
        self._wait(requests)
        np.multiply(vector[:m], self._own, out=self._sum)
        for heard, weight in zip(self._heard, self._weights, strict=True):
            np.multiply(heard[:m], weight, out=self._scratch)
            np.add(self._sum, self._scratch, out=self._sum)
        vector[:m] = self._sum


def make_kinds(transport: MpiTransport, dimension: int, shard_mb: float, folder: Path) -> dict[str, Many]:
    """Return what runs rounds of each kind; all ranks call this together."""
    rank, schedule = transport.rank, StaticSchedule(make_graph("ring", transport.size, 0))
    draw, records = np.random.default_rng(rank), max(8, int(shard_mb * 1e6 / (8 * dimension)))
    X = draw.standard_normal((records, dimension))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = draw.choice([-1.0, 1.0], records)
    x, g, c = np.zeros(dimension), np.zeros(dimension), np.ones(records)
    bare, noise = Bare(transport, schedule, dimension), make_mechanism("gaussian", SIGMA, fresh_key(), dimension)

    def rounds(name: str, algorithm: Method, config: Config = PLAIN, sigma: float = 0.0) -> Many:
        key, meter = fresh_key(), Meter(transport)
        problem = LocalProblem(Dense(X), y, LOSSES["hinge"], Batch.parse("full"), 1.0, PrivateStream(key, "batch"))
        mechanism = make_mechanism("gaussian" if sigma else "none", sigma, key, dimension)
        plan = [(mechanism.event(problem.subgradient(x)), 1 << 30)]
        ledger, penalty = Ledger(folder / f"{name}-{dimension}-{rank}.jsonl", {}, plan), Regulariser(l2=5e-4)
        terms = make_terms(
            rank=rank, schedule=schedule, rounds=1, active_rounds=1, dimension=dimension, lipschitz=1.0,
            sampling=problem.batch.sampling(records), loss="hinge", normalized=True, penalty=penalty, bounded=False,
        )  # fmt: skip
        agent = Agent(rank, 1.0, terms, problem, penalty, mechanism, ledger, PrivateStream(key, "weights"))
        secrets = agree_on_secrets(config, transport, on_first(transport, lambda: os.urandom(8).hex()))
        carrier = sealed(config, meter, secrets)
        exchange = make_exchange(config, carrier, rank, secrets, 0.0)
        run = Engine(algorithm, schedule, carrier, [Seat(agent, algorithm.start(agent), exchange)])
        return lambda count: run.advance(run.completed + count)

    def gradient() -> None:
        np.dot(X, x)
        np.dot(c, X, out=g)

    kinds = {
        "bare exchange": _repeat(bare.round),
        "mix": rounds("mix", Consensus()),
        "sealed mix": rounds("sealed", Consensus(), SEALED),
        "sum": rounds("sum", Totals()),
        "bare gradient": _repeat(gradient),
        "bare noise": _repeat(lambda: noise.perturb(g)),
        "dda": rounds("dda", ConventionalDualAveraging()),
        "dp-dda": rounds("dp-dda", DualAveraging(), sigma=SIGMA),
    }
    if transport.size >= 3:  # fewer have nothing to hide among
        kinds["expanded sum"] = rounds("expanded", Totals(), EXPANDED)
        kinds["full sum"] = rounds("full", Totals(), FULL)
    return kinds


def _repeat(step: Callable[[], Any]) -> Many:
    def many(count: int) -> None:
        for _ in range(count):
            step()

    return many
