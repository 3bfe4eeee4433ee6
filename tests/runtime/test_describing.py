"""Private descriptions: everything that leaves a rank is noised and charged first, and later runs go on from there."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from launcher import MPIRUN, mpirun

from dpmpi.commands.dispatch import main
from dpmpi.data.adult import ATTRIBUTES
from dpmpi.data.codebook import read_codebook
from dpmpi.data.description import QUANTILES, figures, read_schema
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.ledger import read_ledger, recorded_spending
from dpmpi.privacy.ledger_proofs import read_key
from dpmpi.privacy.mechanisms import DeafMechanism, NoNoise
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.run import main as run
from dpmpi.runtime.describing import Request, describe
from dpmpi.runtime.ledger_owner import check_ledger
from dpmpi.testing.simulation import Tap

SCHEMA = """
[columns.age]
range = [0, 200]
[columns.ward]
categories = ["medicine", "surgery"]
"""
LABELLED = SCHEMA + '[label]\ncolumn = "y"\nclasses = ["no", "yes"]\n'
PERSONS = SCHEMA + '[person]\ncolumn = "who"\nmost = 3\n'
DELTA = 1e-5
WARDS = ["medicine", "surgery", "other", ""]


class Site:
    """A folder with tables, a schema and ledgers."""

    def __init__(self, folder):
        self.folder = folder
        self.schema = folder / "schema.toml"
        self.schema.write_text(LABELLED)

    def tables(self, ranks=2, rows=400, seed=0, name="table"):
        draw, paths = np.random.default_rng(seed), []
        for rank in range(ranks):
            paths.append(self.folder / f"{name}-{rank}.csv")
            cells = [[draw.integers(20, 90), draw.choice(WARDS), draw.choice(["no", "yes"]), k] for k in range(rows)]
            with paths[-1].open("w", newline="") as file:
                csv.writer(file).writerows([["age", "ward", "y", "who"], *cells])
        return paths

    def request(self, ledger="ledger", **how):
        return Request(read_schema(self.schema), 0.5, DELTA, self.folder / ledger, **how)

    def ledger(self, rank=0, folder="ledger"):
        return self.folder / folder / f"rank-00{rank}.jsonl"

    def command(self, *words, ledger="ledger"):
        how = ["--private", "--schema", self.schema, "--ledger", self.folder / ledger]
        return main(list(map(str, ["data", "describe", *how, *words])))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_every_rank_is_charged_exactly_the_epsilon_that_was_asked_for(site):
    found = describe(site.request(), LoopbackTransport(2), site.tables())
    for rank in range(2):
        spent = recorded_spending(site.ledger(rank))
        assert spent.total() == 1
        (event,) = spent
        assert (event.noise, event.rows, event.sampling.kind) == ("gaussian", "all", "full")
        assert event.sensitivity == pytest.approx(np.sqrt(2 * 3))
        assert 0.499 < certified_epsilon(spent, DELTA) <= 0.5
        assert check_ledger(site.ledger(rank), None) == len(list(read_ledger(site.ledger(rank))))
        assert found.deviation == pytest.approx(np.sqrt(2) * event.scale)
    assert found.rows == (400, 400)


def test_persons_are_charged_for_all_their_records(site):
    site.schema.write_text(PERSONS)
    describe(site.request(), LoopbackTransport(1), site.tables(1))
    (event,) = recorded_spending(site.ledger())
    assert event.sensitivity == pytest.approx(3 * 2)
    assert next(read_ledger(site.ledger()))["person_records"] == 3


def test_without_noise_the_cells_are_the_sum_of_those_of_all_tables(site):
    tables = site.tables()
    found = describe(site.request(), LoopbackTransport(2), tables, make=lambda rank, sigma: NoNoise())
    label, age, ward = read_schema(site.schema).split(found.cells)
    texts = [line.split(",") for path in tables for line in path.read_text().splitlines()[1:]]
    assert label.tolist() == [sum(text[2] == word for text in texts) for word in ("no", "yes")] + [0, 0]
    assert ward.tolist() == [sum(text[1] == word for text in texts) for word in WARDS]
    assert age.sum() == 800


def test_the_noise_of_the_sum_has_the_deviation_that_is_said(site):
    tables, exact = site.tables(), None
    exact = describe(site.request("exact"), LoopbackTransport(2), tables, make=lambda rank, sigma: NoNoise()).cells
    noisy = [describe(site.request(f"l{k}"), LoopbackTransport(2), tables) for k in range(12)]
    noise = np.array([one.cells - exact for one in noisy])
    assert noise.std() == pytest.approx(noisy[0].deviation, rel=0.15)
    assert abs(noise.mean()) < 6 * noisy[0].deviation / np.sqrt(noise.size)


class Listening(Tap):
    """Keeps what the ranks tell each other beside their messages, too."""

    def __init__(self, inside):
        super().__init__(inside)
        self.told = []

    def collect(self, texts):
        self.told += texts
        return self.inside.collect(texts)


def heard(site, tables, ledger):
    """All that leaves a rank, and the result, under a mechanism that does not look at its query."""
    tap = Listening(LoopbackTransport(len(tables)))
    width = read_schema(site.schema).width

    def deaf(rank, sigma):
        return DeafMechanism(sigma, PrivateStream(insecure_key(0, rank), "noise"), width)

    found = describe(site.request(ledger), tap, tables, make=deaf)
    return tap.heard, tap.told, found.cells.tolist(), found.rows


def test_nothing_but_releases_is_on_the_wire(site):
    one = heard(site, site.tables(seed=1), "one")
    strange = site.folder / "strange-0.csv"
    strange.write_text("y,secret,ward,age,who\n" + "no,!,medicine,not a number,x\n" * 400)
    other = heard(site, [strange, *site.tables(seed=2)[1:]], "other")
    assert one == other
    assert all(one)


def test_a_leak_would_be_seen(site, monkeypatch):
    monkeypatch.setattr(DeafMechanism, "perturb", lambda self, value, scale=1.0: None)
    assert heard(site, site.tables(seed=1), "one") != heard(site, site.tables(seed=2), "other")


def test_the_charge_is_on_disk_before_anything_is_sent(site):
    class Watching(Tap):
        def start(self, channel):
            assert recorded_spending(site.ledger(channel.rank)).total() == 1
            super().start(channel)

    tap = Watching(LoopbackTransport(2))
    describe(site.request(), tap, site.tables())
    assert tap.heard


def test_the_files_of_a_ledger_do_not_confirm_guesses_of_the_table(site):
    tables = site.tables(1)
    describe(site.request("one"), LoopbackTransport(1), tables)
    describe(site.request("two"), LoopbackTransport(1), tables)
    marks = [next(read_ledger(site.ledger(0, folder)))["table"] for folder in ("one", "two")]
    assert marks[0] != marks[1]
    assert read_key(site.ledger(0, "one")) is not None


def test_what_was_charged_for_records_counts_for_persons(site):
    (table,) = site.tables(1)
    describe(site.request(), LoopbackTransport(1), [table])
    site.schema.write_text(PERSONS)
    with pytest.raises(ConfigError, match="found too much spent before"):
        describe(site.request(budget=1.5), LoopbackTransport(1), [table])
    describe(site.request(budget=3.0), LoopbackTransport(1), [table])


def test_a_ledger_adds_up_and_its_budget_holds(site):
    tables = site.tables(1)
    describe(site.request(budget=0.8), LoopbackTransport(1), tables)
    with pytest.raises(ConfigError, match=r"expected room for epsilon 0\.5 in the budget 0\.6"):
        describe(site.request(budget=0.6), LoopbackTransport(1), tables)
    assert recorded_spending(site.ledger()).total() == 1
    describe(site.request(budget=0.8), LoopbackTransport(1), tables)
    assert 0.6 < certified_epsilon(recorded_spending(site.ledger()), DELTA) <= 0.8
    with pytest.raises(ConfigError, match="found too much spent before"):
        describe(site.request("fresh", budget=0.1), LoopbackTransport(1), tables)
    describe(site.request("fresh"), LoopbackTransport(1), tables)


def test_a_ledger_knows_its_table(site):
    describe(site.request(), LoopbackTransport(1), site.tables(1))
    other = site.tables(1, seed=5, name="other")
    with pytest.raises(ConfigError, match="belongs to another table"):
        describe(site.request(), LoopbackTransport(1), other)
    describe(site.request(changed=True), LoopbackTransport(1), other)
    describe(site.request(), LoopbackTransport(1), other)
    assert recorded_spending(site.ledger()).total() == 3
    site.ledger().unlink()
    with pytest.raises(LedgerError, match="beside its key, found none"):
        describe(site.request(), LoopbackTransport(1), other)


def test_training_goes_on_with_the_ledger_of_a_description(site, capsys):
    tables = site.tables()
    assert site.command("--data", *tables, "--epsilon", 0.5, "--codebook", site.folder / "book.toml") == 0
    for rank, table in enumerate(tables):
        out = site.folder / f"shard-{rank}.npz"
        assert main(["data", "table", str(table), "--codebook", str(site.folder / "book.toml"), "--out", str(out)]) == 0
    how = ["--loopback", "2", "--data", f"shards:{site.folder}/shard-{{rank}}.npz", "--rounds", "3", "--epsilon", "1"]
    how += ["--delta", str(DELTA), "--algorithm", "dp-dda", "--batch", "100"]
    assert run([*how, "--ledger", str(site.folder / "ledger"), "--out", str(site.folder / "run")]) == 0
    summary = json.loads((site.folder / "run/summary.json").read_text())
    for record in summary["per_rank"]:
        assert record["epsilon"] <= 1.0 < record["epsilon_with_earlier_runs"] < 2.0
    assert main(["verify", str(site.folder / "run"), "--ledger", str(site.folder / "ledger")]) == 0
    assert site.command("--data", *tables, "--epsilon", 0.5, "--budget", 1.2) == 2
    assert "found too much spent before" in capsys.readouterr().err


def test_a_table_that_goes_on_does_not_begin_with_a_ledger_that_was_only_described(site, capsys):
    (table,) = site.tables(1)
    site.command("--data", table, "--epsilon", 0.5, "--codebook", site.folder / "book.toml")
    words = ["data", "table", str(table), "--codebook", str(site.folder / "book.toml"), "--out"]
    assert main([*words, str(site.folder / "old.npz")]) == 0
    assert main([*words, str(site.folder / "new-0.npz"), "--continues", str(site.folder / "old.npz")]) == 0
    how = ["--loopback", "1", "--data", f"shards:{site.folder}/new-{{rank}}.npz", "--rounds", "2", "--noise", "1"]
    assert run([*how, "--ledger", str(site.folder / "ledger"), "--out", str(site.folder / "run")]) == 2
    assert "expected the ledger of the table that the shard continues" in capsys.readouterr().err


def test_parties_describe_alone_and_add_up_what_they_told(site, capsys):
    for rank, table in enumerate(site.tables(3)):
        out = site.folder / f"{rank}.json"
        assert site.command("--data", table, "--rank", rank, "--epsilon", 0.5, "--json", out) == 0
        assert recorded_spending(site.ledger(rank)).total() == 1
    parts = [site.folder / f"{rank}.json" for rank in range(3)]
    told = [json.loads(part.read_text()) for part in parts]
    merge = ["data", "describe", "--private", "--schema", site.schema, "--json", site.folder / "all.json", "--merge"]
    capsys.readouterr()
    assert main(list(map(str, [*merge, *parts]))) == 0
    assert "1200 rows of 3 tables under (0.5, 1e-05)-differential privacy, unit: record" in capsys.readouterr().out
    both = json.loads((site.folder / "all.json").read_text())
    assert both["rows"] == [400] * 3
    assert both["deviation"] == pytest.approx(np.sqrt(3) * told[0]["deviation"])
    assert np.allclose(both["cells"], np.sum([one["cells"] for one in told], axis=0))
    site.schema.write_text(SCHEMA)
    assert main(list(map(str, [*merge, *parts]))) == 2
    assert "expected a description by the same schema" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "{t}"], "expected a positive --epsilon"),
        (["--data", "{t}", "--epsilon", "nan"], "expected a positive --epsilon"),
        (["--epsilon", "1"], "expected either --data TABLE ... or --merge"),
        (["--data", "{t}", "--epsilon", "1", "--delta", "0.1"], "expected delta below 1/records"),
        (["--data", "{t}", "--epsilon", "1", "--loopback", "3"], "expected 3 tables, or one name with {rank}"),
        (["--data", "no-{rank}.csv", "--epsilon", "1", "--loopback", "2"], "no-0.csv"),
        (["--data", "{t}", "{t}", "--epsilon", "1", "--rank", "1"], "--rank from 0 with one table"),
        (["--merge", "{t}"], "expected what describe --json wrote"),
    ],
)
def test_refusals_are_one_line_and_charge_nothing(site, capsys, words, said):
    (table,) = site.tables(1)
    assert site.command(*(word.replace("{t}", str(table)) for word in words)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (site.folder / "ledger").exists()


def test_private_and_a_ledger_must_be_said(site, capsys):
    (table,) = map(str, site.tables(1))
    how = ["data", "describe", "--schema", str(site.schema), "--data", table, "--epsilon", "1"]
    assert main(how) == 2
    assert "expected --private" in capsys.readouterr().err
    assert main([*how, "--private"]) == 2
    assert "expected --ledger DIR" in capsys.readouterr().err


@needs.mpi
def test_ranks_under_mpirun_describe_their_own_tables(site):
    site.tables()
    out, book = site.folder / "out.json", site.folder / "book.toml"
    words = ["--private", "--schema", site.schema, "--data", f"{site.folder}/table-{{rank}}.csv", "--epsilon", "2"]
    words += ["--ledger", site.folder / "ledger", "--json", out, "--codebook", book]
    done = mpirun(2, "describe", *words, program=("-m", "dpmpi", "data"))
    assert done.code == 0, done.err
    assert done.out.count("800 rows of 2 tables") == 1
    assert [recorded_spending(site.ledger(rank)).total() for rank in range(2)] == [1, 1]
    told = json.loads(out.read_text())
    age = next(one for one in told["columns"] if one["column"] == "age")
    assert abs(age["quantiles"][3]["value"] - 55) < 15  # six deviations
    assert read_codebook(book).columns[0].column == "age"
    (site.folder / "table-1.csv").write_text("age,ward,y\n1,2\n")
    done = mpirun(2, "describe", *words, program=("-m", "dpmpi", "data"))
    assert done.code != 0
    assert "rank 1 cannot use its table, and says why on its own terminal" in done.err
    assert [recorded_spending(site.ledger(rank)).total() for rank in range(2)] == [1, 1]


@needs.data
def test_adult_columns_are_found_at_a_small_price(site):
    names = [*ATTRIBUTES, "income"]
    with gzip.open(Path(os.environ["DPMPI_DATA"]) / "adult.data.gz", "rt") as file:
        records = [line.strip().split(", ") for line in file if line.count(",") == 14]
    tables = [site.folder / f"adult-{rank}.csv" for rank in range(4)]
    for rank, table in enumerate(tables):
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([names, *records[rank::4]])
    generous = {"age": 200, "education-num": 40, "hours-per-week": 200, "capital-gain": 1e6}
    text = 'missing-words = ["?"]\n' + "".join(f"[columns.{k}]\nrange = [0, {v}]\n" for k, v in generous.items())
    text += f"[columns.workclass]\ncategories = {json.dumps(ATTRIBUTES['workclass'])}\n"
    site.schema.write_text(text)
    request = Request(read_schema(site.schema), 0.5, 1e-6, site.folder / "ledger")
    found = describe(request, LoopbackTransport(4), tables)
    columns = {one["column"]: one for one in figures(request.schema, found.cells, sum(found.rows), found.deviation)}
    inside = []
    for name in generous:
        values = np.array([float(record[names.index(name)]) for record in records])
        for p, one in zip(QUANTILES, columns[name]["quantiles"], strict=True):
            true = np.quantile(values, p, method="inverted_cdf")
            inside.append(one["low"] <= true <= one["high"])
    assert np.mean(inside) > 0.8
    ages = columns["age"]["quantiles"]
    assert ages[0]["low"] <= 17
    assert 63 <= ages[-2]["high"] <= 85
    assert abs(ages[3]["value"] - 37) < 4
    assert 0.0 < columns["workclass"]["missing"]["error"] < 0.01
    missing = np.mean([record[1] == "?" for record in records])
    assert abs(columns["workclass"]["missing"]["value"] - missing) < 5 * columns["workclass"]["missing"]["error"]
    private = sum(record[1] == "Private" for record in records)
    work = columns["workclass"]
    assert abs(work["counts"]["Private"] - private) < 5 * work["count_error"] < 0.1 * private


@needs.mpi
def test_the_commands_of_the_page_work_as_they_stand(tmp_path):
    page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    section = page.split("\n## Describing tables privately\n")[1].split("\n## ")[0]
    script = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    script = script.replace("mpirun", MPIRUN + " --oversubscribe --allow-run-as-root" * needs.is_open_mpi())
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["timeout", "100", "bash", "-ec", script]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "12000 rows of 4 tables under (0.1, 1e-05)" in done.stdout
    assert "6000 rows of 2 tables under (0.1, 1e-05)" in done.stdout
    assert '[columns."glucose"]' in (tmp_path / "draft.toml").read_text()
