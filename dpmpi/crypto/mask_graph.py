"""Which pairs of ranks share a mask: as few as hide the summands from c colluders.

M is the graph of these pairs. Rank i says y_i = k_i + (the masks of its pairs, each with the sign that cancels in the
sum), modulo p. Against colluders C, who know their own masks, and listeners, who see every y_i:

    Theorem. They learn, about the honest k_i, the sum over each connected component of M - C, and nothing else.  (1)

Proof. Subtract from each honest y_i the masks that C knows; what is left has the masks of the edges of M - C alone, and
the components have no mask in common. In one component H the sum of all y_i is the sum of all k_i, since each mask is
there once with each sign. Take a spanning tree of H, and a leaf i of it, whose tree edge has the mask g: given all
else, y_i = k_i +- g + ... is uniform, for g is, and only i and its neighbour in the tree know g. Leave i out, adding
y_i to what its neighbour said: that is H without i, with k_i added to the neighbour's summand. Induction ends at one
rank, whose y is the sum over H. So all y_i of H but one are uniform and independent, whatever the k_i, and the last is
determined by them and the sum. With masks expanded from secrets the same holds against whoever cannot tell AES-256 from
a random function.

So M must stay connected without any c ranks: it needs vertex connectivity c + 1, hence ceil((c + 1) n / 2) edges at
least, which the circulant graphs of Harary have:

    i -- i + 1, ..., i + floor(k/2) modulo n,  and for odd k  i -- i + floor(n/2)                                 (2)

are k-connected [H62]. Two masks a rank hide from any one other, four from any three; all n - 1 from any n - 2.

[H62] Harary. The maximum connectivity of a graph. PNAS 48(7), 1962.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

Pair = tuple[int, int]

USUAL_CONNECTIVITY = 4
"""Masks of few pairs hide a summand from three colluders, even if nobody asks for as many."""


def connectivity(size: int, colluders: int) -> int:
    """Return the connectivity of the mask graph of `size` ranks: `USUAL_CONNECTIVITY`, or what the colluders take."""
    return min(size - 1, max(colluders + 1, USUAL_CONNECTIVITY))


def circulant(size: int, k: int) -> tuple[Pair, ...]:
    """Return the pairs (i, j), i < j, of (2): the k-connected graph with the fewest edges."""
    if not 1 <= k < size:
        raise ValueError(f"expected a connectivity from 1 to {size - 1} for {size} ranks, found {k}")
    if k == 1:
        return tuple((i, i + 1) for i in range(size - 1))
    steps = list(range(1, k // 2 + 1))
    found = {_pair(i, (i + step) % size) for i in range(size) for step in steps}
    if k % 2:
        found |= {_pair(i, (i + size // 2) % size) for i in range((size + 1) // 2)}
    return tuple(sorted(found))


def partners(pairs: Iterable[Pair], rank: int) -> tuple[int, ...]:
    """Return with whom a rank shares a mask, sorted."""
    return tuple(sorted(i + j - rank for i, j in pairs if rank in (i, j)))


def stays_connected(size: int, pairs: Sequence[Pair], without: int) -> bool:
    """Return whether the graph stays connected when any `without` ranks are removed: has connectivity `without` + 1.

    Whatever `without` ranks are removed, one of the first `without` + 1 is left. So it is enough that from each of them
    to every rank that is not next to it there are `without` + 1 paths with no rank in between in common (Menger).
    """
    k = without + 1
    near: list[set[int]] = [set() for _ in range(size)]
    for i, j in pairs:
        near[i].add(j)
        near[j].add(i)
    if size <= k or min(map(len, near)) < k:
        return False
    return all(_has_paths(near, i, j, k) for i in range(k) for j in range(size) if j != i and j not in near[i])


def _has_paths(near: Sequence[set[int]], source: int, target: int, count: int) -> bool:
    """Return whether `count` paths that have no rank in between in common lead from one rank to another.

    Ranks are split into an entrance and an exit with one edge between them; paths are units of flow in that graph,
    found one after the other by breadth-first search, which may send earlier ones another way.
    """
    used: set[tuple[int, int]] = set()
    """Edges with flow, between nodes 2 i (the entrance of rank i) and 2 i + 1 (its exit)."""

    def ahead(node: int) -> list[int]:
        rank, leaves = divmod(node, 2)
        fresh = [2 * j for j in near[rank]] if leaves else [node + 1]
        back = [node - 1] if leaves else [2 * j + 1 for j in near[rank]]
        return [to for to in fresh if (node, to) not in used] + [to for to in back if (to, node) in used]

    for _ in range(count):
        before, queue = {2 * source + 1: -1}, deque([2 * source + 1])
        while queue and 2 * target not in before:
            node = queue.popleft()
            for to in ahead(node):
                if to not in before and to != 2 * source:
                    before[to] = node
                    queue.append(to)
        node = 2 * target
        if node not in before:
            return False
        while before[node] >= 0:
            if (node, before[node]) in used:
                used.remove((node, before[node]))
            else:
                used.add((before[node], node))
            node = before[node]
    return True


def _pair(i: int, j: int) -> Pair:
    return (i, j) if i < j else (j, i)
