"""Who may talk to whom, and with which weights.

A graph is written as a spec: `ring`, `path`, `star`, `complete`, `grid`, `torus` (or `grid:rows=4,columns=5`),
`erdos-renyi:p=0.6`, `random:edges=20`, `edges:0-1,1-2`, `file:PATH`. The random ones are drawn from the shared seed, so
that every rank builds the same graph without a message.

With d_i the degrees, L = D - A the Laplacian and {i, j} an edge, the mixing matrix W has

    metropolis   W_ij = 1 / (1 + max(d_i, d_j))                                    (1)
    uniform      W_ij = 1 / (1 + max_k d_k)                                        (2)
    laplacian    W_ij = 2 / (3 lambda_max(L)),  that is W = I - 2 / (3 lambda_max) L   (3)
    all          W_ii = 1 - sum_{j != i} W_ij                                      (4)

W is symmetric and its rows sum to 1, hence its columns too. W_ii > 0: at most d_i / (1 + d_i) is given away in (1) and
(2), and at most 2 d_i / (3 (d_max + 1)) < 2/3 in (3), as lambda_max >= d_max + 1. Mixing contracts disagreement by

    beta = sigma_2(W) = |W - 11'/n|_2 < 1  for a connected graph.                  (5)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, nearest
from dpmpi.network.channel import Neighbourhood
from dpmpi.rng import public_generator

Edge = tuple[int, int]
OptionType = TypeVar("OptionType", int, float)

GRAPHS = ("ring", "path", "star", "grid", "torus", "complete", "erdos-renyi", "random", "edges", "file")
OTHER_NAMES = {
    "circle": "ring",
    "cycle": "ring",
    "line": "path",
    "chain": "path",
    "hub": "star",
    "mesh": "grid",
    "lattice": "grid",
    "full": "complete",
    "clique": "complete",
}
"""What others call them: no names here, but what an error suggests."""
WEIGHTS = ("metropolis", "uniform", "laplacian")

_MOST_EDGES = 2_000_000  # 300 MB on every rank; a complete graph of 2000 ranks
_MOST_DRAWS = 10_000
_MOST_DRAWN = 10_000_000  # nodes and edges over all draws: keeps a hopeless request on a large graph to seconds


@frozen
class Graph:
    """An undirected graph on the ranks 0 ... size-1. `edges` is sorted and holds each edge once, as (i, j), i < j."""

    name: str
    size: int
    edges: tuple[Edge, ...]

    @cached_property
    def _adjacency(self) -> tuple[tuple[int, ...], ...]:
        near: list[list[int]] = [[] for _ in range(self.size)]
        for i, j in self.edges:
            near[i].append(j)
            near[j].append(i)
        return tuple(tuple(sorted(peers)) for peers in near)

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """The number of neighbours of each rank."""
        return tuple(len(peers) for peers in self._adjacency)

    @property
    def complete(self) -> bool:
        """Whether there is an edge between every two ranks."""
        return len(self.edges) == self.size * (self.size - 1) // 2

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Return the ranks next to `rank`, sorted."""
        return self._adjacency[rank]

    def induced(self, members: Sequence[int]) -> Graph:
        """Return the graph among some of the ranks, of which the k-th becomes rank k."""
        place = {rank: k for k, rank in enumerate(members)}
        edges = _normal((place[i], place[j]) for i, j in self.edges if i in place and j in place)
        lost = self.size - len(place)
        return Graph(f"{self.name} without {lost}" if lost else self.name, len(place), edges)

    def levels(self, rank: int) -> list[set[int]]:
        """Return the ranks that are 0, 1, 2, ... steps away from `rank`, as far as they are connected with it."""
        found, fresh, levels = set[int](), {rank}, []
        while fresh:
            levels.append(fresh)
            found |= fresh
            fresh = {j for i in fresh for j in self._adjacency[i]} - found
        return levels

    def reached(self, rank: int) -> set[int]:
        """Return the ranks that are connected with `rank`, itself included."""
        return set[int]().union(*self.levels(rank))

    def largest_component(self) -> list[int]:
        """Return the ranks of the largest connected part, of several the one with the lowest rank."""
        best, left = set[int](), set(range(self.size))
        while left:
            part = self.reached(min(left))
            left -= part
            best = max(best, part, key=len)
        return sorted(best)

    def laplacian(self) -> Array:
        """Return D - A as a dense (size, size) matrix."""
        L = np.diag(np.array(self.degrees, np.float64))
        for i, peers in enumerate(self._adjacency):
            L[i, list(peers)] = -1.0
        return L


# --- making graphs ---------------------------------------------------------------------------------------------------


def make_graph(spec: str, size: int, seed: int) -> Graph:
    """Return the connected graph that `spec` describes; random ones are a pure function of (spec, size, seed).

    `grid` and `torus` take the most square factorisation of `size`, which for a prime size is one row: a path or a
    ring. Their name in the result says the rows and columns. A graph of one rank has no edges.
    """
    if size < 1:
        raise ConfigError(f"expected a graph of at least 1 rank, found {size}")
    _check_edges(spec, size, size - 1)
    kind, _, rest = spec.partition(":")
    if kind not in GRAPHS:
        near = nearest(OTHER_NAMES.get(kind, kind), GRAPHS)
        raise ConfigError(f"expected a graph among {', '.join(GRAPHS)}, found {kind!r}{near}")
    if kind == "file":
        edges = _normal(_read_edges(rest, size))
    elif kind == "edges":
        edges = _normal(_listed_edges(rest, size))
        spec = f"edges ({len(edges)})"
    elif kind in ("grid", "torus"):
        rows, columns = _rows_columns(spec, rest, size)
        spec = f"{kind}:rows={rows},columns={columns}"
        edges = _normal(_lattice(rows, columns, wrap=kind == "torus"))
    elif kind == "erdos-renyi":
        p = _probability(spec, rest)
        _check_edges(spec, size, int(p * size * (size - 1) / 2))
        edges = _draw_connected(spec, "raise p", size, seed, lambda rng: int(rng.binomial(size * (size - 1) // 2, p)))
    elif kind == "random":
        count = _edge_count(spec, rest, size)
        _check_edges(spec, size, count)
        edges = _draw_connected(spec, "raise edges", size, seed, lambda _: count)
    else:
        _options(spec, rest, (), int)
        _check_edges(spec, size, size * (size - 1) // 2 if kind == "complete" else size)
        edges = _normal(_shape(kind, size))
    graph = Graph(spec, size, edges)
    strangers = set(range(size)) - graph.reached(0)
    if strangers:
        found = f"no path from rank 0 to rank {min(strangers)}"
        raise ConfigError(f"graph {spec}: expected a connected graph, found {found}: add edges")
    return graph


def _check_edges(spec: str, size: int, edges: int) -> None:
    """Raise `ConfigError` for a graph that would fill the memory: every rank knows all of it."""
    if edges > _MOST_EDGES:
        raise ConfigError(
            f"graph {spec}: expected at most {_MOST_EDGES} edges, found about {edges} on {size} ranks: "
            "take fewer ranks, or a graph with fewer edges"
        )


def _normal(pairs: Iterable[Edge]) -> tuple[Edge, ...]:
    """Return each edge once, as (i, j) with i < j, sorted; a ring of 1 or 2 loses its loop or its double."""
    return tuple(sorted({(min(i, j), max(i, j)) for i, j in pairs if i != j}))


def _shape(kind: str, size: int) -> Iterator[Edge]:
    if kind == "ring":
        return ((i, (i + 1) % size) for i in range(size))
    if kind == "path":
        return ((i, i + 1) for i in range(size - 1))
    if kind == "star":
        return ((0, i) for i in range(1, size))
    return ((i, j) for i in range(size) for j in range(i + 1, size))


def _lattice(rows: int, columns: int, *, wrap: bool) -> Iterator[Edge]:
    for r in range(rows):
        for c in range(columns):
            if wrap or c + 1 < columns:
                yield r * columns + c, r * columns + (c + 1) % columns
            if wrap or r + 1 < rows:
                yield r * columns + c, (r + 1) % rows * columns + c


def _draw_connected(
    spec: str, advice: str, size: int, seed: int, count: Callable[[np.random.Generator], int]
) -> tuple[Edge, ...]:
    """Draw `count(generator)` distinct edges uniformly, again and again until the graph is connected.

    A binomial count makes this Erdos-Renyi, a fixed one the uniform graph of that many edges, given connectedness.
    """
    generator = public_generator(seed, "graph", spec.partition(":")[0], size)
    slots = size * (size - 1) // 2
    draws = drawn = 0
    while draws < _MOST_DRAWS and drawn < _MOST_DRAWN:
        edges = count(generator)
        draws, drawn = draws + 1, drawn + size + edges
        if edges < size - 1:
            continue
        k = generator.choice(slots, edges, replace=False, shuffle=False)
        j = ((1 + np.sqrt(1 + 8 * k)) // 2).astype(np.int64)  # edge k is (i, j), i < j, with k = j (j - 1) / 2 + i
        pairs = np.column_stack((k - j * (j - 1) // 2, j))
        if size > 1 and not np.bincount(pairs.ravel(), minlength=size).all():
            continue  # a node without edges: seen at once, and what mostly goes wrong
        found = _normal((i, j) for i, j in pairs.tolist())
        if len(Graph(spec, size, found).reached(0)) == size:
            return found
    raise ConfigError(f"expected a connected graph {spec} on {size} nodes, found none in {draws} draws: {advice}")


def _options(spec: str, rest: str, keys: Sequence[str], number: type[OptionType]) -> dict[str, OptionType]:
    """Return {key: number} of `key=number,...`; raise for a key that is not in `keys`."""
    options: dict[str, OptionType] = {}
    for part in filter(None, rest.split(",")):
        key, _, text = part.partition("=")
        try:
            if key not in keys or key in options:
                raise ValueError
            options[key] = number(text)
        except ValueError:
            expected = ",".join(f"{name}={number.__name__}" for name in keys) or "no options"
            raise ConfigError(f"graph {spec}: expected {expected}, found {part!r}") from None
    return options


def _rows_columns(spec: str, rest: str, size: int) -> tuple[int, int]:
    given = _options(spec, rest, ("rows", "columns"), int)
    if not given:
        rows = next(r for r in range(isqrt(size), 0, -1) if size % r == 0)
        return rows, size // rows
    rows = given.get("rows", size // max(given.get("columns", 1), 1))
    columns = given.get("columns", size // max(rows, 1))
    if rows < 1 or rows * columns != size:
        raise ConfigError(f"graph {spec}: expected rows x columns = {size} ranks, found {rows} x {columns}")
    return rows, columns


def _probability(spec: str, rest: str) -> float:
    p = _options(spec, rest, ("p",), float).get("p")
    if p is None or not 0.0 < p <= 1.0:
        raise ConfigError(f"graph {spec}: expected 0 < p <= 1, as in erdos-renyi:p=0.6, found {p}")
    return p


def _edge_count(spec: str, rest: str, size: int) -> int:
    count = _options(spec, rest, ("edges",), int).get("edges")
    least, most = size - 1, size * (size - 1) // 2
    if count is None or not least <= count <= most:
        raise ConfigError(f"graph {spec}: expected {least} to {most} edges for {size} connected nodes, found {count}")
    return count


def edges_spec(graph: Any) -> str:
    """Return the spec of a graph that is an object: pairs of ranks, or a networkx graph whose nodes are 0 ... n-1."""
    if hasattr(graph, "nodes") and hasattr(graph, "edges"):
        if sorted(graph.nodes) != list(range(len(graph.nodes))):
            raise ConfigError(
                "expected the ranks 0 ... n-1 as nodes of the graph, found others: see "
                "networkx.convert_node_labels_to_integers"
            )
        graph = list(graph.edges)
    try:
        pairs = np.asarray(graph)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu" or pairs.min() < 0:
            raise ValueError
    except ValueError:
        raise ConfigError(
            "expected a graph as text, a networkx graph or pairs of ranks, found something else"
        ) from None
    return "edges:" + ",".join(f"{i}-{j}" for i, j in _normal((int(i), int(j)) for i, j in pairs.tolist()))


def _listed_edges(text: str, size: int) -> Iterator[Edge]:
    """Yield the edges of `0-1,1-2,...`."""
    for edge in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", edge, re.ASCII)
        if found is None or max(int(found[1]), int(found[2])) >= size or int(found[1]) == int(found[2]):
            raise ConfigError(
                f"expected edges:I-J,... between two of the ranks 0 to {size - 1}, found {edge[:40]!r}: mend it"
            )
        yield int(found[1]), int(found[2])


def _read_edges(path: str, size: int) -> Iterator[Edge]:
    """Yield the edges of a file of lines "i j", ranks from 0; `#` starts a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"graph file:{path}: expected a readable file of lines 'i j', found: {reason}") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise ConfigError(f"{path}:{number}: expected two ranks 'i j', found {line.strip()[:60]!r}")
        if max(map(len, words)) > 18:  # digits: more than any integer of 64 bits has, and Python refuses thousands
            raise ConfigError(f"{path}:{number}: expected ranks 0 to {size - 1} of {size}, found more than 10^18")
        i, j = map(int, words)
        if max(i, j) >= size:
            raise ConfigError(f"{path}:{number}: expected ranks 0 to {size - 1} of {size}, found {max(i, j)}")
        if i == j:
            raise ConfigError(f"{path}:{number}: expected an edge between two ranks, found {i} twice")
        yield i, j


# --- weights ---------------------------------------------------------------------------------------------------------


def common_weight(graph: Graph, weights: str) -> float | None:
    """Return the weight that all edges share under (2) or (3), None under (1). (3) takes a dense eigenvalue problem."""
    if weights not in WEIGHTS:
        raise ConfigError(f"expected weights {', '.join(WEIGHTS)}, found {weights!r}{nearest(weights, WEIGHTS)}")
    if weights == "metropolis":
        return None
    if weights == "uniform" or not graph.edges:
        return 1.0 / (1 + max(graph.degrees))  # (2)
    return float(2.0 / (3.0 * np.linalg.eigvalsh(graph.laplacian())[-1]))  # (3)


def neighbourhood(graph: Graph, rank: int, common: float | None) -> Neighbourhood:
    """Return the neighbours of `rank` with their weights, from degrees only; `common` is from `common_weight`."""
    peers, d = graph.neighbours(rank), graph.degrees
    w = tuple(1.0 / (1 + max(d[rank], d[j])) if common is None else common for j in peers)  # (1)
    own = 1.0 / (1 + len(peers))  # (4), without its rounding, where all have this weight
    return Neighbourhood(peers, w, own if {*w} == {own} else 1.0 - sum(w))  # (4)


def mixing_matrix(graph: Graph, weights: str) -> Array:
    """Return W as a dense (size, size) matrix, checked to be doubly stochastic."""
    common = common_weight(graph, weights)
    W = np.zeros((graph.size, graph.size))
    for i in range(graph.size):
        near = neighbourhood(graph, i, common)
        W[i, list(near.peers)] = near.weights
        W[i, i] = near.self_weight
    check_doubly_stochastic(W)
    return W


def check_doubly_stochastic(W: Array) -> None:
    """Raise `ConfigError` unless W is symmetric and non-negative, and its rows and columns sum to 1."""
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ConfigError(f"expected a square mixing matrix, found shape {W.shape}")
    off = max(np.abs(W.sum(axis) - 1.0).max() for axis in (0, 1))
    if not off <= 1e-12:
        raise ConfigError(
            f"expected rows and columns of a mixing matrix that sum to 1, found one that is off by {off:.3g}"
        )
    if W.min() < -1e-15:
        raise ConfigError(f"expected no negative entries in a mixing matrix, found {W.min():.3g}")
    if not np.array_equal(W, W.T):
        raise ConfigError(f"expected a symmetric mixing matrix, found |W - W'| = {np.abs(W - W.T).max():.3g}")


def beta(W: Array) -> float:
    """Return (5), the second largest singular value of a doubly stochastic W; 0 for one rank."""
    return float(np.linalg.norm(W - 1.0 / len(W), 2))
