"""Attacks on running ranks that broke the promise once, and what becomes of them now: see attack.py.

Figures about the process, noise set by another, settings of another's disk, a closing in the clear, a rewritten ledger,
a death among ranks with keys, an evaluation that shows a rank's own loss.
"""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from contract import RANKS, write_worlds
from launcher import survivors, wait_until

from dpmpi.commands.dispatch import main as command
from dpmpi.core.files import read_toml
from dpmpi.data.shards import read_npz, write_npz
from dpmpi.network.launcher import Launcher
from dpmpi.privacy.ledger import recorded_runs
from dpmpi.problem.rows import Dense
from dpmpi.runtime.flags import from_text

pytestmark = needs.mpi

PROGRAM = Path(__file__).parents[1] / "helpers" / "attack.py"
SEALED = ("--seal", "--keys", "{keys}")


@pytest.fixture
def folder(tmp_path):
    write_worlds(tmp_path)
    assert command(["keys", "make", "3", str(tmp_path / "keys")]) == 0
    return tmp_path


def attacked(folder, attack, *flags, ranks=RANKS, data="classes", limit=60, ulfm=False, home=None):
    """Run ranks under an attack; `{keys}` is a folder of keys."""
    words = [str(flag).replace("{keys}", str(folder / "keys")) for flag in flags]
    if "--resume" not in words:
        known = ["--data", f"shards:{folder}/{data}-0-{{rank}}.npz", "--rounds", "8", "--graph", "complete", "--quiet"]
        words = [*known, "--penalty", "l2:0.1", "--deadline", "60", *words]
    program = [sys.executable, str(PROGRAM), attack, str(folder), *words]
    known = {"DPMPI_HEADS": str(folder / "heads")} | ({} if home is None else {"HOME": str(home)})
    return Launcher.make(tolerant=ulfm).run(ranks, program, limit, known)


def notes(folder):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def headers(run):
    """Return the header of every rank's ledger, of those that have one."""
    return [recorded_runs(ledger)[-1][0] for ledger in sorted((run / "ledger").glob("rank-*.jsonl"))]


def refusal(done, *words):
    """Assert that a run was refused in one short line of each rank that speaks, with these words."""
    assert done.code not in (0, None), done.out
    assert "Traceback" not in done.err
    said = "\n".join(done.own_lines())
    for word in words:
        assert re.search(word, said), said
    return said


# --- 1: figures about the process -------------------------------------------------------------------------------------

FIGURES = ("wait_seconds", "compute_seconds", "training_seconds", "core_seconds", "seconds", "max_rss_mb", "host")
FIGURES += ("started", "wall_seconds", "rounds_per_second")


def figures(value):
    """Yield the process figures in a parsed document that are not null."""
    if isinstance(value, dict):
        for key, inside in value.items():
            if key in FIGURES and inside not in (None, {}):
                yield key
            yield from figures(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from figures(inside)


@pytest.mark.parametrize(("algorithm", "data"), [("admm", "classes"), ("dp-dda", "sparse")])
def test_figures_about_the_process_do_not_leave_a_rank(folder, algorithm, data):
    flags = ("--algorithm", algorithm, "--loss", "logistic", "--epsilon", 1, "--out", folder / "run")
    done = attacked(folder, "search", *flags, data=data)
    assert done.code == 0, done.err
    told = [json.loads(text) for one in notes(folder) for text in one["texts"]]
    assert len(told) > 10
    assert list(figures(told)) == []
    assert list(figures(json.loads((folder / "run" / "summary.json").read_text()))) == []
    for file in (folder / "run" / "process").iterdir():
        assert file.stat().st_mode & 0o077 == 0


# --- 2: noise and budget set by others --------------------------------------------------------------------------------

CALIBRATED = ("--epsilon", 1, "--budget", 1, "--batch", 6)


def sigmas(run):
    return {header["rank"]: header["sigma"] for header in headers(run)}


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The noise of a run that nobody attacks."""
    folder = tmp_path_factory.mktemp("right")
    write_worlds(folder)
    done = attacked(folder, "none", *CALIBRATED, "--out", folder / "run", home=folder)
    assert done.code == 0, done.err
    return sigmas(folder / "run")


def test_numbers_changed_on_their_way_lower_no_noise(folder, right):
    done = attacked(folder, "lower noise", *CALIBRATED, *SEALED, "--out", folder / "run", home=folder)
    assert "Traceback" not in done.err
    if done.code == 0:
        assert not any("changed" in one for one in notes(folder))
        assert sigmas(folder / "run") == right
    else:
        refusal(done, r"rank \d")
        assert not (folder / "run" / "ledger").exists()


def test_a_first_rank_that_lies_about_noise_is_refused(folder):
    done = attacked(folder, "lying first", *CALIBRATED, *SEALED, "--out", folder / "run", home=folder)
    refusal(done, "noise", r"rank \d")
    assert not (folder / "run" / "ledger").exists()


@pytest.mark.parametrize(
    "other", [("--epsilon", "1{me}"), ("--budget", "1{me}"), ("--delta", "1e-{me}5"), ("--rounds", "1{me}")]
)
def test_a_rank_with_other_settings_is_refused(folder, other):
    done = attacked(folder, "none", *CALIBRATED, *SEALED, "--out", folder / "run", *other)
    refusal(done, "same settings|settings", r"rank \d")
    assert not (folder / "run" / "ledger").exists()


def test_a_poisoned_cache_of_the_accountant_lowers_no_noise(folder, right):
    for run in ("first", "second"):
        done = attacked(folder, "none", *CALIBRATED, *SEALED, "--out", folder / run, home=folder)
        assert done.code == 0, done.err
        assert sigmas(folder / run) == right
        cache = folder / ".cache/dpmpi/accountant.json"
        known = json.loads(cache.read_text())
        assert known
        poison = {key: [1e-3, *value[1:]] if isinstance(value, list) else 1e-3 for key, value in known.items()}
        cache.write_text(json.dumps(poison))


@pytest.mark.parametrize("message", [1, 6, 20, 28])
def test_a_changed_control_byte_ends_all_processes_and_names_its_sender(folder, message):
    done = attacked(folder, f"flip {message}", *CALIBRATED, *SEALED, "--out", folder / "run")
    refusal(done, r"of rank [02]|than on rank 1|on rank [02]")
    assert not (folder / "run" / "summary.json").exists()
    assert wait_until(lambda: not survivors(folder), 20)


# --- 3: a resume from another's disk ----------------------------------------------------------------------------------

GOING_ON = ("--epsilon", 1, "--budget", 1, "--checkpoint-every", 2, *SEALED, "--out", "run")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was told to stop, of ranks that have nothing but their own folders."""
    folder = tmp_path_factory.mktemp("stopped")
    write_worlds(folder)
    assert command(["keys", "make", "3", str(folder / "keys")]) == 0
    done = attacked(folder, "stop", *GOING_ON)
    assert done.code == 75, done.err
    assert all((folder / str(rank) / "run" / "config.toml").exists() for rank in range(RANKS))
    return folder


def edit(file, old, new):
    text = file.read_text()
    assert re.search(old, text), text
    file.write_text(re.sub(old, new, text))


def edited_settings(old, new, *, from_the_beginning):
    """Return an edit of config.toml, and of the digest of the settings wherever rank 0 has written it down.

    Its checkpoints have the digest too: an attacker may change that, or remove them, so that the run begins again.
    """

    def change(run):
        before = digest(run)
        edit(run / "config.toml", old, new)
        manifest = run / "checkpoint/manifest.json"
        manifest.write_text(manifest.read_text().replace(before, digest(run)))
        rewrite(
            run / "ledger/rank-000.jsonl", lambda entry: entry | {"config": digest(run)} if "config" in entry else entry
        )
        if from_the_beginning:
            shutil.rmtree(run / "checkpoint")

    return change


def digest(run):
    """Return the digest of the settings in a run directory."""
    config = run / "config.toml"
    return from_text(config.read_text(), config, {}).digest()


def rewrite(ledger, change):
    """Write a ledger anew with changed entries, and hashes that go on as if nothing had happened."""
    prev, lines = "", []
    for line in ledger.read_text().splitlines():
        entry = json.loads(line)
        entry.pop("hash")
        entry = change(entry | {"prev": prev or entry["prev"]})
        prev = hashlib.sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        lines.append(json.dumps(entry | {"hash": prev}, sort_keys=True, separators=(",", ":")))
    ledger.write_text("\n".join(lines) + "\n")


def removed(pattern):
    def change(run):
        files = list(run.glob(pattern))
        assert files
        for file in files:
            file.unlink()

    return change


SETTINGS = {
    "less noise": (r"epsilon = 1.0", "epsilon = 4991.0"),
    "no seal": (r'seal = true\nkeys = "[^"]*"', "seal = false"),
    "no budget": (r'budget = "1"\n', ""),
    "a reference": (r"reference = false", "reference = true"),
}
EDITS = {name: edited_settings(*words, from_the_beginning=False) for name, words in SETTINGS.items()}
EDITS |= {f"{name}, again": edited_settings(*words, from_the_beginning=True) for name, words in SETTINGS.items()}
EDITS |= {
    "no config": removed("config.toml"),
    "no ledger": removed("ledger/rank-000.jsonl"),
    "no checkpoint": removed("checkpoint/*.state"),
    "another run": lambda run: edit(run / "checkpoint/manifest.json", r'"run": ?"[0-9a-f]{4}', '"run": "0000'),
    "fewer ranks": lambda run: edit(run / "checkpoint/manifest.json", r'"origin": ?3', '"origin": 4'),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_disk_of_rank_0_leads_to_a_refusal_and_nothing_else(stopped, tmp_path, name):
    folder = tmp_path / "copy"
    shutil.copytree(stopped, folder)
    EDITS[name](folder / "0" / "run")
    before = {rank: (folder / f"{rank}/run/ledger/rank-00{rank}.jsonl").read_bytes() for rank in (1, 2)}
    done = attacked(folder, "own folders", "--resume", "run")
    if name == "no checkpoint" and done.code == 0:  # it may begin again: what was charged stays charged
        return
    refusal(done)
    assert not list(folder.glob("*/run/summary.json"))
    for rank, ledger in before.items():
        assert (folder / f"{rank}/run/ledger/rank-00{rank}.jsonl").read_bytes() == ledger


def test_without_an_edit_the_run_goes_on_and_every_domain_has_the_results(stopped, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(stopped, folder)
    done = attacked(folder, "own folders", "--resume", "run")
    assert done.code == 0, done.err
    for name in ("config.toml", "summary.json", "model.npz"):
        found = {(folder / str(rank) / "run" / name).read_bytes() for rank in range(RANKS)}
        assert len(found) == 1 or name == "model.npz"
    models = [np.load(folder / str(rank) / "run" / "model.npz")["x"] for rank in range(RANKS)]
    assert all(np.array_equal(model, models[0]) for model in models)
    assert read_toml(folder / "1/run/config.toml", "config")["seal"] is True


# --- 4: the closing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seal", [(), ("--seal",)])
def test_the_closing_of_shared_sums_shows_no_iterate(folder, seal):
    flags = ("--algorithm", "ip-admm", "--exchange", "shares", "--epsilon", 1, *seal, "--keys", "{keys}")
    done = attacked(folder, "search", *flags, "--out", folder / "run")
    assert done.code == 0, done.err
    assert [one["model"] for one in notes(folder)] == [0] * RANKS
    with np.load(folder / "run" / "model.npz") as model:
        assert "x_rank" not in model.files


# --- 5: a rewritten ledger --------------------------------------------------------------------------------------------


def forget(entry):
    """Return an entry of a ledger that has charged nothing."""
    nothing = {"events": [[event, 0] for event, _ in entry.get("events", ())], "unused": 0}
    return entry | {key: value for key, value in nothing.items() if key in entry}


def test_a_rewritten_ledger_is_noticed_and_its_budget_does_not_come_back(folder):
    flags = ("--noise", 0.5, "--budget", 30, "--ledger", folder / "ledgers")
    done = attacked(folder, "none", *flags, "--out", folder / "first")
    assert done.code == 0, done.err
    rewrite(folder / "ledgers" / "rank-001.jsonl", forget)
    done = attacked(folder, "none", *flags, "--out", folder / "second")
    refusal(done, "rank-001.jsonl")
    assert not (folder / "second" / "summary.json").exists()


# --- 6: a table that grew ---------------------------------------------------------------------------------------------


def test_a_table_that_grew_carries_what_its_rows_have_spent(folder):
    flags = ("--noise", 5, "--ledger", folder / "ledgers")
    done = attacked(folder, "none", *flags, "--out", folder / "first")
    assert done.code == 0, done.err
    shard = folder / "classes-0-1.npz"
    rows, labels = read_npz(shard)
    grown = Dense(np.vstack([rows.matrix, rows.matrix[:1] / 2])), np.append(labels, 1.0)
    write_npz(shard, *grown)
    refusal(attacked(folder, "none", *flags, "--out", folder / "second"), "belongs to other rows")
    write_npz(shard, *grown, continues=True)
    done = attacked(folder, "none", *flags, "--out", folder / "third")
    assert done.code == 0, done.err
    for rank in json.loads((folder / "third" / "summary.json").read_text())["per_rank"]:
        assert rank["epsilon_with_earlier_runs"] > 1.2 * rank["epsilon"]


# --- 7: a death among ranks with keys, and evaluation -----------------------------------------------------------------


@needs.open_mpi()
def test_the_death_of_the_highest_rank_leaves_the_others_their_roster(tmp_path):
    write_worlds(tmp_path)
    assert command(["keys", "make", "4", str(tmp_path / "keys")]) == 0
    shutil.copy(tmp_path / "classes-1-0.npz", tmp_path / "classes-0-3.npz")
    flags = ("--epsilon", 1, *SEALED, "--rounds", 12, "--out", tmp_path / "run")
    done = attacked(tmp_path, "die", *flags, ranks=4, ulfm=True)
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["lost"], summary["ranks"]) == ([3], 3)


def test_evaluation_shows_no_rank_the_loss_of_another(folder):
    flags = ("--epsilon", 1, "--evaluate", 8, *SEALED, "--out", folder / "run")
    done = attacked(folder, "search", *flags)
    assert done.code == 0, done.err
    assert [one["loss"] for one in notes(folder)] == [0] * RANKS
    assert json.loads((folder / "run" / "summary.json").read_text())["objective"] > 0
