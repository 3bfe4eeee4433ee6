"""What the papers' theorems prescribe for a run, against their formulas, and what they claim for noise."""

import math

import pytest

from dpmpi.claims import THEOREMS, Claim, claimed_epsilon, prescribed_noise
from dpmpi.errors import ConfigError
from dpmpi.methods import Planned
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.privacy.theorems import consensus_budget, multistep_sigma
from dpmpi.run import main

PLANS = {
    "constant": [Planned(0.02, count=50)],
    "falling": [Planned(0.02 / t, t**-0.75) for t in range(1, 51)],
}


def claim(plan):
    return Claim(PLANS[plan], 1.0, 50, 100, 1.0, 1e-5)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("algorithm", sorted(THEOREMS))
def test_what_is_prescribed_is_what_is_claimed(algorithm, plan):
    sigma = prescribed_noise(algorithm, claim(plan), 0.5)
    assert claimed_epsilon(algorithm, claim(plan), sigma) == pytest.approx(0.5)
    assert claimed_epsilon(algorithm, claim(plan), 2 * sigma) < 0.5
    assert claimed_epsilon(algorithm, claim(plan), 0.0) is None


def test_consensus_descent_spends_its_budget_exactly():
    sigma = prescribed_noise("dp-dgd", claim("falling"), 1.0)
    spent = sum((0.02 / t / (sigma * t**-0.75)) ** 2 for t in range(1, 51))
    assert spent == pytest.approx(consensus_budget(1.0, 1e-5))
    assert spent < gdp_mu(1.0, 1e-5) ** 2  # it would be allowed to spend more


def test_multistep_admm_multiplies_the_sensitivity():
    assert prescribed_noise("ip-admm", claim("constant"), 1.0) == pytest.approx(
        0.02 * multistep_sigma(5, 10, 1.0, 1e-5)
    )


def test_local_privacy_counts_half_of_the_sensitivity_in_one_coordinate():
    b = prescribed_noise("ldp-admm", claim("constant"), 1.0) / math.sqrt(2)
    assert 50 * (0.01 / b) == pytest.approx(1.0)


def test_no_theorem_no_noise():
    with pytest.raises(ConfigError, match="no theorem prescribes noise for rcd"):
        prescribed_noise("rcd", claim("constant"), 1.0)
    assert claimed_epsilon("rcd", claim("constant"), 1.0) is None


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
