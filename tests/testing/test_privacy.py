"""check_mechanism and check_ledger: ours pass, planted bugs do not."""

import json

import numpy as np
import pytest

from dpmpi.core import Sampling
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.rng import insecure_key
from dpmpi.testing import check_ledger, check_mechanism

EVENT = ReleaseEvent("gaussian", 1.0, 1.0, Sampling("full", 10.0, 10))


@pytest.mark.parametrize("sigma", [1e-6, 0.05, 3.0])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_our_mechanisms_do_what_their_events_say(kind, sigma):
    check_mechanism(lambda m: make_mechanism(kind, sigma, insecure_key(0, 0), m))


class Wrapped:
    """A mechanism with a bug in it."""

    def __init__(self, m):
        self.inside = make_mechanism("gaussian", 0.05, insecure_key(0, 0), m)
        self.sigma = 0.05
        self.draw = np.random.default_rng(0)
        self.kept = None

    def event(self, query, scale=1.0):
        return self.inside.event(query, scale)

    def prepare(self):
        self.inside.prepare()

    def perturb(self, value, scale=1.0):
        self.inside.perturb(value, scale)


class HalfNoise(Wrapped):
    def perturb(self, value, scale=1.0):
        self.inside.perturb(value, scale / 2)


class ReusedNoise(Wrapped):
    def perturb(self, value, scale=1.0):
        if self.kept is None:
            self.kept = np.zeros_like(value)
            self.inside.perturb(self.kept, scale)
        value += self.kept


class FloatNoise(Wrapped):
    def perturb(self, value, scale=1.0):
        value += 0.05 * self.draw.standard_normal(value.size)


class Biased(Wrapped):
    def perturb(self, value, scale=1.0):
        self.inside.perturb(value, scale)
        value += 2.0**-7


@pytest.mark.parametrize(
    ("bug", "message"),
    [(HalfNoise, "declares noise of scale"), (ReusedNoise, "reused"), (FloatNoise, "low bits"), (Biased, "centred")],
)
def test_a_broken_mechanism_is_found(bug, message):
    with pytest.raises(AssertionError, match=message):
        check_mechanism(bug)


def test_our_ledger_never_says_too_little(tmp_path):
    ledgers = []

    def make(path, expected):
        ledgers.append(Ledger(path, {}, [(EVENT, expected)]))
        return ledgers[-1]

    check_ledger(make, tmp_path)
    for ledger in ledgers:
        ledger.__exit__(RuntimeError, None, None)


class Late(Ledger):
    """Writes a charge when the next one comes: what a crash in between would have sent is not there."""

    waiting = None

    def charge(self, event, round_):
        if self.waiting is not None:
            super().charge(*self.waiting)
        self.waiting = (event, round_)


class Forgetful(Ledger):
    """Gives back more than is left of a reservation."""

    def close(self):
        event, left = self._reserved[0]
        self._reserved[0] = (event, left + 1)
        super().close()


@pytest.mark.parametrize(("bug", "message"), [(Late, "not durable"), (Forgetful, "a closed ledger holds")])
def test_a_broken_ledger_is_found(tmp_path, bug, message):
    made = []

    def make(path, expected):
        made.append(bug(path, {}, [(EVENT, expected)]))
        return made[-1]

    with pytest.raises(AssertionError, match=message):
        check_ledger(make, tmp_path)
    for ledger in made:
        ledger._file.close()
    assert json.loads((tmp_path / "check-False.jsonl").read_text().splitlines()[0])["type"] == "header"
