"""Budgets and ledgers over runs, through whole loopback runs."""

import dataclasses
import fcntl
import json
import math
import stat
from collections import Counter

import pytest
from plans import plan_of

from dpmpi.commands.show import main as show
from dpmpi.commands.verify import verify
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.model import Model
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import GaussianFilter, RdpFilter, filter_epsilon
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.ledger import Ledger, read_ledger, recorded_spending
from dpmpi.privacy.ledger_proofs import place_file
from dpmpi.run import main
from dpmpi.runtime.budget import allowance, filter_order, read_budget
from dpmpi.runtime.config import Config
from dpmpi.runtime.ledger_owner import lock_ledger
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.trainer import Trainer

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


def test_all_ranks_hear_whose_budget_cannot_be_read(tmp_path, capsys):
    for rank, text in enumerate(("epsilon = 1", "nothing = 1", "epsilon = 1")):
        (tmp_path / f"budget-{rank}.toml").write_text(f"{text}\n")
    flags = ("--epsilon", "1", "--budget", str(tmp_path / "budget-{rank}.toml"), "--out", str(tmp_path / "run"))
    assert main([*RUN, *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("dpmpi: rank 1: ")


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
    assert "belongs to other rows" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


def test_a_broken_ledger_is_refused(tmp_path, capsys):
    flags = ["--ledger", str(tmp_path / "ledger"), "--noise", "1"]
    run(tmp_path / "one", *flags)
    path = tmp_path / "ledger" / "rank-001.jsonl"
    path.write_text(path.read_text().replace(",40]", ",4]"))
    assert main([*RUN, *flags, "--out", str(tmp_path / "two")]) == 1
    assert "expected the hash chain to go on, found it broken" in capsys.readouterr().err


TAMPERED = {
    "fewer active rounds": lambda s: s["per_rank"][1].update(active_rounds=0),
    "a smaller epsilon of a rank": lambda s: s["per_rank"][1].update(epsilon=s["per_rank"][1]["epsilon"] / 2),
    "no epsilon of a rank": lambda s: s["per_rank"][1].update(epsilon=None),
    "an epsilon that is no number": lambda s: s["per_rank"][1].update(epsilon=float("nan")),
    "a smaller epsilon of the run": lambda s: s["privacy"].update(epsilon=0.001),
    "another delta": lambda s: s["privacy"].update(delta=0.9),
    "more noise": lambda s: s["per_rank"][1].update(sigma=100.0),
    "fewer messages": lambda s: s["per_rank"][1].update(messages_sent=1),
    "another run": lambda s: s.update(run="0123456789abcdef"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_changed_summary_is_found_out(tmp_path, what):
    run(tmp_path / "run", "--noise", 1)
    summary = tmp_path / "run" / "summary.json"
    found = json.loads(summary.read_text())
    TAMPERED[what](found)
    summary.write_text(json.dumps(found))
    assert any(rank.problems for rank in verify(tmp_path / "run"))


@pytest.mark.parametrize("change", [{"ranks": 1}, {"ranks": 0}, {"ranks": "3"}, {"privacy": 5}, {"per_rank": []}])
def test_a_summary_that_is_none_is_one_line(tmp_path, change):
    run(tmp_path / "run", "--noise", 1)
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | change))
    with pytest.raises(ConfigError):
        verify(tmp_path / "run")


def test_a_ledger_that_charges_less_than_the_wire_carried(tmp_path):
    """The chain holds, but 5 of 40 charges are given back too many."""
    run(tmp_path / "run", "--noise", 1)
    path = tmp_path / "run" / "ledger" / "rank-001.jsonl"
    header, event = None, None
    for entry in read_ledger(path):
        header = entry if entry["type"] == "header" else header
        event = ReleaseEvent.from_dict(entry["events"][0][0]) if entry["type"] == "reserve" else event
    path.unlink()
    fields = {name: value for name, value in header.items() if name not in ("seq", "type", "prev")}
    with Ledger(path, fields, plan=[(event, 40)]) as ledger:
        for t in range(35):
            ledger.charge(event, t)
    assert any("charges 35 releases, but the wire carried 40" in text for text in verify(tmp_path / "run")[1].problems)


def test_sampled_edges_with_budgets_check_out(tmp_path):
    flags = ("--algorithm", "sampled-dda", "--graph", "complete", "--noise", 0.1, "--budget", 1)
    found = run(tmp_path / "run", *flags)
    assert any(record["stopped"] for record in found["per_rank"])
    assert all(not rank.problems for rank in verify(tmp_path / "run"))


@pytest.mark.parametrize("first", [(), ("--noise", 5, "--insecure-noise-seed", 1)], ids=["no noise", "insecure noise"])
def test_a_ledger_that_began_without_privacy_has_no_budget_left(tmp_path, first):
    ledger = ("--ledger", tmp_path / "ledger")
    run(tmp_path / "one", *first, *ledger)
    found = run(tmp_path / "two", "--noise", 5, *ledger, "--budget", 5)
    for record in found["per_rank"]:
        assert record["stopped"] == 1
        assert record["epsilon_with_earlier_runs"] is None


@pytest.mark.parametrize(("place", "name"), [(0, 1), (1, 0), (2, 3)])
def test_a_rank_that_takes_the_place_of_another_is_found_out(tmp_path, place, name):
    """Else its ledger would be checked twice, and the other's never."""
    summary = run(tmp_path / "run", "--noise", 1)
    summary["per_rank"][place]["rank"] = name
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match="every rank once in the summary"):
        verify(tmp_path / "run")


def test_a_ledger_that_is_gone_is_missed(tmp_path, capsys):
    flags = ["--ledger", str(tmp_path / "ledger"), "--noise", "1"]
    run(tmp_path / "one", *flags)
    path = tmp_path / "ledger" / "rank-001.jsonl"
    path.unlink()
    assert main([*RUN, *flags, "--out", str(tmp_path / "two")]) == 1
    assert f"expected the ledger {path} beside its key, found none" in capsys.readouterr().err
    path.with_suffix(".key").unlink()
    assert main([*RUN, *flags, "--out", str(tmp_path / "two")]) == 1
    assert f"expected the ledger that {path} was" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
    place_file(path).unlink()  # the owner says that nothing was charged
    run(tmp_path / "two", *flags)


def test_a_run_that_has_not_ended_keeps_its_place(tmp_path, capsys):
    run(tmp_path / "run", "--noise", 1)
    with (tmp_path / "run" / "ledger" / "rank-002.jsonl").open("a") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert main([*RUN, "--noise", "1", "--out", str(tmp_path / "run")]) == 2
    assert "is a run that has not ended" in capsys.readouterr().err
    run(tmp_path / "run", "--noise", 1)
    assert (tmp_path / "run.1" / "summary.json").exists()


@pytest.mark.parametrize("algorithm", ["dp-dgd", "hmv-dgd"])
def test_gradient_rounds_that_a_budget_ends_check_out(tmp_path, algorithm):
    flags = ("--algorithm", algorithm, "--data", "mean:samples=600", "--loss", "mean", "--penalty", "none")
    found = run(tmp_path / "run", *flags, "--epsilon", 1, "--budget", 0.5)
    assert any(record["stopped"] for record in found["per_rank"])
    assert [rank.problems for rank in verify(tmp_path / "run")] == [()] * 3


def test_two_runs_do_not_share_a_ledger_at_once(tmp_path):
    path = tmp_path / "rank-000.jsonl"
    with lock_ledger(path), pytest.raises(ConfigError, match="in use by another run"):
        lock_ledger(path)
    lock_ledger(path).close()


def test_an_earlier_run_in_the_same_place_costs_nothing(tmp_path):
    """Without --ledger every run has a ledger of its own, also where it takes the place of an earlier one."""
    first = run(tmp_path / "run", "--noise", 1, "--budget", 1)
    second = run(tmp_path / "run", "--noise", 1, "--budget", 1)
    assert [r["stopped"] for r in first["per_rank"]] == [r["stopped"] for r in second["per_rank"]]


@pytest.mark.parametrize("content", ["", '{"seq":0,"ty'])
def test_a_ledger_that_never_got_its_header_can_begin(tmp_path, content):
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    for rank in range(3):
        (ledger / f"rank-00{rank}.jsonl").write_text(content)
    run(tmp_path / "run", "--noise", 1, "--ledger", ledger, "--budget", 5)
    assert recorded_spending(ledger / "rank-000.jsonl").total() == 40


@pytest.mark.parametrize(
    "flags",
    [
        ("--noise", "1e-3", "--batch", "5"), ("--noise", "1e-90"), ("--lipschitz", "1e300", "--noise", "1"),
        ("--lipschitz", "1e-200", "--noise", "1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_noise_that_protects_nothing_ends_with_a_table_all_the_same(tmp_path, capsys, flags):
    found = run(tmp_path / "run", *flags)
    assert "privacy" in capsys.readouterr().out
    assert found["privacy"]["private"] == (found["privacy"]["epsilon"] is not None)


@pytest.mark.parametrize(
    "flags",
    [
        ("--noise", "1e-200"), ("--noise", "1e-300"), ("--epsilon", "1e308"),
        ("--penalty", "l1:0.001", "--gamma", "0", "--noise", "0.3"),
        ("--noise", "1", "--delta", "0.02"), ("--rounds", "1000000000000"), ("--data", "shards:{rank:1000000000d}"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_cannot_work_is_refused_before_the_first_round(tmp_path, capsys, flags):
    assert main([*RUN, *flags, "--out", str(tmp_path / "run")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_text_shards_declare_their_dimension(tmp_path, capsys):
    for rank in range(3):
        (tmp_path / f"s-{rank}.svm").write_text(f"1 1:1\n-1 {rank + 2}:1\n")
    flags = ["--loopback", "3", "--data", f"shards:{tmp_path}/s-{{rank}}.svm", "--rounds", "2"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 2
    assert "--dimension" in capsys.readouterr().err
    assert main([*flags, "--dimension", "3", "--out", str(tmp_path / "run")]) == 2
    assert "--dimension 3" in capsys.readouterr().err
    assert main([*flags, "--dimension", "9", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["dimension"] == 10


EVENTS = [
    ReleaseEvent("gaussian", 3.0, 0.5, Sampling("full", 100.0, 100)),
    ReleaseEvent("gaussian", 0.8, 0.5, Sampling("poisson", 5.0, 500)),
    ReleaseEvent("gaussian", 0.8, 0.5, Sampling("fixed", 5.0, 500)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.sampling.kind)
def test_what_is_allowed_fits_whatever_was_spent_before(event):
    order = filter_order([(event, 100)], 1.0, 1e-5)
    fresh = allowance([(event, 10_000)], {}, 1.0, 1e-5, order)
    assert certified_epsilon({event: fresh}, 1e-5) <= 1.0 < certified_epsilon({event: fresh + 1}, 1e-5)
    for before in (1, fresh // 3, fresh):
        more = allowance([(event, 10_000)], {event: before}, 1.0, 1e-5, order)
        assert certified_epsilon({event: before + more}, 1e-5) <= 1.0
    assert allowance([(event, 10_000)], {event: 100 * fresh}, 1.0, 1e-5, order) == 0


def test_a_budget_allows_the_first_of_changing_releases():
    planned = [(ReleaseEvent("gaussian", 5.0 + t, 0.5, Sampling("full", 100.0, 100)), 1) for t in range(400)]
    cost = [gdp_epsilon(math.sqrt(sum((0.5 / (5.0 + t)) ** 2 for t in range(k))), 1e-5) for k in (1, 400)]
    budget = 0.5 * (cost[0] + cost[1])
    allowed = allowance(planned, {}, budget, 1e-5, 2)
    assert 0 < allowed < 400
    spent = [certified_epsilon(dict(planned[:k]), 1e-5) for k in (allowed, allowed + 1)]
    assert spent[0] <= budget < spent[1]
    again = allowance(planned, {planned[0][0]: 1}, budget, 1e-5, 2)
    assert 0 < again < allowed
    assert certified_epsilon(Counter(dict(planned[:again])) + Counter([planned[0][0]]), 1e-5) <= budget


def test_no_filter_admits_anything_after_a_release_without_noise():
    bare = ReleaseEvent("none", 0.0, 0.5, Sampling("full", 100.0, 100))
    for order in (2, 2.0):
        assert RdpFilter(5.0, 1e-5, order).cost(bare) == math.inf
    assert GaussianFilter(5.0, 1e-5).cost(bare) == math.inf
    assert all(allowance([(event, 100)], {bare: 1}, 5.0, 1e-5, 2) == 0 for event in EVENTS)


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "{tmp}/missing.toml", "{tmp}/text.toml", "{tmp}/list.toml"])
def test_impossible_budgets(tmp_path, text):
    (tmp_path / "text.toml").write_text('epsilon = "much"\n')
    (tmp_path / "list.toml").write_text("epsilon = [1]\n")
    with pytest.raises(ConfigError, match=r"budget|epsilon"):
        read_budget(Config(budget=text.format(tmp=tmp_path)), 0)


def test_the_summary_says_who_the_epsilon_is_for(tmp_path):
    assert run(tmp_path, "--noise", 1)["privacy"]["adversary"] == "wire"


def test_a_rank_that_never_speaks_has_noise_all_the_same():
    settings = Settings.of(Config(algorithm="sampled-dda", epsilon=1.0, rounds=10))
    plan = dataclasses.replace(plan_of(settings, [100] * 3, 5), active=(0, 10, 10))
    assert all(sigma > 0 for sigma in noise_levels(plan))


def test_private_words_do_not_reach_the_message(tmp_path, capsys):
    for rank in range(3):
        (tmp_path / f"s-{rank}.svm").write_text("1 1:1\n-1 2:secret-text\n" if rank == 1 else "1 1:1\n-1 2:1\n")
    flags = ["--loopback", "3", "--data", f"shards:{tmp_path}/s-{{rank}}.svm", "--dimension", "9"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 2
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


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.sampling.kind)
def test_what_is_proven_for_chosen_runs_is_the_smallest_budget_that_admits_them(event):
    order = filter_order([(event, 100)], 1.0, 1e-5)
    proven = filter_epsilon({event: 120}, 1e-5, order)
    assert allowance([(event, 20)], {event: 100}, proven * (1 + 1e-9), 1e-5, order) == 20
    assert allowance([(event, 20)], {event: 100}, proven * (1 - 1e-6), 1e-5, order) < 20
    assert proven >= certified_epsilon({event: 120}, 1e-5) * (1 - 1e-9)


def test_what_is_proven_for_chosen_runs_of_other_noise():
    bare, pure = (ReleaseEvent(noise, 4.0, 0.5, Sampling("full", 100.0, 100)) for noise in ("none", "laplace"))
    assert filter_epsilon({bare: 1}, 1e-5, 2) is None
    assert filter_epsilon({}, 1e-5, 2) == 0
    assert filter_epsilon({dataclasses.replace(bare, noise="gaussian", scale=1e200): 2}, 1e-5, 2) == 0
    for kind in ("poisson", "fixed"):
        drawn = dataclasses.replace(bare, noise="gaussian", scale=1e307, sampling=Sampling(kind, 10.0, 100))
        same = dataclasses.replace(drawn, scale=1e100)  # so much noise costs nothing but what the order does
        assert filter_epsilon({drawn: 2}, 1e-5, 8) == filter_epsilon({same: 2}, 1e-5, 8)
    assert filter_epsilon({pure: 4}, 0.0, 2) == pytest.approx(0.5)
    assert filter_epsilon({pure: 4, EVENTS[0]: 3}, 1e-5, 8) > certified_epsilon({pure: 4, EVENTS[0]: 3}, 1e-5)


@pytest.mark.parametrize("noise", [("momentum",), ("momentum", "--batch", 40), ("ldp-gd", "--mechanism", "laplace")])
def test_noise_beyond_what_can_be_squared_ends_no_run(tmp_path, capsys, noise):
    flags = ("--lipschitz", 1e-200, "--noise", 1, "--rounds", 3, "--ledger", tmp_path / "ledger", "--algorithm", *noise)
    for i in range(2):
        found = run(tmp_path / f"run-{i}", *flags)
    said = capsys.readouterr().out.split("  privacy ")[-1]
    assert ("NOT PRIVATE: no finite epsilon" in said) == (not found["privacy"]["private"]) == ("--batch" in noise)
    laplace = found["privacy"]["laplace"]
    assert (laplace is not None) == ("laplace" in noise)
    assert all(value < 1e-4 for value in (laplace or {}).values())
    assert all(
        record["epsilon_with_earlier_runs"] is not None for record in found["per_rank"] if record["epsilon"] == 0
    )


LEARN = ("--loss", "logistic", "--epsilon", 1)


def said(capsys):
    return capsys.readouterr().out


def test_a_run_says_before_the_first_round_what_fits_its_budget(tmp_path, capsys):
    found = run(tmp_path / "run", *LEARN, "--budget", 0.4)
    text = said(capsys)
    fits = found["per_rank"][0]["stopped"] - 1
    assert 0 < fits < 20
    assert f"budget: {fits} of 40 planned releases fit, on 3 of 3 ranks" in text
    assert found["verdict"]["word"] == "weak"
    assert found["verdict"]["fits_budget"] == pytest.approx(fits / 40)
    ended = f"the budget ended training in round {fits + 1} of 40, on 3 of 3 ranks"
    assert f"{ended}; they went on without data" in text
    assert show([str(tmp_path / "run")]) == 0
    assert f"budget   {ended}" in said(capsys)


def test_a_spent_budget_is_mostly_noise_and_the_model_is_called_empty(tmp_path, capsys):
    for name in ("one", "two"):
        found = run(tmp_path / name, *LEARN, "--budget", 1.0, "--ledger", tmp_path / "ledger")
    text = said(capsys)
    assert "budget: 0 of 40 planned releases fit, on 3 of 3 ranks" in text
    assert "expect mostly noise" in text
    assert found["verdict"]["word"] == "mostly noise"
    assert "holds nothing of the records" in text
    assert not Model.load(tmp_path / "two").x.any()


def test_ranks_whose_budgets_differ_are_counted(tmp_path, capsys):
    for rank, budget in enumerate((0.0, 0.5, 5.0)):
        (tmp_path / f"budget-{rank}.toml").write_text(f"epsilon = {budget}\n")
    found = run(tmp_path / "run", *LEARN, "--budget", tmp_path / "budget-{rank}.toml", "--log-json")
    told = [json.loads(line) for line in said(capsys).splitlines()]
    fits = [(record["stopped"] or 41) - 1 for record in found["per_rank"]]
    assert fits[0] == 0 < fits[1] < fits[2] == 40
    assert told[0]["budget"].startswith(f"budget: 0 to {fits[1]} of 40 planned releases fit, on 2 of 3 ranks")
    assert found["verdict"]["fits_budget"] == pytest.approx(sum(fits) / 120)


def test_where_all_fits_nothing_is_said(tmp_path, capsys):
    found = run(tmp_path / "run", *LEARN, "--budget", 1.0)
    assert "planned releases" not in said(capsys)
    assert found["verdict"]["fits_budget"] == 1.0
    assert Model.load(tmp_path / "run").privacy.budget_ended == ""


def test_a_run_that_goes_on_counts_what_it_has_made(tmp_path):
    flags = (*LEARN, "--budget", 0.4, "--checkpoint-every", 10)
    before = run(tmp_path / "whole", *flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_finish", lambda self, evaluator: (_ for _ in ()).throw(KeyboardInterrupt))
        main([*RUN, *map(str, flags), "--out", str(tmp_path / "run")])
    assert main(["--resume", str(tmp_path / "run"), "--loopback", "3"]) == 0
    after = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert before["verdict"]["fits_budget"] == after["verdict"]["fits_budget"] > 0
