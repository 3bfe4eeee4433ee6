"""Heavy ball in the dual: dense reference, the identity with heavy ball, mixing, contracts, convergence."""

from functools import partial

import numpy as np
import pytest
import scipy.optimize
from plans import plan_of

from dpmpi.algorithms.momentum import Momentum
from dpmpi.data import parse_source
from dpmpi.data.libsvm import to_dense
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.schedule import make_schedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.runtime.config import Config
from dpmpi.runtime.settings import Settings
from dpmpi.testing import Tap, check_exchanges, check_method, check_no_leak, models, random_shards, shared, simulate

PENALTIES = [Regulariser(), Regulariser(l1=0.02, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]
LOGISTIC = LOSSES["logistic"]


def gradient(shard, x):
    X, y = shard[0].matrix, shard[1]
    return X.T @ LOGISTIC.slope(X @ x, y) / len(y)


def chebyshev(W, K):
    """P_K(W) by the eigenvalues: cos(K arccos(w / lambda)) over the same at w = 1."""
    w, V = np.linalg.eigh(W)
    top = np.sort(np.abs(w))[-2]
    at = [np.polynomial.chebyshev.chebval(v / top, [0] * K + [1]) for v in w]
    return (V * (at / np.polynomial.chebyshev.chebval(1 / top, [0] * K + [1]))) @ V.T


def dense_reference(shards, P, closing, beta, eta, penalty, rounds):
    """All agents at once: z, e, x are n by m; P mixes; logistic, full batch, no noise."""
    n, m = len(shards), shards[0][0].dimension
    z, e, x, E = np.zeros((n, m)), np.zeros((n, m)), np.zeros((n, m)), 0.0
    for t in range(1, rounds + 1):
        z = P @ (z + np.array([gradient(shard, row) for shard, row in zip(shards, x, strict=True)]))
        e, E = beta * e + z, beta * E + t
        if t == rounds:
            e = closing @ e
        for i in range(n):
            penalty.dual_step(e[i], E, 1 / eta, x[i])
    return x


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("K", [1, 2, 5])
def test_it_is_the_dense_reference(K, penalty):
    shards, graph = random_shards(6, 20, 9, seed=4), make_graph("erdos-renyi:p=0.5", 6, 1)
    method = Momentum(beta=0.7, eta=1.5, mixes=K, closing_mixes=K + 1)
    engine = simulate(method, shards, 40, graph=graph, loss="logistic", penalty=penalty)
    W = mixing_matrix(graph, "metropolis")
    expected = dense_reference(shards, chebyshev(W, K), chebyshev(W, K + 1), 0.7, 1.5, penalty, 40)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-3


def test_it_is_heavy_ball_on_the_mean_gradient():
    shards, beta, eta = random_shards(5, 30, 7, seed=2), 0.8, 3.0
    engine = simulate(
        Momentum(beta=beta, eta=eta), shards, 50, graph="complete", loss="logistic", penalty=Regulariser(), stop=0
    )
    last, x = np.zeros(7), np.zeros(7)
    for t in range(1, 51):
        g = np.mean([gradient(shard, x) for shard in shards], axis=0)
        last, x = x, x + beta * (x - last) - eta * g  # (6)
        engine.advance(t)
        np.testing.assert_allclose(models(engine), np.tile(x, (5, 1)), rtol=0, atol=1e-10)
    assert np.linalg.norm(x) > 0.1


def test_its_mean_is_heavy_ball_on_any_graph():
    """What differs between ranks changes where gradients are taken, not how their mean is used."""
    shards = random_shards(7, 30, 4, seed=2)
    engine = simulate(Momentum(beta=0.6, eta=1.0, mixes=3), shards, 9, loss="logistic", penalty=Regulariser(), stop=0)
    last, mean = np.zeros(4), np.zeros(4)
    for t in range(1, 9):
        g = np.mean([gradient(shard, x) for shard, x in zip(shards, models(engine), strict=True)], axis=0)
        last, mean = mean, mean + 0.6 * (mean - last) - g
        engine.advance(t)
        np.testing.assert_allclose(models(engine).mean(axis=0), mean, rtol=0, atol=1e-12)
    assert np.ptp(models(engine), axis=0).max() > 1e-3


def terms_of(graph, n, rounds=10):
    config = Config(algorithm="momentum", graph=graph, rounds=rounds, loss="logistic")
    return plan_of(Settings.of(config), [20] * n, 3).terms(0)


TENTH = [("ring", 20, 12), ("torus:rows=4,columns=5", 20, 4), ("complete", 20, 1), ("ring", 2, 1)]


@pytest.mark.parametrize(("graph", "n", "K"), TENTH)
def test_a_tenth_of_a_disagreement_is_left(graph, n, K):
    terms = terms_of(graph, n)
    assert Momentum().mixes_per_release(terms) == K
    assert Momentum().mixes_at_the_end(terms) == (K if K > 1 else 0)
    W = mixing_matrix(make_graph(graph, n, 0), "metropolis")
    left = [np.linalg.norm((chebyshev(W, k) if terms.mixing > 0.01 else W) - 1 / n, 2) for k in (K - 1, K) if k]
    assert left[-1] <= 0.1
    assert all(rho > 0.1 for rho in left[:-1])


def test_on_a_graph_that_mixes_exactly_more_mixes_are_not_sent():
    assert Momentum(mixes=7).mixes_per_release(terms_of("complete", 6)) == 1
    assert Momentum(closing_mixes=7).mixes_at_the_end(terms_of("complete", 6)) == 0
    assert Momentum(mixes=7).mixes_per_release(terms_of("ring", 6)) == 7


def same_shards(n):
    """Ranks with the same curvature: the mean loss has 1 in every direction."""
    draw = np.random.default_rng(3)
    return [(Dense(np.clip(draw.normal(0.2, 0.3, (10, 3)), -1, 1)), np.ones(10)) for _ in range(n)]


def test_with_the_derived_mixes_disagreements_die_out_where_a_tenth_would_not_do():
    """1/t_K <= 0.1 is not enough for beta = 0.985: the mode that the mixes turn round grows."""
    shards, settings = same_shards(6), {"loss": "mean", "penalty": Regulariser(), "graph": "ring"}
    best = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0)
    terms = terms_of("ring", 6, 400)
    assert 1 / np.cosh(4 * np.arccosh(1 / terms.mixing)) < 0.1
    made = [Momentum(mixes=K, closing_mixes=0) for K in (4, None)]
    off = [np.abs(models(simulate(method, shards, 400, **settings)) - best).max() for method in made]
    assert off[0] > 1e3
    assert off[1] < 0.5


@pytest.mark.parametrize("graph", ["ring", "complete", "star"])
@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared"])
def test_it_keeps_the_contracts(graph, loss):
    check_method(Momentum, graph=graph, loss=loss)


@pytest.mark.parametrize("options", [{"mixes": 1}, {"mixes": 3, "closing_mixes": 0}, {"closing_mixes": 5}])
def test_variants_keep_the_contracts(options):
    check_method(partial(Momentum, **options), loss="logistic", batch="5")


def test_noise_in_the_sum_goes_out_once_a_round():
    heard = {}
    for mixes in (None, 4):
        tap = Tap(LoopbackTransport(5))
        settings = {"graph": "complete", "exchange": shared(), "transport": tap, "loss": "logistic"}
        simulate(Momentum(mixes=mixes), random_shards(5, 30, 7, 1), 12, **settings)
        heard[mixes] = len(tap.heard)
    assert heard[None] == heard[4] == 5 * 12
    check_no_leak(Momentum, graph="complete", exchange=shared())
    check_exchanges(partial(Momentum, mixes=4), graph="complete")


def sorted_shards(n=8, records=40, m=6, seed=0):
    """Records of a noisy linear rule, sorted by label before they are dealt: most ranks have one class."""
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((n * records, m))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(draw.random(n * records) < 0.1, -1, 1) * np.sign(X @ draw.standard_normal(m))
    parts = np.array_split(np.argsort(y, kind="stable"), n)
    assert sum(len({*y[part]}) == 1 for part in parts) >= n - 1
    return [(Dense(X[part]), y[part]) for part in parts]


@pytest.mark.parametrize("graph", ["ring", "torus:rows=2,columns=4", "complete"])
def test_it_converges_although_each_rank_has_one_class(graph):
    shards, penalty = sorted_shards(), Regulariser(l2=0.02)

    def slope(x):
        return np.mean([gradient(shard, x) for shard in shards], axis=0) + penalty.l2 * x

    best = scipy.optimize.root(slope, np.zeros(6), tol=1e-14).x
    off = []
    for rounds in (100, 400, 1600):
        engine = simulate(Momentum(beta=0.9), shards, rounds, graph=graph, loss="logistic", penalty=penalty)
        off.append(np.abs(models(engine) - best).max())
    assert np.abs(best).max() > 1.0
    assert off[2] < 1e-5
    assert off[2] < off[1] / 3 < off[0] / 9  # 1/t, as the ranks' disagreement


DOCUMENTS = "synthetic:samples=1200,features=40,density=0.25,zipf=0.8,topic=0.5"


def dealt(spec, deal, n=20):
    """Return the shards of n ranks, and the held-out rows and labels of all."""
    source = parse_source(spec, samples=None, normalize=True, test_fraction=0.5, seed=3, loss="logistic", deal=deal)
    shards = source.load_many(None, range(n), n)
    tests = np.vstack([to_dense(shard.test_rows).matrix for shard in shards])
    return [(shard.rows, shard.labels) for shard in shards], tests, np.concatenate([s.test_labels for s in shards])


def own_models(shards, graph, **options):
    method = Momentum(beta=0.8, eta=8.0, **options)
    return models(simulate(method, shards, 30, graph=graph, loss="logistic", penalty=Regulariser()))


def test_sorted_labels_on_a_ring_are_learned_like_even_shards_and_with_one_mix_are_not():
    """Documents are not centred, so one class alone pulls all weights its way."""
    accuracy = {}
    for deal in ("even", "sorted"):
        shards, rows, labels = dealt(DOCUMENTS, deal)
        for K in (None, 1):
            scores = rows @ own_models(shards, "ring", mixes=K).T
            accuracy[deal, K] = np.mean((scores > 0) == (labels[:, np.newaxis] > 0), axis=0)
    assert accuracy["even", None].min() > 0.72
    assert np.abs(accuracy["sorted", None] - accuracy["even", None]).max() < 0.01
    assert accuracy["even", 1].mean() > 0.71
    assert accuracy["sorted", 1].mean() < 0.6


UNLIKE = [(DOCUMENTS, "sorted"), (DOCUMENTS, "dirichlet:0.1"), ("synthetic:samples=1200,features=40,skew=3", "even")]


@pytest.mark.parametrize(("spec", "deal"), UNLIKE)
def test_on_a_ring_of_unlike_ranks_every_rank_has_the_model_of_the_complete_graph(spec, deal):
    """The 12 mixes of (8) leave a tenth of a disagreement, and every 12 more at most a tenth of that."""
    shards, _, _ = dealt(spec, deal)
    best = own_models(shards, "complete")[0]
    made = [own_models(shards, "ring", mixes=K) for K in (1, None, 24, 36)]
    off = [np.linalg.norm(found - best, axis=1).max() / np.linalg.norm(best) for found in made]
    assert off[0] > 0.5
    assert off[1] < 0.1
    assert off[3] < off[2] / 10 < off[1] / 100


def test_without_a_penalty_it_converges_at_the_rate_of_heavy_ball():
    """For curvatures in [c, C], eta = 4 / (sqrt C + sqrt c)^2 and beta = ((sqrt C - sqrt c)/(sqrt C + sqrt c))^2."""
    draw = np.random.default_rng(0)
    X = draw.standard_normal((200, 5)) * np.array([1.0, 0.7, 0.5, 0.3, 0.2])
    X /= np.abs(X).max() * np.sqrt(5)
    y = np.clip(X @ draw.standard_normal(5), -1, 1)
    shards = [(Dense(X[part]), y[part]) for part in np.array_split(np.arange(200), 5)]
    best, *_ = np.linalg.lstsq(X, y, rcond=None)
    c, C = np.linalg.eigvalsh(X.T @ X / 200)[[0, -1]]
    beta = ((np.sqrt(C) - np.sqrt(c)) / (np.sqrt(C) + np.sqrt(c))) ** 2
    method = Momentum(beta=beta, eta=4 / (np.sqrt(C) + np.sqrt(c)) ** 2)
    settings = {"graph": "complete", "loss": "squared", "penalty": Regulariser(), "lipschitz": 9.0}
    engine = simulate(method, shards, 200, **settings, stop=0)
    off = []
    for t in (20, 40):
        engine.advance(t)
        off.append(np.linalg.norm(models(engine)[0] - best))
    assert 1 < off[1] / off[0] / beta**10 < 3  # a double root: t beta^(t/2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"beta": 1.0}, "expected --beta below 1, found 1.0"), ({"eta": 0.0}, "expected --eta above 0, found 0.0")],
)
def test_settings_for_which_nothing_converges_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        simulate(Momentum(**options), random_shards(3, 5, 2, 0), 3)


def test_sampled_edges_are_refused():
    schedule = make_schedule(make_graph("complete", 4, 0), "metropolis", 1, 0)
    with pytest.raises(ConfigError, match="take sampled-dda"):
        simulate(Momentum(), random_shards(4, 5, 2, 0), 3, schedule=schedule)
