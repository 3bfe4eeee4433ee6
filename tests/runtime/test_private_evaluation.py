"""Private evaluation in whole runs: what it reads, what it costs, over budgets, ledgers, failures and ways to speak."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plans import settings_of

from dpmpi.api.result import Result
from dpmpi.commands.dispatch import main as command
from dpmpi.commands.verify import verify
from dpmpi.data import shards as shards_module
from dpmpi.errors import ConfigError
from dpmpi.model import Model
from dpmpi.model.histogram import Statistics
from dpmpi.model.metrics import metrics
from dpmpi.privacy.events import PARTS
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.ledger import recorded_runs
from dpmpi.privacy.spending import charged_to
from dpmpi.problem.task import Task
from dpmpi.rng import public_generator
from dpmpi.run import main
from dpmpi.runtime import held_out as held_out_rows
from dpmpi.runtime import plan as plans
from dpmpi.runtime.engine import Engine
from dpmpi.runtime.held_out import evaluation_levels
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.output.result_table import to_two_digits, with_error
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.private_evaluation import PrivateEvaluator
from dpmpi.runtime.recovery.checkpoint import Keeper

RANKS, ROWS, FEATURES = 3, 200, 4
LIKE = ("--loss", "logistic", "--rounds", 12, "--quiet", "--delta", 1e-4, "--epsilon", 2)


@pytest.fixture
def shards(tmp_path):
    """Write shards, and return where."""
    (tmp_path / "shards").mkdir()
    for rank in range(RANKS):
        draw = np.random.default_rng(rank)
        X = draw.normal(size=(ROWS, FEATURES)) / 3
        y = np.where(X[:, 0] + 0.2 * draw.normal(size=ROWS) > 0.1, 1.0, -1.0)
        np.savez(tmp_path / "shards" / f"{rank}.npz", X=X, y=y)
    return tmp_path / "shards"


def train(shards, out, *flags, code=0):
    known = ["--loopback", RANKS, "--data", f"shards:{shards}/{{rank}}.npz", "--out", out]
    known += LIKE[:-2] if "--epsilon" in flags or "--noise" in flags else LIKE
    assert main([str(word) for word in (*known, *flags)]) == code
    return json.loads((out / "summary.json").read_text()) if code == 0 else None


def evaluation_of(out):
    return json.loads((out / "summary.json").read_text())["private_evaluation"]


def charges(out, rank=0):
    runs = recorded_runs(out / "ledger" / f"rank-{rank:03d}.jsonl")
    return sum((spent for _, spent, _ in runs), Counter())


def test_training_and_evaluation_cost_the_larger_of_both(shards, tmp_path):
    found = train(shards, tmp_path / "run", "--evaluate", "private:4")
    privacy = found["privacy"]
    assert privacy["epsilon"] == max(privacy["epsilon_training"], privacy["epsilon_evaluation"])
    for name in ("epsilon_training", "epsilon_evaluation"):
        assert 1.99 < privacy[name] <= 2.0
    assert not privacy["evaluation_outside_guarantee"]
    spent = charges(tmp_path / "run")
    [held_out] = [event for event in spent if event.rows == "held-out"]
    assert spent[held_out] == 3
    assert {event.rows for event in spent} == {"training", "held-out"}
    # By hand: three histograms of 60 rows, sensitivity sqrt 2.
    assert held_out.sensitivity == pytest.approx(np.sqrt(2) / 60)
    mu = np.sqrt(3) * held_out.sensitivity / held_out.scale
    assert privacy["epsilon_evaluation"] == pytest.approx(gdp_epsilon(mu, 1e-4))
    assert found["private_evaluation"]["noise"] == pytest.approx(60 * np.sqrt(RANKS) * held_out.scale)
    assert [one["round"] for one in found["private_evaluation"]["history"]] == [4, 8, 12]
    assert all(not rank.problems for rank in verify(tmp_path / "run"))


WAYS = {
    "sum": ("--exchange", "shares", "--noise-in", "sum", "--graph", "complete"),
    "full sum": (
        *("--exchange", "shares", "--share-mode", "full", "--noise-in", "sum", "--graph", "complete"),
        *("--evaluate", "private:3"),
    ),
    "shares": ("--exchange", "shares", "--graph", "complete", "--algorithm", "dp-dda"),
    "pairs": (
        *("--noise-in", "pairs", "--seal", "--graph", "complete", "--algorithm", "dp-dda"),
        *("--evaluate", "private:3"),
    ),
    "sealed": ("--seal", "--evaluate", "private:3"),
    "narrow": ("--wire", "float32"),
    "sampled": ("--algorithm", "sampled-dda", "--evaluate", "private:5", "--graph", "complete"),
    "batches": ("--batch", 20, "--algorithm", "dp-dda"),
    "pure": ("--algorithm", "pvp-admm", "--delta", 0, "--graph", "complete"),
    "noise": ("--noise", 0.5, "--algorithm", "dp-dda"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_speak(shards, tmp_path, way):
    """The counts are those of the held-out rows up to the stated noise, and verify finds what it expects."""
    found = train(shards, tmp_path / "run", *WAYS[way])
    told = found["private_evaluation"]
    assert told["rows"] == 60
    assert all(not rank.problems for rank in verify(tmp_path / "run"))
    assert found["privacy"]["epsilon"] >= found["privacy"]["epsilon_evaluation"] * (1 - 1e-9)
    if way != "noise":
        assert found["privacy"]["epsilon"] <= 2.0
    exact = Statistics.sums(Statistics(Task(), True), *held_out_scores(shards, tmp_path / "run"))
    off = np.array(told["counts"]) - exact
    assert np.abs(off).max() < 6 * told["noise"]
    assert off.std() == pytest.approx(told["noise"], rel=0.5)


def held_out_scores(shards, out, seed=0):
    """The scores and labels of the held-out rows of all ranks, found as the documentation says."""
    model, scores, labels = np.load(out / "model.npz"), [], []
    for rank in range(RANKS):
        stored = np.load(shards / f"{rank}.npz")
        chosen = public_generator(seed, "shuffle", rank).permutation(ROWS)[-20:]
        rows = stored["X"][chosen]
        rows = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        scores.append(rows @ model["coefficients"].reshape(-1) + float(np.ravel(model["intercept"])[0]))
        labels.append(stored["y"][chosen])
    return np.concatenate(scores), np.concatenate(labels)


def test_the_metrics_are_those_of_the_held_out_rows(shards, tmp_path):
    found = train(shards, tmp_path / "run", "--epsilon", 400, "--allow-large-delta")["private_evaluation"]
    exact = metrics(Task(), *held_out_scores(shards, tmp_path / "run"), link="logistic")
    assert found["noise"] < 0.5
    for name, one in found["metrics"].items():
        assert abs(one["value"] - exact[name]) <= 2 * one["error"], name


TASKS = {
    "classes": (("--loss", "softmax", "--classes", "0,1,2"), lambda X: np.argmax(X[:, :3], axis=1).astype(float)),
    "numbers": (("--loss", "huber", "--label-range", "10:30"), lambda X: 20 + 10 * X[:, 0]),
    "counts": (("--loss", "poisson", "--label-range", "0:9"), lambda X: np.clip(np.rint(3 * X[:, 0] + 2), 0, 9)),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("noise_in", ["local", "sum"])
def test_every_task_is_evaluated(shards, tmp_path, name, noise_in):
    flags, label = TASKS[name]
    for rank in range(RANKS):
        X = np.load(shards / f"{rank}.npz")["X"]
        np.savez(shards / f"{rank}.npz", X=X, y=label(X))
    if noise_in == "sum":
        flags += ("--exchange", "shares", "--noise-in", "sum", "--graph", "complete")
    found = train(shards, tmp_path / "run", *flags, "--epsilon", 300, "--algorithm", "dp-dda", "--allow-large-delta")
    told = found["private_evaluation"]
    assert told["rows"] == 60
    assert all(not rank.problems for rank in verify(tmp_path / "run"))
    model, tables, labels = Model.load(tmp_path / "run" / "model.npz"), [], []
    for rank in range(RANKS):
        stored = np.load(shards / f"{rank}.npz")
        chosen = public_generator(0, "shuffle", rank).permutation(ROWS)[-20:]
        tables.append(stored["X"][chosen])
        labels.append(stored["y"][chosen])
    scores, y = model.decision_function(np.vstack(tables)), np.concatenate(labels)
    exact = metrics(model.task, scores, model.task.coded(y, "labels"), link=model.link)
    unknown = {metric for metric, one in told["metrics"].items() if one["value"] is None}
    assert unknown <= {"r2"}  # 60 rows say little of a variance
    for metric, one in told["metrics"].items():
        if metric not in unknown:
            assert abs(one["value"] - exact[metric]) <= 3 * one["error"] + 0.02 * abs(exact[metric]), metric


def test_training_reads_no_held_out_row(shards, tmp_path):
    """Held-out rows replaced by others: the same bits in every file but the evaluation."""
    train(shards, tmp_path / "one", "--insecure-noise-seed", 1)
    for rank in range(RANKS):
        stored = dict(np.load(shards / f"{rank}.npz"))
        chosen = public_generator(0, "shuffle", rank).permutation(ROWS)[-20:]
        stored["X"][chosen] *= -3.0
        stored["y"][chosen] *= -1.0
        np.savez(shards / f"{rank}.npz", **stored)
    train(shards, tmp_path / "two", "--insecure-noise-seed", 1)
    one, two = (np.load(tmp_path / name / "model.npz") for name in ("one", "two"))
    assert np.array_equal(one["x"], two["x"])
    assert np.array_equal(one["x_rank"], two["x_rank"])
    counts = [
        json.loads((tmp_path / name / "summary.json").read_text())["private_evaluation"] for name in ("one", "two")
    ]
    difference = np.array(counts[0]["counts"]) - np.array(counts[1]["counts"])
    assert 0 < np.abs(difference).sum() <= 2 * 60 + 1e-6  # the noise is the same, the 60 rows are not


def test_a_held_out_label_that_is_no_class_is_refused_before_anything_is_released(shards, tmp_path, capsys):
    said = np.array(json.dumps(Task("multiclass", ("a", "b", "c")).to_dict()))
    for rank in range(RANKS):
        X, y = np.load(shards / f"{rank}.npz")["X"], np.arange(ROWS) % 3.0
        y[public_generator(0, "shuffle", rank).permutation(ROWS)[-1]] = 7.0 if rank == 1 else 0.0
        np.savez(shards / f"{rank}.npz", X=X, y=y, task=said)
    train(shards, tmp_path / "run", "--loss", "softmax", code=2)
    assert "classes coded 0 to 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_held_out_row_moves_the_counts_by_their_sensitivity(shards, tmp_path):
    train(shards, tmp_path / "one", "--insecure-noise-seed", 1)
    stored = dict(np.load(shards / "1.npz"))
    row = public_generator(0, "shuffle", 1).permutation(ROWS)[-1]
    stored["X"][row], stored["y"][row] = 1e6, -stored["y"][row]
    np.savez(shards / "1.npz", **stored)
    train(shards, tmp_path / "two", "--insecure-noise-seed", 1)
    counts = [
        json.loads((tmp_path / name / "summary.json").read_text())["private_evaluation"] for name in ("one", "two")
    ]
    moved = np.linalg.norm(np.array(counts[0]["counts"]) - np.array(counts[1]["counts"]))
    assert moved == pytest.approx(np.sqrt(2), abs=1e-4)  # on the grid of the noise
    assert counts[0]["sensitivity"] == pytest.approx(np.sqrt(2))


def test_every_evaluation_has_its_own_noise(shards, tmp_path):
    train(shards, tmp_path / "run", "--evaluate", "private:4", "--insecure-noise-seed", 1, "--epsilon", 40)
    values = [one["accuracy"]["value"] for one in evaluation_of(tmp_path / "run")["history"]]
    assert len(set(values)) == 3  # fresh noise for each


DEFAULTS = {
    "shards under noise": (("--data", "shards:x-{rank}.npz", "--epsilon", 1), "private", 0.1),
    "shards under given noise": (("--data", "shards:x-{rank}.npz", "--noise", 1), "private", 0.1),
    "shards without noise": (("--data", "shards:x-{rank}.npz"), "off", 0.0),
    "no evaluation": (("--data", "shards:x-{rank}.npz", "--epsilon", 1, "--no-evaluate"), "off", 0.0),
    "nothing held out": (("--data", "shards:x-{rank}.npz", "--epsilon", 1, "--test-fraction", 0), "off", 0.0),
    "more held out": (("--data", "shards:x-{rank}.npz", "--epsilon", 1, "--test-fraction", 0.3), "private", 0.3),
    "open on shards": (("--data", "shards:x-{rank}.npz", "--epsilon", 1, "--evaluate", 5), "open", 0.0),
    "public data": (("--epsilon", 1), "open", 0.1),
    "public data privately": (("--epsilon", 1, "--evaluate", "private"), "private", 0.1),
    "numbers": (("--data", "shards:x-{rank}.npz", "--loss", "squared", "--noise", 1), "private", 0.1),
    "points": (("--data", "mean", "--noise", 1), "open", 0.0),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_evaluated_by_default(name):
    flags, kind, fraction = DEFAULTS[name]
    settings = settings_of(*flags)
    assert settings.evaluating.kind == kind
    assert settings.source.options.test_fraction == fraction


REFUSED = [
    (("--evaluate", "privately"), "expected --evaluate N, 0, private or private:N"),
    (("--evaluate", "private:0"), "at least 0 rounds, or private:1"),
    (("--evaluate", "private"), "adds noise for a privacy target"),
    (("--evaluate", "private", "--epsilon", 1, "--test-fraction", 0), "held-out rows"),
    (("--person-records", 3, "--epsilon", 1, "--calibration", "theorem"), "no theorem covers persons"),
]


def test_counts_that_a_sum_has_no_room_for_are_refused_before_the_run(shards, tmp_path, capsys):
    """One rank has nearly all rows, and nearly all of them may be in one cell: its share would not fit, and be told."""
    for rank, rows in enumerate((20000, 400, 400, 400, 400)):
        draw = np.random.default_rng(rank)
        np.savez(shards / f"{rank}.npz", X=draw.normal(size=(rows, 3)) / 9, y=-np.ones(rows))
    flags = ["--loopback", 5, "--data", f"shards:{shards}/{{rank}}.npz", *LIKE[:-2], "--epsilon", 30]
    flags += [
        "--weigh",
        "ranks",
        "--exchange",
        "shares",
        "--noise-in",
        "sum",
        "--share-words",
        32,
        "--share-bits",
        28,
        "--delta",
        1e-5,
    ]
    assert main([*map(str, flags), "--out", str(tmp_path / "run")]) == 2
    assert "expected shares of held-out rows below 0.7" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_what_cannot_be_is_refused(flags, reason):
    with pytest.raises(ConfigError, match=reason):
        settings_of(*flags)


def test_a_budget_holds_for_each_part(shards, tmp_path):
    found = train(shards, tmp_path / "run", "--budget", 0.5)
    assert 0.49 < found["privacy"]["epsilon_evaluation"] <= 0.5
    assert 0 < found["privacy"]["epsilon_training"] <= 0.5
    assert all(record["evaluated"] for record in found["per_rank"])
    assert all(not rank.problems for rank in verify(tmp_path / "run"))


def test_no_budget_no_evaluation(shards, tmp_path):
    found = train(shards, tmp_path / "run", "--budget", 0)
    assert found["private_evaluation"]["metrics"] is None
    assert found["private_evaluation"]["rows"] == 0
    assert charges(tmp_path / "run").total() == 0
    assert all(not rank.problems for rank in verify(tmp_path / "run"))


def test_a_ledger_keeps_parts_apart_as_long_as_the_split_is_the_same(shards, tmp_path):
    ledger = tmp_path / "ledgers"
    train(shards, tmp_path / "one", "--ledger", ledger)
    same = train(shards, tmp_path / "two", "--ledger", ledger)["per_rank"][0]
    for path in (tmp_path / "one", tmp_path / "two"):
        assert all(not rank.problems for rank in verify(path))
    spent = recorded_runs(ledger / "rank-000.jsonl")
    assert spent[0][0]["split"] == spent[1][0]["split"] == "seed 0, rank 0, 20 of 200 rows"
    both = sum((one for _, one, _ in spent), Counter())
    mu = [np.sqrt(sum(n * (e.sensitivity / e.scale) ** 2 for e, n in charged_to(both, part).items())) for part in PARTS]
    assert same["epsilon_with_earlier_runs"] == pytest.approx(gdp_epsilon(max(mu), 1e-4))
    # Another seed holds out other rows: whoever was held out before may be trained on, so all is charged to all.
    other = train(shards, tmp_path / "three", "--ledger", ledger, "--seed", 1)["per_rank"][0]
    now = sum((one for _, one, _ in recorded_runs(ledger / "rank-000.jsonl")[2:]), Counter())
    whole = sum(n * (e.sensitivity / e.scale) ** 2 for e, n in both.items())
    mu = [sum(n * (e.sensitivity / e.scale) ** 2 for e, n in charged_to(now, part).items()) for part in PARTS]
    assert other["epsilon_with_earlier_runs"] == pytest.approx(gdp_epsilon(np.sqrt(whole + max(mu)), 1e-4))
    # A run that holds nothing out goes on with the same ledger, too.
    assert train(shards, tmp_path / "four", "--ledger", ledger, "--no-evaluate") is not None


@pytest.mark.parametrize("kind", ["persons", "shuffle"])
def test_rows_that_change_parts_unnoticed_are_charged_for_both(shards, tmp_path, monkeypatch, kind):
    """The rows, their number and the seed stay: only who they belong to, or what numpy makes of the seed, is new."""
    stored = [dict(np.load(shards / f"{rank}.npz")) for rank in range(RANKS)]

    def write(person):
        for rank, arrays in enumerate(stored):
            np.savez(shards / f"{rank}.npz", **arrays, **({} if kind == "shuffle" else {"person": person, "most": 2}))

    ledger, half = ("--ledger", tmp_path / "ledgers"), ROWS // 2
    write(np.arange(ROWS) // 2)
    train(shards, tmp_path / "one", *ledger)
    write(np.arange(ROWS) % half)
    if kind == "shuffle":
        monkeypatch.setattr(shards_module, "public_generator", lambda seed, *rest: public_generator(seed + 1, *rest))
    other = train(shards, tmp_path / "two", *ledger)["per_rank"][0]
    first, second = (runs[1] for runs in recorded_runs(tmp_path / "ledgers" / "rank-000.jsonl"))
    whole = sum(n * (e.sensitivity / e.scale) ** 2 for e, n in first.items())
    mu = [sum(n * (e.sensitivity / e.scale) ** 2 for e, n in charged_to(second, part).items()) for part in PARTS]
    assert other["epsilon_with_earlier_runs"] == pytest.approx(gdp_epsilon(np.sqrt(whole + max(mu)), 1e-4))


@pytest.mark.parametrize("lasting", [False, True])
def test_a_run_without_a_checkpoint_does_not_go_on_with_other_parts(shards, tmp_path, capsys, lasting):
    """The owner edits the shard after a crash: who was trained on may be held out now, and charged for that alone."""
    run, more = tmp_path / "run", ("--ledger", tmp_path / "ledgers") if lasting else ()
    stored = dict(np.load(shards / "1.npz")) | {"person": np.arange(ROWS) // 2, "most": 2}
    np.savez(shards / "1.npz", **stored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateEvaluator, "rank_record", lambda self, rank: (_ for _ in ()).throw(KeyboardInterrupt))
        main([*map(str, ("--loopback", RANKS, "--data", f"shards:{shards}/{{rank}}.npz", *LIKE, "--out", run, *more))])
    resume = ["--resume", str(run), "--loopback", str(RANKS), "--quiet"]
    np.savez(shards / "1.npz", **stored | {"person": np.arange(ROWS) % (ROWS // 2)})
    capsys.readouterr()
    assert main(resume) == 2
    assert "expected the rows that rank 1 began the run with, found others" in capsys.readouterr().err
    np.savez(shards / "1.npz", **stored)
    assert main(resume) == 0


def test_a_spent_ledger_refuses_evaluations_by_their_own_part(shards, tmp_path):
    ledger = tmp_path / "ledgers"
    train(shards, tmp_path / "one", "--ledger", ledger, "--budget", 2.1)
    found = train(shards, tmp_path / "two", "--ledger", ledger, "--budget", 2.1)
    assert [record["evaluated"] for record in found["per_rank"]] == [False] * RANKS
    assert found["private_evaluation"]["metrics"] is None


def test_the_plan_is_what_the_run_charges(shards, tmp_path, capsys):
    found = train(shards, tmp_path / "run", "--evaluate", "private:4")
    settings = settings_of("--data", f"shards:{shards}/{{rank}}.npz", *LIKE, "--evaluate", "private:4")
    plan = make_plan(settings, settings.schedule(RANKS), [180] * RANKS, FEATURES + 1, held_out=[20] * RANKS)
    sigmas = noise_levels(plan)
    levels = evaluation_levels(plan, sigmas, [None] * RANKS)
    assert [record["evaluation_sigma"] for record in found["per_rank"]] == levels
    assert found["communication"]["messages"] == sum(plan.messages(rank) for rank in range(RANKS))
    flags = ["--ranks", RANKS, "--samples-per-rank", ROWS, "--dimension", FEATURES, "--evaluate", "private:4"]
    assert command(["plan", *map(str, flags), "--data", "shards:x-{rank}.npz", *map(str, LIKE)]) == 0
    said = capsys.readouterr().out
    assert "epsilon 2 on 60 other rows" in said
    assert f"{found['communication']['messages']:,}" in said


WRONG = {
    "the part": (lambda s: s["per_rank"][0].update(epsilon_evaluation=0.1), "epsilon_evaluation"),
    "the larger one": (lambda s: s["per_rank"][0].update(epsilon=1.0), "claims epsilon"),
    "the rows": (lambda s: s["per_rank"][0].update(held_out=21), "held_out"),
    "the noise": (lambda s: s["per_rank"][0].update(evaluation_sigma=9.0), "evaluation_sigma"),
    "the unit": (lambda s: s["privacy"].update(unit="person, at most 3 records"), "unit"),
}


@pytest.mark.parametrize("name", WRONG)
def test_verify_finds_what_is_wrong(shards, tmp_path, name):
    change, reason = WRONG[name]
    summary = train(shards, tmp_path / "run")
    change(summary)
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert any(reason in problem for rank in verify(tmp_path / "run") for problem in rank.problems)


@pytest.mark.parametrize("rows", ["all", "training"])
def test_verify_finds_an_evaluation_that_was_charged_to_other_rows(shards, tmp_path, monkeypatch, rows):
    real = plans.evaluation_noise
    with monkeypatch.context() as patch:
        patch.setattr(plans, "evaluation_noise", lambda *args: replace(real(*args), rows=rows))
        train(shards, tmp_path / "run", "--epsilon", 2)
    assert any(rank.problems for rank in verify(tmp_path / "run"))


def test_verify_finds_an_evaluation_of_too_little_noise(shards, tmp_path, monkeypatch):
    real = held_out_rows.calibration.calibrate
    with monkeypatch.context() as patch:
        patch.setattr(held_out_rows.calibration, "calibrate", lambda *args, **how: real(*args, **how) / 2)
        train(shards, tmp_path / "run", "--noise", 0.05, "--algorithm", "dp-dda")
    problems = [problem for rank in verify(tmp_path / "run") for problem in rank.problems]
    assert any("of evaluations by the configuration" in problem for problem in problems)


class Killed(BaseException):
    """Not an error that anybody handles."""


def test_a_run_that_goes_on_evaluates_as_one_that_was_never_interrupted(shards, tmp_path, monkeypatch):
    flags = ("--evaluate", "private:3", "--insecure-noise-seed", 3, "--checkpoint-every", 2)
    whole = train(shards, tmp_path / "whole", *flags)
    advance, settle = Engine.advance, Keeper.keep

    def fail(engine, last):
        if last >= 10:
            raise Killed
        advance(engine, last)

    def keep(keeper, snapshots):
        settle(keeper, snapshots)
        keeper.join()
        keeper.settle(keeper.written)
        keeper._tidy()

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "advance", fail)
        patch.setattr(Keeper, "keep", keep)
        train(shards, tmp_path / "cut", *flags, code=1)
    assert main(["--resume", str(tmp_path / "cut"), "--loopback", str(RANKS), "--quiet"]) == 0
    found = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert found["starts"] == 2
    assert found["private_evaluation"] == whole["private_evaluation"]
    assert np.array_equal(np.load(tmp_path / "cut/model.npz")["x"], np.load(tmp_path / "whole/model.npz")["x"])


def test_an_evaluation_that_is_repeated_is_charged_again(shards, tmp_path):
    """The run ends after its evaluation and before its result: what was released stays charged, and nothing is left."""
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateEvaluator, "rank_record", lambda self, rank: (_ for _ in ()).throw(KeyboardInterrupt))
        main([*map(str, ("--loopback", RANKS, "--data", f"shards:{shards}/{{rank}}.npz", *LIKE, "--out", run))])
    assert not (run / "summary.json").exists()
    assert main(["--resume", str(run), "--loopback", str(RANKS), "--quiet"]) == 0
    found = json.loads((run / "summary.json").read_text())
    assert found["privacy"]["epsilon"] <= 2.0 * (1 + 1e-9)
    assert found["private_evaluation"]["noise"] > 20 * 60  # next to nothing of its part of the target was left
    assert found["private_evaluation"]["metrics"]["accuracy"] == {"value": None, "error": None}
    assert all(not rank.problems for rank in verify(run))


def test_the_history_in_python_is_that_of_the_summary(shards, tmp_path):
    found = train(shards, tmp_path / "run", "--evaluate", "private:4", "--epsilon", 40)["private_evaluation"]
    history = Result(tmp_path / "run").history
    assert history["round"].tolist() == [4, 8, 12]
    for name in found["metrics"]:
        for key, part in ((name, "value"), (f"{name}_error", "error")):
            told = [math.nan if one[name][part] is None else one[name][part] for one in found["history"]]
            np.testing.assert_array_equal(history[key], told)
    assert len(history) == 1 + 2 * len(found["metrics"])
    train(shards, tmp_path / "exact", "--evaluate", "0")
    assert Result(tmp_path / "exact").history == {}


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.98592, 0.22981, "0.99 +- 0.23"),
        (1.0, 0.11412, "1.00 +- 0.11"),
        (0.83401, 0.01012, "0.834 +- 0.010"),
        (0.83401, 0.0996, "0.83 +- 0.10"),
        (25.31, 1.27, "25.3 +- 1.3"),
        (1234.5, 317.2, "1230 +- 320"),
        (0.5, 0.0, "0.5 +- 0"),
        (None, None, "not told from noise"),
    ],
)
def test_a_figure_has_two_digits_of_its_error(value, error, shown):
    assert with_error({"value": value, "error": error}) == shown


def test_shares_in_percent_have_two_digits_of_their_error():
    assert to_two_digits(0.83401, 0.01012, "%") == ("83.4%", "1.0%")
