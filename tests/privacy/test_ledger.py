import json
from contextlib import suppress

import pytest

from dpmpi.core import Sampling
from dpmpi.errors import BudgetExceeded, LedgerError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import LEAST_RESERVED, Ledger, read_ledger, recorded_spending

EVENT = ReleaseEvent("gaussian", 0.5, 0.01, Sampling("poisson", 16.0, 200))
OTHER = ReleaseEvent("gaussian", 0.7, 0.01, Sampling("full", 200.0, 200))


def test_a_closed_ledger_says_exactly_what_was_charged(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {"rank": 3}, plan=[(EVENT, 1000)]) as ledger:
        for t in range(1, 301):
            ledger.charge(EVENT, t)
        ledger.charge(OTHER, 301)
        ledger.charge(EVENT, 302)
        assert ledger.spending() == {EVENT: 301, OTHER: 1}
    assert recorded_spending(path) == {EVENT: 301, OTHER: 1}
    assert next(read_ledger(path))["rank"] == 3


def test_a_closed_ledger_takes_no_charge(tmp_path):
    with Ledger(tmp_path / "l.jsonl", {}) as ledger:
        ledger.charge(EVENT, 1)
        ledger.close()
        with pytest.raises(LedgerError, match="expected an open ledger"):
            ledger.charge(EVENT, 2)


def test_a_charge_is_on_disk_before_it_is_made(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {}, plan=[(EVENT, 8 * LEAST_RESERVED)]) as ledger:
        for made in range(1, 2 * LEAST_RESERVED):
            ledger.charge(EVENT, made)
            assert recorded_spending(path)[EVENT] >= made


def test_reservations_do_not_exceed_what_is_foreseen(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {}, plan=[(EVENT, 5)]) as ledger:
        ledger.charge(EVENT, 1)
        assert recorded_spending(path) == {EVENT: 5}


def test_without_a_close_the_reservation_counts_in_full(tmp_path):
    path = tmp_path / "l.jsonl"
    with suppress(RuntimeError), Ledger(path, {}, plan=[(EVENT, 8 * LEAST_RESERVED)]) as ledger:
        ledger.charge(EVENT, 1)
        raise RuntimeError("crash")
    assert recorded_spending(path) == {EVENT: LEAST_RESERVED}


def test_a_torn_last_line_was_never_durable(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {}, plan=[(EVENT, 10)]) as ledger:
        ledger.charge(EVENT, 1)
    whole = recorded_spending(path)
    path.write_text(path.read_text() + '{"seq":9,"ty')
    assert recorded_spending(path) == whole


@pytest.mark.parametrize("line", [0, 1, 2])
def test_every_change_breaks_the_chain(tmp_path, line):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {"rank": 1}, plan=[(EVENT, 10)]) as ledger:
        ledger.charge(EVENT, 1)
    lines = path.read_text().splitlines()
    entry = json.loads(lines[line])
    entry["rank" if line == 0 else "round"] = 2
    changed = [*lines[:line], json.dumps(entry), *lines[line + 1 :]]
    removed = lines[:line] + lines[line + 1 :]
    for broken in (changed, removed, lines[::-1]):
        if broken == lines[:-1]:
            continue  # what remains is a valid beginning: the close is missing, so it counts in full
        path.write_text("\n".join(broken) + "\n")
        with pytest.raises(LedgerError, match=r"l\.jsonl:\d+"):
            recorded_spending(path)


def test_a_ledger_goes_on_over_runs(tmp_path):
    path = tmp_path / "l.jsonl"
    for run in range(3):
        with Ledger(path, {"run": run}, plan=[(EVENT, 10)]) as ledger:
            ledger.charge(EVENT, 1)
    assert recorded_spending(path) == {EVENT: 3}
    assert [entry["run"] for entry in read_ledger(path) if entry["type"] == "header"] == [0, 1, 2]


def test_after_a_crash_a_ledger_goes_on_behind_the_torn_line(tmp_path):
    path = tmp_path / "l.jsonl"
    with suppress(RuntimeError), Ledger(path, {}, plan=[(EVENT, 5)]) as ledger:
        ledger.charge(EVENT, 1)
        raise RuntimeError("crash")
    with path.open("a") as file:
        file.write('{"seq":2,"typ')
    with Ledger(path, {}, plan=[(EVENT, 5)]) as ledger:
        ledger.charge(EVENT, 1)
    assert recorded_spending(path) == {EVENT: 6}


def test_a_broken_ledger_is_not_continued(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text("{}\n")
    with pytest.raises(LedgerError, match=r"l\.jsonl:1"):
        Ledger(path, {})


def test_a_plan_of_changing_charges_is_reserved_in_blocks(tmp_path):
    """Noise that changes every round must not cost a write every round."""
    path = tmp_path / "l.jsonl"
    events = [ReleaseEvent("gaussian", 1.0 + t, 0.01, Sampling("full", 200.0, 200)) for t in range(4 * LEAST_RESERVED)]
    with Ledger(path, {}, plan=[(event, 1) for event in events]) as ledger:
        for t, event in enumerate(events[:-10]):
            ledger.charge(event, t)
            if t % 50 == 0:
                found = recorded_spending(path)
                assert all(found[e] >= 1 for e in events[: t + 1])
        assert ledger.spending() == dict.fromkeys(events[:-10], 1)
    assert recorded_spending(path) == dict.fromkeys(events[:-10], 1)
    assert sum(entry["type"] == "reserve" for entry in read_ledger(path)) == 4


def test_a_charge_out_of_plan_returns_to_the_plan(tmp_path):
    path = tmp_path / "l.jsonl"
    plan = [(EVENT, 3), (OTHER, 3)]
    with Ledger(path, {}, plan=plan) as ledger:
        for event in (EVENT, EVENT, OTHER, OTHER, EVENT, OTHER):
            ledger.charge(event, 1)
        assert ledger.spending() == {EVENT: 3, OTHER: 3}
    assert recorded_spending(path) == {EVENT: 3, OTHER: 3}


def test_no_charge_beyond_the_allowance(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {}, plan=[(EVENT, 10)], allowance=3) as ledger:
        for t in range(3):
            ledger.charge(EVENT, t)
        for t in range(3, 6):
            with pytest.raises(BudgetExceeded, match="at most the 3 charges"):
                ledger.charge(EVENT, t)
    assert recorded_spending(path) == {EVENT: 3}


@pytest.mark.parametrize("change", [{"noise": "uniform"}, {"sampling": "some"}, {"scale": "x"}, {"records": None}])
def test_an_unknown_event_is_refused(change):
    with pytest.raises(LedgerError):
        ReleaseEvent.from_dict(EVENT.to_dict() | change)
    with pytest.raises(LedgerError):
        ReleaseEvent.from_dict({})


def test_events_survive_the_file():
    assert ReleaseEvent.from_dict(json.loads(json.dumps(EVENT.to_dict()))) == EVENT


def test_while_it_is_open_nobody_else_can_charge(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {}, plan=[(EVENT, 10)]) as ledger:
        ledger.charge(EVENT, 1)
        with pytest.raises(LedgerError, match="in use: wait for its run"):
            Ledger(path, {})
        ledger.charge(EVENT, 2)
    with Ledger(path, {}, plan=[(EVENT, 10)]) as ledger:
        ledger.charge(EVENT, 3)
    assert recorded_spending(path).total() == 3


def test_charges_that_the_plan_does_not_know_are_found(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path, {}) as ledger:
        lines = ledger.mark[0]
        ledger.charge(EVENT, 1)
    with pytest.raises(LedgerError, match=f"expected the {lines} lines .*found 4: another run charges to it"):
        Ledger(path, {}, lines=lines)
    Ledger(path, {}, lines=4)._file.close()
