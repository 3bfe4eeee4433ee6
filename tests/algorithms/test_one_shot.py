"""One release and consensus: dense reference, contracts, the error that theory predicts."""

import numpy as np
import pytest

from dpmpi.algorithms.one_shot import OneShot
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.problem.penalties import Regulariser
from dpmpi.testing import models, noisy, random_shards, simulate


def means(shards):
    return np.array([rows.matrix.mean(axis=0) for rows, _ in shards])


@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize("rounds", [1, 8])
def test_is_the_dense_reference(graph, rounds):
    shards = random_shards(6, 20, 9, seed=4)
    engine = simulate(OneShot(), shards, rounds, graph=graph, loss="mean", penalty=Regulariser(l2=0.25))
    W = mixing_matrix(make_graph(graph, 6, 0), "metropolis")
    expected = np.linalg.matrix_power(W, rounds) @ means(shards) / 1.25
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "penalty",
    [Regulariser(), Regulariser(l2=0.5), Regulariser(l1=0.03), Regulariser(box=0.05), Regulariser(l2=0.1, ball=0.1)],
    ids=lambda p: p.describe() + str(p.domain),
)
def test_reaches_the_optimum_for_every_penalty(penalty):
    shards = random_shards(5, 20, 6, seed=3)
    mean = means(shards).mean(axis=0)
    x = models(simulate(OneShot(), shards, 200, loss="mean", penalty=penalty))
    assert np.ptp(x, axis=0).max() < 1e-10
    # No feasible point nearby is better, in any of many directions.
    draw, best = np.random.default_rng(0), x[0]
    value = 0.5 * np.sum((best - mean) ** 2) + penalty.value(best)
    others = best + 10.0 ** draw.uniform(-4, -1, (500, 1)) * draw.standard_normal((500, 6))
    assert all(0.5 * np.sum((y - mean) ** 2) + penalty.value(y) > value - 1e-9 for y in others)
    assert value < 0.5 * np.sum(mean**2)


def test_other_losses_are_refused():
    for loss in ("logistic", "squared", "hinge"):
        with pytest.raises(ConfigError, match="expected the loss mean"):
            simulate(OneShot(), random_shards(3, 10, 4, 0), 5, loss=loss)


def test_the_error_is_that_of_one_release_per_rank():
    """n ranks with noise sigma: E |x - mean|^2 = m sigma^2 / n."""
    n, m, sigma, runs = 5, 50, 0.3, 40
    shards = random_shards(n, 20, m, seed=3)
    mean, errors = means(shards).mean(axis=0), []
    for k in range(runs):
        settings = {"graph": "complete", "loss": "mean", "penalty": Regulariser()}
        engine = simulate(OneShot(), shards, 3, mechanism=noisy("gaussian", sigma, k), **settings)
        errors.append(np.sum((models(engine)[0] - mean) ** 2))
    spread = np.sqrt(2.0 / (m * runs))  # of a mean of chi-squares, relative
    assert np.mean(errors) == pytest.approx(m * sigma**2 / n, rel=5 * spread)
