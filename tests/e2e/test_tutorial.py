"""The commands of docs/tutorial.md, copied from the page and run; what the page shows is what they print."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import needs
import numpy as np
import pytest
from groups import run_group
from launcher import MPIRUN
from pages import blocks, masked, missing
from parties import python
from sklearn.linear_model import LogisticRegression

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/tutorial.md"
LIMIT = 300

pytestmark = needs.open_mpi()  # the page kills processes of Open MPI


def commands():
    return [lines for mark, lines in blocks(PAGE) if mark == "run"]


def environment():
    folders = [str(Path(sys.executable).parent), str(Path(MPIRUN).parent), os.environ["PATH"]]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | allowed | {"PATH": ":".join(folders), "PYTHONPATH": str(REPOSITORY)}


def run(script, folder, *before):
    command = [*before, "bash", "-c", script]
    return run_group(command, LIMIT, errors=subprocess.STDOUT, cwd=folder, env=environment())


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder in which all commands were run, and what each block printed."""
    folder = tmp_path_factory.mktemp("tutorial")
    parts = [f"echo '--- block {k}'\n" + "\n".join(lines) for k, lines in enumerate(commands())]
    done = run("\n".join(["set -euo pipefail", *parts]), folder)
    assert done.code == 0, done.out
    said = re.split(r"^--- block \d+\n", done.out, flags=re.MULTILINE)[1:]
    assert len(said) == len(parts)
    return folder / "consortium", [text.splitlines() for text in said]


def test_the_page_shows_what_its_commands_print(followed):
    _, said = followed
    k, checked = -1, 0
    for mark, lines in blocks(PAGE):
        if mark == "run":
            k += 1
        elif mark.startswith("prints"):
            form = masked if mark == "prints, with other digits" else str.rstrip
            line = missing(lines, said[k], form)
            assert line is None, f"the page shows {line!r}; printed was\n" + "\n".join(said[k])
            checked += 1
    assert checked >= 10


def test_the_models_are_useful_and_keep_their_promise(followed):
    folder, said = followed
    printed = "\n".join(line for text in said for line in text)
    accuracy = float(re.search(r"with a label: accuracy ([\d.]+)", printed)[1])
    table = np.load(folder / "next-month.npz")
    assert np.mean(table["y"] < 0) < 0.6
    assert accuracy > 0.8
    shards = [np.load(folder / f"shard-{rank}.npz") for rank in range(3)]
    pooled = LogisticRegression(fit_intercept=False, max_iter=500)
    pooled.fit(np.vstack([shard["X"] for shard in shards]), np.concatenate([shard["y"] for shard in shards]))
    assert f"without any privacy, has {pooled.score(table['X'], table['y']):.2f}." in PAGE.read_text(encoding="utf-8")
    summaries = {
        name: json.loads((folder / "runs" / name / "summary.json").read_text()) for name in os.listdir(folder / "runs")
    }
    assert sorted(summaries) == ["first", "interrupted", "second", "third"]
    for name, summary in summaries.items():
        assert summary["privacy"]["private"]
        assert not summary["privacy"]["evaluation_outside_guarantee"]
        assert (0.2 if name == "third" else 0.98) < summary["privacy"]["epsilon"] <= 1.0
        assert summary["secrecy"] == {
            "exchange": "shares",
            "shares": "expanded",
            "sealed": True,
            "identities": "roster",
        }
    assert summaries["interrupted"]["starts"] == 2
    paid = [
        [record["epsilon_with_earlier_runs"] or record["epsilon"] for record in summaries[name]["per_rank"]]
        for name in ("first", "second", "third")
    ]
    for before, after in pairwise(paid):
        assert all(a < b <= 1.5 for a, b in zip(before, after, strict=True))


def test_a_cell_that_the_page_shows_an_error_for(followed, capsys, monkeypatch):
    from dpmpi.commands.dispatch import main  # noqa: PLC0415 - only this test needs the commands

    folder, _ = followed
    monkeypatch.chdir(folder)
    assert main(["data", "table", "south.csv", "--codebook", "codebook.toml", "--out", "wrong.npz"]) == 2
    assert f"    {capsys.readouterr().err}" in PAGE.read_text(encoding="utf-8")


@needs.namespaces()
def test_the_command_for_three_machines(followed, tmp_path):
    """Three sets of Linux namespaces, each with a folder that the others cannot see."""
    [launch] = ["\n".join(lines) for mark, lines in blocks(PAGE) if mark == "three machines"]
    private = "/media/private/consortium"
    launch = (
        launch.replace("/srv/consortium", private).replace("--rank 0", "--rank $1").replace("python ", f"{python()} ")
    )
    (tmp_path / "join").write_text(f"set -e\n{launch}\n")
    source, _ = followed
    script = f"""
        set -euo pipefail
        for k in 0 1 2; do
            $DPMPI_HOSTS/enter node$((k + 1)) "mkdir -p {private}/keys && cd {private} &&
                cp {source}/agreed.toml {source}/shard-$k.npz . &&
                cp {source}/keys/roster.toml {source}/keys/rank-00$k.key keys"
        done
        for k in 2 0 1; do $DPMPI_HOSTS/enter node$((k + 1)) bash {tmp_path}/join $k & jobs="${{jobs-}} $!"; done
        for job in $jobs; do wait $job; done
        for k in 0 1 2; do
            $DPMPI_HOSTS/enter node$((k + 1)) "cd {private} && find . -type f && cp ledger/*.jsonl {tmp_path} &&
                cp -r runs/first {tmp_path}/results-$k"
        done
    """
    done = run(script, tmp_path, needs.NAMESPACES, "3")
    assert done.code == 0, done.out
    for name in ("agreed.toml", "keys/roster.toml"):
        assert done.out.count(f"./{name}\n") == 3
    for name in ("ledger/rank-{:03d}.jsonl", "ledger/rank-{:03d}.key", "keys/rank-{:03d}.key", "shard-{}.npz"):
        assert all(done.out.count(f"./{name.format(rank)}\n") == 1 for rank in range(3))
    for name in ("summary.json", "model.npz", "config.toml"):
        assert done.out.count(f"./runs/first/{name}\n") == 3  # each hospital has its own
        assert len({(tmp_path / f"results-{k}" / name).read_bytes() for k in range(3)}) == 1 or name == "model.npz"
    assert all(done.out.count(f"./runs/first/process/rank-00{rank}.json\n") == 1 for rank in range(3))
    models = [np.load(tmp_path / f"results-{k}" / "model.npz") for k in range(3)]
    table, model = np.load(source / "next-month.npz"), models[0]
    assert all(np.array_equal(model["x"], other["x"]) for other in models)
    scores = table["X"] @ model["coefficients"] + model["intercept"]
    assert np.mean((scores > 0) == (table["y"] > 0)) > 0.8
    for rank in range(3):
        header = json.loads((tmp_path / f"rank-{rank:03d}.jsonl").read_text().splitlines()[0])
        assert (header["rank"], header["budget"], header["private"]) == (rank, 1.5, True)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = PAGE.parent / name if name else PAGE
        assert file.exists(), target
        titles = [
            line.lstrip("# ").lower() for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#"
        ]
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles], target
