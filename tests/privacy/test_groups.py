"""Several records of one person: closed forms against published figures, and against real shifts of k records."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmpi.core import Sampling
from dpmpi.privacy.calibration import calibrate
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.groups import group_epsilon
from dpmpi.privacy.releases import spent_epsilon

FULL, SOME = Sampling("full", 100.0, 100), Sampling("poisson", 10.0, 100)


def gaussians(sigma, count=7):
    return {ReleaseEvent("gaussian", sigma, 0.5, FULL): count}


@pytest.mark.parametrize(("k", "epsilon"), [(1, 1.0), (2, 2.15), (5, 6.17), (10, 14.4)])
def test_a_target_of_one_for_groups(k, epsilon):
    sigma = calibrate(gaussians, 1.0, 1e-5)
    assert group_epsilon(gaussians(sigma), 1e-5, k) == pytest.approx(epsilon, rel=0.005)


def test_one_record_is_the_figure_of_a_run():
    assert group_epsilon(gaussians(3.0), 1e-5, 1) == spent_epsilon(gaussians(3.0), 1e-5, cached=False)


@pytest.mark.parametrize("k", [2, 5])
def test_k_records_show_no_more_and_no_less(k):
    """The trade-off of a test that sees k records move: its delta at the epsilon of the group is delta."""
    epsilon, mu = group_epsilon(gaussians(8.0), 1e-3, k), k * math.sqrt(7) * 0.5 / 8.0
    x = np.linspace(-12, 12 + mu, 400_001)
    excess = stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x)
    assert np.trapezoid(np.maximum(excess, 0.0), x) == pytest.approx(1e-3, rel=1e-4)


def test_pure_noise_adds_up():
    spending = {ReleaseEvent("laplace", 10.0, 0.5, FULL): 4, ReleaseEvent("spherical-laplace", 10.0, 1.0, FULL): 1}
    assert group_epsilon(spending, 0.0, 3) == pytest.approx(3 * 0.3)


@pytest.mark.parametrize(
    "event",
    [
        ReleaseEvent("gaussian", 3.0, 0.5, SOME),
        ReleaseEvent("discrete-gaussian", 3.0, 0.5, SOME),
        ReleaseEvent("none", 0.0, 0.5, FULL),
    ],
)
def test_where_there_is_no_closed_form_there_is_no_figure(event):
    assert group_epsilon({event: 1}, 1e-5, 2) is None
