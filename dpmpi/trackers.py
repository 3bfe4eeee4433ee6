"""Trackers of experiments: callbacks for `dpmpi.train` and `dpmpi.simulate` that hand a run's figures on.

    dpmpi.simulate(shards, epsilon=1.0, evaluate=10, callback=CsvTracker("run.csv"))

The protocol is that of any callback: `tracker(kind, figures)`, with the kinds "start", "round", "evaluation" and "end"
of docs/api.md. These three note evaluations and the end, on the first rank alone, so that all ranks may be given one.
What they write is what the command line prints: evaluations are outside of the guarantee.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]


def numbers(figures: Figures) -> dict[str, float]:
    """Return the figures that are numbers, without the rank."""
    kinds = (int, float)
    return {n: float(v) for n, v in figures.items() if isinstance(v, kinds) and not isinstance(v, bool) and n != "rank"}


def chain(*trackers: Any) -> Any:
    """Return a callback that tells several."""

    def tell(kind: str, figures: Figures) -> None:
        for tracker in trackers:
            tracker(kind, figures)

    return tell


class CsvTracker:
    """Writes a line per evaluation to a CSV file, with a header; a figure that is not known is an empty cell."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._names: list[str] = []

    def __call__(self, kind: str, figures: Figures) -> None:
        """Note an evaluation."""
        if kind != "evaluation" or figures["rank"] != 0:
            return
        new = not self._names
        self._names = self._names or [name for name in figures if name != "rank"]
        with self.path.open("w" if new else "a", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, self._names, extrasaction="ignore")
            if new:
                table.writeheader()
            table.writerow(figures)


class TensorBoardTracker:
    """Writes a scalar per figure and evaluation for TensorBoard, by tensorboardX (extra `trackers`)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def __call__(self, kind: str, figures: Figures) -> None:
        """Note an evaluation; at the end of the run close the file."""
        if figures["rank"] != 0:
            return
        if kind == "start":
            from tensorboardX import SummaryWriter  # noqa: PLC0415 - optional, and slow

            self._writer = SummaryWriter(str(self.folder))
            self._writer.add_text("run", ", ".join(f"{n} {v}" for n, v in figures.items() if v is not None))
        elif kind == "evaluation":
            for name, value in numbers(figures).items():
                self._writer.add_scalar(name, value, figures["round"])
        elif kind == "end":
            self._writer.close()


class MlflowTracker:
    """Makes a run of MLflow: parameters at the start, metrics per evaluation and at the end (extra `trackers`).

    `uri` is where MLflow tracks, by default where its own settings say. `run_id` is the run that was made.
    """

    def __init__(self, experiment: str = "dpmpi", *, name: str | None = None, uri: str | None = None) -> None:
        self.experiment, self.name, self.uri = experiment, name, uri
        self.run_id = ""
        self._client: Any = None

    def __call__(self, kind: str, figures: Figures) -> None:
        """Note the start, an evaluation or the end."""
        if figures["rank"] != 0:
            return
        if kind == "start":
            from mlflow import MlflowClient  # noqa: PLC0415 - optional, and slow

            self._client = client = MlflowClient(self.uri)
            found = client.get_experiment_by_name(self.experiment)
            place = found.experiment_id if found else client.create_experiment(self.experiment)
            self.run_id = client.create_run(place, run_name=self.name).info.run_id
            for key, value in figures.items():
                client.log_param(self.run_id, key, value)
        elif kind in ("evaluation", "end"):
            for key, value in numbers(figures).items():
                self._client.log_metric(self.run_id, key, value, step=int(figures.get("round", figures["rounds"])))
            if kind == "end":
                self._client.set_terminated(self.run_id)
