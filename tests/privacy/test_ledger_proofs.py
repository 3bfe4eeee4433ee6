"""Macs, signatures and heads: whoever rewrites, cuts or replaces a ledger is found out by what they do not have."""

import json
import os
import stat

import pytest
from altered import rehash
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpmpi.core import Sampling
from dpmpi.core.files import sync_folders
from dpmpi.crypto.keys import Identity
from dpmpi.errors import LedgerError
from dpmpi.privacy import ledger_proofs
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Ledger, check_proofs, read_lines, recorded_spending
from dpmpi.privacy.ledger_proofs import LedgerKey, head_file, heads_folder, make_key, place_file, read_head, read_key

EVENT = ReleaseEvent("gaussian", 0.5, 0.01, Sampling("poisson", 16.0, 200))
HEADER = {"run": "ab", "rank": 3}


@pytest.fixture(autouse=True)
def _heads(tmp_path, monkeypatch):
    monkeypatch.setenv("DPMPI_HEADS", str(tmp_path / "heads"))


def spend(path, count, header=HEADER, **how):
    """Charge `count` releases as a run would; return the closing head."""
    with Ledger(path, header, plan=[(EVENT, count)], key=make_key(path), **how) as ledger:
        for t in range(count):
            ledger.charge(EVENT, t)
        ledger.close()
        return ledger.head()


def forget(entry):
    """Zero the counts: the budget is there again."""
    if entry["type"] == "reserve":
        entry["events"] = [[event, 0] for event, _ in entry["events"]]


def test_the_chain_alone_does_not_see_what_the_macs_see(tmp_path):
    path = tmp_path / "rank-003.jsonl"
    spend(path, 5)
    rehash(path, forget)
    assert recorded_spending(path).total() == 0  # the plain chain holds
    with pytest.raises(LedgerError, match=r"jsonl:2: expected the mac .* found another"):
        check_proofs(path, read_key(path))
    with pytest.raises(LedgerError, match="it was rewritten"):
        spend(path, 5)
    assert len(check_proofs(path, None)) == 3  # who does not have the key cannot tell


def test_the_owner_cannot_rewrite_what_its_head_knows(tmp_path):
    path = tmp_path / "rank-003.jsonl"
    spend(path, 5)
    rehash(path, forget, read_key(path))
    check_proofs(path, read_key(path))
    with pytest.raises(LedgerError, match=r"expected the hash .* found .* it was rewritten: put the whole ledger back"):
        spend(path, 5)
    head_file(read_key(path)).unlink()
    spend(path, 5)  # a new machine knows no better: verify says what it could not check


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_ledger_that_was_cut_is_refused(tmp_path, left):
    path = tmp_path / "rank-003.jsonl"
    spend(path, 5)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
    with pytest.raises(LedgerError, match=f"expected 3 lines in .*, found {left}, it was cut"):
        spend(path, 5)


def test_a_head_is_kept_before_a_charge_is_made(tmp_path):
    """A ledger that is cut back to its last close after a crash would forget the reservation that was being used."""
    path = tmp_path / "rank-003.jsonl"
    ledger = Ledger(path, HEADER, plan=[(EVENT, 5)], key=make_key(path))
    ledger.charge(EVENT, 1)
    assert read_head(read_key(path)).lines == 2
    ledger.settle()
    assert read_head(read_key(path)).lines == 3
    ledger.__exit__(RuntimeError, None, None)
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(LedgerError, match="it was cut"):
        spend(path, 5)


def test_a_head_is_for_its_owner_and_goes_where_the_ledger_goes(tmp_path):
    path = tmp_path / "run" / "rank-003.jsonl"
    spend(path, 5)
    for file in (head_file(read_key(path)), path.with_suffix(".key")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    moved = (tmp_path / "run").rename(tmp_path / "run.1") / path.name
    spend(path, 5)  # a new run in the same place has a ledger of its own
    moved.write_text("")
    with pytest.raises(LedgerError, match="expected 3 lines"):
        spend(moved, 5)


def test_a_ledger_that_goes_on_over_runs_cannot_be_replaced(tmp_path):
    path = tmp_path / "rank-003.jsonl"
    spend(path, 5, HEADER | {"shard": "its mark"})
    for file in (path, path.with_suffix(".key")):
        file.unlink()
    with pytest.raises(LedgerError, match=r"expected the ledger that .* found another one or none: put it back"):
        spend(path, 5, HEADER | {"shard": "its mark"})
    place_file(path).unlink()
    spend(path, 5, HEADER | {"shard": "its mark"})


def test_heads_of_runs_that_are_gone_are_swept_away(tmp_path, monkeypatch):
    """Those of ledgers that are there stay, and so do those of ledgers that go on over runs, and of other hosts."""
    monkeypatch.setattr(ledger_proofs, "_MANY", 3)
    paths = {name: tmp_path / name / "rank-003.jsonl" for name in ("there", "gone", "lasting", "elsewhere", "new")}
    for number, (name, path) in enumerate(paths.items()):  # all in one folder
        path.parent.mkdir()
        path.with_suffix(".key").write_text(next(secret for secret in in_folder("00", number)).hex())
        if name == "new":
            for other in ("gone", "lasting", "elsewhere"):
                paths[other].unlink()
            elsewhere = head_file(read_key(paths["elsewhere"]))
            elsewhere.write_text(elsewhere.read_text().replace(os.uname().nodename, "another host"))
        spend(path, 5, HEADER | ({"shard": "its mark"} if name == "lasting" else {}))
    kept = [name for name, path in paths.items() if head_file(read_key(path)).exists()]
    assert kept == ["there", "lasting", "elsewhere", "new"]


def in_folder(wanted, number):
    """Yield keys whose heads are in one folder."""
    for k in range(100_000):
        secret = bytes([number]) + k.to_bytes(31, "big")
        if LedgerKey(secret).name.startswith(wanted):
            yield secret


@pytest.mark.parametrize("content", ["", "{", "[]", '{"lines": "3"}', '{"lines": 3}'])
def test_half_a_head_is_none(tmp_path, content):
    path = tmp_path / "rank-003.jsonl"
    spend(path, 5)
    head_file(read_key(path)).write_text(content)
    spend(path, 5)


def test_a_home_that_cannot_be_written_to_does_not_end_a_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPMPI_HEADS", str(tmp_path / "file" / "heads"))
    spend(tmp_path / "rank-003.jsonl", 5)


def test_where_heads_are(monkeypatch):
    monkeypatch.delenv("DPMPI_HEADS")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert str(heads_folder()) == "/state/dpmpi/heads"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/one")
    assert str(heads_folder()) == "/home/one/.local/state/dpmpi/heads"


def test_lines_of_an_earlier_version_have_no_macs_and_later_ones_must(tmp_path):
    path = tmp_path / "rank-003.jsonl"
    with Ledger(path, HEADER, plan=[(EVENT, 5)]) as ledger:
        ledger.charge(EVENT, 1)
    spend(path, 5)
    macs = [line.mac for line in read_lines(path)]
    assert macs[:4] == [None] * 4
    assert None not in macs[4:]
    check_proofs(path, read_key(path))
    lines = path.read_text().splitlines()
    entry = json.loads(lines[-1])
    del entry["mac"]
    path.write_text("\n".join([*lines[:-1], json.dumps(entry)]) + "\n")
    with pytest.raises(LedgerError, match="found none"):
        check_proofs(path, read_key(path))


def test_every_line_is_signed_for_its_place_in_this_run(tmp_path):
    path, identity = tmp_path / "rank-003.jsonl", Identity()
    head = spend(path, 5, sign=identity.sign)
    public = Ed25519PublicKey.from_public_bytes(identity.public)
    lines = list(read_lines(path))
    assert head == {"seq": 2, "hash": lines[-1].hash, "signature": lines[-1].signature}
    for seq, line in enumerate(lines):
        public.verify(bytes.fromhex(line.signature), ledger_proofs.signed_bytes("ab", 3, seq, line.hash))
    for wrong in (("ac", 3, 2), ("ab", 2, 2), ("ab", 3, 1)):
        with pytest.raises(InvalidSignature):
            public.verify(bytes.fromhex(head["signature"]), ledger_proofs.signed_bytes(*wrong, head["hash"]))


def test_the_last_line_says_that_the_run_has_ended(tmp_path):
    path = tmp_path / "rank-003.jsonl"
    spend(path, 5)
    assert [line.entry.get("ended") for line in read_lines(path)] == [None, None, True]


def test_what_a_key_is_used_for_says_nothing_about_another_use():
    key = LedgerKey(bytes(range(32)))
    found = {key.mac("ab" * 32), key.owner_mark("ab" * 32), key.name, key.row_mark(("ab" * 32).encode()).hex()}
    assert len({text[:32] for text in found}) == 4
    assert key.name != LedgerKey(bytes(32)).name


def test_the_folders_of_a_new_ledger_are_on_disk(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))
    )
    path = tmp_path / "run" / "ledger" / "rank-003.jsonl"
    with Ledger(path, HEADER):
        assert {str(path.parent), str(path.parent.parent), str(tmp_path)} <= set(synced)
    synced.clear()
    with Ledger(path, HEADER):
        assert set(synced) == {str(path)}  # it was there before


def test_a_folder_that_cannot_be_read_ends_the_way_up(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(folder)

    monkeypatch.setattr("dpmpi.core.files.sync_folder", refuse)
    sync_folders(tmp_path / "file")
