"""The commands of docs/consortium.md, copied from the page and run by three parties in three folders."""

import csv
import json
import os
import re
import socket
import subprocess
from pathlib import Path

import needs
import pytest
from groups import run_group
from pages import blocks, masked, missing
from parties import python

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/consortium.md"
LIMIT = 200
pytestmark = needs.mpi


def in_parallel(lines):
    """A script that runs the commands of all parties at once, each in its own shell; shows the first one's."""
    parties = "\n".join(lines).split("\n\n")
    started = [f"({party}) > party-{k}.log 2>&1 & jobs[{k}]=$!" for k, party in enumerate(parties)]
    waits = [f"wait ${{jobs[{k}]}} || {{ cat party-*.log; exit 1; }}" for k in range(len(parties))]
    return "\n".join([*started, *waits, "cat party-0.log"])


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder in which all commands were run, and what each block printed."""
    folder = tmp_path_factory.mktemp("consortium")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    parts = [
        f"echo '--- block'\n{in_parallel(lines) if mark == 'parties' else chr(10).join(lines)}"
        for mark, lines in blocks(PAGE)
        if mark in ("run", "parties")
    ]
    script = "\n".join(["set -euo pipefail", *parts]).replace("127.0.0.1:7000", f"127.0.0.1:{port}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
    environment |= {"PATH": f"{Path(python()).parent}:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    done = run_group(["bash", "-c", script], LIMIT, errors=subprocess.STDOUT, cwd=folder, env=environment)
    assert done.code == 0, done.out
    return folder, [text.splitlines() for text in re.split(r"^--- block\n", done.out, flags=re.MULTILINE)[1:]]


def test_the_page_shows_what_its_commands_print(followed):
    _, said = followed
    k = -1
    for mark, lines in blocks(PAGE):
        k += mark in ("run", "parties")
        if mark.startswith("prints"):  # parties come in any order
            absent = [line for line in lines if missing([line], said[k], masked)]
            assert not absent, "\n".join([*absent, "printed was", *said[k]])


def test_every_party_has_its_results_and_predictions_are_good(followed):
    folder, _ = followed
    for rank, site in enumerate(("north", "south", "west")):
        summary = json.loads((folder / site / "runs/first/summary.json").read_text())
        assert summary["privacy"]["private"]
        assert 0.98 < summary["privacy"]["epsilon"] <= 1.0
        assert [path.name for path in (folder / site / "ledger").glob("*.jsonl")] == [f"rank-{rank:03d}.jsonl"]
        assert [path.name for path in (folder / site / "keys").glob("*.key")] == [f"rank-{rank:03d}.key"]
    with (folder / "south/predictions.csv").open() as told, (folder / "south/table.csv").open() as table:
        predicted, true = list(csv.DictReader(told)), list(csv.DictReader(table))
    assert [row["patient"] for row in predicted] == [row["patient"] for row in true]
    right = sum(a["prediction"] == b["readmitted"] for a, b in zip(predicted, true, strict=True))
    assert right / len(true) > 0.85
    assert len(list((folder / "checked").iterdir())) == 3
