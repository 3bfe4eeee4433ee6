"""Calibrated noise spends its target, and hardly less, for random releases of every kind."""

import numpy as np
import pytest

from dpmpi.core import Sampling
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.calibration import calibrate
from dpmpi.privacy.events import ReleaseEvent

BATCHES = ["full", "poisson", "fixed"]
KINDS = [(noise, kind) for noise in ("gaussian", "discrete-gaussian") for kind in BATCHES]
KINDS += [("laplace", "full"), ("spherical-laplace", "full")]


@pytest.mark.parametrize(("noise", "kind"), KINDS)
def test_random_targets_are_met_within_two_percent(noise, kind):
    """25 settings of each of the eight kinds, 200 in all."""
    rng = np.random.default_rng([ord(c) for c in noise + kind])
    for _ in range(25):
        epsilon, sensitivity, rate = (
            10 ** rng.uniform(-0.7, 0.7),
            10 ** rng.uniform(-4, 2),
            10 ** rng.uniform(-2.5, -0.5),
        )
        times, m = int(10 ** rng.uniform(0, 3)), int(10 ** rng.uniform(0, 3))
        sampling = Sampling(kind, 10_000.0 if kind == "full" else rate * 10_000, 10_000)
        vector = {"dimension": m} if noise == "spherical-laplace" else {"coordinates": m} if noise == "laplace" else {}

        def releases(scale, s=sensitivity, sampling=sampling, times=times, vector=vector):
            return {ReleaseEvent(noise, scale, s, sampling, **vector): times}

        certified = certified_epsilon(releases(calibrate(releases, epsilon, 1e-5)), 1e-5)
        assert 0.98 * epsilon < certified <= epsilon
