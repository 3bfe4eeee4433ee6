"""Budgets and ledgers over runs, through whole loopback runs."""

import json
import stat

import pytest

from dpmpi.config import Config
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.planning import allowance, filter_order, noise_levels, read_budget
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.run import main
from dpmpi.verify import verify

RUN = ("--loopback", "3", "--data", "synthetic:samples=600,features=4", "--rounds", "40", "--no-evaluate")


def run(out, *arguments):
    assert main([*RUN, *map(str, arguments), "--out", str(out)]) == 0
    return json.loads((out / "summary.json").read_text())


def test_every_rank_stops_at_its_own_budget(tmp_path):
    budgets = [0.2, 0.5, 5.0]
    for rank, budget in enumerate(budgets):
        (tmp_path / f"budget-{rank}.toml").write_text(f"epsilon = {budget}\n")
    found = run(tmp_path / "run", "--epsilon", 1, "--budget", tmp_path / "budget-{rank}.toml")
    for rank, record in enumerate(found["per_rank"]):
        spent = recorded_spending(tmp_path / "run" / "ledger" / f"rank-00{rank}.jsonl")
        assert certified_epsilon(spent, 1e-5) <= budgets[rank]
        assert record["epsilon"] == pytest.approx(certified_epsilon(spent, 1e-5))
        assert record["active_rounds"] == 40
        [(event, count)] = spent.items()
        if budgets[rank] < 1:  # not one round too early
            assert certified_epsilon({event: count + 1}, 1e-5) > budgets[rank]
            assert record["stopped"] == count + 1
    assert found["per_rank"][2]["stopped"] is None
    assert all(not rank.problems for rank in verify(tmp_path / "run"))


@pytest.mark.parametrize("batch", ["full", "40"])
def test_spending_adds_up_over_runs(tmp_path, batch):
    ledger = tmp_path / "ledger"
    flags = ("--epsilon", 0.5, "--budget", 0.68, "--ledger", ledger, "--batch", batch)
    runs = [run(tmp_path / f"run-{i}", *flags) for i in range(3)]
    stopped = [[record["stopped"] for record in found["per_rank"]] for found in runs]
    assert stopped[0] == [None] * 3
    assert all(1 <= t <= 40 for t in stopped[1])
    assert stopped[2] == [1] * 3
    for rank in range(3):
        path = ledger / f"rank-00{rank}.jsonl"
        assert certified_epsilon(recorded_spending(path), 1e-5) <= 0.68
        assert stat.S_IMODE(path.with_suffix(".key").stat().st_mode) == 0o600
    for i in range(3):
        assert all(not rank.problems for rank in verify(tmp_path / f"run-{i}"))


def test_a_ledger_knows_its_shard(tmp_path, capsys):
    flags = ["--ledger", str(tmp_path / "ledger"), "--noise", "1"]
    run(tmp_path / "one", *flags)
    assert main([*RUN, *flags, "--seed", "1", "--out", str(tmp_path / "two")]) == 2
    assert "belongs to another shard" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


def test_a_broken_ledger_is_refused(tmp_path, capsys):
    flags = ["--ledger", str(tmp_path / "ledger"), "--noise", "1"]
    run(tmp_path / "one", *flags)
    path = tmp_path / "ledger" / "rank-001.jsonl"
    path.write_text(path.read_text().replace('"count":40', '"count":4'))
    assert main([*RUN, *flags, "--out", str(tmp_path / "two")]) == 1
    assert "the hash chain is broken" in capsys.readouterr().err


def test_a_smaller_charge_is_found_out(tmp_path):
    """A ledger with a valid chain that says less than the wire carried."""
    run(tmp_path / "run", "--noise", 1)
    summary = tmp_path / "run" / "summary.json"
    found = json.loads(summary.read_text())
    found["per_rank"][1]["active_rounds"] = 41
    found["per_rank"][2]["epsilon"] /= 2
    summary.write_text(json.dumps(found))
    fine, less, claim = verify(tmp_path / "run")
    assert not fine.problems
    assert "the wire carried 41 rounds" in less.problems[0]
    assert "the summary claims" in claim.problems[0]


EVENTS = [
    ReleaseEvent("gaussian", 3.0, 0.5, Sampling("full", 100.0, 100)),
    ReleaseEvent("gaussian", 0.8, 0.5, Sampling("poisson", 5.0, 500)),
    ReleaseEvent("gaussian", 0.8, 0.5, Sampling("fixed", 5.0, 500)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.sampling.kind)
def test_what_is_allowed_fits_whatever_was_spent_before(event):
    order = filter_order(event, 100, 1.0, 1e-5)
    fresh = allowance(event, 10_000, {}, 1.0, 1e-5, order)
    assert certified_epsilon({event: fresh}, 1e-5) <= 1.0 < certified_epsilon({event: fresh + 1}, 1e-5)
    for before in (1, fresh // 3, fresh):
        more = allowance(event, 10_000, {event: before}, 1.0, 1e-5, order)
        assert certified_epsilon({event: before + more}, 1e-5) <= 1.0
    assert allowance(event, 10_000, {event: 100 * fresh}, 1.0, 1e-5, order) == 0


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "{tmp}/missing.toml", "{tmp}/text.toml", "{tmp}/list.toml"])
def test_impossible_budgets(tmp_path, text):
    (tmp_path / "text.toml").write_text('epsilon = "much"\n')
    (tmp_path / "list.toml").write_text("epsilon = [1]\n")
    with pytest.raises(ConfigError, match=r"budget|epsilon"):
        read_budget(Config(budget=text.format(tmp=tmp_path)), 0)


def test_a_rank_that_never_speaks_has_noise_all_the_same():
    config = Config(algorithm="sampled-dda", epsilon=1.0, rounds=10)
    assert all(sigma > 0 for sigma in noise_levels(config, [100, 100, 100], [0, 10, 10]))


def test_private_words_do_not_reach_the_message(tmp_path, capsys):
    for rank in range(3):
        (tmp_path / f"s-{rank}.svm").write_text("1 1:1\n-1 2:secret-text\n" if rank == 1 else "1 1:1\n-1 2:1\n")
    flags = ["--loopback", "3", "--data", f"shards:{tmp_path}/s-{{rank}}.svm", "--out", str(tmp_path / "run")]
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert "shard of rank 1" in error
    assert ":2:" in error
    assert "secret" not in error


def test_a_refused_run_leaves_the_earlier_one_alone(tmp_path):
    run(tmp_path / "run", "--noise", 1)
    before = (tmp_path / "run" / "summary.json").read_text()
    assert main([*RUN, "--graph", "random:edges=99", "--out", str(tmp_path / "run")]) == 2
    assert (tmp_path / "run" / "summary.json").read_text() == before
    assert not (tmp_path / "run.1").exists()


def test_what_is_not_a_run_is_not_moved(tmp_path, capsys):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("precious")
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    for out in (file, folder, file / "below"):
        assert main([*RUN, "--out", str(out)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert file.read_text() == (folder / "thesis.tex").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    (tmp_path / "empty").mkdir()
    run(tmp_path / "empty")
