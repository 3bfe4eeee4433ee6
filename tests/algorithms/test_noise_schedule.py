"""Noise over the rounds: the weights with which it reaches a model, the least noise for its price, contracts, runs."""

import json
import math
from functools import partial

import numpy as np
import pytest
from plans import plan_of, settings_of

from dpmpi.algorithms.bases.noise_schedule import relative_noise
from dpmpi.algorithms.dda import Dda, DpDda
from dpmpi.algorithms.momentum import Momentum
from dpmpi.commands.verify import verify
from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.mechanisms import NoNoise
from dpmpi.privacy.releases import tally
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.run import main
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.output.coefficient_noise import mean_model_noise
from dpmpi.testing import check_method, models, simulate

METHODS = [
    partial(DpDda, gamma=3.0),
    partial(DpDda, gamma=3.0, weighting="constant"),
    partial(Dda, gamma=2.0),
    partial(Momentum, beta=0.8, eta=0.5),
]
LIMITS = [
    (partial(DpDda, gamma=3.0), math.sqrt(105 / 128)),
    (partial(DpDda, gamma=3.0, weighting="constant"), math.sqrt(3 / 4)),
    (partial(Dda, gamma=2.0), math.sqrt(2 / 3)),
    (Momentum, (1 - (1 - math.exp(-6)) / 6) / math.sqrt(1 - (1 - math.exp(-6)) / 3 + (1 - math.exp(-12)) / 12)),
]
SUM = ("--graph", "complete", "--exchange", "shares", "--noise-in", "sum")


class Impulse(NoNoise):
    """Adds 1 to every coordinate of one release."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def perturb(self, value, scale=1.0):
        self.left -= 1
        if self.left == 0:
            value += 1.0


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("graph", ["complete", "ring"])
@pytest.mark.parametrize("make", METHODS)
def test_the_noise_of_a_round_reaches_the_model_with_its_weight(make, graph, l2):
    """Records of zeros have a gradient of zero, so that the mean model is the answer to an impulse in round s."""
    shards, T = [(Dense(np.zeros((2, 3))), np.ones(2))] * 4, 9
    answers = []
    for s in range(1, T + 1):
        engine = simulate(
            make(), shards, T, graph=graph, penalty=Regulariser(l2=l2), mechanism=lambda *_, s=s: Impulse(s)
        )
        mean = models(engine).mean(axis=0)
        assert np.ptp(mean) == 0.0
        answers.append(-mean[0])
    c = make().noise_weights(engine.seats[0].agent.terms)
    np.testing.assert_allclose(np.array(answers) / max(answers), c / c.max(), rtol=0, atol=1e-12)
    assert min(answers) >= 0.0


@pytest.mark.parametrize(("make", "limit"), LIMITS)
def test_the_ratio_to_equal_noise_is_the_formula(make, limit):
    """(3), its limits (6) of dual averaging, and (4) within four thousandths of it at the price of equal noise."""
    T = 20_000
    terms = plan_of(settings_of("--rounds", T, "--epsilon", 1, "--penalty", "none"), [100] * 2, 3).terms(0)
    c = make().noise_weights(terms)
    least = c.sum() / math.sqrt(T * np.square(c).sum())
    assert least == pytest.approx(limit, rel=2e-3)
    r = relative_noise(c)
    assert np.sum(r**-2.0) == pytest.approx(T, rel=1e-12)
    assert len(set(r.tolist())) < 128
    ratio = np.linalg.norm(c * r) / np.linalg.norm(c)
    assert least * (1 - 1e-4) <= ratio <= least * 1.004  # the last weight, 0, is taken as the least of the others
    rng = np.random.default_rng(0)
    for _ in range(20):  # nothing else at this price has less
        other = r * np.exp(rng.normal(0, 0.3, T))
        other *= math.sqrt(np.mean(other**-2.0))
        assert np.linalg.norm(c * other) > np.linalg.norm(c * r)


@pytest.mark.parametrize(("algorithm", "rounds", "ratio"), [("dp-dda", 500, 0.907), ("momentum", 100, 0.966)])
@pytest.mark.parametrize("flags", [(), SUM])
def test_models_have_less_noise_at_the_price_of_equal_noise(algorithm, rounds, ratio, flags):
    """By the reckoning of runs, which lets an agent without data go through all rounds."""
    common = ("--algorithm", algorithm, "--rounds", rounds, "--epsilon", 1, "--penalty", "none", *flags)
    plans = [plan_of(settings_of(*common, "--noise-schedule", kind), [500] * 3, 9) for kind in ("optimal", "constant")]
    optimal, equal = (mean_model_noise(plan, noise_levels(plan, cached=False)) for plan in plans)
    assert optimal / equal == pytest.approx(ratio, abs=6e-4)


def test_weights_without_any_reach_have_equal_noise():
    assert relative_noise(np.zeros(1)).tolist() == [1.0]


@pytest.mark.parametrize("make", [partial(DpDda, gamma=2.0), Momentum])
def test_the_contracts_hold(make):
    check_method(partial(make, noise_schedule="optimal"))


@pytest.mark.parametrize("algorithm", ["momentum", "dp-dda", "dda"])
@pytest.mark.parametrize("flags", [(), SUM])
def test_at_full_batches_the_price_is_that_of_equal_noise(algorithm, flags):
    common = ("--algorithm", algorithm, "--rounds", 40, "--epsilon", 1, "--loss", "logistic", *flags)
    equal, optimal = (
        plan_of(settings_of(*common, "--noise-schedule", kind), [500] * 5, 9) for kind in ("constant", "optimal")
    )
    assert noise_levels(optimal, cached=False) == pytest.approx(noise_levels(equal, cached=False), rel=2e-6)
    assert equal.noise_scales == (1.0, 1.0)
    assert optimal.noise_scales[0] < 1.0 < optimal.noise_scales[1]
    assert equal.release_count(0) == optimal.release_count(0) == 40


@pytest.mark.parametrize("batch", ["50", "fixed:50"])
def test_sampled_batches_are_priced(batch):
    flags = ("--epsilon", 1, "--batch", batch, "--rounds", 30, "--noise-schedule", "optimal")
    plan = plan_of(settings_of(*flags), [500] * 3, 9)
    spent = tally(plan.releases(plan.terms(0), noise_levels(plan, cached=False)[0]))
    assert len(spent) > 5
    assert 0.98 < certified_epsilon(spent, 1e-5) <= 1.0


def check_all(kind, *flags):
    plan = plan_of(settings_of("--algorithm", "dp-dda", "--noise-schedule", kind, *flags), [500] * 4, 9)
    plan.check()
    plan.settings.noise.check_room(plan, max(noise_levels(plan, cached=False)))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--epsilon", 1, "--algorithm", "sampled-dda"), "found sampled edges: use constant"),
        (("--epsilon", 1, "--calibration", "theorem"), "expected the same noise in every round"),
        (("--noise", 70 * math.sqrt(3) * 2.0**-40, *SUM), r"expected a deviation of 64 to 2\^50 steps"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_run(flags, words):
    """A part of 70 steps is refused too: some rounds have fewer than 64."""
    check_all("constant", *flags)
    with pytest.raises(ConfigError, match=words):
        check_all("optimal", *flags)


@pytest.mark.parametrize("algorithm", ["momentum", "dp-dda"])
@pytest.mark.parametrize("flags", [(), SUM], ids=["local", "sum"])
def test_a_run_is_verified_and_a_budget_ends_where_its_releases_say(algorithm, flags, tmp_path):
    data = ("--data", "synthetic:samples=400,features=4", "--rounds", "12", "--loopback", "4", "--quiet")
    common = ("--algorithm", algorithm, *data, "--noise-schedule", "optimal", "--delta", "1e-4", *flags)
    for name, more in (("whole", ("--epsilon", "1")), ("less", ("--noise", "0.05", "--budget", "0.5"))):
        assert main([*common, *more, "--out", str(tmp_path / name)]) == 0
        assert [list(one.problems) for one in verify(tmp_path / name)] == [[]] * 4
    less = json.loads((tmp_path / "less" / "summary.json").read_text())
    assert all(0 < rank["stopped"] <= 12 for rank in less["per_rank"])
    assert less["privacy"]["epsilon"] <= 0.5
