"""Settings that are derived from public facts: the formulas, their limits, and where they end up."""

import math
from itertools import product

import numpy as np
import pytest
from plans import plan_of, settings_of

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import ConfigError
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.plan import noise_levels

MU = 0.2681  # mu(1, 1e-5), as published
SUM = ("--exchange", "shares", "--graph", "complete", "--noise-in", "sum")


def derived(records, m, *flags):
    """The plan of a run on ranks with so many records, and a model of length m."""
    return plan_of(settings_of("--intercept", "none", *flags), records, m)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize(("flags", "c"), [((), 20**0.5), (SUM, (20 / 19) ** 0.5)])
def test_the_formulas(flags, c, loss):
    for q, m in product((15, 500, 1628, 25_000), (10, 123, 47_236)):
        L, part = {"logistic": (0.5, 1.0), "hinge": (1.0, 0.35)}[loss]
        tau = part * (2 * L * 2 * c / (20 * q * MU)) ** -1.5 * (10 / m) ** 0.5
        T = int(np.clip(np.ceil(np.sqrt(6 * tau / 8)), 10, 100))
        plan = derived([q] * 20, m, "--loss", loss, "--epsilon", 1, *flags)
        assert (plan.rounds, plan.config.lipschitz, plan.config.penalty) == (T, L, "none")
        assert plan.method.beta == pytest.approx(1 - 6 / T, rel=1e-3)
        assert plan.method.eta == pytest.approx(min(8, 6 * tau / T**2), rel=3e-3)


@pytest.mark.parametrize("weigh", ["records", "ranks"])
@pytest.mark.parametrize("flags", [(), SUM])
def test_the_noise_that_it_reckons_with_is_that_of_the_plan(flags, weigh):
    """(1), (2): the noise of the mean gradient is L nu sqrt(T), so tau tells nu."""
    records, m = [35, 35, 35, 351], 30
    plan = derived(records, m, "--loss", "logistic", "--epsilon", 0.5, "--weigh", weigh, *flags)
    sigmas, n, T, L = noise_levels(plan, cached=False), 4, plan.rounds, plan.lipschitz
    mean = sigmas[0] * math.sqrt(4 / 3) / n if flags else math.hypot(*sigmas) / n
    tau = (2 * mean / math.sqrt(T)) ** -1.5 * math.sqrt(10 / m)
    assert plan.method.flow(plan.terms(0)) == pytest.approx(tau, rel=2e-3)
    assert L == 0.5


def test_weights_by_records_give_all_ranks_the_same_noise():
    plan = derived([35, 35, 35, 351], 30, "--epsilon", 1)
    assert sum(plan.weights) == pytest.approx(4)
    assert plan.weights[3] / plan.weights[0] == pytest.approx(351 / 35)
    assert len(set(noise_levels(plan, cached=False))) == 1
    assert derived([57] * 7, 3, "--epsilon", 1).weights == (1.0,) * 7
    assert derived([35, 351], 3, "--weigh", "ranks").weights == (1.0, 1.0)


def test_more_records_or_a_larger_epsilon_never_go_less_far():
    def far(q, epsilon):
        plan = derived([q] * 20, 50, "--loss", "logistic", "--epsilon", epsilon, "--delta", 1e-7)
        return plan.method.flow(plan.terms(0))

    reach = [far(q, 1.0) for q in (5, 50, 500, 5000, 50_000)]
    assert reach == sorted(reach)
    reach = [far(500, epsilon) for epsilon in (0.1, 0.2, 1.0, 5.0)]
    assert reach == sorted(reach)


def test_noise_in_the_sum_with_all_but_one_colluding_is_local_noise():
    flags = ("--epsilon", 1)
    one, other = derived([450] * 20, 9, *flags), derived([450] * 20, 9, *flags, *SUM, "--colluders", 19)
    assert (one.rounds, one.method) == (other.rounds, other.method)


def test_what_is_given_stays():
    flags = ("--rounds", 77, "--eta", 0.1234567, "--beta", 0.2, "--lipschitz", 3, "--penalty", "l2:0.1", "--mixes", 2)
    plan = derived([500] * 20, 68, "--epsilon", 1, *flags)
    assert (plan.rounds, plan.method.eta, plan.method.beta, plan.method.mixes) == (77, 0.1234567, 0.2, 2)
    assert (plan.lipschitz, plan.settings.penalty.l2) == (3.0, 0.1)
    assert plan.derivation() is None


def test_auto_is_what_is_not_given():
    words = ("rounds", "lipschitz", "penalty", "beta", "eta", "mixes", "closing-mixes")
    flags = [word for name in words for word in (f"--{name}", "auto")]
    one, other = derived([500] * 20, 68, "--epsilon", 1), derived([500] * 20, 68, "--epsilon", 1, *flags)
    assert one.config.digest() == other.config.digest()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_config_toml_holds_what_was_derived_and_gives_the_same_plan(algorithm, tmp_path):
    graph = "complete" if algorithm in ("ldp-gd", "rcd", "dp-admm") else "ring"
    data = ("--data", "mean:samples=900") if algorithm == "one-shot" else ("--loss", "logistic")
    settings = settings_of("--algorithm", algorithm, "--graph", graph, "--epsilon", 1, *data)
    plan = plan_of(settings, [30, 30, 40], 8)
    plan.check()
    text = plan.config.to_toml()
    again = from_text(text, tmp_path / "config.toml", {})
    assert again.digest() == plan.config.digest()
    assert "None" not in text
    assert (again.rounds, again.penalty) == (plan.rounds, plan.config.penalty)
    assert "auto" not in (again.penalty, again.batch, again.intercept)
    second = plan_of(settings_of("--config", write(tmp_path, text)), [30, 30, 40], 8)
    assert [second.terms(rank) for rank in range(3)] == [plan.terms(rank) for rank in range(3)]
    assert second.derivation() is None or "mixes" in second.derivation()


def write(folder, text):
    (folder / "config.toml").write_text(text)
    return folder / "config.toml"


def test_the_derivation_in_words():
    plan = plan_of(settings_of("--loss", "logistic", "--epsilon", 1), [497] * 20, 69)
    assert plan.derivation() == "39 rounds, beta 0.8462, eta 7.719, clip 0.5, 13 mixes"


def test_an_intercept_is_a_number_none_or_auto():
    assert settings_of("--intercept", "0.5").constant == 0.5
    assert settings_of().dimension(7) == 8
    assert settings_of("--intercept", "none").dimension(7) == 7
    for wrong in ("-1", "0", "nan", "much"):
        with pytest.raises(ConfigError, match="expected --intercept auto, none or a number above 0"):
            settings_of("--intercept", wrong)
    with pytest.raises(ConfigError, match="expected no --intercept for points without labels"):
        settings_of("--data", "mean", "--intercept", "0.3")
