"""The commands of docs/model.md and docs/evaluation.md, copied from the pages and run."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import needs
from groups import run_group
from pages import blocks, masked, missing

DOCS = Path(__file__).parents[2] / "docs"


def run(script, folder):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", f"set -euo pipefail\n{script}"]
    done = run_group(command, 120, errors=subprocess.STDOUT, cwd=folder, env=environment)
    assert done.code == 0, done.out
    return done.out


def commands(page):
    return "\n".join("\n".join(lines) for mark, lines in blocks(DOCS / page) if mark == "run")


def test_the_commands_and_the_code_of_the_model_page(tmp_path):
    said = run(commands("model.md"), tmp_path)
    assert "50 of 50 records predicted: predictions.csv" in said
    for name, records in (("predictions.csv", 50), ("coded.csv", 2000)):
        with (tmp_path / name).open() as file:
            assert len(list(csv.DictReader(file))) == records
    assert (tmp_path / "coefficients.csv").read_text().count("\n") == 5  # a header, three features, the intercept
    [code] = re.findall(r"^```python\n(.*?)^```$", (DOCS / "model.md").read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "page.py").write_text(code)
    assert "epsilon 1" in run("python page.py", tmp_path)


@needs.data
def test_the_commands_of_the_evaluation_page(tmp_path):
    script = commands("evaluation.md").replace("data/uci", os.environ["DPMPI_DATA"])
    assert "mpirun -n 4 python -m dpmpi.run" in script
    said = run(script.replace("mpirun -n 4 python -m dpmpi.run", "python -m dpmpi.run --loopback 4"), tmp_path)
    [shown] = [lines for mark, lines in blocks(DOCS / "evaluation.md") if mark.startswith("prints")]
    assert missing(shown, said.splitlines(), masked) is None, said
