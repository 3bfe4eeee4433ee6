"""Every experiment file: its runs can be made, in full and with --quick, on any machine."""

import os
import re
from pathlib import Path

import pytest
from plans import plan_of

from dpmpi.commands.sweep.file import read_sweep
from dpmpi.commands.sweep.runs import make_runs
from dpmpi.data.dealing import evenly
from dpmpi.errors import ConfigError
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.settings import Settings

FOLDER = Path(__file__).parents[2] / "docs" / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
IN_FILES = ("adult", "libsvm", "shards")
VARIABLE = re.compile(r"\$\{(\w+)\}")


def planned(path, monkeypatch, *, quick):
    """Return the sweep and its runs; the files of data that it names need not be there."""
    for name in VARIABLE.findall(path.read_text()):
        monkeypatch.setenv(name, "/nowhere")
    sweep = read_sweep(path, quick=quick)
    return sweep, make_runs(sweep)


def size(config):
    """Return records and features of a run; files are taken to hold 40,000 records with 100 features."""
    if config.data.partition(":")[0] in IN_FILES:
        return config.samples or 40_000, 100
    source = Settings.of(config).source
    survey = source.survey()
    return source.training_rows(survey), survey.features


def posed(config, ranks):
    """Return the run's problem."""
    training, dimension = size(config)
    return plan_of(Settings.of(config), [len(evenly(training, rank, ranks)) for rank in range(ranks)], dimension)


def test_there_are_experiments():
    assert FILES


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_run_can_be_made(path, quick, monkeypatch):
    sweep, runs = planned(path, monkeypatch, quick=quick)
    assert sweep.about["text"]
    assert bool(sweep.about["paper"]) == bool(sweep.about["figure"])
    assert sweep.about["title"] != path.stem
    assert sweep.plots
    for run in runs:
        if run.repetition == 0:
            plan = posed(run.config, sweep.ranks)
            plan.check()
            if run.config.calibration == "theorem" and run.config.epsilon is not None:
                assert min(noise_levels(plan)) > 0.0  # the theorem has something to say at this epsilon


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_quick_is_less_work_for_the_same_lines(path, monkeypatch):
    whole, quick = planned(path, monkeypatch, quick=False), planned(path, monkeypatch, quick=True)
    assert [one.name for one in quick[0].series] == [one.name for one in whole[0].series]

    def work(runs):
        return sum(size(run.config)[0] * (run.config.rounds or 500) for run in runs)

    assert work(quick[1]) <= 0.6 * work(whole[1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_names_a_place_on_one_machine(path, monkeypatch):
    _, runs = planned(path, monkeypatch, quick=False)
    for run in runs:
        kind, _, where = run.config.data.partition(":")
        if kind in IN_FILES:
            assert where.startswith("/nowhere")  # what the variable was set to


TEXT = """
ranks = 2
[run]
data = "libsvm:${SOME_FOLDER}/${SOME_NAME}.bz2"
[grid]
graph = ["file:${SOME_FOLDER}/a", "file:${SOME_FOLDER}/b"]
[[series]]
name = "one"
ledger = "${SOME_FOLDER}"
"""


def test_variables_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_FOLDER", "/d/$x${SOME_NAME}")  # what is put in is not looked at again
    monkeypatch.setenv("SOME_NAME", "a9a")
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    sweep = read_sweep(path)
    assert sweep.base["data"] == "libsvm:/d/$x${SOME_NAME}/a9a.bz2"
    assert sweep.grid["graph"] == ("file:/d/$x${SOME_NAME}/a", "file:/d/$x${SOME_NAME}/b")
    assert sweep.series[0].settings["ledger"] == "/d/$x${SOME_NAME}"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named_in_one_line(tmp_path, monkeypatch, value):
    monkeypatch.setenv("SOME_FOLDER", "/d")
    monkeypatch.delenv("SOME_NAME", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_NAME", value)
    path = tmp_path / "x.toml"
    path.write_text(TEXT)
    with pytest.raises(ConfigError) as found:
        read_sweep(path)
    assert "[run]: data needs the environment variable SOME_NAME" in str(found.value)
    assert len(str(found.value).splitlines()) == 1
    assert not os.environ.get("SOME_NAME")
