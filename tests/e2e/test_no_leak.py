"""The whole-process contract: nothing that leaves a rank depends on its data but through releases (see two_worlds.py).

Every buffer handed to MPI on every communicator, what the processes print and the files that they write are compared
between two unrelated data sets: start, rounds, votes, checkpoints, a spent budget, a stop, a resume, the closing.
"""

import re

import needs
import pytest
from contract import SHARES, all_cases, called, case, interrupted, leaks_of, run_cases, run_tolerant

from dpmpi.algorithms import ALGORITHMS
from dpmpi.commands.dispatch import main as command

pytestmark = needs.mpi


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("worlds")
    assert command(["keys", "make", "3", str(found / "keys")]) == 0
    return found


@pytest.fixture(scope="module")
def methods(folder):
    """The verdicts of all methods, in all ways to speak that go with them."""
    cases = all_cases(folder)
    return run_cases(folder, cases, 240)


def show(verdicts):
    return "\n".join(leaks_of(verdicts)[:12])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_method_leaks_in_whole_processes(methods, algorithm):
    mine = {name: found for name, found in methods.items() if name.startswith(f"{algorithm}-")}
    own = {name: found for name, found in mine.items() if longest(name) == algorithm}
    assert f"{algorithm}-plain" in own
    assert f"{algorithm}-sealed" in own
    for name, found in own.items():
        for one in found:
            assert one["codes"] == [75, 0], (name, one["said"])
            assert one["buffers"] > 30
        assert not leaks_of(found), f"{name}\n{show(found)}"


def longest(name):
    """Return the method whose case has this name: names of methods begin with each other."""
    return max((one for one in ALGORITHMS if name.startswith(f"{one}-")), key=len)


OTHERS = {
    "batches": (("--batch", 4), {}),
    "one record": (("--batch", 1), {}),
    "sparse": ((), {"data": "sparse"}),
    "text": (("--dimension", 4), {"data": "text", "suffix": ".svm"}),
    "admm on sparse rows": (("--algorithm", "admm", "--loss", "logistic"), {"data": "sparse"}),
    "sealed shares": (("--algorithm", "ip-admm", *SHARES, "--seal", "--keys", "{keys}"), {}),
    "sums along a path": (
        ("--graph", "path", "--exchange", "shares", "--noise-in", "sum", "--share-words", 32, "--keys", "{keys}"),
        {},
    ),
    "open sums along a path": (("--algorithm", "dp-admm", "--graph", "path"), {}),
    "pairs": (("--noise-in", "pairs", "--seal", "--keys", "{keys}"), {}),
    "a test set": (("--test-fraction", 0.3), {}),
    "calibrated": (("--epsilon", 1, "--batch", 6), {}),
    "narrow": (("--wire", "float32"), {}),
    "domains": (("--out", "run"), {"domains": True}),
    "sealed domains": (("--out", "run", "--seal", "--keys", "{keys}"), {"domains": True}),
    "three classes": (("--classes", "a,b,c", "--class-weights", "b=3"), {"data": "tasks"}),
    "numbers": (("--label-range", "0:2", "--loss", "huber:0.3"), {"data": "tasks"}),
    "counts": (("--task", "counts", "--label-range", "0:2"), {"data": "tasks"}),
    "a codebook": (("--loss", "logistic"), {"data": "coded"}),
    "a codebook in domains": (("--out", "run"), {"data": "coded", "domains": True}),
    "a ledger": (("--ledger", "{place}/ledgers"), {}),
    "evaluations": (("--evaluate", "private:3", "--test-fraction", 0.4, "--loss", "logistic"), {}),
    "evaluations in sums": (
        (*SHARES, "--keys", "{keys}", "--noise-in", "sum", "--evaluate", "private:3", "--test-fraction", 0.4),
        {},
    ),
    "persons": (("--batch", 4, "--test-fraction", 0.3), {"data": "persons"}),
}
REFUSED = {
    "nan": {"data": "nan"},
    "infinite": {"data": "infinite"},
    "labels": {"data": "labels"},
    "said": {"data": "said"},
    "garbled": {"data": "garbled", "suffix": ".svm"},
}


@pytest.fixture(scope="module")
def others(folder):
    """The verdicts of other settings and of data that are refused."""
    found = []
    for name, (flags, more) in OTHERS.items():
        found.append(interrupted(folder, name.replace(" ", "-"), *flags, **more))
        found.append(case(folder, name.replace(" ", "-") + "-at-once", *flags, **more))
    found += [case(folder, name, "--dimension", 4, **more) for name, more in REFUSED.items()]
    found += [called(folder, "arrays", stops=True), called(folder, "arrays-at-once", test_fraction=0.3)]
    found += [called(folder, "arrays-nan", data="nan"), called(folder, "arrays-infinite", data="infinite")]
    return run_cases(folder, found, 120)


@pytest.mark.parametrize("name", [*OTHERS, "arrays"])
def test_no_setting_leaks(others, name):
    name = name.replace(" ", "-")
    for found in (others[name], others[f"{name}-at-once"]):
        assert all(one["codes"][-1] == 0 for one in found), found[0]["said"]
        assert not leaks_of(found), show(found)


@pytest.mark.parametrize("name", [*REFUSED, "arrays-nan", "arrays-infinite"])
def test_the_error_of_a_bad_record_tells_others_not_which(others, name):
    found = others[name]
    assert all(one["codes"] == [2] for one in found), found
    assert "rank 1" in found[0]["said"]
    leaks = [leak for leak in leaks_of(found) if not leak.startswith("rank 1: printed")]  # its owner may see it
    assert not leaks, leaks


DEATHS = {
    "dp-dda": (),
    "sealed dp-dda": ("--seal", "--keys", "{keys}"),
    "shared dp-dda": (*SHARES, "--keys", "{keys}", "--noise-in", "sum"),
    "pairs": ("--seal", "--keys", "{keys}", "--noise-in", "pairs"),
    "admm": ("--algorithm", "admm", "--loss", "logistic"),
    "evaluations": ("--evaluate", "private:3", "--test-fraction", 0.4, "--loss", "logistic"),
}


@needs.open_mpi()
@pytest.mark.parametrize("name", DEATHS)
def test_nothing_leaks_when_a_rank_dies_and_the_others_go_on(tmp_path, name):
    assert command(["keys", "make", "4", str(tmp_path / "keys")]) == 0
    one = case(tmp_path, "death", "--checkpoint-every", 4, *DEATHS[name])
    codes, found = run_tolerant(tmp_path, one | {"dies": True}, 60)
    assert codes == [0, 0, 0, None]
    # Rank 3 may be killed while it writes its own checkpoint: how far it came is a matter of time.
    found = [leak for leak in found if not re.search(r"checkpoint/\.rank-003-\d+\.state\.\w+\.part is there", leak)]
    assert not found, "\n".join(found[:12])


@needs.open_mpi()
def test_the_others_are_not_told_what_an_error_says_of_the_records(tmp_path):
    one = case(tmp_path, "error", "--out", "run", plant="exception", domains=True)
    codes, found = run_tolerant(tmp_path, one, 60)
    assert set(codes) != {0}
    found = [leak for leak in found if not re.match(r"rank (\d): (printed|the file \1/)|rank 0: the file 1/", leak)]
    assert not found, "\n".join(found)


# --- leaks on purpose ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(folder):
    cases = [interrupted(folder, name.replace(" ", "-"), plant=name) for name in PLANTS]
    return run_cases(folder, cases, 60)


PLANTS = {
    "timing": "summary.json",
    "row error": "found another in row",
    "vote": "",
    "unnoised": "Send_init",
    "work": "passes over the records",
    "evaluation": "Send_init",
    "model": "model.npz",
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_leak_is_caught(planted, name):
    found = leaks_of(planted[name.replace(" ", "-")])
    assert any(PLANTS[name] in leak for leak in found), found
