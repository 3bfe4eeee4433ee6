import math

import numpy as np
import pytest

from dpmpi.core import Mechanism, Query, Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.mechanisms import DeafMechanism, NoNoise, make_mechanism, pricing
from dpmpi.privacy.samplers import GaussianNoise, grid
from dpmpi.rng import PrivateStream, insecure_key

KEY = insecure_key(1, 0)
NOISY = ("gaussian", "laplace", "spherical-laplace")
SAMPLING = Sampling("poisson", 32.0, 1000)


def query(dimension=9, sensitivity=0.25, sampling=SAMPLING):
    return Query(np.zeros(dimension), sensitivity, sampling)


def test_gaussian_event_is_the_noise_that_is_added():
    mechanism = make_mechanism("gaussian", 0.6, KEY, 9)
    q = query()
    assert mechanism.event(q, 3.0) == ReleaseEvent("gaussian", 0.6 * 3.0, 0.25, SAMPLING)
    mechanism.perturb(q.value, 3.0)
    expected = np.zeros(9)
    GaussianNoise(PrivateStream(KEY, "noise"), 9).add(expected, 0.6 * 3.0)
    np.testing.assert_array_equal(q.value, expected)


@pytest.mark.parametrize("kind", NOISY)
def test_sigma_is_the_standard_deviation_of_a_coordinate(kind):
    mechanism: Mechanism = make_mechanism(kind, 0.6, KEY, 3)
    x = np.zeros((20_000, 3))
    for row in x:
        mechanism.prepare()
        mechanism.perturb(row, 2.0)
    error = (x**2).std() / math.sqrt(x.size / 3)
    assert abs((x**2).mean() - 1.2**2) < 4.5 * error
    assert mechanism.sigma == 0.6


@pytest.mark.parametrize("kind", NOISY)
def test_outputs_lie_on_the_grid_of_the_event(kind):
    mechanism = make_mechanism(kind, 0.6, KEY, 101)
    value = np.full(101, 0.1)
    step = grid(mechanism.event(query(101), 0.3).scale)
    mechanism.perturb(value, 0.3)
    np.testing.assert_array_equal(value / step, np.rint(value / step))
    assert np.any(value / (2 * step) != np.rint(value / (2 * step)))


def test_laplace_event_is_in_l1():
    sigma = 0.8
    event = make_mechanism("laplace", sigma, KEY, 16).event(query(16))
    assert event.scale == pytest.approx(sigma / math.sqrt(2))
    assert event.sensitivity == 4 * 0.25
    sparse = make_mechanism("laplace", sigma, KEY, 16, price=pricing("laplace", sigma, 16, l1_ratio=2.0))
    assert sparse.event(query(16)).sensitivity == 2 * 0.25
    with pytest.raises(ConfigError, match="at least 1"):
        pricing("laplace", sigma, 16, l1_ratio=0.5)


def test_spherical_event_is_in_l2():
    event = make_mechanism("spherical-laplace", 0.8, KEY, 15).event(query(15))
    assert event == ReleaseEvent("spherical-laplace", 0.2, 0.25, SAMPLING, dimension=15)


@pytest.mark.parametrize("kind", NOISY)
def test_events_are_reused_only_for_the_same_cost(kind):
    mechanism = make_mechanism(kind, 0.6, KEY, 9)
    first = mechanism.event(query())
    assert mechanism.event(query()) is first
    for other, scale in ((query(), 2.0), (query(sensitivity=0.5), 1.0), (query(sampling=Sampling("full", 9, 9)), 1.0)):
        event = mechanism.event(other, scale)
        assert event != first
        assert event.sampling == other.sampling
        assert event.scale == first.scale * scale
        assert event.sensitivity / first.sensitivity == other.sensitivity / 0.25


@pytest.mark.parametrize("kind", NOISY)
def test_events_survive_the_ledger(kind):
    event = make_mechanism(kind, 0.6, KEY, 9).event(query(), 1 / 3)
    assert ReleaseEvent.from_dict(event.to_dict()) == event


def test_no_noise_says_so():
    mechanism: Mechanism = make_mechanism("none", 0.0, KEY, 3)
    value = np.array([0.1, -0.2, 0.3])
    mechanism.prepare()
    mechanism.perturb(value, 5.0)
    assert isinstance(mechanism, NoNoise)
    assert mechanism.sigma == 0.0
    assert value.tolist() == [0.1, -0.2, 0.3]
    assert mechanism.event(query(), 5.0) == ReleaseEvent("none", 0.0, 0.25, SAMPLING)


def test_deaf_mechanism_does_not_hear_its_query():
    outputs = []
    for value in (np.zeros(50), np.full(50, 1e6), np.full(50, math.nan)):
        deaf: Mechanism = DeafMechanism(0.6, PrivateStream(KEY, "noise"), 50)
        deaf.perturb(value, 2.0)
        outputs.append(value)
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])
    assert 0.6 < outputs[0].std() < 1.8
    assert deaf.event(query(50)) == make_mechanism("gaussian", 0.6, KEY, 50).event(query(50))


def test_keys_decide_the_noise():
    a, b, c = np.zeros(20), np.zeros(20), np.zeros(20)
    make_mechanism("gaussian", 1.0, KEY, 20).perturb(a)
    make_mechanism("gaussian", 1.0, KEY, 20).perturb(b)
    make_mechanism("gaussian", 1.0, insecure_key(1, 1), 20).perturb(c)
    assert np.array_equal(a, b)
    assert not np.any(a == c)


@pytest.mark.parametrize("kind", NOISY)
@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_impossible_sigmas_are_refused(kind, sigma):
    with pytest.raises(ConfigError, match="sigma above 0"):
        make_mechanism(kind, sigma, KEY, 3)


def test_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match="found 'discrete-gaussian'"):
        make_mechanism("discrete-gaussian", 1.0, KEY, 3)
    with pytest.raises(ConfigError, match="expected sigma 0 for mechanism 'none'"):
        make_mechanism("none", 1.0, KEY, 3)
