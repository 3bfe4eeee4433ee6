"""What a run costs in seconds, messages and bytes, for numbers of ranks that nobody has tried.

A `Pattern` says who sends how much to whom: enough to count messages and bytes for any number of ranks. For seconds, a
round of a rank takes

    u = c + sum over its exchanges of w(d, b) + what waiting takes                         (1)

of a core, with w fitted to this machine (`fit.py`) and c what the method computes: taken from a run that was
measured, or fitted too, for a gradient over a batch and a step. Then `dry_run.py` lets the ranks wait for each
other. Every rank brings as many records as before.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.crypto.mask_graph import circulant
from dpmpi.errors import ConfigError
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.route import Tree, all_sent, butterfly_sent, choose, complete_tree, spanning_tree
from dpmpi.network.schedule import SampledSchedule, StaticSchedule
from dpmpi.runtime.cost.dry_run import Hosts, everyone_waits, neighbours_wait, pairs_wait
from dpmpi.runtime.cost.fit import CONSTANTS, Fit
from dpmpi.runtime.messages import SharedSums
from dpmpi.runtime.plan import Plan, count_sent

SIZES = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
"""Numbers of ranks that are predicted."""
MOST_EDGES = 200_000
"""Larger graphs are not made for a prediction."""


@frozen
class Pattern:
    """Who sends how much to whom in a run."""

    graph: str
    ranks: int
    """Those for which `graph` was written."""
    seed: int
    rounds: int
    sample_edges: int | None
    """Edges a round, if they are sampled."""
    messages: tuple[tuple[str, int, float], ...]
    """(way, bytes of a vector with what comes on top of it in a message, how many times in an active round)"""
    overhead: int = 0
    """Bytes on top of the numbers in a message."""
    route: str = "auto"
    """The route of sums that was asked for."""
    connectivity: int | None = None
    """That of the ranks which share masks; None for all neighbours."""

    def edges(self, ranks: int) -> float | None:
        """Return how many edges the graph has on `ranks` ranks; None for one that does not grow."""
        kind, _, rest = self.graph.partition(":")
        if kind == "complete":
            return ranks * (ranks - 1) / 2
        if kind == "erdos-renyi":
            expected = float(rest.partition("=")[2]) * ranks * (ranks - 1) / 2
            if expected > MOST_EDGES:
                return expected
        graph = self.make_graph(ranks)
        return None if graph is None else len(graph.edges)

    def make_graph(self, ranks: int) -> Graph | None:
        """Return the graph on `ranks` ranks, as long or as dense as it was; None for one that does not grow."""
        kind, _, rest = self.graph.partition(":")
        if ranks == self.ranks:
            spec = self.graph
        elif kind == "file":
            return None
        elif kind == "random":
            spec = f"random:edges={round(int(rest.partition('=')[2]) * ranks / self.ranks)}"
        else:
            spec = kind if kind in ("grid", "torus") else self.graph
        return _graph(spec, ranks, self.seed)

    def count(self, ranks: int) -> tuple[int, int] | None:
        """Return the messages and bytes of a run of `ranks` ranks; None for a graph that does not grow."""
        edges = self.edges(ranks)
        if edges is None and self.sample_edges is None:
            return None

        def one_exchange(way: str, size: int) -> tuple[float, float]:
            if way == "sum":
                messages, payload = all_sent(self.sum_route(ranks, size), ranks, size - self.overhead)
                return self.rounds * messages, self.rounds * (payload + messages * self.overhead)
            sent = self.rounds * (
                2.0 * self.sample_edges if self.sample_edges else self._ends(way, ranks, edges or 0.0)
            )
            return sent, sent * size

        return count_sent(self.messages, one_exchange)

    def _ends(self, way: str, ranks: int, edges: float) -> float:
        """Return how many messages it takes all ranks to tell their vectors in this way."""
        if way == "partners" and self.connectivity is not None:
            return 2.0 * len(circulant(ranks, min(ranks - 1, self.connectivity)))
        return ranks * (ranks - 1.0) if way == "everyone" else 2.0 * edges

    def sum_route(self, ranks: int, size: int) -> str:
        """Return the route of sums of vectors of this size."""
        complete = self.edges(ranks) == ranks * (ranks - 1) / 2
        return choose(self.route, complete, ranks, size - self.overhead)

    def alike(self, ranks: int) -> bool:
        """Return whether a rank sends about as many messages as in the run itself."""
        here, there = self.count(self.ranks), self.count(ranks)
        if here is None or there is None or self.sample_edges is not None:
            return self.sample_edges is not None
        return abs(there[0] / ranks - here[0] / self.ranks) <= 0.1 * here[0] / self.ranks


@frozen
class Link:
    """What lies between hosts that are far apart: b bytes to each of d peers take latency + d b / bandwidth."""

    latency: float = 0.0
    """Seconds, one way."""
    bandwidth: float = math.inf
    """Bytes a second that leave a host."""


@lru_cache(maxsize=4)
def _graph(spec: str, ranks: int, seed: int) -> Graph | None:
    try:
        return make_graph(spec, ranks, seed)
    except ConfigError:
        return None


def pattern_of(plan: Plan) -> Pattern:
    """Return the pattern of a run."""
    config, schedule = plan.config, plan.schedule
    busiest = max(range(schedule.size), key=plan.active.__getitem__)
    active, overhead = max(1, plan.active[busiest]), plan.settings.messages.overhead
    pattern = tuple((way, size + overhead, times / active) for way, size, times in plan.sent(busiest))
    sampled = None if isinstance(schedule, StaticSchedule) else schedule.edges_per_round
    messages = plan.settings.messages
    few = messages.connectivity(schedule.graph) if isinstance(messages, SharedSums) else None
    return Pattern(config.graph, schedule.size, config.seed, plan.rounds, sampled, pattern, overhead, config.route, few)


def seconds(
    pattern: Pattern, ranks: int, work: float, fitted: Fit, hosts: Hosts, link: Link | None = None
) -> float | None:
    """Return the seconds of a run of `ranks` ranks that compute for `work` seconds in a round, by (1).

    `link` is what lies between them, if they are far apart. None for graphs that do not grow, or are too large to be
    rehearsed.
    """
    edges = pattern.edges(ranks)
    complete = pattern.graph.partition(":")[0] == "complete" and pattern.sample_edges is None
    if edges is None or (edges > MOST_EDGES and not complete):
        return None
    hosts = Hosts(min(hosts.ranks, ranks), hosts.cores)
    graph = None if complete else pattern.make_graph(ranks)
    u = work + exchange_seconds(pattern, ranks, graph, fitted, hosts)
    ways = [(times, *_on_the_way(pattern, ranks, graph, way, size)) for way, size, times in pattern.messages]
    transit = sum(times * hops for times, hops, _ in ways) * fitted.transit_seconds
    if link is not None:
        transit += sum(times * (hops * link.latency + sent / link.bandwidth) for times, hops, sent in ways)
    if pattern.sample_edges is not None and graph is not None:
        schedule = SampledSchedule(graph, pattern.sample_edges, pattern.seed)
        return pairs_wait(schedule, float(u[0]), transit, hosts, pattern.rounds)
    if graph is None or any(way != "neighbours" for way, _, _ in pattern.messages):
        return everyone_waits(u, transit, hosts, pattern.rounds)
    return neighbours_wait(np.array(graph.edges, np.int64).reshape(-1, 2), u, transit, hosts, pattern.rounds)


def exchange_seconds(pattern: Pattern, ranks: int, graph: Graph | None, fitted: Fit, hosts: Hosts) -> Array:
    """Return each rank's seconds of a core for the exchanges of an active round; without a graph all are neighbours."""
    everyone = [ranks - 1] * ranks
    near = [1] * ranks if pattern.sample_edges is not None else everyone if graph is None else graph.degrees
    total = np.zeros(ranks)
    for way, size, times in pattern.messages:
        if way == "sum":
            total += times * _sum_seconds(pattern, ranks, graph, size, fitted, hosts)
            continue
        peers: Sequence[int] | Array = everyone if way == "everyone" else near
        if way == "partners" and pattern.connectivity is not None:
            peers = [min(ranks - 1, pattern.connectivity)] * ranks
        total += times * fitted.exchange(np.array(peers, np.float64), size, hosts)
    return total + fitted.nap_seconds * hosts.crowding


def _tree(ranks: int, graph: Graph | None) -> Tree:
    """Return the tree of sums over a graph, a complete one if there is none."""
    return complete_tree(ranks) if graph is None else spanning_tree(graph)


def _sum_seconds(pattern: Pattern, ranks: int, graph: Graph | None, size: int, fitted: Fit, hosts: Hosts) -> float:
    """Return the seconds of a core that a sum takes a rank, on average."""
    route, payload = pattern.sum_route(ranks, size), size - pattern.overhead
    messages, numbers = all_sent(route, ranks, payload)
    hops = 1.0
    if route == "tree":
        tree = _tree(ranks, graph)
        hops = sum(map(tree.waits, range(ranks))) / ranks
    elif route == "butterfly":
        hops = butterfly_sent(ranks, payload).hops
    waits = hops * float(fitted.exchange(np.zeros(1), 0.0, hosts)[0])
    sent = numbers + messages * pattern.overhead
    return waits + (messages * fitted.latency_seconds + sent * fitted.seconds_per_byte) / ranks


def _on_the_way(pattern: Pattern, ranks: int, graph: Graph | None, way: str, size: int) -> tuple[int, int]:
    """Return how many messages of an exchange follow each other, and the bytes that leave a host in turn."""
    if way == "sum":
        route, payload = pattern.sum_route(ranks, size), size - pattern.overhead
        if route == "tree":
            tree = _tree(ranks, graph)
            return 2 * tree.depth, 2 * tree.depth * max(map(len, tree.children)) * size
        if route == "butterfly":
            sent = butterfly_sent(ranks, payload)
            return sent.hops, sent.payload + sent.messages * pattern.overhead
        return 1, (ranks - 1) * size
    if pattern.sample_edges is not None:
        return 1, size
    if way == "partners" and pattern.connectivity is not None:
        return 1, min(ranks - 1, pattern.connectivity) * size
    return 1, (ranks - 1 if graph is None or way == "everyone" else max(graph.degrees)) * size


def sizes(own: int) -> list[int]:
    """Return the numbers of ranks to predict for a run: its own and the round ones."""
    return sorted({own, *SIZES})


def own_cost(
    pattern: Pattern, ranks: Sequence[Mapping[str, Any]], hosts: Hosts | None, training: float, fitted: Fit | None
) -> dict[str, Any]:
    """Return the costs that a run measured, JSON-ready, and the fit of this machine if there is one.

    `ranks` are the records of all ranks; `hosts` is None if they were not processes of their own.
    """
    active = max(1, sum(record["active_rounds"] for record in ranks))
    sent = max(1, sum(record["messages_sent"] for record in ranks))
    core = sum(record["core_seconds"] for record in ranks) / active
    compute = None
    if hosts is not None and fitted is not None:
        talk = exchange_seconds(pattern, pattern.ranks, pattern.make_graph(pattern.ranks), fitted, hosts)
        compute = max(0.0, core - float(talk.mean()))
    return {
        "round_seconds": training / pattern.rounds,
        "work_seconds": core if hosts is not None else None,
        "compute_seconds": compute,
        "wait_seconds": sum(record["wait_seconds"] for record in ranks) / active,
        "message_bytes": sum(record["bytes_sent"] for record in ranks) / sent,
        "ranks_per_host": None if hosts is None else hosts.ranks,
        "cores_per_host": None if hosts is None else hosts.cores,
        "pattern": dataclasses.asdict(pattern),
        **(dict.fromkeys(CONSTANTS) if fitted is None else dataclasses.asdict(fitted)),
    }


def predicted_rows(summary: Mapping[str, Any], ranks: Iterable[int] | None = None) -> list[dict[str, Any]]:
    """Return the costs of the run of a summary with other numbers of ranks, on hosts as full as its own were.

    A row holds ranks, messages, bytes, hosts and seconds; the last two are null where they are not known: for agents in
    one process, for graphs too large to be rehearsed and, if this machine's exchanges were never measured, where a rank
    has more or fewer peers than in the run. Seconds are scaled so that they are right for the run itself.
    """
    cost = summary.get("cost")
    if cost is None:
        return []
    told = cost["pattern"]
    pattern = Pattern(**told | {"messages": tuple(tuple(each) for each in told["messages"])})
    known = cost["latency_seconds"] is not None
    fitted = Fit(*(cost[name] or 0.0 for name in CONSTANTS))
    hosts = None if cost["work_seconds"] is None else Hosts(cost["ranks_per_host"], cost["cores_per_host"])
    work = cost["work_seconds"] if cost["compute_seconds"] is None else cost["compute_seconds"]
    own = None if hosts is None else seconds(pattern, pattern.ranks, work, fitted, hosts)
    rows = []
    for n in sizes(pattern.ranks) if ranks is None else ranks:
        counted = pattern.count(n)
        if counted is None:
            continue
        row: dict[str, Any] = {"ranks": n, "messages": counted[0], "bytes": counted[1], "hosts": None, "seconds": None}
        if hosts is not None:
            row["hosts"] = -(-n // hosts.ranks)
            found = seconds(pattern, n, work, fitted, hosts) if known or pattern.alike(n) else None
            row["seconds"] = found * cost["round_seconds"] * pattern.rounds / own if found and own else None
        rows.append(row)
    return rows
