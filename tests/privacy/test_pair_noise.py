"""Noise that cancels between neighbours: the gain of every rank, the draws, and what colluders can see."""

import json
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.core import Agent, Query, Sampling
from dpmpi.errors import BudgetExceeded
from dpmpi.network.graph import make_graph
from dpmpi.privacy.pair_noise import MOST_SETS, PairMechanism, grid, pair_pricing, pair_streams, steps, worst_gain
from dpmpi.rng import insecure_key
from dpmpi.run import main

FULL = Sampling("full", 100.0, 100)


def gain(spec, kappa, colluders, size=20):
    return worst_gain(make_graph(spec, size, 0).edges, size, float(kappa), colluders)


@pytest.mark.parametrize(
    ("spec", "kappa", "colluders", "noise"),
    [
        ("ring", 10, 0, 0.256),
        ("ring", 10, 1, 0.316),
        ("ring", 10, 2, 1.0),  # two ranks cut it
        ("torus", 10, 1, 0.238),
        ("complete", 3, 1, 0.241),
        ("complete", 3, 6, 0.281),
        ("complete", 1000, 0, math.sqrt(1 / 20)),  # the centre's
    ],
)
def test_noise_of_the_mean_relative_to_local_noise(spec, kappa, colluders, noise):
    found = gain(spec, kappa, colluders)
    assert found.exact
    assert 1.0 / found.value == pytest.approx(noise, abs=6e-4)


def joint_covariance(edges, size, kappa):
    """(2) from the sum over edges of (1), in 4 lines and without a Laplacian."""
    columns = np.zeros((size, len(edges)))
    for k, (i, j) in enumerate(edges):
        columns[i, k], columns[j, k] = kappa, -kappa
    return np.eye(size) + columns @ columns.T


@st.composite
def graphs(draw):
    size = draw(st.integers(3, 7))
    every = list(combinations(range(size), 2))
    tree = [(draw(st.integers(0, k - 1)), k) for k in range(1, size)]
    return size, tuple(sorted(set(tree) | set(draw(st.lists(st.sampled_from(every), max_size=8)))))


@given(graphs(), st.floats(0.1, 30), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_no_rank_has_less_than_the_worst_gain_and_one_has_it(graph, kappa, colluders):
    size, edges = graph
    c = min(colluders, size - 2)
    losses = []
    for known in combinations(range(size), c):
        honest = [rank for rank in range(size) if rank not in known]
        left = [(i, j) for i, j in edges if i in honest and j in honest]  # the other pairs' noise is known
        place = {rank: k for k, rank in enumerate(honest)}
        covariance = joint_covariance([(place[i], place[j]) for i, j in left], len(honest), kappa)
        losses += np.diag(np.linalg.inv(covariance)).tolist()
    found = worst_gain(edges, size, kappa, c)
    assert found.exact
    assert found.value <= 1.0 / math.sqrt(max(losses))
    assert found.value == pytest.approx(1.0 / math.sqrt(max(losses)), rel=1e-6)


@given(graphs(), st.floats(0.1, 30), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_the_bound_by_degrees_is_below_the_exact_gain(graph, kappa, colluders):
    size, edges = graph
    c = min(colluders, size - 2)
    least = min(sum(rank in edge for edge in edges) for rank in range(size))
    bound = math.sqrt(1.0 + max(0, least - c) * kappa**2 / (1.0 + kappa**2))
    assert bound <= worst_gain(edges, size, kappa, c).value * (1 + 1e-6)


@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("size", [50, 200, 399])
def test_rounding_does_not_raise_the_gain_of_large_pair_noise(size, colluders):
    """Complete graphs: the diagonal of (I + kappa^2 (n I - J))^-1 in closed form, exactly."""
    edges = tuple(combinations(range(size), 2))
    n, k = size - colluders, Fraction(1000) ** 2
    exact = (1 + k) / (1 + k * n)
    found = worst_gain(edges, size, 1000.0, colluders).value
    assert Fraction(found) ** 2 * exact <= 1
    assert found > 0.999 / math.sqrt(exact)


def test_many_sets_of_colluders_get_the_bound():
    found = gain("torus", 3.0, 3, 60)
    assert math.comb(60, 3) > MOST_SETS
    assert not found.exact
    assert found.value == pytest.approx(math.sqrt(1 + 1 * 9 / 10))


def mechanisms(spec, size, sigma, kappa, colluders, width, seed=0):
    """The mechanisms of all ranks, with the streams of their pairs."""
    graph = make_graph(spec, size, 0)
    value = worst_gain(graph.edges, size, kappa, colluders).value
    made = []
    for rank in range(size):
        near = graph.neighbours(rank)
        secrets = {peer: insecure_key(seed, 1000 * min(rank, peer) + max(rank, peer)) for peer in near}
        key = insecure_key(seed, 10**6 + rank)
        made.append(PairMechanism(sigma, value, kappa, key, width, pair_streams(rank, near, secrets)))
    return graph, value, made


def released(made, width, rounds, values=None):
    """(rounds, ranks, width) of what the ranks release if these are their values, the same in every round."""
    out = np.zeros((rounds, len(made), width))
    for t in range(rounds):
        for rank, mechanism in enumerate(made):
            if values is not None:
                out[t, rank] = values[rank]
            mechanism.perturb(out[t, rank])
    return out


def test_pairs_cancel_exactly_and_the_rest_is_each_ranks_own():
    width, sigma, kappa = 501, 1.0, 10.0
    _, value, made = mechanisms("ring", 6, sigma, kappa, 1, width)
    alone = mechanisms("ring", 6, sigma, kappa, 1, width)[2]
    for mechanism in alone:
        mechanism._pairs = {}
    difference = released(made, width, 3) - released(alone, width, 3)
    np.testing.assert_allclose(difference.sum(axis=1), 0.0, atol=6 * 2.0**-19 * sigma / value)  # six roundings
    assert np.std(difference) == pytest.approx(math.sqrt(2) * kappa * sigma / value, rel=0.05)


def test_the_noise_of_others_cancels_with_that_of_a_rank_whose_budget_is_spent():
    width = 501
    _, value, made = mechanisms("ring", 6, 1.0, 10.0, 1, width)
    total, refused = np.zeros(width), []
    for rank, mechanism in enumerate(made):

        class Charges:
            def charge(self, event, round_, rank=rank):
                if rank == 2:
                    refused.append(event)
                    raise BudgetExceeded("spent")

        parts = dict.fromkeys(("terms", "problem", "penalty", "stream"))
        agent = Agent(rank=rank, share=1.0, mechanism=mechanism, charges=Charges(), **parts)
        total += agent.release(Query(np.full(width, 3.0), 1.0, FULL)).value
    assert len(refused) == 1
    assert total.mean() == pytest.approx(15.0, abs=1.0)  # five ranks have said 3, one nothing
    assert np.std(total) == pytest.approx(math.sqrt(6) / value, rel=0.2)


def test_the_noise_of_the_mean_is_that_of_the_formula():
    sigma, kappa, size, width, rounds = 1.0, 10.0, 20, 2000, 40
    _, value, made = mechanisms("torus", size, sigma, kappa, 1, width)
    mean = released(made, width, rounds).mean(axis=1)
    assert np.std(mean) == pytest.approx(sigma / (value * math.sqrt(size)), rel=0.03)


def test_a_release_is_on_the_grid_of_its_own_noise():
    _, _, made = mechanisms("ring", 4, 0.3, 5.0, 1, 64)
    value = np.full(64, 0.123456789)
    made[0].perturb(value)
    steps = value / math.ldexp(1.0, math.frexp(made[0].own)[1] - 21)
    assert np.array_equal(steps, np.rint(steps))


def test_the_event_is_that_of_what_a_rank_hides_behind():
    _, value, made = mechanisms("ring", 4, 0.3, 5.0, 1, 64)
    event = made[0].event(Query(np.zeros(64), 0.02, FULL))
    assert (event.noise, event.scale) == ("gaussian", 0.3)
    assert 0.02 < event.sensitivity <= 0.02 * (1 + 1e-4)  # rounding to the grid
    assert event.sensitivity == pair_pricing(0.3, 0.3 / value, 64).event(0.02, FULL).sensitivity
    assert grid(0.3 / value) <= 0.3 / value * 2.0**-30


def best_attack(made, graph, victim, known, shift, runs):
    """What the optimal test sees of a shift of the victim: its deviation in units of its own noise (mu).

    The attacker has the streams of pairs with a colluder, and takes their noise off; then it weighs the honest ranks'
    releases by the inverse of (2); and it tries the victim's release alone.
    """
    size = graph.size
    kappa, own = made[0]._kappa, made[0].own
    honest = [rank for rank in range(size) if rank not in known]
    twins = {rank: dict(made[rank]._pairs) for rank in honest}
    for rank in honest:  # with the colluders' secrets: those pairs contribute nothing unknown
        made[rank]._pairs = {s: stream for s, stream in twins[rank].items() if abs(s) - 1 not in known}
    place = {rank: k for k, rank in enumerate(honest)}
    left = [(place[i], place[j]) for i, j in graph.edges if i in place and j in place]
    joint = np.linalg.inv(joint_covariance(left, len(honest), kappa))[place[victim]]
    weights, scores = np.stack([joint, np.eye(len(honest))[place[victim]]]), []
    for world in (0.0, shift):
        values = [np.full(runs, world if rank == victim else 0.0) for rank in range(size)]  # a run a coordinate
        scores.append(weights @ released(made, runs, 1, values)[0, honest] / own)
    return np.max((scores[1].mean(axis=1) - scores[0].mean(axis=1)) / scores[0].std(axis=1))


@pytest.mark.parametrize(("spec", "size", "colluders"), [("ring", 6, 1), ("complete", 6, 2), ("torus", 12, 2)])
def test_the_best_attack_of_colluders_sees_what_is_certified_and_no_more(spec, size, colluders):
    sigma, kappa, runs = 1.0, 5.0, 20000
    worst = 0.0
    graph = make_graph(spec, size, 0)
    for known in list(combinations(range(1, size), colluders))[:8]:
        _, _, made = mechanisms(spec, size, sigma, kappa, colluders, runs, seed=sum(known))
        worst = max(worst, best_attack(made, graph, 0, known, 1.0, runs))
    assert worst < 1.0 / sigma + 4 * math.sqrt(2.5 / runs)  # mu = D / sigma_eff = 1, measured
    if spec != "torus":  # all ranks are alike, and the sets above hold a worst one
        assert worst > 0.93


def test_an_attack_on_noise_without_the_pairs_is_caught():
    """Priced as hidden by the pairs, but these are left out: the attack sees gain times as much as is certified."""
    runs = 6000
    graph, value, made = mechanisms("ring", 6, 1.0, 5.0, 1, runs)
    for mechanism in made:
        mechanism._pairs = {}
    seen = best_attack(made, graph, 0, (3,), 1.0, runs)
    assert value > 1.5
    assert seen > 1.0 + 10 * math.sqrt(2.5 / runs)


# --- whole runs: the grid of the noise is part of its price ----------------------------------------------------------

PAIRS = "--loopback 5 --loss logistic --no-evaluate --noise-in pairs --seal --allow-large-delta --quiet"
FALLING = "--data synthetic:samples=200,features=9 --algorithm ldp-admm --mechanism gaussian --rounds 280"


@pytest.mark.parametrize(
    ("flags", "epsilon"),
    [
        (f"{FALLING} --epsilon 1 --noise-growth 1.03", 1.0),
        (f"{FALLING} --epsilon 1 --noise-growth 1.05", 1.0),
        ("--data synthetic:samples=100,features=33001 --epsilon 0.01 --rounds 10", 0.01),
    ],
)
def test_a_target_is_kept_where_the_grid_is_coarse(tmp_path, flags, epsilon):
    """The grid grows with the noise, and what it adds to a sensitivity does, too."""
    assert main([*PAIRS.split(), *flags.split(), "--out", str(tmp_path / "run")]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["epsilon"]
    assert 0.99 * epsilon < found <= epsilon


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--epsilon 1 --noise-growth 1.08", "expected noise that reaches epsilon 1, found none"),
        ("--noise 1 --noise-growth 1.1", "expected noise between neighbours of 64 steps of its grid in every round"),
    ],
)
def test_noise_that_falls_to_the_steps_of_its_grid_is_refused(tmp_path, capsys, flags, reason):
    words = [*PAIRS.split(), *FALLING.split(), *flags.split(), "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@given(st.floats(0.01, 1000.0), st.integers(1, 1000), st.floats(1e-6, 1.0))
def test_steps_bound_what_is_drawn_on_the_grid_given_the_sum(kappa, degree, scale):
    """The pair's share of the precision: 1 / (1 / (kappa s 2^30)^2 + 2 d / (s 2^30)^2), its neighbours' noise known."""
    own = scale * 2.0**30
    assert steps(kappa, degree, scale) == pytest.approx((1 / (kappa * own) ** 2 + 2 * degree / own**2) ** -0.5)
