"""What a curious rank hears: the bound against optimal attacks on networks whose gradients answer, and its figures."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.privacy import network_privacy
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu
from dpmpi.privacy.network_privacy import network_mus

DELTA = 1e-5


def views(W, maps, deviations, curious, u, told_at_end):
    """How what A sees depends on the moves of F_u and on the noise of the others, both round by round: two matrices.

    `maps[t][j]` is the matrix of F_jt. Every message is kept as a linear function of all moves and all noise.
    """
    T, n, d = len(maps), len(W), maps[0][0].shape[0]
    honest = [j for j in range(n) if j not in curious]
    heard = [j for j in honest if any(W[a, j] for a in curious)]
    width = T * d * (1 + len(honest))
    said, rows = [np.zeros((d, width)) for _ in range(n)], []
    for t in range(T):
        arrived = [sum(W[j, k] * said[k] for k in range(n)) for j in range(n)]
        said = [maps[t][j] @ arrived[j] for j in range(n)]
        said[u][:, t * d : (t + 1) * d] += np.eye(d)
        for place, j in enumerate(honest):
            first = T * d * (1 + place) + t * d
            said[j][:, first : first + d] += deviations[j, t] * np.eye(d)
        rows += [said[j] for j in (honest if told_at_end and t == T - 1 else heard)]
    seen = np.vstack(rows)
    return seen[:, : T * d], seen[:, T * d :]


def attack_matrix(W, maps, deviations, curious, u, told_at_end):
    """K of mu^2 = v' K v, what an optimal test reaches if F_u moves by v_1 ... v_T: shift' covariance^-1 shift."""
    moved, noised = views(W, maps, deviations, curious, u, told_at_end)
    return moved.T @ np.linalg.solve(noised @ noised.T, moved)


def best_attack(W, maps, moves, deviations, curious, u, told_at_end=False):
    """The largest mu over moves |v_t| <= b_t of F_u, by ascent from several starts: one way, to and fro, others."""
    K = attack_matrix(W, maps, deviations, curious, u, told_at_end)
    T, d, best = len(maps), maps[0][0].shape[0], 0.0
    generator, ones = np.random.default_rng(1), np.ones((T, d))
    for start in (ones, ones * (-1.0) ** np.arange(T)[:, None], *generator.normal(size=(3, T, d))):
        v = start
        for _ in range(60):  # v' K v is convex: over balls it grows if every v_t goes where its gradient points
            v = v * (moves[u] / np.maximum(np.linalg.norm(v, axis=1), 1e-300))[:, None]
            best = max(best, float(v.ravel() @ K @ v.ravel()))
            v = (K @ v.ravel()).reshape(T, d)
    return best**0.5


def projection(W, moves, deviations, curious, u, told_at_end=False):
    """The tempting formula, a planted mistake: gradients are fixed, so F_j(y) = y + g_j, and one record moves g_u."""
    still = [[np.eye(1)] * len(W)] * moves.shape[1]
    K = attack_matrix(W, still, deviations, curious, u, told_at_end)
    return float(moves[u] @ K @ moves[u]) ** 0.5


def random_network(generator):
    """A connected graph of 3 to 6 ranks, maps of gradient steps on quadratic losses, noise and moves of all sizes."""
    n, T, d = int(generator.integers(3, 7)), int(generator.integers(2, 9)), int(generator.integers(1, 3))
    edges = [(i, int(generator.integers(0, i))) for i in range(1, n)]
    edges += [pair for pair in itertools.combinations(range(n), 2) if generator.random() < 0.15]
    W = mixing_matrix(make_graph("edges:" + ",".join(f"{i}-{j}" for i, j in edges), n, 0), "metropolis")

    def step():
        q, _ = np.linalg.qr(generator.normal(size=(d, d)))
        return q @ np.diag(1.0 - generator.choice([0.0, 1.0, 2.0, generator.uniform(0, 2)], d)) @ q.T

    fixed = [step() for _ in range(n)]
    maps = [fixed if generator.random() < 0.7 else [step() for _ in range(n)] for _ in range(T)]
    weights = np.cumsum(generator.uniform(0, 1, T)) if generator.random() < 0.5 else generator.uniform(0.3, 1, T)
    sizes, noise = generator.uniform(0.5, 2, (2, n))
    return W, maps, np.outer(sizes, weights), np.outer(noise, generator.uniform(0.5, 2, T) * weights)


@pytest.mark.parametrize("told_at_end", [False, True])
def test_no_attack_reaches_the_bound_and_fixed_gradients_are_no_bound(told_at_end):
    generator, mistaken, closest = np.random.default_rng(15), 0, 0.0
    for _ in range(200):
        W, maps, moves, deviations = random_network(generator)
        n = len(W)
        curious = set(generator.permutation(n)[: 1 if n < 5 else int(generator.integers(1, 3))].tolist())
        u = int(generator.choice([j for j in range(n) if j not in curious]))
        bound = network_mus(W, curious, moves, deviations, told_at_end=told_at_end)
        attack = best_attack(W, maps, moves, deviations, curious, u, told_at_end)
        assert attack <= bound[u] * (1 + 1e-9)
        assert all(bound[a] is None for a in curious)
        closest = max(closest, attack / bound[u])
        mistaken += attack > 1.01 * projection(W, moves, deviations, curious, u, told_at_end)
    assert closest > 0.95
    assert mistaken > 20


def test_two_hops_on_a_ring_of_twenty():
    W, b, s = mixing_matrix(make_graph("ring", 20, 0), "metropolis"), np.full((20, 100), 0.1), np.ones((20, 100))
    bound = network_mus(W, {0}, b, s, told_at_end=False)
    planted = [projection(W, b, s, {0}, u) for u in (1, 2)]
    assert planted == pytest.approx([0.590, 0.471], abs=0.001)

    def feedback(passing):
        """F_j = 1 for the ranks that let all pass, 0 for those whose gradients undo whatever they hear."""
        return [[np.array([[float(j in passing)]]) for j in range(20)]] * 100

    attacks = [best_attack(W, feedback({}), b, s, {0}, 1), best_attack(W, feedback({1, 2, 3, 4}), b, s, {0}, 2)]
    assert attacks == pytest.approx([1.0, 0.538], abs=0.001)
    assert bound[1:3] == pytest.approx([1.0, 0.545], abs=0.001)
    assert all(mistake < attack <= proven for mistake, attack, proven in zip(planted, attacks, bound[1:], strict=False))


@pytest.mark.parametrize(
    ("graph", "by_hops"), [("ring", {1: 1.0, 2: 0.52, 3: 0.39, 10: 0.20}), ("torus", {1: 1.0, 2: 0.36, 3: 0.25})]
)
def test_relative_epsilon_by_hops(graph, by_hops):
    found, T = make_graph(graph, 20, 0), 500
    W, mu = mixing_matrix(found, "metropolis"), gdp_mu(1.0, DELTA)
    bound = network_mus(W, {0}, np.full((20, T), mu / T**0.5), np.ones((20, T)), told_at_end=False)
    away, near = {0: 0}, [0]
    for rank in near:
        for peer in found.neighbours(rank):
            if peer not in away:
                away[peer] = away[rank] + 1
                near.append(peer)
    for hops, relative in by_hops.items():
        worst = max(gdp_epsilon(bound[u], DELTA) for u in range(20) if away[u] == hops)
        assert worst == pytest.approx(relative, abs=0.006)


def test_last_messages_cost_little_in_many_rounds():
    W, mu = mixing_matrix(make_graph("ring", 10, 0), "metropolis"), 0.3

    def farthest(T, told_at_end):
        return network_mus(W, {0}, np.full((10, T), mu / T**0.5), np.ones((10, T)), told_at_end=told_at_end)[5]

    plain = farthest(4000, told_at_end=False)
    assert plain < farthest(4000, told_at_end=True) < 1.06 * plain
    assert 1.2 * plain < farthest(50, told_at_end=True) < mu


def test_models_that_are_means_over_all_rounds_tell_as_much_as_the_wire():
    """Why dual averaging, whose models are told at the end, has the wire's figure."""
    n, T = 8, 60
    W = mixing_matrix(make_graph("ring", n, 0), "metropolis")
    powers = [np.linalg.matrix_power(W, k) for k in range(T)]
    reach = [sum(powers[1 : T - s], np.zeros((n, n))) for s in range(T)]  # of the releases of round s in sum_t z(t)
    signal, noise = sum(r[:, 4] for r in reach), sum(r @ r.T for r in reach)
    told = (signal @ np.linalg.pinv(noise, rcond=1e-9) @ signal) ** 0.5
    assert told > 0.85 * T**0.5
    assert network_mus(W, {0}, np.ones((n, T)), np.ones((n, T)), told_at_end=False)[4] < 0.4 * T**0.5


def test_certificates_are_rounded_up():
    """(4) in exact arithmetic is not above what is returned, for E that were not rounded by a solver."""
    generator = np.random.default_rng(3)
    for _ in range(20):
        n, T = 4, 5
        V, E, h, b = generator.random((n, n)), generator.random(n), generator.random(T), generator.random(T)
        s = generator.uniform(0.1, 2, (n, T))
        exact = Fraction(0)
        for t, j in itertools.product(range(T), range(n)):
            last = Fraction(h[t - 1]) if t else Fraction(0)
            g = last * sum(Fraction(V[j, k]) * Fraction(E[k]) for k in range(n)) + (Fraction(b[t]) if j == 1 else 0)
            exact += (max(Fraction(0), g - Fraction(h[t]) * Fraction(E[j])) / Fraction(s[j, t])) ** 2
        found = Fraction(network_privacy._price(V, 1, E, h, b, s))
        assert exact <= found**2 <= exact * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("wrong", [np.zeros(4), np.full(4, 3.0)])
def test_a_solver_that_stops_early_is_helped(monkeypatch, wrong):
    W = mixing_matrix(make_graph("ring", 7, 0), "metropolis")
    expected = network_mus(W, {0}, np.ones((7, 9)), np.ones((7, 9)), told_at_end=False)
    monkeypatch.setattr("scipy.optimize.nnls", lambda *_: (wrong, 0.0))
    found = network_mus(W, {0}, np.ones((7, 9)), np.ones((7, 9)), told_at_end=False)
    assert found[1:] == pytest.approx(expected[1:], rel=1e-3)
