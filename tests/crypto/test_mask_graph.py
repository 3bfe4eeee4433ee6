"""The graph of pairs that share a mask, against networkx."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.crypto.mask_graph import circulant, connectivity, partners, stays_connected


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 14])
def test_circulants_have_their_connectivity_and_the_fewest_edges(n):
    for k in range(1, n):
        pairs = circulant(n, k)
        assert nx.node_connectivity(nx.Graph(pairs)) == k
        assert len(pairs) == (n - 1 if k == 1 else -(-k * n // 2))
        assert {pair for rank in range(n) for j in partners(pairs, rank) for pair in [(rank, j)]} == {
            both for i, j in pairs for both in [(i, j), (j, i)]
        }


def test_circulants_of_no_or_too_much_connectivity_are_refused():
    for k in (0, 5, 6):
        with pytest.raises(ValueError, match=f"^expected a connectivity from 1 to 4 for 5 ranks, found {k}$"):
            circulant(5, k)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 9), st.floats(0.1, 0.95), st.integers(0, 10**6))
def test_whether_a_graph_stays_connected_is_its_connectivity(n, p, seed):
    graph = nx.gnp_random_graph(n, p, seed=seed)
    known = nx.node_connectivity(graph)
    for without in range(n):
        assert stays_connected(n, list(graph.edges), without) == (known > without)


def test_four_masks_or_one_more_than_colluders():
    assert [connectivity(20, c) for c in (0, 1, 3, 4, 9, 18)] == [4, 4, 4, 5, 10, 19]
    assert [connectivity(n, 1) for n in (3, 4, 5, 6)] == [2, 3, 4, 4]
