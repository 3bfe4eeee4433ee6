"""The commands of docs/tutorial.md, copied from the page and run; what the page shows is what they print.

The hospitals are the real ones where DPMPI_DATA has their files, else those that the page makes up.
"""

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
PAGE = REPOSITORY / "docs/tutorial.md"
LIMIT = 200
SITES = ("cleveland", "budapest", "zurich", "longbeach")
REAL = (Path(os.environ.get("DPMPI_DATA", "none")) / "heart/processed.va.data").exists()

pytestmark = needs.mpi


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder in which all commands were run, and what each block printed."""
    folder = tmp_path_factory.mktemp("tutorial")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [lines for mark, lines in blocks(PAGE) if mark == "run"]
    parts = [f"echo '--- block {k}'\n" + "\n".join(lines) for k, lines in enumerate(commands)]
    script = "\n".join(["set -euo pipefail", *parts]).replace("127.0.0.1:7000", f"127.0.0.1:{port}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
    environment |= {"PATH": f"{Path(python()).parent}:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    done = run_group(["bash", "-c", script], LIMIT, errors=subprocess.STDOUT, cwd=folder, env=environment)
    assert done.code == 0, done.out
    said = re.split(r"^--- block \d+\n", done.out, flags=re.MULTILINE)[1:]
    assert len(said) == len(parts)
    return folder / "consortium", [text.splitlines() for text in said]


def other_digits(line):
    """The line without numbers and predictions; of a private figure the name, since noise may leave nothing to tell."""
    private = re.match(r"  ([a-z0-9 ]+?) +(?:[-\d.]+ \+- [\d.]+|not told from noise)$", line)
    return [private[1]] if private else masked(re.sub(",(yes|no),", ",?,", line))


FORMS = {"prints": str.rstrip, "prints, of the real files": str.rstrip, "prints, with other digits": other_digits}


def test_the_page_shows_what_its_commands_print(followed):
    _, said = followed
    k, checked = -1, 0
    for mark, lines in blocks(PAGE):
        if mark == "run":
            k += 1
        elif mark == "prints, in another order":
            absent = [line for line in lines if missing([line], said[k], lambda text: text.split()[:1])]
            assert not absent, "\n".join(said[k])
            checked += 1
        elif REAL or mark != "prints, of the real files":
            line = missing(lines, said[k], FORMS[mark])
            assert line is None, f"the page shows {line!r}; printed was\n" + "\n".join(said[k])
            checked += 1
    assert checked >= 12


def test_each_hospital_has_what_is_its_own_and_no_more(followed):
    folder, _ = followed
    for rank, site in enumerate(SITES):
        own = folder / site
        assert [path.name for path in (own / "keys").glob("*.key")] == [f"rank-{rank:03d}.key"]
        assert [path.name for path in (own / "ledger").glob("*.jsonl")] == [f"rank-{rank:03d}.jsonl"]
        assert [path.name for path in own.glob("shard-*")] == [f"shard-{rank}.npz"]
        assert {path.name for path in (own / "runs").iterdir()} == {"first", "long", "second", "third"}


def test_the_models_are_useful_and_keep_their_promise(followed):
    folder, said = followed
    with (folder / "cleveland/predictions.csv").open() as told, (folder / "cleveland/new-patients.csv").open() as table:
        predicted, true = list(csv.DictReader(told)), list(csv.DictReader(table))
    assert [row["patient"] for row in predicted] == [row["patient"] for row in true]
    printed = "\n".join(line for text in said for line in text)
    assert float(re.search(r"with a label: accuracy .* auc ([\d.]+)", printed)[1]) > 0.6  # guessing has 0.5
    names = ("first", "second", "third", "long")
    summaries = {name: json.loads((folder / "cleveland/runs" / name / "summary.json").read_text()) for name in names}
    for name, summary in summaries.items():
        assert summary["privacy"]["private"]
        assert not summary["privacy"]["evaluation_outside_guarantee"]
        assert summary["privacy"]["epsilon"] == 0 if name == "third" else 0.98 < summary["privacy"]["epsilon"] <= 1.0
        assert summary["secrecy"]["exchange"] == "shares"
        assert summary["secrecy"]["sealed"]
        assert summary["secrecy"]["identities"] == "roster"
    assert summaries["long"]["starts"] == 2
    for record in summaries["second"]["per_rank"] + summaries["third"]["per_rank"]:
        assert 1.4 < record["epsilon_with_earlier_runs"] <= 1.5


def test_a_cell_that_the_page_shows_an_error_for(followed, capsys, monkeypatch):
    from dpmpi.commands.dispatch import main  # noqa: PLC0415 - only this test needs the commands

    folder, _ = followed
    monkeypatch.chdir(folder)
    header = (folder / "zurich/patients.csv").read_text().splitlines()[0]
    Path("wrong.csv").write_text(f"{header}\nzurich-1,50,male,atypicl,120,?,no,normal,140,no,0,yes\n")
    assert main(["data", "table", "wrong.csv", "--codebook", "codebook.toml", "--out", "wrong.npz"]) == 2
    assert f"    {capsys.readouterr().err}" in PAGE.read_text(encoding="utf-8")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8")):
        if target.startswith("https:"):
            continue
        name, _, anchor = target.partition("#")
        file = PAGE.parent / name if name else PAGE
        assert file.exists(), target
        titles = [
            line.lstrip("# ").lower() for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "#"
        ]
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles], target
