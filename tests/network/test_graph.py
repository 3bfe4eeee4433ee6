"""Graphs against networkx, mixing matrices against their defining identities and closed forms."""

import math
from collections import Counter
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.errors import ConfigError
from dpmpi.network.graph import (
    GRAPHS,
    WEIGHTS,
    Graph,
    beta,
    check_doubly_stochastic,
    common_weight,
    edges_spec,
    make_graph,
    mixing_matrix,
    neighbourhood,
)

SPECS = ("ring", "path", "star", "grid", "torus", "complete", "erdos-renyi:p=0.6")


def edges_of(oracle):
    return tuple(sorted((min(e), max(e)) for e in nx.convert_node_labels_to_integers(oracle, ordering="sorted").edges))


def as_networkx(graph):
    oracle = nx.Graph()
    oracle.add_nodes_from(range(graph.size))
    oracle.add_edges_from(graph.edges)
    return oracle


@pytest.mark.parametrize("size", [3, 4, 7, 20])
@pytest.mark.parametrize(
    ("spec", "oracle"), [("ring", nx.cycle_graph), ("path", nx.path_graph), ("complete", nx.complete_graph)]
)
def test_shapes_match_networkx(spec, oracle, size):
    graph = make_graph(spec, size, 0)
    assert graph.edges == edges_of(oracle(size))
    assert graph.name == spec


def test_star_matches_networkx():
    assert make_graph("star", 9, 0).edges == edges_of(nx.star_graph(8))


@pytest.mark.parametrize(("size", "rows", "columns"), [(20, 4, 5), (16, 4, 4), (12, 3, 4), (7, 1, 7), (6, 2, 3)])
@pytest.mark.parametrize("wrap", [False, True])
def test_grid_and_torus_take_the_most_square_factorisation(size, rows, columns, wrap):
    kind = "torus" if wrap else "grid"
    graph = make_graph(kind, size, 0)
    oracle = nx.grid_2d_graph(rows, columns, periodic=wrap)
    oracle.remove_edges_from(list(nx.selfloop_edges(oracle)))
    assert graph.edges == edges_of(oracle)
    assert graph.name == f"{kind}:rows={rows},columns={columns}"
    assert make_graph(graph.name, size, 0) == graph


def test_grid_of_given_shape():
    assert make_graph("grid:rows=2,columns=10", 20, 0).edges == edges_of(nx.grid_2d_graph(2, 10))
    assert make_graph("grid:columns=10", 20, 0).edges == edges_of(nx.grid_2d_graph(2, 10))


def test_grid_of_a_prime_size_is_a_path_and_torus_a_ring():
    assert make_graph("grid", 7, 0).edges == make_graph("path", 7, 0).edges
    assert make_graph("torus", 7, 0).edges == make_graph("ring", 7, 0).edges


@pytest.mark.parametrize("spec", [*SPECS, "random:edges=0"])
def test_one_rank_has_no_edges(spec):
    graph = make_graph(spec, 1, 0)
    assert graph.edges == ()
    assert graph.neighbours(0) == ()


@pytest.mark.parametrize("spec", [*SPECS, "random:edges=1"])
def test_two_ranks_share_one_edge(spec):
    assert make_graph(spec, 2, 0).edges == ((0, 1),)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SPECS), st.integers(1, 24), st.integers(0, 2**40))
def test_neighbours_degrees_and_laplacian_match_networkx(spec, size, seed):
    graph = make_graph(spec, size, seed)
    oracle = as_networkx(graph)
    assert all(i < j for i, j in graph.edges)
    assert list(graph.edges) == sorted(set(graph.edges))
    assert [graph.neighbours(i) for i in range(size)] == [tuple(sorted(oracle[i])) for i in range(size)]
    assert graph.degrees == tuple(oracle.degree(i) for i in range(size))
    assert nx.is_connected(oracle)
    incidence = nx.incidence_matrix(oracle, nodelist=range(size), oriented=True).toarray()
    np.testing.assert_array_equal(graph.laplacian(), incidence @ incidence.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.data())
def test_the_largest_component_agrees_with_networkx(size, data):
    slots = list(combinations(range(size), 2))
    edges = tuple(sorted(data.draw(st.sets(st.sampled_from(slots)) if slots else st.just(set()))))
    graph = Graph("any", size, edges)
    best = max(nx.connected_components(as_networkx(graph)), key=lambda part: (len(part), -min(part)))
    assert graph.largest_component() == sorted(best)


# --- random graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["erdos-renyi:p=0.3", "random:edges=25"])
def test_random_graphs_are_functions_of_the_seed(spec):
    assert make_graph(spec, 20, 5) == make_graph(spec, 20, 5)
    assert len({make_graph(spec, 20, seed).edges for seed in range(20)}) == 20


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 15), st.integers(0, 10**6), st.data())
def test_random_has_the_asked_number_of_edges(size, seed, data):
    count = data.draw(st.integers(size - 1, size * (size - 1) // 2))
    graph = make_graph(f"random:edges={count}", size, seed)
    assert len(graph.edges) == count
    assert nx.is_connected(as_networkx(graph))


def test_random_is_uniform_over_connected_graphs():
    connected = [
        edges
        for edges in combinations(combinations(range(4), 2), 3)
        if nx.is_connected(as_networkx(Graph("", 4, edges)))
    ]
    assert len(connected) == 4**2  # Cayley: n^(n-2) trees
    draws = 3200
    seen = Counter(make_graph("random:edges=3", 4, seed).edges for seed in range(draws))
    assert set(seen) == set(connected)
    expected = draws / len(connected)
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 37.7  # chi-square(15) at 0.001


def test_erdos_renyi_edge_frequency_given_connectedness():
    # On 3 nodes: P(3 edges | connected) = p^3 / (p^3 + 3 p^2 (1 - p)).
    p, draws = 0.6, 4000
    triangles = sum(len(make_graph("erdos-renyi:p=0.6", 3, seed).edges) == 3 for seed in range(draws))
    q = p**3 / (p**3 + 3 * p**2 * (1 - p))
    assert abs(triangles / draws - q) < 4 * math.sqrt(q * (1 - q) / draws)


def test_erdos_renyi_with_probability_one_is_complete():
    assert make_graph("erdos-renyi:p=1", 12, 3).edges == make_graph("complete", 12, 0).edges


def test_large_sparse_graphs_need_no_dense_matrix(monkeypatch):
    monkeypatch.setattr(Graph, "laplacian", lambda _: pytest.fail("a dense matrix was built"))
    graph = make_graph("random:edges=80000", 10_000, 1)
    assert len(graph.edges) == 80_000
    for weights in ("metropolis", "uniform"):
        common = common_weight(graph, weights)
        near = neighbourhood(graph, 17, common)
        back = neighbourhood(graph, near.peers[0], common)
        assert near.peers == graph.neighbours(17)
        assert near.weights[0] == back.weights[back.peers.index(17)]
        assert near.self_weight == 1.0 - sum(near.weights)


# --- files -----------------------------------------------------------------------------------------------------------


def test_file(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# a square with a diagonal\n0 1\n2 1   # either order\n\n2 3\n3 0\n0 2\n1 0\n")
    graph = make_graph(f"file:{path}", 4, 0)
    assert graph.edges == ((0, 1), (0, 2), (0, 3), (1, 2), (2, 3))
    assert graph.name == f"file:{path}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1 2 3\n", "{path}:2: expected two ranks 'i j', found '1 2 3'"),
        ("0 1\n\n1 x\n", "{path}:3: expected two ranks 'i j', found '1 x'"),
        ("0 -1\n", "{path}:1: expected two ranks 'i j', found '0 -1'"),
        ("0 1\n1 4\n", "{path}:2: expected ranks 0 to 3 of 4, found 4"),
        ("0 1\n2 2\n", "{path}:2: expected an edge between two ranks, found 2 twice"),
        ("0 1\n1 2\n", "graph file:{path}: expected a connected graph, found no path from rank 0 to rank 3: add edges"),
        ("0 1\n2 3\n", "graph file:{path}: expected a connected graph, found no path from rank 0 to rank 2: add edges"),
    ],
)
def test_file_errors_name_the_line(tmp_path, text, message):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        make_graph(f"file:{path}", 4, 0)
    assert str(caught.value) == message.format(path=path)


def test_unreadable_file(tmp_path):
    with pytest.raises(ConfigError, match="expected a readable file of lines 'i j', found: No such file"):
        make_graph(f"file:{tmp_path}/missing.txt", 4, 0)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="found: not a text file"):
        make_graph(f"file:{tmp_path}/binary", 4, 0)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "size", "message"),
    [
        ("rign", 5, f"expected a graph among {', '.join(GRAPHS)}, found 'rign' (did you mean ring?)"),
        ("circle", 5, f"expected a graph among {', '.join(GRAPHS)}, found 'circle' (did you mean ring?)"),
        ("zzz", 5, f"expected a graph among {', '.join(GRAPHS)}, found 'zzz'"),
        ("ring", 0, "expected a graph of at least 1 rank, found 0"),
        ("ring:p=1", 5, "graph ring:p=1: expected no options, found 'p=1'"),
        ("grid:rows=3,columns=5", 20, "graph grid:rows=3,columns=5: expected rows x columns = 20 ranks, found 3 x 5"),
        ("grid:rows=0", 20, "graph grid:rows=0: expected rows x columns = 20 ranks, found 0 x 20"),
        ("grid:columns=0", 20, "graph grid:columns=0: expected rows x columns = 20 ranks, found 20 x 0"),
        ("grid:rows=-2,columns=-2", 4, "graph grid:rows=-2,columns=-2: "
         "expected rows x columns = 4 ranks, found -2 x -2"),
        ("torus:cols=5", 20, "graph torus:cols=5: expected rows=int,columns=int, found 'cols=5'"),
        ("grid:rows=two", 20, "graph grid:rows=two: expected rows=int,columns=int, found 'rows=two'"),
        ("erdos-renyi", 5, "graph erdos-renyi: expected 0 < p <= 1, as in erdos-renyi:p=0.6, found None"),
        ("erdos-renyi:p=1.5", 5, "graph erdos-renyi:p=1.5: expected 0 < p <= 1, as in erdos-renyi:p=0.6, found 1.5"),
        ("erdos-renyi:p=nan", 5, "graph erdos-renyi:p=nan: expected 0 < p <= 1, as in erdos-renyi:p=0.6, found nan"),
        (
            "erdos-renyi:p=0.01",
            20,
            "expected a connected graph erdos-renyi:p=0.01 on 20 nodes, found none in 10000 draws: raise p",
        ),
        ("random:edges=18", 20, "graph random:edges=18: expected 19 to 190 edges for 20 connected nodes, found 18"),
        ("random:edges=46", 10, "graph random:edges=46: expected 9 to 45 edges for 10 connected nodes, found 46"),
        ("random", 20, "graph random: expected 19 to 190 edges for 20 connected nodes, found None"),
    ],
)  # fmt: skip
def test_impossible_specs(spec, size, message):
    with pytest.raises(ConfigError) as caught:
        make_graph(spec, size, 0)
    assert str(caught.value) == message


def test_hopeless_large_graph_ends_soon():
    with pytest.raises(ConfigError, match=r"graph random:edges=9999 on 10000 nodes, found none in \d{2,3} draws"):
        make_graph("random:edges=9999", 10_000, 0)


# --- weights ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(WEIGHTS), st.integers(1, 24), st.integers(0, 2**40))
def test_mixing_matrices_are_doubly_stochastic(spec, weights, size, seed):
    graph = make_graph(spec, size, seed)
    W = mixing_matrix(graph, weights)
    np.testing.assert_allclose(W.sum(0), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(W.sum(1), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(W, W.T)
    assert W.min() >= 0.0
    assert (W.diagonal() > 0.0).all()
    A = nx.to_numpy_array(as_networkx(graph), nodelist=range(size))
    np.testing.assert_array_equal(W - np.diag(W.diagonal()) != 0.0, A != 0.0)
    if size > 1:
        assert beta(W) < 1.0


@pytest.mark.parametrize("spec", SPECS)
def test_weights_against_their_formulas(spec):
    graph = make_graph(spec, 12, 3)
    d = np.array(graph.degrees)
    A = nx.to_numpy_array(as_networkx(graph), nodelist=range(12))
    metropolis = A / (1 + np.maximum.outer(d, d))
    uniform = A / (1 + d.max())
    for name, off_diagonal in (("metropolis", metropolis), ("uniform", uniform)):
        expected = off_diagonal + np.diag(1 - off_diagonal.sum(1))
        np.testing.assert_allclose(mixing_matrix(graph, name), expected, rtol=0, atol=1e-15)
    L = np.diag(d) - A
    expected = np.eye(12) - 2 / (3 * np.linalg.norm(L, 2)) * L
    np.testing.assert_allclose(mixing_matrix(graph, "laplacian"), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [3, 4, 5, 8, 20, 51])
def test_ring_beta_in_closed_form(size):
    W = mixing_matrix(make_graph("ring", size, 0), "metropolis")
    eigenvalues = [1 / 3 + 2 / 3 * math.cos(2 * math.pi * k / size) for k in range(1, size)]
    assert beta(W) == pytest.approx(max(map(abs, eigenvalues)), abs=1e-12)
    if size >= 5:
        assert beta(W) == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / size), abs=1e-12)


def test_ring_of_twenty_has_the_published_beta():
    assert beta(mixing_matrix(make_graph("ring", 20, 0), "metropolis")) == pytest.approx(0.967, abs=5e-4)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_complete_metropolis_averages_at_once(size):
    assert beta(mixing_matrix(make_graph("complete", size, 0), "metropolis")) == pytest.approx(0.0, abs=1e-12)


def test_laplacian_beta_from_the_spectrum():
    graph = make_graph("random:edges=25", 15, 4)
    spectrum = nx.laplacian_spectrum(as_networkx(graph))
    step = 2 / (3 * spectrum[-1])
    expected = max(abs(1 - step * spectrum[1]), abs(1 - step * spectrum[-1]))
    assert beta(mixing_matrix(graph, "laplacian")) == pytest.approx(expected, abs=1e-12)


def test_beta_is_the_second_singular_value():
    # A doubly stochastic matrix that is not symmetric: a mean of permutations.
    rng = np.random.default_rng(0)
    W = np.mean([np.eye(7)[rng.permutation(7)] for _ in range(5)], axis=0)
    assert beta(W) == pytest.approx(np.linalg.svd(W, compute_uv=False)[1], abs=1e-12)


def test_unknown_weights():
    with pytest.raises(ConfigError, match=r"found 'metropolys' \(did you mean metropolis\?\)"):
        mixing_matrix(make_graph("ring", 5, 0), "metropolys")


@pytest.mark.parametrize(
    ("W", "message"),
    [
        (np.ones((2, 3)), "expected a square mixing matrix, found shape"),
        (np.array([[0.5, 0.5], [0.4, 0.5]]), "sum to 1, found one that is off by 0.1"),
        (np.array([[np.nan, 1.0], [1.0, 0.0]]), "sum to 1, found one that is off by nan"),
        (np.array([[1.1, -0.1], [-0.1, 1.1]]), "no negative entries in a mixing matrix, found -0.1"),
        (np.eye(3)[[1, 2, 0]], r"expected a symmetric mixing matrix, found \|W - W'\| = 1"),
    ],
)
def test_what_is_not_doubly_stochastic(W, message):
    with pytest.raises(ConfigError, match=message):
        check_doubly_stochastic(W)


def test_edges_by_their_names():
    graph = make_graph("edges:1-0,1-2,2-1", 3, 0)
    assert graph.edges == ((0, 1), (1, 2))
    assert graph.name == "edges (2)"
    assert edges_spec(graph.edges) == "edges:0-1,1-2"
    for wrong in ("0-3", "0:1", "1-1", "0-1-2", "a-b", "-1-2"):
        with pytest.raises(ConfigError, match="expected edges:I-J"):
            make_graph(f"edges:{wrong}", 3, 0)
    with pytest.raises(ConfigError, match="connected"):
        make_graph("edges:0-1", 3, 0)
