"""Which summands a set of sums gives away: closed forms of circulants, and exact rank modulo a prime."""

from fractions import Fraction
from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.crypto.exposure import exposed, exposure, learned, masked_view
from dpmpi.crypto.mask_graph import circulant
from dpmpi.network.graph import make_graph


def sums_over(graph, own):
    """The groups of ranks whose sums are seen: each rank's neighbours, with itself or without."""
    return [{*graph.neighbours(rank), *([rank] if own else [])} for rank in range(graph.size)]


PRIME = 2**31 - 1


def rank_of(rows):
    """The rank of a 0/1 matrix, by elimination modulo a prime.

    It is the rank over the rationals up to 21 columns: by Hadamard, no minor exceeds 22^11 / 2^21 < PRIME.
    """
    rows, found = [list(map(int, row)) for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(found, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        inverse = pow(rows[found][column], -1, PRIME)
        for r in range(found + 1, len(rows)):
            if factor := rows[r][column] * inverse % PRIME:
                rows[r] = [(x - factor * y) % PRIME for x, y in zip(rows[r], rows[found], strict=True)]
        found += 1
    return found


def solvable(groups, size, colluders=()):
    """The honest ranks a for which e_a is a combination of the sums' rows."""
    honest = [a for a in range(size) if a not in colluders]
    A = [[a in group for a in honest] for group in groups]
    known = rank_of(A)
    return [a for a in honest if rank_of([*A, [b == a for b in honest]]) == known]


# A sum over a circulant group has null directions where its eigenvalue vanishes: with N of them, spread evenly over n
# ranks, h = 1 - N/n. Open ring: 2 cos(2 pi k/n) = 0 iff 4 | n. Closed: 1 + 2 cos(2 pi k/n) = 0 iff 3 | n. Open torus
# 4x5: 2 cos(2 pi a/4) + 2 cos(2 pi b/5) = 0 only for a = 2, b = 0; closed: never. J - I of the complete graph has no
# zero, J has 19.
TABLE = [
    ("ring", 20, False, 0, 18 / 20),
    ("ring", 20, True, 20, 1.0),
    ("ring", 21, False, 21, 1.0),
    ("ring", 21, True, 0, 19 / 21),
    ("complete", 20, False, 20, 1.0),
    ("complete", 20, True, 0, 1 / 20),
    ("torus:rows=4,columns=5", 20, False, 0, 19 / 20),
    ("torus:rows=4,columns=5", 20, True, 20, 1.0),
]


@pytest.mark.parametrize(("spec", "n", "own", "how_many", "h"), TABLE)
def test_sums_over_neighbourhoods_expose_what_circulants_say(spec, n, own, how_many, h):
    groups = sums_over(make_graph(spec, n, 0), own)
    np.testing.assert_allclose(exposure(groups, n), h, atol=1e-12)
    assert len(exposed(groups, n)) == how_many
    assert exposed(groups, n) == solvable(groups, n)


@pytest.mark.parametrize("n", [3, 5, 20])
def test_the_sum_of_all_shows_one_part_in_the_honest(n):
    for c in range(n - 1):
        h = exposure([range(n)], n, range(c))
        assert np.isnan(h[:c]).all()
        np.testing.assert_allclose(h[c:], 1 / (n - c), atol=1e-12)
        assert exposed([range(n)], n, range(c)) == []
    assert exposed([range(n)], n, range(n - 1)) == [n - 1]  # among colluders alone nothing is hidden


def test_saying_the_same_sum_again_shows_no_more_and_a_sum_without_one_rank_shows_that_rank():
    np.testing.assert_allclose(exposure([range(6)] * 40, 6), 1 / 6, atol=1e-12)
    assert exposed([range(6), range(5)], 6) == [5]


def test_no_sums_show_nothing():
    assert exposure([], 4).tolist() == [0.0] * 4
    assert exposure([[0, 1]], 4, [0, 1]).tolist()[2:] == [0.0, 0.0]


@given(st.integers(2, 7).flatmap(lambda n: st.tuples(
    st.just(n), st.lists(st.sets(st.integers(0, n - 1)), max_size=7), st.sets(st.integers(0, n - 1), max_size=n - 1),
)))  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_a_rank_is_exposed_exactly_when_its_summand_can_be_solved_for(case):
    n, groups, colluders = case
    assert exposed(groups, n, colluders) == solvable(groups, n, colluders)
    honest = [a for a in range(n) if a not in colluders]
    A = np.array([[float(a in group) for a in honest] for group in groups]).reshape(len(groups), len(honest))
    np.testing.assert_allclose(exposure(groups, n, colluders)[honest], np.diag(np.linalg.pinv(A) @ A), atol=1e-9)


def test_an_erdos_renyi_graph_exposes_ranks_either_way():
    graph = make_graph("random:edges=20", 10, 3)
    for own in (False, True):
        assert exposed(sums_over(graph, own), 10) == solvable(sums_over(graph, own), 10)
    assert any(exposed(sums_over(make_graph("random:edges=20", 10, seed), True), 10) for seed in range(5))


# --- masked summands -------------------------------------------------------------------------------------------------


def indicator(group, honest):
    return [Fraction(rank in group) for rank in honest]


def views(n, pairs, colluders, mode):
    """What colluders who listen to everything see, with expanded or with full shares."""
    if mode == "expanded":
        return masked_view(n, pairs, colluders)
    ends = [end for i, j in pairs for end in [(i, j), (j, i)]]
    seen = []
    for rank in range(n):  # what a rank holds, once the shares are there: it is summed in the open
        held = {rank: 1} | {("share", rank, j): -1 for i, j in ends if i == rank}
        seen.append(held | {("share", i, rank): 1 for i, j in ends if j == rank})
    seen += [{rank: 1} for rank in colluders]
    return seen + [{("share", i, j): 1} for i, j in ends if {i, j} & {*colluders}]


@pytest.mark.parametrize("mode", ["expanded", "full"])
@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8])
def test_c_colluders_learn_the_sum_of_the_others_and_nothing_else(n, mode):
    """All sets of c colluders, against masks of connectivity c + 1."""
    for c in range(n - 1):
        pairs = circulant(n, c + 1)
        for colluders in combinations(range(n), c):
            honest = [rank for rank in range(n) if rank not in colluders]
            assert learned(views(n, pairs, colluders, mode), honest) == [[1] * len(honest)]


@pytest.mark.parametrize("mode", ["expanded", "full"])
@pytest.mark.parametrize("n", [4, 5, 6, 7, 8])
def test_with_connectivity_c_some_c_colluders_learn_the_sum_of_each_part(n, mode):
    for c in range(1, n - 1):
        pairs, more = circulant(n, c), []
        for colluders in combinations(range(n), c):
            honest = [rank for rank in range(n) if rank not in colluders]
            parts = [set(part) for part in nx.connected_components(nx.Graph(pairs).subgraph(honest))]
            found = learned(views(n, pairs, colluders, mode), honest)
            assert sorted(found) == sorted(indicator(part, honest) for part in parts)
            more.append(len(found) > 1)
        assert any(more)


def test_two_colluders_on_a_ring_of_masks_see_the_sums_of_both_sides():
    seen = masked_view(6, circulant(6, 2), (0, 3))
    assert learned(seen, [1, 2, 4, 5]) == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert learned(masked_view(4, circulant(4, 2), (0, 2)), [1, 3]) == [[1, 0], [0, 1]]  # both summands


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_same_combinations_remain_modulo_a_power_of_two(k):
    """All combinations of what is said, modulo 8, that no mask of honest pairs is left in: by trying every one."""
    n = 5
    for colluders in combinations(range(n), 2):
        honest = [rank for rank in range(n) if rank not in colluders]
        edges = [pair for pair in circulant(n, k) if {*pair} <= {*honest}]
        free = set()
        for weights in product(range(8), repeat=len(honest)):
            weight = dict(zip(honest, weights, strict=True))
            if all((weight[i] - weight[j]) % 8 == 0 for i, j in edges):
                free.add(weights)
        basis = learned(masked_view(n, circulant(n, k), colluders), honest)
        spanned = set()
        for times in product(range(8), repeat=len(basis)):
            columns = zip(*basis, strict=True)
            spanned.add(tuple(int(sum(t * x for t, x in zip(times, column, strict=True))) % 8 for column in columns))
        assert free == spanned
