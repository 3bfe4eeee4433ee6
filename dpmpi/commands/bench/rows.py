"""The rounds that `python -m dpmpi bench` times in turns, one beside the other in the same processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from dpmpi.algorithms.dda import Dda, DpDda
from dpmpi.core import Agent, Array, Exchanges, Method, Mix, Planned, Request, Steps, Sum, Terms, public
from dpmpi.core.frozen import frozen
from dpmpi.crypto.sealing_speed import bare_cipher
from dpmpi.network.channel import Neighbourhood
from dpmpi.network.graph import make_graph
from dpmpi.network.handshake import agree_on_secrets
from dpmpi.network.schedule import StaticSchedule, SumSchedule
from dpmpi.network.transport.meter import Meter
from dpmpi.network.transport.mpi import MpiTransport
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem.rows import Csr, Dense, Rows
from dpmpi.rng import fresh_key
from dpmpi.runtime.assembly import build_agent
from dpmpi.runtime.config import Config
from dpmpi.runtime.cost.timing import Many, repeats, timed
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.messages import Messages, PlainMessages, SharedSums
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.settings import Settings

SIGMA = 0.05
ROW_ENTRIES, ROW_SHARE = 75, 7
"""A sparse row has 75 entries, or a seventh of the columns if that is less."""

KINDS = (
    *("bare exchange", "mix", "mix + AES-GCM", "sealed mix", "bare gradient", "bare sparse gradient", "bare noise"),
    *("dda", "dp-dda", "sealed dp-dda", "sparse dp-dda"),
)
"""The kinds of rounds that are timed for any number of ranks."""

RATIOS: dict[str, tuple[str, ...]] = {
    "mix / bare exchange": ("mix", "bare exchange"),
    "dda / bare parts": ("dda", "bare exchange", "bare gradient"),
    "dp-dda / bare parts": ("dp-dda", "bare exchange", "bare gradient", "bare noise"),
    "sparse dp-dda / bare parts": ("sparse dp-dda", "bare exchange", "bare sparse gradient", "bare noise"),
    "sealed mix / mix": ("sealed mix", "mix"),
    "sealed mix / mix + AES-GCM": ("sealed mix", "mix + AES-GCM"),
    "sealed dp-dda / dp-dda": ("sealed dp-dda", "dp-dda"),
    "Iallreduce / Allreduce": ("Iallreduce", "Allreduce"),
    "sum / Iallreduce": ("sum", "Iallreduce"),
    "expanded sum / Allreduce": ("expanded sum", "Allreduce"),
    "expanded sum / Iallreduce": ("expanded sum", "Iallreduce"),
    "expanded sum / sum": ("expanded sum", "sum"),
    "expanded sum of all masks / expanded sum": ("expanded sum of all masks", "expanded sum"),
    "full sum / sum": ("full sum", "sum"),
    "ring sum / mix": ("ring sum", "mix"),
    "expanded ring sum / ring sum": ("expanded ring sum", "ring sum"),
    "expanded torus sum / expanded ring sum": ("expanded torus sum", "expanded ring sum"),
}
"""What dpmpi adds to the bare parts, and secrecy to plain messages: the first over the sum of the others."""

PLAIN = PlainMessages()
SEALED = PlainMessages(asked_to_seal=True)
EXPANDED = SharedSums()
ALL_MASKS = SharedSums(all_pairs=True)
FULL = SharedSums(full=True)


@frozen
class Consensus(Method):
    """Averages a public vector: a round that is nothing but its exchange. The state is what it asks for."""

    def start(self, agent: Agent) -> Request:
        """Return the request: a vector that differs between ranks, to be overwritten by the answer."""
        v = np.full(agent.dimension, float(agent.rank))
        return Mix(public(v, because="it never met data"), out=v)

    def round(self, agent: Agent, state: Request, t: int) -> Steps:
        """Ask."""
        yield state

    def releases(self, terms: Terms) -> list[Planned]:
        """Return none."""
        return []


@frozen
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


@frozen
class Totals(Consensus):
    """Adds up the vectors of all ranks, the same ones in every round."""

    def start(self, agent: Agent) -> Request:
        """Return the request: the rank's vector, and room for the sum."""
        return Sum(super().start(agent).vector, out=np.zeros(agent.dimension))

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return a vector for everyone in every round."""
        return [Exchanges("everyone", terms.dimension, terms.active_rounds)]


def bare_reduction(transport: MpiTransport, dimension: int, blocking: bool) -> Callable[[], Any]:
    """Return MPI's own sum of as many words, integers of 64 bits: what a sum can cost at best."""
    comm, words = transport.bare_communicator(), np.ones(dimension, np.uint64)
    total = np.empty_like(words)
    if blocking:
        return lambda: comm.Allreduce(words, total)
    return lambda: comm.Iallreduce(words, total).Wait()


def bare_exchange(transport: MpiTransport, near: Neighbourhood, dimension: int) -> Callable[[], Any]:
    """Return the exchange and the weighted sum of a round as one would write them with mpi4py alone."""
    comm, vector = transport.bare_communicator(), np.zeros(dimension + 2)
    heard = [np.zeros(dimension + 2) for _ in near.peers]
    total, scratch = np.zeros(dimension), np.zeros(dimension)

    def exchange() -> None:
        requests = [comm.Irecv(buffer, peer) for buffer, peer in zip(heard, near.peers, strict=True)]
        requests += [comm.Isend(vector, peer) for peer in near.peers]
        transport.wait_all(requests)
        np.multiply(vector[:dimension], near.self_weight, out=total)
        for buffer, weight in zip(heard, near.weights, strict=True):
            np.multiply(buffer[:dimension], weight, out=scratch)
            np.add(total, scratch, out=total)
        vector[:dimension] = total

    return exchange


@frozen
class Data:
    """The shard of a rank."""

    rows: Rows
    labels: Array


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
        return lambda: (np.dot(X, x, out=s), np.dot(c, X, out=g))
    from scipy.sparse import csr_array  # noqa: PLC0415 - slow

    A = csr_array((rows.data, rows.indices, rows.indptr), shape=(rows.count, rows.dimension))
    transposed = A.T
    return lambda: (A @ x, transposed @ c)


@frozen
class Stage:
    """What rounds of all kinds share: ranks, dimension, and a folder for ledgers."""

    transport: MpiTransport
    dimension: int
    folder: Path
    vectors: dict[str, float] = field(default_factory=dict)
    """How many vectors' worth of numbers the busiest rank sends in a round of each kind."""

    def rounds(
        self, name: str, method: Method, data: Data, messages: Messages, sigma: float, graph: str = "ring"
    ) -> Many:
        """Return a function that runs whole rounds of a method; all ranks call this together."""
        transport, rank, key = self.transport, self.transport.rank, fresh_key()
        edges = make_graph(graph, transport.size, 0)
        schedule = SumSchedule(edges) if messages.hides else StaticSchedule(edges)
        given = Settings.of(Config(algorithm="dp-dda", rounds=1, intercept="none"))
        settings = replace(given, method=method, messages=messages)
        plan = make_plan(settings, schedule, [data.rows.count] * transport.size, self.dimension)
        self.vectors[name] = max(map(plan.payload_bytes, range(plan.ranks))) / (8 * self.dimension)
        problem, mechanism = plan.problem(rank, data.rows, data.labels, key), plan.mechanism(sigma, key)
        planned = [(mechanism.event(problem.subgradient(np.zeros(self.dimension))), 1 << 30)]
        ledger = Ledger(self.folder / f"{name}-{self.dimension}-{rank}.jsonl", {}, planned)
        agent = build_agent(plan, rank, key, problem, mechanism, charges=ledger)
        secrets = None
        if messages.secret:
            secrets = agree_on_secrets(transport)
        carrier = messages.carrier(Meter(transport), secrets)
        seat = Seat(agent, plan.method.start(agent), messages.exchange(carrier, rank, secrets, routes=plan.routes))
        run = Engine(plan.method, schedule, carrier, [seat])
        return lambda count: run.advance(run.completed + count)


def make_kinds(
    transport: MpiTransport,
    dimension: int,
    shard_mb: float,
    folder: Path,
    only: Sequence[str] = (),
    more: Mapping[str, Method] = MappingProxyType({}),
) -> tuple[dict[str, Many], dict[str, float]]:
    """Return functions that run rounds of each kind, or of the named ones, and how many vectors a rank sends in one.

    All ranks call this together. `more` are methods whose rounds are timed, too, with noise and plain messages.
    """
    rank, stage = transport.rank, Stage(transport, dimension, folder)
    near = StaticSchedule(make_graph("ring", transport.size, 0)).neighbourhood(rank)
    wanted = [name for name in [*kinds_for(transport.size), *more] if not only or name in only]
    computing = any(name in more or (name.endswith(("gradient", "dda")) and "sparse" not in name) for name in wanted)
    dense = dense_data(rank, dimension, shard_mb if computing else 0.0)
    sparse = sparse_data(rank, dimension, shard_mb) if any("sparse" in name for name in wanted) else dense
    noise, g = make_mechanism("gaussian", SIGMA, fresh_key(), dimension), np.zeros(dimension)
    bare: dict[str, Callable[[], Callable[[], Any]]] = {
        "bare exchange": lambda: bare_exchange(transport, near, dimension),
        "bare gradient": lambda: bare_gradient(dense),
        "bare sparse gradient": lambda: bare_gradient(sparse),
        "bare noise": lambda: partial(noise.perturb, g),
        "Allreduce": lambda: bare_reduction(transport, dimension, blocking=True),
        "Iallreduce": lambda: bare_reduction(transport, dimension, blocking=False),
    }
    whole: dict[str, tuple[Any, ...]] = {
        "mix": (Consensus(), dense, PLAIN, 0.0),
        "mix + AES-GCM": (Ciphered(len(near.peers)), dense, PLAIN, 0.0),
        "sealed mix": (Consensus(), dense, SEALED, 0.0),
        "dda": (Dda(), dense, PLAIN, 0.0),
        "dp-dda": (DpDda(), dense, PLAIN, SIGMA),
        "sealed dp-dda": (DpDda(), dense, SEALED, SIGMA),
        "sparse dp-dda": (DpDda(), sparse, PLAIN, SIGMA),
        "sum": (Totals(), dense, PLAIN, 0.0, "complete"),
        "expanded sum": (Totals(), dense, EXPANDED, 0.0, "complete"),
        "expanded sum of all masks": (Totals(), dense, ALL_MASKS, 0.0, "complete"),
        "full sum": (Totals(), dense, FULL, 0.0, "complete"),
        "ring sum": (Totals(), dense, PLAIN, 0.0),
        "expanded ring sum": (Totals(), dense, EXPANDED, 0.0),
        "expanded torus sum": (Totals(), dense, EXPANDED, 0.0, "torus"),
    }
    whole |= {name: (method, dense, PLAIN, SIGMA) for name, method in more.items()}
    kinds = {name: repeat(bare[name]()) if name in bare else stage.rounds(name, *whole[name]) for name in wanted}
    return kinds, stage.vectors


def kinds_for(size: int) -> list[str]:
    """Return which kinds are timed for `size` ranks."""
    sums = ["Allreduce", "Iallreduce", "sum", "ring sum"]
    if size >= 3:  # fewer ranks have nothing to hide among
        sums += ["expanded sum", "expanded sum of all masks", "full sum", "expanded ring sum", "expanded torus sum"]
    return [*KINDS, *sums]


def repeat(step: Callable[[], Any]) -> Many:
    """Return a function that calls `step` again and again."""

    def many(count: int) -> None:
        for _ in range(count):
            step()

    return many


def measure(transport: MpiTransport, kinds: dict[str, Many], turns: int, target: float) -> dict[str, list[float]]:
    """Return the seconds of one round of each kind in each turn of about `target` seconds, the slowest rank's."""
    counts = {name: repeats(transport, run, target) for name, run in kinds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(turns):
        for name in list(kinds) if turn % 2 == 0 else reversed(kinds):
            seconds[name].append(timed(transport, kinds[name], counts[name])[0])
    return seconds


def ratios(seconds: Mapping[str, float], formulas: Mapping[str, Sequence[str]] = RATIOS) -> dict[str, float]:
    """Return those ratios that can be formed, each the first over the sum of the others."""
    return {
        name: seconds[top] / sum(seconds[part] for part in parts)
        for name, (top, *parts) in formulas.items()
        if {top, *parts} <= seconds.keys()
    }


def condense(
    seconds: Mapping[str, Iterable[float]],
    formulas: Mapping[str, Sequence[str]] = RATIOS,
    vectors: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the medians over the turns: of the seconds, and of the ratios within a turn; and the vectors sent."""
    turns = [dict(zip(seconds, values, strict=True)) for values in zip(*seconds.values(), strict=True)]
    each = [ratios(turn, formulas) for turn in turns]
    found: dict[str, Any] = {
        "seconds": {name: statistics.median(turn[name] for turn in turns) for name in seconds},
        "ratios": {name: statistics.median(one[name] for one in each) for name in each[0]},
    }
    return found | ({"vectors": dict(vectors)} if vectors else {})
