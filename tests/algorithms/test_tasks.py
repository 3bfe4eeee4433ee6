"""Losses of classes, numbers and counts under all methods that take them: contracts, dense references, refusals."""

import numpy as np
import pytest

from dpmpi.algorithms import ALGORITHMS
from dpmpi.algorithms.dda import DpDda
from dpmpi.algorithms.momentum import Momentum
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.problem.losses import LOSSES, Loss, Softmax, weighted
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.task import Task
from dpmpi.testing import (
    check_allocations,
    check_exchanges,
    check_no_leak,
    check_releases,
    check_resume,
    check_sensitivity,
    check_work,
    models,
    random_shards,
    simulate,
)

THREE = Task("multiclass", ("a", "b", "c"))
COMPLETE = {"graph": "complete"}
REFUSING = ("one-shot", "dvp-admm", "r-admm")
"""Methods that need one score: the mean of points, and noise inside an objective."""
TAKING = [name for name in ALGORITHMS if name not in REFUSING]
NEEDS = {"rcd": COMPLETE, "ldp-gd": COMPLETE}
EXACT = ("admm", "pvp-admm")
"""Methods that minimise exactly: nothing may be clipped."""


def contracts(make, settings, exact, rounds=6):
    lipschitz = 1.5 if exact else 0.5
    check_no_leak(make, rounds=rounds, lipschitz=lipschitz, **settings)
    check_sensitivity(make, rounds=3, lipschitz=lipschitz, normalized=exact, **settings)
    for check in (check_releases, check_exchanges, check_resume, check_work):
        check(make, rounds=rounds, lipschitz=lipschitz, **settings)


@pytest.mark.parametrize("name", TAKING)
def test_softmax_keeps_the_contracts(name):
    contracts(ALGORITHMS[name], {"loss": "softmax"} | NEEDS.get(name, {}), name in EXACT)


@pytest.mark.parametrize("loss", ["huber", "poisson", weighted(Softmax(3), {"b": 4.0}, THREE)], ids=str)
@pytest.mark.parametrize("name", ["momentum", "dp-dda", "dp-dgd"])
def test_other_losses_keep_the_contracts(name, loss):
    task = {} if isinstance(loss, str) else {"task": THREE}
    contracts(ALGORITHMS[name], {"loss": loss} | task, exact=False)


@pytest.mark.parametrize("name", ["momentum", "dp-dda", "dp-dgd"])
@pytest.mark.parametrize("loss", ["softmax", "huber", "poisson"])
def test_a_round_allocates_no_vector(name, loss):
    check_allocations(ALGORITHMS[name], loss=loss)


@pytest.mark.parametrize("name", ["momentum", "dp-dda"])
@pytest.mark.parametrize("batch", ["1", "5", "fixed:4"])
def test_batches_of_softmax_keep_the_contracts(name, batch):
    contracts(ALGORITHMS[name], {"loss": "softmax", "batch": batch}, exact=False)


@pytest.mark.parametrize("name", REFUSING)
def test_methods_that_need_one_score_refuse_several_in_one_line(name):
    shards = random_shards(3, 10, 4, 0, THREE)
    with pytest.raises(ConfigError) as caught:
        simulate(ALGORITHMS[name](), shards, 3, loss="softmax", lipschitz=1.5)
    assert "\n" not in str(caught.value)
    assert "score" in str(caught.value) or "loss mean" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "settings", "message"),
    [
        ("admm", {}, {"lipschitz": 0.7}, r"gradients of 3 scores .* found 0\.7: give --lipschitz 1\.415"),
        ("ip-admm", {"inner_noise": "once"}, {"lipschitz": 0.7}, r"3 scores .* --inner-noise once, found 0\.7"),
        ("rcd", {"coordinates": 2}, COMPLETE, "whole rows of 3 scores, found --coordinates 2"),
    ],
)
def test_settings_that_several_scores_do_not_allow_are_refused(name, options, settings, message):
    with pytest.raises(ConfigError, match=message):
        simulate(ALGORITHMS[name](**options), random_shards(3, 10, 4, 0, THREE), 3, loss="softmax", **settings)


def test_a_coordinate_alone_would_break_the_bound_of_a_pass():
    """A pass over entries of a softmax gradient can move further than one whole gradient: the slopes turn."""

    def slopes(x):
        return Softmax(3).slope(np.array([x]), np.array([0.0]))[0]

    clipped = [0.9 * s / np.linalg.norm(s) for s in (slopes([-9.0, 9.0, -9.0]), slopes([-9.0, -9.0, 9.0]))]
    assert np.linalg.norm([clipped[0][0], clipped[0][1], clipped[1][2]]) > 1.2 * 0.9


# --- dense references ------------------------------------------------------------------------------------------------


def gradient(shard, x, lipschitz):
    """Return the clipped softmax gradient of a shard, in matrices."""
    X, y = shard[0].matrix, shard[1].astype(int)
    s = X @ x.reshape(X.shape[1], -1)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    c = p - np.eye(p.shape[1])[y]
    c *= np.minimum(1.0, lipschitz / (np.linalg.norm(c, axis=1) * np.linalg.norm(X, axis=1)))[:, None]
    return (X.T @ c).reshape(-1) / len(y)


@pytest.mark.parametrize("lipschitz", [0.5, 2.0])
def test_momentum_with_softmax_is_the_dense_reference(lipschitz):
    n, m, rounds, beta, eta = 6, 9, 40, 0.7, 1.5
    shards, graph = random_shards(n, 20, m, 4, THREE), make_graph("erdos-renyi:p=0.5", n, 1)
    method = Momentum(beta=beta, eta=eta, mixes=1, closing_mixes=0)
    settings = {"graph": graph, "loss": "softmax", "lipschitz": lipschitz, "penalty": Regulariser()}
    W, z, e, x = mixing_matrix(graph, "metropolis"), *(np.zeros((n, 3 * m)) for _ in range(3))
    for _ in range(rounds):
        z = W @ (z + [gradient(shard, row, lipschitz) for shard, row in zip(shards, x, strict=True)])
        e = beta * e + z
        x = -eta * e
    np.testing.assert_allclose(models(simulate(method, shards, rounds, **settings)), x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lipschitz", [0.5, 2.0])
def test_dual_averaging_with_softmax_is_the_dense_reference(lipschitz):
    n, m, rounds, gamma = 6, 9, 40, 2.0
    penalty = Regulariser(l1=0.01, l2=0.05)
    shards, graph = random_shards(n, 20, m, 4, THREE), make_graph("erdos-renyi:p=0.5", n, 1)
    settings = {"graph": graph, "loss": "softmax", "lipschitz": lipschitz, "penalty": penalty}
    engine = simulate(DpDda(gamma=gamma, weighting="linear", gamma_growth="constant"), shards, rounds, **settings)
    W, z, total, A = mixing_matrix(graph, "metropolis"), np.zeros((n, 3 * m)), np.zeros((n, 3 * m)), 0.0
    for t in range(1, rounds + 1):
        A += t
        v = -z
        x = np.sign(v) * np.maximum(np.abs(v) - A * penalty.l1, 0.0) / (A * penalty.l2 + gamma)
        total += t * x
        z = W @ (z + t * np.array([gradient(shard, row, lipschitz) for shard, row in zip(shards, x, strict=True)]))
    np.testing.assert_allclose(models(engine), total / A, rtol=0, atol=1e-10)


def test_methods_reach_the_softmax_optimum():
    from dpmpi.problem.optimum import find_optimum  # noqa: PLC0415

    shards, penalty = random_shards(4, 30, 5, 1, THREE), Regulariser(l2=0.1)
    best = find_optimum(shards, 4, Softmax(3), penalty, 15, lambda buffer: None).x
    for method, rounds in ((Momentum(beta=0.5, eta=1.0), 200), (ALGORITHMS["admm"](average="last"), 150)):
        found = models(simulate(method, shards, rounds, loss="softmax", penalty=penalty, lipschitz=1.5))
        np.testing.assert_allclose(found, np.tile(best, (4, 1)), atol=2e-3)


def test_a_loss_of_one_s_own_runs_under_a_method():
    class Pinball(Loss):
        """The median, and any other quantile, of numbers."""

        kinds = ("regression",)

        def value(self, scores, labels):
            return np.maximum(0.9 * (labels - scores), 0.1 * (scores - labels))

        def slope(self, scores, labels):
            return np.where(scores < labels, -0.9, 0.1)

    check_no_leak(Momentum, loss=Pinball())
    check_sensitivity(Momentum, loss=Pinball())
    engine = simulate(Momentum(), random_shards(3, 10, 4, 0), 20, loss=Pinball())
    assert np.abs(models(engine)).max() > 0


def test_every_loss_of_the_table_is_for_a_task():
    assert {kind for loss in LOSSES.values() for kind in loss.kinds} == {"binary", "multiclass", "regression", "counts"}
