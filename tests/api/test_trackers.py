"""Trackers against the packages that they write for."""

import csv

import needs
import numpy as np
import pytest

import dpmpi
from dpmpi.trackers import CsvTracker, MlflowTracker, TensorBoardTracker, chain, numbers

SETTINGS = {"loss": "logistic", "epsilon": 1.0, "rounds": 20, "evaluate": 5}


@pytest.fixture(scope="module")
def shards():
    draw = np.random.default_rng(0)
    X = draw.standard_normal((200, 4))
    return dpmpi.split(X, (X.sum(axis=1) > 0).astype(int), 4)


def test_numbers_are_numbers():
    assert numbers({"rank": 0, "a": 1, "b": None, "c": "x", "d": True, "e": 0.5}) == {"a": 1.0, "e": 0.5}


def test_a_csv_file_has_the_history(shards, tmp_path):
    result = dpmpi.simulate(shards, **SETTINGS, callback=CsvTracker(tmp_path / "run.csv"))
    with (tmp_path / "run.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for name in ("round", "objective", "consensus_error"):
        assert [float(line[name]) for line in lines] == result.history[name].tolist()
    assert [line["accuracy"] for line in lines] == [""] * 4


def test_tensorboard_reads_the_history(shards, tmp_path):
    needs.package("tensorboardX", "trackers")
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415

    result = dpmpi.simulate(shards, **SETTINGS, callback=TensorBoardTracker(tmp_path))
    [file] = tmp_path.glob("events.*")
    content, found, place = file.read_bytes(), {}, 0
    while place < len(content):  # a record: length (8 bytes), its checksum (4), the event, its checksum (4)
        length = int.from_bytes(content[place : place + 8], "little")
        event = Event.FromString(content[place + 12 : place + 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
        place += length + 16
    expected = zip(result.history["round"].astype(int).tolist(), result.history["objective"].tolist(), strict=True)
    assert found["objective"] == [(t, pytest.approx(value, rel=1e-6)) for t, value in expected]
    assert len(found["epsilon"]) == 4


@pytest.mark.filterwarnings("ignore")  # MLflow's own: it would rather have a database than files
def test_mlflow_has_parameters_and_metrics(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow, uri = needs.package("mlflow", "trackers"), (tmp_path / "store").as_uri()
    tracker, other = MlflowTracker("trials", name="first", uri=uri), MlflowTracker("trials", uri=uri)
    result = dpmpi.simulate(shards, **SETTINGS, callback=chain(tracker, other))
    client = mlflow.MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert run.data.params["algorithm"] == result.summary["algorithm"]
    assert run.data.metrics["epsilon"] == pytest.approx(result.privacy.epsilon)
    history = client.get_metric_history(tracker.run_id, "objective")
    assert [one.value for one in history][:4] == pytest.approx(result.history["objective"].tolist())
    assert [one.step for one in history][:4] == [5, 10, 15, 20]
    assert client.get_run(other.run_id).info.experiment_id == run.info.experiment_id


def test_other_ranks_write_nothing(tmp_path):
    for tracker in (CsvTracker(tmp_path / "x.csv"), TensorBoardTracker(tmp_path / "x"), MlflowTracker()):
        for kind in ("start", "round", "evaluation", "end"):
            tracker(kind, {"rank": 1, "round": 1, "rounds": 2})
    assert not list(tmp_path.iterdir())
