"""ADMM with random weights: dense reference, contracts, stability, the paper's own setting."""

import json

import numpy as np
import pytest
from admm_problems import Witnessed, newton, shards_of_unlike_ranks

from dpmpi.algorithms.ldp_admm import LdpAdmm
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph
from dpmpi.privacy.random_weights import realised_loss
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import find_optimum
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.run import main
from dpmpi.testing import models, noisy, random_shards, simulate

PENALTIES = [Regulariser(l2=0.05), Regulariser(l1=0.01, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]


def dense_reference(shards, graph, D, zeta, penalty, rounds, sign=1.0, weights=True):
    """All agents at once: x and the duals are n by m, A is the adjacency matrix; logistic loss, no noise."""
    n, m = len(shards), shards[0][0].dimension
    A = np.zeros((n, n))
    for i, j in graph.edges:
        A[i, j] = A[j, i] = 1.0
    degree = A.sum(axis=1, keepdims=True)
    x, dual, g = np.zeros((n, m)), np.zeros((n, m)), np.zeros((n, m))
    streams = [PrivateStream(insecure_key(0, i), "weights") for i in range(n)]
    for _ in range(rounds):
        u = np.array([stream.uniforms(m) for stream in streams]) if weights else 0.5
        for i, (rows, y) in enumerate(shards):
            g[i] = rows.matrix.T @ LOSSES["logistic"].slope(rows.matrix @ x[i], y) / len(y)
        v = u * x + (1.0 - u) * (A @ x) / degree - (g - dual) / D
        for i in range(n):
            penalty.prox(v[i], 1.0 / D, x[i])
        dual += sign * zeta * (A @ x - degree * x)
    return x


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("spec", ["ring", "complete", "star", "erdos-renyi:p=0.5"])
def test_a_run_is_the_dense_reference(spec, penalty):
    shards = shards_of_unlike_ranks(6)
    engine = simulate(LdpAdmm(damping=0.9, zeta=0.1), shards, 10, graph=spec, loss="logistic", penalty=penalty)
    expected = dense_reference(shards, make_graph(spec, 6, 0), 0.9, 0.1, penalty, 10)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected - expected.mean(axis=0)).max() > 1e-4
    without = dense_reference(shards, make_graph(spec, 6, 0), 0.9, 0.1, penalty, 10, weights=False)
    assert np.abs(expected - without).max() > 1e-4


def relative_gap(shards, loss, penalty, x):
    optimum = find_optimum(shards, len(shards), LOSSES[loss], penalty, shards[0][0].dimension, lambda buffer: None)

    def value(x):
        return np.mean([np.mean(LOSSES[loss].value(r.scores(x), y)) for r, y in shards]) + penalty.value(x)

    return (value(x) - optimum.value) / (value(np.zeros_like(x)) - optimum.value)


@pytest.mark.parametrize("penalty", PENALTIES[:3], ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("spec", ["ring", "complete", "star", "path"])
def test_the_defaults_reach_the_optimum(spec, penalty):
    shards = shards_of_unlike_ranks(6)
    x = models(simulate(LdpAdmm(), shards, 400, graph=spec, loss="logistic", penalty=penalty))
    assert relative_gap(shards, "logistic", penalty, x.mean(axis=0)) < 1e-8
    assert np.abs(x - x.mean(axis=0)).max() < 1e-5


def test_the_papers_setting_converges_as_measured_and_its_printed_sign_does_not():
    shards, penalty = shards_of_unlike_ranks(10, 100, 14), Regulariser(l2=1.0)
    best = newton(shards, 1.0)
    engine = simulate(
        LdpAdmm(damping=10.0, zeta=0.5), shards, 100, graph="random:edges=20", loss="logistic", penalty=penalty
    )
    error = np.linalg.norm(models(engine) - best, axis=1).max() / np.linalg.norm(best)
    assert error < 2e-4
    engine.advance(300)
    assert np.linalg.norm(models(engine) - best, axis=1).max() / np.linalg.norm(best) < 2e-8
    graph = make_graph("random:edges=20", 10, 0)
    printed = dense_reference(shards, graph, 10.0, 0.5, penalty, 100, sign=-1.0)
    assert np.linalg.norm(printed - best, axis=1).max() / np.linalg.norm(best) > 1e6


@pytest.mark.parametrize(("spec", "n"), [("ring", 8), ("complete", 6), ("path", 7), ("star", 7), ("grid", 9)])
def test_defaults_are_stable_at_the_largest_curvature(spec, n):
    """All rows are the same unit vector: the squared loss has curvature 1 along it, which Terms bounds by 1."""
    draw = np.random.default_rng(1)
    shards = [(Dense(np.eye(3)[np.zeros(4, int)]), draw.standard_normal(4)) for _ in range(n)]
    penalty = Regulariser(l2=0.001)
    engine = simulate(LdpAdmm(), shards, 600, graph=spec, loss="squared", penalty=penalty, lipschitz=100.0)
    best = np.mean([y.mean() for _, y in shards]) / 1.001
    np.testing.assert_allclose(models(engine)[:, 0], best, rtol=1e-6)


def test_shorter_damping_than_the_stability_bound_diverges():
    shards = [(Dense(np.eye(1)), np.array([float(i)])) for i in range(8)]
    settings = {"graph": "ring", "loss": "squared", "penalty": Regulariser(), "lipschitz": 1e9}
    x = models(simulate(LdpAdmm(damping=1.0), shards, 100, **settings))
    assert np.abs(x).max() > 1e3


def test_the_derived_noise_growth_meets_the_cauchy_schwarz_bound():
    shards = random_shards(3, 10, 4, 0)
    for penalty, rounds in ((Regulariser(l2=0.05), 30), (Regulariser(l2=0.5), 10)):
        engine = simulate(LdpAdmm(damping=1.0), shards, rounds, loss="logistic", penalty=penalty)
        planned = list(LdpAdmm(damping=1.0).releases(engine.seats[0].agent.terms))
        s = np.array([p.scale for p in planned for _ in range(p.count)])
        weights = (1.0 + penalty.l2) ** -np.arange(rounds - 1.0, -1.0, -1.0)
        assert np.sum(weights**2 * s**2) * np.sum(1 / s**2) == pytest.approx(np.sum(weights) ** 2, rel=1e-12)


def test_the_derived_noise_growth_is_bounded():
    shards = random_shards(3, 10, 4, 0)
    engine = simulate(LdpAdmm(), shards, 500, loss="logistic", penalty=Regulariser(l2=1.0))
    scales = [planned.scale for planned in LdpAdmm().releases(engine.seats[0].agent.terms)]
    assert scales[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
def test_the_witness_is_told_the_interval_and_the_noise(penalty):
    shards, D, rounds = random_shards(4, 10, 5, 3), 0.8, 9
    runs = {}
    for sigma in (0.0, 0.3):
        settings = {"loss": "logistic", "penalty": penalty, "make_agent": Witnessed}
        noise = noisy("laplace" if sigma else "none", sigma, 5)
        runs[sigma] = simulate(LdpAdmm(damping=D, noise_growth=1.02), shards, rounds, mechanism=noise, **settings)
    for seat in runs[0.0].seats:
        stream = PrivateStream(insecure_key(0, seat.agent.rank), "weights")
        for t, (output, low, high, _, reach) in enumerate(seat.agent.witness.told, 1):
            u, width = stream.uniforms(5), high - low
            assert np.all((output >= low - 1e-12) & (output <= high + 1e-12))
            share = np.abs(output - low)  # x_i is one end of the interval, the neighbours' mean the other
            assert np.all(np.isclose(share, u * width, atol=1e-12) | np.isclose(share, (1 - u) * width, atol=1e-12))
            assert t == 1 or width.max() > 1e-6
            assert reach == pytest.approx(2.0 / 10 / D)
    for seat in runs[0.3].seats:
        witness, charged = seat.agent.witness, seat.agent.charges.charged
        assert len(witness.told) == len(charged) == rounds
        for (*_, scale, _), (_, event) in zip(witness.told, charged, strict=True):
            assert scale == pytest.approx(event.scale / D)
        x = np.zeros(5)
        penalty.prox(witness.told[-1][0], 1.0 / D, x)
        np.testing.assert_array_equal(x, seat.state.x)


def test_the_papers_realised_loss_is_a_quarter_below_the_worst_case():
    """Fig. 2 (b): D = 10, beta_t = 1.02^t, 100 rounds. The paper has 30% on its data; nothing exceeds the bound."""
    D = 10.0
    settings = {"graph": "random:edges=20", "loss": "logistic", "penalty": Regulariser(l2=1.0)}
    noise = {"mechanism": noisy("laplace", D * np.sqrt(2.0), 7), "make_agent": Witnessed}
    algorithm = LdpAdmm(damping=D, zeta=0.5, noise_growth=1.02)
    engine = simulate(algorithm, shards_of_unlike_ranks(10, 100, 14), 100, **settings, **noise)
    witnesses = [seat.agent.witness for seat in engine.seats]
    told = [outcome for witness in witnesses for outcome in witness.told]
    np.testing.assert_allclose([scale for *_, scale, _ in witnesses[0].told], 1.02 ** -np.arange(1.0, 101.0))
    losses = np.array([realised_loss(low, high, output, 1 / scale, reach) for output, low, high, scale, reach in told])
    worst = np.array([reach / scale for *_, scale, reach in told])[:, None]
    assert np.all(losses <= worst * (1 + 1e-12))
    assert 0.70 < losses.sum() / (14 * worst.sum()) < 0.80


def test_the_witness_changes_nothing():
    shards = random_shards(4, 10, 5, 3)
    plain = simulate(LdpAdmm(), shards, 9, loss="logistic")
    seen = simulate(LdpAdmm(), shards, 9, loss="logistic", make_agent=Witnessed)
    np.testing.assert_array_equal(models(plain), models(seen))


@pytest.mark.parametrize(
    ("options", "loss", "n", "message"),
    [
        ({}, "hinge", 3, "set --damping"),
        ({"damping": 0.0}, "logistic", 3, "expected --damping > 0"),
        ({"zeta": 0.0}, "logistic", 3, "expected --zeta > 0"),
        ({"noise_growth": 2.0}, "logistic", 3, "closer to 1"),
        ({}, "logistic", 1, "at least 2 ranks"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(options, loss, n, message):
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(LdpAdmm(**options), random_shards(n, 5, 3, 0), 50, graph="complete", loss=loss)
    assert "\n" not in str(caught.value)


def test_a_run_with_pure_noise_leaves_a_summary(tmp_path):
    """Figures that need a delta are null at delta = 0, not infinity, which JSON does not have."""
    flags = "--algorithm ldp-admm --loss logistic --data synthetic:samples=40,features=3 --rounds 4 --loopback 2"
    assert main([*flags.split(), "--graph=complete", "--epsilon=1", "--delta=0", f"--out={tmp_path / 'run'}"]) == 0
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["epsilon"] == pytest.approx(1, rel=1e-3)
    assert privacy["laplace"]["l1"] == pytest.approx(privacy["epsilon"])
    assert privacy["laplace"]["zcdp"] is None
