"""`simulate`: the run of the command line, on arrays of a Python program, in this process."""

import json
import logging
import re
from dataclasses import dataclass

import needs
import networkx
import numpy as np
import pytest
import scipy.sparse

import dpmpi
from dpmpi.algorithms import ALGORITHMS
from dpmpi.commands.dispatch import main as command
from dpmpi.commands.verify.command import verify
from dpmpi.core import Method, hyperparameter
from dpmpi.errors import CheckpointError, ConfigError, DataError
from dpmpi.run import main as run

AGENTS = 5
SETTINGS = {"loss": "logistic", "epsilon": 1.0}
SEEDED = SETTINGS | {"insecure_noise_seed": 3}


@pytest.fixture(scope="module")
def records():
    draw = np.random.default_rng(0)
    X = draw.standard_normal((400, 6))
    return X, (X @ draw.standard_normal(6) > 0).astype(int)


@pytest.fixture(scope="module")
def shards(records):
    return dpmpi.split(*records, AGENTS)


def test_a_simulation_is_private_and_its_ledgers_check_out(shards):
    result = dpmpi.simulate(shards, **SETTINGS)
    assert result.privacy.private
    assert result.privacy.epsilon == pytest.approx(1.0, rel=0.01)
    assert result.privacy.text.startswith("epsilon 1 at delta 1e-05, certified")
    assert len(result.model.coef) == 6
    assert result.summary["ranks"] == AGENTS
    assert result.communication["messages"] > 0
    assert result.history == {}
    assert result.settings["data"] == "arrays"
    assert result.ledger.name == "rank-000.jsonl"
    found = verify(result.path)
    assert [rank.problems for rank in found] == [()] * AGENTS
    assert [rank.charges for rank in found] == [result.summary["rounds"]] * AGENTS


def test_the_bits_are_those_of_the_command_line_on_the_same_records(shards, tmp_path):
    for rank, (X, y) in enumerate(shards):
        np.savez(tmp_path / f"{rank}.npz", X=X, y=y)
    flags = ["--loss", "logistic", "--epsilon", "1", "--insecure-noise-seed", "3", "--evaluate", "7", "--quiet"]
    flags += ["--data", f"shards:{tmp_path}/{{rank}}.npz", "--out", str(tmp_path / "run"), "--loopback", str(AGENTS)]
    assert run(flags) == 0
    result, other = dpmpi.simulate(shards, **SEEDED, evaluate=7), dpmpi.Result(tmp_path / "run")
    with np.load(result.path / "model.npz") as mine, np.load(other.path / "model.npz") as theirs:
        assert np.array_equal(mine["x"], theirs["x"])
        assert np.array_equal(mine["x_rank"], theirs["x_rank"])
    assert np.array_equal(result.history["objective"], other.history["objective"])
    assert result.communication == other.communication


def test_the_arrays_of_the_caller_stay_as_they_are(records):
    X, y = (np.array(values) for values in records)
    dpmpi.simulate(dpmpi.split(X, y, 2), **SETTINGS)
    dpmpi.simulate([(X, y)], **SETTINGS)
    assert np.array_equal(X, records[0])
    assert np.array_equal(y, records[1])


def test_the_names_of_columns_are_those_of_the_model(shards):
    pandas = needs.package("pandas", "test")
    names = list("abcdef")
    frames = [(pandas.DataFrame(X, columns=names), y) for X, y in shards]
    result = dpmpi.simulate(frames, **SETTINGS)
    assert list(result.model.coef) == names
    assert result.settings["data"].startswith("arrays:columns=")
    assert not any(rank.problems for rank in verify(result.path))
    frames[2] = (frames[2][0][names[::-1]], frames[2][1])
    with pytest.raises(DataError, match="rank 2: expected the columns a, b"):
        dpmpi.simulate(frames, **SETTINGS)


def models_of(*results):
    found = []
    for result in results:
        with np.load(result.path / "model.npz") as file:
            found.append(file["x"])
    return found


def test_dense_sparse_and_tables_of_numbers_are_the_same_records(shards):
    pandas, pyarrow = needs.package("pandas", "test"), needs.package("pyarrow", "parquet")
    kinds = [
        shards,
        [(scipy.sparse.coo_array(X), y) for X, y in shards],
        [(pandas.DataFrame(X), pandas.Series(y)) for X, y in shards],
        [(pyarrow.table({str(k): column for k, column in enumerate(X.T)}), pyarrow.array(y)) for X, y in shards],
        [(X.tolist(), y.tolist()) for X, y in shards],
    ]
    first, *others = models_of(*(dpmpi.simulate(kind, **SEEDED) for kind in kinds))
    for other in others:
        assert other == pytest.approx(first, abs=1e-12)  # sparse sums go in another order


BOOK = """
missing-words = ["NA", ""]
[label]
column = "died"
classes = ["no", "yes"]
[columns.age]
range = [0, 100]
missing = "column"
[columns.ward]
categories = ["A", "B", "3"]
"""
LINES = "age,ward,died\n50,A,no\n70.5,B,yes\nNA,3,yes\n20,A,no\n"


def test_tables_are_coded_by_the_codebook_as_files_are(tmp_path):
    pandas, pyarrow = needs.package("pandas", "test"), needs.package("pyarrow", "parquet")
    book, table = tmp_path / "book.toml", tmp_path / "table.csv"
    book.write_text(BOOK)
    table.write_text(LINES)
    assert command(["data", "table", str(table), "--codebook", str(book), "--out", str(tmp_path / "0.npz")]) == 0
    with np.load(tmp_path / "0.npz") as file:
        coded = file["X"], file["y"]
    frame = pandas.DataFrame(
        {"age": [50, 70.5, None, 20], "ward": ["A", "B", "3", "A"], "died": ["no", "yes", "yes", "no"]}
    )
    arrow = pyarrow.table(
        {"age": [50.0, 70.5, None, 20.0], "ward": ["A", "B", "3", "A"], "died": ["no", "yes", "yes", "no"]}
    )
    unlabelled = frame.drop(columns="died"), [0, 1, 1, 0]
    settings = SEEDED | {"allow_large_delta": True, "codebook": book}
    [expected] = models_of(dpmpi.simulate([coded], **SEEDED, allow_large_delta=True))
    results = [dpmpi.simulate([shard], **settings) for shard in (frame, arrow, unlabelled)]
    for model in models_of(*results):
        assert np.array_equal(model, expected)
    (X, y), (again, none) = dpmpi.code(arrow, book), dpmpi.code(unlabelled[0], book)
    assert np.array_equal(X, coded[0])
    assert np.array_equal(X, again)
    assert np.array_equal(y, coded[1])
    assert none is None
    assert set(results[0].model.predict(X)) <= {"no", "yes"}
    assert list(results[0].model.coef) == ["age", "age is missing", "ward=A", "ward=B", "ward=3"]
    assert not any(rank.problems for rank in verify(results[0].path))
    with pytest.raises(DataError, match="record 1: column ward: expected one of 3 categories"):
        dpmpi.simulate([frame.assign(ward=["A", "X", "A", "A"])], **settings)


@pytest.mark.parametrize("graph", ["networkx", "array", "text"])
def test_graphs_of_ones_own(shards, graph):
    path = networkx.path_graph(AGENTS)
    own = {"networkx": path, "array": np.array(path.edges), "text": "edges:0-1,1-2,2-3,3-4"}[graph]
    result, named = dpmpi.simulate(shards, **SEEDED, graph=own), dpmpi.simulate(shards, **SEEDED, graph="path")
    assert np.array_equal(*models_of(result, named))
    assert result.settings["graph"] == "edges:0-1,1-2,2-3,3-4"
    assert result.summary["graph"]["name"] == "edges (4)"
    assert not any(rank.problems for rank in verify(result.path))


def test_classes_by_their_names(records):
    X, y = records
    words = np.array(["no", "yes"])[y]
    numbers, named = (
        dpmpi.simulate(dpmpi.split(X, labels, 3), **SEEDED, **more)
        for labels, more in ((y, {}), (words, {"classes": ["no", "yes"]}))
    )
    assert np.array_equal(*models_of(numbers, named))
    assert set(named.model.predict(X)) == {"no", "yes"}
    three = np.array(["a, b", "c", "d"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    settings = {"classes": ["a, b", "c", "d"], "class_weights": {"c": 2.0}, "loss": "softmax", "epsilon": 2.0}
    result = dpmpi.simulate(dpmpi.split(X, three, 3), **settings)
    assert set(result.model.predict(X)) <= set(three.tolist())
    assert not any(rank.problems for rank in verify(result.path))
    with pytest.raises(DataError, match="labels of the classes no,yes, found others"):
        dpmpi.simulate(dpmpi.split(X, three, 3), **SEEDED, classes=["no", "yes"])
    with pytest.raises(DataError, match="labels of the classes that are declared, found others"):
        dpmpi.simulate(dpmpi.split(X, words, 3), **SEEDED)


def test_numbers_in_their_own_range(records):
    X, _ = records
    target = 20 + 10 * X[:, 0]
    result = dpmpi.simulate(dpmpi.split(X, target, 3), loss="squared", epsilon=5.0, label_range=(0, 40))
    assert np.corrcoef(result.model.predict(X), target)[0, 1] > 0.5
    assert result.settings["label-range"] == "0.0:40.0"


@dataclass(frozen=True)
class HalfwayGd(Method):
    """Gradient steps, each mixed with the neighbours: the smallest method that there is."""

    step: float | None = hyperparameter(0.5, "the step", minimum=0)

    @dataclass
    class state:  # noqa: N801 - as the base calls it
        x: np.ndarray

    def round(self, agent, state, t):
        s = agent.release(agent.problem.subgradient(state.x))
        state.x -= self.step * s.value
        yield dpmpi.Mix(dpmpi.public(state.x, because="made of releases"), out=state.x)

    def model(self, agent, state, t, out):
        out[:] = state.x


def test_a_method_as_an_object(shards):
    known = dpmpi.simulate(shards, **SETTINGS, method=ALGORITHMS["dgd"](), domain="ball:1")
    assert known.settings["algorithm"] == "dgd"
    result = dpmpi.simulate(shards, **SETTINGS, method=HalfwayGd(step=0.25), rounds=20)
    assert result.settings["algorithm"] == "halfway-gd"
    assert result.settings["step"] == 0.25
    assert result.settings["plugin"].endswith("test_simulate")
    assert len(result.settings["plugin-digest"]) == 64
    assert not any(rank.problems for rank in verify(result.path))
    with pytest.raises(ConfigError, match="step from method= alone"):
        dpmpi.simulate(shards, **SETTINGS, method=HalfwayGd(step=0.25), step=1.0)


def test_graphs_that_are_none(shards):
    for graph, what in [
        (networkx.path_graph(4), "connected"),
        (networkx.Graph([("a", "b")]), "0 ... n-1"),
        ([(0, 9), (1, 2)], "expected edges"),
        (object(), "pairs of ranks"),
        ([[0.5, 1.0]], "pairs of ranks"),
    ]:
        with pytest.raises(ConfigError, match=what):
            dpmpi.simulate(shards, **SETTINGS, graph=graph)


def test_a_graph_may_have_many_edges():
    complete = networkx.complete_graph(25)
    draw = np.random.default_rng(1)
    shards = [(draw.standard_normal((3, 2)), [0, 1, 0]) for _ in range(25)]
    kinds = (
        dpmpi.simulate(shards, noise=1.0, rounds=2, insecure_noise_seed=1, graph=g) for g in (complete, "complete")
    )
    assert np.array_equal(*models_of(*kinds))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"epsilonn": 1.0}, "unknown key 'epsilonn' .did you mean epsilon"),
        ({"epsilon": "one"}, "expected epsilon = a number"),
        ({"epsilon": -1.0}, "--epsilon must be greater than 0"),
        ({"algorithm": "dgd", "eta": 1.0}, "does not apply to dgd"),
        ({"data": "synthetic"}, "leave it out"),
        ({"graph": "circle"}, "expected a graph among"),
        ({"rounds": 3.5}, "expected rounds = a whole number"),
    ],
)
def test_settings_are_checked_as_flags_are(shards, settings, what):
    with pytest.raises(ConfigError, match=what):
        dpmpi.simulate(shards, **{"loss": "logistic"} | settings)


def test_settings_take_the_numbers_of_numpy_and_paths(shards, tmp_path):
    result = dpmpi.simulate(shards, epsilon=np.float64(2), rounds=np.int64(3), out=tmp_path / "run", seed=None)
    assert result.path == tmp_path / "run"
    assert result.summary["rounds"] == 3


@pytest.mark.parametrize(
    ("shard", "what"),
    [
        (([[1.0, np.nan]], [1]), "rank 1: .*finite"),
        (([[1.0, 2.0]], [1, 0]), "rank 1: expected one label for each of 1 rows"),
        (([[1.0, 2.0]], [2]), "rank 1: expected class labels"),
        (([["a", "b"]], [1]), "rank 1: expected numbers"),
        (([1.0, 2.0], [1, 0]), "rank 1: expected a matrix"),
        (([[1.0, 2.0]], None), "rank 1: expected labels y"),
        (([[1.0, 2.0, 3.0]], [1]), "same features"),
    ],
)
def test_bad_records_are_named(shard, what):
    with pytest.raises(DataError, match=what):
        dpmpi.simulate([([[1.0, 2.0]], [0]), shard], noise=1.0, rounds=2, graph="path")


def test_arrays_in_place_of_shards(records):
    for given in (records, records[:1]):
        with pytest.raises(ConfigError, match=r"expected a list of shards \(X, y\), found arrays: .*dpmpi.split"):
            dpmpi.simulate(*given, epsilon=1.0)


def test_no_shards():
    with pytest.raises(ConfigError, match="at least one shard"):
        dpmpi.simulate([], epsilon=1.0)


def test_held_out_records_are_evaluated_when_asked_for(records, shards):
    test = records[0][:50], records[1][:50]
    whole = dpmpi.simulate(shards, **SEEDED, evaluate=5, test=test)
    parts = dpmpi.simulate(shards, **SEEDED, evaluate=5, test=[(test[0][k::5], test[1][k::5]) for k in range(AGENTS)])
    assert whole.summary["accuracy"] == parts.summary["accuracy"] > 0.8
    assert whole.history["round"].tolist()[:2] == [5, 10]
    fraction = dpmpi.simulate(shards, **SEEDED, evaluate=5, test_fraction=0.25)
    assert fraction.summary["per_rank"][0]["samples"] == 60
    assert 0.5 < fraction.summary["accuracy"] <= 1
    with pytest.raises(DataError, match="6 columns in the test arrays, found 5"):
        dpmpi.simulate(shards, **SEEDED, evaluate=5, test=(test[0][:, :5], test[1]))


def test_a_callback_hears_of_rounds_and_evaluations(shards):
    heard = []
    result = dpmpi.simulate(
        shards, **SEEDED, evaluate=10, callback=lambda kind, figures: heard.append((kind, dict(figures)))
    )
    kinds = [kind for kind, _ in heard]
    rounds = result.summary["rounds"]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert [figures["round"] for kind, figures in heard if kind == "round"] == [*range(1, rounds + 1)]
    evaluated = [figures for kind, figures in heard if kind == "evaluation"]
    assert [one["round"] for one in evaluated] == result.history["round"].tolist()
    assert [one["objective"] for one in evaluated] == result.history["objective"].tolist()
    assert heard[0][1]["rounds"] == rounds
    assert heard[-1][1]["bytes"] == result.communication["bytes"]
    assert all(figures["rank"] == 0 for _, figures in heard)
    silent = dpmpi.simulate(shards, **SEEDED, evaluate=10)
    assert np.array_equal(*models_of(result, silent))


def test_what_a_callback_raises_comes_back_as_it_is(shards, tmp_path):
    def callback(kind, figures):
        if figures.get("round") == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dpmpi.simulate(shards, **SETTINGS, callback=callback, out=tmp_path / "run")
    said = (tmp_path / "run/ended.txt").read_text()
    assert re.match(r"loopback, round 2: test_simulate.py, line \d+: failed; more in ", said)  # it may quote records


def test_a_library_does_not_print(shards, capfd, caplog):
    with caplog.at_level(logging.INFO, "dpmpi"):
        result = dpmpi.simulate(shards, **SETTINGS, evaluate=5)
    assert capfd.readouterr() == ("", "")
    assert str(result.path) in caplog.text


def test_a_bar_when_asked_for(shards, capfd):
    dpmpi.simulate(shards, **SETTINGS, progress=True)
    assert "round 0/" in capfd.readouterr().err


def test_a_temporary_directory_goes_with_its_result(shards, tmp_path):
    result = dpmpi.simulate(shards, **SETTINGS)
    path = result.path
    kept = result.save(tmp_path / "kept")
    assert not path.exists()
    assert result.path == kept == tmp_path / "kept"
    assert (kept / "ledger/rank-000.key").stat().st_mode & 0o777 == 0o600
    assert not any(rank.problems for rank in verify(kept))
    assert command(["report", str(kept)]) == 0
    with pytest.raises(ConfigError, match="new or empty"):
        result.save(kept)
    del result
    assert kept.exists()
    other = dpmpi.simulate(shards, **SETTINGS)
    path = other.path
    del other
    assert not path.parent.exists()


def test_a_run_goes_on_with_the_same_arrays(shards, tmp_path):
    def stop(kind, figures):
        if figures.get("round") == 9:
            raise InterruptedError

    settings, out = SEEDED | {"checkpoint_every": "4", "rounds": 14}, tmp_path / "run"
    with pytest.raises(InterruptedError):
        dpmpi.simulate(shards, **settings, out=out, callback=stop)
    others = [(X[::-1], y[::-1]) for X, y in shards]
    with pytest.raises(CheckpointError, match="rows are not those"):
        dpmpi.simulate(others, resume=out)
    with pytest.raises(ConfigError, match="goes on with the settings"):
        dpmpi.simulate(shards, resume=out, seed=7)
    frame = needs.package("pandas", "test").DataFrame(shards[0][0], columns=list("abcdef"))
    named = [(frame, shards[0][1]), *shards[1:]]
    with pytest.raises(ConfigError, match="expected the data of the run, arrays, found arrays:columns"):
        dpmpi.simulate(named, resume=out)
    with pytest.raises(ConfigError, match="5 ranks, found 4"):
        dpmpi.simulate(shards[:4], resume=out)
    result = dpmpi.simulate(shards, resume=out)
    assert np.array_equal(*models_of(result, dpmpi.simulate(shards, **SEEDED, rounds=14)))
    assert not any(rank.problems for rank in verify(out))


def test_the_command_line_says_that_arrays_come_from_python(capfd, tmp_path):
    assert run(["--data", "arrays", "--loopback", "2", "--out", str(tmp_path / "run")]) == 2
    assert "found none: call dpmpi.train or dpmpi.simulate" in capfd.readouterr().err
    assert run(["--data", "arrays:x", "--loopback", "2"]) == 2
    assert capfd.readouterr().err.startswith("dpmpi: expected arrays or arrays:columns=DIGEST")


def test_ledgers_add_up_over_simulations(shards, tmp_path):
    first = dpmpi.simulate(shards, **SETTINGS, ledger=tmp_path)
    second = dpmpi.simulate(shards, **SETTINGS, ledger=tmp_path)
    assert second.ledger == tmp_path / "rank-000.jsonl"
    assert first.summary["per_rank"][0]["epsilon_with_earlier_runs"] is None
    assert second.summary["per_rank"][0]["epsilon_with_earlier_runs"] > 1.2
    lines = [json.loads(line) for line in second.ledger.read_text().splitlines()]
    assert len({line["run"] for line in lines if "run" in line}) == 2


@pytest.mark.parametrize(("progress", "lines"), [(False, 1), (True, 0)])
def test_many_agents_are_not_simulated_without_a_word(monkeypatch, caplog, progress, lines):
    monkeypatch.setattr("dpmpi.api.training.MANY_AGENTS", 3)
    X = np.random.default_rng(0).standard_normal((30, 2))
    labels = (X[:, 0] > 0).astype(int)
    dpmpi.simulate(dpmpi.split(X, labels, 3), loss="logistic", epsilon=1.0, rounds=2, progress=progress)
    assert sum("3 agents in one process" in record.message for record in caplog.records) == lines
