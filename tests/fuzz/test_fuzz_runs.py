"""Run directories given to `verify` and `report`: a damaged one is refused, or told to be wrong, or does no harm.

The verdict of `verify` is what is checked: whatever was changed, a run that checks out claims at least the epsilon that
its ledgers charge, for the ranks, the delta and the noise that it had.
"""

from __future__ import annotations

import json
import shutil

import pytest
from hostile import attempt, changed, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.commands.report.command import write_report
from dpmpi.commands.verify import command as verifier
from dpmpi.errors import DpmpiError
from dpmpi.run import main as run
from dpmpi.runtime.output.results import read_run, read_sweep_directory

FLAGS = (
    "--algorithm dp-dda --data synthetic:samples=60,features=3 --rounds 20 --noise 2 --delta 1e-4 --evaluate 5 "
    "--loopback 3 --reference --seed 3"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its directory, and what is in its files."""
    path = tmp_path_factory.mktemp("runs") / "demo"
    assert run([*FLAGS.split(), "--out", str(path)]) == 0
    return path, {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def damage(data, finished, kinds) -> str:
    """Damage one file of the run, which is whole before; return which."""
    path, files = finished
    for name, content in files.items():
        if not (path / name).exists() or (path / name).read_bytes() != content:
            (path / name).write_bytes(content)
    name = data.draw(st.sampled_from([file for file in sorted(files) if file.endswith(kinds)]))
    ways = [damaged(files[name])]
    if name.endswith(".json"):
        ways += [changed(json.loads(files[name])).map(lambda value: json.dumps(value).encode())] * 3
    (path / name).write_bytes(data.draw(st.one_of(ways)))
    if data.draw(st.integers(0, 30)) == 0:
        (path / name).unlink()
    return name


@given(data=st.data())
@examples(60)
def test_verify(data, finished):
    path, files = finished
    name = damage(data, finished, ("summary.json", "config.toml", "rank-000.jsonl"))
    found = attempt("verify", lambda: verifier.verify(path))
    if isinstance(found, DpmpiError) or any(rank.problems for rank in found):
        return
    said, true = json.loads((path / "summary.json").read_bytes()), json.loads(files["summary.json"])
    assert said["privacy"]["epsilon"] >= true["privacy"]["epsilon"] * (1 - verifier.TOLERANCE), name
    for key in ("ranks", "rounds", "run"):
        assert said[key] == true[key]
    for key in ("delta", "insecure_noise"):
        assert said["privacy"][key] == true["privacy"][key]
    for mine, theirs in zip(said["per_rank"], true["per_rank"], strict=True):
        assert mine["epsilon"] >= theirs["epsilon"] * (1 - verifier.TOLERANCE)
        assert [mine[key] for key in ("rank", "sigma", "samples")] == [
            theirs[key] for key in ("rank", "sigma", "samples")
        ]


@given(data=st.data())
@examples(40)
def test_report(data, finished, monkeypatch):
    monkeypatch.setattr("dpmpi.commands.report.drawing.FORMATS", ("svg",))
    path, _ = finished
    damage(data, finished, (".json", ".toml", "rank-001.jsonl"))
    attempt("run directory", lambda: read_run(path))
    page = attempt("report", lambda: write_report([path], path / "report.html"))
    if not isinstance(page, DpmpiError):
        assert "<script" not in page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def swept(tmp_path_factory, finished):
    """A finished sweep of two runs, without the processes that would make them."""
    path = tmp_path_factory.mktemp("sweeps") / "demo"
    for name in ("one", "two"):
        shutil.copytree(finished[0], path / name / "rep-0", ignore=shutil.ignore_patterns("plots", "report.html"))
    runs = [
        {"series": name, "grid": {"gamma": gamma}, "path": f"{name}/rep-0", "state": "done", "error": None}
        for name, gamma in (("one", 1.0), ("two", 2.0))
    ]  # fmt: skip
    index = {
        "name": "demo", "title": "Two runs", "paper": "", "figure": "", "text": "Two\n\nlines", "file": "demo.toml",
        "quick": False, "launcher": None, "ranks": 3, "repetitions": 1, "grid": {"gamma": [1.0, 2.0]},
        "series": [{"name": name, "label": name} for name in ("one", "two")], "runs": runs,
        "plots": [{"x": "round", "y": "suboptimality", "title": "", "log": "y"}, {"x": "gamma", "y": "accuracy"}],
    }  # fmt: skip
    (path / "sweep.json").write_text(json.dumps(index))
    return path, index


@given(data=st.data())
@examples(40)
def test_sweep_directory(data, swept, monkeypatch):
    monkeypatch.setattr("dpmpi.commands.report.drawing.FORMATS", ("svg",))
    path, index = swept
    whole = json.dumps(index).encode()
    table = changed(index).map(lambda value: json.dumps(value).encode())
    (path / "sweep.json").write_bytes(data.draw(damaged(whole) | table | table))
    before = {file for file in path.parent.parent.rglob("*.csv") if path not in file.parents}
    attempt("sweep directory", lambda: read_sweep_directory(path))
    page = attempt("report of a sweep", lambda: write_report([path], path / "report.html"))
    if not isinstance(page, DpmpiError):
        assert "<script" not in page.read_text(encoding="utf-8")
    assert before == {file for file in path.parent.parent.rglob("*.csv") if path not in file.parents}
