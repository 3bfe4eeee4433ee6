"""One bit changed in one control message of a sealed run with a roster, at random: see meddling.py.

Each run ends with an error that names a rank, or with the same bits; none ends with another noise, budget, epsilon or
model, and no ledger is charged otherwise. The 500 changes of the long test take some minutes.
"""

import json
import re
from pathlib import Path

import needs
import pytest
from contract import RANKS, write_worlds
from launcher import finish, start

from dpmpi.commands.dispatch import main as command

pytestmark = needs.mpi

DRIVER = Path(__file__).parents[1] / "helpers" / "meddling.py"
DEADLINE = 5


def changed(folder, changes, seed, limit, *flags):
    """Return, for each change, the verdicts of all ranks; first that of a run which was left alone."""
    assert command(["keys", "make", str(RANKS), str(folder / "keys")]) == 0
    write_worlds(folder)
    known = ["--data", f"shards:{folder}/classes-0-{{rank}}.npz", "--out", folder / "place/run", "--rounds", 6]
    known += ["--quiet", "--graph", "complete", "--seal", "--keys", folder / "keys", "--deadline", DEADLINE]
    plan = {"flags": [str(flag) for flag in (*known, *flags)], "changes": changes, "seed": seed}
    (folder / "plan.json").write_text(json.dumps(plan))
    done = finish(start(RANKS, folder / "plan.json", folder, program=(DRIVER,)), limit)
    told = [json.loads((folder / f"changes-{rank}.json").read_text()) for rank in range(RANKS)]
    assert {len(one) for one in told} == {changes + 1}, (done.out, done.err, [one[-1] for one in told])
    return list(zip(*told, strict=True))


def complaints(verdicts):
    """Yield what is wrong with a changed run.

    A change to the last messages comes when the results are there, with the right bits: whoever hears it says so.
    """
    codes, said = [one["code"] for one in verdicts], " ".join(line for one in verdicts for line in one["said"])
    what = f"{verdicts[0]['what']}: codes {codes}, said {said!r}"
    early = () if set(codes) == {0} else ("ended.txt", "manifest.json")
    other = [name for name in verdicts[0]["files"] if not name.endswith(early)]
    if other:
        yield f"{what}: left other files {other}"
    if set(codes) != {0} and re.search(r"rank \d", re.sub(r"dpmpi: rank \d+, [^:]*:", "", said)) is None:
        yield f"{what}: no peer is named"
    if max(one["seconds"] for one in verdicts) > 3 * DEADLINE:
        yield f"{what}: took {max(one['seconds'] for one in verdicts)} s"


NOISE = ("--epsilon", 2, "--budget", 2, "--checkpoint-every", 2)


def check(verdicts):
    alone, *runs = verdicts
    assert [one["code"] for one in alone] == [0] * RANKS, alone
    assert alone[0]["files"] == []
    assert alone[0]["messages"] > 20
    found = [complaint for run in runs for complaint in complaints(run)]
    assert not found, "\n".join(found)
    assert 2 * sum({one["code"] for one in run} != {0} for run in runs) > len(runs)


def test_thirty_changed_control_bytes(tmp_path):
    check(changed(tmp_path, 30, 1, 120, *NOISE))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_five_hundred_changed_control_bytes(tmp_path, seed):
    way = ("--exchange", "shares") if seed % 2 else ()
    check(changed(tmp_path, 100, 10 + seed, 900, *NOISE, *way))
