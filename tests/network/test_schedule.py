"""Schedules: matchings of the graph, uniform, the same for every rank, and a pure function of (seed, round)."""

import time
from collections import Counter
from itertools import combinations, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from dpmpi.errors import ConfigError
from dpmpi.network.channel import Schedule
from dpmpi.network.graph import Graph, make_graph, mixing_matrix
from dpmpi.network.schedule import BLOCK_ROUNDS, SampledSchedule, StaticSchedule, make_schedule

CASES = [("ring", 8, 1), ("ring", 8, 3), ("complete", 7, 1), ("complete", 7, 3), ("grid", 12, 2), ("star", 6, 1)]


def sampled(spec, size, K, seed=7):
    return SampledSchedule(make_graph(spec, size, 1), K, seed)


def edges_by_round(schedule, start, stop):
    """Collect {t: set of edges} from what each rank is told; assert that both ends of an edge are told."""
    told = {t: Counter() for t in range(start, stop)}
    for rank in range(schedule.size):
        for t, near in schedule.rounds(rank, start, stop):
            (other,) = near.peers
            told[t][min(rank, other), max(rank, other)] += 1
    assert all(set(edges.values()) == {2} for edges in told.values())
    return {t: frozenset(edges) for t, edges in told.items()}


def matchings(graph, K):
    return [frozenset(m) for m in combinations(graph.edges, K) if len({v for e in m for v in e}) == 2 * K]


def assert_uniform(counts, outcomes, level=1e-4):
    assert set(counts) <= set(outcomes)
    expected = sum(counts.values()) / len(outcomes)
    statistic = sum((counts[o] - expected) ** 2 / expected for o in outcomes)
    assert statistic < chi2.isf(level, len(outcomes) - 1)


# --- static ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["metropolis", "uniform", "laplacian"])
def test_static_neighbourhoods_are_the_rows_of_the_mixing_matrix(weights):
    graph = make_graph("random:edges=14", 10, 2)
    schedule = make_schedule(graph, weights, None, 0)
    W = np.zeros((10, 10))
    for rank in range(10):
        ((t, near),) = schedule.rounds(rank, 4, 5)
        assert t == 4
        assert near.peers == graph.neighbours(rank)
        assert near.self_weight == pytest.approx(1.0 - sum(near.weights), abs=1e-15)
        W[rank, list(near.peers)] = near.weights
        W[rank, rank] = near.self_weight
    np.testing.assert_array_equal(W, mixing_matrix(graph, weights))
    assert schedule.beta() == pytest.approx(np.linalg.svd(W, compute_uv=False)[1], abs=1e-12)
    assert schedule.share == 1.0
    assert schedule.size == 10


@pytest.mark.parametrize(("name", "size"), [("ring", 20), ("complete", 7), ("torus", 16)])
def test_where_all_ranks_have_as_many_neighbours_all_weights_are_the_same(name, size):
    schedule = make_schedule(make_graph(name, size, 0), "metropolis", None, 0)
    for rank in range(size):
        near = schedule.neighbourhood(rank)
        assert {near.self_weight, *near.weights} == {1.0 / (1 + len(near.peers))}


def test_static_yields_every_round_and_always_the_same_object():
    schedule = StaticSchedule(make_graph("ring", 5, 0), "metropolis")
    rounds = list(schedule.rounds(2, 1, 50))
    assert [t for t, _ in rounds] == list(range(1, 50))
    assert len({id(near) for _, near in [*rounds, *schedule.rounds(2, 50, 60)]}) == 1
    assert list(schedule.rounds(2, 5, 5)) == []
    assert schedule.active_counts(1, 50).tolist() == [49] * 5


def test_one_rank_is_its_own_neighbourhood():
    ((_, near),) = make_schedule(make_graph("ring", 1, 0), "metropolis", None, 0).rounds(0, 1, 2)
    assert (near.peers, near.weights, near.self_weight) == ((), (), 1.0)


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
def test_static_on_ten_thousand_ranks_needs_no_dense_matrix(monkeypatch, weights):
    monkeypatch.setattr(Graph, "laplacian", lambda _: pytest.fail("a dense matrix was built"))
    schedule = make_schedule(make_graph("ring", 10_000, 0), weights, None, 0)
    ((_, near),) = schedule.rounds(9_999, 1, 2)
    assert near.peers == (0, 9_998)
    assert near.weights == (1 / 3, 1 / 3)


# --- sampled: structure ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "size", "K"), CASES)
def test_every_round_is_a_matching_of_k_edges_of_the_graph(spec, size, K):
    schedule = sampled(spec, size, K)
    edges = set(schedule.graph.edges)
    for matching in edges_by_round(schedule, 1, 1500).values():
        assert len(matching) == K
        assert matching <= edges
        assert len({v for e in matching for v in e}) == 2 * K
    assert schedule.share == 2 * K / size


@pytest.mark.parametrize(("spec", "size", "K"), CASES)
def test_active_counts_are_what_the_ranks_see(spec, size, K):
    schedule = sampled(spec, size, K)
    for start, stop in ((1, 5000), (1000, 1030), (1024, 2048), (7, 7)):
        counts = schedule.active_counts(start, stop)
        assert counts.tolist() == [sum(1 for _ in schedule.rounds(rank, start, stop)) for rank in range(size)]
        assert counts.sum() == 2 * K * (stop - start)


@pytest.mark.parametrize(("spec", "size", "K"), CASES)
def test_sampled_mixing_is_metropolis_on_the_active_edges(spec, size, K):
    schedule = sampled(spec, size, K)
    ((t, matching),) = edges_by_round(schedule, 33, 34).items()
    W = np.eye(size)
    for rank in range(size):
        for _, near in schedule.rounds(rank, t, t + 1):
            W[rank, rank] = near.self_weight
            W[rank, list(near.peers)] = near.weights
    np.testing.assert_array_equal(W, mixing_matrix(Graph("round", size, tuple(sorted(matching))), "metropolis"))


def test_neighbourhoods_are_reused():
    schedule = sampled("complete", 6, 2)
    objects = {near.peers: id(near) for _, near in schedule.rounds(0, 1, 3000)}
    assert all(objects[near.peers] == id(near) for _, near in schedule.rounds(0, 1, 3000))
    assert len(objects) == 5


# --- sampled: a pure function of (seed, round) -----------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.integers(1, 5000), max_size=5), st.data())
def test_pieces_join_to_the_whole(case, cuts, data):
    spec, size, K = case
    rank = data.draw(st.integers(0, size - 1))
    whole = list(sampled(spec, size, K).rounds(rank, 1, 5000))
    bounds = sorted({1, 5000, *cuts})
    pieces = sampled(spec, size, K)
    parts = {
        a: list(pieces.rounds(rank, a, b)) for a, b in zip(reversed(bounds[:-1]), reversed(bounds[1:]), strict=True)
    }
    assert [item for a in sorted(parts) for item in parts[a]] == whole


def test_interleaved_scans_do_not_disturb_each_other():
    schedule = sampled("grid", 12, 2)
    expected = {rank: list(schedule.rounds(rank, 1, 4000)) for rank in range(12)}
    scans = {rank: schedule.rounds(rank, 1, 4000) for rank in range(12)}
    heard = {rank: [] for rank in range(12)}
    for step in range(2000):
        rank = step % 12
        heard[rank] += islice(scans[rank], rank + 1)  # ranks run ahead at different speeds
    assert all(heard[rank] == expected[rank][: len(heard[rank])] for rank in range(12))


@pytest.mark.parametrize(("spec", "size", "K"), [("ring", 8, 1), ("ring", 8, 3), ("complete", 7, 3)])
def test_seeds_and_blocks_differ(spec, size, K):
    first = edges_by_round(sampled(spec, size, K, seed=1), 0, 2 * BLOCK_ROUNDS)
    second = edges_by_round(sampled(spec, size, K, seed=2), 0, BLOCK_ROUNDS)
    number = len(matchings(make_graph(spec, size, 1), K))
    same_seed = sum(first[t] == first[t + BLOCK_ROUNDS] for t in range(BLOCK_ROUNDS))
    same_round = sum(first[t] == second[t] for t in range(BLOCK_ROUNDS))
    spread = 5 * (BLOCK_ROUNDS / number) ** 0.5
    assert abs(same_seed - BLOCK_ROUNDS / number) < spread
    assert abs(same_round - BLOCK_ROUNDS / number) < spread


# --- sampled: uniform over all matchings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "size", "K", "number"),
    [
        ("ring", 20, 1, 20),
        ("star", 6, 1, 5),
        ("ring", 7, 2, 14),
        ("path", 6, 2, 6),
        ("grid", 6, 2, 11),
        ("ring", 8, 3, 16),
        ("complete", 5, 2, 15),
        ("complete", 6, 3, 15),
    ],
)
def test_uniform_over_all_matchings(spec, size, K, number):
    graph = make_graph(spec, size, 1)
    outcomes = matchings(graph, K)
    assert len(outcomes) == number
    assert_uniform(Counter(edges_by_round(SampledSchedule(graph, K, 11), 0, 10 * BLOCK_ROUNDS).values()), outcomes)


def test_the_only_perfect_matching_is_found_every_time():
    seen = set(edges_by_round(sampled("path", 6, 3), 0, BLOCK_ROUNDS).values())
    assert seen == {frozenset({(0, 1), (2, 3), (4, 5)})}


# --- beta ------------------------------------------------------------------------------------------------------------


def dense_beta(graph, K):
    """Compute beta from its definition, by averaging W'W over all matchings."""
    second = np.zeros((graph.size, graph.size))
    every = matchings(graph, K)
    for matching in every:
        W = np.eye(graph.size)
        for i, j in matching:
            W[np.ix_([i, j], [i, j])] = 0.5
        second += W.T @ W / len(every)
    return np.sqrt(np.abs(np.linalg.eigvalsh(second - 1 / graph.size)).max())


@pytest.mark.parametrize(
    ("spec", "size", "K"), [("ring", 20, 1), ("grid", 12, 1), ("complete", 6, 2), ("complete", 7, 3)]
)
def test_beta_is_exact_for_one_edge_and_for_complete_graphs(spec, size, K):
    schedule = sampled(spec, size, K)
    assert schedule.beta() == pytest.approx(dense_beta(schedule.graph, K), abs=1e-12)


@pytest.mark.parametrize(("spec", "size", "K"), [("path", 7, 2), ("grid", 6, 2), ("ring", 8, 3)])
def test_beta_is_estimated_for_other_graphs(spec, size, K):
    schedule = sampled(spec, size, K)
    assert schedule.beta() == pytest.approx(dense_beta(schedule.graph, K), abs=4e-3)


# --- cost and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("K", "limit"), [(1, 0.2), (5, 1.0)])
def test_scanning_sixty_thousand_rounds_is_cheap(K, limit):
    schedule = sampled("ring", 20, K)
    start = time.process_time()  # processor time: the machine may be busy with something else
    active = sum(1 for _ in schedule.rounds(3, 1, 60_001))
    assert time.process_time() - start < limit
    assert active == schedule.active_counts(1, 60_001)[3]
    assert abs(active / 60_000 - schedule.share) < 0.01


def test_schedules_satisfy_the_protocol():
    static: Schedule = StaticSchedule(make_graph("ring", 4, 0))
    dynamic: Schedule = sampled("ring", 4, 2)
    for schedule in (static, dynamic):
        assert schedule.size == 4
        assert schedule.share == 1.0


@pytest.mark.parametrize(
    ("spec", "size", "K", "message"),
    [
        ("ring", 6, 0, "expected at least 1 sampled edge a round, found 0"),
        ("path", 4, 4, "expected at most the 3 edges of path sampled a round, found 4"),
        ("ring", 1, 1, "expected at most the 0 edges of ring sampled a round, found 1"),
        ("ring", 7, 4, "expected 8 ranks for 4 disjoint edges a round, found 7: take at most 3"),
        ("star", 8, 2, "expected 2 disjoint edges of star on 8 ranks in one of 10000 draws, found 0 in "),
        ("ring", 20, 10, "expected 10 disjoint edges of ring on 20 ranks in one of 10000 draws, found"),
    ],
)
def test_impossible_samples(spec, size, K, message):
    with pytest.raises(ConfigError) as caught:
        sampled(spec, size, K)
    assert str(caught.value).startswith(message)


def test_make_schedule():
    graph = make_graph("ring", 6, 0)
    assert isinstance(make_schedule(graph, "metropolis", None, 0), StaticSchedule)
    assert isinstance(make_schedule(graph, "metropolis", 2, 0), SampledSchedule)
    with pytest.raises(ConfigError, match="expected metropolis weights"):
        make_schedule(graph, "laplacian", 2, 0)
    with pytest.raises(ConfigError, match="found 'metro'"):
        make_schedule(graph, "metro", None, 0)
