"""Files that runs are made of: ledgers, keys, rosters, graphs, budgets, checkpoints, sweeps."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hostile import attempt, changed, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.commands.sweep.file import read_sweep
from dpmpi.commands.sweep.runs import make_runs
from dpmpi.core import Sampling
from dpmpi.crypto.keys import Identity, check_identity, load_identity, load_roster, make_identities
from dpmpi.data import Shard
from dpmpi.errors import CheckpointError, ConfigError, DpmpiError, LedgerError
from dpmpi.network.graph import make_graph
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import FIRST, Ledger, _hash, read_ledger, recorded_runs, recorded_spending
from dpmpi.privacy.ledger_proofs import LedgerKey
from dpmpi.problem.rows import Dense
from dpmpi.runtime.budget import read_budget
from dpmpi.runtime.flags import parse
from dpmpi.runtime.ledger_owner import check_ledger_owner, first_order, owner_mark
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.recovery.checkpoint import Manifest, read_checkpoint, read_manifest, write_manifest
from dpmpi.runtime.recovery.snapshot import FORMAT, Snapshot, to_bytes

# --- ledgers ---------------------------------------------------------------------------------------------------------

EVENT = ReleaseEvent("gaussian", 0.5, 0.1, Sampling("poisson", 8.0, 100))
OTHER = ReleaseEvent("laplace", 2.0, 0.1, Sampling("full", 100.0, 100), 7)
SHARD = Shard(Dense(np.ones((2, 3))), np.ones(2), Dense(np.empty((0, 3))), np.empty(0))
KEY = LedgerKey(bytes(32))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> bytes:
    """The content of a ledger of two runs."""
    path = tmp_path_factory.mktemp("ledger") / "rank-000.jsonl"
    for run in ("ab", "cd"):
        header = {"run": run, "rank": 0, "delta": 1e-5, "private": True, "insecure_noise": False, "filter_order": 3}
        with Ledger(path, header, [(EVENT, 150), (OTHER, 20)]) as file:
            for t in range(140):
                file.charge(EVENT, t + 1)
    return path.read_bytes()


@given(data=st.data())
@examples(120)
def test_damaged_ledger(data, ledger, tmp_path):
    path = tmp_path / "rank-000.jsonl"
    path.write_bytes(ledger)
    whole, runs = list(read_ledger(path)), recorded_runs(path)
    path.write_bytes(data.draw(damaged(ledger)))
    found = attempt("ledger", lambda: list(read_ledger(path)))
    if not isinstance(found, LedgerError):
        assert found == whole[: len(found)]  # a file that ends early is one that a crash left
        told = attempt("ledger, spending", lambda: recorded_runs(path))
        assert (
            isinstance(told, LedgerError) or [header for header, _, _ in told] == [h for h, _, _ in runs][: len(told)]
        )
    attempt("ledger, order", lambda: first_order(path))
    attempt("ledger, owner", lambda: check_ledger_owner(path, KEY, SHARD))


@given(data=st.data())
@examples(150)
def test_rewritten_ledger(data, ledger, tmp_path):
    """The chain is made anew around the change: what it says must make sense all the same."""
    entries = [json.loads(line) for line in ledger.splitlines()]
    entries = data.draw(changed(entries))
    previous, lines = FIRST, []
    for seq, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        if isinstance(entry, dict):
            entry.pop("hash", None)
            entry.update({"prev": previous} | ({"seq": seq} if "seq" in entry else {}))
            entry["hash"] = previous = _hash(entry)
        lines.append(json.dumps(entry) + "\n")
    path = tmp_path / "rank-000.jsonl"
    path.write_text("".join(lines))
    found = attempt("rewritten ledger", lambda: recorded_runs(path))
    if not isinstance(found, LedgerError):
        for _, spent, _ in found:
            assert all(isinstance(count, int) and count > 0 for count in spent.values())
        assert recorded_spending(path) == sum((spent for _, spent, _ in found), Counter())
    attempt("rewritten ledger, order", lambda: first_order(path))
    attempt("rewritten ledger, owner", lambda: check_ledger_owner(path, KEY, SHARD))


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_identities(3, folder)
    return folder


@given(data=st.data())
@examples(80)
def test_damaged_key(data, keys, tmp_path):
    path, roster = tmp_path / "rank-000.key", load_roster(keys / "roster.toml")
    path.touch(0o600)
    path.write_bytes(data.draw(damaged((keys / "rank-000.key").read_bytes())))
    found = attempt("key", lambda: load_identity(path))
    if isinstance(found, Identity) and found.public != roster[0]:
        with pytest.raises(ConfigError, match="expected the key that the roster has"):
            check_identity(found, 0, 3, roster)


@given(data=st.data())
@examples(80)
def test_damaged_roster(data, keys, tmp_path):
    path = tmp_path / "roster.toml"
    path.write_bytes(data.draw(damaged((keys / "roster.toml").read_bytes())))
    found = attempt("roster", lambda: load_roster(path))
    if not isinstance(found, DpmpiError):
        assert all(len(public) == 32 for public in found)
        assert len(set(found)) == len(found) >= 1


# --- graphs and budgets ----------------------------------------------------------------------------------------------

GRAPH = b"# a ring of five\n0 1\n1 2\n2 3  # a note\n\n3 4\n4 0\n"


def edges_of(raw: bytes):
    """Return the edges that a text names by the letter of the format; None if a line is not of it."""
    try:
        lines = raw.decode().splitlines()
        pairs = [line.split("#")[0].split() for line in lines]
        return (
            {tuple(sorted(map(int, pair))) for pair in pairs if pair} if all(len(p) in (0, 2) for p in pairs) else None
        )
    except ValueError:
        return None


@given(raw=damaged(GRAPH))
@examples(120)
def test_graph_file(raw, tmp_path):
    path = tmp_path / "edges"
    path.write_bytes(raw)
    graph = attempt("graph file", lambda: make_graph(f"file:{path}", 5, 0))
    if not isinstance(graph, ConfigError):
        assert set(graph.edges) == edges_of(raw)
        assert {i for edge in graph.edges for i in edge} == set(range(5))


@given(raw=damaged(b"# what rank 0 may spend\nepsilon = 1.5\n"))
@examples(120)
def test_budget_file(raw, tmp_path):
    (tmp_path / "0.toml").write_bytes(raw)
    config = parse(["--noise", "1", "--budget", f"{tmp_path}/{{rank}}.toml"])
    budget = attempt("budget file", lambda: read_budget(config, 0))
    assert isinstance(budget, ConfigError) or 0 <= budget < float("inf")


# --- the mark of a ledger's shard ------------------------------------------------------------------------------------


@given(raw=damaged(b"0123456789abcdef" * 4))
@examples(60)
def test_key_of_a_ledger(raw, tmp_path):
    path = tmp_path / "rank-000.jsonl"
    path.with_suffix(".key").write_bytes(raw)
    found = attempt("key of a ledger", lambda: owner_mark(path, SHARD))
    if isinstance(found, str):
        key = bytes.fromhex(raw.decode())
        assert len(key) == 32
        assert found == hmac.digest(key, SHARD.fingerprint.encode(), "sha256").hex()


# --- checkpoints -----------------------------------------------------------------------------------------------------

SNAPSHOT = Snapshot(
    40, {"z": np.linspace(-1, 1, 5), "mean": np.zeros((2, 2))}, {"weight": 3.5},
    {"active_rounds": 40, "releases": 40, "stopped": None, "admitted": True}, facts={"run": "ab", "rank": 0},
)  # fmt: skip


@given(raw=damaged(to_bytes(SNAPSHOT)))
@examples(120)
def test_damaged_checkpoint(raw, tmp_path):
    path = tmp_path / "rank-000-40.state"
    path.write_bytes(raw)
    found = attempt("checkpoint", lambda: read_checkpoint(path))
    assert isinstance(found, CheckpointError) or to_bytes(found) == to_bytes(SNAPSHOT)


@given(data=st.data())
@examples(120)
def test_rewritten_checkpoint(data, tmp_path):
    """The hash is made anew around the change: a snapshot must make sense all the same."""
    _, text, body = to_bytes(SNAPSHOT).split(b"\n", 2)
    fields = data.draw(changed(json.loads(text)))
    rest = json.dumps(fields).encode() + b"\n" + data.draw(st.just(body) | damaged(body))
    path = tmp_path / "rank-000-40.state"
    path.write_bytes(json.dumps({"dpmpi": FORMAT, "sha256": hashlib.sha256(rest).hexdigest()}).encode() + b"\n" + rest)
    found = attempt("rewritten checkpoint", lambda: read_checkpoint(path))
    if not isinstance(found, CheckpointError):
        assert all(isinstance(array, np.ndarray) for array in found.arrays.values())
        assert isinstance(found.round, int)


@given(data=st.data())
@examples(120)
def test_damaged_manifest(data, tmp_path):
    directory = RunDirectory(tmp_path)
    manifest = Manifest("ab12", "c" * 64, 4, (0, 1, 3), 400)
    write_manifest(directory, manifest)
    path = tmp_path / "checkpoint" / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(
        data.draw(damaged(whole) | changed(json.loads(whole)).map(lambda value: json.dumps(value).encode()))
    )
    found = attempt("manifest", lambda: read_manifest(directory))
    if not isinstance(found, CheckpointError):
        assert 0 <= found.round < 10**9
        assert len(set(found.members)) == len(found.members)
        assert all(0 <= member < found.origin for member in found.members)


def test_a_manifest_with_a_long_name_is_refused_in_a_short_message(tmp_path):
    path = tmp_path / "checkpoint" / "manifest.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"[" * 4000: 1, "members": [0]}))
    with pytest.raises(CheckpointError) as caught:
        read_manifest(RunDirectory(tmp_path))
    assert len(str(caught.value)) < 600


# --- sweeps ----------------------------------------------------------------------------------------------------------

SWEEP = b"""\
title = "A sweep"
ranks = 4
repetitions = 2
text = \"\"\"two
lines\"\"\"

[run]
data = "synthetic:samples=40,features=3"
rounds = 10
noise = 0.5
reference = true

[quick]
rounds = 5

[grid]
gamma = [1.0, 2.5]
seed = [1, 2]

[repeat]
seed = "advance"

[[series]]
name = "one"
algorithm = "dp-dda"

[[series]]
name = "two"
label = "another"
algorithm = "dgd"
without = ["gamma", "noise"]

[[plot]]
x = "round"
y = "suboptimality"
log = "y"

[[plot]]
x = "gamma"
y = "accuracy"
"""


@given(raw=damaged(SWEEP), quick=st.booleans())
@examples(150)
def test_sweep_file(raw, quick, tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_bytes(raw)
    runs = attempt("sweep file", lambda: make_runs(read_sweep(path, quick=quick)))
    if not isinstance(runs, ConfigError):
        assert len({run.path for run in runs}) == len(runs) >= 1
        assert all(not Path(run.path).is_absolute() and ".." not in Path(run.path).parts for run in runs)
