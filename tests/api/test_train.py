"""`train` in real processes, started by `launch`."""

import os
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
import trained
from launcher import survivors

import dpmpi
from dpmpi.commands.verify.command import verify
from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.network.launcher import Launcher, OutOfTime

pytestmark = needs.mpi
RANKS, LIMIT = 4, 60


def launch(function, *args, **kwargs):
    return dpmpi.launch(function, RANKS, *args, timeout=LIMIT, **kwargs)


def test_the_bits_are_those_of_a_simulation_on_every_rank(tmp_path):
    result, ranks = launch(trained.whole, str(tmp_path / "run"))
    simulated = dpmpi.simulate(trained.shards(), **trained.SEEDED, evaluate=9)
    assert [one["rank"] for one in ranks] == [*range(RANKS)]
    assert [one["ledger"] for one in ranks] == [f"rank-{rank:03d}.jsonl" for rank in range(RANKS)]
    assert all(one["x"] == simulated.model.x.tolist() for one in ranks)
    assert np.array_equal(result.model.x_rank, simulated.model.x_rank)
    assert {(one["rounds"], one["ends"]) for one in ranks} == {(result.summary["rounds"], 1)}
    assert result.path == tmp_path / "run"
    assert result.communication == simulated.communication
    assert np.array_equal(result.history["objective"], simulated.history["objective"])
    assert not any(rank.problems for rank in verify(result.path))


def test_what_one_rank_cannot_do_all_are_told(tmp_path):
    ranks = launch(trained.refusals, str(tmp_path / "run"))
    for what in ("typed by all", "typed by one", "other settings", "a bad label", "a narrow matrix", "well"):
        assert len({told[what] for told in ranks}) == 1, what
    said = {what: ranks[0][what] for what in ranks[0]}
    assert said["typed by all"].startswith("ConfigError: settings: expected known keys, found the unknown key")
    assert said["typed by one"] == "ConfigError: --epsilon must be greater than 0, got -1.0"
    assert said["other settings"].startswith("ConfigError: expected the same settings on all ranks")
    assert said["a bad label"] == "DataError: rank 1 cannot use its shard, and says why on its own terminal"
    assert said["a narrow matrix"].startswith("DataError: all ranks must have the same features")
    assert said["well"] == "run"


def test_communicators_of_the_user(tmp_path):
    ranks = launch(trained.halves, str(tmp_path / "run"))
    expected = dpmpi.simulate(trained.shards(2), **trained.SEEDED).model.x.tolist()
    assert [x for x, _ in ranks] == [expected] * RANKS
    assert [note for _, note in ranks] == [2.0, 3.0, 0.0, 1.0]


def test_a_program_may_train_often(tmp_path):
    assert launch(trained.often, str(tmp_path / "run"), 30) == "run"


def test_runs_without_a_name_do_not_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = launch(trained.unnamed)
    assert len(set(names)) == 2
    assert all((tmp_path / "runs" / name / "summary.json").exists() for name in names)


def test_a_run_that_was_stopped_goes_on(tmp_path):
    ranks = launch(trained.stopped, str(tmp_path / "run"))
    assert {why.partition(";")[0] for why, _, _ in ranks} == {"Preempted: told to stop"}
    whole = dpmpi.simulate(trained.shards(), **trained.SEEDED, rounds=400)
    assert all(x == whole.model.x.tolist() for _, x, _ in ranks)
    assert all(restored for _, _, restored in ranks)
    assert not any(rank.problems for rank in verify(tmp_path / "run"))


def test_a_failure_of_one_rank_alone_ends_all_and_names_the_place(tmp_path, capfd):
    with pytest.raises(DpmpiError) as caught:
        launch(trained.alone, "round", str(tmp_path / "run"))
    line = Path(trained.__file__).read_text().split("\n").index('            raise ZeroDivisionError("of my own")') + 1
    more = tmp_path / "run/failure/rank-003.txt"
    said = f"rank 3, round 4: trained.py, line {line}: failed; more in {more}, for this rank's owner"
    assert str(caught.value) == said  # what the exception says may quote records
    assert (tmp_path / "run/ended.txt").read_text().strip() == said
    assert "ZeroDivisionError: of my own" in more.read_text()
    assert not survivors(tmp_path)


def test_an_exception_outside_of_training_comes_back_as_it_is(tmp_path):
    with pytest.raises(LookupError, match="no such table") as caught:
        launch(trained.alone, "before", str(tmp_path / "run"))
    assert "on rank 1 of 4" in caught.value.__notes__[0]
    assert "trained.py" in caught.value.__notes__[0]


def test_launch_returns_what_the_first_rank_does(capfd):
    assert launch(trained.answer, 1, b=[2]) == (0, RANKS, (1,), {"b": [2]})
    out = capfd.readouterr().out
    assert sorted(out.splitlines()) == [f"rank {rank} speaks" for rank in range(RANKS)]


def test_launch_ends_what_takes_too_long():
    with pytest.raises(OutOfTime):
        dpmpi.launch(trained.forever, 2, timeout=3)


SCRIPT = """
import sys
{block}
import dpmpi

def double(x):
    return 2 * x * dpmpi.ranks()

if __name__ == "__main__":
    print(dpmpi.launch(double, 2, 21, timeout=60))
    unnamed = lambda: dpmpi.rank()
    print(dpmpi.launch(unnamed, 2, timeout=60))
"""


UNCAUGHT = """
import sys
import dpmpi
import numpy as np
{before}
X = np.ones((20, 2)) if dpmpi.rank() else np.full((20, 2), {value})
try:
    dpmpi.train(X, np.tile([0, 1], 10), rounds=2, noise=1.0, out={out!r}, {settings})
except dpmpi.DpmpiError as error:
    if {catches}:
        sys.exit(5)
    raise
"""


def uncaught(folder, *, settings="", value="1.0", catches=False, before="", **environment):
    """Run a script that does not catch what `train` raises; return its exit code and what it says."""
    script, given = folder / "script.py", {"settings": settings, "value": value, "catches": catches, "before": before}
    script.write_text(UNCAUGHT.format(out=str(folder / "run"), **given))
    done = Launcher.make(None).run(3, [sys.executable, str(script)], LIMIT, environment)
    return done.code, done.err


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"settings": "epsilonn=1"}, "settings: expected known keys, found the unknown key"),
        ({"value": "np.nan"}, "rank 0 cannot use its shard, and says why on its own terminal"),
    ],
)
def test_what_a_script_does_not_catch_is_one_line_of_the_first_rank(tmp_path, how, said):
    code, err = uncaught(tmp_path, **how)
    assert code == 2, err
    assert "Traceback" not in err
    assert sum(line.startswith("dpmpi: ") and said in line for line in err.splitlines()) == 1, err


@pytest.mark.parametrize(
    ("how", "code", "traced"),
    [
        ({"catches": True}, 5, False),
        ({"DPMPI_TRACEBACK": "1"}, 1, True),
        ({"before": "sys.excepthook = lambda *_: print('a hook of mine', file=sys.stderr)"}, 1, False),
    ],
)
def test_scripts_that_do_otherwise_are_left_alone(tmp_path, how, code, traced):
    found, err = uncaught(tmp_path, settings="epsilonn=1", **how)
    assert found == code, err
    assert ("Traceback" in err) == traced
    assert "dpmpi: settings" not in err
    assert ("a hook of mine" in err) == ("before" in how)


@pytest.mark.parametrize("pickled", ["cloudpickle", "pickle"])
def test_functions_of_a_script(tmp_path, pickled):
    block = "" if pickled == "cloudpickle" else "sys.modules['cloudpickle'] = None"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(block=block))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path
    )
    assert done.stdout.split()[0] == "84", done.stderr
    if pickled == "pickle":
        assert "pip install cloudpickle" in done.stderr
    else:
        assert done.stdout.split() == ["84", "0"]


OWN_LOSS = """
import sys
{block}
import dpmpi
import numpy as np

class Flat(dpmpi.Loss):
    kinds = ("binary",)
    def value(self, scores, labels):
        return np.maximum(-labels * scores, 0.0)
    def slope(self, scores, labels):
        return -labels * (labels * scores < 0.0)

def party(out):
    result = dpmpi.train(np.eye(4), [0, 1, 0, 1], loss=Flat(), rounds=2, noise=1.0, evaluate="0", quiet=True, out=out)
    return result.model.loss

if __name__ == "__main__":
    print(dpmpi.launch(party, 2, "run", timeout=60))
"""


@pytest.mark.parametrize("pickled", ["cloudpickle", "pickle"])
def test_a_loss_of_the_script_that_launches(tmp_path, pickled):
    block = "" if pickled == "cloudpickle" else "sys.modules['cloudpickle'] = None"
    (tmp_path / "own.py").write_text(OWN_LOSS.format(block=block))
    command = [sys.executable, "own.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path)
    if pickled == "pickle":
        assert done.stdout.split()[-1] == "flat", done.stderr
    else:  # what is sent by value has no source that other ranks could compare
        assert "expected Flat at the top of" in done.stderr
        assert "move it to a file, and import it" in done.stderr


def test_launch_is_not_for_ranks(monkeypatch):
    monkeypatch.setitem(os.environ, "OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="call the function itself"):
        dpmpi.launch(trained.answer, 2)
