"""Sums along trees, butterflies and directly: exact, the same bits everywhere, and as many messages as counted."""

import json
import re
from dataclasses import dataclass
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.core import Method, Sum, public
from dpmpi.crypto.mask_graph import circulant, connectivity, stays_connected
from dpmpi.errors import ConfigError
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.route import Routes, all_sent, butterfly_sent, choose, plan_stages, spanning_tree
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.run import main
from dpmpi.testing import random_shards, shared, simulate
from dpmpi.testing.simulation import routed

GRAPHS = ("path", "star", "ring", "torus", "random tree", "erdos-renyi:p=0.6", "complete")
LENGTHS = (1, 5, 40)


def graph_of(name, n):
    return make_graph(f"random:edges={n - 1}" if name == "random tree" else name, n, n)


def said(rank, length, t=1):
    return 30.0 * np.random.default_rng([rank, length, t]).standard_normal(length)


@dataclass(frozen=True)
class Talk(Method):
    """Adds up vectors of several lengths in every round."""

    def start(self, agent):
        return []

    def round(self, agent, state, t):
        for length in LENGTHS:
            state.append((yield Sum(public(said(agent.rank, length, t), because="a constant"))).copy())

    def releases(self, terms):
        return []

    def model(self, agent, state, t, out):
        out[:] = 0.0


def sums(graph, exchange, rounds=2):
    """Return each rank's answers, and the meter."""
    meter = Meter(LoopbackTransport(graph.size))
    engine = simulate(
        Talk(), random_shards(graph.size, 2, 3, 0), rounds, graph=graph, exchange=exchange, transport=meter
    )
    return [seat.state for seat in engine.seats], meter


def routes_of(graph):
    names = ("tree", "butterfly", "direct") if graph.complete else ("tree",)
    return [Routes(graph, name) for name in names]


@pytest.mark.parametrize("n", [3, 4, 5, 8, 13, 16, 23])
@pytest.mark.parametrize("name", GRAPHS)
def test_plain_expanded_and_full_sums_agree_on_every_graph_and_route(name, n):
    graph, bits = graph_of(name, n), 30
    few = circulant(n, connectivity(n, 1))
    for routes in routes_of(graph):
        found, meter = sums(graph, routed(routes))
        same(found)
        for (k, length), t in [((k, length), t) for t in (1, 2) for k, length in enumerate(LENGTHS)]:
            vectors = [said(rank, length, t) for rank in range(n)]
            exact = [float(sum(map(Fraction, column))) for column in np.transpose(vectors).tolist()]
            np.testing.assert_allclose(found[0][3 * (t - 1) + k], exact, rtol=0, atol=n * 2.0**-44)
        counted(meter, routes)
        modes = [shared("expanded", bits, routes=routes, pairs=few)]
        if graph.complete or stays_connected(n, graph.edges, 1):
            modes.append(shared("full", bits, routes=routes, pairs=few if graph.complete else graph.edges))
        for mode in modes:
            answers, _ = sums(graph, mode)
            same(answers)
            for t in (1, 2):
                for k, length in enumerate(LENGTHS):
                    steps = [np.rint(said(rank, length, t) * 2.0**bits) for rank in range(n)]
                    exact = sum(map(np.vectorize(int, otypes=[object]), steps)).astype(float) * 2.0**-bits
                    np.testing.assert_array_equal(answers[0][3 * (t - 1) + k], exact)


def same(found):
    for state in found[1:]:
        for one, other in zip(found[0], state, strict=True):
            np.testing.assert_array_equal(one, other)


def counted(meter, routes):
    """The meter has counted what the routes say."""
    n = routes.graph.size
    for rank in range(n):
        traffic = meter.traffic(rank).values()
        each = [routes.sent(rank, 8 * length) for length in LENGTHS]
        assert sum(t.messages_sent for t in traffic) == 2 * sum(one.messages for one in each)
        assert sum(t.payload_bytes_sent for t in traffic) == 2 * sum(one.payload for one in each)
    for length in LENGTHS:
        total = all_sent(routes.of(8 * length), n, 8 * length)
        assert total == tuple(
            sum(getattr(routes.sent(r, 8 * length), k) for r in range(n)) for k in ("messages", "payload")
        )
        if routes.of(8 * length) == "tree":
            assert total[0] == 2 * (n - 1)


def test_float32_sums_are_the_same_everywhere_and_near():
    for name in ("ring", "complete"):
        for routes in routes_of(make_graph(name, 7, 0)):
            found, _ = sums(routes.graph, routed(routes, "float32"))
            same(found)
            exact = np.sum([said(rank, 40) for rank in range(7)], axis=0)
            np.testing.assert_allclose(found[0][2], exact, atol=7 * 150 * 2.0**-23)
            assert np.any(found[0][2] != exact)
            assert not np.any(found[0][2] != found[0][2].astype(np.float32)) or routes.of(160) == "direct"


def test_a_tree_adds_its_own_vector_then_its_childrens_sums_in_rank_order():
    graph = make_graph("path", 5, 0)
    found, _ = sums(graph, routed(Routes(graph)))
    a, b, c, d, e = (said(rank, 40) for rank in range(5))
    np.testing.assert_array_equal(found[3][2], (c + (b + a)) + (d + e))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("n", [3, 9, 12, 20])
def test_no_tree_is_less_deep(name, n):
    graph = graph_of(name, n)
    tree = spanning_tree(graph)
    assert tree.depth == (2 if graph.complete and n > 8 else nx.radius(nx.Graph(graph.edges)))
    steps = [rank for rank in range(n) if tree.parents[rank] == rank]
    assert steps == [tree.root]
    for rank in range(n):
        depth, at = 0, rank
        while at != tree.root:
            assert tree.parents[at] in graph.neighbours(at)
            at, depth = tree.parents[at], depth + 1
        assert depth <= tree.depth
    assert sum(map(len, tree.children)) == n - 1


def test_a_graph_in_two_parts_has_no_tree():
    with pytest.raises(
        ConfigError, match=r"^expected a connected graph for a sum of all ranks, found one that reaches 2$"
    ):
        spanning_tree(Graph("two pairs", 4, ((0, 1), (2, 3))))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 300), st.integers(1, 200_000))
def test_butterflies_move_two_vectors_a_rank(n, words):
    one = butterfly_sent(n, 8 * words)
    blocks = -(-words // n) * 8
    assert 2 * (n - 1) * blocks <= one.payload <= 2.1 * n * blocks
    assert one.payload <= 2.1 * 8 * (words + n)
    assert one.messages <= 2 * (n - 1)
    s = n
    for stage in plan_stages(n, 8 * words):
        assert stage.offsets == tuple(range(stage.width, s, stage.width))
        assert sum(stage.blocks(k) for k in range(len(stage.offsets))) == s - stage.width
        s = stage.width
    assert s == 1


@pytest.mark.parametrize("n", range(9, 230))
def test_in_a_complete_graph_nobody_passes_on_more_than_the_root_of_n_vectors(n):
    tree = spanning_tree(make_graph("complete", n, 0))
    most = max(map(len, tree.children))
    assert len(tree.children[tree.root]) == most
    assert 1 + (most - 1) + (most - 1) ** 2 < n <= 1 + most + most**2


def test_long_vectors_are_halved_and_short_ones_take_a_tree_or_go_directly():
    assert choose("auto", True, 20, 8 * 10_000) == "butterfly"
    assert choose("auto", True, 20, 8 * 2000) == "tree"
    assert choose("auto", True, 8, 8) == "direct"
    assert choose("auto", False, 20, 8) == "tree"
    assert choose("tree", True, 20, 8) == "tree"


@pytest.mark.parametrize("route", ["butterfly", "direct"])
def test_routes_between_all_ranks_need_all_edges(route):
    with pytest.raises(ConfigError, match=f"^expected an edge between every two ranks for --route {route}, found"):
        Routes(make_graph("ring", 5, 0), route)


NOISY = {"momentum": 14, "dp-dda": 14, "dgd": 14, "one-shot": 3}


@pytest.mark.parametrize("name", NOISY)
def test_noise_in_the_sum_is_the_same_run_on_every_graph(name, tmp_path, capsys):
    """The sum is over integers: the same bits of the model whichever way it travels, for the same noise."""
    problem = "--data mean:samples=60,dimension=4 --loss mean" if name == "one-shot" else "--data synthetic:samples=60"
    found = {}
    for graph in ("complete", "ring", "star", "torus:rows=3,columns=3"):
        out = tmp_path / graph.partition(":")[0]
        words = (
            f"--algorithm {name} --graph {graph} {problem} --loopback 9 --rounds {NOISY[name]} --epsilon 1 --delta 1e-4"
        )
        words += " --exchange shares --noise-in sum --insecure-noise-seed 1 --allow-large-delta --no-evaluate --quiet"
        assert main([*words.split(), "--out", str(out)]) == 0, capsys.readouterr().err
        summary = json.loads((out / "summary.json").read_text())
        with np.load(out / "model.npz") as model:
            found[graph] = model["x"].tobytes(), summary["privacy"]["epsilon"]
        assert summary["communication"]["messages"] == 2 * 8 * NOISY[name]
    assert len(set(found.values())) == 1


# --- words of 32 bits ------------------------------------------------------------------------------------------------

NARROW = "--algorithm dp-dda --data synthetic:samples=900 --rounds 12 --epsilon 1 --exchange shares --noise-in sum"


def narrow(out, *more, graph="ring", ranks=9):
    words = [*NARROW.split(), "--graph", graph, "--loopback", str(ranks), "--insecure-noise-seed", "1", "--no-evaluate"]
    assert main([*words, "--quiet", "--out", str(out), *more]) == 0
    with np.load(out / "model.npz") as model:
        return json.loads((out / "summary.json").read_text()), model["x"].copy()


@pytest.mark.parametrize("more", [(), ("--share-mode", "full")])
def test_words_of_32_bits_halve_the_bytes_and_change_the_model_by_rounding_alone(tmp_path, capsys, more):
    both = [narrow(tmp_path / str(bits), "--share-words", bits, "--share-bits", "24", *more) for bits in ("64", "32")]
    (wide, x), (short, y) = both
    np.testing.assert_array_equal(x, y)  # the same grid, and sums that fit: nothing is left to differ
    assert short["communication"]["messages"] == wide["communication"]["messages"]
    columns = len(x)
    assert wide["communication"]["payload_bytes"] == wide["communication"]["messages"] * 8 * columns
    assert short["communication"]["payload_bytes"] == short["communication"]["messages"] * 8 * -(-columns // 2)
    assert main(["--resume", str(tmp_path / "none")]) == 2
    capsys.readouterr()


def test_a_coarse_grid_is_priced(tmp_path, capsys):
    """Rounding moves a sum by 2 sqrt(m) 2^-f more: the noise of a coarse grid is larger by as much, and no less."""
    sigmas = []
    for bits in ("40", "14"):
        found, x = narrow(tmp_path / bits, "--share-bits", bits)
        [sigma] = {rank["sigma"] for rank in found["per_rank"]}
        sigmas.append(sigma)
    sensitivity = 2.0 / 100  # of the mean of 100 gradients of norm at most 1
    slack = 2 * np.sqrt(len(x)) * 2.0**-14
    assert sigmas[1] / sigmas[0] == pytest.approx((sensitivity + slack) / sensitivity, rel=2e-3)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--share-bits", "27"), "expected gradients below 0 in a shared sum of 9 ranks with 27 fractional bits"),
        (
            ("--share-bits", "30"),
            "expected gradients below 0 in .* with 30 fractional bits .*: use at most 25 --share-bits or",
        ),
        (("--noise-in", "local"), "expected summands of a known bound in words of 32 bits, found --noise-in local"),
        (("--algorithm", "dp-dgd"), "expected nothing but releases in words of 32 bits, found that dp-dgd adds up 12"),
        (("--exchange", "plain", "--noise-in", "local"), "--share-words is for sums in which nobody sees a summand"),
    ],
)
def test_what_does_not_fit_into_32_bits_is_refused_with_the_numbers(tmp_path, capsys, flags, reason):
    words = [*NARROW.split(), "--graph", "ring", "--loopback", "9", "--share-words", "32", *flags]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert re.search(reason, told), told
    assert not (tmp_path / "run").exists()
