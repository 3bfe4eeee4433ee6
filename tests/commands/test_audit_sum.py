"""The audit of noise inside a sum hears the sum, with the colluders' parts taken off."""

import numpy as np
import pytest
from plans import settings_of

from dpmpi.commands.audit.sums import SumLaboratory
from dpmpi.commands.audit.wire import canary_shard
from dpmpi.errors import ConfigError
from dpmpi.network.transport.loopback import LoopbackTransport

FLAGS = [
    "--algorithm", "dp-dda", "--graph", "complete", "--exchange", "shares", "--noise-in", "sum",
    "--loss", "squared", "--allow-large-delta", "--insecure-noise-seed", "1",
]  # fmt: skip


def laboratory(*flags, ranks=5, records=10):
    return SumLaboratory(settings_of(*FLAGS, *flags), LoopbackTransport(ranks), records)


@pytest.mark.parametrize("mode", ["expanded", "full"])
@pytest.mark.parametrize("colluders", [0, 2])
def test_the_sum_is_the_canary_and_the_honest_noise(mode, colluders):
    """What remains of the noise after the colluders took off their parts has the declared spread."""
    rounds, sigma = 400, 0.05
    for sign in (1, -1):
        lab = laboratory("--rounds", rounds, "--noise", sigma, "--colluders", colluders, "--share-mode", mode)
        heard = lab.run(*canary_shard(10, sign, False), 2)
        canary = np.tile([sign / 10, 0.0], (rounds, 1))
        noise = (heard - canary).ravel()
        assert abs(noise.mean()) < 5 * sigma / np.sqrt(noise.size)
        assert abs(noise.std() / sigma - 1) < 5 / np.sqrt(2 * noise.size)
    assert len(lab.recorder.charged) == rounds
    assert {event.noise for event in lab.recorder.spending()} == {"discrete-gaussian"}


def test_what_cannot_be_shared_cannot_be_audited():
    with pytest.raises(ConfigError, match="sums over the neighbourhoods"):
        SumLaboratory(settings_of(*FLAGS, "--graph", "ring", "--noise", 1), LoopbackTransport(5), 10)
