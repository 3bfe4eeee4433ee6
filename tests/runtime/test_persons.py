"""Persons of several records: kept to their number, held out and drawn whole, and covered by the noise at once."""

import json
import stat

import needs
import numpy as np
import pytest
from plans import settings_of

import dpmpi
from dpmpi.algorithms import ALGORITHMS
from dpmpi.algorithms.dda import DpDda
from dpmpi.algorithms.momentum import Momentum
from dpmpi.commands.dispatch import main as command
from dpmpi.commands.verify import verify
from dpmpi.data import parse_source
from dpmpi.data.shards import read_shard
from dpmpi.errors import ConfigError
from dpmpi.model import Model
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.ledger import recorded_runs, recorded_spending
from dpmpi.problem.batches import Batch, BatchSampler
from dpmpi.problem.penalties import parse_penalty
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.run import main
from dpmpi.testing import check_sensitivity, simulation

BOOK = """
[person]
column = "patient"
most = {most}
[label]
column = "ill"
classes = ["no", "yes"]
[columns.age]
range = [0, 100]
[columns.dose]
range = [0, 10]
"""
RANKS, PATIENTS = 3, 120


def write_table(path, rank, patients=PATIENTS):
    """A table with one to nine rows a patient, in no order."""
    draw = np.random.default_rng(rank)
    whose = np.repeat(np.arange(patients), draw.integers(1, 10, patients))
    draw.shuffle(whose)
    ages = draw.uniform(0, 100, len(whose))
    lines = [
        f"p{p},{age:.1f},{draw.uniform(0, 10):.2f},{'yes' if age > 50 else 'no'}"
        for p, age in zip(whose, ages, strict=True)
    ]
    path.write_text("patient,age,dose,ill\n" + "\n".join(lines) + "\n")
    return whose


@pytest.fixture
def coded(tmp_path):
    (tmp_path / "book.toml").write_text(BOOK.format(most=3))
    for rank in range(RANKS):
        write_table(tmp_path / f"{rank}.csv", rank)
        words = ["data", "table", tmp_path / f"{rank}.csv", "--codebook", tmp_path / "book.toml"]
        assert command([str(word) for word in (*words, "--out", tmp_path / f"{rank}.npz")]) == 0
    return tmp_path


def train(folder, *flags, code=0):
    known = ["--loopback", RANKS, "--data", f"shards:{folder}/{{rank}}.npz", "--loss", "logistic", "--rounds", 10]
    known += ["--delta", 1e-4, "--epsilon", 2, "--quiet", "--out", folder / "run"]
    assert main([str(word) for word in (*known, *flags)]) == code
    return json.loads((folder / "run" / "summary.json").read_text()) if code == 0 else None


def test_the_first_records_of_each_person_are_kept(coded, capsys):
    whose = write_table(coded / "again.csv", 0)
    first = [k for k in range(len(whose)) if np.count_nonzero(whose[:k] == whose[k]) < 3]
    words = ["data", "table", coded / "again.csv", "--codebook", coded / "book.toml", "--out", coded / "again.npz"]
    assert command([str(word) for word in words]) == 0
    said = capsys.readouterr().out
    assert f"{PATIENTS} persons with at most 3 records each" in said
    assert f"left out, as their persons had 3 before: {len(whose) - len(first)} rows" in said
    stored = read_shard(coded / "again.npz")
    assert stored.most == 3
    assert stored.rows.count == len(first) < len(whose)
    _, numbers = np.unique(whose[first], return_inverse=True)
    assert len(set(zip(numbers, stored.persons, strict=True))) == PATIENTS  # the same persons under other numbers
    assert stat.S_IMODE((coded / "again.npz").stat().st_mode) == 0o600


def test_a_shard_that_does_not_keep_to_its_word_is_refused(coded, capsys):
    stored = dict(np.load(coded / "1.npz"))
    np.savez(coded / "1.npz", **stored | {"most": np.array(2)})
    train(coded, code=2)
    assert "expected at most 2 records of each person" in capsys.readouterr().err
    np.savez(coded / "1.npz", **{name: array for name, array in stored.items() if name != "most"})
    train(coded, code=2)
    assert "person and most together" in capsys.readouterr().err


def test_a_person_is_held_out_whole(coded):
    source = parse_source(
        f"shards:{coded}/{{rank}}.npz", samples=None, normalize=True, test_fraction=0.2, seed=4, loss="logistic"
    )
    shard, stored = source.load(None, 0, RANKS), read_shard(coded / "0.npz")
    assert shard.most == 3
    assert len(set(shard.persons.tolist())) == int(shard.persons.max()) + 1 == PATIENTS - 24
    rows = {tuple(row): person for row, person in zip(stored.rows.matrix, stored.persons, strict=True)}
    train_, test = ({rows[tuple(row)] for row in part.matrix} for part in (shard.rows, shard.test_rows))
    assert not train_ & test
    assert len(test) == 24
    assert shard.rows.count + shard.test_rows.count == stored.rows.count


def test_batches_are_drawn_by_person():
    persons, stream = np.array([0, 1, 0, 2, 3, 1, 0, 4]), PrivateStream(insecure_key(0, 0), "batch")
    sampler, seen = BatchSampler(Batch("poisson", 3), 8, stream, persons), np.zeros(8)
    for _ in range(4000):
        drawn = sampler.draw()
        seen[drawn] += 1
        for person in range(5):
            mine = np.flatnonzero(persons == person)
            assert set(mine) <= set(drawn) or not set(mine) & set(drawn)
    np.testing.assert_allclose(seen / 4000, 3 / 8, atol=0.04)
    with pytest.raises(ConfigError, match="persons enter with all their records"):
        BatchSampler(Batch("fixed", 3), 8, stream, persons)


METHODS = ["dp-dda", "momentum", "dp-dgd", "ip-admm", "admm", "pvp-admm", "dp-admm"]


@pytest.mark.parametrize("name", METHODS)
def test_whole_persons_move_a_query_by_what_was_charged(name):
    """The sensitivity contract, with all three records of a person replaced at once."""
    smooth = name not in ("dp-dda", "momentum")
    graph = "complete" if name == "dp-admm" else "ring"
    settings = {"loss": "logistic", "normalized": True} if smooth else {}
    make = ALGORITHMS[name]
    if name == "dp-dgd":
        settings["penalty"] = parse_penalty("l2:0.1", "ball:1")
    check_sensitivity(make, most=3, graph=graph, **settings)


@pytest.mark.parametrize("make", [DpDda, Momentum])
def test_whole_persons_move_batches_by_what_was_charged(make):
    check_sensitivity(make, most=3, batch="poisson:5")


def test_a_price_of_one_record_is_too_low_for_a_person(monkeypatch):
    """The contract would notice: without the factor, three records move a query three times as far as was charged."""
    keep = simulation.replace

    def without_factor(one, **more):
        more.pop("records", None)
        return keep(one, **more)

    monkeypatch.setattr(simulation, "replace", without_factor)
    with pytest.raises(AssertionError, match="declares a sensitivity"):
        check_sensitivity(DpDda, most=3)


def test_the_epsilon_of_persons_is_that_of_the_plan(coded, capsys):
    found = train(coded, "--algorithm", "dp-dda", "--weigh", "ranks")
    assert found["privacy"]["unit"] == "person, at most 3 records"
    assert 1.99 < found["privacy"]["epsilon"] <= 2.0
    assert all(not rank.problems for rank in verify(coded / "run"))
    assert "person-records = 3" in (coded / "run" / "config.toml").read_text()
    model = Model.load(coded / "run" / "model.npz")
    assert model.privacy.unit == "person, at most 3 records"
    [training] = [e for e in recorded_spending(coded / "run/ledger/rank-000.jsonl") if e.rows == "training"]
    records = found["per_rank"][0]["samples"]
    assert training.sensitivity == pytest.approx(3 * 2 * 0.5 / records)
    assert found["private_evaluation"]["sensitivity"] == pytest.approx(3 * np.sqrt(2))
    capsys.readouterr()
    sigma = found["per_rank"][0]["sigma"]
    flags = ["--ranks", RANKS, "--samples-per-rank", 300, "--dimension", 2, "--loss", "logistic", "--rounds", 10]
    flags += ["--algorithm", "dp-dda", "--delta", 1e-4, "--person-records", 3, "--weigh", "ranks", "--json"]
    assert command([str(word) for word in ("plan", *flags, "--epsilon", 2)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["unit"] == "person, at most 3 records"
    assert plan["epsilon"] == pytest.approx(found["privacy"]["epsilon_training"], rel=1e-4)
    assert plan["sigma"][0] * 300 == pytest.approx(sigma * records, rel=1e-4)


def test_tables_of_a_python_program_have_persons_too(coded):
    pandas = needs.package("pandas", "test")
    tables = [pandas.read_csv(coded / f"{rank}.csv") for rank in range(RANKS)]
    settings = {"codebook": coded / "book.toml", "loss": "logistic", "rounds": 10, "delta": 1e-4, "epsilon": 2}
    found = dpmpi.simulate(tables, **settings, test_fraction=0.1, evaluate="private").summary
    shards = train(coded)
    assert found["privacy"]["unit"] == "person, at most 3 records"
    for name in ("samples", "held_out", "sigma", "evaluation_sigma"):
        assert [one[name] for one in found["per_rank"]] == [one[name] for one in shards["per_rank"]]
    parts = [(table.drop(columns="ill"), table["ill"]) for table in tables]
    with pytest.raises(ConfigError, match=r"for a codebook with \[person\]"):
        dpmpi.simulate(parts, **settings)
    with pytest.raises(ConfigError, match=r"for a codebook with \[person\]"):
        dpmpi.simulate(tables, **settings, test=parts)


def test_what_records_were_charged_for_counts_three_times_for_persons_of_three(coded):
    """A ledger began with records as the unit; now three of them are one person, who was in every earlier release."""
    stored = [dict(np.load(coded / f"{rank}.npz")) for rank in range(RANKS)]
    for rank, arrays in enumerate(stored):
        np.savez(coded / f"{rank}.npz", X=arrays["X"], y=arrays["y"])
    ledger = ("--ledger", coded / "ledgers", "--evaluate", 0, "--test-fraction", 0)
    train(coded, *ledger)
    train(coded, *ledger, "--batch", 20, "--algorithm", "dp-dda")
    for rank, arrays in enumerate(stored):
        np.savez(coded / f"{rank}.npz", X=arrays["X"], y=arrays["y"], person=arrays["person"], most=3)
    found = train(coded, *ledger)["per_rank"][0]["epsilon_with_earlier_runs"]
    runs = [spent for _, spent, _ in recorded_runs(coded / "ledgers" / "rank-000.jsonl")]
    each = [(k * e.sensitivity / e.scale, n) for k, one in zip((3, 3, 1), runs, strict=True) for e, n in one.items()]
    mu = np.sqrt(sum(n * ratio**2 for ratio, n in each))
    assert found == pytest.approx(gdp_epsilon(mu, 1e-4))
    # Who is charged for three at once is charged for one record, too.
    for rank, arrays in enumerate(stored):
        np.savez(coded / f"{rank}.npz", X=arrays["X"], y=arrays["y"])
    assert train(coded, *ledger)["privacy"]["unit"] == "record"


def test_three_records_cost_three_times_the_noise(coded):
    three = train(coded, "--algorithm", "dp-dda")["per_rank"][0]["sigma"]
    for rank in range(RANKS):
        stored = dict(np.load(coded / f"{rank}.npz"))
        rows = np.arange(len(stored["y"]))
        np.savez(coded / f"{rank}.npz", **stored | {"person": rows, "most": np.array(1)})
    one = train(coded, "--algorithm", "dp-dda", "--no-evaluate", "--test-fraction", 0)
    assert one["privacy"]["unit"] == "record"
    assert three / one["per_rank"][0]["sigma"] == pytest.approx(3 / 0.9, rel=0.02)


def test_what_is_declared_must_be_in_the_shards(coded, capsys):
    train(coded, "--person-records", 2, code=2)
    assert (
        "expected at most --person-records 2 records of a person, found shards with up to 3" in capsys.readouterr().err
    )
    assert train(coded, "--person-records", 5)["privacy"]["unit"] == "person, at most 5 records"
    train(coded, "--batch", "fixed:5", code=2)
    assert "use full or poisson:N" in capsys.readouterr().err
    assert train(coded, "--batch", 20)["privacy"]["epsilon"] <= 2.0
    assert (
        main(["--loopback", "3", "--person-records", "3", "--epsilon", "1", "--rounds", "2", "--out", str(coded / "x")])
        == 2
    )
    assert "do not say whose their records are" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="at least 1"):
        settings_of("--person-records", 0)


BAD = {
    "most = 0": "a whole number from 1 to 1000",
    "most = 3.0": "a whole number",
    "most = 3\nother = 1": "unknown key",
}


@pytest.mark.parametrize("text", BAD)
def test_a_codebook_says_what_is_wrong_with_persons(tmp_path, text, capsys):
    (tmp_path / "book.toml").write_text(BOOK.format(most=3).replace("most = 3", text))
    assert command(["data", "table", "--codebook", str(tmp_path / "book.toml")]) == 2
    assert BAD[text] in capsys.readouterr().err


def test_whose_a_record_is_must_be_there(coded, capsys):
    (coded / "x.csv").write_text("patient,age,dose,ill\np1,20,3,no\n,20,3,no\n")
    words = ["data", "table", coded / "x.csv", "--codebook", coded / "book.toml", "--out", coded / "x.npz"]
    assert command([str(word) for word in words]) == 2
    assert "x.csv:3: column patient: expected whose the record is" in capsys.readouterr().err
    (coded / "book.toml").write_text(BOOK.format(most=3).replace('column = "patient"', 'column = "age"'))
    assert command([str(word) for word in words]) == 2
    assert "expected no feature or label that says whose a record is" in capsys.readouterr().err


def test_parquet_has_persons_as_csv_does(coded):
    pyarrow = needs.package("pyarrow", "parquet")
    from pyarrow import csv, parquet  # noqa: PLC0415 - may be missing

    table = csv.read_csv(coded / "0.csv")
    whose = pyarrow.array([int(name[1:]) for name in table["patient"].to_pylist()])  # numbers are names, too
    for kind, of in (("text", table), ("number", table.set_column(0, "patient", whose))):
        parquet.write_table(of, coded / f"{kind}.parquet")
        words = ["data", "table", coded / f"{kind}.parquet", "--codebook", coded / "book.toml"]
        assert command([str(word) for word in (*words, "--out", coded / f"{kind}.npz")]) == 0
        one, other = read_shard(coded / f"{kind}.npz"), read_shard(coded / "0.npz")
        np.testing.assert_array_equal(one.persons, other.persons)
        np.testing.assert_array_equal(one.rows.matrix, other.rows.matrix)
    train(coded)
    for name in ("0.csv", "text.parquet"):
        words = ["predict", coded / "run", coded / name, "--id", "patient", "--out", coded / f"{name}-out.csv"]
        assert command([str(word) for word in words]) == 0
    told = (coded / "text.parquet-out.csv").read_text()
    assert told == (coded / "0.csv-out.csv").read_text()
    assert f"\n{table['patient'][0]}," in told
