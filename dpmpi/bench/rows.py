"""The rounds that `python -m dpmpi bench` times, one beside the other in the same processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpmpi.agreement import on_first
from dpmpi.algorithms.dual_averaging import ConventionalDualAveraging, DualAveraging
from dpmpi.config import Config
from dpmpi.core import Agent, Array, Mix, Request, Steps, Sum, public
from dpmpi.crypto.speed import bare_cipher
from dpmpi.engine import Engine, Seat
from dpmpi.graphs import make_graph
from dpmpi.losses import LOSSES
from dpmpi.methods import Method, Planned, Terms
from dpmpi.penalties import Regulariser
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem, make_terms
from dpmpi.rng import PrivateStream, fresh_key
from dpmpi.rows import Csr, Dense, Rows
from dpmpi.schedules import StaticSchedule
from dpmpi.secrecy import agree_on_secrets, make_exchange, sealed
from dpmpi.transport.meter import Meter
from dpmpi.transport.mpi import MpiTransport

SIGMA = 0.05
SUM_BYTES = 500_000_000
"""A sum that everyone sends to everyone is left out where it would move more than this in a round."""
ROW_ENTRIES, ROW_SHARE = 75, 7
"""A sparse row has 75 entries, or a seventh of the columns if that is less."""

Many: TypeAlias = Callable[[int], Any]
"""Runs so many rounds."""

PLAIN = Config()
SEALED = Config(seal=True)
EXPANDED = Config(exchange="shares", share_mode="expanded")
FULL = Config(exchange="shares", share_mode="full")


@dataclass(frozen=True)
class Consensus(Method):
    """Averages a public vector: a round that is nothing but its exchange. The state is what it asks for."""

    def start(self, agent: Agent) -> Request:
        """Return the request: a vector that differs between ranks, to be overwritten by the answer."""
        v = np.full(agent.dimension, float(agent.rank))
        return Mix(public(v, because="it never met data"), out=v)

    def round(self, agent: Agent, state: Request, t: int) -> Steps:
        """Ask."""
        yield state

    def model(self, agent: Agent, state: Request, t: int, out: Array) -> None:
        """Write the last answer."""
        if state.out is not None:
            np.copyto(out, state.out)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return none."""
        return []


@dataclass(frozen=True)
class Ciphered(Consensus):
    """The same, and with every exchange the library's AES-GCM calls for its messages, of which nothing travels."""

    peers: int

    def start(self, agent: Agent) -> Any:
        """Return the request, and what encrypts and decrypts."""
        request = super().start(agent)
        return request, *bare_cipher(request.vector.value.view(np.uint8).data, self.peers)

    def round(self, agent: Agent, state: Any, t: int) -> Steps:
        """Encrypt, ask, decrypt."""
        request, encrypt, decrypt = state
        encrypt()
        yield request
        decrypt()

    def model(self, agent: Agent, state: Any, t: int, out: Array) -> None:
        """Write the last answer."""
        super().model(agent, state[0], t, out)


@dataclass(frozen=True)
class Totals(Consensus):
    """Adds up the vectors of all ranks, the same ones in every round."""

    def start(self, agent: Agent) -> Request:
        """Return the request: the rank's vector, and room for the sum."""
        v = np.full(agent.dimension, float(agent.rank))
        return Sum(public(v, because="it never met data"), out=np.zeros(agent.dimension))


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


@dataclass(frozen=True)
class Data:
    """The shard of a rank."""

    rows: Rows
    labels: Array

    def problem(self, key: bytes) -> LocalProblem:
        """Return the hinge loss over all records at once."""
        stream = PrivateStream(key, "batch")
        return LocalProblem(self.rows, self.labels, LOSSES["hinge"], Batch.parse("full"), 1.0, stream)


def dense_data(rank: int, dimension: int, megabytes: float) -> Data:
    """Return normal records of norm 1 that take so much memory, eight at least."""
    draw, records = np.random.default_rng(rank), max(8, int(megabytes * 1e6 / (8 * dimension)))
    X = draw.standard_normal((records, dimension))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return Data(Dense(X), draw.choice([-1.0, 1.0], records))


def sparse_data(rank: int, dimension: int, megabytes: float) -> Data:
    """Return records of norm 1 with `ROW_ENTRIES` entries each that take so much memory, eight at least."""
    draw, entries = np.random.default_rng(rank), max(1, min(ROW_ENTRIES, dimension // ROW_SHARE))
    records = max(8, int(megabytes * 1e6 / (16 * entries)))
    # Sorted draws from 0 ... m-k, the j-th moved up by j: increasing, hence different.
    columns = np.sort(draw.integers(0, dimension - entries + 1, (records, entries)), axis=1) + np.arange(entries)
    values = draw.choice([-1.0, 1.0], records * entries) / np.sqrt(entries)
    rows = Csr(np.arange(records + 1) * entries, columns.reshape(-1), values, dimension)
    return Data(rows, draw.choice([-1.0, 1.0], records))


def bare_gradient(data: Data) -> Callable[[], Any]:
    """Return the two products of a full-batch gradient, as one would write them with numpy, or scipy if sparse."""
    rows = data.rows
    x, g, c = np.zeros(rows.dimension), np.zeros(rows.dimension), np.ones(rows.count)
    if isinstance(rows, Dense):
        X, s = rows.matrix, np.zeros(rows.count)

        def dense() -> None:
            np.dot(X, x, out=s)
            np.dot(c, X, out=g)

        return dense
    from scipy.sparse import csr_array  # noqa: PLC0415 - slow

    A = csr_array((rows.data, rows.indices, rows.indptr), shape=(rows.count, rows.dimension))
    transposed = A.T
    return lambda: (A @ x, transposed @ c)


class Stage:
    """What rounds of all kinds share: ranks, graph, dimension, and a folder for ledgers."""

    def __init__(self, transport: MpiTransport, graph: str, dimension: int, folder: Path) -> None:
        self.transport = transport
        self.schedule = StaticSchedule(make_graph(graph, transport.size, 0))
        self.dimension = dimension
        self.folder = folder

    def rounds(self, name: str, algorithm: Method, data: Data, config: Config = PLAIN, sigma: float = 0.0) -> Many:
        """Return what runs whole rounds of a method; all ranks call this together."""
        transport, dimension, rank = self.transport, self.dimension, self.transport.rank
        key, meter = fresh_key(), Meter(transport)
        problem, penalty = data.problem(key), Regulariser(l2=5e-4)
        mechanism = make_mechanism("gaussian" if sigma else "none", sigma, key, dimension)
        plan = [(mechanism.event(problem.subgradient(np.zeros(dimension))), 1 << 30)]
        ledger = Ledger(self.folder / f"{name}-{dimension}-{rank}.jsonl", {}, plan)
        terms = make_terms(
            rank=rank, schedule=self.schedule, rounds=1, active_rounds=1, dimension=dimension, lipschitz=1.0,
            sampling=problem.batch.sampling(problem.records), loss="hinge", normalized=True, penalty=penalty,
            bounded=False,
        )  # fmt: skip
        agent = Agent(rank, 1.0, terms, problem, penalty, mechanism, ledger, PrivateStream(key, "weights"))
        secrets = agree_on_secrets(config, transport, on_first(transport, lambda: os.urandom(8).hex()))
        carrier = sealed(config, meter, secrets)
        exchange = make_exchange(config, carrier, rank, secrets, 0.0)
        run = Engine(algorithm, self.schedule, carrier, [Seat(agent, algorithm.start(agent), exchange)])
        return lambda count: run.advance(run.completed + count)


def make_kinds(
    transport: MpiTransport, dimension: int, shard_mb: float, folder: Path, only: Sequence[str] = ()
) -> dict[str, Many]:
    """Return what runs rounds of each kind, or of the named ones; all ranks call this together."""
    stage, rank, size = Stage(transport, "ring", dimension, folder), transport.rank, transport.size
    wanted = [name for name in kinds_for(size, dimension) if not only or name in only]
    computing = any(name.endswith(("gradient", "dda")) and "sparse" not in name for name in wanted)
    dense = dense_data(rank, dimension, shard_mb if computing else 0.0)
    sparse = sparse_data(rank, dimension, shard_mb) if any("sparse" in name for name in wanted) else dense
    noise, g = make_mechanism("gaussian", SIGMA, fresh_key(), dimension), np.zeros(dimension)
    makers: dict[str, Callable[[], Many]] = {
        "bare exchange": lambda: repeat(Bare(transport, stage.schedule, dimension).round),
        "mix": lambda: stage.rounds("mix", Consensus(), dense),
        "mix + AES-GCM": lambda: stage.rounds(
            "ciphered", Ciphered(len(stage.schedule.neighbourhood(rank).peers)), dense
        ),
        "sealed mix": lambda: stage.rounds("sealed", Consensus(), dense, SEALED),
        "bare gradient": lambda: repeat(bare_gradient(dense)),
        "bare sparse gradient": lambda: repeat(bare_gradient(sparse)),
        "bare noise": lambda: repeat(lambda: noise.perturb(g)),
        "dda": lambda: stage.rounds("dda", ConventionalDualAveraging(), dense),
        "dp-dda": lambda: stage.rounds("dp-dda", DualAveraging(), dense, sigma=SIGMA),
        "sealed dp-dda": lambda: stage.rounds("sealed-dp-dda", DualAveraging(), dense, SEALED, SIGMA),
        "sparse dp-dda": lambda: stage.rounds("sparse", DualAveraging(), sparse, sigma=SIGMA),
        "sum": lambda: stage.rounds("sum", Totals(), dense),
        "expanded sum": lambda: stage.rounds("expanded", Totals(), dense, EXPANDED),
        "full sum": lambda: stage.rounds("full", Totals(), dense, FULL),
    }
    return {name: makers[name]() for name in wanted}


def kinds_for(size: int, dimension: int) -> list[str]:
    """Return which kinds are timed for so many ranks."""
    kinds = [
        "bare exchange", "mix", "mix + AES-GCM", "sealed mix", "bare gradient", "bare sparse gradient", "bare noise",
        "dda", "dp-dda", "sealed dp-dda", "sparse dp-dda",
    ]  # fmt: skip
    if 8 * dimension * size * (size - 1) <= SUM_BYTES:
        kinds.append("sum")
        if size >= 3:  # fewer have nothing to hide among
            kinds += ["expanded sum", "full sum"]
    return kinds


def repeat(step: Callable[[], Any]) -> Many:
    """Return what calls `step` so many times."""

    def many(count: int) -> None:
        for _ in range(count):
            step()

    return many
