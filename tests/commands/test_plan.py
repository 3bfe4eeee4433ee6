"""Plan: the tables of what the papers' noise really gives, and what certified noise takes."""

import json

import pytest

from dpmpi.commands.dispatch import main
from dpmpi.run import main as run
from dpmpi.runtime.cost.fit import Fit

DDA = ["--algorithm", "dp-dda", "--intercept", "none"]
BASE = ["plan", "--ranks", "20", "--dimension", "2000", "--json", "--allow-large-delta", *DDA]


def plan(capsys, **flags):
    arguments = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main([*BASE, *arguments]) == 0
    return json.loads(capsys.readouterr().out)


# q, T, claimed epsilon, the theorem's sigma, certified epsilon at delta = 0.01, one record at a time
THEOREM = [
    (20000, 60000, 0.2, 0.455, 21.1),
    (20000, 60000, 0.4, 0.228, 229),
    (20000, 60000, 1.0, 0.0910, 1806),
    (1012, 3036, 0.2, 2.02, 0.08),
    (1012, 3036, 0.4, 1.01, 0.95),
    (1012, 3036, 1.0, 0.405, 52.2),
    (1012, 60000, 1.0, 1.80, 0.92),
]


@pytest.mark.parametrize(("q", "T", "claim", "sigma", "epsilon"), THEOREM)
def test_what_the_theorem_claims_and_what_holds(capsys, q, T, claim, sigma, epsilon):
    found = plan(
        capsys, samples_per_rank=q, rounds=T, batch=1, epsilon=claim, delta=0.01, calibration="theorem"
    )  # fmt: skip
    assert found["epsilon_theorem"] == pytest.approx(claim)
    assert found["sigma"] == [pytest.approx(sigma, rel=0.01)] * 2
    assert found["epsilon"] == pytest.approx(epsilon, rel=0.02, abs=0.005)


# q, T, batch, certified sigma for (1, 1e-5)
CERTIFIED = [
    (20000, 1000, "full", 0.0118),
    (20000, 10000, "full", 0.0373),
    (20000, 60000, "full", 0.0914),
    (1012, 1000, "full", 0.233),
    (20000, 1000, "1", 0.853),
    (20000, 1000, "fixed:32", 0.0438),
    (20000, 1000, "fixed:256", 0.0150),
    (20000, 1000, "256", 0.01183),
    (20000, 10000, "256", 0.03735),
]


@pytest.mark.parametrize(("q", "T", "batch", "sigma"), CERTIFIED)
def test_certified_noise(capsys, q, T, batch, sigma):
    found = plan(capsys, samples_per_rank=q, rounds=T, batch=batch, epsilon=1, delta=1e-5)
    assert found["sigma"] == [pytest.approx(sigma, rel=0.02)] * 2
    assert 0.98 < found["epsilon"] <= 1.0


def test_node_sampling_pays_for_its_own_rounds_only(capsys):
    """q=1012, iota=0.1, T=60000: the theorem's noise is .315 and costs 173 at delta=.01 instead of 1."""
    found = plan(
        capsys, algorithm="sampled-dda", graph="complete", samples_per_rank=1012, rounds=60000, batch=1, epsilon=1,
        delta=0.01, calibration="theorem",
    )  # fmt: skip
    assert found["sigma"][0] == pytest.approx(0.315, rel=0.01)
    assert found["epsilon"] == pytest.approx(173, rel=0.03)  # the busiest rank has a few more rounds than 6000
    assert found["active_rounds"][0] < 6000 < found["active_rounds"][1]
    assert found["messages"] == 2 * 60000


def test_messages_and_bytes_of_a_ring(capsys):
    found = plan(capsys, samples_per_rank=100, rounds=50, noise=1)
    assert found["messages"] == 20 * 2 * 50
    assert found["bytes"] == 20 * 2 * 50 * (8 * 2000 + 16)
    assert found["graph"]["beta"] == pytest.approx(0.9674, abs=1e-4)


def test_auto_batch(capsys):
    found = plan(capsys, samples_per_rank=20000, rounds=2000, batch="auto", epsilon=1, delta=1e-5)
    assert found["batch"] == "poisson:180"  # ceil(1.5 * 20000 * 0.2681 / sqrt(2000))


def test_the_plan_reads_the_data(capsys):
    assert main(["plan", "--ranks", "3", "--data", "synthetic:samples=100,features=7", "--noise", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == [33, 34]
    assert found["dimension"] == 7


TINY = ["--ranks", "3", "--samples-per-rank", "100", "--dimension", "5", "--noise", "1"]
FIT = Fit(2e-5, 3e-5, 7e-6, 5e-10, 4e-5, 9e-5, 6e-5, 8e-10, 2e-9, 1e-8, 5e-8)


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr("dpmpi.commands.plan.load", lambda path: FIT)


def rows(capsys, *flags):
    assert (
        main(["plan", "--ranks", "20", "--samples-per-rank", "1000", "--dimension", "2000", *DDA, *flags, "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)["predicted"]
    return found, {row["ranks"]: row for row in found["rows"]}


def test_seconds_on_this_host_and_on_many(capsys, measured):
    """A core for each rank: u + tau a round. All on one host of 2 cores: n/2 times u, whoever waits for whom."""
    flags = ["--rounds", "1000", "--batch", "50", "--noise", "1", "--predict", "--cores-per-host", "2"]
    work = 6e-5 + (2e-9 * 50 + 1e-8 + 5e-8) * 2000
    exchange = FIT.overhead_seconds + 2 * (FIT.latency_seconds + FIT.seconds_per_byte * 16016)
    found, alone = rows(capsys, *flags, "--ranks-per-host", "2")
    assert found["work_seconds"] == pytest.approx(work)
    for n in (20, 10_000):
        assert alone[n]["hosts"] == n // 2
        assert alone[n]["seconds"] == pytest.approx(1000 * (work + exchange + FIT.transit_seconds), rel=1e-6)
        assert alone[n]["bytes"] == 1000 * 2 * n * 16016
    _, crowded = rows(capsys, *flags)
    for n in (20, 1000):
        u = work + exchange + (FIT.switch_seconds + FIT.nap_seconds) * (1 - 2 / n) ** 2
        assert crowded[n]["seconds"] == pytest.approx(1000 * n / 2 * u, rel=0.01)
    _, known = rows(capsys, *flags, "--work-seconds", "0.5", "--ranks-per-host", "1")
    assert known[20]["seconds"] == pytest.approx(1000 * (0.5 + exchange + FIT.transit_seconds), rel=1e-6)


def test_half_of_the_bytes_as_float32(capsys, measured):
    wide, narrow = (rows(capsys, "--noise", "1", "--predict", "--wire", wire)[1] for wire in ("float64", "float32"))
    for n, row in wide.items():
        assert narrow[n]["messages"] == row["messages"]
        assert narrow[n]["bytes"] == row["bytes"] * 8016 // 16016
        assert narrow[n]["seconds"] < row["seconds"]


def test_without_a_measurement_the_seconds_are_left_out(capsys, monkeypatch):
    monkeypatch.setattr("dpmpi.commands.plan.load", lambda path: None)
    assert main(["plan", *TINY, *DDA, "--rounds", "500", "--predict"]) == 0
    shown = capsys.readouterr().out
    assert "bench --fit measures this machine" in shown
    [line] = [line for line in shown.splitlines() if line.split()[:1] == ["10,000"]]
    assert line.split() == ["10,000", "1", "10,000,000", "560.0", "-"]
    _, found = rows(capsys, "--noise", "1", "--predict")
    assert {row["seconds"] for row in found.values()} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise", "1"], "--ranks N"),
        (["--ranks", "3", "--data", "shards:x-{rank}.npz"], "--samples-per-rank"),
        (["--ranks", "300", "--data", "synthetic:samples=100,features=7"], "each of 300 ranks, found 100"),
        (["--ranks", "3", "--samples-per-rank", "0"], "must lie in"),
        (["--ranks", "3", "--samples-per-rank", "100", "--epsilon", "1", "--delta", "0.1"], "--allow-large-delta"),
        ([*TINY, "--cores-per-host", "4"], "for --predict: add it"),
        ([*TINY, "--predict", "--cores-per-host", "0"], "--cores-per-host must lie in 1 ... 10^6, got 0"),
        ([*TINY, "--predict", "--ranks-per-host", "-3"], "--ranks-per-host must lie in 1 ... 10^6, got -3"),
        ([*TINY, "--predict", "--work-seconds", "nan"], "--work-seconds must be finite"),
        ([*TINY, "--predict", "--costs", "nowhere.json"], "expected measured costs in nowhere.json"),
        (["--ranks", "3", "--samples-per-rank", "100", "--noise", "1", "--predict"], "give --dimension M"),
    ],
)
def test_impossible_plans(capsys, arguments, message):
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_epsilons_of_groups_have_the_name_and_the_figures_of_the_summary(tmp_path, capsys):
    flags = ["--data", "synthetic:samples=300,features=4", "--rounds", "5", "--epsilon", "1"]
    assert main(["plan", "--ranks", "3", "--json", *flags]) == 0
    planned = json.loads(capsys.readouterr().out)["epsilon_groups"]
    assert run(["--loopback", "3", "--no-evaluate", *flags, "--out", str(tmp_path / "run")]) == 0
    made = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["epsilon_groups"]
    assert planned.keys() == made.keys() == {"2", "5", "10"}
    assert planned == pytest.approx(made)


def test_a_plan_says_which_data_it_is_about(tmp_path, capsys):
    def planned(*flags):
        assert main(["plan", "--ranks", "4", "--epsilon", "1", *flags]) == 0
        return [
            line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("  data ")
        ]

    assumed = "synthetic, as none were named: --data, or --samples-per-rank N and --dimension M"
    (tmp_path / "agreed.toml").write_text('loss = "logistic"\n')
    (tmp_path / "config.toml").write_text('data = "synthetic:samples=800,features=3"\n')
    assert planned() == planned("--config", str(tmp_path / "agreed.toml")) == [assumed]
    assert planned("--config", str(tmp_path / "config.toml")) == ["synthetic:samples=800,features=3"]
    assert planned("--data", "synthetic") == ["synthetic"]
    assert planned("--samples-per-rank", "100", "--dimension", "3") == []
