"""A run that was interrupted goes on as if it had not been, and charges for what it repeats."""

import errno
import fcntl
import json
import os
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from altered import rehash

from dpmpi.algorithms import ALGORITHMS
from dpmpi.commands.verify import verify
from dpmpi.errors import CheckpointError, LedgerError
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.ledger import _hash, _line, read_lines, recorded_spending
from dpmpi.privacy.ledger_proofs import head_file, read_key
from dpmpi.run import main
from dpmpi.runtime.engine import Engine
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.recovery import resume
from dpmpi.runtime.recovery.checkpoint import (
    Keeper,
    Manifest,
    checkpoint_files,
    read_checkpoint,
    read_manifest,
    write_manifest,
)
from dpmpi.runtime.recovery.snapshot import Snapshot

RANKS = 4
FLAGS = ("--data", "synthetic:samples=200,features=5", "--loss", "logistic", "--rounds", "12", "--seed", "3", "--quiet")
COMPLETE = ("--graph", "complete")
SPECIAL = {
    "dp-admm": COMPLETE, "ldp-gd": COMPLETE, "rcd": (*COMPLETE, "--coordinates", "2"),
    "one-shot": ("--data", "mean:samples=200,dimension=5", "--loss", "mean", "--penalty", "none"),
}  # fmt: skip


class Killed(BaseException):
    """Not an error that anybody handles."""


def run(out, *flags, until=None, monkeypatch=None):
    """Run on loopback; with `until`, let the power fail when that round would begin."""
    arguments = ["--loopback", str(RANKS), *map(str, flags)] + ([] if "--resume" in flags else ["--out", str(out)])
    if until is None:
        return main(arguments)
    advance, keepers = Engine.advance, []

    def keeper(*args, **how):
        keepers.append(Keeper(*args, **how))
        return keepers[0]

    def fail(engine, last):
        if last >= until:
            raise Killed
        advance(engine, last)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "advance", fail)
        patch.setattr("dpmpi.runtime.recovery.checkpoint.Keeper", keeper)
        patch.setattr("dpmpi.privacy.ledger.Ledger.close", lambda self: None)  # the dead close no books
        code = main(arguments)
    for one in keepers:
        one.join()  # what was begun to be written is on the disk: that it may not be is another test
    return code


def model(out):
    with np.load(out / "model.npz", allow_pickle=False) as found:
        return found["x_rank" if "x_rank" in found else "x"]


CASES = [(name, SPECIAL.get(name, ())) for name in ALGORITHMS]
CASES += [
    ("dp-dda", ("--batch", "10")),
    ("dp-dda", ("--seal",)),
    ("dp-dda", (*COMPLETE, "--exchange", "shares", "--noise-in", "sum")),
    ("admm", (*COMPLETE, "--exchange", "shares", "--share-mode", "full")),
    ("ip-admm", ("--batch", "fixed:7", "--mechanism", "gaussian")),
    ("dp-dda", ("--wire", "float32")),
    ("dp-dda", ("--noise-schedule", "optimal")),
    ("momentum", (*COMPLETE, "--exchange", "shares", "--noise-in", "sum", "--noise-schedule", "optimal")),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "flags"), CASES, ids=[f"{name} {' '.join(flags)}" for name, flags in CASES])
def test_the_end_is_that_of_an_uninterrupted_run(algorithm, flags, tmp_path, monkeypatch):
    noise = ("--noise", "0.1", "--delta", "1e-4", "--insecure-noise-seed", "5", "--checkpoint-every", "4")
    common = ("--algorithm", algorithm, *FLAGS, *flags, *noise)
    assert run(tmp_path / "whole", *common) == 0
    assert run(tmp_path / "cut", *common, until=11, monkeypatch=monkeypatch) != 0
    assert not (tmp_path / "cut" / "summary.json").exists()
    assert run(None, "--resume", tmp_path / "cut") == 0
    np.testing.assert_array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))
    ends = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "cut")]
    for key in ("objective", "accuracy", "consensus_error", "communication"):
        assert ends[0][key] == ends[1][key], key
    assert [end["starts"] for end in ends] == [1, 2]
    files = [tmp_path / name / "metrics" / "rank-002.jsonl" for name in ("whole", "cut")]
    rounds = [[json.loads(line)["round"] for line in file.read_text().splitlines()] for file in files]
    assert rounds[0] == rounds[1]
    assert not (tmp_path / "cut" / "checkpoint").exists()


@pytest.mark.parametrize("algorithm", ["dp-dda", "sampled-dda", "ip-admm", "dp-dgd", "rcd", "dvp-admm"])
def test_what_is_repeated_is_charged_again_and_no_more_than_an_interval(algorithm, tmp_path, monkeypatch):
    out, sent = tmp_path / "run", Counter()
    release = "dpmpi.core.Agent._admits"
    admits = __import__("dpmpi.core").core.Agent._admits

    def counting(agent, query, scale, part):
        sent[agent.rank] += 1
        return admits(agent, query, scale, part)

    monkeypatch.setattr(release, counting)
    every = 3
    common = ("--algorithm", algorithm, *FLAGS, *SPECIAL.get(algorithm, ()), "--checkpoint-every", every)
    common += ("--noise", "0.5", "--delta", "1e-4")
    assert run(out, *common, until=8, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out) == 0
    summary = json.loads((out / "summary.json").read_text())
    for rank in range(RANKS):
        charged = recorded_spending(out / "ledger" / f"rank-{rank:03d}.jsonl").total()
        each = {"ip-admm": 10, "dvp-admm": 2}.get(algorithm, 1)
        on_wire = -(-sent[rank] // 3) if algorithm == "rcd" else sent[rank]  # a pass of 3 blocks is one release
        assert on_wire <= charged <= on_wire + each * every + (1 if algorithm == "rcd" else 0)
    assert summary["privacy"]["private"] is True
    assert all(not replay.problems and not unplanned(replay) for replay in verify(out))


def unplanned(replay):
    """What verify could not compute of the plan of a rank's starts."""
    return [text for text in replay.unchecked if "plan" in text]


def test_the_target_holds_although_rounds_are_repeated(tmp_path, monkeypatch):
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--epsilon", "1", "--delta", "1e-4", "--checkpoint-every", "4")
    assert run(out, *common, until=4, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out, until=8, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert 0.99 < summary["privacy"]["epsilon"] <= 1.0
    assert summary["starts"] == 3
    charges = [recorded_spending(out / "ledger" / f"rank-{rank:03d}.jsonl").total() for rank in range(RANKS)]
    assert charges == [20] * RANKS  # rounds 1 to 4 and 5 to 8 twice
    assert all(record["stopped"] is None for record in summary["per_rank"])
    assert all(not replay.problems and not unplanned(replay) for replay in verify(out))
    ledger = out / "ledger" / "rank-001.jsonl"
    key, last = read_key(ledger), max(line.entry["seq"] for line in read_lines(ledger) if "sigma" in line.entry)

    def less(entry):
        """Half of the noise that is left to the last start after what the others have charged."""
        if entry["seq"] == last:
            entry["sigma"] /= 2
        for event, _ in entry.get("events", ()) if entry["seq"] > last else ():
            event["scale"] /= 2

    head_file(key).unlink()
    rehash(ledger, less, key)
    assert any("start 2: expected noise" in problem for problem in verify(out)[1].problems)


def test_where_nothing_is_left_of_the_target_the_rest_is_without_data(tmp_path, monkeypatch):
    """The last interval was reserved in full: whether it was released nobody knows, so it counts."""
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--epsilon", "1", "--delta", "1e-4", "--checkpoint-every", "4")
    assert run(out, *common, until=11, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert 0.99 < summary["privacy"]["epsilon"] <= 1.0
    assert [record["stopped"] for record in summary["per_rank"]] == [9] * RANKS
    assert all(not replay.problems for replay in verify(out))


def test_a_larger_budget_does_not_lift_the_target(tmp_path, monkeypatch):
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--epsilon", "1", "--delta", "1e-4", "--checkpoint-every", "4")
    assert run(out, *common, "--budget", "5", until=11, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert 0.99 < summary["privacy"]["epsilon"] <= 1.0
    assert [record["budget"] for record in summary["per_rank"]] == [5.0] * RANKS


def test_earlier_runs_leave_the_target_alone(tmp_path, monkeypatch):
    out, ledger = tmp_path / "run", ("--ledger", tmp_path / "ledger")
    common = ("--algorithm", "dp-dda", *FLAGS, "--epsilon", "1", "--delta", "1e-4", *ledger)
    assert run(tmp_path / "earlier", *common) == 0
    assert run(out, *common, "--checkpoint-every", "2", until=4, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert 0.99 < summary["privacy"]["epsilon"] <= 1.0
    assert all(record["stopped"] is None for record in summary["per_rank"])
    assert all(record["epsilon_with_earlier_runs"] > 1.2 for record in summary["per_rank"])


def test_a_budget_counts_what_was_charged_before(tmp_path, monkeypatch):
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.05", "--delta", "1e-4", "--checkpoint-every", "2")
    common += ("--budget", "3")
    assert run(tmp_path / "whole", *common) == 0
    assert run(out, *common, until=4, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", out) == 0
    whole, cut = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "run"))
    assert max(record["epsilon"] for record in cut["per_rank"]) <= 3.0
    for a, b in zip(whole["per_rank"], cut["per_rank"], strict=True):
        assert a["stopped"] is not None
        assert b["stopped"] <= a["stopped"]


def test_noise_after_a_restart_is_fresh(tmp_path, monkeypatch):
    """The same round twice: were its noise the same, the difference of two releases would be in the open."""
    ends = []
    for name in ("one", "two"):
        out = tmp_path / name
        if name == "one":
            common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4", "--checkpoint-every", "4")
            assert run(out, *common, until=11, monkeypatch=monkeypatch) != 0
            shutil.copytree(out, tmp_path / "two")
        else:  # the same ledger goes on twice: what the first one charged would be forgotten
            assert run(None, "--resume", out) != 0
            monkeypatch.setenv("DPMPI_HEADS", str(tmp_path / "heads of another machine"))
        assert run(None, "--resume", out) == 0
        ends.append(model(out))
    assert not np.any(ends[0] == ends[1])


def interrupted(tmp_path, monkeypatch, *flags):
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4", "--checkpoint-every", "3")
    assert run(out, *common, *flags, until=8, monkeypatch=monkeypatch) != 0
    return out


def test_refusals_name_the_reason(tmp_path, monkeypatch, capfd):
    out = interrupted(tmp_path, monkeypatch)
    files = checkpoint_files(out / "checkpoint", 1)
    assert sorted(files) == [3, 6]
    newest = files[6]
    capfd.readouterr()

    def refused(*flags, ranks=RANKS):
        assert main(["--loopback", str(ranks), "--resume", str(out), *flags]) in (1, 2)
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("dpmpi:")]
        assert len(lines) == 1, lines
        return lines[0]

    assert "settings" in refused("--rounds", "13")
    assert "has 4 ranks, found 3" in refused(ranks=3)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-3])
    ledger = out / "ledger" / "rank-001.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:1]))
    assert main(["--loopback", str(RANKS), "--resume", str(out)]) == 1
    said = capfd.readouterr().err
    assert "damaged" in said
    assert "lacks what was charged" in said
    ledger.write_text("".join(lines))
    newest.write_bytes(whole)
    manifest = out / "checkpoint" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"round": 0', '"round": 3'))  # once all are known to have it
    (out / "checkpoint" / "rank-002-3.state").unlink()
    (out / "checkpoint" / "rank-002-6.state").unlink()
    assert "round 3 for every rank, found none for rank 2" in refused()
    assert main(["--loopback", "4", "--resume", str(tmp_path / "nothing")]) == 2
    assert "found no such directory" in capfd.readouterr().err


@pytest.mark.parametrize("every", [("--checkpoint-every", "9"), ()], ids=["checkpoints", "none"])
def test_a_run_whose_books_are_not_all_there_is_refused(tmp_path, monkeypatch, capfd, every):
    """No checkpoint was reached, so nothing else would tell that something was charged."""
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4", *every)
    assert run(out, *common, until=6, monkeypatch=monkeypatch) != 0
    ledger = out / "ledger" / "rank-001.jsonl"
    ledger.rename(out / "elsewhere")
    assert run(None, "--resume", out) == 2
    assert f"expected what rank 1 has charged in {ledger}, found nothing of this run" in capfd.readouterr().err
    (out / "elsewhere").rename(ledger)
    assert run(None, "--resume", out, "--ledger", tmp_path / "new") == 2
    assert "leave out --ledger" in capfd.readouterr().err
    assert run(None, "--resume", out) == 0


def test_a_run_that_has_not_ended_is_not_resumed(tmp_path, monkeypatch, capfd):
    out = interrupted(tmp_path, monkeypatch)
    with (out / "ledger" / "rank-002.jsonl").open("a") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert run(None, "--resume", out) == 1
        assert "rank-002.jsonl in use" in capfd.readouterr().err
    assert run(None, "--resume", out) == 0


def test_another_shard_is_refused(tmp_path, monkeypatch, capfd):
    for rank in range(RANKS):
        generator = np.random.default_rng(rank)
        np.savez(tmp_path / f"{rank}.npz", X=generator.normal(size=(30, 4)), y=np.sign(generator.normal(size=30)))
    data = ("--data", f"shards:{tmp_path}/{{rank}}.npz", "--evaluate", 0)
    out = interrupted(tmp_path, monkeypatch, *data)
    generator = np.random.default_rng(99)
    np.savez(tmp_path / "2.npz", X=generator.normal(size=(30, 4)), y=np.sign(generator.normal(size=30)))
    assert main(["--loopback", str(RANKS), "--resume", str(out)]) == 1
    assert "the checkpoint of rank 2 cannot be used: the rank's rows are not those" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["runs", "\ufeffrun"])
def test_a_manifest_of_other_entries_is_refused_in_one_plain_line(tmp_path, name):
    write_manifest(RunDirectory(tmp_path), Manifest("ab", "c", 2, (0, 1), 0))
    path = tmp_path / "checkpoint" / "manifest.json"
    path.write_text(path.read_text().replace('"run"', f'"{name}"'))
    with pytest.raises(CheckpointError, match="entries that are not a manifest's") as caught:
        read_manifest(RunDirectory(tmp_path))
    assert str(caught.value).isprintable()


def test_a_damaged_newest_checkpoint_costs_an_interval_only(tmp_path, monkeypatch):
    out = interrupted(tmp_path, monkeypatch)
    newest = checkpoint_files(out / "checkpoint", 1)[6]
    newest.write_bytes(b"\0" * 100)
    assert run(None, "--resume", out) == 0
    header = [json.loads(line) for line in (out / "ledger" / "rank-000.jsonl").read_text().splitlines()]
    assert [line["after_round"] for line in header if line["type"] == "header"] == [0, 3]


def test_older_checkpoints_go_when_all_ranks_have_a_newer_one(tmp_path, monkeypatch, capfd):
    directory = RunDirectory(tmp_path)
    keeper = Keeper(directory, LoopbackTransport(2), Manifest("ab", "c", 2, (0, 1), 0))
    for round_ in (5, 10, 15):
        keeper.keep([Snapshot(round_, {"x": np.zeros(3)}, {}, {})] * 2)
    assert keeper.finish() == keeper.written == 15
    assert read_manifest(directory).round == 15
    assert [sorted(checkpoint_files(tmp_path / "checkpoint", rank)) for rank in (0, 1)] == [[15], [15]]
    keeper.settle(10)  # old news
    assert read_manifest(directory).round == 15
    monkeypatch.setattr("dpmpi.runtime.recovery.checkpoint.write_file", no_space)
    keeper.keep([Snapshot(20, {"x": np.zeros(3)}, {}, {})] * 2)
    assert keeper.finish() == keeper.written == 15
    assert "No space left on device; the run goes on without it" in capfd.readouterr().err


def no_space(path, content, **how):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_known_of_checkpoints_stays_known(tmp_path, monkeypatch):
    """And no more: survivors of a death go on from memory, after a round that is on no disk."""
    out = interrupted(tmp_path, monkeypatch)
    manifest = read_manifest(RunDirectory(out))
    write_manifest(RunDirectory(out), replace(manifest, round=3))
    assert run(None, "--resume", out, until=7, monkeypatch=monkeypatch) != 0
    assert read_manifest(RunDirectory(out)).round == 3


def test_a_run_without_a_checkpoint_begins_again_and_keeps_its_charges(tmp_path, monkeypatch):
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4")
    assert run(out, *common, until=8, monkeypatch=monkeypatch) != 0
    before = recorded_spending(out / "ledger" / "rank-000.jsonl").total()
    assert before >= 1
    assert run(None, "--resume", out) == 0
    assert recorded_spending(out / "ledger" / "rank-000.jsonl").total() == before + 12


def test_a_run_without_a_checkpoint_begins_again_with_all_its_ranks(tmp_path, monkeypatch, capfd):
    """Other ranks would have other rows, and ledgers that do not know what was said of them."""
    out = tmp_path / "run"
    common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4")
    assert run(out, *common, until=8, monkeypatch=monkeypatch) != 0
    for ranks in (3, 5):
        assert main(["--loopback", str(ranks), "--resume", str(out)]) == 2
        assert f"has 4 ranks, found {ranks}: start as many" in capfd.readouterr().err


def test_of_several_runs_in_a_ledger_the_last_one_begins_again(tmp_path, monkeypatch):
    common = ("--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4", "--ledger", tmp_path / "ledger")
    assert run(tmp_path / "first", *common) == 0
    assert run(tmp_path / "second", *common, until=8, monkeypatch=monkeypatch) != 0
    assert run(None, "--resume", tmp_path / "second") == 0
    headers = [json.loads(line) for line in (tmp_path / "ledger" / "rank-000.jsonl").read_text().splitlines()]
    first, second, resumed = (line["run"] for line in headers if line["type"] == "header")
    assert first != second == resumed


def test_a_finished_run_is_not_resumed(tmp_path, capfd):
    assert run(tmp_path / "run", *FLAGS, "--algorithm", "dda") == 0
    assert main(["--loopback", "4", "--resume", str(tmp_path / "run")]) == 2
    assert "is finished" in capfd.readouterr().err


def test_checkpoints_are_for_their_owner_and_hold_no_key(tmp_path, monkeypatch):
    out = interrupted(tmp_path, monkeypatch)
    files = list((out / "checkpoint").iterdir())
    assert len(files) == 2 * RANKS + 1
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert (out / "checkpoint").stat().st_mode & 0o077 == 0
    snapshot = read_checkpoint(checkpoint_files(out / "checkpoint", 0)[3])
    assert snapshot.streams is None  # only a repeatable stream says how far it was


@pytest.mark.parametrize("text", ["0", "-3", "x", "1.5", "s", "nan", "0s", "1e99"])
def test_intervals_that_cannot_be(text, tmp_path, capfd):
    assert run(tmp_path / "run", *FLAGS, f"--checkpoint-every={text}") == 2
    assert "--checkpoint-every takes rounds (200) or seconds (60s)" in capfd.readouterr().err


def test_seconds_between_checkpoints(tmp_path, monkeypatch):
    out = tmp_path / "run"
    common = ("--algorithm", "dda", *FLAGS, "--rounds", "4000", "--checkpoint-every", "0.05s")
    assert run(out, *common, until=3000, monkeypatch=monkeypatch) != 0
    rounds = sorted(checkpoint_files(out / "checkpoint", 0))
    assert rounds
    assert run(None, "--resume", out) == 0


def test_what_a_crash_left_half_written_goes_with_the_checkpoints(tmp_path):
    directory = RunDirectory(tmp_path)
    keeper = Keeper(directory, LoopbackTransport(2), Manifest("ab", "c", 2, (0, 1), 0))
    keeper.keep([Snapshot(5, {"x": np.zeros(3)}, {}, {})] * 2)
    keeper.finish()
    for name in (".rank-001-9.state.0123.part", ".manifest.json.4567.part"):
        (tmp_path / "checkpoint" / name).touch()
    keeper.remove()
    assert not (tmp_path / "checkpoint").exists()


def test_checkpoints_of_the_first_edition_are_told_apart(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    old = {"run": "ab", "config": "c", "batch": "full", "origin": 2, "members": [0, 1], "round": 20}
    (tmp_path / "checkpoint" / "manifest.json").write_text(json.dumps(old))
    with pytest.raises(CheckpointError, match=r"found those of dpmpi 0.1: resume the run with that version"):
        read_manifest(RunDirectory(tmp_path))


def stripped(path):
    """Leave the header alone, as dpmpi 0.1 would have written it: what was charged is forgotten."""
    first = next(iter(read_lines(path)))
    entry = first.entry | {"dpmpi": "0.1.0"}
    path.write_text(_line(entry | {"hash": _hash(entry)}) + "\n")


@pytest.mark.parametrize("key", [True, False], ids=["with its key", "without its key"])
def test_a_ledger_made_to_look_like_an_older_one_is_refused(tmp_path, monkeypatch, capfd, key):
    out = tmp_path / "run"
    assert run(
        out, "--algorithm", "dp-dda", *FLAGS, "--noise", "0.5", "--delta", "1e-4", until=6, monkeypatch=monkeypatch
    )
    monkeypatch.setenv("DPMPI_HEADS", str(tmp_path / "another machine"))  # which knows nothing of the ledger
    stripped(out / "ledger" / "rank-001.jsonl")
    if not key:
        (out / "ledger" / "rank-001.key").unlink()
    assert run(None, "--resume", out) != 0
    assert "expected lines with the mac of the key beside" in capfd.readouterr().err


def test_results_come_before_checkpoints_go(tmp_path, monkeypatch, capfd):
    """A disk that fills up at the end costs the results, not the way to them."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device", "summary.json")
        patch.setattr(RunDirectory, "write_summary", lambda self, summary: (_ for _ in ()).throw(full))
        assert run(out, *FLAGS, "--noise", "0.5", "--delta", "1e-4", "--checkpoint-every", "4") != 0
    assert not (out / "summary.json").exists()
    kept = {path.name[:8] for path in (out / "checkpoint").glob("*.state")}
    assert kept == {f"rank-00{rank}" for rank in range(RANKS)}
    assert run(None, "--resume", out) == 0
    assert not (out / "checkpoint").exists()


def test_lost_charges_are_not_what_one_disk_says(tmp_path, monkeypatch):
    told = [[[3, [["a", 1]]]], [[3, []]]]
    monkeypatch.setattr(resume, "on_all_ranks", lambda transport, look: told)
    with pytest.raises(LedgerError, match="found others on rank 1 than on rank 0"):
        resume.lost_charges(None, LoopbackTransport(2), RunDirectory(tmp_path), [0, 1], "run")
