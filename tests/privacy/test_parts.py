"""Training and held-out rows are charged apart: together they cost the larger price, and never less than the truth."""

import json
import math
from collections import Counter

import pytest

from dpmpi.core import Sampling
from dpmpi.errors import BudgetExceeded, LedgerError
from dpmpi.privacy.accountants import certified_epsilon, rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import filter_epsilon
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.groups import group_epsilon
from dpmpi.privacy.ledger import Ledger, recorded_runs, recorded_spending
from dpmpi.privacy.replay import replay
from dpmpi.privacy.spending import by_parts, charged_to, to_all_rows

FULL = Sampling("full", 10.0, 10)


def event(scale=1.0, rows="all", noise="gaussian", sampling=FULL):
    return ReleaseEvent(noise, scale, 1.0, sampling, rows=rows)


TRAINING, HELD_OUT, ALL = event(10.0, "training"), event(4.0, "held-out"), event(20.0)


def test_the_larger_part_is_the_price():
    spending = Counter({TRAINING: 9, HELD_OUT: 1})
    training, evaluation = gdp_epsilon(0.3, 1e-5), gdp_epsilon(0.25, 1e-5)
    assert certified_epsilon(spending, 1e-5) == max(training, evaluation)
    assert certified_epsilon(charged_to(spending, "held-out"), 1e-5) == evaluation
    assert certified_epsilon(to_all_rows(spending), 1e-5) == pytest.approx(gdp_epsilon(math.hypot(0.3, 0.25), 1e-5))
    assert max(training, evaluation) <= rdp_epsilon(spending, 1e-5) < rdp_epsilon(to_all_rows(spending), 1e-5)
    bounds = replay(spending, 1e-5)
    assert bounds.lower <= training <= bounds.upper < 1.01 * training


def test_what_read_all_rows_counts_for_both_parts():
    spending = Counter({ALL: 100, TRAINING: 1, HELD_OUT: 4})  # mu = .5 for all, .1 and .5 for the parts
    assert certified_epsilon(spending, 1e-5) == pytest.approx(gdp_epsilon(math.hypot(0.5, 0.5), 1e-5))
    assert by_parts({ALL: 1}) == [{ALL: 1}]
    assert by_parts({TRAINING: 1}) == [{TRAINING: 1}]  # without another part there is nothing to tell apart


def test_other_accountants_know_of_parts():
    spending = Counter({TRAINING: 9, HELD_OUT: 1})
    assert filter_epsilon(spending, 1e-5, 8) == gdp_epsilon(0.3, 1e-5)
    assert group_epsilon(spending, 1e-5, 3) == pytest.approx(gdp_epsilon(0.9, 1e-5))
    mixed = Counter({event(10.0, "training", "laplace"): 2, HELD_OUT: 1})
    assert group_epsilon(mixed, 1e-5, 3) is None  # three records may lie in both parts, of different noise
    assert filter_epsilon(Counter({event(0.0, "held-out", "none"): 1, TRAINING: 1}), 1e-5, 8) is None


@pytest.mark.parametrize("split", [0, 1, 2, 3])
def test_a_group_in_both_parts_is_within_the_price_of_groups(split):
    shift = math.hypot(split * 0.3, (3 - split) * 0.25)
    assert gdp_epsilon(shift, 1e-5) <= group_epsilon(Counter({TRAINING: 9, HELD_OUT: 1}), 1e-5, 3) * (1 + 1e-9)


def test_events_say_their_part():
    assert "rows" not in ALL.to_dict()  # as in earlier versions
    for one in (ALL, TRAINING, HELD_OUT):
        assert ReleaseEvent.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    with pytest.raises(LedgerError, match="training or held-out rows"):
        ReleaseEvent.from_dict(TRAINING.to_dict() | {"rows": "none"})


def test_an_evaluation_is_charged_alone_between_reservations(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, {"run": "a", "rank": 0}, [(TRAINING, 300)]) as ledger:
        for t in range(1, 301):
            ledger.charge(TRAINING, t)
            if t % 100 == 0:
                ledger.charge(HELD_OUT, t)
                assert recorded_spending(path)[HELD_OUT] == t // 100  # on disk, and no more than one ahead
        assert ledger.spending() == Counter({TRAINING: 300, HELD_OUT: 3})
    [(_, spent, closed)] = recorded_runs(path)
    assert closed
    assert spent == Counter({TRAINING: 300, HELD_OUT: 3})


def test_each_part_has_its_own_allowance(tmp_path):
    with Ledger(tmp_path / "l.jsonl", {"run": "a", "rank": 0}, [(TRAINING, 9)], 2, evaluations=1) as ledger:
        ledger.charge(TRAINING, 1)
        ledger.charge(HELD_OUT, 1)
        ledger.charge(TRAINING, 2)
        for one in (TRAINING, HELD_OUT):
            with pytest.raises(BudgetExceeded):
                ledger.charge(one, 3)
    assert recorded_spending(tmp_path / "l.jsonl") == Counter({TRAINING: 2, HELD_OUT: 1})
