"""Settings that are derived from public facts: the formulas, their limits, and what they are made of."""

import math
from itertools import product

import numpy as np
import pytest
from plans import plan_of, settings_of

from dpmpi.commands.plan import untuned
from dpmpi.errors import ConfigError
from dpmpi.runtime.config import Config
from dpmpi.runtime.derived import derived
from dpmpi.runtime.plan import noise_levels
from dpmpi.runtime.settings import Settings

MU = 0.2681  # mu(1, 1e-5), as published


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize(("place", "c"), [("local", 20**0.5), ("sum", (20 / 19) ** 0.5)])
def test_the_formulas(place, c, loss):
    for N, m in product((300, 10_000, 32_561, 500_000), (10, 123, 47_236)):
        L, part = {"logistic": (0.5, 1.0), "hinge": (1.0, 0.35)}[loss]
        tau = part * (2 * L * 2 * c / (N * MU)) ** -1.5 * (10 / m) ** 0.5
        T = int(np.clip(np.ceil(np.sqrt(6 * tau / 8)), 10, 100))
        found = derived(20, N, m, loss, 1.0, 1e-5, place, 1)
        assert (found.rounds, found.clip) == (T, L)
        assert found.beta == pytest.approx(1 - 6 / T)
        assert found.eta == pytest.approx(min(8, 6 * tau / T**2), rel=1e-3)


def test_the_noise_that_it_reckons_with_is_that_of_the_plan():
    """(2): sigma of a rank over sqrt(n) is L nu sqrt(T), so tau tells nu."""
    n, q, m = 20, 500, 30
    T, eta, _, clip = derived(n, n * q, m, "logistic", 0.5, 1e-5)
    config = Config(algorithm="momentum", loss="logistic", rounds=T, epsilon=0.5, delta=1e-5, lipschitz=clip)
    sigma, *_ = noise_levels(plan_of(Settings.of(config), [q] * n, m), cached=False)
    nu = sigma / math.sqrt(n) / (clip * math.sqrt(T))
    assert 1 < T * T * eta / 6 / ((2 * clip * nu) ** -1.5 * math.sqrt(10 / m)) < 1 + 1e-4  # sigma is rounded up


def test_more_records_or_a_larger_epsilon_never_go_less_far():
    def far(N, epsilon):
        found = derived(20, N, 50, "logistic", epsilon, 1e-6)
        return found.eta * found.rounds / (1 - found.beta)

    reach = [far(N, 1.0) for N in (100, 1000, 10_000, 100_000, 1_000_000)]
    assert reach == sorted(reach)
    reach = [far(10_000, epsilon) for epsilon in (0.1, 0.2, 1.0, 5.0)]
    assert reach == sorted(reach)


def test_noise_in_the_sum_with_all_but_one_colluding_is_local_noise():
    assert derived(20, 9000, 9, "hinge", 1.0, 1e-5, "sum", 19) == derived(20, 9000, 9, "hinge", 1.0, 1e-5)


@pytest.mark.parametrize("facts", [(20, 9000, 9, "mean"), (0, 9000, 9, "hinge"), (20, 0, 9, "hinge")])
def test_facts_without_a_rule_are_refused(facts):
    with pytest.raises(ConfigError, match="expected"):
        derived(*facts, 1.0, 1e-5)


def test_a_plan_shows_settings_that_a_run_accepts():
    settings = settings_of("--loss", "logistic", "--epsilon", 1)
    shown = untuned(plan_of(settings, [500] * 20, 68), 68)
    expected = derived(20, 10_000, 68, "logistic", 1.0, 1e-5)
    assert (shown["rounds"], shown["lipschitz"]) == (expected.rounds, expected.clip)
    assert (shown["eta"], shown["beta"]) == pytest.approx((expected.eta, expected.beta), rel=1e-3)
    flags = [word for name, value in shown.items() for word in (f"--{name}", value)]
    plan = plan_of(settings_of("--loss", "logistic", "--epsilon", 1, *flags), [500] * 20, 68)
    plan.check()


@pytest.mark.parametrize("flags", [("--loss", "squared", "--epsilon", 1), ("--noise", 1)])
def test_where_there_is_no_rule_a_plan_shows_none(flags):
    assert untuned(plan_of(settings_of(*flags), [500] * 5, 68), 68) is None
    assert untuned(plan_of(settings_of("--epsilon", 1), [500] * 5, 68), None) is None
