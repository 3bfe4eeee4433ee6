"""A table that gains or loses rows goes on with the ledger of the one before, through whole loopback runs."""

import json

import numpy as np
import pytest

from dpmpi.commands.dispatch import main as command
from dpmpi.data.shards import read_npz, read_shard
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.privacy.ledger_proofs import read_key
from dpmpi.run import main
from dpmpi.runtime.ledger_owner import rows_file

BOOK = '[label]\ncolumn = "y"\nclasses = ["no", "yes"]\n\n[columns.x]\nrange = [0, 100]\n'
RANKS = 2


@pytest.fixture
def site(tmp_path):
    """A folder in which tables are coded and runs are made."""
    (tmp_path / "book.toml").write_text(BOOK)
    return Site(tmp_path)


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.runs = 0

    def code(self, name, ages, *flags, rank=0):
        table = self.folder / "table.csv"
        table.write_text("x,y\n" + "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in ages))
        out = self.folder / f"{name}-{rank}.npz"
        words = ["data", "table", str(table), "--codebook", str(self.folder / "book.toml"), "--out", str(out)]
        return command([*words, *map(str, flags)])

    def shard(self, name, rank=0):
        return self.folder / f"{name}-{rank}.npz"

    def train(self, name, *flags, ledger="ledger"):
        self.runs += 1
        out, data = self.folder / f"run-{self.runs}", f"shards:{self.folder}/{name}-{{rank}}.npz"
        words = ["--loopback", str(RANKS), "--data", data, "--rounds", "4", "--noise", "2", "--delta", "1e-3"]
        code = main([*words, "--ledger", str(self.folder / ledger), *map(str, flags), "--out", str(out)])
        return json.loads((out / "summary.json").read_text()) if code == 0 else None

    def charged(self, ledger="ledger"):
        return [recorded_spending(self.folder / ledger / f"rank-00{rank}.jsonl").total() for rank in range(RANKS)]


@pytest.fixture
def old(site):
    """Two ranks whose tables have been trained on once."""
    for rank in range(RANKS):
        assert site.code("old", range(20 + rank, 80, 3), rank=rank) == 0
    assert site.train("old") is not None
    return site


@pytest.mark.parametrize("ages", [range(20, 90, 3), range(20, 60, 3), [20, 99, 98, 97]], ids=["more", "fewer", "one"])
def test_what_was_spent_goes_on(old, ages, capsys):
    assert old.code("new", ages, "--continues", old.shard("old")) == 0
    assert "of them were in" in capsys.readouterr().out
    assert old.code("new", range(21, 80, 3), rank=1) == 0  # the same rows: nothing to declare
    spent = old.train("new")
    assert old.charged() == [10, 10]  # each run four rounds and an evaluation
    assert spent["per_rank"][0]["epsilon_with_earlier_runs"] > spent["per_rank"][0]["epsilon"]
    assert old.train("new") is not None  # and on
    assert old.train("old") is not None  # whoever is in either table has spent all of it
    assert old.charged() == [20, 20]


def test_a_budget_is_not_there_again(old):
    old.train("old", "--budget", 3)
    for rank in range(RANKS):
        old.code("new", range(20 + rank, 90, 3), "--continues", old.shard("old", rank), rank=rank)
    spent = old.charged()
    found = old.train("new", "--budget", 0.01)
    assert [record["stopped"] for record in found["per_rank"]] == [1, 1]
    assert old.charged() == spent


def test_other_rows_are_refused_unless_they_are_declared(old, capsys):
    assert old.code("new", range(20, 90, 3)) == 0
    assert old.code("new", range(21, 80, 3), rank=1) == 0
    assert old.train("new") is None
    assert "belongs to other rows: the shard has changed (then code it with data table --continues)" in (
        capsys.readouterr().err
    )
    assert old.charged() == [5, 5]


def test_the_ledger_of_other_people_is_refused(old, capsys):
    """The rows that stay would have spent nothing there."""
    for rank in range(RANKS):
        old.code("other", np.arange(20.5, 80, 3), rank=rank)
        old.code("new", [*np.arange(20.5, 80, 3), 99], "--continues", old.shard("other", rank), rank=rank)
    assert old.train("new") is None
    assert "none of its rows was charged here" in capsys.readouterr().err


def test_rows_that_were_charged_before_do_not_begin_anew(old, capsys):
    for rank in range(RANKS):
        old.code("new", range(20 + rank, 90, 3), "--continues", old.shard("old", rank), rank=rank)
    assert old.train("new", ledger="fresh") is None
    assert "expected the ledger of the table that the shard continues, found none" in capsys.readouterr().err
    assert not (old.folder / "fresh" / "rank-000.jsonl").exists()


def test_a_table_continues_only_what_it_shares_a_record_with(old, capsys):
    assert old.code("new", [1, 2, 3], "--continues", old.shard("old")) != 0
    assert "expected records of" in capsys.readouterr().err
    assert not old.shard("new").exists()


def test_the_declaration_is_in_the_shard_itself(old):
    old.code("new", range(20, 90, 3), "--continues", old.shard("old"))
    assert [read_shard(old.shard(name))[2] for name in ("old", "new")] == [False, True]
    assert read_npz(old.shard("new"))[0].count == 24


def test_rows_are_known_by_marks_that_need_the_key(old):
    """Whoever has the marks alone cannot test a guess; whoever is in the table is among them."""
    ledger = old.folder / "ledger" / "rank-000.jsonl"
    marks, key = rows_file(ledger).read_bytes(), read_key(ledger)
    assert rows_file(ledger).stat().st_mode & 0o077 == 0
    assert len(marks) == 16 * 20
    row = np.array([-1.0, 0.2])  # label, then column 0
    raw = row[:1].tobytes() + np.array([0]).tobytes() + row[1:].tobytes()
    assert key.row_mark(raw) in [marks[at : at + 16] for at in range(0, len(marks), 16)]
