"""Sweep files, the runs that they mean, and running them on loopback."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launcher import finish, survivors, wait_until

from dpmpi.commands.sweep import command
from dpmpi.commands.sweep.file import Plot, read_sweep
from dpmpi.commands.sweep.runs import as_flags, make_runs
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import Launcher
from dpmpi.run import main as train
from dpmpi.runtime.flags import parse

REPOSITORY = Path(__file__).parents[2]
BASE = """
title = "Two noises"
ranks = 3
repetitions = 2
[run]
data = "synthetic:samples=60,features=4"
algorithm = "dp-dda"
rounds = 6
seed = 5
allow-large-delta = true
[quick]
rounds = 2
repetitions = 1
grid = {epsilon = [1.0]}
[grid]
epsilon = [1.0, 4.0]
[[series]]
name = "private"
label = "with noise"
[[series]]
name = "plain"
algorithm = "dda"
without = ["epsilon"]
[[plot]]
x = "epsilon"
y = "objective"
log = "x"
"""


def write(folder, text, name="two.toml"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def plan(folder, text, **options):
    sweep = read_sweep(write(folder, text), **options)
    return sweep, make_runs(sweep)


def test_a_run_for_every_series_point_and_repetition(tmp_path):
    sweep, runs = plan(tmp_path, BASE)
    expected = {
        (series, epsilon, repetition)
        for repetition in (0, 1)
        for series, epsilon in (("private", 1.0), ("private", 4.0), ("plain", None))
    }
    assert {(run.series, run.config.epsilon, run.repetition) for run in runs} == expected
    assert len(runs) == len(expected)
    assert [run.repetition for run in runs] == sorted(run.repetition for run in runs)
    assert {run.path for run in runs if run.repetition == 0} == {
        "private/epsilon=1.0/rep-0", "private/epsilon=4.0/rep-0", "plain/rep-0",
    }  # fmt: skip
    assert sweep.plots == (Plot("epsilon", "objective", log="x"),)


def test_flags_mean_the_same_configuration(tmp_path):
    for run in plan(tmp_path, BASE)[1]:
        assert parse(run.flags).digest() == run.config.digest()


def test_repetitions_move_the_seed_and_a_repeatable_noise(tmp_path):
    noisy = BASE.replace("seed = 5", "seed = 5\ninsecure-noise-seed = 9")
    for run in plan(tmp_path, noisy, repeat=3)[1]:
        assert (run.config.seed, run.config.insecure_noise_seed) == (5 + run.repetition, 9 + run.repetition)
    kept = noisy + '\n[repeat]\nseed = "keep"\n'
    for run in plan(tmp_path, kept, repeat=3)[1]:
        assert (run.config.seed, run.config.insecure_noise_seed) == (5, 9 + run.repetition)


def test_later_settings_win(tmp_path):
    text = """
        ranks = 2
        [run]
        rounds = 10
        lipschitz = 2.0
        delta = 1e-4
        [quick]
        rounds = 5
        ranks = 4
        lipschitz = 3.0
        [[series]]
        name = "a"
        lipschitz = 4.0
        quick = {delta = 1e-3}
    """
    (full,) = plan(tmp_path, text)[1]
    assert (full.config.rounds, full.config.lipschitz, full.config.delta) == (10, 4.0, 1e-4)
    sweep, (quick,) = plan(tmp_path, text, quick=True)
    assert (quick.config.rounds, quick.config.lipschitz, quick.config.delta) == (5, 4.0, 1e-3)
    assert (sweep.ranks, sweep.name) == (4, "two-quick")


def test_a_series_may_take_part_of_the_grid(tmp_path):
    text = BASE.replace('label = "with noise"', "grid = {epsilon = [4.0]}")
    runs = plan(tmp_path, text, repeat=1)[1]
    assert [(run.series, run.config.epsilon) for run in runs] == [("private", 4.0), ("plain", None)]
    with pytest.raises(ConfigError, match="no value of epsilon is one of"):
        plan(tmp_path, text, quick=True)


def test_a_grid_of_two_keys_is_their_product(tmp_path):
    text = BASE.replace(
        "epsilon = [1.0, 4.0]", "epsilon = [1.0, 4.0]\ngraph = ['ring', 'complete', 'erdos-renyi:p=0.9']"
    )
    runs = plan(tmp_path, text, repeat=1)[1]
    assert len(runs) == 2 * 3 + 3
    assert len({run.path for run in runs}) == len(runs)
    assert {(run.config.graph, run.config.epsilon) for run in runs if run.series == "private"} == {
        (graph, epsilon) for graph in ("ring", "complete", "erdos-renyi:p=0.9") for epsilon in (1.0, 4.0)
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title =", "titel =", "unknown key 'titel' (did you mean title?)"),
        ("ranks = 3", "", "expected ranks = a whole number from 1 to 10000, found nothing"),
        ("ranks = 3", "ranks = 0", "ranks = a whole number from 1 to 10000, found 0"),
        ("repetitions = 2", "repetitions = 1.5", "expected repetitions = a whole number"),
        ("rounds = 6", "round = 6", "series 'private', epsilon = 1.0: unknown flag --round"),
        ("rounds = 6", "rounds = 'six'", "expected a whole number for --rounds, found 'six'"),
        ("rounds = 6", "rounds = [6]", "[run]: expected rounds = text, a number, true or false, found [6]"),
        ("rounds = 6", "out = 'x'", "[run]: expected settings of a run, found out: use --out"),
        ("rounds = 6", "graph = 'rnig'", "rnig"),
        ('"synthetic:samples=60', '"synthetic:sample=60', "unknown option 'sample'"),
        ('without = ["epsilon"]', 'without = ["epsilom"]', "unknown key 'epsilom' (did you mean epsilon?)"),
        ('name = "plain"', 'name = "private"', "series 'private': expected a name of its own"),
        ('name = "plain"', 'name = "../plain"', "at most 100 letters, digits and . _ + -, found '../plain'"),
        ('name = "plain"', 'name = "plain"\nepsilon = 2', "expected epsilon in the series or in [grid]"),
        ("[1.0, 4.0]", "[1.0, 1.0]", "epsilon = different values, found [1.0, 1.0]"),
        ("[1.0, 4.0]", "4.0", "epsilon = a list of values, found 4.0"),
        ("[1.0, 4.0]", "[1.0, -4.0]", "epsilon = -4.0: --epsilon must be greater than 0"),
        ("grid = {epsilon = [1.0]}", "grid = {epsilo = [1.0]}", "[quick.grid]: expected some of epsilon, found"),
        ('y = "objective"', 'y = "suboptimality"', "needs reference = true"),
        ('y = "objective"', "", "[plot 1]: expected y = \"TEXT\", found nothing"),
        ('x = "epsilon"', 'x = "epsilom"', "[plot 1]: expected x = one of round"),
        ('x = "epsilon"\ny = "objective"', 'x = "round"\ny = "objectiv"', "(did you mean objective?)"),
        ('log = "x"', 'log = "z"', "expected log = \"x\", \"y\" or \"xy\", found 'z'"),
        ("[grid]", "[repeat]\nseed = 3\n[grid]", '[repeat]: expected seed = "advance"'),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_before_anything_runs(tmp_path, old, new, message):
    assert old in BASE
    file = write(tmp_path, BASE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        command.main([str(file), "--out", str(tmp_path / "out")])
    assert message.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_run_under_a_launcher_is_told_its_ranks_and_one_without_is_loopback(tmp_path):
    run = make_runs(read_sweep(write(tmp_path, BASE)))[0]
    echo = tmp_path / "echo.sh"
    echo.write_text('printf "dpmpi: %s\\n" "$*" >&2; exit 3')
    told = command.execute(run, 3, Launcher(f"sh {echo} -n {{ranks}} --host 'a b'"), tmp_path / "out")
    assert told.startswith(f"-n 3 --host a b {sys.executable} -m dpmpi.run ")
    assert told.endswith("--ranks=3 (exit code 3)")
    assert " ".join(run.flags) + f" --out={tmp_path}/out" in told
    assert command.execute(run, 3, None, tmp_path / "out") is None
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"] == 3


def test_values_become_flags():
    assert as_flags({"sample_edges": 2, "normalize": False, "reference": True, "delta": 1e-5, "noise": -1}) == [
        "--sample-edges=2", "--no-normalize", "--reference", "--delta=1e-05", "--noise=-1",
    ]  # fmt: skip


def states(folder):
    return {run["path"]: run["state"] for run in json.loads((folder / "sweep.json").read_text())["runs"]}


def test_a_sweep_runs_goes_on_and_redoes_what_changed(tmp_path, capsys):
    noisy = BASE.replace("rounds = 2", "rounds = 2\ninsecure-noise-seed = 9")
    file, out = write(tmp_path, noisy), tmp_path / "out"
    arguments = [str(file), "--quick", "--out", str(out)]
    folder = out / "two-quick"
    assert command.main([*arguments, "--only", "plain"]) == 0
    assert states(folder) == {"private/epsilon=1.0/rep-0": "waiting", "plain/rep-0": "done"}
    plain = (folder / "plain/rep-0/summary.json").stat().st_mtime_ns

    assert command.main(arguments) == 0
    assert set(states(folder).values()) == {"done"}
    assert (folder / "plain/rep-0/summary.json").stat().st_mtime_ns == plain
    said = capsys.readouterr()
    assert "1 of 2 runs are done already" in said.err
    assert "1/1 runs" in said.err

    run = plan(tmp_path, noisy, quick=True)[1][0]
    assert train([*run.flags, "--loopback=3", f"--out={tmp_path / 'alone'}"]) == 0
    own, alone = (
        json.loads((path / "summary.json").read_text())
        for path in (folder / run.path, tmp_path / "alone")
    )  # fmt: skip
    for key in ("objective", "accuracy", "consensus_error", "communication", "privacy"):
        assert own[key] == alone[key]

    (folder / run.path / "summary.json").unlink()  # as if it had been interrupted
    assert not command.is_done(folder / run.path, run, 3)
    assert command.main(arguments) == 0
    assert (folder / "private/epsilon=1.0/rep-0.1").is_dir()
    assert command.is_done(folder / run.path, run, 3)
    assert not command.is_done(folder / run.path, run, 4)
    other = plan(tmp_path, noisy.replace("rounds = 2", "rounds = 3"), quick=True)[1][0]
    assert not command.is_done(folder / run.path, other, 3)
    assert (folder / "plain/rep-0/summary.json").stat().st_mtime_ns == plain


def test_a_run_that_fails_does_not_end_the_sweep(tmp_path, capfd):
    text = BASE.replace('label = "with noise"', 'batch = "fixed:999"')
    arguments = [str(write(tmp_path, text)), "--quick", "--out", str(tmp_path)]
    assert command.main(arguments) == 1
    assert states(tmp_path / "two-quick") == {"private/epsilon=1.0/rep-0": "failed", "plain/rep-0": "done"}
    said = capfd.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("failed: 1 of 2 runs")]
    assert len(lines) == 1
    assert "999" in lines[0]
    assert "exit code 2" in lines[0]
    assert "1 of 2 runs, medians" in said.out


def test_a_launcher_that_is_not_there(tmp_path):
    file = write(tmp_path, BASE)
    with pytest.raises(ConfigError, match="cannot start no-such-launcher"):
        command.main([str(file), "--quick", "--out", str(tmp_path), "--launcher", "no-such-launcher -n {ranks}"])
    with pytest.raises(ConfigError, match="--launcher: expected a command"):
        command.main([str(file), "--quick", "--out", str(tmp_path), "--launcher", "mpirun 'x"])


def test_an_interrupted_sweep_leaves_no_process_and_can_go_on(tmp_path):
    file = write(tmp_path, BASE.replace("rounds = 2", "rounds = 10000000"))
    process = subprocess.Popen(
        [sys.executable, "-m", "dpmpi", "sweep", file, "--quick", "--out", tmp_path], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert wait_until(lambda: list(tmp_path.rglob("metrics/rank-000.jsonl")), 20)
    process.send_signal(signal.SIGTERM)  # to the sweep alone: the run must not outlive it
    done = finish(process, 20)
    assert done.code == 130
    assert done.own_lines() == ["dpmpi: interrupted, 0 of 2 runs are done: the same command goes on"]
    assert not survivors(tmp_path)
    assert set(states(tmp_path / "two-quick").values()) == {"waiting"}


def test_the_documented_example_is_a_sweep(tmp_path):
    page = REPOSITORY / "docs/experiments/README.md"
    example = page.read_text().split("```toml\n")[1].split("```")[0]
    sweep, runs = plan(tmp_path, example)
    assert len(runs) == 10 * (4 + 3 + 1)
    assert len(plan(tmp_path, example, quick=True)[1]) == 2 * 3
    assert sweep.series[1].settings == {"calibration": "theorem"}


def test_a_number_of_thousands_of_digits_is_refused(tmp_path):
    """Python reads it as hexadecimal, but does not print it."""
    file = write(tmp_path, BASE.replace("epsilon = [1.0, 4.0]", f"epsilon = [0x{'f' * 5000}]"))
    with pytest.raises(ConfigError, match="epsilon = a number below 2\\^63, found a number of thousands of digits"):
        read_sweep(file)


def test_a_million_ranks_are_refused_before_their_graph_is_made(tmp_path):
    with pytest.raises(ConfigError, match="expected ranks = a whole number from 1 to 10000, found 1000000"):
        read_sweep(write(tmp_path, BASE.replace("ranks = 3", "ranks = 1000000")))
