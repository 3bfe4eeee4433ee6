"""What the papers prescribe, against the certified accountants."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace

from dpmpi.core import Planned, Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_delta, gdp_mu
from dpmpi.privacy.theorems import (
    THEOREMS,
    Claim,
    consensus_budget,
    consensus_epsilon,
    local_epsilon,
    local_gamma,
    multistep_epsilon,
    multistep_sigma,
    theorem_epsilon,
    theorem_noise,
)
from dpmpi.run import main

FULL = Sampling("full", 100, 100)


def multistep_constant(eps, delta):
    """The smallest c0 with which [HG] Theorem 6 is true: the noise then is sqrt(t l)/mu(eps, delta)."""
    return eps / (gdp_mu(eps, delta) * math.sqrt(2 * math.log(1.25 / delta)))


TARGETS = [(eps, delta) for eps in (0.05, 0.5, 1.0, 4.0, 20.0) for delta in (1e-2, 1e-5, 1e-9)]


@pytest.mark.parametrize(("eps", "delta"), TARGETS)
def test_the_consensus_budget_is_valid_and_loose(eps, delta):
    kappa = consensus_budget(eps, delta)
    assert gdp_delta(math.sqrt(kappa), eps) <= delta
    loose = gdp_mu(eps, delta) / math.sqrt(kappa)
    assert loose > 1
    if 0.5 <= eps <= 1:
        assert 1.19 < loose < 2.2
    assert consensus_epsilon(kappa, delta) == pytest.approx(eps)


def test_the_consensus_budget_as_releases():
    eps, delta = 1.0, 1e-3
    moves = 1 / np.arange(1, 101)  # sensitivities that fall like the step
    noise = np.sqrt(np.sum(moves**0.5) * moves**1.5 / consensus_budget(eps, delta))
    spending = {ReleaseEvent("gaussian", s, m, FULL): 1 for s, m in zip(noise, moves, strict=True)}
    certified = certified_epsilon(spending, delta)
    assert certified < 0.8 * eps
    assert consensus_epsilon(math.fsum((moves / noise) ** 2), delta) == pytest.approx(eps)


@pytest.mark.parametrize(("eps", "delta"), [(0.05, 1e-2), (0.5, 1e-5), (1.0, 1e-5), (1.0, 1e-9)])
def test_the_constant_one_is_enough_up_to_epsilon_one(eps, delta):
    sigma = multistep_sigma(30, 10, eps, delta)
    assert certified_epsilon({ReleaseEvent("gaussian", sigma, 1.0, FULL): 300}, delta) <= eps
    assert multistep_constant(eps, delta) <= 1
    assert multistep_epsilon(sigma, 30, 10, delta) == pytest.approx(eps)


@pytest.mark.parametrize(("eps", "delta"), TARGETS)
def test_the_right_constant_spends_the_target_exactly(eps, delta):
    sigma = multistep_sigma(30, 10, eps, delta, c0=multistep_constant(eps, delta))
    assert certified_epsilon({ReleaseEvent("gaussian", sigma, 1.0, FULL): 300}, delta) == pytest.approx(eps, rel=1e-6)
    assert sigma == pytest.approx(math.sqrt(300) / gdp_mu(eps, delta))


def test_known_constants_and_that_none_serves_every_epsilon():
    assert multistep_constant(1.0, 1e-5) == pytest.approx(0.770, abs=5e-4)
    assert multistep_constant(0.5, 1e-5) == pytest.approx(0.726, abs=5e-4)
    sigma = multistep_sigma(30, 10, 20.0, 1e-5)
    assert certified_epsilon({ReleaseEvent("gaussian", sigma, 1.0, FULL): 300}, 1e-5) > 20
    assert multistep_constant(1e4, 1e-5) > 10


def test_local_budgets():
    betas, steps = [1.02**k for k in range(1, 101)], [0.1] * 100
    printed = local_epsilon(betas, steps, 0.02)
    proven = local_epsilon(betas, steps, 0.02, dimension=14)
    assert proven == pytest.approx(14 * printed) == pytest.approx(8.92, rel=0.01)
    events = {ReleaseEvent("laplace", 1 / beta, 0.1 * 0.02 * 14, FULL): 1 for beta in betas}  # every coordinate moves
    assert certified_epsilon(events, 0.0) == pytest.approx(proven)
    relaxed = local_epsilon(betas, steps, 0.02, dimension=14, delta=1e-5)
    every = {ReleaseEvent("laplace", 1 / beta, 0.1 * 0.02, FULL): 14 for beta in betas}
    assert certified_epsilon(every, 1e-5) <= relaxed < proven
    assert certified_epsilon(every, 1e-5) > local_epsilon(betas, steps, 0.02, delta=1e-5)  # the factor d is needed


@pytest.mark.parametrize(("beta", "omega", "shift"), [(2.0, 1.0, 0.1), (9.0, 0.5, 0.3), (0.5, 4.0, 3.9)])
def test_local_gamma_is_the_printed_integral(beta, omega, shift):
    def mass(start, end):
        """The chance of 0 <= x <= (omega - shift)/2, x uniform on [start, end] plus noise."""
        noise = laplace(scale=1 / beta)

        def within(y):
            return noise.cdf((omega - shift) / 2 - y) - noise.cdf(-y)

        return quad(within, start, end, points=[0.0, (omega - shift) / 2], epsrel=1e-12)[0] / omega

    P, Q = mass(0, omega), mass(-shift, omega - shift)
    expected = math.log(math.exp(beta * shift) * (1 - 2 * P) + 2 * Q) / (beta * shift)
    assert local_gamma(beta, omega, shift) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "call",
    [lambda: consensus_budget(0.0, 1e-5), lambda: consensus_budget(1.0, 1.0), lambda: multistep_sigma(0, 1, 1.0, 1e-5),
     lambda: multistep_sigma(1, 1, 1.0, 1e-5, c0=0.0),
     lambda: local_epsilon([1.0], [1.0, 1.0], 0.1), lambda: local_epsilon([-1.0], [1.0], 0.1),
     lambda: local_epsilon([1.0], [1.0], 0.1, dimension=0), lambda: local_epsilon([1.0], [1.0], 0.1, delta=1.0),
     lambda: local_gamma(1.0, 1.0, 1.0)],
)  # fmt: skip
def test_what_the_theorems_do_not_cover_is_refused(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_where_the_theorems_are_silent():
    assert consensus_epsilon(-1.0, 1e-5) is None
    assert consensus_epsilon(1.0, 0.0) is None
    assert consensus_epsilon(0.0, 1e-5) == 0
    assert multistep_epsilon(0.0, 10, 1, 1e-5) is None


# --- the theorems of a run -------------------------------------------------------------------------------------------

PLANS = {"constant": [Planned(0.02, count=50)], "falling": [Planned(0.02 / t, t**-0.75) for t in range(1, 51)]}


def claim(plan):
    return Claim(PLANS[plan], 1.0, 50, 100, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("algorithm", "plan"), sorted({*product(THEOREMS, PLANS)} - {("dp-dda", "falling"), ("sampled-dda", "falling")})
)
def test_what_is_prescribed_is_what_is_claimed(algorithm, plan):
    sigma = theorem_noise(algorithm, claim(plan), 0.5)
    assert theorem_epsilon(algorithm, claim(plan), sigma) == pytest.approx(0.5)
    assert theorem_epsilon(algorithm, claim(plan), 2 * sigma) < 0.5
    assert theorem_epsilon(algorithm, claim(plan), 0.0) is None


def test_the_theorem_of_dual_averaging_is_about_equal_noise():
    with pytest.raises(ConfigError, match="expected the same noise in every round for the theorem"):
        theorem_noise("dp-dda", claim("falling"), 0.5)
    assert theorem_epsilon("dp-dda", claim("falling"), 1.0) is None


def test_consensus_descent_spends_its_budget_exactly():
    sigma = theorem_noise("dp-dgd", claim("falling"), 1.0)
    spent = sum((0.02 / t / (sigma * t**-0.75)) ** 2 for t in range(1, 51))
    assert spent == pytest.approx(consensus_budget(1.0, 1e-5))
    assert spent < gdp_mu(1.0, 1e-5) ** 2  # it would be allowed to spend more


def test_multistep_admm_multiplies_the_sensitivity():
    assert theorem_noise("ip-admm", claim("constant"), 1.0) == pytest.approx(0.02 * multistep_sigma(5, 10, 1.0, 1e-5))


def test_local_privacy_counts_half_of_the_sensitivity_in_one_coordinate():
    b = theorem_noise("ldp-admm", claim("constant"), 1.0) / math.sqrt(2)
    assert 50 * (0.01 / b) == pytest.approx(1.0)


def test_no_theorem_no_noise():
    with pytest.raises(ConfigError, match=r"theorem prescribes .*, found rcd"):
        theorem_noise("rcd", claim("constant"), 1.0)
    assert theorem_epsilon("rcd", claim("constant"), 1.0) is None


@pytest.mark.parametrize(("algorithm", "warned"), [("dp-dda", True), ("dp-dgd", False)])
def test_the_table_warns_of_claims_that_do_not_hold(tmp_path, capsys, algorithm, warned):
    """One record a round at the noise of the first theorem certifies more than it claims; the second is valid."""
    batch = ["--batch", "1"] if warned else []
    flags = [
        "--loopback", "3", "--algorithm", algorithm, "--data", "synthetic:samples=1200,features=3", "--rounds", "50",
        "--loss", "logistic", "--epsilon", "1", "--delta", "1e-3", "--calibration", "theorem", *batch,
    ]  # fmt: skip
    assert main([*flags, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert ("WARNING: the paper's theorem claims" in out) == warned
    assert "the paper's theorem claims" in out
