"""`verify` on run directories that somebody has changed, as well as they could, after real (loopback) runs."""

import json
import shutil

import pytest
from altered import rehash

from dpmpi.commands.dispatch import main as command
from dpmpi.commands.verify import verify
from dpmpi.commands.verify.events import compare
from dpmpi.core import Sampling
from dpmpi.crypto.keys import Identity, load_identity, make_identities
from dpmpi.errors import ConfigError
from dpmpi.privacy import accountants
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import read_lines, recorded_spending
from dpmpi.privacy.ledger_proofs import head_file, read_key
from dpmpi.run import main
from dpmpi.runtime.flags import from_values

RUN = ("--loopback", "3", "--data", "synthetic:samples=600,features=4", "--rounds", "40", "--no-evaluate")
KINDS = {
    "full": ("--epsilon", 1),
    "poisson": ("--epsilon", 1, "--batch", 40),
    "noise given": ("--noise", 1),
    "theorem": ("--algorithm", "dp-dda", "--epsilon", 1, "--calibration", "theorem"),
    "sum": ("--epsilon", 1, "--graph", "complete", "--exchange", "shares", "--noise-in", "sum"),
    "laplace": ("--algorithm", "ldp-admm", "--epsilon", 1, "--batch", "full", "--loss", "logistic"),
    "spherical": ("--algorithm", "pvp-admm", "--epsilon", 1, "--loss", "logistic", "--rounds", 5),
    "objective": ("--algorithm", "dvp-admm", "--epsilon", 1, "--loss", "logistic", "--rounds", 5),
    "sampled edges": ("--algorithm", "sampled-dda", "--graph", "complete", "--epsilon", 1),
    "falling noise": ("--algorithm", "dp-dgd", "--data", "mean:samples=600", "--epsilon", 1),
    "repeatable": ("--noise", 1, "--insecure-noise-seed", 1),
    "bare": (),
}


def run(out, *flags):
    assert main([*RUN, *map(str, flags), "--out", str(out)]) == 0
    return out


def problems(run, rank=1, **how):
    return "; ".join(verify(run, **how)[rank].problems)


def ledger(run, rank=1):
    return run / "ledger" / f"rank-00{rank}.jsonl"


def strangers(run):
    """Leave what somebody else has: no key, and no head."""
    for rank in range(3):
        head_file(read_key(ledger(run, rank))).unlink()
        ledger(run, rank).with_suffix(".key").unlink()


def adapt(run, change, rank=1):
    """Change a rank's part of the summary, and claim what its ledger then costs."""
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    record = summary["per_rank"][rank]
    record["epsilon"] = certified_epsilon(recorded_spending(ledger(run, rank)), summary["privacy"]["delta"])
    last = [*read_lines(ledger(run, rank))][-1]
    record["ledger"] = {"seq": last.entry["seq"], "hash": last.hash, "signature": last.signature}
    change(record)
    summary["privacy"]["epsilon"] = max(one["epsilon"] for one in summary["per_rank"])
    path.write_text(json.dumps(summary))


# --- what is right checks out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_run_checks_out(tmp_path, kind):
    for rank in verify(run(tmp_path / "run", *KINDS[kind])):
        assert rank.problems == ()
        if kind not in ("repeatable", "bare"):
            assert rank.bounds.lower <= rank.epsilon
            assert rank.bounds.upper <= 1.005 * rank.epsilon or kind in (
                "spherical",
                "sum",
                "laplace",
                "theorem",
                "poisson",
            )
        told = [text for text in rank.unchecked if "signatures" not in text and "closing" not in text]
        assert told == (["no lower bound for spherical-laplace noise in an objective"] if kind == "objective" else [])


def test_what_could_not_be_checked_is_said(tmp_path, capsys):
    out = run(tmp_path / "run", "--noise", 1)
    strangers(out)
    assert all("macs and head: the key is its owner's" in rank.unchecked for rank in verify(out))
    capsys.readouterr()
    assert command(["verify", str(out)]) == 0
    assert "could not be checked" in capsys.readouterr().out.splitlines()[0]


def test_who_has_only_their_own_ledger_checks_that(tmp_path):
    out = run(tmp_path / "run", *KINDS["sum"])
    for rank in (0, 2):
        ledger(out, rank).unlink()
        ledger(out, rank).with_suffix(".key").unlink()
    found = verify(out)
    assert not any(rank.problems for rank in found)
    assert [rank.absent for rank in found] == [True, False, True]
    assert not any("plan" in text for text in found[1].unchecked)
    head_file(read_key(ledger(out))).unlink()
    rehash(ledger(out), ten_times, read_key(ledger(out)))
    adapt(out, lambda record: record.update(sigma=10 * record["sigma"]))
    assert "expected noise" in problems(out)


def test_ledgers_that_are_not_here_are_absent_and_the_last_line_says_so(tmp_path, capsys):
    out = run(tmp_path / "run", "--noise", 1)
    theirs = tmp_path / "theirs"
    theirs.mkdir()

    def told(*flags):
        capsys.readouterr()
        code = command(["verify", str(out), *map(str, flags)])
        return code, capsys.readouterr().out.splitlines()

    for rank in (0, 2):
        shutil.move(ledger(out, rank), theirs)
        ledger(out, rank).with_suffix(".key").unlink()
    code, lines = told()
    assert code == 3
    assert [line.split()[5] for line in lines[1:4]] == ["absent", "ok", "absent"]
    assert f"get rank-000.jsonl from its party and put it into {out / 'ledger'}, or give --ledger DIR" in lines[1]
    assert lines[-1] == "1 of 3 ledgers check out (rank 1), 2 are not here: the check is not complete"
    code, lines = told("--own", 1)
    assert (code, lines[-1]) == (0, "1 of 3 ledgers check out (rank 1), 2 are not here")
    code, lines = told("--own", "0,1")
    assert (code, lines[-1]) == (3, "1 of 3 ledgers check out (rank 1), 2 are not here: the check is not complete")
    assert told("--own", 3)[0] == 2
    assert told("--own", "one")[0] == 2
    code, lines = told("--ledger", theirs)
    assert (code, lines[-1]) == (3, "2 of 3 ledgers check out (ranks 0, 2), 1 is not here: the check is not complete")
    shutil.copy(ledger(out), theirs)
    code, lines = told("--ledger", theirs)
    assert (code, lines[-1]) == (0, "3 of 3 ledgers check out")
    (theirs / "rank-000.jsonl").write_text("no ledger")
    (theirs / "rank-002.jsonl").unlink()
    code, lines = told("--ledger", theirs)
    assert (code, lines[-1]) == (1, "1 of 3 ledgers check out (rank 1), 1 is not here: the check is not complete")
    assert told("--ledger", theirs, "--own", 1)[0] == 1  # one that is here and wrong is never overlooked
    assert [line.split()[5] for line in lines if line.lstrip()[0].isdecimal()][:3] == ["WRONG", "ok", "absent"]
    for path in theirs.iterdir():
        path.unlink()
    code, lines = told("--ledger", theirs)
    assert (code, lines[-1]) == (3, "0 of 3 ledgers check out, 3 are not here: the check is not complete")
    assert command(["verify", str(out), "--ledger", str(tmp_path / "nowhere")]) == 2


def test_an_owner_whose_ledger_was_removed_is_told(tmp_path):
    out = run(tmp_path / "run", "--noise", 1)
    ledger(out).unlink()
    assert problems(out).endswith("beside its key, found none: it was removed")


@pytest.mark.parametrize(("kind", "why"), [("repeatable", "insecure_noise_seed"), ("bare", "without an epsilon")])
def test_a_run_that_promises_nothing_is_called_not_private(tmp_path, capsys, kind, why):
    out = run(tmp_path / "run", *KINDS[kind])
    capsys.readouterr()
    assert command(["verify", str(out)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("3 of 3 ledgers check out; NOT PRIVATE: ")
    assert why in last


def test_no_cache_is_believed(tmp_path, monkeypatch):
    """A run whose cache says a third of every price has too little noise, and says that it has enough."""
    true = accountants.certified_epsilon

    def poisoned(spending, delta, cache=None):
        return true(spending, delta) / (1 if cache is None else 3)

    for module in ("accountants", "calibration"):
        monkeypatch.setattr(f"dpmpi.privacy.{module}.certified_epsilon", poisoned)
    out = run(tmp_path / "run", *KINDS["poisson"])
    assert 0.99 < json.loads((out / "summary.json").read_text())["privacy"]["epsilon"] <= 1
    found = problems(out)
    assert found.startswith("expected noise")
    assert "which two data sets show" in found


# --- what is wrong does not ------------------------------------------------------------------------------------------


def ten_times(entry):
    """Scale all noise by ten, as if the run had been ten times as private."""
    if entry["type"] == "header":
        entry["sigma"] *= 10
    for event, _ in entry.get("events", ()):
        event["scale"] *= 10


@pytest.mark.parametrize("kind", ["full", "poisson", "noise given", "sum", "laplace", "spherical", "falling noise"])
def test_events_scaled_by_ten_with_the_summary_adapted(tmp_path, kind):
    """Nobody but the plan can tell: the chain is whole, the claim is what the ledger costs, and there is no key."""
    out = run(tmp_path / "run", *KINDS[kind])
    strangers(out)
    rehash(ledger(out), ten_times)
    adapt(out, lambda record: record.update(sigma=10 * record["sigma"]))
    assert problems(out).startswith("expected noise")
    assert problems(out, 0) == ""


CHANGES = {
    "scale": lambda event: event.update(scale=event["scale"] * 10),
    "sensitivity": lambda event: event.update(sensitivity=event["sensitivity"] / 10),
    "sampling": lambda event: event.update(sampling="poisson"),
    "expected": lambda event: event.update(expected=event["expected"] / 2),
    "records": lambda event: event.update(records=event["records"] * 2),
    "noise": lambda event: event.update(noise="discrete-gaussian"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_part_of_an_event_is_compared(tmp_path, what):
    out = run(tmp_path / "run", "--epsilon", 1)
    strangers(out)
    rehash(ledger(out), lambda entry: [CHANGES[what](event) for event, _ in entry.get("events", ())])
    adapt(out, lambda record: None)
    assert f"charge 1: expected {what}" in problems(out)


def test_zeroed_counts_that_are_rehashed(tmp_path):
    """A spent budget would come back."""

    def zero(entry):
        if entry["type"] == "reserve":
            entry["events"] = [[event, 0] for event, _ in entry["events"]]

    out = run(tmp_path / "run", "--epsilon", 1)
    rehash(ledger(out), zero)
    adapt(out, lambda record: record.update(stopped=1))
    found = problems(out)
    assert "expected the mac of the key beside it, found another" in found
    assert "a budget ended in round 1, the ledger has none" in found
    strangers_found = [text for text in found.split("; ") if "mac" not in text]
    assert strangers_found
    adapt(out, lambda record: record.update(stopped=None))
    assert "charges 0 releases, but the wire carried 40" in problems(out)


def test_another_ranks_ledger_in_its_place(tmp_path):
    out = run(tmp_path / "run", "--epsilon", 1)
    shutil.copy(ledger(out, 0), ledger(out))
    assert "expected the mac" in problems(out)
    shutil.copy(ledger(out, 0).with_suffix(".key"), ledger(out).with_suffix(".key"))
    assert "the summary says rank 1, expected were 0" in problems(out)
    rehash(ledger(out), lambda entry: entry.update(rank=1) if entry["type"] == "header" else None)
    assert "expected the mac" in problems(out)


def test_a_summary_in_which_one_rank_stands_twice(tmp_path):
    out = run(tmp_path / "run", "--epsilon", 1)
    summary = json.loads((out / "summary.json").read_text())
    summary["per_rank"][1] = summary["per_rank"][0]
    (out / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match="every rank once in the summary"):
        verify(out)


@pytest.mark.parametrize(("old", "new"), [("epsilon = 1.0", "epsilon = 0.5"), ("lipschitz = 1.0", "lipschitz = 0.1")])
def test_a_configuration_that_was_edited_afterwards(tmp_path, old, new):
    out = run(tmp_path / "run", "--epsilon", 1)
    text = (out / "config.toml").read_text()
    assert old in text
    (out / "config.toml").write_text(text.replace(old, new))
    assert "expected the config.toml that the ledger names" in problems(out)


def test_ranks_that_tell_the_start_differently(tmp_path):
    out = run(tmp_path / "run", "--noise", 1)
    key = read_key(ledger(out))
    rehash(ledger(out), lambda entry: entry.update(after_round=20) if entry["type"] == "header" else None, key)
    assert "start 0: another after_round than rank 0 has" in problems(out)


def test_a_summary_that_ends_the_ledger_elsewhere(tmp_path):
    out = run(tmp_path / "run", "--noise", 1)
    *_, last = read_lines(ledger(out))
    head = {"seq": last.entry["seq"], "hash": last.hash, "signature": None}
    adapt(out, lambda record: record.update(ledger=head))
    assert problems(out) == ""
    assert not any("closing" in text for text in verify(out)[1].unchecked)
    adapt(out, lambda record: record.update(ledger=head | {"hash": "0" * 64}))
    assert "expected the ledger to end with 0000" in problems(out)


# --- signed ledgers --------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(tmp_path):
    """A sealed run with a roster."""
    make_identities(3, tmp_path / "keys")
    return run(tmp_path / "run", "--epsilon", 1, "--seal", "--keys", tmp_path / "keys")


def test_a_signed_ledger_is_checked_with_the_roster(signed):
    for rank in verify(signed):
        assert rank.problems == ()
        assert not any("signatures" in text for text in rank.unchecked)
    shutil.rmtree(signed.parent / "keys")
    assert all("signatures: no roster" in " ".join(rank.unchecked) for rank in verify(signed))


@pytest.mark.parametrize("left", [1, 2])
def test_a_ledger_cut_after_a_signed_line(signed, left):
    """Every line is signed, so what is left is: its end is missing."""
    strangers(signed)
    ledger(signed).write_text("".join(ledger(signed).read_text().splitlines(keepends=True)[:left]))
    assert "the ledger was not closed" in problems(signed)


def test_a_ledger_that_ends_with_the_close_of_a_checkpoint(signed):
    """Signed and closed, but not where the run ended it: only the last line says so."""
    key, identity = read_key(ledger(signed)), load_identity(signed.parent / "keys" / "rank-001.key")
    head_file(key).unlink()
    rehash(ledger(signed), lambda entry: entry.pop("ended", None), key, identity.sign)
    assert "expected the ledger to end with" in problems(signed)
    adapt(signed, lambda record: None)
    assert "expected the run's last line" in problems(signed)


def test_a_ledger_rewritten_by_its_host_without_the_identity(signed, tmp_path):
    """The owner's key and head are there, the identity is not: it was made anew, and everything else was forged."""
    config = from_values({"config": str(signed / "config.toml"), "epsilon": 0.5})
    (signed / "config.toml").write_text(config.to_toml())

    def forged(entry):
        ten_times(entry)
        if entry["type"] == "header":
            entry["config"] = config.digest()

    key = read_key(ledger(signed))
    head_file(key).unlink()
    rehash(ledger(signed), forged, key)
    assert "expected a signature by the roster's key" in problems(signed)
    rehash(ledger(signed), lambda entry: None, key, Identity().sign)
    assert "expected a signature by the roster's key" in problems(signed)
    path = ledger(signed)
    unsigned = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in e.items() if k != "signature"}) + "\n" for e in unsigned))
    assert "expected lines that rank 1 signed, found none" in problems(signed)


def test_the_signature_is_for_this_rank(signed):
    for suffix in (".jsonl", ".key"):
        shutil.copy(ledger(signed, 0).with_suffix(suffix), ledger(signed).with_suffix(suffix))
    assert "the summary says rank 1, expected were 0" in problems(signed)
    rehash(
        ledger(signed),
        lambda entry: entry.update(rank=1) if entry["type"] == "header" else None,
        read_key(ledger(signed)),
    )
    assert "expected a signature by the roster's key" in problems(signed)


# --- order -----------------------------------------------------------------------------------------------------------


def test_the_order_of_charges_is_compared():
    one, two = (ReleaseEvent("gaussian", scale, 1.0, Sampling("full", 10.0, 10)) for scale in (1.0, 2.0))
    planned = [(one, 3), (two, 2), (one, 1)]
    for made in range(7):
        pieces = [one, one, one, two, two, one][:made]
        assert list(compare([(event, 1) for event in pieces], planned)) == []
    assert list(compare([(one, 3), (one, 1)], planned)) == ["charge 4: expected scale 2.0 by the plan, found 1.0"]
    assert list(compare([(two, 2), (one, 4)], planned)) == ["charge 1: expected scale 1.0 by the plan, found 2.0"]
    assert list(compare([*planned, (one, 2)], planned)) == ["charges 2 releases more than the 6 that were planned"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("dmeo", "no such folder (did you mean runs/demo?)"),
        ("demo", "no such folder (did you mean runs/demo?)"),
        ("nowhere", "no such folder: the last run here is runs/demo"),
        ("runs", "no summary.json"),
        ("table.csv", "a file: name the directory"),
    ],
)
def test_a_run_that_is_not_there(tmp_path, monkeypatch, capsys, name, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/summary.json").touch()
    (tmp_path / "table.csv").touch()
    assert command(["verify", name]) == 2
    assert capsys.readouterr().err == f"dpmpi: {name} is not a finished run: expected its summary, found {found}\n"


def test_ranks_that_are_none(capsys):
    assert command(["verify", "--own", "runs/demo"]) == 2
    assert capsys.readouterr().err == "dpmpi: argument --own: expected ranks such as 0 or 1,2, found 'runs/demo'\n"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("runs/deom", "no such directory runs/deom (did you mean runs/demo?)"),
        ("runs", "runs without a config.toml that can be read: name one that was interrupted"),
        ("table.csv", "the file table.csv: name one that was interrupted"),
    ],
)
@pytest.mark.parametrize("start", [["run"], ["run", "-n", "2"], ["run", "--loopback", "2"]], ids=" ".join)
def test_a_run_that_cannot_be_resumed(tmp_path, monkeypatch, capsys, start, name, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/summary.json").touch()
    (tmp_path / "table.csv").touch()
    assert command([*start, "--resume", name]) == 2
    assert capsys.readouterr().err == f"dpmpi: expected the directory of a run after --resume, found {found}\n"


@pytest.mark.parametrize("words", [["show"], ["predict"]])
def test_a_table_in_the_place_of_a_model(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert command([*words, "table.csv", *(["table.csv"] if words == ["predict"] else [])]) == 2
    said = "expected a model (.npz) or the directory of a run, found table.csv, which is neither"
    assert capsys.readouterr().err == f"dpmpi: {said}\n"


def test_a_report_of_a_file(tmp_path, capsys):
    (tmp_path / "table.csv").touch()
    assert command(["report", str(tmp_path / "table.csv")]) == 2
    assert capsys.readouterr().err.endswith("table.csv, found a file\n")


def test_a_report_of_a_run_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["report", "nowhere"]) == 2
    assert capsys.readouterr().err.endswith("found no such directory\n")
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/summary.json").touch()
    assert command(["report", "runs/deom"]) == 2
    assert capsys.readouterr().err.endswith("found no such directory (did you mean runs/demo?)\n")


def test_a_mistyped_command(capsys):
    assert command(["reprot"]) == 2
    assert "found 'reprot' (did you mean report?)" in capsys.readouterr().err
